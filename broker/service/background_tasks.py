"""What is due now and then and may take a while: expiry, leaked ledgers, readers that left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.errors import STORAGE_ERRORS, BrokerError
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic import Topic
from magnetar.metadata.item_errors import ItemErrors
from magnetar.metadata.loop_turns import in_turns

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger(__name__)

_FIRST_LEAK_CHECK_MS: Final = 60_000
_LEAK_CHECK_MS: Final = 3_600_000
_FIRST_COORDINATORS_MS: Final = 1_000
_COORDINATORS_MS: Final = 30_000
ORPHAN_MS: Final = 60_000
"""How long a reader's subscription may be without its reader: after a seek it comes back."""


_EXPECTED: Final = (*STORAGE_ERRORS, BrokerError)


@dataclass(slots=True)
class BackgroundTask:
    """Something that is done now and then."""

    name: str
    every_ms: Callable[[], int]
    """Between two beginnings; 0: never."""
    work: Callable[[int], Coroutine[Any, Any, None]]
    """Gets the time. Each topic on its own: one that fails keeps no other from its turn."""
    first_ms: int = 0
    """Until the first, if that isn't ``every_ms``."""
    due_ms: int = 0


class BackgroundTasks:
    """The periodic tasks' slow part: what reads storage runs beside the sweep, each kind once at a
    time.

    Keep-alives must not wait for a disk.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._orphans: dict[Subscription, int] = {}  # since when
        self._running: dict[str, asyncio.Task[None]] = {}
        self._expiry = ItemErrors("expiry", logger, _EXPECTED)
        self._backlogs = ItemErrors("backlog check", logger, _EXPECTED)
        self._unused = ItemErrors("subscription expiry", logger, _EXPECTED)
        self._snapshots = ItemErrors("de-duplication", logger, _EXPECTED)
        self._compactions = ItemErrors("compaction", logger, _EXPECTED)
        self._inactive = ItemErrors("deletion of inactive topics", logger, _EXPECTED)
        self._leaks = ItemErrors("search for leaked ledgers", logger, _EXPECTED)
        self._coordinators = ItemErrors("opening of coordinators", logger, _EXPECTED)
        self.rounds: Final = self._table(service.clock())
        """Everything that is done now and then, by name."""

    def _table(self, now_ms: int) -> dict[str, BackgroundTask]:
        config = self._service.config
        dynamic = self._service  # whose ``config`` is replaced when settings change
        table = (
            BackgroundTask(
                "expiry",
                lambda: config.message_expiry_check_interval_in_minutes * 60_000,
                self.expire_messages,
            ),
            BackgroundTask(
                "backlog check",
                lambda: (
                    config.backlog_quota_check_interval_in_seconds * 1000
                    if dynamic.config.backlog_quota_check_enabled
                    else 0
                ),
                self.check_backlogs,
            ),
            BackgroundTask(
                "subscription expiry",
                lambda: config.subscription_expiry_check_interval_in_minutes * 60_000,
                self.expire_subscriptions,
            ),
            BackgroundTask(
                "de-duplication",
                lambda: config.broker_deduplication_snapshot_frequency_in_seconds * 1000,
                self.sweep_deduplication,
            ),
            BackgroundTask(
                "compaction",
                lambda: config.broker_service_compaction_monitor_interval_in_seconds * 1000,
                self.sweep_compactions,
            ),
            BackgroundTask(
                "inactive topics",
                lambda: dynamic.config.broker_delete_inactive_topics_frequency_seconds * 1000,
                self.delete_inactive,
            ),
            BackgroundTask(
                "readers that left",
                lambda: config.stats_update_frequency_in_secs * 1000,
                self.end_orphans,
            ),
            BackgroundTask(
                "leak check", lambda: _LEAK_CHECK_MS, self.collect_leaks, _FIRST_LEAK_CHECK_MS
            ),
            BackgroundTask(
                "transaction coordinators",
                lambda: _COORDINATORS_MS if self._service.transactions is not None else 0,
                self.open_coordinators,
                _FIRST_COORDINATORS_MS,
            ),
        )
        for each in table:
            each.due_ms = now_ms + (each.first_ms or each.every_ms())
        return {each.name: each for each in table}

    def on_sweep(self, now_ms: int) -> None:
        """Begin what is due."""
        for each in self.rounds.values():
            every_ms = each.every_ms()
            if every_ms > 0 and now_ms >= each.due_ms:
                each.due_ms = now_ms + every_ms
                if each.name not in self._running:
                    self._running[each.name] = self._service.run(self._run(each, now_ms))

    async def _run(self, each: BackgroundTask, now_ms: int) -> None:
        try:
            await each.work(now_ms)
        finally:
            del self._running[each.name]

    def next_due_ms(self) -> int:
        """When `on_sweep` has something to begin."""
        return min(each.due_ms for each in self.rounds.values() if each.every_ms() > 0)

    async def finish(self) -> None:
        """Wait for what `on_sweep` has begun."""
        if self._running:
            await asyncio.wait(list(self._running.values()))

    def _topics(self) -> AsyncIterator[Topic]:
        return in_turns(self._service.topics.walk())

    async def expire_messages(self, now_ms: int) -> None:
        """Acknowledge what is older than its topic's time to live, for every subscription."""
        with self._expiry.round() as each:
            async for topic in self._topics():
                if topic.fenced or topic.is_system:
                    continue
                if (ttl_s := topic.policies.message_ttl_s) <= 0:
                    continue
                for subscription in list(topic.subscriptions.values()):
                    if (
                        not isinstance(subscription, PersistentSubscription)
                        or subscription.fenced
                        or subscription.cursor.state.backlog == 0
                    ):
                        continue
                    with each.item(f"{topic.name} {subscription.name}"):
                        await subscription.expire_before(now_ms - ttl_s * 1000)

    async def check_backlogs(self, now_ms: int = 0) -> None:
        """Hold every topic's backlog against its quotas."""
        began_s = perf_counter()
        with self._backlogs.round() as each:
            async for topic in self._topics():
                if topic.fenced or topic.is_system or not isinstance(topic, PersistentTopic):
                    continue
                with each.item(topic.full_name):
                    await topic.backlog.check(now_ms or self._service.clock())
        self._service.metrics.quota_check.record(perf_counter() - began_s)

    async def sweep_deduplication(self, now_ms: int) -> None:
        """Store what topics know of their producers, and delete what is needed no more."""
        with self._snapshots.round() as each:
            async for topic in self._topics():
                if isinstance(topic, PersistentTopic) and not topic.fenced:
                    with each.item(topic.full_name):
                        topic.sweep_deduplication(now_ms)

    async def sweep_compactions(self, now_ms: int) -> None:
        """Begin the compactions that are due."""
        del now_ms
        with self._compactions.round() as each:
            async for topic in self._topics():
                if isinstance(topic, PersistentTopic):
                    with each.item(topic.full_name):
                        topic.sweep_compaction()

    async def expire_subscriptions(self, now_ms: int) -> None:
        """Delete the durable subscriptions that were unused for as long as policies say."""
        with self._unused.round() as each:
            async for topic in self._topics():
                minutes = topic.policies.subscription_expiration_minutes
                if minutes <= 0 or topic.fenced or topic.is_system:
                    continue
                for name, subscription in list(topic.subscriptions.items()):
                    if (
                        not subscription.durable
                        or subscription.fenced
                        or subscription.replicated
                        or subscription.unused_ms(now_ms) <= minutes * 60_000
                    ):
                        continue
                    with each.item(f"{topic.name} {name}"):
                        await topic.delete_subscription(name)
                        logger.info("%s %s: deleted, unused for %d min", topic.name, name, minutes)

    async def delete_inactive(self, now_ms: int) -> None:
        """Delete topics without producers and subscriptions for long enough."""
        frequency_s = self._service.config.broker_delete_inactive_topics_frequency_seconds
        with self._inactive.round() as each:
            async for topic in self._topics():
                if topic.fenced or topic.is_system:
                    continue
                if _in_use(topic):
                    topic.active_ms = now_ms
                    continue
                policy = topic.policies.inactive_topics
                if not policy.delete:
                    continue
                if not policy.after_s and topic.holds_entries:
                    continue  # docs/decisions/0005: acknowledged data is not deleted unasked
                seconds = policy.after_s or frequency_s
                if now_ms - topic.active_ms < seconds * 1000:
                    continue
                with each.item(topic.full_name):
                    await self._service.loader.delete(topic.full_name)
                    logger.info("%s: deleted, nobody used it for %d s", topic.full_name, seconds)

    async def collect_leaks(self, _now_ms: int = 0) -> None:
        """Delete the ledgers that crashed owners created and never listed, and chunks of lists."""
        deleted: list[int] = []
        chunks: list[str] = []
        ledgers = self._service.ledgers
        with self._leaks.round() as each:
            with each.item("the rest of them"):
                deleted = await ledgers.collect_leaked_ledgers(each.item)
            with each.item("chunks of lists"):
                chunks = await ledgers.collect_leaked_chunks(each.item)
        if deleted:
            logger.info("deleted %d leaked ledgers: %s", len(deleted), deleted[:100])
        if chunks:
            logger.info("deleted %d leaked chunks of lists: %s", len(chunks), chunks[:100])

    async def open_coordinators(self, _now_ms: int = 0) -> None:
        """Have those of the cluster opened: what no client ends any more has to time out."""
        if (coordinators := self._service.transactions) is None:
            return
        with self._coordinators.round() as each:
            count = 0
            with each.item("how many there are"):
                count = await coordinators.count()
            for number in range(count):
                with each.item(str(number)):
                    await coordinators.connect_anywhere(number)

    async def end_orphans(self, now_ms: int) -> None:
        """End readers' subscriptions whose reader went before it was there, or during a seek."""
        before, self._orphans = self._orphans, {}
        async for topic in self._topics():
            for subscription in list(topic.subscriptions.values()):
                if subscription.durable or subscription.consumers:
                    continue
                since_ms = self._orphans[subscription] = before.get(subscription, now_ms)
                if now_ms - since_ms >= ORPHAN_MS:
                    subscription.end_if_orphaned()


def _in_use(topic: Topic) -> bool:
    if any(True for _ in topic.registry):
        return True
    if topic.policies.inactive_topics.mode == "delete_when_no_subscriptions":
        return bool(topic.subscriptions)
    return any(
        subscription.consumers
        or (subscription.cursor is not None and subscription.cursor.state.backlog > 0)
        for subscription in topic.subscriptions.values()
    )
