"""Readers of a topic's ledgers for processes without a session of the metadata store."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import OWN_FRAME_BYTES_MAX, ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest, DigestType
from magnetar.bookkeeper.bookie_protocol.login import SaslLogin
from magnetar.bookkeeper.bookie_protocol.own_client import OwnBookieClient
from magnetar.bookkeeper.bookie_protocol.own_login import OwnLogin
from magnetar.bookkeeper.bookie_protocol.protocol_client import ProtocolBookieClient
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.client.ledger_store import VersionedLedger
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.replica_choice import Replicas
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    EntryDigestError,
    LedgerError,
    NoSuchLedgerError,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.tls import client_context
from magnetar.broker.compaction.compacted_entry import decode_compacted, first_not_before
from magnetar.broker.protocol.stored_entries import Buffer
from magnetar.managed_ledger.offload.file_store import FilesystemOffloader
from magnetar.managed_ledger.offload.interfaces import EntryReader
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.metadata.store import Watch
from magnetar.pipeline.admin import Admin, ClusterAccess, NoSuchTopicError
from magnetar.pipeline.errors import DataLossError, SegmentsUnavailableError
from magnetar.pipeline.topic_snapshot import TopicLedger, TopicSnapshot

_log = logging.getLogger(__name__)

_SEARCH_PAUSES_S: Final = (0.2, 1.0, 3.0, 5.0)

T = TypeVar("T")
Read: TypeAlias = Callable[[], Awaitable[T]]


class BookieConnections:
    """Connections to bookies and to stores of copies, for any number of topics.

    Lives in one running event loop.
    """

    def __init__(self, cluster: ClusterAccess) -> None:
        tls = cluster.bookie_tls
        self._context = None if tls is None else partial(client_context, tls)
        credentials = cluster.bookie_credentials
        self._login = None if credentials is None else SaslLogin(lambda: credentials)
        self._takes_tokens = not cluster.bookie_token  # the user's comes first
        self._token = TokenSource(cluster.bookie_token) if cluster.bookie_token else None
        self._places: dict[str, tuple[str, int]] = {}
        self._instance_id = ""
        self._protocol = ""
        self._clients: list[OwnBookieClient | ProtocolBookieClient] = []
        self._encoded = EncodedAdds()
        self._digests: dict[int, Digest] = {}
        self._password = cluster.ledger_password.encode()
        self._offloader: FilesystemOffloader | None = None
        self.config = ClientConfig()
        self.pool = BookiePool(None, self._connect)
        self.replicas = Replicas(self.pool, self.config.reads)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        if self._offloader is not None:
            self._offloader.close()

    @property
    def offloader(self) -> FilesystemOffloader:
        if self._offloader is None:
            self._offloader = FilesystemOffloader(copy_threads=1, read_threads=2)
        return self._offloader

    def note_places(
        self, places: Mapping[str, tuple[str, int]], instance_id: str, protocol: str
    ) -> None:
        """Remember the addresses of bookies that a broker named, and what they speak."""
        self._protocol, self._instance_id = protocol, instance_id
        self._places.update(places)

    def note_token(self, token: str) -> None:
        """Show bookies this token from now on, as a broker said: it opens the topic that was asked
        about, expires, and ends with the process that gave it.
        """
        if not token or not self._takes_tokens:
            return
        if self._token is None:
            self._token = TokenSource(f"token:{token}")
        else:
            self._token.replace(token)

    def note_digest(self, metadata: LedgerMetadata) -> None:
        """Before the ledger is read: by what its entries are checked."""
        digest = Digest.create(DigestType[metadata.digest_type], self._password)
        self._digests[metadata.ledger_id] = digest

    def other_cause(self, ledger_id: int, error: LedgerError) -> str:
        """What else than a damaged entry the error may mean; "": nothing."""
        digest = self._digests.get(ledger_id, CRC32C)
        if digest.type is DigestType.HMAC and isinstance(error, EntryDigestError):
            return "; or managedLedgerPassword isn't the ledger's: its digests are made of it (MAC)"
        return ""

    def _connect(self, bookie_id: str) -> OwnBookieClient | ProtocolBookieClient:
        client = self._of_apache(bookie_id) if self._protocol else self._of_ours(bookie_id)
        self._clients.append(client)
        return client

    def _of_apache(self, bookie_id: str) -> ProtocolBookieClient:
        return ProtocolBookieClient(
            *(bookie_id, self._resolve, ProtocolConfig(tls=self._context, login=self._login)),
            *(lambda ledger_id: self._digests.get(ledger_id, CRC32C), self._encoded),
        )

    def _of_ours(self, bookie_id: str) -> OwnBookieClient:
        login = OwnLogin(lambda: self._instance_id, self._token)
        config = ProtocolConfig(frame_bytes_max=OWN_FRAME_BYTES_MAX, tls=self._context, login=login)
        return OwnBookieClient(bookie_id, self._resolve, config, self._encoded)

    async def _resolve(self, bookie_id: str) -> tuple[str, int]:
        place = self._places.get(bookie_id)
        if place is None:
            raise BookieUnavailableError(f"bookie {bookie_id} isn't registered")
        return place


class PartitionReader:
    """The ledgers of one partition; with the compacted one if that is read, too."""

    def __init__(
        self, topic: str, cluster: ClusterAccess, bookies: BookieConnections, *, compacted: bool
    ) -> None:
        self._topic, self._cluster, self._bookies = topic, cluster, bookies
        self._compacted = compacted
        self._readers: dict[int, EntryReader] = {}
        self._fresh: dict[int, TopicLedger] = {}
        self._metadata: dict[int, LedgerMetadata] = {}  # of ledgers that were opened

    def begin(self, ledger_id: int) -> None:
        """A new list of ledgers is at hand, and what is below this one was read: a stream that
        runs for weeks would remember every ledger there was.
        """
        self._fresh.clear()
        self._readers = {each: found for each, found in self._readers.items() if each >= ledger_id}
        self._metadata = {each: m for each, m in self._metadata.items() if each >= ledger_id}

    async def reader(self, ledger: TopicLedger, last: int) -> EntryReader:
        """A reader up to entry ``last`` at least. Raises LedgerError."""
        found = self._readers.get(ledger.ledger_id)
        if found is None or (isinstance(found, LedgerReader) and found.last_confirmed < last):
            ledger = self._fresh.get(ledger.ledger_id, ledger)
            found = self._readers[ledger.ledger_id] = await self._open(ledger, last)
        return found

    async def _open(self, ledger: TopicLedger, last: int) -> EntryReader:
        bookies = self._bookies
        if ledger.copy is not None:
            try:
                return await bookies.offloader.open(ledger.copy)
            except LedgerError as error:
                if ledger.copy_is_only or ledger.metadata is None:
                    raise
                _log.warning("%s; its bookies are asked instead", error)
        if ledger.metadata is None:
            raise NoSuchLedgerError(f"ledger {ledger.ledger_id}: nobody says where it is")
        self._metadata[ledger.ledger_id] = ledger.metadata
        bookies.note_digest(ledger.metadata)
        return LedgerReader(
            *(ledger.metadata, last, self, bookies.pool, bookies.config, bookies.replicas)
        )

    async def refresh(self, from_ledger: int) -> TopicSnapshot:
        """Ask the owner where the ledgers from this one on are; readers are made anew.

        Raises:
            SegmentsUnavailableError, NoSuchTopicError.
        """

        def ask() -> TopicSnapshot:
            with Admin(self._cluster) as admin:
                return admin.segments(self._topic, from_ledger, compacted=self._compacted)

        snapshot = await asyncio.to_thread(ask)
        self._bookies.note_places(snapshot.bookies, snapshot.instance_id, snapshot.bookie_protocol)
        self._bookies.note_token(snapshot.bookie_token)
        self._fresh.update((each.ledger_id, each) for each in snapshot.ledgers)
        if (compacted := snapshot.compacted) is not None:
            self._fresh[compacted.ledger.ledger_id] = compacted.ledger
        self._readers.clear()
        return snapshot

    async def find_compacted(
        self, ledger: TopicLedger, is_before: Callable[[Position, Buffer], bool]
    ) -> tuple[int, Position]:
        """The first entry of a compacted ledger that isn't before what is looked for, and its
        position; the count: there is none.

        Args:
            is_before: asked of positions and stored forms, which ascend.

        Raises:
            DataLossError, SegmentsUnavailableError.
        """
        places: dict[int, Position] = {}

        async def ask(entry: int) -> bool:
            async def read() -> Buffer:
                reader = await self.reader(ledger, ledger.entries - 1)
                return (await reader.read(entry, entry, 1)).bodies[0]

            found = await self.read_patiently(ledger.ledger_id, entry, _SEARCH_PAUSES_S, read)
            position, stored = decode_compacted(found)
            places[entry] = position
            return is_before(position, stored)

        entry = await first_not_before(ledger.entries, ask)
        return entry, places.get(entry, LATEST)

    async def read_patiently(
        self, ledger_id: int, entry_id: int, pauses_s: Sequence[float], read: Read[T]
    ) -> T:
        """The result of ``read``, tried again after each of the pauses.

        Raises:
            DataLossError: the ledger, or the topic, is gone.
            SegmentsUnavailableError: it failed as often as it was tried; says how.
        """
        where = f"{self._topic}: ledger {ledger_id}, entry {entry_id}"
        for pause_s in (*pauses_s, None):
            try:
                return await read()
            except LedgerError as error:
                await self._check_still_there(ledger_id, where)
                cause = self._bookies.other_cause(ledger_id, error)
                if pause_s is None or cause:
                    raise SegmentsUnavailableError(
                        f"{where} can't be read: {error}{cause}"
                    ) from error
                _log.warning("%s: %s; once more in %s s", where, error, pause_s)
                await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt raises")

    async def _check_still_there(self, ledger_id: int, where: str) -> None:
        """After a failure: is it gone, or moved? Readers are made anew in both cases."""
        try:
            snapshot = await self.refresh(ledger_id)
        except SegmentsUnavailableError as error:
            _log.warning("%s: no broker says where it is: %s", where, error)
            return
        except NoSuchTopicError as error:
            raise DataLossError(f"{where}: the topic was deleted") from error
        if snapshot.find(ledger_id) is None:
            raise DataLossError(
                f"{where} is not stored any more: the ledger was trimmed"
                + (", or another compaction has replaced it" if self._compacted else "")
            )

    # ---- LedgerMetadataSource: the broker stands for the metadata store

    async def require(self, ledger_id: int) -> VersionedLedger:
        """The metadata from the ledger's owner; while no broker answers, the last known ones: the
        reader then reports why bookies gave nothing.
        """
        try:
            found = (await self.refresh(ledger_id)).find(ledger_id)
        except (SegmentsUnavailableError, NoSuchTopicError) as error:
            if (known := self._metadata.get(ledger_id)) is None:
                raise BookieUnavailableError(str(error)) from error
            return VersionedLedger(known, 0)
        if found is None or found.metadata is None:
            raise NoSuchLedgerError(f"ledger {ledger_id}: nobody says where it is")
        return VersionedLedger(found.metadata, 0)

    def watch(self, ledger_id: int, on_change: Callable[[], None]) -> Watch:
        raise NotImplementedError("ranges have an end: nobody waits for a ledger to grow")
