"""The broker's end of a process that compacts one topic, once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from magnetar.broker.child_process import BOOT, ChildProcess
from magnetar.broker.compaction.work_frames import (
    ANSWER,
    CHOOSE,
    ENTRIES,
    FAILED,
    MORE,
    NOTE,
    NOTE_STORED,
    QUESTION,
    TAKE,
    TAKE_STORED,
    LocatedEntries,
    decode_entries,
    encode_entries,
    encode_runs,
)
from magnetar.broker.errors import CompactionProcessError
from magnetar.managed_ledger.entry_batch import Buffer

_BOOT: Final = (
    f"{BOOT} from magnetar.broker.compaction.compaction_process import serve;"
    " serve(source, int(sys.argv[1]), retains_keyless=sys.argv[2] == 'all')"
)

Given: TypeAlias = Sequence[Buffer] | LocatedEntries
Keep: TypeAlias = Callable[[Sequence[Buffer]], Awaitable[None]]

_ENDED: Final = "the process that compacts has ended"


class CompactionProcess(ChildProcess):
    """Answers what a compaction keeps of the entries that it is given, twice, in the same order.

    Entries are given as they lie in their ledger, or as the place where they do. Each method raises
    CompactionProcessError: the process can't go on, or has ended.
    """

    def __init__(self, partition: int, retains_keyless: bool) -> None:
        """Raises OSError: it can't be started."""
        super().__init__(_BOOT, str(partition), "all" if retains_keyless else "keyed")

    async def note(self, ledger_id: int, first: int, entries: Given) -> int:
        """First pass: the next entries of a ledger, or of the compacted ledger (`COMPACTED`).

        Returns:
            How many of them were there, from the first one on; of located ones maybe none.
        """
        if isinstance(entries, LocatedEntries):
            await self._send(NOTE_STORED, ledger_id, first, encode_runs(entries))
            return entries.count((await self._answer())[1])
        await self._send(NOTE, ledger_id, first, entries)
        return len(entries)

    async def choose(self) -> int:
        """Between the passes; answers how many messages are removed."""
        await self._send(CHOOSE, 0, 0, ())
        return (await self._answer())[1]

    async def take(self, ledger_id: int, first: int, entries: Given, keep: Keep) -> int:
        """Second pass: what the new compacted ledger has of these entries.

        Args:
            keep: is given that, in portions.
        Returns:
            As `note`.
        """
        if isinstance(entries, LocatedEntries):
            await self._send(TAKE_STORED, ledger_id, first, encode_runs(entries))
            return entries.count(await self._keep_all(keep))
        await self._send(TAKE, ledger_id, first, entries)
        await self._keep_all(keep)
        return len(entries)

    async def _keep_all(self, keep: Keep) -> int:
        """Answers up to the last one; its number."""
        while True:
            status, number, kept = await self._answer()
            if kept:
                await keep(kept)
            if status != MORE:
                return number

    async def _send(self, kind: int, ledger_id: int, first: int, entries: Sequence[Buffer]) -> None:
        frame = b"".join((QUESTION.pack(kind, ledger_id, first), *encode_entries(entries)))
        try:
            await asyncio.get_running_loop().sock_sendall(self.link, frame)
        except OSError as error:
            await self._answer()  # what it said at its end
            raise CompactionProcessError(_ENDED) from error

    async def _answer(self) -> tuple[int, int, list[memoryview]]:
        """Status, number, entries."""
        head = await self._read(ANSWER.size + ENTRIES.size)
        status, number = ANSWER.unpack_from(head)
        count, size = ENTRIES.unpack_from(head, ANSWER.size)
        entries = decode_entries(count, await self._read(4 * count + size))
        if status == FAILED:
            reason = str(entries[0], "utf-8", "replace")
            raise CompactionProcessError(f"the process that compacts has failed: {reason}")
        return status, number, entries

    async def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, loop = memoryview(data), asyncio.get_running_loop()
        while view:
            try:
                count = await loop.sock_recv_into(self.link, view)
            except OSError as error:
                raise CompactionProcessError(_ENDED) from error
            if not count:
                raise CompactionProcessError(_ENDED)
            view = view[count:]
        return data
