"""Exclusive and Failover: one consumer at a time gets every entry, in order.

Rules: docs/spec/wire-protocol.md, "Single active consumer".
Calls in, effects out; no clock, socket or task. There are no pending entries to keep: the cursor
knows what is acknowledged, and redelivery is a rewind, which sends the rest again.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.active_consumer import ActiveConsumerSelector
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import (
    AckSets,
    ConsumerState,
    Deliver,
    Dispatcher,
    DispatchLimits,
    DispatchReadRequest,
    NotifyActive,
    SkipEntries,
    remaining_messages,
)
from magnetar.broker.dispatch.pending_ages import SAMPLES_MAX, least_needed
from magnetar.broker.protocol.entry_header import (
    FLAG_BATCH,
    FLAG_CHUNK,
    FLAG_MARKER,
    EntryHeader,
    scan_headers,
)
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position


class SingleActiveDispatcher(Dispatcher):
    """Decides which consumer is active and what it is sent next.

    Invariant: entries leave in the order of positions; after a rewind from the cursor's first
    unacknowledged entry on.
    """

    def __init__(
        self, limits: DispatchLimits, *, failover: bool, topic: str, partition_index: int
    ) -> None:
        super().__init__(limits)
        self.consumers: list[ConsumerState] = []
        self._failover = failover
        self._choice = ActiveConsumerSelector(topic, partition_index)
        self._switching = False  # a new active consumer is chosen and waits for the delay
        self._switch_at_ms: int | None = None
        self._samples: list[tuple[int, Position]] = []  # when, and what was read below

    # --- consumers

    def add_consumer(self, consumer: ConsumerState, now_ms: int) -> None:
        self.consumers.append(consumer)
        self._choice.add(consumer)
        before = self.active
        self._choose(now_ms)
        # Switching: all are told when the switch is done.
        if self.active is before and self._failover and not self._switching:
            self._effects.append(NotifyActive(consumer, False))

    def remove_consumer(self, consumer: ConsumerState, now_ms: int) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._choice.remove(consumer)
        if not self.consumers:
            self.active, self._switching, self._switch_at_ms = None, False, None
            self.rewind()
        else:
            self._choose(now_ms)

    def _choose(self, now_ms: int) -> None:
        chosen = self._choice.choose()
        if chosen is self.active:
            return
        none_before = self.active is None
        self.active = chosen
        self.rewind()
        if not self._failover or none_before or self.limits.failover_delay_ms <= 0:
            # Without a predecessor there are no acknowledgments on their way to wait for.
            self._switching, self._switch_at_ms = False, None
            self._tell_all()
        elif not self._switching:  # else the delay that runs counts for this choice as well
            self._switching, self._switch_at_ms = True, now_ms + self.limits.failover_delay_ms

    def _tell_all(self) -> None:
        if self._failover:
            self._effects += [NotifyActive(each, each is self.active) for each in self.consumers]

    def next_deadline_ms(self) -> int | None:
        return self._switch_at_ms

    def on_tick(self, now_ms: int) -> None:
        if self._switch_at_ms is not None and now_ms >= self._switch_at_ms:
            self._switching, self._switch_at_ms = False, None
            self.rewind()  # acknowledgments of the former active consumer came in meanwhile
            self._tell_all()

    def redeliver(
        self,
        consumer: ConsumerState,
        positions: Sequence[Position] | None,
        epoch: int | None = None,
    ) -> int:
        """A request of an inactive consumer is ignored."""
        if consumer is self.active:
            if epoch is not None and epoch > (-1 if consumer.epoch is None else consumer.epoch):
                consumer.epoch = epoch
            self.rewind()
        return 0  # nothing is pending here

    def deliver_again(self, positions: Sequence[Position]) -> None:
        self.rewind()

    def rewind(self) -> None:
        self.read_position = None
        self._samples.clear()
        self.generation += 1  # a read under way belongs to the time before

    # --- entries

    def next_read(self) -> DispatchReadRequest | None:
        active = self.active
        if active is None or self._switching or active.permits <= 0 or not active.writable:
            return None
        wanted = int(active.permits / self.per_entry) + 1
        return DispatchReadRequest(
            self.read_position, min(wanted, self.limits.read_entries_max), False, self.generation
        )

    def on_nothing(self, request: DispatchReadRequest, position: Position) -> None:
        if request.generation == self.generation:
            self.read_position = position

    def on_entries(
        self,
        request: DispatchReadRequest,
        batch: EntryBatch,
        acked: Sequence[int] | None,
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> None:
        active = self.active
        if active is None or request.generation != self.generation:
            return
        if not active.writable:
            return  # its connection filled up while the read was under way: read again later
        rows = scan_headers(batch.heads)
        if rows is None and acked is None:
            count = min(len(batch.heads), max(active.permits, 0))
            self.read_position = (batch.ledger_id, batch.first + count)
            if count:
                active.permits -= count
                self.per_entry += (1.0 - self.per_entry) / 4
                picks = range(count) if count < len(batch.heads) else None
                self._effects.append(Deliver(active, batch, picks, count))
            return
        self._send_rows(active, batch, rows, acked, ack_set_of)

    def _send_rows(
        self,
        active: ConsumerState,
        batch: EntryBatch,
        rows: list[tuple[int, int, int, int]] | None,
        acked: Sequence[int] | None,
        ack_set_of: AckSets | None,
    ) -> None:
        skip = frozenset(acked) if acked else frozenset()
        first, ledger_id, permits = batch.first, batch.ledger_id, active.permits
        picks: list[int] = []
        markers: list[Position] = []
        ack_sets: dict[int, Sequence[int]] = {}
        chunks, end = 0, len(batch.heads)
        for index in range(end):
            if permits <= 0:
                end = index
                break
            if first + index in skip:
                continue
            cost = 1
            if rows is not None:
                flags, cost, _, _ = rows[index]
                if flags & FLAG_MARKER:
                    markers.append((ledger_id, first + index))
                    continue
                if flags & FLAG_BATCH and ack_set_of is not None:
                    words = ack_set_of((ledger_id, first + index))
                    if words:
                        cost = remaining_messages(words)
                        ack_sets[index] = words
                elif flags & FLAG_CHUNK:
                    chunks += 1
            permits -= cost
            picks.append(index)
        self.read_position = (ledger_id, first + end)
        if markers:
            self._effects.append(SkipEntries(markers))
        if picks:
            messages = active.permits - permits
            active.permits = permits
            self.per_entry += (messages / len(picks) - self.per_entry) / 4
            whole = len(picks) == len(batch.heads)
            shown = None if whole else picks
            self._effects.append(
                Deliver(active, batch, shown, messages, None, ack_sets or None, chunks)
            )

    def sample(self, now_ms: int) -> None:
        position, samples = self.read_position, self._samples
        if position is not None and (not samples or samples[-1][1] < position):
            samples.append((now_ms, position))
            if len(samples) > SAMPLES_MAX:
                del samples[least_needed([ms for ms, _ in samples], now_ms)]

    def explain(
        self, position: Position, head: EntryHeader | None, now_ms: int
    ) -> Explanation | None:
        active = self.active
        if head is not None and head.flags & FLAG_MARKER:
            return explanation.filtered()
        if active is None:
            return None
        if self._switching:
            return explanation.failover_delay(active, self._switch_at_ms, now_ms)
        if self.is_unread(position):
            others = len(self.consumers) - 1
            return explanation.single_active_stall(active, others, failover=self._failover)
        messages = None if head is None else head.message_count
        sent = (ms for ms, end in self._samples if position < end)
        return explanation.pending(
            active,
            now_ms,
            since_ms=next(sent, active.last_consumed_ms),
            redeliveries=0,
            messages=messages,
        )

    def with_standby(self, found: Explanation) -> Explanation:
        others = len(self.consumers) - 1
        if self.active is None or not self._failover or others == 0:
            return found
        return explanation.with_standby(found, f"Consumer {self.active.label}", others)

    def add_stats(self, stats: dict[str, Any], listed: Sequence[ConsumerState]) -> Iterable[None]:
        if self.active is not None:
            stats["activeConsumerName"] = self.active.name
        return ()
