"""Entries of a slice, straight from bookies or from copies of ledgers; brokers aren't asked.

Spark's tasks have no event loop: a task makes an event loop in a thread of its own, which reads
ahead of the decoder. When replicas can't be reached or deny to have an entry, the broker is asked
once more where things are: auto-recovery may have moved them, or they were trimmed.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

from magnetar.broker.cli.loop_thread import LoopThread
from magnetar.broker.compaction.compacted_entry import batches_of, decode_compacted
from magnetar.broker.protocol.stored_entries import PULSAR_ENTRIES
from magnetar.pipeline.admin import ClusterAccess
from magnetar.pipeline.errors import DataLossError
from magnetar.pipeline.offsets import BEGINNING, Offset
from magnetar.pipeline.partition_reader import BookieConnections, PartitionReader
from magnetar.pipeline.read_plan import (
    EntryRange,
    InputSplit,
    compacted_ranges_between,
    entry_ranges_between,
)
from magnetar.pipeline.topic_snapshot import TopicSnapshot

_log = logging.getLogger(__name__)

_RUN_BYTES: Final = 4 * 1024 * 1024
_RUNS_AHEAD: Final = 3
_PAUSES_S: Final = (0.2, 1.0, 3.0, 5.0, 10.0)
"""Between attempts to read one run; after the last one the task fails, and Spark repeats it."""
_WINDOW_BYTES: Final = 8 * 1024 * 1024
_WINDOW_ENTRIES_MAX: Final = 1024


@dataclass(slots=True)
class SplitEntries:
    """Consecutive entries of one ledger, from ``first`` on, as two parallel lists."""

    ledger_id: int
    first: int
    heads: list[bytes]
    bodies: list[bytes | memoryview]


class SplitReader:
    """Reads one slice; a context manager whose end leaves no thread and no connection.

    Args:
        fail_on_data_loss: False: ledgers that are trimmed meanwhile are left out.
    """

    def __init__(
        self, part: InputSplit, cluster: ClusterAccess, *, fail_on_data_loss: bool
    ) -> None:
        self._part = part
        self._fail_on_data_loss = fail_on_data_loss
        self._cluster = cluster
        self._thread = LoopThread("slice-reader")
        self._call = self._thread.call
        self._bookies: BookieConnections
        self._partition_reader: PartitionReader
        self._runs: asyncio.Queue[SplitEntries | Exception | None] = asyncio.Queue(_RUNS_AHEAD)
        self._pump: asyncio.Task[None] | None = None
        self._listed: TopicSnapshot | None = None  # with all of the topic's ledgers

    def __enter__(self) -> Self:
        try:
            self._call(self._open())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._close())
        finally:
            self._thread.close()

    def runs(self) -> Iterator[SplitEntries]:
        """All entries of the slice, in order.

        Raises:
            DataLossError: a ledger is gone.
            SegmentsUnavailableError: it can't be read now; says who failed, and how.
        """
        self._call(self._start())
        while (run := self._call(self._runs.get())) is not None:
            if isinstance(run, Exception):
                raise run
            yield run

    def windows_before(self, ledger_id: int, entry_id: int) -> Iterator[SplitEntries]:
        """Entries before a position, backwards by windows, each window in ascending order.

        Raises:
            DataLossError: they are being trimmed. SegmentsUnavailableError.
        """
        if self._listed is None:
            # Once for all that is looked for: it may be long, and ledgers in front of a slice are
            # as they were, or gone.
            self._listed = self._call(self._partition_reader.refresh(-1))
        point = Offset(ledger_id, entry_id)
        for piece in reversed(self._pieces_before(self._listed, point)):
            end = piece.end
            size = int(_WINDOW_BYTES / max(1.0, piece.ledger.entry_bytes))
            size = max(1, min(size, _WINDOW_ENTRIES_MAX))
            while end > piece.first:
                first = max(piece.first, end - size)
                try:
                    window = self._call(self._window(replace(piece, first=first, end=end)))
                except DataLossError:
                    self._listed = None  # it was trimmed since
                    raise
                yield window
                end = first

    def _pieces_before(self, snapshot: TopicSnapshot, point: Offset) -> list[EntryRange]:
        """What is stored before a point, as this slice reads the topic."""
        compacted = snapshot.compacted
        if compacted is None:
            return entry_ranges_between(snapshot, BEGINNING, point)
        last = compacted.ledger.entries
        if point < compacted.horizon:
            find = self._partition_reader.find_compacted
            last, _ = self._call(find(compacted.ledger, lambda at, _: at < point[:2]))
        return compacted_ranges_between(snapshot, BEGINNING, point, (0, last))

    async def _window(self, piece: EntryRange) -> SplitEntries:
        runs: list[SplitEntries] = []
        at = piece.first
        while at < piece.end:
            found = await self._read(piece, at)
            at += sum(len(run.heads) for run in found)
            runs += found
        window = runs[0]
        for run in runs[1:]:
            window.heads += run.heads
            window.bodies += run.bodies
        return window

    # ---- in the loop's thread

    async def _open(self) -> None:
        part = self._part
        self._bookies = BookieConnections(self._cluster)
        self._bookies.note_places(part.bookies, part.instance_id, part.bookie_protocol)
        self._bookies.note_token(part.bookie_token)
        self._partition_reader = PartitionReader(
            *(part.topic, self._cluster, self._bookies), compacted=part.compacted is not None
        )

    async def _start(self) -> None:
        self._pump = asyncio.create_task(self._pump_runs())

    async def _close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump
        await self._bookies.close()

    async def _pump_runs(self) -> None:
        try:
            for piece in self._part.pieces:
                at = piece.first
                while at < piece.end:
                    try:
                        runs = await self._read(piece, at)
                    except DataLossError as error:
                        # The rows of a compacted ledger that is gone are in the next one.
                        if self._fail_on_data_loss or piece.points is not None:
                            raise
                        _log.warning("left out: %s", error)
                        break
                    for run in runs:
                        at += len(run.heads)
                        await self._runs.put(run)
            await self._runs.put(None)
        except Exception as error:  # ``runs`` raises it in the reader's thread
            await self._runs.put(error)

    async def _read(self, piece: EntryRange, at: int) -> list[SplitEntries]:
        """Entries from ``at`` on, at least one; those of a compacted ledger are where they were."""
        last = piece.end - 1

        async def read() -> list[SplitEntries]:
            reader = await self._partition_reader.reader(piece.ledger, last)
            run = await reader.read(at, last, _RUN_BYTES)
            if piece.points is None:
                return [SplitEntries(run.ledger_id, run.first, *PULSAR_ENTRIES.split(run.bodies))]
            batches = batches_of(list(map(decode_compacted, run.bodies)), PULSAR_ENTRIES)
            return [SplitEntries(x.ledger_id, x.first, x.heads, x.bodies) for x in batches]

        return await self._partition_reader.read_patiently(
            piece.ledger.ledger_id, at, _PAUSES_S, read
        )
