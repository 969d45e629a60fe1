"""What `magnetar verify` asks by HTTP, where it has the rights: topics, policies, unloads."""

import asyncio
import time
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

from magnetar.broker.cli.errors import CliError, RefusedError
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.cli.verify.attempts import retried
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.plan import TopicPlan

_PARTS: Final = "acknowledgmentAtBatchIndexLevelEnabled"
_NO_SUCH_ROUTE: Final = (404, 405)


class MessagesRemovedError(CliError):
    """By policies of the namespace: what is missing wouldn't be a loss."""


class ClusterAdmin:
    """Each call in a thread, with a connection of its own. Raises CliError: refused."""

    def __init__(self, target: ClusterTarget, request_timeout_s: float) -> None:
        self._target, self._timeout_s = target, request_timeout_s

    async def create(self, topic: TopicName, plan: TopicPlan, patience_s: float) -> None:
        """Returns when its policies hold."""
        path = _path(topic)
        if plan.partitions:
            await self._call("PUT", f"{path}/partitions", plan.partitions)
        else:
            await self._call("PUT", path)
        if plan.deduplicated:
            await self._call("POST", f"{path}/deduplicationEnabled", body=True)

            async def check() -> None:
                applied = await self._call("GET", f"{path}/deduplicationEnabled?applied=true")
                if applied is not True:
                    raise CliError(f"{topic}: deduplication is {applied}")

            await retried("no deduplication", check, patience_s)

    async def set_partitions(self, topic: TopicName, count: int) -> None:
        await self._call("POST", f"{_path(topic)}/partitions", count)

    async def check_namespace(self, namespace: str) -> None:
        """Raises CliError: its policies remove messages, or it can't be looked at."""
        policies = await self._call("GET", f"/admin/v2/namespaces/{namespace}")
        if policies.get("message_ttl_in_seconds"):
            raise MessagesRemovedError(f"{namespace} has a message TTL")
        for quota in (policies.get("backlog_quota_map") or {}).values():
            if quota.get("policy") == "consumer_backlog_eviction":
                raise MessagesRemovedError(f"{namespace} has a backlog quota that evicts messages")

    async def acknowledges_parts(self) -> bool:
        """Whether brokers keep acknowledgements of parts of batches. Raises CliError."""
        settings = await self._call("GET", "/admin/v2/brokers/configuration/runtime")
        return bool(settings.get(_PARTS) == "true")

    async def is_apache_pulsar(self) -> bool:
        """Not Magnetar, which says who asks. Raises CliError."""
        try:
            await self._call("GET", "/admin/v2/whoami")
        except RefusedError as error:
            if error.status in _NO_SUCH_ROUTE:
                return True
            raise
        return False

    async def clock_ahead_s(self) -> float:
        """By how much the broker's clock may be ahead of ours; 0.0: it may be right."""
        return await asyncio.to_thread(self._clock_ahead_s)

    def _clock_ahead_s(self) -> float:
        with self._target.admin_client(self._timeout_s) as client:
            before_s = time.time()
            answer = client.call("GET", "/admin/v2/brokers/health")
            after_s = time.time()
        if "date" not in answer.headers:
            return 0.0
        date_s = parsedate_to_datetime(answer.headers["date"]).timestamp()  # without its fraction
        return date_s + 1 - before_s if date_s > after_s else 0.0

    async def unload(self, topic: TopicName) -> None:
        await self._call("PUT", f"{_path(topic)}/unload")

    async def consumers(self, topic: TopicName) -> dict[str, set[str]]:
        """Names of those that the owner of a loaded topic serves, by subscription."""
        stats = await self._call("GET", f"{_path(topic)}/stats")
        return {
            name: {each["consumerName"] for each in found["consumers"]}
            for name, found in stats["subscriptions"].items()
        }

    async def delete(self, topic: TopicName, plan: TopicPlan) -> None:
        where = "/partitions" if plan.partitions else ""
        await self._call("DELETE", f"{_path(topic)}{where}?force=true")

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        call = asyncio.ensure_future(asyncio.to_thread(self._call_now, method, path, body))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # It goes on in its thread: what it makes can be removed only when it has ended.
            await asyncio.gather(call, return_exceptions=True)
            raise

    def _call_now(self, method: str, path: str, body: Any) -> Any:
        with self._target.admin_client(self._timeout_s) as client:
            return client.json(method, path, body)


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"
