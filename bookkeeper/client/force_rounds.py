"""What a writer of deferred adds may confirm after a ``force``, counted for ``LedgerWriter``. Pure.

A bookie that answers a force vouches for what it had acknowledged before. So an entry counts as
durable on the bookies that acknowledged it *before* the force was sent and then answered the force:
counting force answers alone would count a bookie that never had the entry.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.pending_adds import AddBatch, PendingAdds


@dataclass(slots=True)
class ForceLedger:
    """Ask ``bookie`` to make durable what it acknowledged from ``first`` on.

    Answer: ``LedgerWriter.on_forced`` with this effect. ``number`` tells the rounds apart: a slow
    bookie's answer may come when the next force is under way, of which it knows nothing.
    """

    slot: int
    bookie: str
    first: int
    number: int


@dataclass(slots=True)
class _Round:
    """One force.

    Attributes:
        number: of this force.
        target, length: the last entry that it confirms, and the payload bytes up to it.
        wanted: batches and their acks when the force was sent.
        forced: bit set of the slots that said OK.
        waiting: slots that haven't answered.
    """

    number: int
    target: int
    length: int
    wanted: list[tuple[AddBatch, int]]
    forced: int
    waiting: set[int]


class ForceRounds:
    """Batches that have their quorum in memory, and the force that is under way.

    Attributes:
        last_forced, forced_length: everything up to here is durable on its quorum.
    """

    def __init__(self) -> None:
        self.last_forced = -1
        self.forced_length = 0
        self._unforced: deque[AddBatch] = deque()
        self._round: _Round | None = None
        self._rounds = 0  # so far

    @property
    def is_running(self) -> bool:
        return self._round is not None

    def on_pushed(self, batch: AddBatch) -> None:
        """A batch was sent."""
        self._unforced.append(batch)

    def begin(self, adds: PendingAdds) -> list[ForceLedger]:
        """Force everything that has its quorum by now; empty: there is nothing to force."""
        assert self._round is None, "one round at a time"
        wanted = [(b, b.acks) for b in self._unforced if b.end - 1 <= adds.last_written]
        if not wanted:
            return []
        self._rounds += 1
        sends = [
            ForceLedger(slot, bookie, first, self._rounds)
            for slot, bookie in enumerate(adds.bookies)
            if (first := _first_held(wanted, slot, adds)) is not None
        ]
        self._round = _Round(
            *(self._rounds, adds.last_written, adds.written_length),
            *(wanted, 0, {sent.slot for sent in sends}),
        )
        return sends

    def on_answer(self, sent: ForceLedger, is_ok: bool, adds: PendingAdds) -> bool | None:
        """A bookie answered: True: ``last_forced`` moved; False: it never can; None: wait."""
        current, slot = self._round, sent.slot
        if current is None or sent.number != current.number or slot not in current.waiting:
            return None
        current.waiting.discard(slot)
        if is_ok:
            current.forced |= 1 << slot
        if self._could_be(current.forced, adds):
            self._round = None
            self.last_forced, self.forced_length = current.target, current.length
            while self._unforced and self._unforced[0].end - 1 <= current.target:
                self._unforced.popleft()
            return True
        hopeful = current.forced | sum(1 << waiting for waiting in current.waiting)
        return None if self._could_be(hopeful, adds) else False

    def _could_be(self, forced: int, adds: PendingAdds) -> bool:
        assert self._round is not None
        return all(adds.is_satisfied(batch, acks & forced) for batch, acks in self._round.wanted)


def _first_held(wanted: Sequence[tuple[AddBatch, int]], slot: int, adds: PendingAdds) -> int | None:
    """The lowest of these entries that the slot acknowledged."""
    for batch, acks in wanted:
        if acks >> slot & 1:
            ids = quorum.entries_of(
                slot, batch.first, batch.end, adds.ensemble_size, adds.write_quorum
            )
            if ids:
                return ids[0]
    return None
