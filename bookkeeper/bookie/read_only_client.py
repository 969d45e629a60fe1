"""A bookie for readers of entries: what could change anything is refused.

What stands behind a port that unauthenticated clients reach: entries and last-add-confirmed can be
read there, of the ledgers that the caller may know. Nothing is fenced, so no reader can end a
writer's ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import LedgerError, error_for_code
from magnetar.bookkeeper.transport import (
    BookieStatus,
    LacReply,
    ReadReply,
    ReadRequest,
)

ReaderCheck: TypeAlias = "Callable[[int], Awaitable[int]]"
"""Ledger id -> OK, or the code for a caller that may not know the ledger."""


class ReadOnlyBookieClient(BookieClient):
    """``BookieClient`` of another one, for one caller.

    READ_ONLY is the answer to what would write, UNAUTHORIZED to what isn't about one ledger.

    Args:
        reader_check: asked about each ledger; None: all may be read.
    """

    refusal = codes.READ_ONLY

    def __init__(self, bookie: BookieClient, reader_check: ReaderCheck | None = None) -> None:
        self._bookie = bookie
        self._reader_check = reader_check

    @property
    def bookie_id(self) -> str:
        return self._bookie.bookie_id

    # ---- what may be read

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        code = await self._refusal(request.ledger_id, fence=request.fence)
        if code != codes.OK:
            return ReadReply(code, request.first, [])
        return await self._bookie.read_entries(request)

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

    # ---- what isn't about one ledger

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
