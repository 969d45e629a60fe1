"""What is due now and then and may take a while: expiry, leaked ledgers, readers that left."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from bookkeeper.errors import LedgerError
from broker.errors import BrokerError
from broker.service.persistent_subscription import PersistentSubscription
from broker.service.persistent_topic import PersistentTopic
from managed_ledger.errors import ManagedLedgerError
from metadata.errors import MetadataError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from broker.service.broker_service import BrokerService
    from broker.service.subscription_base import Subscription
    from broker.service.topic import Topic

__all__ = ["ORPHAN_MS", "Upkeep"]

logger = logging.getLogger(__name__)

_SLICE: Final = 500
"""Topics looked at before others get their turn on the loop."""
_BACKLOGS_AT_ONCE: Final = 50  # 25 us each, with five subscriptions
_FIRST_LEAK_CHECK_MS: Final = 60_000
_LEAK_CHECK_MS: Final = 3_600_000
ORPHAN_MS: Final = 60_000
"""How long a reader's subscription may be without its reader: after a seek it comes back."""


class Upkeep:
    """The sweeper's slow part: what reads storage runs beside the sweep, each kind once at a time.

    Keep-alives must not wait for a disk.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._expiry_ms = service.config.message_expiry_check_interval_in_minutes * 60_000
        now_ms = service.clock()
        self._expiry_at_ms = now_ms + self._expiry_ms
        self._leaks_at_ms = now_ms + _FIRST_LEAK_CHECK_MS
        config = service.config
        self._backlogs_ms = config.backlog_quota_check_interval_in_seconds * 1000
        self._backlogs_at_ms = now_ms + self._backlogs_ms
        self._unused_ms = config.subscription_expiry_check_interval_in_minutes * 60_000
        self._unused_at_ms = now_ms + self._unused_ms
        self._snapshots_ms = config.broker_deduplication_snapshot_frequency_in_seconds * 1000
        self._snapshots_at_ms = now_ms + self._snapshots_ms
        self._orphans: dict[Subscription, int] = {}  # since when
        self._running: set[str] = set()

    def on_sweep(self, now_ms: int) -> None:
        """Begin what is due."""
        if self._expiry_ms > 0 and now_ms >= self._expiry_at_ms:
            self._expiry_at_ms = now_ms + self._expiry_ms
            self._begin("expiry", lambda: self.expire_messages(now_ms))
        if now_ms >= self._backlogs_at_ms and self._service.config.backlog_quota_check_enabled:
            self._backlogs_at_ms = now_ms + self._backlogs_ms
            self._begin("backlog check", self.check_backlogs)
        if now_ms >= self._unused_at_ms:
            self._unused_at_ms = now_ms + self._unused_ms
            self._begin("subscription expiry", lambda: self.expire_subscriptions(now_ms))
        if self._snapshots_ms > 0 and now_ms >= self._snapshots_at_ms:
            self._snapshots_at_ms = now_ms + self._snapshots_ms
            self._begin("de-duplication", lambda: self.sweep_deduplication(now_ms))
        if now_ms >= self._leaks_at_ms:
            self._leaks_at_ms = now_ms + _LEAK_CHECK_MS
            self._begin("leak check", self.collect_leaks)

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name in self._running:
            return
        self._running.add(name)

        async def run() -> None:
            try:
                await work()
            finally:
                self._running.discard(name)

        self._service.run(run())

    async def _topics(self, at_once: int = _SLICE) -> AsyncIterator[Topic]:
        for number, topic in enumerate(list(self._service.topics.values()), 1):
            if number % at_once == 0:
                await asyncio.sleep(0)
            yield topic

    async def expire_messages(self, now_ms: int) -> None:
        """Acknowledge what is older than its topic's time to live, for every subscription."""
        async for topic in self._topics():
            if topic.fenced or topic.name.is_system:
                continue
            if (ttl_s := topic.policies.message_ttl_s) <= 0:
                continue
            for subscription in list(topic.subscriptions.values()):
                if (
                    not isinstance(subscription, PersistentSubscription)
                    or subscription.fenced
                    or subscription.cursor.backlog == 0
                ):
                    continue
                try:
                    await subscription.expire_before(now_ms - ttl_s * 1000)
                except (LedgerError, ManagedLedgerError) as error:
                    logger.warning("%s %s: no expiry: %s", topic.name, subscription.name, error)

    async def check_backlogs(self) -> None:
        """Hold every topic's backlog against its quotas."""
        began_s = perf_counter()
        async for topic in self._topics(_BACKLOGS_AT_ONCE):
            if topic.fenced or topic.name.is_system or not isinstance(topic, PersistentTopic):
                continue
            try:
                await topic.backlog.check(self._service.clock())
            except (LedgerError, ManagedLedgerError) as error:
                logger.warning("%s: no check of the backlog: %s", topic.name, error)
        self._service.figures.quota_check.record(perf_counter() - began_s)

    async def sweep_deduplication(self, now_ms: int) -> None:
        """Snapshots of what topics know of their producers, and an end to what nobody needs."""
        async for topic in self._topics():
            if isinstance(topic, PersistentTopic) and not topic.fenced:
                topic.sweep_deduplication(now_ms)

    async def expire_subscriptions(self, now_ms: int) -> None:
        """Delete the durable subscriptions that nobody has used for as long as policies say."""
        async for topic in self._topics():
            minutes = topic.policies.subscription_expiration_minutes
            if minutes <= 0 or topic.fenced or topic.name.is_system:
                continue
            for name, subscription in list(topic.subscriptions.items()):
                if (
                    not subscription.durable
                    or subscription.fenced
                    or subscription.replicated
                    or subscription.unused_ms(now_ms) <= minutes * 60_000
                ):
                    continue
                try:
                    await topic.delete_subscription(name)
                    logger.info("%s %s: deleted, unused for %d min", topic.name, name, minutes)
                except (BrokerError, ManagedLedgerError) as error:
                    logger.warning("%s %s: not deleted: %s", topic.name, name, error)

    async def collect_leaks(self) -> None:
        """Delete the ledgers that crashed owners created and never listed."""
        try:
            deleted = await self._service.ledgers.collect_leaked_ledgers()
        except (MetadataError, ManagedLedgerError) as error:
            logger.warning("the search for leaked ledgers ended early: %s", error)
            return
        if deleted:
            logger.info("deleted %d leaked ledgers: %s", len(deleted), deleted[:100])

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
