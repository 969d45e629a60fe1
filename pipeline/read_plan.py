"""Which Spark task reads which entries. Pure.

A slice is a run of pieces of one partition's ledgers, in order. How a *stream's* batch is cut
depends on nothing but its two ends and numbers of entries that can't change any more: a batch that
is repeated after a crash is cut into the same slices, or the sink couldn't know its rows again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from magnetar.pipeline.errors import DataLossError
from magnetar.pipeline.offsets import BEGINNING, Offset, Offsets
from magnetar.pipeline.topic_snapshot import CompactedPart, TopicLedger, TopicSnapshot


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries ``first <= entry < end`` of one ledger.

    Attributes:
        first_batch: messages of ``first`` below this index are left out.
        end_batch: above 0: ``end - 1`` is cut: its messages from this index on are left out.
        points: of a compacted ledger: its entries stand for messages of the topic between them.
    """

    ledger: TopicLedger
    first: int
    end: int
    first_batch: int = 0
    end_batch: int = 0
    points: tuple[Offset, Offset] | None = None

    @property
    def start_point(self) -> Offset:
        if self.points is not None:
            return self.points[0]
        return Offset(self.ledger.ledger_id, self.first, self.first_batch)

    @property
    def end_point(self) -> Offset:
        if self.points is not None:
            return self.points[1]
        if self.end_batch:
            return Offset(self.ledger.ledger_id, self.end - 1, self.end_batch)
        return Offset(self.ledger.ledger_id, self.end)

    @property
    def entries(self) -> int:
        return self.end - self.first

    @property
    def size(self) -> float:
        """Bytes, about."""
        return self.entries * self.ledger.entry_bytes


@dataclass(frozen=True, slots=True)
class InputSplit:
    """One Spark task reads this; Spark pickles it to the task.

    Attributes:
        topic: full name of the partition, as the broker knows it.
        pieces: in ascending order, none empty.
        bookies: those that hold the pieces: id -> host and port.
        begin: of a stream: where the batch begins, of which this is a slice.
        compacted: pieces may be of it, and messages may begin in it.
    """

    topic: str
    pieces: tuple[EntryRange, ...]
    bookies: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    instance_id: str = ""
    bookie_token: str = field(default="", repr=False)
    bookie_protocol: str = ""
    begin: Offset = BEGINNING
    compacted: CompactedPart | None = None

    @property
    def entries(self) -> int:
        return sum(piece.entries for piece in self.pieces)


def lost_before(snapshot: TopicSnapshot, start: Offset) -> str:
    """Why messages from ``start`` on are not all stored any more; "": they are.

    `BEGINNING` is never a loss: it is whatever is there. Nor is what a compaction took away.
    """
    if start == BEGINNING or start >= snapshot.first:
        return ""
    if snapshot.compacted is not None and start <= snapshot.compacted.horizon:
        return ""
    return (
        f"{snapshot.topic}: messages from {start} to {snapshot.first} were asked for, "
        "but are not stored any more"
    )


def entry_ranges_between(snapshot: TopicSnapshot, start: Offset, end: Offset) -> list[EntryRange]:
    """The stored entries between two points, ledger by ledger.

    Raises:
        DataLossError: a ledger is listed whose entries don't reach as far as they must.
    """
    start, end = max(start, snapshot.first), min(end, snapshot.end)
    pieces = []
    for ledger in snapshot.ledgers[snapshot.index_from(start.ledger_id) :]:
        if (ledger.ledger_id, 0) > end[:2] or start >= end:
            break
        first, first_batch, stop, stop_batch = 0, 0, ledger.entries, 0
        if ledger.ledger_id == start.ledger_id:
            first, first_batch = start.entry_id, start.batch_index
        if ledger.ledger_id == end.ledger_id:
            stop, stop_batch = end.entry_id + (end.batch_index > 0), end.batch_index
            if stop > ledger.entries:
                raise DataLossError(
                    f"{snapshot.topic}: ledger {ledger.ledger_id} has {ledger.entries} entries, "
                    f"but should have {stop}"
                )
        if first < stop:
            pieces.append(EntryRange(ledger, first, stop, first_batch, stop_batch))
    return pieces


def compacted_ranges_between(
    snapshot: TopicSnapshot, start: Offset, end: Offset, found: tuple[int, int]
) -> list[EntryRange]:
    """What readers of the compacted view read between two points: entries of the compacted ledger,
    then those of the log behind the horizon.

    REQUIRES: ``snapshot.compacted``.

    Args:
        found: the first entry of the compacted ledger that is wanted, and the one after the last.

    Raises:
        DataLossError: as `entry_ranges_between`.
    """
    compacted = snapshot.compacted
    assert compacted is not None
    pieces = []
    if found[0] < found[1]:
        points = (start, min(end, compacted.horizon))
        pieces.append(EntryRange(compacted.ledger, *found, points=points))
    return pieces + entry_ranges_between(snapshot, max(start, compacted.horizon), end)


def narrow_by_id(
    pieces: Iterable[EntryRange], ledger_ids: tuple[int, int], entry_ids: tuple[int, int]
) -> list[EntryRange]:
    """The pieces of ledgers within the range (inclusive), without holes between them: a message in
    chunks may be on both sides of one. Entry ids narrow a single ledger only. Of a compacted ledger
    nothing is left out: it has entries of many.
    """
    kept = [
        piece
        for piece in pieces
        if piece.points is not None or ledger_ids[0] <= piece.ledger.ledger_id <= ledger_ids[1]
    ]
    if ledger_ids[0] != ledger_ids[1]:
        return kept
    result = []
    for piece in kept:
        if piece.points is not None:
            result.append(piece)
            continue
        first, end = max(piece.first, entry_ids[0]), min(piece.end, entry_ids[1] + 1)
        if first < end:
            result.append(
                EntryRange(
                    *(piece.ledger, first, end),
                    piece.first_batch if first == piece.first else 0,
                    piece.end_batch if end == piece.end else 0,
                )
            )
    return result


def narrow_by_time(
    pieces: Sequence[EntryRange], first_ms: int, last_ms: int, clock_skew_ms: int
) -> list[EntryRange]:
    """Without the ledgers at both ends that can't hold a publish time of the range.

    A ledger was written between its creation and its end by the broker's clock; what it holds may
    be off by ``clock_skew_ms``, as producers have clocks of their own.
    """
    kept = [
        index
        for index, piece in enumerate(pieces)
        if (piece.ledger.created_ms < 0 or piece.ledger.created_ms - clock_skew_ms <= last_ms)
        and (not piece.ledger.closed_ms or piece.ledger.closed_ms + clock_skew_ms >= first_ms)
    ]
    return list(pieces[kept[0] : kept[-1] + 1]) if kept else []


def entries_of(pieces: Iterable[EntryRange]) -> int:
    return sum(piece.entries for piece in pieces)


def cut_by_size(
    ranges: Sequence[tuple[TopicSnapshot, Sequence[EntryRange]]], bytes_max: int, slices_min: int
) -> list[InputSplit]:
    """Slices of about equal size for a batch, none much above ``bytes_max``.

    Small ledgers of one partition share a slice; large ones are cut.
    """
    total = sum(piece.size for _, pieces in ranges for piece in pieces)
    if slices_min:
        bytes_max = min(bytes_max, max(1, int(total / slices_min)))
    slices = []
    for snapshot, pieces in ranges:
        size = sum(piece.size for piece in pieces)
        count = max(1, round(size / bytes_max)) if size > bytes_max else 1
        slices += _cut(snapshot, pieces, count)
    if len(slices) < slices_min:  # rounding, or many small partitions: by entries then
        slices = cut_by_count(ranges, slices_min)
    return slices


def cut_by_count(
    ranges: Sequence[tuple[TopicSnapshot, Sequence[EntryRange]]], slices_min: int
) -> list[InputSplit]:
    """Slices by numbers of entries alone: one for a partition, more where ``slices_min`` asks."""
    total = sum(entries_of(pieces) for _, pieces in ranges)
    slices = []
    for snapshot, pieces in ranges:
        share = entries_of(pieces) * slices_min
        slices += _cut(snapshot, pieces, max(1, -(-share // total) if total else 1))
    return slices


def _cut(snapshot: TopicSnapshot, pieces: Sequence[EntryRange], count: int) -> list[InputSplit]:
    """At most ``count`` slices with equally many entries."""
    left = entries_of(pieces)
    count = min(count, left)
    waiting = list(reversed(pieces))
    slices = []
    for number in range(count, 0, -1):
        room = -(-left // number)
        left -= room
        taken = []
        while room:
            piece = waiting.pop()
            if piece.entries > room:
                middle = piece.first + room
                waiting.append(replace(piece, first=middle, first_batch=0))
                piece = replace(piece, end=middle, end_batch=0)
            taken.append(piece)
            room -= piece.entries
        slices.append(_slice(snapshot, tuple(taken)))
    return slices


def _slice(snapshot: TopicSnapshot, pieces: tuple[EntryRange, ...]) -> InputSplit:
    wanted = {
        bookie
        for piece in pieces
        if piece.ledger.metadata is not None
        for segment in piece.ledger.metadata.segments
        for bookie in segment.bookies
    }
    return InputSplit(
        snapshot.topic,
        pieces,
        {name: place for name, place in snapshot.bookies.items() if name in wanted},
        snapshot.instance_id,
        snapshot.bookie_token,
        snapshot.bookie_protocol,
        compacted=snapshot.compacted,
    )


def cut_step(
    waiting: Mapping[str, tuple[Sequence[EntryRange], Offset]], bytes_max: int
) -> tuple[Offsets, int]:
    """Where the next run ends: the same share of each partition, so that times stay together.

    Args:
        waiting: by partition what is left of it (not empty), and where that ends.
        bytes_max: of all partitions together, about. At least one entry of each is taken.
    Returns:
        End by partition, and bytes up to there, about.
    """
    total = sum(piece.size for pieces, _ in waiting.values() for piece in pieces)
    if total <= bytes_max:
        return {name: end for name, (_, end) in waiting.items()}, int(total)
    share = bytes_max / total
    ends: Offsets = {}
    taken = 0.0
    for name, (pieces, end) in waiting.items():
        room = share * sum(piece.size for piece in pieces)
        ends[name], size = _walk(pieces, end, room)
        taken += size
    return ends, int(taken)


def _walk(pieces: Sequence[EntryRange], end: Offset, room: float) -> tuple[Offset, float]:
    size = 0.0
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        entry = piece.ledger.entry_bytes
        if size + piece.size <= room:
            size += piece.size
            if is_last:
                return end, size
            continue
        fits = int((room - size) / entry) if entry else piece.entries
        if fits == 0 and size:  # at the end of the ledger before
            break
        fits = max(1, min(fits, piece.entries))
        if is_last and fits == piece.entries:
            return end, size + piece.size
        return Offset(piece.ledger.ledger_id, piece.first + fits), size + fits * entry
    before = pieces[number - 1]
    return Offset(before.ledger.ledger_id, before.end), size


@dataclass(frozen=True, slots=True)
class BatchQuota:
    """The limits of one partition; None: as much as there is."""

    messages: int | None = None
    size: int | None = None


def shares_of(
    available: Mapping[str, tuple[int, int]], messages_max: int, bytes_max: int
) -> dict[str, BatchQuota]:
    """Each partition's part of a batch's limits, in proportion to what waits in it.

    Limits count messages and bytes; what can be taken are whole entries, so a batch may exceed its
    limit by what one entry of each partition holds. Every partition with something to read gets at
    least one entry: none starves behind a large one.

    Args:
        available: partition -> entries and bytes that wait.
        messages_max, bytes_max: of all together; 0: no limit.
    """
    entries = sum(count for count, _ in available.values())
    size = sum(each for _, each in available.values())
    return {
        name: BatchQuota(
            max(1, messages_max * count // entries) if messages_max and entries else None,
            max(1, bytes_max * each // size) if bytes_max and size else None,
        )
        for name, (count, each) in available.items()
    }


class EntryIterator:
    """Goes along a partition's entries until its share is used up.

    Attributes:
        entries: taken so far.
        messages, size: in them.
        is_full: the next entry isn't taken.
    """

    __slots__ = ("_share", "entries", "is_full", "messages", "size")

    def __init__(self, share: BatchQuota) -> None:
        self._share = share
        self.entries = self.messages = self.size = 0
        self.is_full = False

    def take(self, counts: Sequence[int], sizes: Sequence[int]) -> int:
        """How many of the next entries are taken: up to the one that uses up the share.

        Args:
            counts, sizes: messages and bytes of each.
        """
        messages_max, bytes_max = self._share.messages, self._share.size
        taken = 0
        for count, size in zip(counts, sizes, strict=True):
            if self.is_full:
                break
            over_messages = messages_max is not None and self.messages + count > messages_max
            over_bytes = bytes_max is not None and self.size + size > bytes_max
            if self.entries and (over_messages or over_bytes):
                self.is_full = True
                break
            self.entries += 1
            taken += 1
            self.messages += count
            self.size += size
            self.is_full = self.messages == messages_max or (
                bytes_max is not None and self.size >= bytes_max
            )
        return taken
