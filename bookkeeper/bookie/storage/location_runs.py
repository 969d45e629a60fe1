"""Runs: where consecutive entries of a ledger lie in an entry log. Pure.

A run covers the entry ids ``first .. end - 1``; ids of size 0 are holes. Its records follow each
other in one log without gaps, so one read brings them all.
"""

from collections.abc import Iterable, Iterator, Sequence

from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES
from magnetar.bookkeeper.bookie.storage.write_cache import HOLES_MAX, WriteCacheChunk


class LocationRun:
    """Location of entries ``first .. first + len(sizes) - 1`` (packet bytes each; 0: a hole)."""

    __slots__ = ("first", "log_id", "offset", "sizes")

    def __init__(self, first: int, log_id: int, offset: int, sizes: Sequence[int]) -> None:
        self.first = first
        self.log_id = log_id
        self.offset = offset
        self.sizes = sizes

    @property
    def end(self) -> int:
        return self.first + len(self.sizes)

    @property
    def bytes(self) -> int:
        """Of all records, headers included."""
        return records_bytes(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocationRun) and (
            self.first == other.first
            and self.log_id == other.log_id
            and self.offset == other.offset
            and list(self.sizes) == list(other.sizes)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable: compared, never a key

    def __repr__(self) -> str:
        return f"Run({self.first}, log={self.log_id}, offset={self.offset}, {list(self.sizes)})"

    def entry_ids(self) -> Iterator[int]:
        return (id_ for id_, size in enumerate(self.sizes, self.first) if size)

    def offset_of(self, entry_id: int) -> int:
        """Where the record of an entry begins."""
        return self.offset + records_bytes(self.sizes[: entry_id - self.first])

    def part(self, first: int, end: int) -> "LocationRun | None":
        """The entries of ``first <= id < end`` without holes at its ends; None: there are none."""
        first, end = max(first, self.first), min(end, self.end)
        sizes = self.sizes
        while first < end and sizes[first - self.first] == 0:
            first += 1
        while first < end and sizes[end - 1 - self.first] == 0:
            end -= 1
        if first >= end:
            return None
        return LocationRun(
            first, self.log_id, self.offset_of(first), sizes[first - self.first : end - self.first]
        )


def records_bytes(sizes: Sequence[int]) -> int:
    return sum(sizes) + RECORD_HEADER_BYTES * (len(sizes) - sizes.count(0))


def overlay(old: Iterable[LocationRun], new: Iterable[LocationRun]) -> list[LocationRun]:
    """Runs after ``new`` ones (free of overlap) were laid over ``old`` ones, ascending.

    A new copy of an entry wins; a hole of a new run hides nothing.
    """
    result = list(old)
    for run in new:
        for piece in _without_holes(run, result):
            kept: list[LocationRun] = []
            for other in result:
                if other.end <= piece.first or other.first >= piece.end:
                    kept.append(other)
                    continue
                parts = (other.part(0, piece.first), other.part(piece.end, other.end))
                kept += [part for part in parts if part is not None]
            kept.append(piece)
            result = kept
    return sorted(result, key=lambda run: run.first)


def _without_holes(run: LocationRun, others: list[LocationRun]) -> Iterator[LocationRun]:
    """The run in pieces without holes, or as it is when nothing else lies in its range."""
    overlaps = any(other.first < run.end and run.first < other.end for other in others)
    if not overlaps or 0 not in run.sizes:
        yield run
        return
    start = 0
    sizes = list(run.sizes)
    while start < len(sizes):
        try:
            hole = sizes.index(0, start)
        except ValueError:
            hole = len(sizes)
        piece = run.part(run.first + start, run.first + hole)
        if piece is not None:
            yield piece
        start = hole + 1


def group_chunks(
    chunks: Iterable[WriteCacheChunk], entries_max: int, bytes_max: int
) -> Iterator[tuple[int, list[int], list[WriteCacheChunk]]]:
    """Ascending chunks gathered into runs: first entry id, sizes with holes, the chunks in it."""
    gathered: list[WriteCacheChunk] = []
    sizes: list[int] = []
    first = size_bytes = 0
    for chunk in chunks:
        if gathered:
            gap = chunk.first - first - len(sizes)
            if (
                gap > HOLES_MAX
                or len(sizes) + gap + len(chunk.sizes) > entries_max
                or size_bytes + chunk.bytes > bytes_max
            ):
                yield first, sizes, gathered
                gathered = []
            else:
                sizes.extend([0] * gap)
        if not gathered:
            first, sizes, size_bytes = chunk.first, [], 0
        gathered.append(chunk)
        sizes += chunk.sizes
        size_bytes += chunk.bytes
    if gathered:
        yield first, sizes, gathered


def to_ranges(ids: set[int]) -> list[tuple[int, int]]:
    """Entry ids as ascending runs ``(first, end)``, end not in it."""
    ranges: list[tuple[int, int]] = []
    first = end = -1
    for entry_id in sorted(ids):
        if entry_id != end:
            if end >= 0:
                ranges.append((first, end))
            first = entry_id
        end = entry_id + 1
    if end >= 0:
        ranges.append((first, end))
    return ranges
