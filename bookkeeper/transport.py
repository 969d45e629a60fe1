"""What a ledger client and a bookie say to each other, independent of how the bytes travel.

What may be asked of a bookie is in ``bookie_client.py``, result codes are in ``codes.py``.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

HEADS_BYTES_MAX: Final = 1024 * 1024
"""Of a reply with heads, unless another limit is given."""


@dataclass(slots=True, eq=False)
class AddRequest:
    """Entries of one ledger for one bookie; accepted or refused as a whole.

    The lists belong to the bookie until ``done`` was called, and the buffers must never change: the
    bookie serves reads from the very same objects.
    """

    ledger_id: int
    master_key: bytes  # 20 bytes; all zero: the ledger has no password
    entry_ids: Sequence[int]  # ascending; a range when contiguous
    heads: list[bytes]  # packet header (36 bytes) followed by the application's head
    bodies: list[bytes]
    body_bytes: int  # sum of len(head) + len(body)
    recovery: bool  # passes the fence
    done: "Callable[[AddRequest, int], None]"  # exactly once, on the loop, with a result code
    # OK as soon as they are accepted, durable only after ``force``.
    deferred_sync: bool = field(default=False, kw_only=True)
    # ``LedgerMetadata.creator_token`` of the ledger that is meant; 0: not known, fits any.
    creator: int = field(default=0, kw_only=True)

    @property
    def has_priority(self) -> bool:
        """A bookie that refuses others for want of space takes it, as long as it has a reserve."""
        return self.recovery


@dataclass(slots=True)
class ReadReply:
    """Consecutive packets (of a stripe) from ``first`` on; an empty list unless ``code`` is OK."""

    code: int
    first: int
    packets: list[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Stripe:
    """Entry ids ``offset .. offset + width - 1`` of every ``cycle``; by default all of them.

    A bookie of a striped ledger (E > Qw) holds such ids. Who names them reads what it holds in one
    request, instead of one for each few entries in a row.
    """

    cycle: int = 1
    offset: int = 0
    width: int = 1

    @property
    def is_legal(self) -> bool:
        return 0 <= self.offset < self.cycle < 1 << 16 and 0 < self.width <= self.cycle

    def has(self, entry_id: int) -> bool:
        return (entry_id - self.offset) % self.cycle < self.width

    def run_end(self, entry_id: int, end: int) -> int:
        """End of the ids in a row from ``entry_id`` on, which it has; at most ``end``."""
        if self.width == self.cycle:
            return end
        return min(end, entry_id + self.width - (entry_id - self.offset) % self.cycle)

    def nth(self, first: int, number: int) -> int:
        """The id that comes ``number`` ids of it after ``first``, which it has."""
        place = (first - self.offset) % self.cycle
        cycles, rest = divmod(place + number, self.width)
        return first - place + cycles * self.cycle + rest

    def count(self, first: int, end: int) -> int:
        """How many ids from ``first`` on, which it has, are below ``end``."""
        cycles, rest = divmod(end - first, self.cycle)
        place = (first - self.offset) % self.cycle
        # What is left is less than a cycle: the end of this run, and perhaps some of the next.
        here = min(rest, self.width - place)
        return cycles * self.width + here + max(0, place + rest - self.cycle)

    def rows(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Its ids from ``first`` on, which it has, below ``end``, as runs of ids in a row."""
        while first < end:
            row_end = self.run_end(first, end)
            yield first, row_end
            first = self.nth(row_end - 1, 1)

    def ids(self, first: int) -> Iterator[int]:
        """All of it from ``first`` on, which it has."""
        gap = self.cycle - self.width
        if not gap:
            return itertools.count(first)
        return self._rows(first, gap)

    def _rows(self, first: int, gap: int) -> Iterator[int]:
        end = self.run_end(first, first + self.cycle)
        while True:
            yield from range(first, end)
            first, end = end + gap, end + self.cycle


ALL_ENTRIES: Final = Stripe()


@dataclass(slots=True)
class ReadRequest:
    """Entries of one ledger that are asked for, see ``BookieClient``.

    Attributes:
        first, count_max: consecutive ones of ``stripe``, which has ``first``.
        bytes_max: the reply stops before it has so many, but not before the first one.
        fence, master_key: the ledger is durably fenced before it is read.
        head_bytes: of ``read_heads``: so much of each entry; a shorter one comes whole.
        creator: see ``BookieClient``.
    """

    ledger_id: int
    first: int
    count_max: int
    bytes_max: int = HEADS_BYTES_MAX
    fence: bool = False
    master_key: bytes = b""
    stripe: Stripe = ALL_ENTRIES
    head_bytes: int | None = None  # neither this nor another stripe with a fence
    creator: int = 0

    @property
    def is_legal(self) -> bool:
        stripe = self.stripe
        return (
            self.first >= 0
            and self.count_max > 0
            and (self.head_bytes is None or self.head_bytes >= 0)
            and stripe.is_legal
            and stripe.has(self.first)
        )


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Where consecutive entries of a ledger lie in a file of this machine, one record behind the
    other.

    Attributes:
        path: absolute; the file may be removed at any time.
        offset: of the first record.
        sizes: of their packets, in bytes.
        is_cached: the page cache holds them for others, too; else it needn't once they were read.
    """

    ledger_id: int
    first: int
    path: str
    offset: int
    sizes: Sequence[int]
    is_cached: bool = True


@dataclass(slots=True)
class EntryPrefixesReply:
    """Beginnings of consecutive entries (of a stripe) from ``first`` on, as two parallel lists.

    Attributes:
        heads: of each entry its first bytes, without the packet header.
        sizes: bytes of each whole entry, without the packet header.
    """

    code: int
    first: int
    heads: list[bytes]
    sizes: list[int]


@dataclass(slots=True)
class TruncatedReply:
    """Cut packets of consecutive entries (of a stripe) from ``first`` on; empty unless OK.

    Attributes:
        packets: header and the first bytes of each entry.
        sizes: bytes of each whole packet.
    """

    code: int
    first: int
    packets: list[bytes]
    sizes: list[int]


@dataclass(slots=True)
class LacReply:
    """What a bookie knows about a ledger's end.

    Attributes:
        last_packet: packet with the highest entry id this bookie holds; None: it holds none.
        explicit_lac: highest last-add-confirmed sent without an entry; -1: none.
        next_packet: of the entry after the one that a long poll waited above, if it is there.
        lac_digest: with which ``explicit_lac`` came, if it isn't CRC32C; in the bookie's process.
    """

    code: int
    last_packet: bytes | memoryview | None
    explicit_lac: int
    next_packet: bytes | memoryview | None = None
    lac_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """State of a bookie, for placement and operators.

    Attributes:
        clock_ms: of its machine, since 1970; 0: not told, as by one in this process.
        version: of its release; "": not told.
        add_p50_us: half of the entries of the last minute or two were on disk within this time.
        add_p99_us: 99 of 100. Both 0: there were none, or the bookie is older than December 2026.
    """

    bookie_id: str
    read_only: bool
    free_bytes: int
    total_bytes: int
    clock_ms: int = 0
    version: str = ""
    add_p50_us: int = 0
    add_p99_us: int = 0
