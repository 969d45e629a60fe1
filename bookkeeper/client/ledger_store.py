"""Ledger metadata in the metadata store: create, read, compare-and-set loop, delete, list.

The only access to the ``/ledgers`` tree. An operation whose answer was lost is settled by reading
back: if the store holds just what was written, it succeeded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from magnetar.bookkeeper.errors import LedgerError, LedgerMetadataError, NoSuchLedgerError
from magnetar.bookkeeper.layout.layout import ID_BLOCK, JsonLayout, Layout
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.service_info import LEDGERS_ROOT
from magnetar.metadata.errors import (
    BadVersionError,
    NotFoundError,
    OutcomeUnknownError,
    ValueTooLargeError,
)
from magnetar.metadata.item_errors import Item
from magnetar.metadata.store import (
    CREATE_ONLY,
    VALUE_BYTES_MAX,
    MetadataStore,
    SessionEvent,
    Versioned,
    Watch,
)

OPEN_BYTES_MAX: Final = VALUE_BYTES_MAX - 64 * 1024
"""Metadata of an open ledger: what ends it must fit as well, with a recovery's own segments."""
ATTEMPTS_MAX: Final = 100  # compare-and-set rounds before it must be a bug
_SHORT_IDS_END: Final = 2**31 - 1
_SKIP_MAX: Final = 1 << 20

Change: TypeAlias = Callable[[LedgerMetadata], "LedgerMetadata | None"]


@dataclass(frozen=True, slots=True)
class VersionedLedger:
    """Metadata and the version of the node it was read from."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Ledger ids found in one leaf directory, which can hold no others than [first, end)."""

    first: int
    end: int
    ledger_ids: list[int]


def ledger_path(ledger_id: int, root: str = LEDGERS_ROOT) -> str:
    """Node of a ledger: ten digits cut 2-4-4, or nineteen cut 3-4-4-4-4."""
    if not 0 <= ledger_id < 2**63:
        raise ValueError(f"not a ledger id: {ledger_id}")
    if ledger_id < _SHORT_IDS_END:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    middle = "/".join(digits[start : start + 4] for start in (3, 7, 11))
    return f"{root}/{digits[:3]}/{middle}/L{digits[15:]}"


class LedgerStore:
    """Ledgers of one cluster, as the metadata store knows them."""

    def __init__(self, store: MetadataStore, layout: Layout | None = None) -> None:
        self._store = store
        self.layout = layout or JsonLayout()
        self._root = self.layout.root
        self._ids = self.layout.ids(store)
        self._skip = ID_BLOCK  # twice as many with each id that turns out to be in use
        self._in_use = -1  # the last such id
        self._returned: asyncio.Event | None = None  # of the session; None: nobody has waited

    async def wait_for_session(self, seconds: float) -> None:
        """Until the store's session is back after a loss, or ``seconds`` are over."""
        if self._returned is None:
            self._returned = asyncio.Event()
            self._store.on_session_event(self._on_session_event)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._returned.wait()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            assert self._returned is not None
            self._returned.set()
            self._returned = asyncio.Event()

    async def create(
        self, build: Callable[[int], LedgerMetadata], above: int = -1
    ) -> VersionedLedger:
        """Store what ``build`` makes of a new id: one put, and an id block every 1000 ledgers.

        Args:
            above: an existing ledger whose id the new one's shall exceed.
        Raises:
            ValueTooLargeError: more than ``OPEN_BYTES_MAX``; there is no ledger.
            MetadataError: the store failed; the ledger may exist, and stays unused.
        """
        for _ in range(ATTEMPTS_MAX):
            metadata = self.layout.new_ledger(build(await self._ids.next_id(above)))
            path = ledger_path(metadata.ledger_id, self._root)
            value = self._encode(metadata, path)
            try:
                stored = await self._store.put(path, value, CREATE_ONLY)
            except (BadVersionError, OutcomeUnknownError) as error:
                found = await self._store.get(path)
                if found is None and isinstance(error, OutcomeUnknownError):
                    continue  # not created, or not yet: this id is spent either way
                if found is None or self._decode(metadata.ledger_id, found).metadata != metadata:
                    continue  # another client's: its token differs from ours
                stored = found
            return VersionedLedger(metadata, stored.stat.version)
        raise LedgerMetadataError("no free ledger id found: was the id counter reset?")

    def on_id_in_use(self, ledger_id: int) -> None:
        """A bookie holds another ledger with this id: the counter went back, so skip some ids.

        Those behind it may be in use, too. The next block moves the counter on for all.
        """
        if ledger_id > self._in_use:
            self._in_use = ledger_id
            self._ids.skip(self._skip)
            self._skip = min(2 * self._skip, _SKIP_MAX)

    async def ids_end(self) -> int | None:
        """Ids from here on were never given, if the store didn't go back; None: not known."""
        return await self.layout.ids_end(self._store)

    async def read(self, ledger_id: int) -> VersionedLedger | None:
        """Current metadata, or None when there is no such ledger.

        Raises:
            LedgerMetadataError: the stored bytes can't be read.
        """
        found = await self._store.get(ledger_path(ledger_id, self._root))
        return None if found is None else self._decode(ledger_id, found)

    async def require(self, ledger_id: int) -> VersionedLedger:
        """As ``read``, but a missing ledger raises NoSuchLedgerError."""
        found = await self.read(ledger_id)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} doesn't exist")
        return found

    def watch(self, ledger_id: int, on_change: Callable[[], None]) -> Watch:
        """Call ``on_change`` when the ledger's node is written or deleted, until it is closed."""
        return self._store.watch(ledger_path(ledger_id, self._root), lambda _event: on_change())

    async def update(
        self, ledger_id: int, change: Change, known: VersionedLedger | None = None
    ) -> VersionedLedger:
        """Apply ``change`` by compare-and-set until it sticks or has nothing to do.

        Args:
            change: called with each version the loop meets; None ends it with that version.
            known: which ledger the caller means. A node that was made anew may have any version, so
                what is stored is read all the same.

        Raises:
            NoSuchLedgerError: the ledger was deleted; OtherCreatorError: its id is another's now.
            LedgerError: whatever ``change`` raised.
            ValueTooLargeError: an open ledger's would have more than ``OPEN_BYTES_MAX``.
            MetadataError: the store failed.
        """
        path = ledger_path(ledger_id, self._root)
        current = await self._require_same(ledger_id, known)
        for _ in range(ATTEMPTS_MAX):
            metadata = change(current.metadata)
            if metadata is None:
                return current
            value = self._encode(metadata, path)
            try:
                stored = await self._store.put(path, value, current.version)
            except (BadVersionError, OutcomeUnknownError, NotFoundError):
                # A lost answer: our own value may be there, then this is a success.
                current = await self._require_same(ledger_id, known)
                if current.metadata == metadata:
                    return current
                continue
            return VersionedLedger(metadata, stored.stat.version)
        raise LedgerMetadataError(f"ledger {ledger_id}: {ATTEMPTS_MAX} conflicting updates")

    async def _require_same(self, ledger_id: int, known: VersionedLedger | None) -> VersionedLedger:
        current = await self.require(ledger_id)
        if known is not None:
            current.metadata.require_creator(known.metadata.creator_token)
        return current

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger for ever; a missing one is success. Bookies free its space later."""
        path = ledger_path(ledger_id, self._root)
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._store.delete(path)
            except NotFoundError:
                pass
            except OutcomeUnknownError:
                continue
            self.layout.forget_ledger(ledger_id)
            return
        raise LedgerError(f"ledger {ledger_id}: the store never said if it was deleted")

    async def exists(self, ledger_id: int) -> bool:
        """Point read; garbage collection confirms with this before it frees anything."""
        return await self._store.exists(ledger_path(ledger_id, self._root))

    async def ranges(self, item: Item = nullcontext) -> AsyncIterator[LedgerRange]:
        """All ledgers in ascending order, one leaf directory at a time.

        Directories never cover ids they weren't asked for, so an id inside [first, end) that isn't
        listed did not exist when its directory was read.

        Args:
            item: entered for each directory; one whose failure goes no further is left out.
        """
        names = await self._names(self._root, item) or ()
        # Two digits: short ids, all below those that begin with three.
        for name in sorted(filter(str.isdigit, names), key=lambda name: (len(name), name)):
            levels = {2: 1, 3: 3}.get(len(name))
            if levels is not None:
                async for found in self._leaves(f"{self._root}/{name}", name, levels, item):
                    yield found

    async def _leaves(
        self, path: str, digits: str, levels: int, item: Item
    ) -> AsyncIterator[LedgerRange]:
        if levels == 0:
            names = await self._names(path, item)
            if names is None:
                return  # not an empty range, which would mean that its ledgers don't exist
            await asyncio.sleep(0)  # up to 10,000 names: reading and parsing are a turn each
            first = int(digits) * 10_000
            # Sorted, and all of one length: so the ids ascend.
            ids = [first + int(n[1:]) for n in names if n[0] == "L" and n[1:].isdigit()]
            yield LedgerRange(first, first + 10_000, ids)
            return
        for name in sorted(await self._names(path, item) or ()):
            if name.isdigit():
                async for found in self._leaves(f"{path}/{name}", digits + name, levels - 1, item):
                    yield found

    async def _names(self, path: str, item: Item) -> list[str] | None:
        names: list[str] | None = None
        with item(path):
            names = await self._store.children(path)
        return names

    def _encode(self, metadata: LedgerMetadata, path: str) -> bytes:
        value = self.layout.encode_ledger(metadata)
        if metadata.state is LedgerState.OPEN and len(value) > OPEN_BYTES_MAX:
            raise ValueTooLargeError(path, len(value), OPEN_BYTES_MAX)
        return value

    def _decode(self, ledger_id: int, found: Versioned) -> VersionedLedger:
        return VersionedLedger(
            self.layout.decode_ledger(ledger_id, found.value), found.stat.version
        )


class LedgerMetadataSource(Protocol):
    """What readers want of a ``LedgerStore``; a process without a session implements it, too."""

    async def require(self, ledger_id: int) -> VersionedLedger:
        """The ledger's metadata as it is now.

        Raises:
            NoSuchLedgerError: there is no such ledger. MetadataError: the store failed.
        """

    def watch(self, ledger_id: int, on_change: Callable[[], None]) -> Watch:
        """Calls ``on_change`` when the metadata changes; needed by ``wait`` only."""
