"""Batches on their way to the bookies of one ensemble: sends, acks, replacement, order.

The writer is one (``ledger_writer.py``), and recovery has one for its re-writes
(``ledger_recovery.py``).
Pure: no clock, socket, task or chance.

The unit is the batch that one append brought: one request per bookie, one bit per bookie for its
answer. Nothing here is per entry, except when the ledger is striped (E > Qw) and a bookie's share
of a batch has to be picked out.

The rules that make ensemble changes safe (docs/spec/storage.md, "Ensemble changes"), and where
they are kept:

* While a slot's failure is being handled nothing completes (``frozen``), so that last confirmed + 1
  stays the right key for the new segment until readers can see it.
* A request remembers the *generation* of its slot. Every replacement makes a new generation, so an
  answer counts only for the bookie that is at the slot now; late answers are no-ops.
* A replaced slot loses its ack in every pending batch, also in those that had their quorum: readers
  of the new segment look only at the new bookies.
* First all acks are cleared and all batches re-sent, then one completion pass.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.transport import AddRequest

#: What the acks of an ensemble must span, see ``EnsemblePlacementPolicy.ack_spread``.
SpreadOf: TypeAlias = Callable[[Sequence[str]], "quorum.FaultDomainAckRule | None"]

_BIT: Final = tuple(1 << slot for slot in range(64))
_GENERATIONS: Final = 1 << 20  # more than one object ever counts
_NONE: Final[frozenset[Any]] = frozenset()  # a new empty set is 216 bytes in each idle writer


@dataclass(slots=True, eq=False)
class AddBatch:
    """Consecutive entries [first, end) that were appended together."""

    first: int
    end: int
    heads: list[bytes]
    bodies: list[bytes]
    body_bytes: int  # packet headers, heads and bodies
    length: int  # payload bytes of the ledger up to and with this batch
    acks: int  # bit set of slots whose bookie holds its share of the batch


@dataclass(slots=True, eq=False)
class SendAdds(AddRequest):
    """Effect: hand this request to ``bookie``; answer: ``on_add_done(request, code)``.

    It *is* the transport's request rather than a description of one: building a second object per
    bookie and batch would cost as much as everything else the core does for a small batch.
    """

    slot: int
    generation: int
    bookie: str
    batch: AddBatch


@lru_cache(maxsize=256)
def _rotation_masks(ensemble_size: int, write_quorum: int, start: int, count: int) -> Sequence[int]:
    """Bit sets of the write sets that ``count`` entries from rotation ``start`` on have."""
    sets = quorum.write_sets(ensemble_size, write_quorum)
    return tuple(
        sum(_BIT[slot] for slot in sets[(start + i) % ensemble_size])
        for i in range(min(count, ensemble_size))
    )


@dataclass(slots=True, eq=False, repr=False)
class PendingAdds:
    """Pending batches of one ensemble, confirmed in order once each write set has its quorum.

    Attributes:
        bookies: current ensemble by slot.
        last_written: highest entry that has its quorum, with everything below it.
        written_length: payload bytes of the ledger up to ``last_written``.
        failed: slots whose bookie failed and isn't replaced yet; nothing is sent to them.
        frozen: a replacement is under way: nothing completes.
    """

    ledger_id: int
    quorums: InitVar[tuple[int, int, int]]
    bookies: list[str]
    _master_key: bytes
    _done: Callable[[AddRequest, int], None]
    _: KW_ONLY
    last_written: int = -1
    recovery: bool = False
    deferred_sync: bool = False
    spread_of: SpreadOf | None = None
    creator: int = 0
    generation: InitVar[int] = 0
    ensemble_size: int = field(init=False)
    write_quorum: int = field(init=False)
    ack_quorum: int = field(init=False)
    written_length: int = field(default=0, init=False)
    pending_bytes: int = field(default=0, init=False)
    failed: dict[int, str] = field(default_factory=dict, init=False)
    frozen: bool = field(default=False, init=False)
    # Ascending, without gaps. A list: of an empty deque's 760 bytes every idle writer has one.
    pending: list[AddBatch] = field(default_factory=list, init=False)
    sends: list[SendAdds] = field(default_factory=list, init=False)  # for the shell to take
    _given_up: frozenset[int] = field(default=_NONE, init=False)  # failed without a replacement
    _generations: list[int] = field(init=False)
    _live: tuple[int, ...] = field(init=False)  # slots that are sent to
    _striped: bool = field(init=False)
    _spread: quorum.FaultDomainAckRule | None = field(init=False)
    _only_counts: bool = field(init=False)
    _all_slots: int = field(init=False)

    def __post_init__(self, quorums: tuple[int, int, int], generation: int) -> None:
        self.ensemble_size, self.write_quorum, self.ack_quorum = quorums
        assert len(self.bookies) == self.ensemble_size <= len(_BIT)
        self._generations = [generation * _GENERATIONS] * self.ensemble_size
        self._live = tuple(range(self.ensemble_size))
        self._striped = self.ensemble_size != self.write_quorum
        self._spread = None if self.spread_of is None else self.spread_of(self.bookies)
        self._only_counts = not self._striped and self._spread is None
        self._all_slots = (1 << self.ensemble_size) - 1

    # Adding and answers

    def push(
        self,
        first: int,
        heads: list[bytes],
        bodies: list[bytes],
        payload_bytes: int,
        length: int,
    ) -> AddBatch:
        """Queue encoded entries and send them to every usable bookie of their write sets."""
        count = len(heads)
        batch = AddBatch(
            first,
            first + count,
            heads,
            bodies,
            payload_bytes + PACKET_HEADER_BYTES * count,
            length,
            0,
        )
        self.pending.append(batch)
        self.pending_bytes += batch.body_bytes
        for slot in self._live:
            self._send(batch, slot)
        return batch

    def is_current(self, request: SendAdds) -> bool:
        """False for the answer to a request that went to an earlier bookie of the slot."""
        return self._generations[request.slot] == request.generation

    def on_stored(self, request: SendAdds) -> bool:
        """A bookie holds its share; True if ``last_written`` moved."""
        if self._generations[request.slot] != request.generation:
            return False
        batch = request.batch
        batch.acks |= _BIT[request.slot]
        return bool(self.pending) and self.pending[0] is batch and self.complete()

    def is_satisfied(self, batch: AddBatch, acks: int | None = None) -> bool:
        """True if every entry of the batch has (or, given ``acks``, could have) its quorum.

        That is Qa copies, in several zones if they must be spread.
        """
        acks = batch.acks if acks is None else acks
        if self._only_counts:
            return acks.bit_count() >= self.ack_quorum
        spread = self._spread
        masks: Sequence[int] = (self._all_slots,)
        if self._striped:
            masks = _rotation_masks(
                self.ensemble_size,
                self.write_quorum,
                batch.first % self.ensemble_size,
                min(batch.end - batch.first, self.ensemble_size),
            )
        if spread is None:
            return all((acks & mask).bit_count() >= self.ack_quorum for mask in masks)
        return all(
            (acks & mask).bit_count() >= self.ack_quorum and spread.is_wide(acks, mask)
            for mask in masks
        )

    def complete(self) -> bool:
        """Confirm from the head of the queue as far as quorums reach; True if any was."""
        if self.frozen:
            return False
        pending, before = self.pending, self.last_written
        whole = 0
        for batch in pending:
            if not self.is_satisfied(batch):
                break
            whole += 1
            self.last_written = batch.end - 1
            self.written_length = batch.length
            self.pending_bytes -= batch.body_bytes
        del pending[:whole]
        return self.last_written != before

    def drop_pending(self) -> int:
        """Forget everything unconfirmed (its fate is unknown); the number of entries dropped."""
        dropped = self.pending[-1].end - self.pending[0].first if self.pending else 0
        self.pending.clear()
        self.sends.clear()
        self.pending_bytes = 0
        self._generations = [generation + 1 for generation in self._generations]
        return dropped

    # Failure and replacement

    def fail(self, slot: int) -> None:
        """The slot's bookie can't be used: freeze, and send it nothing more."""
        self.frozen = True
        self.failed[slot] = self.bookies[slot]
        self._find_live()

    def replace(self, bookies: Sequence[str], retry: Iterable[int] = ()) -> None:
        """``bookies`` is the ensemble now: send every pending batch to each newcomer.

        Stays frozen while other slots have failed meanwhile; ``complete`` must follow.

        Args:
            retry: failed slots that keep their bookie; what it hasn't acknowledged is re-sent.
        """
        replaced = [slot for slot, bookie in enumerate(bookies) if self.bookies[slot] != bookie]
        again = [slot for slot in retry if slot not in replaced and slot in self.failed]
        for slot in (*replaced, *again):
            self._generations[slot] += 1
            self.failed.pop(slot, None)
        kept = ~sum(_BIT[slot] for slot in replaced)
        self.bookies = list(bookies)
        if self.spread_of is not None:
            self._spread = self.spread_of(bookies)
            self._only_counts = not self._striped and self._spread is None
        self._given_up = (self._given_up - set(replaced)) or _NONE
        self._find_live()
        self.frozen = bool(self.failed)
        for batch in self.pending:
            batch.acks &= kept
            for slot in (*replaced, *again):
                if not batch.acks & _BIT[slot]:
                    self._send(batch, slot)

    def give_up(self, slots: Iterable[int]) -> bool:
        """Go on without these slots' bookies; False if some pending batch needs one of them."""
        for slot in slots:
            self.failed.pop(slot, None)
            self._given_up |= {slot}
        self._find_live()
        self.frozen = bool(self.failed)
        return self.can_reach_quorum()

    def can_reach_quorum(self) -> bool:
        """True if every pending batch has or may still get its acks: only given-up slots can't."""
        if not self._given_up:
            return True
        possible = ~sum(_BIT[slot] for slot in self._given_up) & self._all_slots
        return all(self.is_satisfied(batch, batch.acks | possible) for batch in self.pending)

    def _find_live(self) -> None:
        unusable = self.failed.keys() | self._given_up
        self._live = tuple(s for s in range(self.ensemble_size) if s not in unusable)

    def _send(self, batch: AddBatch, slot: int) -> None:
        ids: range | list[int]
        if self._striped:
            ids = quorum.entries_of(
                slot, batch.first, batch.end, self.ensemble_size, self.write_quorum
            )
            if not ids:
                return
            heads = [batch.heads[entry_id - batch.first] for entry_id in ids]
            bodies = [batch.bodies[entry_id - batch.first] for entry_id in ids]
            body_bytes = sum(map(len, heads)) + sum(map(len, bodies))
        else:
            ids, heads, bodies = range(batch.first, batch.end), batch.heads, batch.bodies
            body_bytes = batch.body_bytes
        self.sends.append(
            SendAdds(
                self.ledger_id,
                self._master_key,
                ids,
                heads,
                bodies,
                body_bytes,
                self.recovery,
                self._done,
                slot,
                self._generations[slot],
                self.bookies[slot],
                batch,
                creator=self.creator,
            )
        )
        if self.deferred_sync:
            self.sends[-1].deferred_sync = True
