"""Entries that are in the journal and not yet in an entry log.

A *chunk* is a run of entries of one ledger in the very buffers that the journal wrote: usually one
request of a client, encoded as one buffer. So adding, reading and flushing cost per request, not
per entry. Holes (entry ids that other bookies of a striped ledger hold) have size 0.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.storage.record_format import RECORD_HEADER_BYTES

HOLES_MAX = 16  # a larger gap between two entries begins a new chunk or run
JOINED = 0
GROWN_ENTRIES_MAX = 64  # of at most 16 KiB each: within what a run may hold
_COPY_BYTES = 16 * 1024  # larger packets are handed out as views, which pin their chunk


class WriteCacheChunk:
    """Entries ``first .. end - 1`` of one ledger as encoded records.

    Attributes:
        sizes: packet bytes per entry id; 0: a hole. Neither first nor last is a hole.
        buffers: one buffer with all records, or one per entry (record), or three (record header,
            head, body).
        parts: buffers per entry, or JOINED.
        bytes: of all records.
    """

    __slots__ = ("buffers", "bytes", "end", "entry_count", "first", "parts", "sizes")

    def __init__(
        self,
        first: int,
        sizes: list[int],
        buffers: list[bytes],
        size: int,
        entry_count: int,
        parts: int,
    ) -> None:
        self.first = first
        self.end = first + len(sizes)
        self.sizes = sizes
        self.buffers = buffers
        self.bytes = size
        self.entry_count = entry_count
        self.parts = parts

    def holds(self, entry_id: int) -> bool:
        return self.first <= entry_id < self.end and self.sizes[entry_id - self.first] > 0

    def packets(
        self, first: int, count_max: int, bytes_max: int, *, at_least_one: bool
    ) -> list[bytes | memoryview]:
        """Packets from ``first`` (which it holds) up to a hole, the end or a limit."""
        sizes = self.sizes
        start = first - self.first
        taken = 0
        for size in sizes[start : start + count_max]:
            if size == 0 or (size > bytes_max and not (at_least_one and taken == 0)):
                break
            bytes_max -= size
            taken += 1
        wanted = sizes[start : start + taken]
        present = start - sizes[:start].count(0)
        if self.parts == 3:
            slots = range(3 * present, 3 * (present + taken), 3)
            return [b"".join(self.buffers[slot + 1 : slot + 3]) for slot in slots]
        if self.parts == 1:
            records = self.buffers[present : present + taken]
            return [record[RECORD_HEADER_BYTES:] for record in records]
        offset = sum(sizes[:start]) + RECORD_HEADER_BYTES * present
        return slice_packets(self.buffers[0], offset, wanted)

    def single(self, entry_id: int) -> "WriteCacheChunk":
        """One of its entries as a chunk of its own."""
        start = entry_id - self.first
        size = self.sizes[start]
        present = start - self.sizes[:start].count(0)
        parts = self.parts
        if parts == JOINED:
            offset = sum(self.sizes[:start]) + RECORD_HEADER_BYTES * present
            buffers = [self.buffers[0][offset : offset + RECORD_HEADER_BYTES + size]]
        else:
            buffers = self.buffers[parts * present : parts * (present + 1)]
        return WriteCacheChunk(entry_id, [size], buffers, RECORD_HEADER_BYTES + size, 1, parts)


def slice_packets(
    data: bytes | memoryview, offset: int, sizes: Sequence[int]
) -> list[bytes | memoryview]:
    """Packets out of joined records; ``offset`` is where the first record begins."""
    packets: list[bytes | memoryview] = []
    view: memoryview | None = None
    for size in sizes:
        offset += RECORD_HEADER_BYTES
        if size <= _COPY_BYTES:
            packets.append(bytes(data[offset : offset + size]))
        else:
            view = view or memoryview(data)
            packets.append(view[offset : offset + size])
        offset += size
    return packets


@dataclass(slots=True)
class LedgerEntries:
    """Chunks of one ledger.

    ``chunks`` is ascending and free of overlap; what arrives out of order (re-sent entries) lies in
    ``late``, newest last, and wins over ``chunks``.
    """

    chunks: list[WriteCacheChunk] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    late: list[WriteCacheChunk] = field(default_factory=list)

    def add(self, chunk: WriteCacheChunk) -> None:
        if self.chunks and chunk.first < self.chunks[-1].end:
            self.late.append(chunk)
        else:
            self.chunks.append(chunk)
            self.firsts.append(chunk.first)

    def find(self, entry_id: int) -> WriteCacheChunk | None:
        for chunk in reversed(self.late):
            if chunk.holds(entry_id):
                return chunk
        index = bisect_right(self.firsts, entry_id) - 1
        if index >= 0 and (chunk := self.chunks[index]).holds(entry_id):
            return chunk
        return None

    def entry_ids(self) -> Iterator[int]:
        for chunk in (*self.chunks, *self.late):
            for entry_id, size in enumerate(chunk.sizes, chunk.first):
                if size:
                    yield entry_id

    def ordered(self) -> list[WriteCacheChunk]:
        """Chunks in ascending order, each entry once, the newest copy."""
        if not self.late:
            return self.chunks
        newest: dict[int, WriteCacheChunk] = {}
        for chunk in (*self.chunks, *self.late):
            for entry_id, size in enumerate(chunk.sizes, chunk.first):
                if size:
                    newest[entry_id] = chunk
        return [newest[entry_id].single(entry_id) for entry_id in sorted(newest)]


class WriteCache:
    """One half of the double buffer. Changed on the loop only; a frozen half is never changed."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerEntries] = {}
        self.bytes = 0
        self.entry_count = 0

    def add(self, ledger_id: int, chunk: WriteCacheChunk) -> None:
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            entries = self.ledgers[ledger_id] = LedgerEntries()
        entries.add(chunk)
        self.bytes += chunk.bytes
        self.entry_count += chunk.entry_count

    def add_record(self, ledger_id: int, entry_id: int, size: int, record: bytes) -> None:
        """A single entry of ``size`` packet bytes; it joins the ledger's last chunk if it can.

        One entry per request is the busiest case: so it leaves no new container behind, which the
        garbage collector would walk again and again.
        """
        entries = self.ledgers.get(ledger_id)
        if entries is not None and entries.chunks:
            chunk = entries.chunks[-1]
            if chunk.end == entry_id and chunk.parts == 1 and chunk.entry_count < GROWN_ENTRIES_MAX:
                chunk.sizes.append(size)
                chunk.buffers.append(record)
                chunk.end = entry_id + 1
                chunk.entry_count += 1
                chunk.bytes += len(record)
                self.bytes += len(record)
                self.entry_count += 1
                return
        self.add(ledger_id, WriteCacheChunk(entry_id, [size], [record], len(record), 1, 1))

    def find(self, ledger_id: int, entry_id: int) -> WriteCacheChunk | None:
        entries = self.ledgers.get(ledger_id)
        return entries.find(entry_id) if entries is not None else None

    def drop(self, ledger_id: int) -> None:
        """Forget a deleted ledger."""
        entries = self.ledgers.pop(ledger_id, None)
        if entries is not None:
            for chunk in (*entries.chunks, *entries.late):
                self.bytes -= chunk.bytes
                self.entry_count -= chunk.entry_count
