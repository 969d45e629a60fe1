"""What a ledger client and a bookie say to each other, independent of how the bytes travel.

One ``BookieClient`` stands for one bookie: in process (``bookie/in_process_client.py``) or remote
(``transport_grpc/remote_bookie.py``).
Result codes are in ``codes.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

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
    done: Callable[[AddRequest, int], None]  # exactly once, on the loop, with a result code
    # OK as soon as they are accepted, durable only after ``force``.
    deferred_sync: bool = field(default=False, kw_only=True)
    # ``LedgerMetadata.creator_token`` of the ledger that is meant; 0: not known, fits any.
    creator: int = field(default=0, kw_only=True)


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
    """

    code: int
    last_packet: bytes | memoryview | None
    explicit_lac: int
    next_packet: bytes | memoryview | None = None


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """State of a bookie, for placement and operators."""

    bookie_id: str
    read_only: bool
    free_bytes: int
    total_bytes: int


class BookieClient(Protocol):
    """One bookie as its clients see it.

    ``creator``, wherever it is an argument, is the ``creator_token`` of the ledger that is meant. A
    bookie that holds the id's other ledger answers OTHER_CREATOR, or UNKNOWN_LEDGER_STATE while it
    may have lost data of that id. 0: not known, whichever ledger has the id is meant.
    """

    @property
    def bookie_id(self) -> str: ...

    @property
    def is_backlogged(self) -> bool:
        """It answers, but so much waits for it that writers should slow down."""
        ...

    @property
    def pending_requests(self) -> int:
        """Requests that this process sent it and that it hasn't answered, long polls apart."""
        ...

    def add_entries(self, request: AddRequest) -> None:
        """Store entries; ``request.done`` gets OK once all of them are durable."""
        ...

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        """Make durable what it acknowledged of deferred adds, from entry ``first`` on; a code.

        Anything but OK means that some of it may be lost: UNKNOWN_LEDGER_STATE when the bookie was
        started again since it acknowledged ``first``.
        """
        ...

    async def read_entries(
        self,
        ledger_id: int,
        first: int,
        count_max: int,
        bytes_max: int,
        *,
        fence: bool = False,
        master_key: bytes = b"",
        stripe: Stripe = ALL_ENTRIES,
        creator: int = 0,
    ) -> ReadReply:
        """Consecutive packets of ``stripe`` from ``first`` on, which it has.

        At most ``count_max`` packets and ``bytes_max`` bytes, but always the first one when it
        exists. With ``fence`` the ledger is durably fenced before it is read.
        """
        ...

    async def read_heads(
        self,
        ledger_id: int,
        first: int,
        count_max: int,
        head_bytes: int,
        *,
        stripe: Stripe = ALL_ENTRIES,
        bytes_max: int = HEADS_BYTES_MAX,
        creator: int = 0,
    ) -> EntryPrefixesReply:
        """The first ``head_bytes`` bytes of entries from ``first`` on, and the sizes of all.

        Digests were checked by the bookie, over whole entries: of what it read from a disk just
        now, of what is in its memory when that arrived. What it can't vouch for is IO_ERROR, or
        ends the reply if it isn't the first.

        Args:
            count_max: at most so many entries.
            head_bytes: shorter entries come whole.
            stripe: the entries that are meant; it has ``first``.
            bytes_max: entries beyond the first one stop before the reply has this many bytes. A
                bookie may give fewer than asked for: it reads whole entries for them.
        """
        ...

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        """Last packet and explicit LAC; with ``fence`` the ledger is durably fenced before."""
        ...

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        """``read_lac`` without a fence, answered once it tells a LAC above ``above``.

        After ``wait_s`` seconds, or when the ledger is fenced or dropped meanwhile, it answers
        whatever it knows. A ledger this bookie doesn't know yet is waited for, too. Entry
        ``above`` + 1 comes with the answer if the bookie has it in memory.
        """
        ...

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        """Store an explicit last-add-confirmed; a result code."""
        ...

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        """Entry ids this bookie holds, as ascending runs ``(first, end)``, end not in it.

        Raises:
            LedgerError: the bookie can't tell (limbo, I/O error, closed).
        """
        ...

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        """Ids of the ledgers it holds, ascending from ``first`` on, at most ``count_max``.

        Raises:
            LedgerError: the bookie can't tell (closed, unreachable).
        """
        ...

    async def info(self) -> BookieStatus: ...

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        """Say that this bookie's copy of an entry didn't fit its digest; a result code.

        The bookie looks for itself, and repairs what it finds damaged. OK: it will look.
        TOO_MANY_REQUESTS: it has heard of so many that it won't; its scrub will find it.
        """
        ...

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        """What the bookie knows of the state of its data, as JSON (docs/operate/bookies.md).

        Args:
            scrub: begin to read and check everything it holds, now.
            integrity: begin to compare what it should hold with what it holds, now.

        Raises:
            LedgerError: the bookie can't tell (closed, unreachable).
        """
        ...
