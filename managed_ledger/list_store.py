"""The stored list of one managed ledger, under compare-and-set by its owner.

Every open writes its own token into the list. So when a compare-and-set fails, a second look tells
an answer that got lost (the token is still ours) from a list that another owner has taken.

The version alone doesn't prove that nobody came between: a log that was deleted and made anew
begins at version 0 again. So each write is preceded by a look at the token; see
docs/decisions/0004-look-before-a-conditional-write.md for what that leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from managed_ledger.errors import ManagedLedgerFencedError
from managed_ledger.ledger_list import ManagedLedgerInfo, decode_info, encode_info
from managed_ledger.logger import logger
from metadata.errors import BadVersionError, MetadataError, ValueTooLargeError
from metadata.store import VALUE_BYTES_MAX, MetadataStore

UPDATE_ATTEMPTS = 5
RETRY_DELAY_S = 0.1


class ListStore:
    """The last known value and version, and the one way to change them.

    Changes run one after another, so a change may rely on the value it is given.
    """

    __slots__ = (
        "_is_warned",
        "_lock",
        "_path",
        "_store",
        "_token",
        "created_ms",
        "info",
        "is_lost",
        "others",
        "version",
    )

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        token: str,
        info: ManagedLedgerInfo,
        version: int,
        created_ms: int = 0,
    ) -> None:
        """Args:
        token: unique per open; ``info`` as written by the claim that bears it.
        created_ms: of the list's node, by the store's clock.
        """
        self._store = store
        self._path = path
        self._token = token
        self._lock: asyncio.Lock | None = None
        self._is_warned = False
        self.info = info
        self.version = version
        self.created_ms = created_ms
        self.is_lost = False
        """The log was given up: never write again."""
        self.others: ManagedLedgerInfo | None = None
        """The list of the owner that came after us, as it was first seen."""

    def is_unlisted(self, ledger_id: int) -> bool:
        """Whether a ledger that we tried to list certainly isn't, and never will be.

        Once another's value was seen, none of our compare-and-sets can succeed any more; if one
        did before, its answer lost, then that owner has the ledger.
        """
        if self.others is None:
            return False
        listed = {x.ledger_id for x in self.others.ledgers}
        return ledger_id not in listed and ledger_id not in self.others.doomed

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
            ValueTooLargeError: the list is more than a node holds; nothing was written.
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
                        value = encode_info(changed)
                        stored = await self._store.put(self._path, value, self.version)
                        self.info, self.version = changed, stored.stat.version
                        self._warn_of_size(len(value))
                    return changed
                except ValueTooLargeError:
                    raise  # nothing was written, and nothing would be the next time
                except BadVersionError:
                    continue  # the next attempt looks who it was
                except MetadataError:
                    if attempt + 1 == UPDATE_ATTEMPTS:
                        raise
                    await asyncio.sleep(RETRY_DELAY_S)
            await self._look()
            self._require_ours()
            raise MetadataError(f"{self._path}: no compare-and-set in {UPDATE_ATTEMPTS} attempts")

    def _warn_of_size(self, value_bytes: int) -> None:
        """Once for each owner."""
        if value_bytes > VALUE_BYTES_MAX // 2 and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s: the list of its %d ledgers takes %d bytes of the %d that a node of the "
                "metadata store holds: above them the log takes no entries; larger ledgers "
                "(managedLedgerMinLedgerRolloverTimeMinutes) or a shorter retention help",
                *(self._path, len(self.info.ledgers), value_bytes, VALUE_BYTES_MAX),
            )

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
            self.others = ManagedLedgerInfo()
        else:
            info = decode_info(stored.value, self._path)
            if info == self.info:
                self.version = stored.stat.version
                return  # the value at hand stays, so that an idle log has its list once
            if info.owner == self._token:
                # Usually what is known. If an earlier attempt got through, the change is applied to
                # that value again: every change is idempotent.
                self.info, self.version = info, stored.stat.version
                return
            self.others = info
        self.is_lost = True
