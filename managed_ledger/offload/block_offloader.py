"""An offloader over any object store: two objects a copy, streamed, and read back at once."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial

from crc32c import crc32c

from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger.offload.config import OffloadMetrics
from magnetar.managed_ledger.offload.context import LedgerCopy
from magnetar.managed_ledger.offload.copy_format import CopyIndex, CopyWriter
from magnetar.managed_ledger.offload.copy_reader import CopyReader
from magnetar.managed_ledger.offload.errors import (
    CopyDamagedError,
    OffloadedReadError,
    OffloadError,
)
from magnetar.managed_ledger.offload.interfaces import CopyJob, EntryReader, ObjectStore, Upload

RUN_BYTES = 512 << 10
"""Read from a ledger and written in one step: all that is in memory of it, twice at most."""
RUN_ENTRIES = 512
"""A run is cut here, so that its digests never hold the loop for long."""


class BlockOffloader:
    """See ``LedgerOffloader``; ``<name>.data`` and ``<name>.index`` hold a copy.

    Args:
        driver: its name.
        open_store: the object store at a copy's location; raises OffloadError.
        copies_max: ledgers that are copied at the same time by this process.
    """

    def __init__(
        self,
        driver: str,
        open_store: Callable[[Mapping[str, str]], ObjectStore],
        copies_max: int,
        metrics: OffloadMetrics,
    ) -> None:
        self._driver = driver
        self._open_store = open_store
        self._permits = asyncio.Semaphore(copies_max)
        self._metrics = metrics

    @property
    def metrics(self) -> OffloadMetrics:
        return self._metrics

    @property
    def driver(self) -> str:
        return self._driver

    async def offload(self, job: CopyJob, source: EntryReader) -> int:
        async with self._permits:
            try:
                size = await self._copy(job, source)
            except OSError as error:
                self.metrics.copy_errors += 1
                raise OffloadError(f"copy of ledger {job.copy.name}: {error}") from error
            except (OffloadError, LedgerError):
                self.metrics.copy_errors += 1
                raise
        self.metrics.copied(size)
        return size

    async def open(self, copy: LedgerCopy) -> EntryReader:
        name = f"{copy.name}.index"
        try:
            store = self._open_store(copy.location)
            size = await store.size(name)
            if size is None:
                raise CopyDamagedError(f"{name}: there is no such object in {copy.location}")
            index = CopyIndex.decode(await _read_all(partial(store.read, name), size), name)
            if (index.ledger_id, index.uuid) != (copy.ledger_id, copy.uuid):
                raise CopyDamagedError(f"{name}: is of ledger {index.ledger_id}, {index.uuid}")
            data = f"{copy.name}.data"
            size = await store.size(data)
            if size != index.data_bytes:
                raise CopyDamagedError(f"{data}: {size} bytes, {index.data_bytes} were written")
        except (OSError, OffloadError) as error:
            self.metrics.read_errors += 1
            raise OffloadedReadError(f"copy of ledger {copy.name}: {error}") from error
        except CopyDamagedError:
            self.metrics.read_errors += 1
            raise
        return CopyReader(index, store, data, self.metrics)

    async def delete(self, copy: LedgerCopy) -> None:
        try:
            store = self._open_store(copy.location)
            # The index first: without it no reader takes the data for a copy.
            await store.delete(f"{copy.name}.index")
            await store.delete(f"{copy.name}.data")
        except OSError as error:
            raise OffloadError(f"copy of ledger {copy.name} not deleted: {error}") from error
        self.metrics.deleted += 1

    async def _copy(self, job: CopyJob, source: EntryReader) -> int:
        store = self._open_store(job.copy.location)
        async with AsyncExitStack() as stack:
            data = await store.create(f"{job.copy.name}.data")
            stack.push_async_callback(data.abort)
            index = await _write_data(job, source, data)
            await data.sync()
            await _check_data(job, index, data)
            encoded = index.encode()
            listing = await store.create(f"{job.copy.name}.index")
            stack.push_async_callback(listing.abort)
            await listing.write([encoded])
            await listing.sync()
            if await _read_all(listing.read, len(encoded)) != encoded:
                raise OffloadError(f"copy of ledger {job.copy.name}: its index was not written")
            await data.complete()
            stack.push_async_callback(_discard, store, f"{job.copy.name}.data")
            await listing.complete()
            stack.pop_all()
        return index.data_bytes + len(encoded)


async def _write_data(job: CopyJob, source: EntryReader, data: Upload) -> CopyIndex:
    ledger_id, last = job.copy.ledger_id, job.entries - 1
    writer = CopyWriter(job.log, ledger_id, job.copy.uuid, job.block_bytes)
    while writer.entries <= last:
        end = min(last, writer.entries + RUN_ENTRIES - 1)
        run = await source.read(writer.entries, end, RUN_BYTES)
        await data.write(writer.add(run.bodies))
        if writer.is_block_full:
            writer.end_block()
            await data.end_block()
    writer.end_block()
    if (writer.entries, writer.entry_bytes) != (job.entries, job.size):
        raise OffloadError(
            f"ledger {ledger_id}: {writer.entries} entries of {writer.entry_bytes} bytes were read,"
            f" the log knows {job.entries} of {job.size}"
        )
    return writer.index()


async def _check_data(job: CopyJob, index: CopyIndex, data: Upload) -> None:
    """Reads everything back: what is stored must be what the ledger's reader gave."""
    for block in index.blocks:
        digest, offset, end = 0, block.offset, block.offset + block.size
        while offset < end:
            part = await data.read(offset, min(RUN_BYTES, end - offset))
            if not part:
                break
            digest = crc32c(part, digest)
            offset += len(part)
        if offset != end or digest != block.digest:
            raise OffloadError(
                f"copy of ledger {job.copy.name}: the block at {block.offset} was read back changed"
            )


async def _discard(store: ObjectStore, name: str) -> None:
    """Removes half of a copy; a failure leaves that to the next owner, which the list tells."""
    with contextlib.suppress(OSError):
        await store.delete(name)


async def _read_all(read: Callable[[int, int], Awaitable[bytes]], size: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = await read(offset, min(RUN_BYTES, size - offset))
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
