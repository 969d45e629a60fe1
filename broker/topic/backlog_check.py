"""One stored topic's backlog against its quotas: figures, refused producers, evictions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.dispatch.explanation import Explanation, quota_held
from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededExceptionError,
)
from magnetar.broker.policies.effective import BacklogQuota
from magnetar.broker.protocol.entry_header import parse_header
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.backlog_quota import (
    AGE,
    EVICTION,
    HOLD,
    SIZE,
    OldestMessage,
    eviction_target,
    exceeded,
    limits_age,
    limits_size,
    used,
)
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import Steps, in_turns, run_in_turns

if TYPE_CHECKING:
    from magnetar.broker.topic.persistent_topic import PersistentTopic

logger = logging.getLogger(__name__)

_NO_EVICTIONS: Final[Mapping[str, int]] = MappingProxyType({SIZE: 0, AGE: 0})
_BLOCKED = "Cannot create producer on topic with backlog quota exceeded"


class BacklogCheck:
    """Knows how far the durable subscriptions of a topic are behind.

    Sizes cost nothing but arithmetic. The age needs the oldest entry: it is read once for each
    position, and mostly found in the cache.
    """

    __slots__ = ("_oldest", "_oldest_at", "_topic", "evictions")

    def __init__(self, topic: PersistentTopic) -> None:
        self._topic = topic
        self._oldest: OldestMessage | None = None
        self._oldest_at: Position | None = None  # where it is
        self.evictions: Mapping[str, int] = _NO_EVICTIONS
        """Checks that moved subscriptions, by the type of the quota."""

    def _durable(self) -> Iterator[PersistentSubscription]:
        for subscription in list(self._topic.subscriptions.values()):
            if (
                isinstance(subscription, PersistentSubscription)
                and subscription.durable
                and not subscription.fenced
            ):
                yield subscription

    def _slowest(self) -> Steps[PersistentSubscription | None]:
        """The one that has acknowledged least; the oldest message that waits is one of its own."""
        slowest, least = None, None
        for each in self._durable():
            at = each.cursor.mark_delete, each.name
            if least is None or at < least:
                slowest, least = each, at
            yield
        return slowest

    def _bytes_behind(self, slowest: PersistentSubscription | None) -> int:
        return 0 if slowest is None else self._topic.ledger.bytes_after(slowest.cursor.mark_delete)

    # --- the oldest message

    def _oldest_position(
        self, slowest: PersistentSubscription | None
    ) -> tuple[Position, str] | None:
        if slowest is None or not slowest.cursor.state.backlog:
            return None
        return slowest.cursor.state.first_unacked(), slowest.name

    async def _find_oldest(self, slowest: PersistentSubscription | None) -> OldestMessage | None:
        """The message that waits longest; None: everything is acknowledged.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError: it can't be read.
        """
        if (found := self._oldest_position(slowest)) is None:
            self._oldest = self._oldest_at = None
        elif found[0] != self._oldest_at:
            batch = await self._topic.ledger.read(found[0], 1, 1)
            if batch is None:
                return None
            self._note(found, batch.heads[0])
        return self._oldest

    def _note(self, found: tuple[Position, str], head: bytes) -> None:
        self._oldest_at = found[0]
        self._oldest = OldestMessage(found[1], parse_header(head).publish_time_ms)

    def _known_oldest(self, slowest: PersistentSubscription | None) -> OldestMessage | None:
        """That of the last check while the oldest entry of now would have to be read."""
        found = self._oldest_position(slowest)
        if found is None:
            self._oldest = self._oldest_at = None
        elif found[0] != self._oldest_at:
            head = self._topic.ledger.cached_head(found[0])
            if head is not None:
                self._note(found, head)
        return self._oldest

    def used(self, now_ms: int) -> Steps[float | None]:
        """How much of a quota the backlog takes, see ``backlog_quota.used``; of what is known."""
        quotas, age_s = self._topic.policies.backlog_quotas, None
        if not self.is_limited:
            return None
        slowest = yield from self._slowest()
        if limits_age(quotas) and (oldest := self._known_oldest(slowest)) is not None:
            age_s = oldest.age_s(now_ms)
        return used(quotas, self._bytes_behind(slowest), age_s)

    def stats(self, now_ms: int) -> Steps[dict[str, Any]]:
        """The fields of TopicStats about quotas and the backlog's age.

        The age is that of the last check when the oldest entry of now would have to be read first.
        """
        slowest = yield from self._slowest()
        quotas, oldest = self._topic.policies.backlog_quotas, self._known_oldest(slowest)
        metrics: dict[str, Any] = {
            "backlogSize": self._bytes_behind(slowest),
            "backlogQuotaLimitSize": quotas[SIZE].limit_bytes,
            "backlogQuotaLimitTime": quotas[AGE].limit_s,
            "oldestBacklogMessageAgeSeconds": -1 if oldest is None else oldest.age_s(now_ms),
        }
        if oldest is not None:
            metrics["oldestBacklogMessageSubscriptionName"] = oldest.subscription
        return metrics

    # --- what follows from it

    async def admit_producer(self) -> None:
        """Let a new producer in, or not.

        Raises:
            ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededExceptionError.
        """
        quotas = self._topic.policies.backlog_quotas
        size, age = quotas[SIZE], quotas[AGE]
        of_size = limits_size(quotas) and size.action != EVICTION
        of_age = limits_age(quotas) and age.action != EVICTION
        slowest = await run_in_turns(self._slowest()) if of_size or of_age else None
        if of_size and self._bytes_behind(slowest) >= size.limit_bytes:
            raise _error_of(size)
        if of_age:
            try:
                oldest = await self._find_oldest(slowest)
            except STORAGE_ERRORS as error:
                logger.warning("%s: age of the backlog unknown: %s", self._topic.name, error)
                return
            now_ms = self._topic.service.clock()
            if oldest is not None and oldest.age_s(now_ms) > age.limit_s:
                raise _error_of(age)

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota."""
        quotas = self._topic.policies.backlog_quotas
        return limits_size(quotas) or limits_age(quotas)

    @property
    def evicted_by_size(self) -> int:
        """How often subscriptions were moved; those of age are among a subscription's expired."""
        return self.evictions[SIZE]

    def explain(self) -> Steps[Explanation | None]:
        """Why producers wait or are refused; None: they aren't. The age is the last check's."""
        if not self.is_limited:
            return None
        slowest = yield from self._slowest()
        quotas, oldest = self._topic.policies.backlog_quotas, self._oldest
        age_s = None if oldest is None else oldest.age_s(self._topic.service.clock())
        kind = exceeded(quotas, self._bytes_behind(slowest), age_s)
        if kind is None or slowest is None or quotas[kind].action == EVICTION:
            return None
        quota, by_size = quotas[kind], kind == SIZE
        return quota_held(
            kind,
            slowest.name,
            self._bytes_behind(slowest) if by_size else age_s or 0,
            quota.limit_bytes if by_size else quota.limit_s,
            is_held=quota.action == HOLD,
            consumers=len(slowest.consumers),
        )

    async def check(self, now_ms: int) -> None:
        """Do what the quotas ask for: end the producers, or move the subscriptions.

        Raises:
            LedgerError, ManagedLedgerError, MetadataError: entries couldn't be read; what doesn't
                need them is done.
        """
        slowest = await run_in_turns(self._slowest())
        try:
            oldest = await self._find_oldest(slowest)
        except STORAGE_ERRORS:
            await self._enforce(slowest, None, now_ms)
            raise
        await self._enforce(slowest, oldest, now_ms)

    async def _enforce(
        self, slowest: PersistentSubscription | None, oldest: OldestMessage | None, now_ms: int
    ) -> None:
        quotas = self._topic.policies.backlog_quotas
        age_s = None if oldest is None else oldest.age_s(now_ms)
        if (kind := exceeded(quotas, self._bytes_behind(slowest), age_s)) is None:
            return
        quota = quotas[kind]
        if quota.action != EVICTION:
            self._topic.dismiss_producers(_error_of(quota))
        elif kind == SIZE:
            await self._evict_bytes(quota.limit_bytes)
        else:
            await self._evict_older(now_ms - quota.limit_s * 1000)

    async def _evict_bytes(self, limit_bytes: int) -> None:
        target = self._topic.ledger.position_before_bytes(eviction_target(limit_bytes))
        if target is None:
            return
        durable = in_turns(list(self._durable()))
        evicted = {each.name: each.evict_upto(target) async for each in durable}
        self._report(SIZE, evicted)

    async def _evict_older(self, publish_time_ms: int) -> None:
        durable = list(self._durable())
        results = await asyncio.gather(
            *(each.expire_before(publish_time_ms) for each in durable), return_exceptions=True
        )
        moved = zip(durable, results, strict=True)
        self._report(AGE, {each.name: n for each, n in moved if not isinstance(n, BaseException)})
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _report(self, kind: str, evicted: dict[str, int]) -> None:
        moved = {name: entries for name, entries in evicted.items() if entries}
        if moved:
            self.evictions = {**self.evictions, kind: self.evictions[kind] + 1}
            logger.info("%s: backlog quota %s exceeded, evicted %s", self._topic.name, kind, moved)


def _error_of(quota: BacklogQuota) -> BrokerError:
    if quota.action == HOLD:
        return ProducerBlockedQuotaExceededError(_BLOCKED)
    return ProducerBlockedQuotaExceededExceptionError(_BLOCKED)
