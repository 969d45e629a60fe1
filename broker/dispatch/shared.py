"""Shared: entries are spread over the consumers, each pending at one of them until acknowledged.

Redelivery of Shared and Key_Shared is decided here: ``redeliver`` for a client's request,
``remove_consumer`` for what a lost consumer had.

Calls in, effects out; no clock, socket or task. Every unacknowledged entry below the read position
is in exactly one place: pending at a consumer, waiting for one (chunks), in the replay queue (all
bitmaps per ledger), or in the delayed index. Only batches (a message count other than 1) and
redelivered entries cost a dict item.

Rules: docs/spec/wire-protocol.md, "Shared".
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap

from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.delayed_index import DelayedIndex
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import (
    NO_LIMIT,
    AckSets,
    ConsumerState,
    Deliver,
    Dispatcher,
    DispatchLimits,
    DispatchReadRequest,
    SkipEntries,
    remaining_messages,
)
from magnetar.broker.dispatch.pending_ages import PendingAges
from magnetar.broker.dispatch.position_set import ENTRY_ID_END, PositionSet
from magnetar.broker.dispatch.round_robin import RoundRobin
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.protocol.entry_header import (
    FLAG_BATCH,
    FLAG_CHUNK,
    FLAG_FIRST_CHUNK,
    FLAG_LAST_CHUNK,
    FLAG_MARKER,
    EntryHeader,
    scan_headers,
)
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position

_FOR_EVER_MS = 2**64
_DELAYED_PER_TURN = 10_000
"""Delayed entries that one turn looks at: some milliseconds."""
_SPARSE = 8
"""A replay read spans holes as long as at least one entry in so many is wanted."""


class SharedDispatcher(Dispatcher):
    """Any consumer may get any entry; what one of them leaves behind goes to the others.

    One object, since an acknowledgment, a redelivery and a consumer that leaves each move entries
    between the same four places.
    """

    def __init__(self, limits: DispatchLimits) -> None:
        super().__init__(limits)
        self.replay = PositionSet()
        self.delayed = DelayedIndex(limits.delay_tick_ms, strict=limits.delay_strict)
        self.blocked = False  # too many messages are pending
        self.budget: UnackedBudget | None = None  # of the broker; None: it has no limit
        self.round_robin = RoundRobin()
        self.chunk_owners: dict[int, ConsumerState] = {}  # message -> consumer of its first chunk
        self.ages = PendingAges()
        self._sizes: dict[int, dict[int, int]] = {}  # pending entries that aren't one message each
        self._counts: dict[int, dict[int, int]] = {}  # redeliveries, of redelivered entries only

    @property
    def consumers(self) -> list[ConsumerState]:
        return self.round_robin.consumers

    def set_limits(self, limits: DispatchLimits) -> None:
        super().set_limits(limits)
        self.delayed.set_precision(limits.delay_tick_ms, strict=limits.delay_strict)
        of_all, of_each = limits.unacked_per_subscription, limits.unacked_per_consumer
        self.blocked = 0 < of_all <= self.unacked
        for consumer in self.round_robin.consumers:
            consumer.blocked = 0 < of_each <= consumer.unacked
            self._release_waiting(consumer)

    def join_budget(self, budget: UnackedBudget, wake: Callable[[], None]) -> None:
        budget.join(self, wake)

    def leave_budget(self) -> None:
        if self.budget is not None:
            self.budget.leave(self)

    # --- consumers

    def add_consumer(self, consumer: ConsumerState, now_ms: int = 0) -> None:
        self.round_robin.add(consumer)

    def remove_consumer(self, consumer: ConsumerState, now_ms: int = 0) -> None:
        """Its pending entries go back to the queue, their redelivery counts unchanged."""
        if not self.round_robin.remove(consumer):
            return
        if not self.round_robin.consumers:
            self.rewind()
            self._counts.clear()
        else:
            self._give_back(consumer)
            self.chunk_owners = {
                key: owner for key, owner in self.chunk_owners.items() if owner is not consumer
            }
        consumer.pending.clear()
        consumer.waiting.clear()
        consumer.unacked = 0

    def _give_back(self, consumer: ConsumerState) -> None:
        for ledger_id, entries in consumer.pending.ledgers.items():
            self._forget_sizes(ledger_id, entries)
        self.replay.update(consumer.pending)
        self.replay.update(consumer.waiting)
        self._lower_unacked(consumer.unacked)

    def rewind(self) -> None:
        for consumer in self.round_robin.consumers:
            consumer.pending.clear()
            consumer.waiting.clear()
            consumer.unacked, consumer.blocked = 0, False
        self.replay.clear()
        self.delayed.clear()
        self.chunk_owners.clear()
        self._sizes.clear()
        self._lower_unacked(self.unacked)
        self.blocked = False
        self.read_position = None
        self.generation += 1

    def on_flow(self, consumer: ConsumerState, permits: int) -> None:
        consumer.permits += permits
        self._release_waiting(consumer)

    def _release_waiting(self, consumer: ConsumerState) -> None:
        if consumer.waiting and consumer.permits > 0 and not consumer.blocked:
            self.replay.update(consumer.waiting)
            consumer.waiting.clear()

    # --- acknowledgments and redelivery

    def on_acked(self, consumer: ConsumerState | None, positions: Sequence[Position]) -> int:
        if len(positions) == 1:
            ledger_id, entry_id = positions[0]
            if 0 <= entry_id < ENTRY_ID_END:
                return self._on_acked_one(consumer, ledger_id, entry_id)
            return 0
        groups: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions:
            if 0 <= entry_id < ENTRY_ID_END:
                if (group := groups.get(ledger_id)) is None:
                    groups[ledger_id] = [entry_id]
                else:
                    group.append(entry_id)
        return sum(
            self._on_acked_many(consumer, ledger_id, BitMap(group))
            for ledger_id, group in groups.items()
        )

    def on_mark_delete(self, mark_delete: Position) -> None:
        for consumer in self.round_robin.consumers:
            for ledger_id, bits in list(consumer.pending.ledgers.items()):
                if ledger_id > mark_delete[0]:
                    continue
                if ledger_id < mark_delete[0]:
                    self._on_acked_many(consumer, ledger_id, bits.copy())
                else:
                    below = BitMap(range(0))
                    below.add_range(0, mark_delete[1] + 1)
                    self._on_acked_many(consumer, ledger_id, bits & below)
            consumer.waiting.remove_below((mark_delete[0], mark_delete[1] + 1))
        self.replay.remove_below((mark_delete[0], mark_delete[1] + 1))
        if self.delayed.count:
            self.delayed.forget_below(mark_delete)
            self.unblocked = True

    def _on_acked_one(self, consumer: ConsumerState | None, ledger_id: int, entry_id: int) -> int:
        owner = consumer
        if owner is None or not owner.pending.discard(ledger_id, entry_id):
            for owner in self.round_robin.consumers:
                if owner.pending.discard(ledger_id, entry_id):
                    break
            else:
                if not self.replay.discard(ledger_id, entry_id) and self.delayed.count:
                    self._forget_delayed(ledger_id, BitMap((entry_id,)))
                self._forget_counts(ledger_id, (entry_id,))
                return 0
        sizes = self._sizes.get(ledger_id)
        messages = sizes.pop(entry_id, 1) if sizes else 1
        if self._counts:
            self._forget_counts(ledger_id, (entry_id,))
        owner.unacked -= messages
        self._unblock(owner)
        self._lower_unacked(messages)
        return messages

    def _on_acked_many(
        self, consumer: ConsumerState | None, ledger_id: int, entries: BitMap
    ) -> int:
        total, rest = 0, entries
        if self._counts:
            self._forget_counts(ledger_id, entries)
        owners = self.round_robin.consumers
        if consumer is not None and consumer in owners:
            owners = [consumer, *(each for each in owners if each is not consumer)]
        for owner in owners:
            if (taken := owner.pending.take(ledger_id, rest)) is None:
                continue
            messages = self._forget_sizes(ledger_id, taken)
            owner.unacked -= messages
            total += messages
            self._unblock(owner)
            rest = rest - taken
            if not rest:
                break
        if rest and self.replay:
            self.replay.take(ledger_id, rest)
        if rest and self.delayed.count:
            self._forget_delayed(ledger_id, rest)
        self._lower_unacked(total)
        return total

    def _forget_delayed(self, ledger_id: int, entries: BitMap) -> None:
        self.delayed.forget(ledger_id, entries)
        if self.delayed.sweep_at is not None:
            self.unblocked = True  # a turn sets the timer

    def on_batch_acked(self, position: Position, remaining: int) -> None:
        ledger_id, entry_id = position
        for owner in self.round_robin.consumers:
            if position in owner.pending:
                sizes = self._sizes.setdefault(ledger_id, {})
                messages = sizes.get(entry_id, 1) - remaining
                sizes[entry_id] = remaining
                owner.unacked -= messages
                self._unblock(owner)
                self._lower_unacked(messages)
                return

    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Sequence[Position] | None,
        epoch: int | None = None,
    ) -> int:
        """Entries pending at this consumer go to the replay queue, their counts + 1."""
        if positions is None:
            wanted = consumer.pending.ledgers
        else:
            wanted = {}
            for ledger_id, entry_id in positions:
                if 0 <= entry_id < ENTRY_ID_END:
                    wanted.setdefault(ledger_id, BitMap()).add(entry_id)
        total = 0
        for ledger_id, entries in list(wanted.items()):
            if (taken := consumer.pending.take(ledger_id, entries.copy())) is None:
                continue
            total += self._forget_sizes(ledger_id, taken)
            self.replay.add_bits(ledger_id, taken)
            self.ages.on_redeliver(consumer, ledger_id, taken)
            counts = self._counts.setdefault(ledger_id, {})
            for entry_id in taken:
                counts[entry_id] = counts.get(entry_id, 0) + 1
        consumer.unacked -= total
        self._unblock(consumer)
        self._lower_unacked(total)
        return total

    def on_withheld(self, consumer: ConsumerState | None, positions: Sequence[Position]) -> None:
        if not self._counts:
            self.on_acked(consumer, positions)
            return
        counts = {at: self._counts.get(at[0], {}).get(at[1], 0) for at in positions}
        self.on_acked(consumer, positions)
        for (ledger_id, entry_id), count in counts.items():
            if count:
                self._counts.setdefault(ledger_id, {})[entry_id] = count

    def deliver_again(self, positions: Sequence[Position]) -> None:
        """Their redelivery counts + 1."""
        for position in positions:
            ledger_id, entry_id = position
            owner = next((each for each in self.consumers if position in each.pending), None)
            if owner is not None:  # other messages of a batch
                self.redeliver(owner, (position,))
                continue
            counts = self._counts.setdefault(ledger_id, {})
            counts[entry_id] = counts.get(entry_id, 0) + 1
            if not (self.is_unread(position) or self._is_put_away(position)):
                self.replay.add(ledger_id, (entry_id,))

    def _is_put_away(self, position: Position) -> bool:
        """Whether it is sent later without being asked for."""
        waits = any(position in each.waiting for each in self.consumers)
        return waits or self.delayed.due_ms(position) is not None

    def _forget_sizes(self, ledger_id: int, entries: BitMap) -> int:
        """Messages of entries that stop being pending."""
        sizes = self._sizes.get(ledger_id)
        if not sizes:
            return len(entries)
        pop = sizes.pop
        messages = sum([pop(entry_id, 1) for entry_id in entries])
        if not sizes:
            del self._sizes[ledger_id]
        return messages

    def _forget_counts(self, ledger_id: int, entries: Sequence[int] | BitMap) -> None:
        if counts := self._counts.get(ledger_id):
            if len(counts) < len(entries):
                for entry_id in [known for known in counts if known in entries]:
                    del counts[entry_id]
            else:
                for entry_id in entries:
                    counts.pop(entry_id, None)
            if not counts:
                del self._counts[ledger_id]

    def _unblock(self, consumer: ConsumerState) -> None:
        if consumer.blocked and consumer.unacked <= self.limits.unacked_per_consumer // 2:
            consumer.blocked = False
            self.unblocked = True
            self._release_waiting(consumer)

    def _lower_unacked(self, messages: int) -> None:
        self.unacked -= messages
        if self.budget is not None:
            self.budget.changed(self, -messages)
        # Not below limit // 2, as Pulsar has it: a limit of 1 would hold for ever.
        if self.blocked and 2 * self.unacked < self.limits.unacked_per_subscription:
            self.blocked = False
            self.unblocked = True

    # --- delayed entries

    def next_deadline_ms(self) -> int | None:
        """0: at once; so much is due, switched off or acknowledged that it takes several turns."""
        delayed = self.delayed
        if delayed.sweep_at is not None or (delayed.count and not self.limits.delay_enabled):
            return 0
        return delayed.next_due_ms() if delayed.count else None

    def on_tick(self, now_ms: int) -> None:
        if self.delayed.sweep_at is not None:
            self.delayed.sweep(_DELAYED_PER_TURN)
        until_ms = now_ms if self.limits.delay_enabled else _FOR_EVER_MS
        self.replay.update(self.delayed.take_due(until_ms, _DELAYED_PER_TURN))

    # --- reading and assignment

    def next_read(self) -> DispatchReadRequest | None:
        """The replay queue before new entries; None while no consumer can take anything.

        While the delayed index is full no new entry is read, for it might have to wait there. The
        index exceeds its limit by the entries of one read at most.
        """
        limit = self.limits.delayed_index_bytes
        if self.is_held_back and (not limit or 2 * self.delayed.memory_bytes <= limit):
            self.is_held_back = False  # not at each entry that makes room: this is for the log
        if self.blocked or self.waits_for_broker:
            return None
        permits = self.round_robin.available_permits()
        if permits <= 0:
            return None
        wanted = min(int(permits / self.per_entry) + 1, self.limits.read_entries_max)
        if self.replay:
            position, span = self._replay_span(wanted)
            return DispatchReadRequest(position, span, True, self.generation)
        if self.delayed.count and 0 < limit <= self.delayed.memory_bytes:
            self.is_held_back = True
            return None  # until entries come due or are acknowledged
        return DispatchReadRequest(self.read_position, wanted, False, self.generation)

    @property
    def replay_size(self) -> int:
        """Entries that were read and are sent before any new one."""
        return len(self.replay)

    def _replay_span(self, wanted: int) -> tuple[Position, int]:
        """Lowest position of the queue and how many entries to read from there."""
        ledger_id = min(self.replay.ledgers)
        bits = self.replay.ledgers[ledger_id]
        first = bits.min()
        window = min(wanted, len(bits))
        last = bits[window - 1]
        while last - first + 1 > window * _SPARSE and window > 1:
            window //= 2
            last = bits[window - 1]
        return (ledger_id, first), min(last - first + 1, self.limits.read_entries_max)

    def on_nothing(self, request: DispatchReadRequest, position: Position) -> None:
        """Nothing there: a replayed entry no longer exists, or the end of the log is reached."""
        if request.generation != self.generation:
            return
        if request.replay:
            self.replay.remove_range(position, (position[0], position[1] + request.entries_max))
        else:
            self.read_position = position

    def on_entries(
        self,
        request: DispatchReadRequest,
        batch: EntryBatch,
        acked: Sequence[int] | None,
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> None:
        if request.generation != self.generation:
            return
        ledger_id, first, count = batch.ledger_id, batch.first, len(batch.heads)
        indexes: Sequence[int] = range(count)
        if request.replay:
            # Trimmed: the read found later ones only. Not everything below: lower entries may have
            # joined the queue while the read was under way.
            assert request.position is not None
            self.replay.remove_range(request.position, (ledger_id, first))
            bits = self.replay.ledgers.get(ledger_id)
            if acked and bits:
                self.replay.take(ledger_id, BitMap(acked))
                bits = self.replay.ledgers.get(ledger_id)
            if not bits:
                return
            window = BitMap()
            window.add_range(first, first + count)
            indexes = [entry_id - first for entry_id in bits & window]
        elif acked:
            gone = set(acked)
            indexes = [index for index in indexes if first + index not in gone]
        used = self._spread(batch, indexes, ack_set_of, now_ms)
        if request.replay:
            if used:
                done = [first + index for index in indexes[:used]]
                self.replay.take(ledger_id, BitMap(done))
        else:
            end = indexes[used] if used < len(indexes) else count
            self.read_position = (ledger_id, first + end)

    def _spread(
        self,
        batch: EntryBatch,
        indexes: Sequence[int],
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> int:
        """Send entries to the consumers whose turn it is; answers how many are used up."""
        rows = scan_headers(batch.heads)
        turn = _DispatchBatch(self, batch, ack_set_of, now_ms)
        used = turn.assign_plain(indexes) if rows is None else turn.assign_rows(indexes, rows)
        if turn.markers:
            self._effects.append(SkipEntries(turn.markers))
        for consumer, parts in turn.parts.items():
            picks = parts[0] if len(parts) == 1 else [index for part in parts for index in part]
            chunks = turn.chunks.get(consumer, 0) if turn.chunks else 0
            self.mark_pending(consumer, batch, picks, turn.ack_sets, turn.sizes, chunks)
        return used

    def room(self) -> int:
        """Messages that may be sent before too many of the subscription are pending."""
        limit = self.limits.unacked_per_subscription
        return limit - self.unacked if limit else NO_LIMIT

    def delay(self, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
        """Put an entry away until its time; False: that has come already."""
        if not self.limits.delay_enabled or self.delayed.is_due(deliver_at_ms, now_ms):
            return False
        self.delayed.add(ledger_id, entry_id, deliver_at_ms)
        return True

    def mark_pending(
        self,
        consumer: ConsumerState,
        batch: EntryBatch,
        picks: Sequence[int],
        ack_sets: dict[int, Sequence[int]],
        sizes: dict[int, int],
        chunks: int,
    ) -> None:
        """Entries are sent to a consumer: they are pending there now.

        Args:
            sizes: messages by index, of entries that aren't one message.
        """
        first, ledger_id, messages = batch.first, batch.ledger_id, len(picks)
        if type(picks) is range:
            consumer.pending.add(ledger_id, range(first + picks.start, first + picks.stop))
        else:
            consumer.pending.add(ledger_id, [first + index for index in picks])
        if sizes:
            messages = sum([sizes.get(index, 1) for index in picks])
            known = self._sizes.setdefault(ledger_id, {})
            for index in picks:
                if index in sizes:
                    known[first + index] = sizes[index]
        counts = self._counts.get(ledger_id)
        redelivered = None
        if counts:
            redelivered = [counts.get(first + index, 0) for index in picks]
            if not any(redelivered):
                redelivered = None
        self.unacked += messages
        if self.budget is not None:
            self.budget.changed(self, messages)
        limit = self.limits.unacked_per_subscription
        if limit and self.unacked >= limit:
            self.blocked = True
        self.per_entry += (messages / len(picks) - self.per_entry) / 4
        whole = len(picks) == len(batch.heads)
        mine = (
            {index: ack_sets[index] for index in picks if index in ack_sets} if ack_sets else None
        )
        shown = None if whole else picks
        self._effects.append(
            Deliver(consumer, batch, shown, messages, redelivered, mine or None, chunks)
        )

    # --- questions

    def sample(self, now_ms: int) -> None:
        self.ages.sample(self.consumers, now_ms)

    def next_entry(self, unread: Position | None) -> Position | None:
        if (first := self.replay.first() or unread) is not None:
            return first
        waiting = [each.waiting.first() for each in self.consumers]
        return min((each for each in waiting if each is not None), default=None)

    def explain(
        self, position: Position, head: EntryHeader | None, now_ms: int
    ) -> Explanation | None:
        if head is not None and head.flags & FLAG_MARKER:
            return explanation.filtered()
        for consumer in self.consumers:
            if position in consumer.pending:
                return self._explain_pending(consumer, position, now_ms)
        if (due_ms := self._due_ms(position, head)) > now_ms:
            return explanation.delayed(due_ms, now_ms)
        for consumer in self.consumers:
            if position in consumer.waiting:
                return explanation.consumer_stall(consumer, self.limits.unacked_per_consumer)
        return self._explain_stall() or (
            self._explain_unread() if self.is_unread(position) else None
        )

    def _due_ms(self, position: Position, head: EntryHeader | None) -> int:
        """When a delayed entry may be sent; 0: it isn't one."""
        if not self.limits.delay_enabled:
            return 0
        if self.is_unread(position):
            return 0 if head is None else head.deliver_at_ms
        return self.delayed.due_ms(position) or 0

    def _explain_pending(
        self, consumer: ConsumerState, position: Position, now_ms: int
    ) -> Explanation:
        ledger_id, entry_id = position
        return explanation.pending(
            consumer,
            now_ms,
            since_ms=self.ages.since_ms(consumer, position) or consumer.last_consumed_ms,
            redeliveries=self._counts.get(ledger_id, {}).get(entry_id, 0),
            messages=self._sizes.get(ledger_id, {}).get(entry_id, 1),
        )

    def _explain_stall(self) -> Explanation | None:
        """What keeps all entries from being sent."""
        limits, budget = self.limits, self.budget
        if self.blocked:
            return explanation.subscription_unacked_limit(
                self.unacked, limits.unacked_per_subscription
            )
        if self.waits_for_broker and budget is not None:
            return explanation.broker_unacked_limit(
                self.unacked, budget.limit_of_each, budget.total, budget.limit
            )
        return explanation.consumers_stall(self.consumers, limits.unacked_per_consumer)

    def _explain_unread(self) -> Explanation | None:
        """What keeps new entries from being read."""
        used, limit = self.delayed.memory_bytes, self.limits.delayed_index_bytes
        if not (self.delayed.count and 0 < limit <= used):
            return None
        return explanation.delayed_index_limit(used, limit, self.delayed.next_due_ms())

    def add_stats(self, stats: dict[str, Any], listed: Sequence[ConsumerState]) -> Iterable[None]:
        stats["blockedSubscriptionOnUnackedMsgs"] = self.blocked or self.waits_for_broker
        stats["unackedMessages"] = self.unacked
        stats["msgInReplay"] = self.replay_size
        stats["msgDelayed"] = self.delayed.count
        stats["delayedMessageIndexSizeInBytes"] = self.delayed.memory_bytes
        return ()


@dataclass(slots=True)
class _DispatchBatch:
    """One batch being spread: each consumer gets its entries of the turn in one piece."""

    core: SharedDispatcher
    batch: EntryBatch
    ack_set_of: AckSets | None
    now_ms: int
    parts: dict[ConsumerState, list[Sequence[int]]] = field(default_factory=dict)
    """What each consumer gets, ascending."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Messages by index, of entries that aren't one message."""
    ack_sets: dict[int, Sequence[int]] = field(default_factory=dict)
    chunks: dict[ConsumerState, int] = field(default_factory=dict)
    """Parts of chunked messages that each consumer gets."""
    markers: list[Position] = field(default_factory=list)

    def assign_plain(self, indexes: Sequence[int]) -> int:
        """Ordinary single messages: whole slices at once. Returns how many indexes are used up."""
        core, used, total = self.core, 0, len(indexes)
        limits, room, parts = core.limits, core.room(), self.parts
        while used < total and room > 0:
            if (consumer := core.round_robin.next()) is None:
                break
            take = min(limits.round_robin_messages, consumer.permits, total - used, room)
            consumer.book(take, limits.unacked_per_consumer)
            room -= take
            parts.setdefault(consumer, []).append(indexes[used : used + take])
            used += take
        return used

    def assign_rows(self, indexes: Sequence[int], rows: list[tuple[int, int, int, int]]) -> int:
        """Entries looked at one by one: batches, chunks, markers, delayed ones."""
        core, first, ledger_id = self.core, self.batch.first, self.batch.ledger_id
        room, unacked_max = core.room(), core.limits.unacked_per_consumer
        sizes, ack_set_of = self.sizes, self.ack_set_of
        picks: defaultdict[ConsumerState, list[int]] = defaultdict(list)
        consumer: ConsumerState | None = None
        quota = 0  # messages the consumer may still get before it is the next one's turn
        used = len(indexes)
        for number, index in enumerate(indexes):
            flags, messages, deliver_at_ms, chunk_hash = rows[index]
            if flags & FLAG_MARKER:
                self.markers.append((ledger_id, first + index))
                continue
            if deliver_at_ms and core.delay(ledger_id, first + index, deliver_at_ms, self.now_ms):
                continue
            if room <= 0:
                used = number
                break
            if consumer is None or quota <= 0 or consumer.permits <= 0 or consumer.blocked:
                if (consumer := core.round_robin.next()) is None:
                    used = number
                    break
                quota = core.limits.round_robin_messages
            if flags & FLAG_BATCH:
                if ack_set_of is not None:
                    messages = self._remaining(index, messages)
                sizes[index] = messages
            target = consumer
            if flags & FLAG_CHUNK:
                target = self._chunk_owner(consumer, flags, chunk_hash)
                if target.permits <= 0 or target.blocked:
                    target.waiting.add(ledger_id, (first + index,))
                    continue
                if flags & FLAG_LAST_CHUNK:
                    core.chunk_owners.pop(chunk_hash, None)
                self.chunks[target] = self.chunks.get(target, 0) + 1
            if target is consumer:
                quota -= messages
            target.book(messages, unacked_max)
            room -= messages
            picks[target].append(index)
        self.parts = {target: [chosen] for target, chosen in picks.items()}
        return used

    def _remaining(self, index: int, messages: int) -> int:
        assert self.ack_set_of is not None
        words = self.ack_set_of((self.batch.ledger_id, self.batch.first + index))
        if not words:
            return messages
        self.ack_sets[index] = words
        return remaining_messages(words)

    def _chunk_owner(self, turn: ConsumerState, flags: int, chunk_hash: int) -> ConsumerState:
        """The owner of the first chunk of the message, else the consumer whose turn it is."""
        owners = self.core.chunk_owners
        if (owner := owners.get(chunk_hash)) is not None:
            return owner
        if flags & FLAG_FIRST_CHUNK:
            owners[chunk_hash] = turn
        return turn  # the first chunk is acknowledged already: anybody
