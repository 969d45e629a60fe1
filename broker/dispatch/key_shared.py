"""Key_Shared: all entries of a key go to one consumer at a time, in order.

Rules: docs/spec/wire-protocol.md, "Key_Shared". Calls in, effects out. Pending entries,
acknowledgments and redelivery are those of Shared; what is added is the slot. Invariants:

- at most one consumer has pending entries of a slot (unless out-of-order delivery is allowed);
- an entry that can't be sent now is stuck, and with it every later entry of its slot; other slots
  go on. Stuck entries return to the replay queue as one, so the order within a slot is kept;
- new entries are looked at only while the replay queue is empty.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyroaring import BitMap

from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import (
    AckSets,
    ConsumerState,
    DispatchLimits,
    DispatchReadRequest,
    SkipEntries,
    remaining_messages,
)
from magnetar.broker.dispatch.key_selector import KeySelector
from magnetar.broker.dispatch.position_set import PositionSet
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.protocol.entry_header import (
    FLAG_BATCH,
    FLAG_CHUNK,
    FLAG_KEY,
    FLAG_MARKER,
    EntryHeader,
    parse_header,
)
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.position import Position

_LOOK_AHEAD_PER_CONSUMER = 2_000
_LOOK_AHEAD_MAX = 20_000
_HASHES_MAX: Final = 1_000
"""Draining hashes of a consumer that statistics list."""


class KeySharedDispatcher(SharedDispatcher):
    """Assigns by slot instead of by turn."""

    def __init__(
        self,
        limits: DispatchLimits,
        selector: KeySelector,
        hash_of_body: Callable[[Buffer], int],
        *,
        draining: bool,
    ) -> None:
        """Args:
        hash_of_body: key hash of an entry without a key in its head.
        draining: a slot moves to its new owner only when the old one has acknowledged its entries.
        """
        super().__init__(limits)
        self.selector = selector
        self._hash_of_body = hash_of_body
        self._draining = draining
        # With draining only: slots of pending entries, and how many of a slot each consumer has.
        self._slots: dict[int, dict[int, int]] = {}
        self._held: dict[int, dict[ConsumerState, int]] = {}  # one consumer each
        self._stuck: dict[int, PositionSet] = {}  # slot -> entries that can't be sent now
        self._stuck_count = 0
        # Stuck slots that wait for their old owner, and how often an entry of theirs was held back.
        self._moving: dict[int, int] = {}
        self._starved: dict[ConsumerState, set[int]] = {}  # stuck slots that wait for permits

    # --- consumers

    def add_consumer(self, consumer: ConsumerState, now_ms: int = 0) -> None:
        super().add_consumer(consumer)
        self.selector.add(consumer)
        self._release_all()

    def remove_consumer(self, consumer: ConsumerState, now_ms: int = 0) -> None:
        if consumer not in self.consumers:
            return
        self.selector.remove(consumer)
        self._starved.pop(consumer, None)
        super().remove_consumer(consumer)
        self._release_all()

    def rewind(self) -> None:
        super().rewind()
        self._slots.clear()
        self._held.clear()
        self._stuck.clear()
        self._moving.clear()
        self._starved.clear()
        self._stuck_count = 0

    # --- slots

    def _release(self, slot: int) -> None:
        """Look at the stuck entries of a slot again."""
        self._moving.pop(slot, None)
        if (positions := self._stuck.pop(slot, None)) is not None:
            self._stuck_count -= len(positions)
            self.replay.update(positions)
            self.unblocked = True

    def _release_all(self) -> None:
        self._starved.clear()
        for slot in list(self._stuck):
            self._release(slot)

    def _bind_hash(self, slot: int, ledger_id: int, entry_id: int) -> None:
        positions = self._stuck.setdefault(slot, PositionSet())
        if (ledger_id, entry_id) not in positions:
            positions.add(ledger_id, (entry_id,))
            self._stuck_count += 1

    def _forget_sizes(self, ledger_id: int, entries: BitMap) -> int:
        slots = self._slots.get(ledger_id)
        if slots:
            for entry_id in entries:
                if (slot := slots.pop(entry_id, None)) is not None:
                    self._release_hash(slot)
            if not slots:
                del self._slots[ledger_id]
        return super()._forget_sizes(ledger_id, entries)

    def _release_hash(self, slot: int) -> None:
        """One entry of the slot is pending no more; with draining only one consumer has any."""
        held = self._held[slot]
        owner = next(iter(held))
        held[owner] -= 1
        if not held[owner]:
            del held[owner]
            if not held:
                del self._held[slot]
                if slot in self._moving:
                    owner.drained += 1
                    self._release(slot)

    def _on_acked_one(self, consumer: ConsumerState | None, ledger_id: int, entry_id: int) -> int:
        return self._on_acked_many(consumer, ledger_id, BitMap((entry_id,)))

    def on_mark_delete(self, mark_delete: Position) -> None:
        super().on_mark_delete(mark_delete)
        self._release_all()  # what is acknowledged falls out when it is looked at again

    # --- reading and assignment

    def next_read(self) -> DispatchReadRequest | None:
        for consumer in [each for each in self._starved if each.available]:
            for slot in self._starved.pop(consumer):
                self._release(slot)
        request = super().next_read()
        if request is None or request.replay:
            return request
        return None if self._is_too_far_ahead() else request

    def _is_too_far_ahead(self) -> bool:
        ahead = min(_LOOK_AHEAD_PER_CONSUMER * len(self.consumers), _LOOK_AHEAD_MAX)
        return self._stuck_count >= ahead

    def on_entries(
        self,
        request: DispatchReadRequest,
        batch: EntryBatch,
        acked: Sequence[int] | None,
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> None:
        # Older entries joined while this was read: they come first, then it is read again.
        lowest = self.replay.first()
        if lowest is not None and (not request.replay or lowest < (request.position or lowest)):
            return
        super().on_entries(request, batch, acked, ack_set_of, now_ms)

    def _spread(
        self,
        batch: EntryBatch,
        indexes: Sequence[int],
        ack_set_of: AckSets | None,
        now_ms: int,
    ) -> int:
        """Send each entry to the owner of its slot; answers how many indexes are used up."""
        first, ledger_id, room = batch.first, batch.ledger_id, self.room()
        chosen: dict[ConsumerState, list[int]] = {}
        chunks: dict[ConsumerState, int] = {}
        sizes: dict[int, int] = {}
        ack_sets: dict[int, Sequence[int]] = {}
        markers: list[Position] = []
        used = len(indexes)
        for nth, index in enumerate(indexes):
            entry_id = first + index
            head = parse_header(batch.heads[index])
            if head.flags & FLAG_MARKER:
                markers.append((ledger_id, entry_id))
                continue
            if head.deliver_at_ms and self.delay(ledger_id, entry_id, head.deliver_at_ms, now_ms):
                continue
            if room <= 0:
                used = nth
                break
            key_hash = head.key_hash
            if not head.flags & FLAG_KEY:
                key_hash = self._hash_of_body(batch.bodies[index])
            slot = self.selector.slot_of(key_hash)
            if (owner := self._ready_owner(slot)) is None:
                self._bind_hash(slot, ledger_id, entry_id)
                continue
            messages = head.message_count
            if head.flags & FLAG_BATCH:
                if ack_set_of is not None and (words := ack_set_of((ledger_id, entry_id))):
                    ack_sets[index] = words
                    messages = remaining_messages(words)
                sizes[index] = messages
            elif head.flags & FLAG_CHUNK:
                chunks[owner] = chunks.get(owner, 0) + 1
            self._take(slot, owner, ledger_id, entry_id, messages)
            room -= messages
            chosen.setdefault(owner, []).append(index)
        if markers:
            self._effects.append(SkipEntries(markers))
        for owner, picks in chosen.items():
            self.mark_pending(owner, batch, picks, ack_sets, sizes, chunks.get(owner, 0))
        return used

    def _ready_owner(self, slot: int) -> ConsumerState | None:
        """The consumer that may get an entry of this slot now; None: it is stuck, and noted why."""
        if slot in self._stuck:
            if slot in self._moving:
                self._moving[slot] += 1
            return None
        if (owner := self.selector.owner(slot)) is None:
            return None
        held = self._held.get(slot)
        if self._draining and held and owner not in held:
            self._moving[slot] = 1
            return None
        if not owner.available:
            self._starved.setdefault(owner, set()).add(slot)
            return None
        return owner

    def _take(
        self, slot: int, owner: ConsumerState, ledger_id: int, entry_id: int, messages: int
    ) -> None:
        owner.book(messages, self.limits.unacked_per_consumer)
        if self._draining:
            self._slots.setdefault(ledger_id, {})[entry_id] = slot
            held = self._held.setdefault(slot, {})
            held[owner] = held.get(owner, 0) + 1

    def draining(self) -> dict[ConsumerState, list[tuple[int, int, int]]]:
        """By former owner, ascending: slots that wait for it, its pending entries of each, and how
        often others were held back for it.
        """
        found: dict[ConsumerState, list[tuple[int, int, int]]] = {}
        for slot, attempts in sorted(self._moving.items()):
            for owner, entries in self._held.get(slot, {}).items():
                found.setdefault(owner, []).append((slot, entries, attempts))
        return found

    # --- questions

    def next_entry(self, unread: Position | None) -> Position | None:
        return super().next_entry(unread) or self._first_stuck()

    def _first_stuck(self) -> Position | None:
        firsts = [positions.first() for positions in self._stuck.values()]
        return min((each for each in firsts if each is not None), default=None)

    def explain(
        self, position: Position, head: EntryHeader | None, now_ms: int
    ) -> Explanation | None:
        for slot, positions in self._stuck.items():
            if position in positions:
                return self._explain_slot(slot) or self._explain_stall()
        return super().explain(position, head, now_ms)

    def _explain_slot(self, slot: int) -> Explanation | None:
        """Why entries of a stuck slot can't be sent; None: they can, when it is looked at again."""
        owner = self.selector.owner(slot)
        if slot in self._moving:
            former, entries = next(iter(self._held[slot].items()))
            return explanation.draining_hash(slot, former, entries, owner)
        if owner is None:
            return explanation.hash_without_consumer(slot)
        stall = explanation.consumer_stall(owner, self.limits.unacked_per_consumer)
        return None if stall is None else explanation.behind_in_hash(slot, stall)

    def _explain_unread(self) -> Explanation | None:
        if self._is_too_far_ahead():
            first = self._first_stuck()
            assert first is not None
            slot = next(slot for slot, found in self._stuck.items() if first in found)
            if (cause := self._explain_slot(slot)) is not None:
                return explanation.look_ahead_limit(self._stuck_count, cause)
        return super()._explain_unread()

    def add_stats(self, stats: dict[str, Any], listed: Sequence[ConsumerState]) -> Iterator[None]:
        """Also which key hashes each consumer owns, and which wait for their former owner."""
        super().add_stats(stats, listed)
        draining = self.draining()
        stats["drainingHashesCount"] = len(self._moving)
        if not listed:
            held_of_all = (entries for held in draining.values() for _, entries, _ in held)
            stats["drainingHashesUnackedMessages"] = sum(held_of_all)
            stats["drainingHashesClearedTotal"] = sum(each.drained for each in self.consumers)
            return
        ranges = yield from self.selector.ranges()
        for consumer, metrics in zip(listed, stats["consumers"], strict=True):
            held = draining.get(consumer, [])
            unacked = sum(entries for _, entries, _ in held)
            stats["drainingHashesUnackedMessages"] += unacked
            stats["drainingHashesClearedTotal"] += consumer.drained
            metrics["drainingHashesClearedTotal"] = consumer.drained
            metrics["drainingHashesCount"] = len(held)
            metrics["drainingHashesUnackedMessages"] = unacked
            metrics["drainingHashes"] = [
                {"hash": slot, "unackMsgs": entries, "blockedAttempts": attempts}
                for slot, entries, attempts in held[:_HASHES_MAX]
            ]
            metrics["keyHashRangeArrays"] = [list(each) for each in ranges.get(consumer, ())]
            yield

    @property
    def replay_size(self) -> int:
        return super().replay_size + self._stuck_count
