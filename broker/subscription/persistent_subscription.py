"""A subscription of a persistent topic: a cursor, and a dispatcher while it has consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.compacted_view import CompactedView
from magnetar.broker.config import BrokerConfig
from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.async_dispatcher import AsyncDispatcher
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import (
    Dispatcher,
    DispatchLimits,
    DispatchReadRequest,
    ReadableLog,
)
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.never_delivered import with_unread
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.errors import (
    STORAGE_ERRORS,
    PersistenceError,
    SubscriptionFencedError,
    storage_errors,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol.entry_header import EntryHeader, parse_header
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.rate_limits.topic_rate_limiters import SubscriptionRateLimiters
from magnetar.broker.subscription.consumer import FAILOVER, Consumer, SubscribeRequest
from magnetar.broker.subscription.key_shared_policy import hash_of_body
from magnetar.broker.subscription.subscription import SINGLE_ACTIVE, AckDone, Subscription
from magnetar.broker.subscription.transaction_explanation import TransactionExplainer
from magnetar.broker.subscription.transactional_acks import TransactionalAcks
from magnetar.broker.transaction.deleted_logs import (
    deleted_logs,
    forget_deleted,
    note_deleted,
)
from magnetar.broker.transaction.pending_ack_log import PENDING_ACKS, PendingAckLog
from magnetar.broker.transaction.view import TransactionView
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.cursor.errors import CursorBusyError
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.errors import CursorClosedError, InvalidPositionError
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.metadata.loop_turns import Steps

if TYPE_CHECKING:
    from magnetar.broker.topic.persistent_topic import PersistentTopic
    from magnetar.broker.transaction.pending_acks import PendingAck
    from magnetar.broker.transaction.transaction_id import TransactionId

logger = logging.getLogger(__name__)

_READ_ENTRIES_MIN = 1_000
"""Pulsar's read batch of 100 sizes storage reads; here a read is mostly a slice of the cache, and
what one turn sends is bounded by permits and bytes."""
_REPLICATED: Final = "pulsar.replicated.subscription"
"""Property of the cursor's position, as Pulsar stores it; 1: it is a replicated subscription."""
_OWN_PROPERTIES: Final[tuple[str, ...]] = (_REPLICATED, PENDING_ACKS)
_NO_CONSUMERS: Final[frozenset[Consumer]] = frozenset()


_limits_of: Final = lru_cache(maxsize=64)(DispatchLimits)
"""One object for all subscriptions with the same limits."""


def dispatch_limits(config: BrokerConfig, policies: EffectivePolicies) -> DispatchLimits:
    """The settings and policies that dispatchers look at."""
    delayed = policies.delayed_delivery
    return _limits_of(
        read_entries_max=max(config.dispatcher_max_read_batch_size, _READ_ENTRIES_MIN),
        round_robin_messages=max(config.dispatcher_max_round_robin_batch_size, 1),
        unacked_per_consumer=max(0, policies.max_unacked_per_consumer),
        unacked_per_subscription=max(0, policies.max_unacked_per_subscription),
        failover_delay_ms=config.active_consumer_failover_delay_time_millis,
        delay_enabled=delayed.active,
        delay_tick_ms=delayed.tick_ms,
        delay_strict=config.is_delayed_delivery_deliver_at_time_strict,
        delayed_index_bytes=max(0, config.delayed_delivery_max_index_size_in_bytes),
    )


class PersistentSubscription(Subscription):
    """Feeds consumers from a managed ledger; the cursor knows what is acknowledged.

    One object, since an acknowledgment, a reset and an expiry each change the cursor and then the
    dispatcher, in this order.
    """

    topic: PersistentTopic
    # As in PersistentTopic: beyond 30 attributes a dictionary costs 1.5 kB each idle subscription.
    __slots__ = (
        "_batch_acks",
        "_compacted_view",
        "_core",
        "_dispatcher",
        "_expiry_rate",
        "_limits",
        "_marked",
        "_moved_ms",
        "_own_properties",
        "_rate",
        "_start_position",
        "_terminated",
        "_told_end",
        "cursor",
        "expired_entries",
        "last_expire_ms",
        "ledger",
        "log",
        "transactions",
    )

    def __init__(
        self,
        topic: PersistentTopic,
        name: str,
        cursor: Cursor,
        ledger: ManagedLedger,
        *,
        durable: bool,
    ) -> None:
        super().__init__(topic, name, durable=durable)
        self.cursor: Cursor = cursor
        self.ledger = ledger
        self.log: ReadableLog = ledger
        """What consumers may read of it."""
        config = topic.service.config
        self._limits = dispatch_limits(config, topic.policies)
        self._rate = SubscriptionRateLimiters(topic, name)
        self._batch_acks = config.acknowledgment_at_batch_index_level_enabled
        self.properties = dict(cursor.cursor_properties)
        self.marked_replicated = _REPLICATED in cursor.state.properties
        # What each position of the cursor has, whatever consumers store with theirs.
        self._own_properties: dict[str, int] = {
            x: y for x, y in cursor.state.properties.items() if x in _OWN_PROPERTIES
        } or NO_ITEMS
        self.transactions: TransactionalAcks | None = None
        """There once a transaction has acknowledged something, now or in an earlier load."""
        if (naming := self._own_properties.get(PENDING_ACKS)) is not None:
            self.transactions = TransactionalAcks(self, naming)
        self._core: Dispatcher | None = None
        self._dispatcher: AsyncDispatcher | None = None
        self._compacted_view: CompactedView | None = None
        # Where it begins, as it was asked for, and the mark-delete then; None: of an earlier load.
        self._start_position: tuple[Position, Position] | None = None
        self._terminated = topic.terminated
        self._told_end: frozenset[Consumer] = _NO_CONSUMERS  # of the end of the topic
        # The mark-delete after the last acknowledgment or reset, and when it moved.
        self._marked, self._moved_ms = cursor.mark_delete, 0
        self.expired_entries = 0
        self.last_expire_ms = 0
        self._expiry_rate = RateSampler()

    async def set_replicated(self, replicated: bool) -> None:
        if not self.durable or replicated == self.marked_replicated:
            return
        if replicated and not self.topic.service.config.enable_replicated_subscriptions:
            logger.info(
                "%s: subscription %s is not replicated: enableReplicatedSubscriptions=false",
                self.topic.name,
                self.name,
            )
            return
        if replicated and not any(x.replicated for x in self.topic.subscriptions.values()):
            logger.warning(
                "%s: subscription %s asks for replication to other clusters: that is stored and "
                "shown, but this broker has no geo-replication",
                self.topic.name,
                self.name,
            )
        self.marked_replicated = replicated
        try:
            await self.keep_property(_REPLICATED, 1 if replicated else None)
        except SubscriptionFencedError:
            self.marked_replicated = not replicated
            raise

    async def keep_property(self, name: str, value: int | None) -> None:
        """Store what each position of the cursor has as this property; None: nothing.

        Raises:
            PersistenceError: perhaps not stored. SubscriptionFencedError: not stored.
        """
        before = self._own_properties
        # At once: what is acknowledged meanwhile must not remove it.
        kept = {} if value is None else {name: value}
        self._own_properties = {x: y for x, y in before.items() if x != name} | kept
        stored = {x: y for x, y in self.cursor.state.properties.items() if x != name}
        try:
            with cursor_errors(self.name):
                await self.cursor.set_properties(stored | self._own_properties)
        except SubscriptionFencedError:
            self._own_properties = before
            raise

    @property
    def dispatcher(self) -> AsyncDispatcher | None:
        return self._dispatcher

    # --- consumers

    def _start(self, sub_type: int, request: SubscribeRequest) -> None:
        self._stop()
        core: Dispatcher
        if sub_type in SINGLE_ACTIVE:
            name = self.topic.name
            core = SingleActiveDispatcher(
                self._limits,
                failover=sub_type == FAILOVER,
                topic=str(name),
                partition_index=name.partition_index,
            )
        elif self.key_policy is not None:
            assert self.selector is not None
            policy = self.key_policy
            core = KeySharedDispatcher(
                self._limits,
                self.selector,
                hash_of_body,
                draining=not policy.sticky and not policy.out_of_order,
            )
        else:
            core = SharedDispatcher(self._limits)
        self._core = core
        view = None
        if request.read_compacted:
            view = CompactedView(
                *(self.log, self._compacted, self.cursor),
                *(self._start_position, lambda: self._marked),
            )
        self._compacted_view = view
        self._dispatcher = AsyncDispatcher(
            core,
            view or self.log,
            view or self.cursor,
            turns=self.topic.service.dispatch_turns,
            unsent=self.topic.service.unsent_budget,
            now_ms=self.topic.service.clock,
            topic=self.topic,
            waiting=self.topic.waiting,
            label=str(self),
            ack_sets=self._batch_acks,
            limiter=self._rate.limiter(self._entries_from),
        )
        if self.transactions is not None:
            self._dispatcher.cover_cursor(self.transactions.cover)
        if (budget := self.topic.service.unacked_budget) is not None:
            core.join_budget(budget, self._dispatcher.wake)

    def read_from(self, log: ReadableLog) -> None:
        """From now on consumers read another view of the log."""
        self.log = log
        if self._compacted_view is not None:
            self._compacted_view.log = log
            self.wake()
        elif self._dispatcher is not None:
            self._dispatcher.read_from(log)

    def _compacted(self) -> CompactedLedger | None:
        return self.topic.compacted

    def begins_at(self, position: Position) -> None:
        """Note where it was asked to begin: what was compacted may begin before the log does."""
        self._marked = self.cursor.mark_delete
        self._start_position = (position, self._marked)

    def _entries_from(self, position: Position) -> int:
        ledger = self.ledger
        return ledger.offsets.entries_between((position[0], position[1] - 1), ledger.last_confirmed)

    def policies_changed(self) -> None:
        self._limits = dispatch_limits(self.topic.service.config, self.topic.policies)
        limiter = self._rate.limiter(self._entries_from)
        if self._core is not None and self._dispatcher is not None:
            self._core.set_limits(self._limits)
            self._dispatcher.set_limiter(limiter)

    def sample_steps(self, now_ms: int, since_ms: int = 0) -> Steps[None]:
        yield from super().sample_steps(now_ms, since_ms)
        self._rate.sample()
        if self._core is not None:
            self._core.sample(now_ms)
        self._expiry_rate.sample(now_ms, (self.expired_entries, 0, 0, 0), since_ms)

    def _stop(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher.core.leave_budget()
        self._dispatcher = self._core = None

    def _join(self, consumer: Consumer) -> None:
        assert self._core is not None
        self._core.add_consumer(consumer, self.now_ms())
        self.wake()
        if self._terminated:
            self._tell_end()

    def _leave(self, consumer: Consumer) -> None:
        self._told_end = (self._told_end - {consumer}) or _NO_CONSUMERS
        if self._core is not None:
            self._core.remove_consumer(consumer, self.now_ms())
        if self.consumers:
            self.wake()
        else:
            self._stop()

    async def _ended(self) -> None:
        try:
            await self.ledger.delete_cursor(self.cursor.name)
        except STORAGE_ERRORS as error:  # perhaps closed meanwhile, and its cursors with it
            logger.debug("%s %s: cursor not deleted: %s", self.topic.name, self.name, error)

    def wake(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.wake()

    # --- what clients send

    def _on_flow(self, consumer: Consumer, permits: int) -> None:
        if self._core is not None and not consumer.closed:
            self._core.on_flow(consumer, permits)
            self.wake()

    def acknowledge(
        self,
        consumer: Consumer | None,
        positions: Sequence[Position],
        on_durable: AckDone | None = None,
    ) -> None:
        self._note_ack(consumer, len(positions))
        self.cursor.ack(positions, on_durable)
        if self._core is not None:
            self._core.on_acked(consumer, positions)
        self._after_ack()

    def acknowledge_cumulative(
        self,
        consumer: Consumer | None,
        position: Position,
        properties: Mapping[str, int] | None = None,
        on_durable: AckDone | None = None,
        *,
        ack_set: Sequence[int] = (),
    ) -> None:
        if consumer is not None and self.sub_type not in SINGLE_ACTIVE:
            if on_durable is not None:
                on_durable(None)
            return
        self._note_ack(consumer, 1)
        if self._own_properties and properties is not None:
            properties = {**properties, **self._own_properties}
        try:
            if not any(ack_set):
                self.cursor.ack_cumulative(position, properties, on_durable)
            elif self._batch_acks:
                self.cursor.ack_cumulative_batch(position, ack_set, on_durable)
            else:  # what comes before the batch is done, the batch itself stays whole
                previous = self.ledger.offsets.previous_position(position)
                self.cursor.ack_cumulative(previous, properties, on_durable)
        except InvalidPositionError as error:  # beyond the end: a lying client
            if on_durable is not None:
                on_durable(error)
            return
        if self._core is not None:
            self._core.on_mark_delete(position)
        self._after_ack()

    def acknowledge_batch(
        self,
        consumer: Consumer | None,
        position: Position,
        ack_set: Sequence[int],
        on_durable: AckDone | None = None,
    ) -> None:
        if not any(ack_set):
            self.acknowledge(consumer, (position,), on_durable)
            return
        if not self._batch_acks:  # not kept, the whole batch comes again
            if on_durable is not None:
                on_durable(None)
            return
        try:
            whole = self.cursor.ack_batch(position, ack_set, on_durable)
        except InvalidPositionError as error:
            if on_durable is not None:
                on_durable(error)
            return
        self._note_ack(consumer, 1 if whole else 0)
        if self._core is not None:
            if whole:
                self._core.on_acked(consumer, (position,))
            elif left := self.cursor.state.batch_messages_left(position):
                self._core.on_batch_acked(position, left)
        self._after_ack()

    def _note_ack(self, consumer: Consumer | None, entries: int) -> None:
        self.last_acked_ms = self.now_ms()
        if consumer is not None:
            consumer.acks += entries
            consumer.last_acked_ms = self.last_acked_ms

    def _after_ack(self) -> None:
        core = self._core
        if self.cursor.mark_delete != self._marked:
            self._marked, self._moved_ms = self.cursor.mark_delete, self.last_acked_ms
        if core is not None and core.unblocked:
            core.unblocked = False
            self.wake()
        if self._terminated:
            self._tell_end()

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None = None
    ) -> None:
        if self._core is not None and not consumer.closed:
            consumer.redelivered += self._core.redeliver(consumer, positions, epoch)
            self.wake()

    # --- transactions

    def acknowledge_in_transaction(
        self,
        consumer: Consumer | None,
        transaction: TransactionId,
        acks: Sequence[PendingAck],
        done: AckDone,
        *,
        cumulative: bool = False,
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Acknowledge with the commit of a transaction; none of them if one is refused.

        Args:
            done: called when it is durable, or with the BrokerError that says why not.
            cumulative: everything up to the position of the only one of them.
            refused: called instead if one of them is refused.
        """
        transactions = self._begin_transactions()
        transactions.acknowledge(
            consumer, transaction, acks, done, cumulative=cumulative, refused=refused
        )

    async def acknowledge_many_in_transaction(
        self,
        consumer: Consumer | None,
        transaction: TransactionId,
        parts: Iterable[Sequence[PendingAck]],
        done: AckDone,
    ) -> None:
        """The same of very many, see `TransactionalAcks.acknowledge_many`."""
        transactions = self._begin_transactions()
        await transactions.acknowledge_many(consumer, transaction, parts, done)

    def _begin_transactions(self) -> TransactionalAcks:
        if self.transactions is None:
            self.transactions = TransactionalAcks(self)
            if self._dispatcher is not None:
                self._dispatcher.cover_cursor(self.transactions.cover)
        return self.transactions

    async def end_transaction(
        self, transaction: TransactionId, low_watermark: int, *, commit: bool
    ) -> None:
        self.require_settled()
        # Also if it has none yet: its acknowledgements may still come, too late.
        log = self._begin_transactions().log
        if not log.is_unused:
            await log.open()
            self.require_settled()  # a reset has nothing of an end in front of it and behind it
        await log.end(transaction, low_watermark, commit=commit)

    def end_nowait(
        self, transaction: TransactionId, low_watermark: int, done: AckDone, *, commit: bool
    ) -> bool:
        if self.fenced or self._opened is not None or self.transactions is None:
            return False
        return self.transactions.log.end_nowait(transaction, low_watermark, done, commit=commit)

    def acknowledged(self, consumer: Consumer | None, entries: int) -> None:
        """Note that a consumer has acknowledged entries, with a transaction that may be open."""
        self._note_ack(consumer, entries)
        self._after_ack()

    def require_settled(self) -> None:
        """Raises SubscriptionFencedError: it is being closed, deleted or reset."""
        if self.fenced or self._opened is not None:
            raise SubscriptionFencedError("Subscription is fenced")

    # --- the topic's side

    def on_terminated(self) -> None:
        self._terminated = True
        self._tell_end()

    def _tell_end(self) -> None:
        if self.cursor.state.backlog > 0:
            return
        for consumer in self.consumers:
            if consumer not in self._told_end:
                self._told_end |= {consumer}
                consumer.sink.notify_end_of_topic(consumer)

    async def close(self) -> None:
        await super().close()
        self._stop()
        self._rate.close()
        try:
            if self.transactions is not None:
                await self.transactions.log.close()
        finally:
            await self.cursor.close()

    async def _delete_cursor(self) -> None:
        log = None if self.transactions is None else self.transactions.log
        with storage_errors(f"delete the cursor of {self.name}"):
            try:
                if log is not None:
                    await log.close()  # the cursor would refuse what a commit acknowledges
                    if self.durable and not log.is_unused:
                        await note_deleted(self.ledger, log.name)
                await self.ledger.delete_cursor(self.cursor.name)
            except BaseException:
                if log is not None:
                    log.reopen()
                raise
        self._stop()
        self._rate.close()
        if log is not None:
            await self._delete_log(log)

    async def _delete_log(self, log: PendingAckLog) -> None:
        """Behind the cursor: without the log, open transactions would have acknowledged nothing."""
        try:
            await log.delete()
            if log.name in deleted_logs(self.ledger):
                await forget_deleted(self.ledger, [log.name])
        except STORAGE_ERRORS as error:
            left = "the next load of the topic does that"
            logger.warning("%s isn't deleted, %s: %s", log.name, left, error)

    # --- moving the cursor

    async def reset(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        self._begin_reset()
        found = self.resolve(position)
        if found != position or not self._batch_acks:
            ack_set = ()  # indexes of another entry, one that was trimmed
        try:
            await self._move_cursor(found, ack_set)
            self.begins_at(position)
        finally:
            self._end_reset()

    async def reset_to_time(self, publish_time_ms: int) -> None:
        self._begin_reset()
        try:
            stamped_ms = self.topic.service.stamped_ms(publish_time_ms)
            before = await self._newest_before(stamped_ms)
            await self._move_cursor(self.ledger.offsets.next_position(before or EARLIEST))
            self.begins_at(self.cursor.state.first_unacked() if before else EARLIEST)
        finally:
            self._end_reset()

    async def _move_cursor(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        try:
            if self.transactions is not None:
                await self.transactions.log.forget_ended()
            await self.cursor.reset(position, ack_set, self._own_properties)
        except (CursorBusyError, CursorClosedError) as error:  # being deleted, or the topic closed
            raise SubscriptionFencedError(f"Subscription {self.name}: {error}") from error

    def resolve(self, position: Position) -> Position:
        """First existing entry at or after ``position``; past the end: the next to be written."""
        ledger = self.ledger
        if position >= LATEST or position > ledger.last_confirmed:
            return ledger.offsets.next_position(ledger.last_confirmed)
        if position <= EARLIEST:
            return ledger.offsets.first_position()
        return ledger.offsets.next_position((position[0], position[1] - 1))

    def _begin_reset(self) -> None:
        if self.fenced or self._opened is not None:
            raise SubscriptionFencedError("Subscription is fenced: another reset is under way")
        self._opened = asyncio.get_running_loop().create_future()
        # Clients drop what they prefetched only when their consumer is closed.
        self.disconnect_all()

    def _end_reset(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and not opened.done():
            opened.set_result(None)

    async def _newest_before(
        self, publish_time_ms: int, after: Position = EARLIEST
    ) -> Position | None:
        """Newest entry above ``after`` published before that time; None: there is none."""
        return await self.ledger.find_newest(
            lambda head, _: parse_header(head).publish_time_ms < publish_time_ms, after=after
        )

    async def expire_before(self, publish_time_ms: int) -> int:
        """Acknowledge everything published before that time (TTL, admin).

        Returns:
            How many unacknowledged entries that were.
        """
        newest = await self._newest_before(publish_time_ms, self.cursor.mark_delete)
        return self.expire_upto(newest) if newest is not None else 0

    def expire_upto(self, position: Position) -> int:
        """Acknowledge everything up to ``position``, which has expired; answers the entries."""
        if position <= self.cursor.mark_delete:
            return 0
        expired = self.evict_upto(position)
        self.expired_entries += expired
        self.last_expire_ms = self.now_ms()
        return expired

    def evict_upto(self, position: Position) -> int:
        """Acknowledge everything up to ``position`` without a consumer; answers the entries."""
        position = min(position, self.log.last_confirmed)
        if position <= self.cursor.mark_delete:
            return 0
        before, acked_ms = self.cursor.state.backlog, self.last_acked_ms
        self.acknowledge_cumulative(None, position)
        self.last_acked_ms = acked_ms  # no client used it
        return before - self.cursor.state.backlog

    def clear_backlog(self) -> None:
        """Acknowledge everything that may be read now."""
        if self.log.last_confirmed > self.cursor.mark_delete:
            self.acknowledge_cumulative(None, self.log.last_confirmed)

    # --- questions

    def _explain(self, publishing: Explanation | None) -> Explanation:
        state, core = self.cursor.state, self._core
        if not state.backlog:
            found = self.with_unread(explanation.caught_up(self._moved_ms, publishing))
            return found if core is None else core.with_standby(found)
        oldest = state.first_unacked()
        unread = state.first_unacked_from(self.read_position)
        following = unread if core is None else core.next_entry(unread)
        if following is None:
            found = self._explain_unsent(oldest, None) or explanation.delivering(None)
            found = explanation.all_sent(oldest, found, publishing)
            return found if core is None else core.with_standby(found)
        # Acknowledged in a transaction or not: dispatch finds that out when it reads the entry.
        behind = self.explain_transactions().behind(following, self.log.offsets)
        return behind or self._explain_dispatch(following, None) or explanation.delivering(None)

    def explain_entry(
        self, position: Position, head: EntryHeader | None, batch_index: int = -1
    ) -> Explanation:
        """What became of an entry, or what keeps it from being delivered.

        Args:
            position: REQUIRES: it exists and isn't acknowledged.
            head: None: it couldn't be read.
            batch_index: of a message in a batch; -1: of the whole entry.
        """
        found = self._explain_closed() or self._explain_unsent(position, head, batch_index)
        if found is not None:
            return found
        offsets = self.ledger.offsets
        reached = offsets.previous_position(self.read_position)
        before = offsets.entries_between(reached, offsets.previous_position(position))
        return explanation.delivering(max(before, 0))

    def explain_oldest(self) -> Explanation:
        return self.explain_entry(self.cursor.state.first_unacked(), None)

    def with_unread(self, found: Explanation) -> Explanation:
        """``found``: that something is acknowledged. Adds what no consumer acknowledged."""
        age_ms, evictions = self.now_ms() - self.last_expire_ms, self.topic.backlog.evicted_by_size
        return with_unread(found, self.expired_entries, age_ms, evictions)

    def explain_transactions(self) -> TransactionExplainer:
        coordinators, log = self.topic.service.transactions, self.log
        return TransactionExplainer(
            self.now_ms(),
            (lambda _: None) if coordinators is None else coordinators.times_of,
            log.buffer if isinstance(log, TransactionView) else None,
            None if self.transactions is None else self.transactions.log.core,
        )

    def _explain_unsent(
        self, position: Position, head: EntryHeader | None, batch_index: int = -1
    ) -> Explanation | None:
        transactions = self.explain_transactions()
        return (
            transactions.behind(position, self.log.offsets)
            or transactions.acknowledged(position, batch_index)
            or self._explain_dispatch(position, head)
        )

    def _explain_dispatch(self, position: Position, head: EntryHeader | None) -> Explanation | None:
        if self._dispatcher is None:
            found, now_ms = self._explain_no_consumer(), self.now_ms()
            if head is None or head.deliver_at_ms <= now_ms or not self._limits.delay_enabled:
                return found
            return explanation.delayed_too(found, head.deliver_at_ms, now_ms)
        return self._dispatcher.explain(position, head)

    # --- statistics

    @property
    def unacked(self) -> int:
        return 0 if self._core is None else self._core.unacked

    def stats_steps(self, now_ms: int, *, with_consumers: bool = True) -> Steps[dict[str, Any]]:
        consumers = list(self.consumers)
        stats = yield from self.common_stats(consumers, with_consumers=with_consumers)
        cursor = self.cursor
        backlog = cursor.state.backlog
        if self._core is not None:
            yield from self._core.add_stats(stats, consumers if with_consumers else ())
        stats["msgBacklog"] = backlog
        # From the mark-delete on, by the mean entry of its ledger: counting exactly would read the
        # index of the log.
        stats["backlogSize"] = self.ledger.bytes_after(cursor.mark_delete) if backlog else 0
        stats["msgBacklogNoDelayed"] = max(backlog - stats["msgDelayed"], 0)
        stats["msgExpired"] = stats["totalMsgExpired"] = self.expired_entries
        stats["msgRateExpired"] = self._expiry_rate.rates[0]
        stats["lastExpireTimestamp"] = self.last_expire_ms
        stats["lastMarkDeleteAdvancedTimestamp"] = self._moved_ms
        stats["nonContiguousDeletedMessagesRanges"] = cursor.state.range_count
        stats["nonContiguousDeletedMessagesRangesSerializedSize"] = cursor.state.bitmap_bytes
        stats.update(self._rate.events)
        return stats

    def _kept_sums(self) -> tuple[int, int, int]:
        state, found = self.cursor.state, dict[str, Any]()
        if self._core is not None:
            for _ in self._core.add_stats(found, ()):
                pass
        delayed_bytes: int = found.get("delayedMessageIndexSizeInBytes", 0)
        return state.range_count, state.bitmap_bytes, delayed_bytes

    @property
    def read_position(self) -> Position:
        """What its dispatcher reads next; without consumers the first unacknowledged entry."""
        core = self._core
        position = None if core is None else core.read_position
        return self.cursor.state.first_unacked() if position is None else position

    @property
    def reading(self) -> DispatchReadRequest | None:
        """What its dispatcher is reading from storage."""
        return None if self._dispatcher is None else self._dispatcher.reading

    @property
    def is_waiting(self) -> bool:
        """Whether its consumers could take more than there is."""
        return self._dispatcher is not None and self._dispatcher.is_waiting


@contextmanager
def cursor_errors(subscription: str) -> Iterator[None]:
    """Raise PersistenceError for errors of the storage, and SubscriptionFencedError while the
    cursor is reset, or once it is closed or deleted."""
    try:
        yield
    except (CursorBusyError, CursorClosedError) as error:
        raise SubscriptionFencedError(f"Subscription {subscription}: {error}") from error
    except STORAGE_ERRORS as error:
        raise PersistenceError(f"Cursor of {subscription}: {error}") from error


async def start_position(ledger: ManagedLedger, request: SubscribeRequest, now_ms: int) -> Position:
    """The first position a NEW cursor of this request delivers: rollback, start id or initial.

    EARLIEST and LATEST are possible answers; a durable request ignores its start id. A start id
    beyond the end falls back to the initial position.
    """
    if request.rollback_seconds > 0:
        since_ms = now_ms - request.rollback_seconds * 1000
        before = await ledger.find_newest(
            lambda head, _: parse_header(head).publish_time_ms < since_ms
        )
        return ledger.offsets.next_position(before or EARLIEST)
    start = request.start_position
    if request.durable or start is None or start > ledger.last_confirmed:
        return request.initial_position
    return start
