"""A bookie for readers of entries: what could change anything is refused.

What stands behind a port that unauthenticated clients reach: entries and last-add-confirmed can be
read there, of the ledgers that the caller may know. Nothing is fenced, so no reader can end a
writer's ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.entry_prefixes import PrefixesFromEntries
from magnetar.bookkeeper.errors import LedgerError, error_for_code
from magnetar.bookkeeper.transport import (
    ALL_ENTRIES,
    AddRequest,
    BookieClient,
    BookieStatus,
    LacReply,
    ReadReply,
    Stripe,
)

ReaderCheck: TypeAlias = "Callable[[int], Awaitable[int]]"
"""Ledger id -> OK, or the code that a caller who may not know the ledger is told."""


class ReadOnlyBookieClient(PrefixesFromEntries):
    """``BookieClient`` of another one, for one caller.

    READ_ONLY is the answer to what would write, UNAUTHORIZED to what isn't about one ledger.

    Args:
        reader_check: asked about each ledger; None: all may be read.
    """

    is_backlogged = False
    pending_requests = 0

    def __init__(self, bookie: BookieClient, reader_check: ReaderCheck | None = None) -> None:
        self._bookie = bookie
        self._reader_check = reader_check

    @property
    def bookie_id(self) -> str:
        return self._bookie.bookie_id

    # ---- what may be read

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
        if (code := await self._refusal(ledger_id, fence=fence)) != codes.OK:
            return ReadReply(code, first, [])
        return await self._bookie.read_entries(
            ledger_id, first, count_max, bytes_max, stripe=stripe, creator=creator
        )

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        if (code := await self._refusal(ledger_id, fence=fence)) != codes.OK:
            return LacReply(code, None, -1)
        return await self._bookie.read_lac(ledger_id, fence=False, creator=creator)

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        if (code := await self._refusal(ledger_id)) != codes.OK:
            return LacReply(code, None, -1)
        return await self._bookie.wait_lac(ledger_id, above, wait_s, creator=creator)

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        if (code := await self._refusal(ledger_id)) != codes.OK:
            raise error_for_code(code, f"list entries of ledger {ledger_id}")
        return await self._bookie.list_entries(ledger_id, creator=creator)

    async def info(self) -> BookieStatus:
        return await self._bookie.info()

    # ---- what is refused

    def add_entries(self, request: AddRequest) -> None:
        # Not at once: callers may rely on an answer coming after the call.
        asyncio.get_running_loop().call_soon(request.done, request, codes.READ_ONLY)

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        return codes.READ_ONLY

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        return codes.READ_ONLY

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        return codes.READ_ONLY

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        raise _not_here("list ledgers")

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        raise _not_here("check data")

    async def _refusal(self, ledger_id: int, *, fence: bool = False) -> int:
        if fence:
            return codes.READ_ONLY
        return codes.OK if self._reader_check is None else await self._reader_check(ledger_id)


def _not_here(what: str) -> LedgerError:
    return error_for_code(codes.UNAUTHORIZED, f"{what} on a port for readers")
