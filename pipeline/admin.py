"""The source and the jobs ask brokers over HTTP; entries never travel this way."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from magnetar.bookkeeper.tls import TlsFiles
from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.admin_client import AdminClient, AdminResponse
from magnetar.broker.cli.errors import CliError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.metadata.sasl.digest_md5 import SaslCredentials
from magnetar.pipeline.errors import OptionsError, PipelineError, SegmentsUnavailableError
from magnetar.pipeline.offsets import BEGINNING, Offset
from magnetar.pipeline.options import client_access
from magnetar.pipeline.topic_snapshot import TopicSnapshot, parse_snapshot

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 60.0
_PAUSES_S: Final = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0)
_UNREACHABLE_S: Final = 5.0
_AWAY_S: Final = 30.0
"""A call is tried again for so long where no broker answers, and where the owner isn't found yet or
brokers have answered before.
"""


class NoSuchTopicError(PipelineError):
    """There is no such topic, or no such partition."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Addresses of brokers, and our credentials; Spark pickles them to its tasks.

    Files are named here, not read: they must be there on every machine that runs tasks.

    Attributes:
        urls: of brokers' HTTP ports; the next one is tried when one doesn't answer.
        bookie_token: what bookies are shown (``bookkeeper.auth.TokenSource``); "": nothing.
        bookie_tls: None: plain connections to bookies.
        bookie_credentials: for SASL DIGEST-MD5 at Apache's bookies; None: they want none.
        ledger_password: of the topics' ledgers; entries with HMAC digests are checked by it.
    """

    urls: tuple[str, ...]
    access: ClientAuth = field(default_factory=ClientAuth)
    bookie_token: str = field(default="", repr=False)
    bookie_tls: TlsFiles | None = None
    bookie_credentials: SaslCredentials | None = None
    ledger_password: str = field(default="", repr=False)


def parse_access(options: Mapping[str, str]) -> ClusterAccess:
    """The options that say where and who.

    Raises:
        OptionsError: names the option.
    """
    lowered = {name.lower(): text for name, text in options.items()}
    urls = tuple(_urls(lowered.get("adminurl", "")))
    if not urls:
        raise OptionsError("option adminUrl is needed: a broker's http://host:8080")
    if any("@" in url for url in urls):  # it would be told in every error
        raise OptionsError("option adminUrl: no user and password there; see authPlugin")
    certificate, key, trust = (
        lowered.get(name.lower(), "")
        for name in ("bookieTlsCertificateFile", "bookieTlsKeyFile", "bookieTlsTrustCertsFile")
    )
    try:
        files = TlsFiles(certificate, key, trust) if certificate or key or trust else None
    except ValueError as error:
        raise OptionsError(f"options bookieTls...: {error}") from error
    username, password = (lowered.get(name, "") for name in ("bookieusername", "bookiepassword"))
    if bool(username) != bool(password):
        raise OptionsError("options bookieUsername and bookiePassword go together")
    return ClusterAccess(
        *(urls, client_access(lowered), lowered.get("bookietoken", ""), files),
        SaslCredentials(username, password) if username else None,
        lowered.get("managedledgerpassword", ""),
    )


def _urls(text: str) -> list[str]:
    """``http://a:8080,b:8080``: the scheme is that of the first."""
    urls: list[str] = []
    for each in (part.strip().rstrip("/") for part in text.split(",")):
        if each:
            scheme = urls[0].split("://")[0] if urls else "http"
            urls.append(each if "://" in each else f"{scheme}://{each}")
    return urls


class Admin:
    """Calls to a cluster; one thread at a time, usable as a context manager."""

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._client: AdminClient | None = None
        self._has_answered = False
        self._current = 0  # index of the URL in use

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.__exit__()
            self._client = None

    def partitions(self, topic: str) -> int:
        """Number of partitions; 0: the topic has none.

        Raises:
            NoSuchTopicError, SegmentsUnavailableError.
        """
        answer = self._call("GET", f"{_path(topic)}/partitions?checkAllowAutoCreation=false")
        return int(self._value(answer, topic)["partitions"])

    def topics(self, namespace: str) -> tuple[list[str], list[str]]:
        """Full names of the persistent topics: partitioned ones, and all others (with each
        partition that exists).

        Raises:
            NoSuchTopicError: no such namespace. SegmentsUnavailableError.
        """
        path = f"/admin/v2/persistent/{quote(namespace)}"
        partitioned = self._value(self._call("GET", f"{path}/partitioned"), namespace)
        return list(partitioned), list(self._value(self._call("GET", path), namespace))

    def segments(
        self,
        partition: str,
        from_ledger: int = -1,
        *,
        locations: bool = True,
        compacted: bool = False,
    ) -> TopicSnapshot:
        """Which ledgers hold a partition's messages, and where they are.

        Args:
            compacted: also the one that the last compaction left.

        Raises:
            NoSuchTopicError, SegmentsUnavailableError.
        """
        query = f"locations={str(locations).lower()}"
        if from_ledger >= 0:
            query += f"&fromLedger={from_ledger}"
        if compacted:
            query += "&compacted=true"
        answer = self._call("GET", f"{_path(partition)}/segments?{query}")
        return parse_snapshot(self._value(answer, partition), compacted=compacted)

    def offset_at(self, partition: str, time_ms: int) -> Offset:
        """Before the first message that was published at that time or later; as far as publish
        times ascend.

        Raises:
            NoSuchTopicError, SegmentsUnavailableError.
        """
        value = self._value(self._call("GET", f"{_path(partition)}/messageid/{time_ms}"), partition)
        point = Offset(int(value["ledgerId"]), int(value["entryId"]))
        return max(point, BEGINNING)

    def policy(self, topic: str, name: str) -> Any:
        """The policy that applies to a topic: its own, its namespace's, or the broker's.

        Args:
            name: as paths of topics have it: ``deduplicationEnabled``.
        Returns:
            None: nothing is set anywhere.
        Raises:
            NoSuchTopicError, SegmentsUnavailableError.
        """
        return self._value(self._call("GET", f"{_path(topic)}/{name}?applied=true"), topic)

    def statistics(self, topic: str, page: str = "stats") -> Any:
        """Statistics of a topic, or of a partitioned one with those of its partitions by full name.

        Args:
            page: ``stats`` or ``partitioned-stats``, with its query.
        Raises:
            NoSuchTopicError, SegmentsUnavailableError.
        """
        return self._value(self._call("GET", f"{_path(topic)}/{page}"), topic)

    def move_cursor(self, partition: str, cursor: str, point: Offset) -> None:
        """Everything below ``point`` counts as consumed by the subscription, which is created when
        there is none.

        Raises:
            NoSuchTopicError, SegmentsUnavailableError.
        """
        name = quote(cursor, safe="")
        before = {"ledgerId": point.ledger_id, "entryId": point.entry_id - 1, "isExcluded": True}
        before["partitionIndex"] = TopicName.parse(partition).partition_index
        path = f"{_path(partition)}/subscription/{name}"
        answer = self._call("POST", f"{path}/resetcursor", before)
        if answer.status == 404 and "ubscription" in answer.reason:
            answer = self._call("PUT", path, before)
            if answer.status == 409:  # another client has just created it
                answer = self._call("POST", f"{path}/resetcursor", before)
        self._value(answer, f"{partition}: subscription {cursor}")

    def get(self, path: str, what: str) -> Any:
        """Any other page as JSON.

        Args:
            path: quoted, with its query.
            what: names it in errors.
        Raises:
            NoSuchTopicError: there is no such thing. SegmentsUnavailableError.
        """
        return self._value(self._call("GET", path), what)

    def _value(self, answer: AdminResponse, what: str) -> Any:
        if answer.ok:
            return answer.value()
        text = f"{what}: HTTP {answer.status}: {answer.reason}"
        if answer.status == 404:
            raise NoSuchTopicError(text)
        raise SegmentsUnavailableError(text)

    def _call(self, method: str, path: str, body: Any = None) -> AdminResponse:
        """One call to the first broker that answers.

        A bundle that changes hands is 503 for a moment, a broker that is started anew doesn't
        answer for some: a query must not end for either.
        """
        began_s = time.monotonic()
        for pause_s in _PAUSES_S:
            answer, failures = self._try_all(method, path, body)
            waited_s = time.monotonic() - began_s
            if answer is not None and answer.status != 503:
                self._has_answered = True
                return answer
            # No broker has ever answered: the address is probably wrong.
            known = answer is not None or self._has_answered
            if waited_s + pause_s > (_AWAY_S if known else _UNREACHABLE_S):
                break
            time.sleep(pause_s)
        if answer is not None:
            return answer
        told = "; ".join(map(str, failures))
        raise SegmentsUnavailableError(f"no broker answers: {told}") from failures[-1]

    def _try_all(
        self, method: str, path: str, body: Any
    ) -> tuple[AdminResponse | None, list[Exception]]:
        """One round over the brokers: an answer, the last 503, or why there is none."""
        urls = self._cluster.urls
        failures: list[Exception] = []
        answer = None
        for _ in urls:
            try:
                answer = self._open().call(method, path, body)
                if answer.status == 401:  # tokens are shown as they were when the client was made
                    self.close()
                    answer = self._open().call(method, path, body)
                if answer.status != 503:
                    break
            except (CliError, ClientAuthError) as error:
                failures.append(error)
            self.close()
            self._current = (self._current + 1) % len(urls)
        return answer, failures

    def _open(self) -> AdminClient:
        if self._client is None:
            access, url = self._cluster.access, self._cluster.urls[self._current]
            tls = access.tls() if url.startswith("https:") else None
            self._client = AdminClient(url, _TIMEOUT_S, access.headers(), tls)
        return self._client


def _path(topic: str) -> str:
    name = TopicName.parse(topic)
    return f"/admin/v2/persistent/{quote(name.namespace)}/{quote(name.local, safe='')}"
