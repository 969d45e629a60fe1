"""Segments of a ledger as fragments: which entries each slot owns, and which may be repaired. Pure.

Entry ``e`` lives on the slots ``e % E, e % E + 1, ...`` (Qw of them, modulo E): slot ``s`` owns the
entries whose remainder lies in ``s - Qw + 1 .. s``. So its share of a fragment is a sequence of
runs of Qw entries, one every E; without striping (E = Qw) it is everything, one run. Nothing here
costs more than the number of runs asked for.

A fragment is *closed* when nobody will ever append to it (docs/spec/storage.md, "Repair"): the
ledger is closed, or another segment follows and the last-add-confirmed has reached this one's end.
The key of the last segment tells so: its writer put it at last confirmed + 1. Going by what bookies
say instead would leave such a fragment open for ever when their LAC lags.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.transport import ALL_ENTRIES, Stripe

Run = tuple[int, int]
"""Consecutive entry ids ``first, end``; end not in it."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One segment of one version of a ledger's metadata.

    Attributes:
        end: first entry that isn't in it; equals ``first_entry`` when it holds none. For the last
            segment of a ledger that isn't closed: ``first_entry``, as nothing in it is certain.
        is_closed: nothing is appended any more: it may be copied.
        is_last: no segment follows.
    """

    ledger_id: int
    first_entry: int
    end: int
    bookies: tuple[str, ...]
    write_quorum: int
    is_closed: bool
    is_last: bool
    creator: int = 0  # the ledger's ``creator_token``

    @property
    def ensemble_size(self) -> int:
        return len(self.bookies)

    def owns(self, slot: int, entry_id: int) -> bool:
        """True if the bookie at ``slot`` should hold the entry."""
        in_range = self.first_entry <= entry_id < self.end
        return in_range and (slot - entry_id) % self.ensemble_size < self.write_quorum

    def runs_of(self, slot: int) -> Iterator[Run]:
        """The entries ``slot`` owns, ascending."""
        size = self.ensemble_size
        if size == self.write_quorum:
            if self.first_entry < self.end:
                yield self.first_entry, self.end
            return
        # The run that the first entry may lie in begins at most E - 1 entries before it.
        begin = self.first_entry - (self.first_entry - (slot - self.write_quorum + 1)) % size
        for start in range(begin, self.end, size):
            first, end = max(start, self.first_entry), min(start + self.write_quorum, self.end)
            if first < end:
                yield first, end

    def stripe_of(self, slot: int) -> Stripe:
        """The entries ``slot`` owns, whatever the fragment's bounds."""
        size = self.ensemble_size
        if size == self.write_quorum:
            return ALL_ENTRIES
        return Stripe(size, (slot - self.write_quorum + 1) % size, self.write_quorum)

    def count_of(self, slot: int) -> int:
        """How many entries ``slot`` owns."""
        return self._count_below(slot, self.end) - self._count_below(slot, self.first_entry)

    def nth_of(self, slot: int, index: int) -> int:
        """The entry at ``index`` (from 0) among those ``slot`` owns. REQUIRES: it has so many."""
        rank = self._count_below(slot, self.first_entry) + index
        size, quorum = self.ensemble_size, self.write_quorum
        # The entries below E that the slot owns, ascending: its run may wrap around.
        below = [e for e in range(size) if (slot - e) % size < quorum]
        return rank // quorum * size + below[rank % quorum]

    def run_end(self, slot: int, entry_id: int) -> int:
        """End of the run of consecutive entries from ``entry_id`` on that ``slot`` owns."""
        size = self.ensemble_size
        if size == self.write_quorum:
            return self.end
        return min(self.end, entry_id + (slot - entry_id) % size + 1)

    def slots_of(self, entry_id: int) -> list[int]:
        """The slots that own the entry, in its write set's order."""
        size = self.ensemble_size
        return [(entry_id + i) % size for i in range(self.write_quorum)]

    def _count_below(self, slot: int, end: int) -> int:
        size, quorum = self.ensemble_size, self.write_quorum
        rest = sum((slot - e) % size < quorum for e in range(end % size))
        return end // size * quorum + rest


def fragments_of(metadata: LedgerMetadata, last_confirmed: int = -1) -> list[Fragment]:
    """All fragments, ascending.

    Args:
        last_confirmed: a lower bound for the last-add-confirmed of a ledger that isn't closed, if
            more is known than its metadata says.
    """
    ledger_closed = metadata.state is LedgerState.CLOSED
    confirmed = max(last_confirmed, metadata.last_segment.first_entry - 1)
    fragments = []
    for index, segment in enumerate(metadata.segments):
        first, is_last = segment.first_entry, index == len(metadata.segments) - 1
        if is_last:
            end = metadata.last_entry + 1 if ledger_closed else first
        else:
            end = metadata.segments[index + 1].first_entry
        is_closed = ledger_closed or (not is_last and confirmed >= end - 1)
        fragments.append(
            Fragment(
                metadata.ledger_id,
                first,
                max(first, end),
                segment.bookies,
                metadata.write_quorum,
                is_closed,
                is_last,
                metadata.creator_token,
            )
        )
    return fragments


def entry_bytes(metadata: LedgerMetadata) -> int:
    """Mean payload bytes of an entry of a closed ledger; 1 when nothing is known."""
    return max(1, metadata.length // max(1, metadata.last_entry + 1))


def subtract_runs(runs: Iterable[Run], held: Iterable[Run]) -> Iterator[Run]:
    """What of ``runs`` isn't in ``held``; both ascending and free of overlaps."""
    rest = iter(held)
    hole = next(rest, None)
    for first, end in runs:
        while first < end:
            while hole is not None and hole[1] <= first:
                hole = next(rest, None)
            if hole is None or hole[0] >= end:
                yield first, end
                break
            if first < hole[0]:
                yield first, hole[0]
            first = hole[1]


def split_runs(runs: Iterable[Run], count_max: int, stripe: Stripe = ALL_ENTRIES) -> Iterator[Run]:
    """The same entries as spans ``first, end``, of which only those of ``stripe`` count.

    Args:
        runs: ascending; all their entries are of ``stripe``. Those that follow each other in it
            come in one span.
        count_max: entries in a span.
    """
    for first, end in _spans(runs, stripe):
        while first < end:
            middle = min(end, stripe.nth(first, count_max))
            yield first, middle
            first = middle


def _spans(runs: Iterable[Run], stripe: Stripe) -> Iterator[Run]:
    pending = iter(runs)
    span = next(pending, None)
    if span is None:
        return
    first, end = span
    for run_first, run_end in pending:
        if run_first != stripe.nth(end - 1, 1):
            yield first, end
            first = run_first
        end = run_end
    yield first, end


def count_entries(runs: Iterable[Run]) -> int:
    return sum(end - first for first, end in runs)


def join_runs(runs: Iterable[Run]) -> list[Run]:
    """Ascending runs with neighbours and overlaps made one."""
    joined: list[Run] = []
    for first, end in sorted(runs):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


@dataclass(slots=True)
class ReplicaCounts:
    """Entries of a fragment (or ledger) that have too few copies; each kind holds the next."""

    under_write_quorum: int = 0
    under_ack_quorum: int = 0
    no_replica: int = 0

    def add(self, other: "ReplicaCounts") -> None:
        self.under_write_quorum += other.under_write_quorum
        self.under_ack_quorum += other.under_ack_quorum
        self.no_replica += other.no_replica


def missing_runs(fragment: Fragment, slot: int, held: Sequence[Run]) -> Iterator[Run]:
    """Entries that the bookie at ``slot`` owns and doesn't hold.

    Takes a step for each run it owns, found or not: one every E entries in a striped ledger.

    Args:
        held: what the bookie has of the ledger, ascending.
    """
    return subtract_runs(fragment.runs_of(slot), held)


def count_replicas(
    missing: Sequence[Sequence[Run]], write_quorum: int, ack_quorum: int
) -> ReplicaCounts:
    """Of one fragment.

    Args:
        missing: by slot, the runs of entries that it owns and doesn't hold.
    """
    edges = sorted(
        edge for runs in missing for first, end in runs for edge in ((first, 1), (end, -1))
    )
    counts = ReplicaCounts()
    absent = at = 0
    for entry_id, step in edges:
        entries = entry_id - at
        if absent:
            counts.under_write_quorum += entries
            if write_quorum - absent < ack_quorum:
                counts.under_ack_quorum += entries
            if absent >= write_quorum:
                counts.no_replica += entries
        absent += step
        at = entry_id
    return counts
