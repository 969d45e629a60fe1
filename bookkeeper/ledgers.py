"""Ledgers as a library, without a broker: create, append, read, open with recovery, close, delete.

    async with connect_ledgers("zk:127.0.0.1:2181/demo") as ledgers:
        ledger = await ledgers.create()
        await ledger.append(b"hello")  # returns once it is durable on two of three bookies
        await ledger.close()
        async for entry_id, entry in (await ledgers.open(ledger.ledger_id)).entries():
            print(entry_id, entry)

A thin layer on ``bookkeeper.client`` for programs that think in single entries; the broker uses
that package directly, by batches and without a future per append. Guide: docs/guides/ledgers.md.
"""

import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, RandomPlacement
from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.find_layout import find_layout
from magnetar.bookkeeper.layout.metadata_service_uri import store_url_of
from magnetar.bookkeeper.ledger_handles import ReadHandle, WriteHandle
from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C, LedgerMetadata
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore

__all__ = ["Ledgers", "ReadHandle", "WriteHandle", "connect_ledgers"]

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024


class Ledgers:
    """The ledgers of one cluster; made by ``connect_ledgers``.

    Attributes:
        store: the session on the cluster's metadata, for elections and small facts of the
            program's own; its nodes must not be below ``/ledgers``.
        client: the same ledgers by batches, for programs to which a future per append is too much.
    """

    def __init__(
        self,
        store: MetadataStore,
        client: BookKeeperClient,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self.store = store
        self.client = client
        self._pending_bytes_max = pending_bytes_max

    async def create(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest_type: str = DIGEST_CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
    ) -> WriteHandle:
        """A new ledger on ``ensemble_size`` bookies; each entry is written to ``write_quorum`` of
        them and confirmed by ``ack_quorum``.

        Args:
            digest_type: on Apache BookKeeper also CRC32, HMAC or DUMMY, which is none.

        Raises:
            ValueError: not E >= Qw >= Qa >= 1, or no digest of this cluster.
            NotEnoughBookiesError: fewer bookies accept writes.
            ValueTooLargeError: more than about 700,000 bytes of custom metadata.
            MetadataError: the store failed.
        """
        config = LedgerConfig(
            ensemble_size, write_quorum, ack_quorum, password, digest_type=digest_type
        )
        writer = await self.client.create_ledger(config, custom_metadata or {})
        return WriteHandle(writer, self._pending_bytes_max)

    async def open(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = True
    ) -> ReadHandle:
        """A ledger for reading.

        Args:
            recover: end it first: whoever still writes it is fenced and can't append any more, and
                everything that was ever confirmed is in it. False: watch it while it grows.

        Raises:
            NoSuchLedgerError, UnauthorizedAccessError: no such ledger; another password.
            LedgerRecoveryError: too few bookies answered to find its end; try again.
            BookieUnavailableError: without recovery: no bookie answered.
        """
        return ReadHandle(await self.client.open_ledger(ledger_id, password, recover=recover))

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger for ever; one that doesn't exist is fine. Bookies free space later."""
        await self.client.delete_ledger(ledger_id)

    async def metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """State, quorums and bookies of a ledger; None: there is no such ledger."""
        return await self.client.read_ledger_metadata(ledger_id)

    async def ids(self) -> AsyncIterator[int]:
        """Ids of all ledgers of the cluster, ascending, also other programs'."""
        async for found in self.client.ledgers.ranges():
            for ledger_id in found.ledger_ids:
                yield ledger_id


@asynccontextmanager
async def connect_ledgers(
    metadata_url: str,
    *,
    tls: TlsFiles | None = None,
    metadata_config: Path | None = None,
    placement: EnsemblePlacementPolicy | None = None,
    transport: TransportConfig | None = None,
    protocol: ProtocolConfig | None = None,
    config: ClientConfig | None = None,
    session_timeout_s: float = 30.0,
    pending_bytes_max: int = PENDING_BYTES_MAX,
) -> AsyncIterator[Ledgers]:
    """The ledgers of the cluster at ``metadata_url``.

    "zk:host:port,host:port/chroot" names it, and so does BookKeeper's form of the same,
    "zk+hierarchical://host:port/ledgers" or "zk+null://". The cluster may be ours, Apache
    BookKeeper's, a Pulsar cluster's, or have bookies of both kinds.

    Args:
        tls: certificates, when its bookies want TLS.
        metadata_config: TLS and login of the metadata store (docs/operate/metadata.md).
        placement: which bookies new ledgers get; any, by default.
        transport: of our bookies; ``protocol``: of Apache's.
        pending_bytes_max: appends of one ledger wait while so much of it is unconfirmed.

    Raises:
        ValueError: the URL or the properties can't be used.
        OSError: the properties can't be read.
        LedgerMetadataError: the cluster's layout isn't supported.
        MetadataError: the store can't be reached.
    """
    rng = random.SystemRandom()
    async with AsyncExitStack() as stack:
        store = await connect_store(
            store_url_of(metadata_url) or metadata_url,
            metadata_config,
            session_timeout_s=session_timeout_s,
        )
        stack.push_async_callback(store.close)
        layout = await find_layout(store) or BookKeeperLayout()
        pool = await open_pool(stack, store, layout, transport or TransportConfig(), tls, protocol)
        client = BookKeeperClient(
            store,
            pool,
            placement or RandomPlacement(rng),
            clock=lambda: time.time_ns() // 1_000_000,
            rng=rng,
            config=config,
            layout=layout,
        )
        yield Ledgers(store, client, pending_bytes_max)
