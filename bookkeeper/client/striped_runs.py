"""How a striped ledger (E > Qw) is read: stripes that one bookie holds in full. Pure.

A bookie of a striped ensemble holds at most Qw entries in a row, then it lacks some, and so on.
Several bookies are asked at the same time, each for a stripe of all that is wanted, and what they
give is put together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.transport import ALL_ENTRIES, Stripe

T = TypeVar("T")


@dataclass(slots=True)
class SlotRun:
    """Entries [first, end), all of them held by the bookie at ``slot``."""

    slot: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class StripeRead:
    """What one bookie is asked for: the entries of ``stripe`` from ``first`` on.

    Attributes:
        slots: to ask, in order. All hold ``first``, and the first one the whole stripe.
    """

    slots: Sequence[int]
    first: int
    stripe: Stripe

    def end_at(self, slot: int, end: int, quorums: tuple[int, int]) -> int:
        """Up to where the slot is asked: it may hold fewer in a row, behind which the read ends."""
        if slot == self.slots[0]:
            return end
        row_end = self.first + self.stripe.width
        held = held_end(slot, self.first, row_end, *quorums)
        return min(end, held) if held < row_end else end


def plan_parts(
    first: int,
    end: int,
    quorums: tuple[int, int],
    order: Callable[[Sequence[int]], Sequence[int]],
    *,
    shift: int = 0,
    wanted: Stripe = ALL_ENTRIES,
) -> list[StripeRead]:
    """Parts that together are all entries ``first <= id < end``, in the order of their first ones.

    Args: as those of ``plan_runs``, and
        wanted: only entries of it, of which ``first`` is one.
    """
    cycle, parts = quorums[0], []
    for row_first, row_end in wanted.rows(first, min(end, first + cycle)):
        for run in plan_runs(row_first, row_end, quorums, order, runs_max=cycle, shift=shift):
            others = [slot for slot in quorum.write_set(run.first, *quorums) if slot != run.slot]
            stripe = Stripe(cycle, run.first % cycle, run.end - run.first)
            parts.append(StripeRead((run.slot, *order(others)), run.first, stripe))
    return parts


def put_together(
    found: Iterable[tuple[Stripe, Iterable[T]]], entry_ids: Iterable[int], cycle: int
) -> list[T]:
    """Entries of stripes in the order of ``entry_ids``, up to the first that is missing.

    Args:
        found: stripes and their entries, from the lowest of ``entry_ids`` on that each has; a
            stripe that isn't there is missing.
        entry_ids: ascending.
    """
    by_place: list[Iterator[T]] = [iter(())] * cycle
    for stripe, entries in found:
        shared = iter(entries)
        for place in range(stripe.offset, stripe.offset + stripe.width):
            by_place[place % cycle] = shared
    together: list[T] = []
    for entry_id in entry_ids:
        try:
            together.append(next(by_place[entry_id % cycle]))
        except StopIteration:
            break
    return together


def held_end(slot: int, first: int, end: int, ensemble_size: int, write_quorum: int) -> int:
    """End of the entries from ``first`` on, up to ``end``, that the slot holds without a gap."""
    while first < end and quorum.has_entry(first, slot, ensemble_size, write_quorum):
        first += 1
    return first


def plan_runs(
    first: int,
    end: int,
    quorums: tuple[int, int],
    order: Callable[[Sequence[int]], Sequence[int]],
    *,
    runs_max: int,
    shift: int = 0,
) -> list[SlotRun]:
    """Runs that follow each other from ``first`` on; at most ``runs_max``, not beyond ``end``.

    Args:
        quorums: E and Qw.
        order: puts the slots of an entry in order of preference; the first one gets the run.
        shift: makes the first run this much shorter (modulo Qw), so that readers of different
            ledgers don't all ask the same bookies of an ensemble whose Qw divides E.
    """
    ensemble_size, write_quorum = quorums
    runs: list[SlotRun] = []
    while first < end and len(runs) < runs_max:
        # The last slot of the write set holds the longest run, so it goes first into the order.
        slots = quorum.write_set(first, ensemble_size, write_quorum)[::-1]
        if shift:
            turn = shift % write_quorum
            slots = slots[turn:] + slots[:turn]
            shift = 0
        slot = order(slots)[0]
        run_end = held_end(slot, first, end, ensemble_size, write_quorum)
        runs.append(SlotRun(slot, first, run_end))
        first = run_end
    return runs
