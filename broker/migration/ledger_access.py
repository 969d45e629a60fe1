"""Ledgers that both kinds of broker share: what a swap reads of them, and the few it writes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import BookkeeperError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C, LedgerMetadata, LedgerState
from magnetar.bookkeeper.ledgers import Ledgers, ReadHandle
from magnetar.broker.migration.errors import MigrationError
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.cursor_ledger import read_image
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER as IN_NODE
from magnetar.managed_ledger.cursor.cursor_store import CursorNode
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.orphan_ledgers import APPLICATION, APPLICATION_VALUE, COMPONENT

MARK: Final = "magnetar/migration"
"""Custom metadata of ledgers that a swap makes: by it those are found that no node names yet."""
_COPIES: Final = 3
_AT_ONCE: Final = 64  # requests for metadata


class LedgerAccess(Protocol):
    """All methods raise MigrationError if bookies or metadata don't answer."""

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """What BookKeeper knows; None: there is no such ledger."""

    async def end(self, ledger_id: int) -> LedgerMetadata | None:
        """The same of a ledger that takes no more entries: one that is open is recovered."""

    async def last_entry(self, ledger_id: int) -> bytes | None:
        """None: there is no such ledger, or it is empty."""

    def entries(self, ledger_id: int, first: int = 0) -> AsyncIterator[bytes]:
        """From ``first`` on; none if there is no such ledger."""

    async def image(self, where: str, node: CursorNode) -> CursorImage:
        """Position of a cursor of ours, from its ledger if it has one."""

    async def create(
        self, entries: Callable[[int], Sequence[bytes]], custom: dict[str, bytes]
    ) -> int:
        """A closed ledger with the entries that its id is given for; the id."""

    async def marked(self, marks: Collection[str]) -> dict[int, str]:
        """Ledgers whose custom metadata ``MARK`` is one of these, with it. Looks at all ledgers."""

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        """Those that don't exist are fine."""


class BookKeeperAccess:
    """`LedgerAccess` of a cluster of bookies.

    Args:
        recover: end ledgers that are open. False: nothing is changed, and of an open ledger only
            what its bookies know to be confirmed is read.
    """

    def __init__(self, ledgers: Ledgers, *, recover: bool) -> None:
        self._ledgers, self._recover = ledgers, recover
        self._examples: dict[bytes, tuple[bytes, str]] = {}

    @property
    def _client(self) -> BookKeeperClient:
        return self._ledgers.client

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        return await self._ledgers.metadata(ledger_id)

    async def end(self, ledger_id: int) -> LedgerMetadata | None:
        found = await self.metadata(ledger_id)
        if found is None or found.state is LedgerState.CLOSED or not self._recover:
            return found
        reader = await self._open(ledger_id, found.password)
        return None if reader is None else reader.metadata

    async def _open(self, ledger_id: int, password: bytes | None = None) -> ReadHandle | None:
        """``password``: None: metadata tell it. None is returned if there is no such ledger."""
        try:
            if password is None:
                password = await self._password(ledger_id)
            return await self._ledgers.open(ledger_id, password=password, recover=self._recover)
        except NoSuchLedgerError as error:
            # It may also be a bookie's word; only the metadata settles it.
            if await self.metadata(ledger_id) is None:
                return None
            raise MigrationError(f"ledger {ledger_id}: {error}") from error
        except BookkeeperError as error:
            raise MigrationError(f"ledger {ledger_id}: {error}") from error

    async def _password(self, ledger_id: int) -> bytes:
        """Metadata tell it, as to auto-recovery."""
        found = await self.metadata(ledger_id)
        return b"" if found is None else found.password

    async def last_entry(self, ledger_id: int) -> bytes | None:
        reader = await self._open(ledger_id)
        if reader is None or reader.last_confirmed < 0:
            return None
        entries = [each async for each in self._read(reader, reader.last_confirmed)]
        return entries[-1]

    async def entries(self, ledger_id: int, first: int = 0) -> AsyncIterator[bytes]:
        reader = await self._open(ledger_id)
        if reader is not None:
            async for each in self._read(reader, first):
                yield each

    async def _read(self, reader: ReadHandle, first: int) -> AsyncIterator[bytes]:
        try:
            async for _, entry in reader.entries(first):
                yield entry
        except BookkeeperError as error:
            raise MigrationError(f"ledger {reader.ledger_id}: {error}") from error

    async def image(self, where: str, node: CursorNode) -> CursorImage:
        if node.ledger_id == IN_NODE or not self._recover:
            return node.image(where)  # reading a ledger would fence a broker
        try:
            password = await self._password(node.ledger_id)
            return await read_image(self._client, password, where, node)
        except ManagedLedgerError as error:
            raise MigrationError(str(error)) from error

    async def create(
        self, entries: Callable[[int], Sequence[bytes]], custom: dict[str, bytes]
    ) -> int:
        try:
            count = min(_COPIES, max(1, len(self._client.bookies.writable)))
            password, digest_type = await self._protection(custom.get(COMPONENT, b""))
            ledger = await self._ledgers.create(
                *(count, count, count // 2 + 1),
                password=password,
                digest_type=digest_type,
                custom_metadata=custom,
            )
            await ledger.append_all(entries(ledger.ledger_id))
            await ledger.close()
        except BookkeeperError as error:
            raise MigrationError(f"a ledger can't be written: {error}") from error
        return ledger.ledger_id

    async def _protection(self, component: bytes) -> tuple[bytes, str]:
        """Password and digest as Pulsar's brokers give them to such ledgers.

        Those of schemas have another password than those of topics.
        """
        if component not in self._examples:
            found = b"", DIGEST_CRC32C
            async for ledger_id in self._ledgers.ids():
                each = await self.metadata(ledger_id)
                custom = {} if each is None else each.custom_metadata
                if (
                    each is not None
                    and custom.get(APPLICATION) == APPLICATION_VALUE
                    and custom.get(COMPONENT) == component
                ):
                    found = each.password, each.digest_type
                    break
            self._examples[component] = found
        return self._examples[component]

    async def marked(self, marks: Collection[str]) -> dict[int, str]:
        marked = dict[int, str]()
        async for part in self._client.ledgers.ranges():
            for start in range(0, len(part.ledger_ids), _AT_ONCE):
                ids = part.ledger_ids[start : start + _AT_ONCE]
                for found in await asyncio.gather(*map(self.metadata, ids)):
                    mark = b"" if found is None else found.custom_metadata.get(MARK, b"")
                    if found is not None and (text := mark.decode(errors="replace")) in marks:
                        marked[found.ledger_id] = text
        return marked

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        ids = list(ledger_ids)
        for start in range(0, len(ids), _AT_ONCE):
            await asyncio.gather(*map(self._ledgers.delete, ids[start : start + _AT_ONCE]))
