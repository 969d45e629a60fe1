"""Chunks of a list of ledgers that is more than its node shall hold.

A chunk is written before the compare-and-set of the node that names it, never changed, and deleted
after a compare-and-set that doesn't name it any more. Its name begins with the only version of the
node that can be the first to name it: once the node has that version and doesn't, it never will.
The owner's token and a number make the name unique, so no owner writes another's chunk, and an
owner whose write may have got through doesn't write the same one again.

So a reader of the node that misses a chunk reads the node again: if the node still names the
chunk, it is lost.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from magnetar.managed_ledger import ledger_rows
from magnetar.managed_ledger.empty_containers import NOTHING
from magnetar.managed_ledger.errors import ManagedLedgerFormatError
from magnetar.managed_ledger.ledger_rows import ChunkRef, PackedRows
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger_info import (
    LedgerInfoNode,
    ManagedLedgerInfo,
    decode_list_node,
    encode_info,
)
from magnetar.metadata.errors import MetadataError, NotEmptyError, NotFoundError
from magnetar.metadata.paths import encode_name, join
from magnetar.metadata.store import CREATE_ONLY, VALUE_BYTES_MAX, MetadataStore, Stat

CHUNKS_ROOT: Final = "/managed-ledger-chunks"
NODE_BYTES: Final = 600_000
"""Limit of the node's value if rows can go into chunks: claim, trim and delete need room."""
_AT_ONCE: Final = 16


def chunks_path(path: str) -> str:
    """The parent of the chunks of the log whose node is at ``path``."""
    return join(CHUNKS_ROOT, encode_name(path.split("/", 2)[2]))


class StoredLedgerInfo(NamedTuple):
    """A list, the facts about its node, and whether there may be chunks of it, named or not."""

    info: ManagedLedgerInfo
    stat: Stat
    is_chunked: bool


async def read_list(
    store: MetadataStore, path: str, chunks: "LedgerInfoChunks | None" = None
) -> StoredLedgerInfo | None:
    """The list that is stored; None: there is none.

    Args:
        chunks: of this log, which may know some already.

    Raises:
        MetadataError, ManagedLedgerFormatError.
    """
    chunks = chunks or LedgerInfoChunks(store, path)
    while (stored := await store.get(path)) is not None:
        node = decode_list_node(stored.value, path)
        missing = await chunks.load(node.chunks)
        if missing is None:
            return StoredLedgerInfo(chunks.whole(node), stored.stat, node.is_chunked)
        again = await store.get(path)
        if again is not None and missing in _names(decode_list_node(again.value, path)):
            raise ManagedLedgerFormatError(f"{path}: chunk {chunks.path_of(missing)} is lost")
    return None


async def delete_leaked_chunks(store: MetadataStore, path: str) -> list[str]:
    """Deletes what no list can name any more, of any owner; the names.

    Raises:
        MetadataError, ManagedLedgerFormatError.
    """
    chunks = LedgerInfoChunks(store, path)
    names = await chunks.stored_names()
    stored = await store.get(path)
    if stored is None:  # a list made from now on has other chunks than these
        await chunks.delete(names)
        return names
    named, version = _names(decode_list_node(stored.value, path)), stored.stat.version
    leaked = [x for x in names if x not in named and _version_of(x) <= version]
    for name in leaked:
        await _delete(store, chunks.path_of(name))
    return leaked


@dataclass(slots=True, eq=False, repr=False)
class LedgerInfoChunks:
    """Reads the chunks of one log, and writes them for its owner."""

    _store: MetadataStore
    _path: str
    _token: str = ""
    """See `LedgerInfoStore`; without one it only reads."""
    _are_read: Callable[[], bool] = lambda: True
    """Tells whether every broker that may open the log reads chunks."""
    _known: dict[str, PackedRows] = field(default_factory=dict, init=False)
    _uncertain: frozenset[str] = field(default=NOTHING, init=False)
    _count: int = field(default=0, init=False)

    def path_of(self, name: str) -> str:
        """Where a chunk is stored."""
        return join(chunks_path(self._path), name)

    async def load(self, refs: Sequence[ChunkRef]) -> str | None:
        """Reads what isn't known of these chunks; the name of one that isn't there.

        Raises:
            ManagedLedgerFormatError: one is damaged.
        """
        wanted = [x for x in refs if self._of(x) is None]
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self._store.get(self.path_of(x.name)) for x in some))
            for ref, stored in zip(some, found, strict=True):
                if stored is None:
                    return ref.name
                try:
                    self._known[ref.name] = PackedRows.decode(stored.value, ref)
                except ValueError as error:
                    raise ManagedLedgerFormatError(
                        f"{self._path}: chunk {stored.path} is damaged: {error}"
                    ) from error
                await asyncio.sleep(0)  # each takes some milliseconds
        return None

    def whole(self, node: LedgerInfoNode) -> ManagedLedgerInfo:
        """The list of a node. REQUIRES: its chunks are loaded."""
        segments = [x for ref in node.chunks if (x := self._of(ref)) is not None]
        assert len(segments) == len(node.chunks)
        return node.with_segments(segments)

    def _of(self, ref: ChunkRef) -> PackedRows | None:
        known = self._known.get(ref.name)
        if known is None or known.trimmed > ref.trimmed:
            return None
        if known.trimmed < ref.trimmed:
            known = known.without_first(ref.trimmed - known.trimmed)
        return known if known.ref() == ref else None

    async def write(self, info: ManagedLedgerInfo, version: int) -> tuple[ManagedLedgerInfo, bytes]:
        """Stores what of a list its node won't hold; the same list, and the node's next value.

        Args:
            version: of the node, as the caller's compare-and-set will expect it.

        Raises:
            MetadataError: the list hasn't changed; chunks that were stored are used next time, or
                deleted by `settle`.
        """
        rows, bytes_max = info.ledgers, VALUE_BYTES_MAX
        if self._are_read():
            rows_max = ledger_rows.TAIL_ROWS_MAX
            if rows.segments:
                rows_max = min(rows_max, 2 * ledger_rows.CHUNK_ROWS)
            rows, bytes_max = rows.cut(rows_max), NODE_BYTES  # one for each write: none waits long
        rows = rows.joined()
        while True:
            info = info if rows is info.ledgers else info.with_rows(rows)
            info = await self._with_chunks(info, version)
            value = encode_info(info, is_chunked=bool(self._unnamed(info)))
            if len(value) <= bytes_max:
                return info, value
            rows_max = max(len(info.ledgers.tail) // 2, ledger_rows.CHUNK_ROWS // 10)
            if (rows := info.ledgers.cut(rows_max)) is info.ledgers:
                return info, value

    async def _with_chunks(self, info: ManagedLedgerInfo, version: int) -> ManagedLedgerInfo:
        """Every segment is stored."""
        stored = {
            number: await self._put(segment, version)
            for number, segment in enumerate(info.ledgers.segments)
            if not segment.name
        }
        return info.with_rows(info.ledgers.with_segments(stored)) if stored else info

    async def _put(self, segment: PackedRows, version: int) -> PackedRows:
        segment = PackedRows.joined([segment]) if segment.trimmed else segment
        for name in self._uncertain:
            earlier = self._known.get(name)
            if earlier is not None and _version_of(name) == version + 1 and earlier == segment:
                return earlier  # the compare-and-set after it failed
        value = segment.encode()
        self._count += 1
        name = f"{version + 1:010d}-{self._token}-{self._count}"
        self._uncertain |= {name}
        await self._store.put(self.path_of(name), value, CREATE_ONLY)
        self._known[name] = segment.stored_as(name, crc32(value))
        return self._known[name]

    async def find_unnamed(self, info: ManagedLedgerInfo, version: int) -> None:
        """Looks for chunks that an owner left behind and that no node can name any more.

        Args:
            info: the list in its node's ``version``.
        """
        named = {x.name for x in info.ledgers.segments}
        names = await self.stored_names()
        self._uncertain |= {x for x in names if x not in named and _version_of(x) <= version}

    async def settle(self, info: ManagedLedgerInfo, version: int) -> None:
        """Deletes what the node, in this version, doesn't name; what can't be is kept in mind."""
        unnamed = self._unnamed(info)
        for name in unnamed:
            self._known.pop(name, None)
        left = {*unnamed}
        try:
            for name in unnamed:
                if _version_of(name) > version:
                    continue
                try:
                    await _delete(self._store, self.path_of(name))
                except MetadataError as error:
                    logger.warning("%s: chunk %s not deleted: %s", self._path, name, error)
                else:
                    left.discard(name)
        finally:  # also if this is cancelled
            self._uncertain = frozenset(left) if left else NOTHING

    async def stored_names(self) -> list[str]:
        """All that are stored, of any owner."""
        return await self._store.children(chunks_path(self._path))

    async def delete(self, names: list[str]) -> None:
        """Deletes them, and the node above them."""
        for name in names:
            await _delete(self._store, self.path_of(name))
        with contextlib.suppress(NotEmptyError):
            await _delete(self._store, chunks_path(self._path))

    def _unnamed(self, info: ManagedLedgerInfo) -> list[str]:
        if not self._uncertain and not self._known:
            return []
        named = {x.name for x in info.ledgers.segments}
        return [x for x in {**self._known, **dict.fromkeys(self._uncertain)} if x not in named]


async def _delete(store: MetadataStore, path: str) -> None:
    with contextlib.suppress(NotFoundError):
        await store.delete(path)


def _names(node: LedgerInfoNode) -> set[str]:
    return {x.name for x in node.chunks}


def _version_of(name: str) -> int:
    """Of the node that may name it first; of what isn't a chunk's name, one that never comes."""
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else sys.maxsize
