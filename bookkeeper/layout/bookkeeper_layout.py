"""The layout of Apache BookKeeper and of Pulsar's driver: ``HierarchicalLedgerManagerFactory``.

docs/formats/bookkeeper-zookeeper.md.
"""

import asyncio
import re
from contextlib import suppress
from typing import Final

from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest, DigestType
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout import ledger_metadata_format, service_info_format
from magnetar.bookkeeper.layout.cookie_format import Cookie, Directories
from magnetar.bookkeeper.layout.layout import Layout, LedgerIds
from magnetar.bookkeeper.layout.under_replication_format import (
    TextUnderReplication,
    UnderReplicationFormat,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.service_info import READ_ONLY_NAME, ServiceInfo
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.paths import SEQUENCE_DIGITS
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

_BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+")  # as BookKeeper's BookieId has it
_SHORT_IDS_END: Final = 2**31 - 1
_HOB_PREFIX: Final = "HOB-"
_ID_BITS: Final = 32
_KNOWN_MAX: Final = 64


class BookKeeperLayout(Layout):
    """It also knows the digests of the ledgers whose metadata it has read."""

    def __init__(self) -> None:
        self._digests: dict[int, Digest] = {}  # of ledgers that exist; few have another than ours
        self._known: dict[tuple[DigestType, bytes], Digest] = {}

    @property
    def under_replication(self) -> UnderReplicationFormat:
        return TextUnderReplication()

    def digest_of(self, ledger_id: int) -> Digest:
        """CRC32C, unless the ledger's metadata, which was read before, says otherwise."""
        return self._digests.get(ledger_id, CRC32C)

    def new_ledger(self, metadata: LedgerMetadata) -> LedgerMetadata:
        stored = self.encode_ledger(metadata)
        return self.decode_ledger(metadata.ledger_id, stored)

    def encode_ledger(self, metadata: LedgerMetadata) -> bytes:
        return ledger_metadata_format.encode(metadata)

    def decode_ledger(self, ledger_id: int, value: bytes) -> LedgerMetadata:
        metadata = ledger_metadata_format.decode(ledger_id, value)
        if metadata.digest_type != CRC32C.type.name:
            digest_type = DigestType[metadata.digest_type]
            self._digests[ledger_id] = self._create(digest_type, metadata.password)
        return metadata

    def forget_ledger(self, ledger_id: int) -> None:
        self._digests.pop(ledger_id, None)

    def _create(self, digest_type: DigestType, password: bytes) -> Digest:
        """Ledgers of one password share theirs."""
        key = (digest_type, password if digest_type is DigestType.HMAC else b"")
        if (found := self._known.get(key)) is None:
            if len(self._known) >= _KNOWN_MAX:
                del self._known[next(iter(self._known))]
            found = self._known[key] = Digest.create(*key)
        return found

    def ids(self, store: MetadataStore) -> LedgerIds:
        return SequentialNodeIds(store, self.root)

    def node_name(self, bookie_id: str) -> str:
        if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id.lower() == READ_ONLY_NAME:
            raise ValueError(f"not an id of a bookie for BookKeeper: {bookie_id!r}")
        return bookie_id

    def encode_bookie(self, info: ServiceInfo) -> bytes:
        return service_info_format.encode(info)

    def encode_cookie(
        self, cookie: Cookie, network_location: str, directories: Directories | None
    ) -> bytes:
        return cookie.encode_text(network_location, directories)


class SequentialNodeIds:
    """Ids as BookKeeper's clients take them: numbers of sequential nodes.

    Ten digits of ``idgen``; once these are used up, or when ``idgen-long`` exists, the number of
    one of its directories and ten digits below that.
    """

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._short, self._long = f"{root}/idgen", f"{root}/idgen-long"
        self._high = 0  # of the last long id; 0: none was given
        self._deleting: set[asyncio.Task[None]] = set()

    def skip(self, count: int) -> None:
        """The counter is the store's own and goes on by itself."""

    async def next_id(self, above: int = -1) -> int:
        """
        Raises:
            LedgerMetadataError: the next id isn't above ``above``: the counter was set back.
            MetadataError: the store failed.
        """
        found = await self._next()
        if found <= above:
            raise LedgerMetadataError(
                f"the next ledger id is {found}, not above {above}, which is in use:"
                f" was {self._short} deleted or restored?"
            )
        return found

    async def _next(self) -> int:
        """One round trip, as a rule: what may be different now is asked for beside the number."""
        if not self._high:
            is_long, found = await asyncio.gather(
                self._store.exists(self._long), self._take(self._short)
            )
            if not is_long:
                if 0 <= found < _SHORT_IDS_END:
                    return found
                await self._store.put(self._long, b"")
            self._high = await self._highest()
        while True:
            high = self._high
            highest, found = await asyncio.gather(
                self._highest(), self._take(f"{self._long}/{_HOB_PREFIX}{high:0{SEQUENCE_DIGITS}d}")
            )
            # Directories below the highest are removed some day, and would begin at 0 again.
            if highest <= high and 0 <= found < _SHORT_IDS_END:
                return high << _ID_BITS | found
            self._high = max(high + 1, highest)

    async def _highest(self) -> int:
        names = await self._store.children(self._long)
        return max((int(name.removeprefix(_HOB_PREFIX)) for name in names), default=1)

    async def _take(self, directory: str) -> int:
        node = await self._store.put(
            f"{directory}/ID-", b"", CREATE_ONLY, ephemeral=True, sequential=True
        )
        # Nobody waits for this: the node ends with the session, too.
        task = asyncio.get_running_loop().create_task(self._delete(node.path))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)
        return int(node.path.rpartition("-")[2])

    async def _delete(self, path: str) -> None:
        with suppress(MetadataError):
            await self._store.delete(path)
