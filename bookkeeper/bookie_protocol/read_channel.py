"""Reads of one bookie, in version 2: single entries, and batches of entries in a row."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connection import BookieConnection, ConnectionV2
from magnetar.bookkeeper.bookie_protocol.connections import LazyConnection, Resolve
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, Digest, from_stored
from magnetar.bookkeeper.bookie_protocol.result_codes import from_v2
from magnetar.bookkeeper.errors import BookieUnavailableError, FrameError
from magnetar.bookkeeper.transport import ReadReply, ReadRequest

_SINGLE_MAX: Final = 64
"""Entries of a striped ledger that are asked for at a time."""
_BATCH_LOSSES_MAX: Final = 2
_RECOVERY_READ: Final = v2.DO_FENCING | v2.HIGH_PRIORITY

_Found = TypeVar("_Found", v2.ReadReplyV2, v2.BatchReadReplyV2)


class ReadChannel:
    """One connection; ``pending_requests`` are without a reply."""

    def __init__(self, bookie_id: str, resolve: Resolve, config: ProtocolConfig) -> None:
        self.pending_requests = 0
        self._bookie_id = bookie_id
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._connection = LazyConnection[ConnectionV2](
            bookie_id, resolve, self._create, self._on_lost, config
        )
        self._reads: dict[tuple[int, int], deque[asyncio.Future[v2.ReadReplyV2]]] = {}
        self._batches: dict[int, asyncio.Future[v2.BatchReadReplyV2]] = {}
        self._next_batch = 1
        self._batch_losses = 0
        """Connections in a row that ended instead of a first batch: a bookie before 4.17 doesn't
        know batch reads, and closes the connection. Once may be anything else."""
        self._has_batches = False

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, flags: int = 0, master_key: bytes = b""
    ) -> v2.ReadReplyV2:
        """
        Raises:
            BookieUnavailableError: no reply.
        """
        key = (ledger_id, entry_id)
        connection = await self._connect()
        call: asyncio.Future[v2.ReadReplyV2] = self._loop.create_future()
        self._reads.setdefault(key, deque()).append(call)
        connection.write(v2.encode_read(ledger_id, entry_id, flags=flags, master_key=master_key))
        return await self._wait(call)

    async def read_entries(self, request: ReadRequest, digest: Digest) -> ReadReply:
        """See ``BookieClient``; packets have our digest.

        Raises:
            BookieUnavailableError: no reply.
        """
        is_row = request.stripe.width == request.stripe.cycle
        if is_row and request.count_max > 1 and self._knows_batches():
            try:
                return await self._read_batch(request, digest)
            except BookieUnavailableError:
                if self._knows_batches():
                    raise
        return await self._read_singly(request, digest)

    async def read_own(self, request: ReadRequest) -> tuple[int, list[memoryview]]:
        """Code and packets of a bookie of ours.

        Raises:
            BookieUnavailableError: no reply.
        """
        reply = await self._batch(lambda number: v2.encode_own_read(request, number))
        return reply.code, reply.packets

    def drop(self, error: Exception) -> None:
        """Leave the bookie's process; the next read connects anew."""
        self._connection.drop(error)

    async def close(self) -> None:
        await self._connection.close()
        self._fail_all(BookieUnavailableError(f"bookie {self._bookie_id}: the client is closed"))

    async def _connect(self) -> ConnectionV2:
        """Raises: BookieUnavailableError: it can't be reached."""
        self.pending_requests += 1
        try:
            return await self._connection.get()
        finally:
            self.pending_requests -= 1

    def _knows_batches(self) -> bool:
        return self._batch_losses < _BATCH_LOSSES_MAX

    async def _read_batch(self, request: ReadRequest, digest: Digest) -> ReadReply:
        reply = await self._batch(
            lambda number: v2.encode_batch_read(
                *(request.ledger_id, request.first, number, request.count_max),
                min(request.bytes_max, self._config.frame_bytes_max - v2.BATCH_REPLY_BYTES),
                flags=_RECOVERY_READ if request.fence else 0,
                more=request.master_key if request.fence else b"",
            )
        )
        self._has_batches = True
        return _read_reply(from_v2(reply.code), request.first, reply.packets, digest)

    async def _batch(self, encode: Callable[[int], bytes]) -> v2.BatchReadReplyV2:
        """The reply to a batch read; ``encode`` makes its frame with a request's id."""
        number, self._next_batch = self._next_batch, self._next_batch + 1
        connection = await self._connect()
        call: asyncio.Future[v2.BatchReadReplyV2] = self._loop.create_future()
        self._batches[number] = call
        connection.write(encode(number))
        return await self._wait(call)

    async def _read_singly(self, request: ReadRequest, digest: Digest) -> ReadReply:
        """Several at a time, as far as they are there and fit."""
        count = 1 if request.count_max == 1 else min(request.count_max, _SINGLE_MAX)
        ids = list(islice(request.stripe.ids(request.first), count))
        flags = _RECOVERY_READ if request.fence else 0
        key = request.master_key if request.fence else b""
        found = await asyncio.gather(
            *(
                self.read_entry(request.ledger_id, entry_id, flags=flags, master_key=key)
                for entry_id in ids
            )
        )
        packets: list[memoryview] = []
        size = 0
        for reply in found:
            size += len(reply.packet)
            if reply.code or (packets and size > request.bytes_max):
                break
            packets.append(reply.packet)
        code = codes.OK if packets else from_v2(found[0].code)
        return _read_reply(code, request.first, packets, digest)

    def _create(self, on_lost: Callable[[BookieConnection, Exception], None]) -> ConnectionV2:
        return ConnectionV2(on_lost, self._on_reply, self._config.frame_bytes_max)

    async def _wait(self, call: asyncio.Future[_Found]) -> _Found:
        self.pending_requests += 1
        try:
            async with asyncio.timeout(self._config.read_timeout_s):
                return await call
        except TimeoutError as error:
            # Replies don't say which of several equal reads they are of.
            self._connection.drop(error)
            raise BookieUnavailableError(
                f"bookie {self._bookie_id}: no reply in {self._config.read_timeout_s} s"
            ) from error
        finally:
            self.pending_requests -= 1

    def _on_reply(self, reply: v2.Reply) -> None:
        if isinstance(reply, v2.ReadReplyV2):
            key = (reply.ledger_id, reply.entry_id)
            calls = self._reads.get(key)
            if not calls:
                raise FrameError(f"a reply to entry {key}, which wasn't asked for")
            call = calls.popleft()
            if not calls:
                del self._reads[key]
            if not call.done():
                call.set_result(reply)
        elif isinstance(reply, v2.BatchReadReplyV2):
            batch = self._batches.pop(reply.request_id, None)
            if batch is not None and not batch.done():
                batch.set_result(reply)
        else:
            raise FrameError("a reply to what wasn't asked")

    def _on_lost(self, error: Exception) -> None:
        if self._batches and not self._has_batches and isinstance(error, ConnectionResetError):
            self._batch_losses += 1
        self._fail_all(BookieUnavailableError(f"bookie {self._bookie_id}: {error}"))

    def _fail_all(self, error: BookieUnavailableError) -> None:
        reads, self._reads = self._reads, {}
        batches, self._batches = self._batches, {}
        calls: list[asyncio.Future[Any]] = [each for some in reads.values() for each in some]
        for call in [*calls, *batches.values()]:
            if not call.done():
                call.set_exception(error)


def _read_reply(code: int, first: int, stored: list[memoryview], digest: Digest) -> ReadReply:
    if code != codes.OK:
        return ReadReply(code, first, [])
    if digest is CRC32C:
        return ReadReply(code, first, list[bytes | memoryview](stored))
    return ReadReply(code, first, [from_stored(digest, each) for each in stored])
