"""What a ledger client may ask of a bookie, however the bytes travel."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.entry_prefixes import read_cut, to_heads
from magnetar.bookkeeper.errors import LedgerError, error_for_code
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    EntryPrefixesReply,
    LacReply,
    ReadReply,
    ReadRequest,
    StoredRun,
)


class EntryFiles(Protocol):
    """Files of a bookie that other processes of this machine may read."""

    async def locate(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, creator: int = 0
    ) -> list[StoredRun]:
        """Where entries from ``first`` on lie, one run behind the other, at most up to ``last``.

        Empty: it isn't known, and only `BookieClient.read_entries` tells more.

        Args:
            bytes_max: runs behind the first one stop before this many bytes.
        """


class BookieClient(ABC):
    """One bookie as its clients see it: the bookie itself, one over gRPC, or a view of one.

    What a subclass doesn't have is refused with ``refusal``: as the code of the answer, else as its
    error.

    ``creator``, wherever it is an argument, is the ``creator_token`` of the ledger that is meant. A
    bookie that holds the id's other ledger answers OTHER_CREATOR, or UNKNOWN_LEDGER_STATE while it
    may have lost data of that id. 0: not known, whichever ledger has the id is meant.
    """

    refusal: ClassVar[int] = codes.UNAVAILABLE
    files: "EntryFiles | None" = None
    """Of a bookie in this process: who reads very much reads them elsewhere."""

    @property
    @abstractmethod
    def bookie_id(self) -> str: ...

    @property
    def is_backlogged(self) -> bool:
        """It answers, but so much waits for it that writers should slow down."""
        return False

    @property
    def pending_requests(self) -> int:
        """Requests that this process sent it and that it hasn't answered, long polls apart."""
        return 0

    def add_entries(self, request: AddRequest) -> None:
        """Store entries; ``request.done`` gets OK once all of them are durable.

        It is never called within this call.
        """
        asyncio.get_running_loop().call_soon(request.done, request, self.refusal)

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        """Make durable what it acknowledged of deferred adds, from entry ``first`` on; a code.

        Anything but OK means that some of it may be lost: UNKNOWN_LEDGER_STATE when the bookie was
        started again since it acknowledged ``first``.
        """
        return self.refusal

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        """Consecutive packets, at least the first one when it exists."""
        return ReadReply(self.refusal, request.first, [])

    async def read_heads(self, request: ReadRequest) -> EntryPrefixesReply:
        """The first ``head_bytes`` bytes of entries, and the sizes of all.

        Digests were checked by the bookie, over whole entries: of what it read from a disk just
        now, of what is in its memory when that arrived. What it can't vouch for is IO_ERROR, or
        ends the reply if it isn't the first. A bookie may give fewer than asked for: it reads whole
        entries for them.
        """
        if not request.is_legal:
            return EntryPrefixesReply(codes.BAD_REQUEST, request.first, [], [])
        return to_heads(await read_cut(self.read_entries, request))

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        """Last packet and explicit LAC; with ``fence`` the ledger is durably fenced before."""
        return LacReply(self.refusal, None, -1)

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        """``read_lac`` without a fence, answered once it tells a LAC above ``above``.

        After ``wait_s`` seconds, or when the ledger is fenced or dropped meanwhile, it answers
        whatever it knows. A ledger this bookie doesn't know yet is waited for, too. Entry
        ``above`` + 1 comes with the answer if the bookie has it in memory.
        """
        return LacReply(self.refusal, None, -1)

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        """Store an explicit last-add-confirmed; a result code."""
        return self.refusal

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        """Entry ids this bookie holds, as ascending runs ``(first, end)``, end not in it.

        Raises:
            LedgerError: the bookie can't tell (limbo, I/O error, closed).
        """
        raise self._refused(f"list entries of ledger {ledger_id}")

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        """Ids of the ledgers it holds, ascending from ``first`` on, at most ``count_max``.

        Raises:
            LedgerError: the bookie can't tell (closed, unreachable).
        """
        raise self._refused("list ledgers")

    async def info(self) -> BookieStatus:
        """
        Raises:
            LedgerError: the bookie can't tell.
        """
        raise self._refused("info")

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        """Say that this bookie's copy of an entry didn't fit its digest; a result code.

        The bookie looks for itself, and repairs what it finds damaged. OK: it will look.
        TOO_MANY_REQUESTS: it has heard of so many that it won't; its scrub will find it.
        """
        return self.refusal

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        """What the bookie knows of the state of its data, as JSON (docs/operate/bookies.md).

        Args:
            scrub: begin to read and check everything it holds, now.
            integrity: begin to compare what it should hold with what it holds, now.

        Raises:
            LedgerError: the bookie can't tell (closed, unreachable).
        """
        raise self._refused("check data")

    def _refused(self, what: str) -> LedgerError:
        return error_for_code(self.refusal, f"bookie {self.bookie_id}: {what}")
