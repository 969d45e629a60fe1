"""Entries of a slice, straight from bookies or from copies of ledgers; brokers aren't asked.

Spark's tasks are threads of nobody: a task has an event loop in a thread of its own, which reads
ahead of the decoder. When replicas can't be reached or deny to have an entry, the broker is asked
once more where things are: auto-recovery may have moved them, or they were trimmed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from bookkeeper.auth.token_source import TokenSource
from bookkeeper.client.config import ClientConfig
from bookkeeper.client.ledger_reader import EntryRun, LedgerReader
from bookkeeper.client.ledger_store import VersionedLedger
from bookkeeper.client.pool import BookiePool
from bookkeeper.client.replicas import Replicas
from bookkeeper.errors import BookieUnavailableError, LedgerError, NoSuchLedgerError
from bookkeeper.transport_grpc.config import TransportConfig
from bookkeeper.transport_grpc.remote_bookie import BookieAddress, RemoteBookieClient
from bookkeeper.transport_grpc.tls import channel_credentials
from managed_ledger.offload.file_store import FilesystemOffloader
from managed_ledger.offload.ports import EntryReader
from metadata.store import Watch
from pipeline.admin import Admin, ClusterAccess, TopicNotFoundError
from pipeline.errors import DataLossError, SegmentsUnavailableError
from pipeline.plan import Piece, Slice
from pipeline.snapshot import StoredLedger, TopicSnapshot

__all__ = ["SliceReader"]

_log = logging.getLogger(__name__)

_RUN_BYTES: Final = 4 * 1024 * 1024
_RUNS_AHEAD: Final = 3
_PAUSES_S: Final = (0.2, 1.0, 3.0, 5.0, 10.0)
"""Between attempts to read one run; after the last one the task fails, and Spark repeats it."""
_WINDOW_BYTES: Final = 8 * 1024 * 1024
_WINDOW_ENTRIES_MAX: Final = 1024

T = TypeVar("T")


class SliceReader:
    """Reads one slice; a context manager whose end leaves no thread and no connection.

    Args:
        fail_on_data_loss: False: ledgers that are trimmed meanwhile are left out.
    """

    def __init__(self, part: Slice, cluster: ClusterAccess, *, fail_on_data_loss: bool) -> None:
        self._part = part
        self._fail_on_data_loss = fail_on_data_loss
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="slice-reader", daemon=True)
        self._shelf = _Shelf(part, cluster)
        self._runs: asyncio.Queue[EntryRun | BaseException | None] = asyncio.Queue(_RUNS_AHEAD)
        self._pump: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def runs(self) -> Iterator[EntryRun]:
        """All entries of the slice, in order.

        Raises:
            DataLossError: a ledger is gone.
            SegmentsUnavailableError: it can't be read now; says who failed, and how.
        """
        self._call(self._start())
        while (run := self._call(self._runs.get())) is not None:
            if isinstance(run, BaseException):
                raise run
            yield run

    def windows_before(self, ledger_id: int, entry_id: int) -> Iterator[EntryRun]:
        """Entries before a position, backwards by windows, each window in ascending order.

        Raises:
            SegmentsUnavailableError.
        """
        snapshot = self._call(self._shelf.refresh(-1))
        for ledger in reversed(snapshot.ledgers):
            if ledger.ledger_id > ledger_id:
                continue
            end = entry_id if ledger.ledger_id == ledger_id else ledger.entries
            size = int(_WINDOW_BYTES / max(1.0, ledger.entry_bytes))
            size = max(1, min(size, _WINDOW_ENTRIES_MAX))
            while end > 0:
                first = max(0, end - size)
                yield self._call(self._window(Piece(ledger, first, end)))
                end = first

    async def _window(self, piece: Piece) -> EntryRun:
        window = EntryRun(piece.ledger.ledger_id, piece.first, [], [])
        while (at := piece.first + len(window.heads)) < piece.end:
            run = await self._read(Piece(piece.ledger, at, piece.end), at)
            window.heads += run.heads
            window.bodies += run.bodies
        return window

    # ---- in the loop's thread

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self) -> None:
        self._pump = asyncio.create_task(self._pump_runs())

    async def _close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        await self._shelf.close()

    async def _pump_runs(self) -> None:
        try:
            for piece in self._part.pieces:
                at = piece.first
                while at < piece.end:
                    try:
                        run = await self._read(piece, at)
                    except DataLossError as error:
                        if self._fail_on_data_loss:
                            raise
                        _log.warning("left out: %s", error)
                        break
                    at += len(run.heads)
                    await self._runs.put(run)
            await self._runs.put(None)
        except Exception as error:  # told to whoever reads, in their thread
            await self._runs.put(error)

    async def _read(self, piece: Piece, at: int) -> EntryRun:
        ledger_id = piece.ledger.ledger_id
        for pause_s in (*_PAUSES_S, -1.0):
            try:
                reader = await self._shelf.reader(piece.ledger, piece.end - 1)
                return await reader.read(at, piece.end - 1, _RUN_BYTES, self._part.head_bytes)
            except LedgerError as error:
                where = f"{self._part.topic}: ledger {ledger_id}, entry {at}"
                await self._check_still_there(ledger_id, where)
                if pause_s < 0:
                    raise SegmentsUnavailableError(f"{where} can't be read: {error}") from error
                _log.warning("%s: %s; once more in %s s", where, error, pause_s)
                await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt raises")

    async def _check_still_there(self, ledger_id: int, where: str) -> None:
        """After a failure: is it gone, or moved? Readers are made anew in both cases."""
        try:
            snapshot = await self._shelf.refresh(ledger_id)
        except SegmentsUnavailableError as error:
            _log.warning("%s: no broker says where it is: %s", where, error)
            return
        except TopicNotFoundError as error:
            raise DataLossError(f"{where}: the topic was deleted") from error
        if snapshot.find(ledger_id) is None:
            raise DataLossError(f"{where} is not stored any more: the ledger was trimmed")


class _Shelf:
    """Readers of a topic's ledgers, and who tells where these are. Lives in the loop's thread."""

    def __init__(self, part: Slice, cluster: ClusterAccess) -> None:
        self._topic, self._cluster = part.topic, cluster
        self._places = dict(part.bookies)
        self._instance_id = part.instance_id
        token = cluster.bookie_token or part.bookie_token
        self._token = TokenSource(token) if token else None
        self._config = ClientConfig()
        self._clients: list[RemoteBookieClient] = []
        self._bookies: BookiePool | None = None  # wants a running loop
        self._replicas: Replicas | None = None
        self._offloader: FilesystemOffloader | None = None
        self._readers: dict[int, EntryReader] = {}
        self._fresh: dict[int, StoredLedger] = {}

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        if self._offloader is not None:
            self._offloader.close()

    async def reader(self, ledger: StoredLedger, last: int) -> EntryReader:
        """A reader up to entry ``last`` at least. Raises LedgerError."""
        found = self._readers.get(ledger.ledger_id)
        if found is None or (isinstance(found, LedgerReader) and found.last_confirmed < last):
            ledger = self._fresh.get(ledger.ledger_id, ledger)
            found = self._readers[ledger.ledger_id] = await self._open(ledger, last)
        return found

    async def _open(self, ledger: StoredLedger, last: int) -> EntryReader:
        if ledger.copy is not None:
            if self._offloader is None:
                self._offloader = FilesystemOffloader(copy_threads=1, read_threads=2)
            try:
                return await self._offloader.open(ledger.copy)
            except LedgerError as error:
                if ledger.copy_is_only or ledger.metadata is None:
                    raise
                _log.warning("%s; its bookies are asked instead", error)
        if ledger.metadata is None:
            raise NoSuchLedgerError(f"ledger {ledger.ledger_id}: nobody says where it is")
        if self._bookies is None or self._replicas is None:
            self._bookies = BookiePool(None, self._connect)
            self._replicas = Replicas(self._bookies, self._config.reads)
        return LedgerReader(
            *(ledger.metadata, last, _Directory(self), self._bookies, self._config),
            self._replicas,
        )

    def _connect(self, bookie_id: str) -> RemoteBookieClient:
        client = RemoteBookieClient(
            bookie_id,
            self._resolve,
            TransportConfig(),
            lambda: channel_credentials(tls) if (tls := self._cluster.bookie_tls) else None,
            token=self._token,
        )
        self._clients.append(client)
        return client

    async def _resolve(self, bookie_id: str) -> BookieAddress:
        place = self._places.get(bookie_id)
        if place is None:
            raise BookieUnavailableError(f"bookie {bookie_id} isn't registered")
        return BookieAddress(*place, self._instance_id)

    async def refresh(self, from_ledger: int) -> TopicSnapshot:
        """Ask the owner where the ledgers from this one on are; readers are made anew.

        Raises:
            SegmentsUnavailableError, TopicNotFoundError.
        """

        def ask() -> TopicSnapshot:
            with Admin(self._cluster) as admin:
                return admin.segments(self._topic, from_ledger)

        snapshot = await asyncio.to_thread(ask)
        self._places.update(snapshot.bookies)
        self._fresh.update((each.ledger_id, each) for each in snapshot.ledgers)
        self._readers.clear()
        return snapshot

    async def require(self, ledger_id: int) -> VersionedLedger:
        try:
            found = (await self.refresh(ledger_id)).find(ledger_id)
        except (SegmentsUnavailableError, TopicNotFoundError) as error:
            raise BookieUnavailableError(str(error)) from error
        if found is None or found.metadata is None:
            raise NoSuchLedgerError(f"ledger {ledger_id}: nobody says where it is")
        return VersionedLedger(found.metadata, 0)


class _Directory:
    """See ``LedgerDirectory``: the broker stands for the metadata store."""

    def __init__(self, shelf: _Shelf) -> None:
        self._shelf = shelf

    async def require(self, ledger_id: int) -> VersionedLedger:
        return await self._shelf.require(ledger_id)

    def watch(self, ledger_id: int, on_change: Callable[[], None]) -> Watch:
        raise NotImplementedError("slices have an end: nobody waits for a ledger to grow")
