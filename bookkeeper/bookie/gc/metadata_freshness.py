"""Makes sure that what a collection reads next is no old or foreign view of the metadata."""

from __future__ import annotations

from typing import Final

from magnetar.bookkeeper.bookie.cookie import INSTANCE_ID_PATH
from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.metadata.paths import encode_name
from magnetar.metadata.store import MetadataStore

COLLECTORS_PATH: Final = "/ledgers/collectors"


class MetadataFreshnessCheck:
    """``await check()`` before a listing of ledgers.

    A read may trail the writes of others, so a ledger that was just created could look deleted.
    Never this session's own: after a write of our own we read at least everything that was written
    before it, and that includes the metadata of every ledger that has entries here.
    """

    def __init__(self, store: MetadataStore, bookie_id: str, instance_id: str) -> None:
        self._store = store
        self._path = f"{COLLECTORS_PATH}/{encode_name(bookie_id)}"
        self._instance_id = instance_id

    async def check(self) -> None:
        """Returns when reads are recent enough.

        Raises:
            CookieMismatchError: the store is another cluster's by now, or was emptied.
            MetadataError: it doesn't answer.
        """
        found = await self._store.get(INSTANCE_ID_PATH)
        name = None if found is None else found.value.decode(errors="replace")
        if name != self._instance_id:
            raise CookieMismatchError(f"cluster {name}, this bookie is of {self._instance_id}")
        await self._store.put(self._path, b"")
