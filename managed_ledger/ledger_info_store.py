"""The stored list of one managed ledger, under compare-and-set by its owner.

Every open writes its own token into the list. So when a compare-and-set fails, a second look tells
an answer that got lost (the token is still ours) from a list that another owner has taken.

The version alone doesn't prove that no owner came between: a log that was deleted and made anew
begins at version 0 again. So each write is preceded by a look at the token; see
docs/decisions/0004-look-before-a-conditional-write.md for what that leaves.
"""

import asyncio
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from hashlib import blake2b

from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.ledger_info_chunks import LedgerInfoChunks
from magnetar.managed_ledger.managed_ledger_info import (
    LedgerInfoNode,
    ManagedLedgerInfo,
    decode_list_node,
)
from magnetar.metadata.errors import BadVersionError, MetadataError, ValueTooLargeError
from magnetar.metadata.store import MetadataStore

UPDATE_ATTEMPTS = 5
RETRY_DELAY_S = 0.1


@dataclass(slots=True, eq=False, repr=False)
class LedgerInfoStore:
    """The last known value and version, and the one way to change them.

    Changes run one after another, so a change may rely on the value it is given.
    """

    _store: MetadataStore
    _path: str
    _token: str
    """Unique per open; ``info`` is written by the claim that bears it."""
    info: ManagedLedgerInfo
    version: int
    created_ms: int = 0
    """Of the list's node, by the store's clock."""
    read_chunks: InitVar[LedgerInfoChunks | None] = None
    """Of ``info``, which the claim has read."""
    _lock: asyncio.Lock | None = field(default=None, init=False)
    _value_hash: bytes = field(default=b"", init=False)
    chunks: LedgerInfoChunks = field(init=False)
    is_lost: bool = field(default=False, init=False)
    """The log was given up: never write again."""
    others: LedgerInfoNode | None = field(default=None, init=False)
    """The list of the owner that came after us, as it was first seen."""

    def __post_init__(self, read_chunks: LedgerInfoChunks | None) -> None:
        self.chunks = read_chunks or LedgerInfoChunks(self._store, self._path, self._token)

    def is_unlisted(self, ledger_id: int) -> bool:
        """Tells whether a ledger that we tried to list certainly isn't, and never will be.

        Once another's value was seen, none of our compare-and-sets can succeed any more; if one
        did before, its answer lost, then that owner has the ledger.
        """
        if self.others is None:
            return False
        if self.others.chunks and ledger_id <= self.others.chunks[-1].last:
            return False  # it may be in one
        info = self.others.info
        return not info.ledgers.has(ledger_id) and ledger_id not in info.doomed

    async def is_ours(self) -> bool:
        """Reads whether the list still bears our token; if it doesn't it never will again.

        Raises:
            MetadataError: it can't be read now.
        """
        async with self._mutex():
            if not self.is_lost:
                await self._look()
            return not self.is_lost

    async def update(
        self, change: Callable[[ManagedLedgerInfo], ManagedLedgerInfo]
    ) -> ManagedLedgerInfo:
        """Applies a pure change; durable when this returns. An equal value writes nothing.

        Raises:
            ManagedLedgerFencedError: the list belongs to another owner.
            ValueTooLargeError: the list is more than a node holds; it is as it was.
            MetadataError: the outcome may be unknown; the next update looks before it writes.
        """
        async with self._mutex():
            for attempt in range(UPDATE_ATTEMPTS):
                self._require_ours()
                if change(self.info) == self.info:
                    return self.info
                try:
                    await self._look()
                    self._require_ours()
                    changed = change(self.info)
                    if changed != self.info:  # else an earlier attempt got through
                        await self._write(changed)
                    return self.info
                except ValueTooLargeError:
                    raise  # it would be the next time, too
                except BadVersionError:
                    continue  # the next attempt reads the owner
                except MetadataError:
                    if attempt + 1 == UPDATE_ATTEMPTS:
                        raise
                    await asyncio.sleep(RETRY_DELAY_S)
            await self._look()
            self._require_ours()
            raise MetadataError(f"{self._path}: no compare-and-set in {UPDATE_ATTEMPTS} attempts")

    async def _write(self, changed: ManagedLedgerInfo) -> None:
        version = self.version
        with_names, value = await self.chunks.write(changed, version)
        if with_names is not changed:  # chunks were stored, which took a while
            await self._look()
            self._require_ours()
            if self.version != version:
                raise BadVersionError(self._path, version, self.version)
        stored = await self._store.put(self._path, value, self.version)
        self.info, self.version = with_names, stored.stat.version
        self._value_hash = _hash(value)
        await self.chunks.settle(self.info, self.version)

    def _mutex(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    def _require_ours(self) -> None:
        if self.is_lost:
            raise ManagedLedgerFencedError(f"{self._path}: another owner has taken over")

    async def _look(self) -> None:
        """Is the value there ours? Takes over what an attempt whose answer was lost has left."""
        stored = await self._store.get(self._path)
        if stored is None:
            self.others = LedgerInfoNode(ManagedLedgerInfo(), (), is_chunked=False)
        elif _hash(stored.value) == self._value_hash:
            self.version = stored.stat.version
            return  # the value at hand stays, so that an idle log has its list once
        else:
            node = decode_list_node(stored.value, self._path)
            if node.info.owner == self._token:
                # Usually what is known. If an earlier attempt got through, the change is applied to
                # that value again: every change is idempotent.
                if (missing := await self.chunks.load(node.chunks)) is not None:
                    raise MetadataError(f"{self._path}: chunk {missing} isn't there")
                info = self.chunks.whole(node)
                self.info = self.info if info == self.info else info
                self.version, self._value_hash = stored.stat.version, _hash(stored.value)
                return
            self.others = node
        self.is_lost = True


def _hash(value: bytes) -> bytes:
    return blake2b(value, digest_size=16).digest()
