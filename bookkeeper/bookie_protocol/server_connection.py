"""A client's connection to a bookie of ours, in BookKeeper's protocol.

Requests are answered in any order; replies go out once a turn of the loop, joined. What no bookie
answers closes the connection: version 2 has no reply for it.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from google.protobuf.message import DecodeError

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie_protocol import requests_v2 as v2
from magnetar.bookkeeper.bookie_protocol.calls_v3 import CallsV3, auth_disabled
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH
from magnetar.bookkeeper.bookie_protocol.frames_v2 import LAST_ENTRY
from magnetar.bookkeeper.bookie_protocol.result_codes import EBADREQ, EOK, EREADONLY, EUA, to_v2
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.packet import Buffer
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.wrapped_packet import as_sent

_log = logging.getLogger(__name__)

_CALLS_MAX: Final = 1_000
"""Of one connection that are not answered, long polls apart; above, it isn't read."""
_BATCH_BYTES_MAX: Final = 5 * 1024 * 1024
"""BookKeeper's ``maxBatchReadSize``."""
_BATCH_START_BYTES: Final = 36
_SINGLES_BYTES: Final = 1024 * 1024
_READS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one connection that are read at a time."""
_READ_CHARGE: Final = 64 * 1024
_TLS_HANDSHAKE_S: Final = 10.0


class ConnectionOwner(Protocol):
    """What the connections of one port share."""

    bookie: Bookie | None
    adds: AddLimits
    reads: ByteSemaphore
    frame_bytes_max: int
    connection_bytes_max: int
    lac_bodies: dict[int, bytes]

    @property
    def has_tls(self) -> bool: ...

    def tls_context(self) -> ssl.SSLContext | None:
        """None: this port has no TLS."""
        ...

    def admit(self, connection: "ServerConnection") -> bool: ...

    def forget(self, connection: "ServerConnection") -> None: ...


@dataclass(slots=True, eq=False)
class _Adds(AddRequest):
    word: int


class ServerConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._decoder = v2.RequestDecoder(owner.frame_bytes_max)
        self._transport: asyncio.Transport
        self._bookie: Bookie
        self._calls_v3: CallsV3
        self._replies: list[bytes] = []
        self._pending_bytes = 0
        self._reads = ByteSemaphore(_READS_BYTES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending_calls = 0
        self._is_paused = self._is_over = False
        self._writable: asyncio.Future[None] | None = None  # while the client doesn't read
        self._must_encrypt = False

    def close(self) -> None:
        """Disconnect."""
        self._transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        bookie = self._owner.bookie
        if bookie is None or not self._owner.admit(self):
            self._is_over = True
            self._transport.abort()
            return
        self._bookie = bookie
        self._calls_v3 = CallsV3(bookie, self._owner.lac_bodies)
        self._must_encrypt = self._owner.has_tls
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            for request in self._decoder.feed(data):
                self._take(request)
        except (FrameError, DecodeError) as error:
            peer = self._transport.get_extra_info("peername")
            _log.warning("a client of BookKeeper's protocol at %s is disconnected: %s", peer, error)
            self._transport.abort()
            return
        self.read_on()

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()
        self.read_on()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)
        self.read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._owner.forget(self)
        self._owner.adds.forget(self)
        for task in self._tasks:
            task.cancel()
        if self._writable is not None:
            self._writable.cancel()

    # ---- back-pressure

    def read_on(self) -> None:
        """Read as long as there is room for what comes."""
        if self._is_over or self._transport.is_closing():
            return
        owner = self._owner
        is_full = (
            self._writable is not None
            or self._pending_bytes > owner.connection_bytes_max
            or self._pending_calls > _CALLS_MAX
        )
        if owner.adds.is_full:
            owner.adds.read_on_later(self)
            is_full = True
        if is_full != self._is_paused:
            self._is_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _reply(self, frame: bytes) -> None:
        """At the end of this turn of the loop."""
        if not self._replies:
            self._loop.call_soon(self._flush)
        self._replies.append(frame)

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        if not self._is_over and not self._transport.is_closing():
            self._transport.writelines(replies)

    def _start(self, work: Coroutine[Any, Any, None], *, waits: bool = False) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        if waits:
            task.add_done_callback(self._tasks.discard)
        else:
            self._pending_calls += 1
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pending_calls -= 1
        if self._is_paused:
            self.read_on()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request of BookKeeper's protocol failed", exc_info=error)
            self._transport.abort()  # its client would wait for ever

    # ---- requests

    def _take(self, request: v2.ClientRequest) -> None:
        if isinstance(request, v2.BodyV3):
            self._take_v3(pb.Request.FromString(request.body))
        elif isinstance(request, v2.RefusedV2):
            self._reply(request.reply)
        elif isinstance(request, v2.AuthV2):
            pb.AuthMessage.FromString(request.message)
            answer = auth_disabled().SerializeToString()
            self._reply(v2.encode_auth_reply(request.word, answer))
        elif self._must_encrypt:
            raise FrameError("a request before START_TLS")
        elif isinstance(request, v2.AddsV2):
            self._add(request)
        elif isinstance(request, v2.ReadsV2):
            if request.fences or request.first == LAST_ENTRY:
                self._start(self._read_special(request))
            else:
                self._start(self._read_singles(request))
        else:
            self._start(self._read_batch(request))

    def _add(self, adds: v2.AddsV2) -> None:
        ids = range(adds.first, adds.first + len(adds.heads))
        if self._bookie.read_only and not adds.has_priority:
            replies = v2.encode_add_replies(adds.word, EREADONLY.v2, adds.ledger_id, ids)
            self._reply(replies)
            return
        self._submit(
            _Adds(
                adds.ledger_id,
                adds.master_key,
                ids,
                adds.heads,
                cast("list[bytes]", adds.bodies),  # views of bytes that nobody writes to
                adds.size,
                adds.is_recovery,
                self._on_added,
                adds.word,
            )
        )

    def _submit(self, request: AddRequest) -> None:
        self._pending_bytes += request.body_bytes
        self._owner.adds.pending_bytes += request.body_bytes
        self._bookie.add_entries(request)

    def _on_added(self, request: AddRequest, code: int) -> None:
        adds = cast("_Adds", request)
        self._on_answered(adds)
        if code in (codes.ENTRY_DIFFERS, codes.BAD_REQUEST) and len(adds.heads) > 1:
            self._add_singly(adds)  # only one of them may be to blame
            return
        ids, ledger_id = adds.entry_ids, adds.ledger_id
        self._reply(v2.encode_add_replies(adds.word, to_v2(code), ledger_id, ids))

    def _on_answered(self, request: AddRequest) -> None:
        self._pending_bytes -= request.body_bytes
        self._owner.adds.on_answered(request.body_bytes)
        if self._is_paused:
            self.read_on()

    def _add_singly(self, adds: _Adds) -> None:
        for entry_id, head, body in zip(adds.entry_ids, adds.heads, adds.bodies, strict=True):
            self._submit(
                _Adds(
                    adds.ledger_id,
                    adds.master_key,
                    range(entry_id, entry_id + 1),
                    [head],
                    [body],
                    len(head) + len(body),
                    adds.recovery,
                    self._on_added,
                    adds.word,
                )
            )

    async def _read_singles(self, reads: v2.ReadsV2) -> None:
        at, end = reads.first, reads.first + reads.count
        word, ledger_id = reads.word, reads.ledger_id
        while at < end:
            bytes_max = _SINGLES_BYTES if end - at > 1 else 1
            request = ReadRequest(ledger_id, at, end - at, bytes_max)
            code, packets = await self._read(request)
            if code != codes.OK:
                self._reply(v2.encode_entry_reply(word, to_v2(code), ledger_id, at))
                at += 1
                continue
            for packet in packets:
                self._reply(v2.encode_entry_reply(word, EOK.v2, ledger_id, at, packet))
                at += 1

    async def _read_special(self, reads: v2.ReadsV2) -> None:
        """With a fence, or of the last entry, which nobody knows the id of."""
        ledger_id, first, key = reads.ledger_id, reads.first, reads.master_key
        if first != LAST_ENTRY:
            request = ReadRequest(ledger_id, first, 1, 1, fence=True, master_key=key)
            code, packets = await self._read(request)
        else:
            found = await self._bookie.read_lac(ledger_id, fence=reads.fences, master_key=key)
            code, packets = found.code, []
            if found.last_packet is not None:
                packets = [as_sent(found.last_packet)]
        if code == codes.OK and not packets:
            code = codes.NO_ENTRY
        packet = packets[0] if code == codes.OK else b""
        self._reply(v2.encode_entry_reply(reads.word, to_v2(code), ledger_id, first, packet))

    async def _read_batch(self, batch: v2.BatchReadV2) -> None:
        bytes_max = min(batch.bytes_max, _BATCH_BYTES_MAX)
        count_max = batch.count_max if batch.count_max > 0 else 1 << 30
        request = ReadRequest(batch.ledger_id, batch.first, count_max, max(1, bytes_max))
        if batch.fences:
            request.fence, request.master_key = True, batch.master_key
        code, packets = await self._read(request)
        size, taken = _BATCH_START_BYTES, 0
        for packet in packets:
            size += LENGTH.size + len(packet)
            if size > bytes_max and taken:
                break
            taken += 1
        self._reply(
            v2.encode_batch_reply(
                *(batch.word, to_v2(code), batch.ledger_id, batch.first, batch.request_id),
                packets[:taken],
            )
        )

    async def _read(self, request: ReadRequest) -> tuple[int, list[Buffer]]:
        """Code and packets as they were sent.

        A client that doesn't read what it asked for has few bytes here, and none of what all share.
        """
        charged = max(_READ_CHARGE, request.bytes_max)
        await self._reads.acquire(charged)
        try:
            if self._writable is not None:
                await asyncio.shield(self._writable)
            await self._owner.reads.acquire(charged)
            try:
                reply = await self._bookie.read_entries(request)
                return reply.code, [as_sent(packet) for packet in reply.packets]
            finally:
                self._owner.reads.release(charged)
        finally:
            # Its reply is written by then, and says whether the client reads.
            self._loop.call_soon(self._reads.release, charged)

    # ---- version 3

    def _take_v3(self, request: pb.Request) -> None:
        if request.header.operation == pb.START_TLS:
            self._start_tls(request)
        elif self._must_encrypt and request.header.operation != pb.AUTH:
            self._reply_v3(self._calls_v3.refused(request, EUA))
        elif request.header.operation == pb.ADD_ENTRY and request.HasField("addRequest"):
            self._calls_v3.add(request, self._submit, self._on_answered, self._reply_v3)
        else:
            self._start(self._call_v3(request), waits=self._calls_v3.is_long_poll(request))

    async def _call_v3(self, request: pb.Request) -> None:
        response = await self._calls_v3.answer(request)
        if self._writable is not None:
            await asyncio.shield(self._writable)
        self._reply_v3(response)

    def _reply_v3(self, response: pb.Response) -> None:
        body = response.SerializeToString()
        self._reply(LENGTH.pack(len(body)) + body)

    def _start_tls(self, request: pb.Request) -> None:
        context = self._owner.tls_context()
        if context is None or not self._must_encrypt:
            self._reply_v3(self._calls_v3.refused(request, EBADREQ))
            return
        response = self._calls_v3.refused(request, EOK)
        response.startTLSResponse.SetInParent()
        self._reply_v3(response)
        self._flush()
        self._transport.pause_reading()
        self._start(self._encrypt(context))

    async def _encrypt(self, context: ssl.SSLContext) -> None:
        try:
            transport = await self._loop.start_tls(
                *(self._transport, self, context),
                server_side=True,
                ssl_handshake_timeout=_TLS_HANDSHAKE_S,
            )
        except OSError as error:  # ssl.SSLError is one
            peer = self._transport.get_extra_info("peername")
            _log.warning("no TLS with a client at %s: %s", peer, error)
            self._transport.abort()
            return
        assert transport is not None
        self._transport = transport
        self._must_encrypt = False
