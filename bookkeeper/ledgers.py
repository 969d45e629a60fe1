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

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, RandomPlacement
from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.find_layout import find_layout
from magnetar.bookkeeper.layout.metadata_service_uri import store_url_of
from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C, LedgerMetadata
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.tls import TlsFiles
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore

__all__ = ["Ledgers", "ReadHandle", "WriteHandle", "connect_ledgers"]

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_READ_ENTRIES: Final = 1000


class WriteHandle:
    """A ledger that this process writes; no other can append to it.

    Attributes:
        ledger_id: its id, to open it by.
    """

    def __init__(self, writer: AsyncLedgerWriter, pending_bytes_max: int) -> None:
        self.ledger_id = writer.ledger_id
        self._writer = writer
        self._pending_bytes_max = pending_bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # by last entry id
        self._blocked: deque[asyncio.Future[None]] = deque()  # callers that wait for room
        writer.on_confirmed = self._on_confirmed
        writer.on_failed = self._on_failed

    @property
    def last_confirmed(self) -> int:
        """Highest entry that is durable on its ack quorum, and so readable; -1: none."""
        return self._writer.last_confirmed

    async def append(self, entry: bytes) -> int:
        """Append one entry; returns its id once it is durable. Many may run at a time.

        Raises:
            LedgerError: the ledger takes no more entries. Whether this one is in it is open until
                the ledger was closed, or opened with recovery.
        """
        return (await self.append_all([entry]))[0]

    async def append_all(self, entries: Sequence[bytes]) -> range:
        """Append entries with consecutive ids in one go; returns their ids. As ``append``."""
        if not entries:
            raise ValueError("no entries to append")
        if self._blocked or self._is_full():
            await self._turn()
        try:
            first = self._writer.append([b""] * len(entries), [bytes(entry) for entry in entries])
            confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((first + len(entries) - 1, confirmed))
        finally:
            self._admit()
        # Its caller may be cancelled, then the error isn't retrieved.
        confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(confirmed)
        return range(first, first + len(entries))

    def _is_full(self) -> bool:
        return self._writer.error is None and self._writer.pending_bytes >= self._pending_bytes_max

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blocked.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._blocked.remove(turn)
            self._admit()  # the turn may have been given already
            raise
        self._blocked.remove(turn)

    def _admit(self) -> None:
        """Let the first caller go on; it stays in line until it runs, so none overtakes it."""
        if self._blocked and not self._blocked[0].done() and not self._is_full():
            self._blocked[0].set_result(None)

    def _on_confirmed(self, upto: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= upto:
            waiting.popleft()[1].set_result(None)
        self._admit()

    def _on_failed(self, error: LedgerError) -> None:
        while self._waiting:
            self._waiting.popleft()[1].set_exception(error)
        self._admit()

    async def close(self) -> int:
        """End the ledger at its last confirmed entry and return that entry's id (-1: empty).

        Raises:
            LedgerFencedError: another process has taken the ledger over.
            MetadataError: the store failed; try again.
        """
        return (await self._writer.close()).last_entry

    def view(self) -> "ReadHandle":
        """Reads this ledger up to ``last_confirmed``, also while it grows."""
        return ReadHandle(self._writer.reader())


class ReadHandle:
    """Reads a ledger; never shows an entry that isn't durable on its ack quorum."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def last_confirmed(self) -> int:
        """Highest readable entry, as far as this view knows; -1: none. ``refresh`` asks."""
        return self._reader.last_confirmed

    @property
    def is_closed(self) -> bool:
        """The ledger will never have more entries than ``last_confirmed`` tells."""
        return self._reader.is_closed

    async def refresh(self) -> int:
        """Learn how far the ledger has grown and whether it was closed; ``last_confirmed``.

        Raises:
            BookieUnavailableError: no bookie of its last ensemble answered; try again.
            NoSuchLedgerError: it was deleted.
        """
        await self._reader.refresh()
        return self._reader.last_confirmed

    async def wait(self, above: int, timeout_s: float) -> int:
        """Wait until entries above ``above`` are confirmed or the ledger is closed, or in vain.

        Returns ``last_confirmed``. A pausing writer's last entry shows when it tells of it
        (``explicit_lac_interval_ms`` of its ``ClientConfig``), appends again or closes.

        Raises:
            BookieUnavailableError: nothing came, and too few bookies answered to be sure.
            NoSuchLedgerError: it was deleted.
        """
        return await self._reader.wait(above, timeout_s)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Entries ``first`` to ``last``, both in it. Raises as ``LedgerReader.read`` does."""
        entries: list[bytes] = []
        while len(entries) <= last - first:
            entries += await self._read_run(first + len(entries), last)
        return entries

    async def entries(self, first: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """Ids and entries from ``first`` up to what is confirmed when they are reached."""
        while first <= self.last_confirmed:
            for entry in await self._read_run(first, self.last_confirmed):
                yield first, entry
                first += 1

    async def _read_run(self, first: int, last: int) -> list[bytes]:
        last = min(last, first + _READ_ENTRIES - 1)
        run = await self._reader.read(first, last, _READ_BYTES, 0)
        return [bytes(body) for body in run.bodies]


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
