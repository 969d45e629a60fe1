"""Two questions about a topic before the first row is written: no row is at fault, and no error
would show it while rows are written.

- Does it drop repeated messages? Else the rows of a task that is tried again are stored twice.
- Does anything keep what is written? Brokers delete a closed ledger that neither retention nor a
  durable subscription holds, so a topic that has neither loses all but the ledger being written,
  in Apache Pulsar as here.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from magnetar.broker.protocol.topic_name import TopicName
from magnetar.pipeline.admin import Admin, ClusterAccess, NoSuchTopicError
from magnetar.pipeline.errors import OptionsError, PipelineError
from magnetar.pipeline.sink_options import AT_LEAST_ONCE, SinkOptions

_log = logging.getLogger(__name__)

_CHECK_LASTS_S: Final = 300.0
_checked: Final[dict[tuple[tuple[str, ...], str, bool, bool], float]] = {}
"""Brokers, topic and what was asked -> when it was found right. Workers run many tasks."""


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """Asks; pickled to Spark's tasks.

    Attributes:
        cluster: whose brokers are asked; None: none are.
        deduplicated: whether topics must drop repeated messages.
        kept: whether something must keep what is written; else it is warned of.
    """

    cluster: ClusterAccess | None
    deduplicated: bool
    kept: bool

    @classmethod
    def of(cls, options: SinkOptions, cluster: ClusterAccess | None) -> "TargetCheck":
        """
        Raises:
            OptionsError: no broker can be asked, but has to be.
        """
        stored = not options.topic or TopicName.parse(options.topic).is_persistent
        if cluster is None and options.fail_on_data_loss and stored:
            raise OptionsError(
                "option adminUrl is needed: before the first row brokers are asked there whether "
                "the topic keeps what is written. failOnDataLoss=false writes without asking"
            )
        if cluster is None and options.effectively_once:
            _log.warning(
                "without adminUrl nobody checks that topics drop repeated messages "
                "(policy deduplication); where they don't, tasks that are tried again repeat theirs"
            )
        return cls(cluster, options.effectively_once, options.fail_on_data_loss)

    def __call__(self, topic: str) -> None:
        """A task calls this before it writes: the topic exists. Asks seldom."""
        if self.cluster is None:
            return
        key = (self.cluster.urls, topic, self.deduplicated, self.kept)
        now_s = time.monotonic()
        if now_s - _checked.get(key, -_CHECK_LASTS_S) >= _CHECK_LASTS_S:
            self.ask(topic)
            _checked[key] = now_s

    def ask(self, topic: str, *, may_be_absent: bool = False) -> None:
        """
        Args:
            may_be_absent: then a topic that doesn't exist is judged by its namespace; the first
                task creates it, and asks again.
        Raises:
            OptionsError: the topic stores repeated messages, or keeps nothing.
            PipelineError: no broker says.
        """
        if self.cluster is None:
            return
        with Admin(self.cluster) as admin:
            try:
                if self.deduplicated:
                    _ask_deduplication(admin, topic)
                if TopicName.parse(topic).is_persistent:
                    self._ask_retention(admin, topic)
            except NoSuchTopicError:
                if not may_be_absent:
                    raise
                self._ask_namespace(admin, topic)

    def _ask_retention(self, admin: Admin, topic: str) -> None:
        try:
            lacking = _what_is_lacking(admin, topic)
        except NoSuchTopicError:
            raise
        except PipelineError as error:
            self._tell(_unknown(topic, error), error)
        else:
            if lacking:
                self._tell(_lost(topic, lacking))

    def _ask_namespace(self, admin: Admin, topic: str) -> None:
        """Judge a topic that doesn't exist yet: it begins without subscriptions."""
        namespace = TopicName.parse(topic).namespace
        try:
            retention = admin.get(f"/admin/v2/namespaces/{quote(namespace)}/retention", namespace)
        except PipelineError:  # the task that creates the topic asks again, and tells
            return
        # None: the brokers' default, which only a topic tells.
        if retention is not None and not _retains(retention):
            self._tell(_lost(topic, "it doesn't exist yet, so it has no subscription either"))

    def _tell(self, text: str, cause: PipelineError | None = None) -> None:
        if not self.kept:
            _log.warning("%s", text)
        elif cause is None:
            raise OptionsError(f"{text} failOnDataLoss=false writes all the same")
        else:
            raise PipelineError(f"{text} failOnDataLoss=false writes all the same") from cause


def _lost(topic: str, lacking: str) -> str:
    return (
        f"{topic}: nothing keeps what is written: no retention is set, and {lacking}. Brokers "
        "delete each ledger once it is closed. Create a subscription first, or set retention "
        "(policy of the topic or of its namespace)."
    )


def _unknown(topic: str, error: PipelineError) -> str:
    return (
        f"whether {topic} keeps what is written can't be found out: {error}. It takes a role that "
        "may read the topic's policies and statistics: an administrator of its tenant."
    )


def _ask_deduplication(admin: Admin, topic: str) -> None:
    try:
        drops = admin.policy(topic, "deduplicationEnabled")
    except NoSuchTopicError:
        raise
    except PipelineError as error:
        raise PipelineError(
            f"whether {topic} drops repeated messages can't be found out: {error}. It takes a role "
            "that may read the topic's policies (an administrator of its tenant); "
            f"deliveryGuarantee={AT_LEAST_ONCE} doesn't ask"
        ) from error
    if drops is not True:
        raise OptionsError(
            f"{topic}: de-duplication is off, so messages of tasks that are tried again would be "
            "stored twice. Switch it on (policy deduplicationEnabled of the topic, deduplication "
            "of its namespace, brokerDeduplicationEnabled), or say that this is all right: "
            f"deliveryGuarantee={AT_LEAST_ONCE}"
        )


def _what_is_lacking(admin: Admin, topic: str) -> str:
    """ "": retention, or a durable subscription of each partition, keeps what is written.

    Raises:
        NoSuchTopicError, SegmentsUnavailableError.
    """
    if _retains(admin.policy(topic, "retention")):
        return ""
    count = admin.partitions(topic)
    if not count:
        return "" if _is_held(admin.statistics(topic)) else "it has no durable subscription"
    found = admin.statistics(topic, "partitioned-stats?perPartition=true").get("partitions") or {}
    for index in range(count):
        name = str(TopicName.parse(topic).partition(index))
        if not _is_held(found.get(name, {})):  # absent: no client has used it
            return f"its partition {index} has no durable subscription"
    return ""


def _retains(policy: Any) -> bool:
    """Both limits count; 0 of either is none, -1 is no limit."""
    return bool(policy and policy.get("retentionTimeInMinutes") and policy.get("retentionSizeInMB"))


def _is_held(statistics: Mapping[str, Any]) -> bool:
    """A subscription of a reader goes with it, and holds nothing (``isDurable``)."""
    found = statistics.get("subscriptions") or {}
    return any(each.get("isDurable", each.get("durable", True)) for each in found.values())
