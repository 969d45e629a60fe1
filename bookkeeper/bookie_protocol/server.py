"""The port at which a bookie of ours answers BookKeeper's protocol, and its clients' connections.

Requests are answered in any order; replies go out once a turn of the loop, joined. What no bookie
answers closes the connection: version 2 has no reply for it.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from google.protobuf.message import DecodeError

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.auth.refusal_log import RefusalLog
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol import requests_v2 as v2
from magnetar.bookkeeper.bookie_protocol.calls_v3 import CallsV3, auth_disabled, refused
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH
from magnetar.bookkeeper.bookie_protocol.frames_v2 import (
    BATCH_REPLY_BYTES,
    HIGH_PRIORITY,
    LAST_ENTRY,
)
from magnetar.bookkeeper.bookie_protocol.heads import encode_heads
from magnetar.bookkeeper.bookie_protocol.login_server import ClientLogin, LoginPlugin
from magnetar.bookkeeper.bookie_protocol.own_login import (
    MAGNETAR,
    AdmittedClient,
    OwnLogins,
    RefusedLoginError,
)
from magnetar.bookkeeper.bookie_protocol.result_codes import (
    EBADREQ,
    EOK,
    EREADONLY,
    ETOOMANYREQUESTS,
    EUA,
    to_v2,
)
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.entry_prefixes import PIECE_BYTES_MAX, read_cut
from magnetar.bookkeeper.errors import FrameError, UnauthorizedAccessError
from magnetar.bookkeeper.packet import Buffer
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.repeated_warnings import RepeatedWarnings
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.wrapped_packet import as_sent

_log = logging.getLogger(__name__)

_CALLS_MAX: Final = 1_000
"""Of one connection that are not answered, long polls apart; above, it isn't read."""
_LONG_POLLS_MAX: Final = 10_000
"""Of one connection; more are refused, as by a bookie of Apache's."""
_BATCH_BYTES_MAX: Final = 5 * 1024 * 1024
"""BookKeeper's ``maxBatchReadSize``."""
_SINGLES_BYTES: Final = 1024 * 1024
_READS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one connection that are read at a time."""
_OWN_READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one reply to a client of ours; packets beyond the first one stop here."""
_OWN_READS_BYTES_MAX: Final = 32 * 1024 * 1024
"""As ``_READS_BYTES_MAX``: a broker reads for all its topics."""
_READ_CHARGE: Final = 256 * 1024
"""Of a read whose entry may have any size."""
_TLS_HANDSHAKE_S: Final = 10.0
_LOGIN_S: Final = 10.0
"""For a new connection, where a login is asked for."""
_ENDING_S: Final = 30.0
"""For what was taken of a client whose credentials have ended, and may not read its replies."""
_LOGIN_FRAME_BYTES_MAX: Final = 8192
"""Of a client that nobody knows yet."""
_UNAUTHENTICATED_MAX: Final = 64
"""Connections of such clients; the oldest is closed for a new one."""


class ProtocolServer:
    """Serves one bookie: ``await listen(...)``, ``serve(bookie)``, ``await close()``.

    Connections that come before there is a bookie are closed.

    Args:
        frame_bytes_max: the largest frame it takes (``nettyMaxFrameSizeBytes``).
        connection_bytes_max: adds of one connection that it takes before it has answered.
        adds, reads: what all clients of the bookie have in memory, those of other ports included.
        connections_max: that it accepts; 0: any number.
        tls: makes the context of a new connection; None: connections are plain.
        login: how clients of Apache BookKeeper log in; None: not at all.
        needs_login: they, or our own clients, must have logged in.
        own_frame_bytes_max: the largest frame of our own clients.
        authenticator: judges those; None: each is let in that means this bookie.
        view_of: what such a client may do with the bookie; None: everything.
    """

    def __init__(
        self,
        frame_bytes_max: int,
        connection_bytes_max: int,
        adds: AddLimits,
        reads: ByteSemaphore,
        connections_max: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
        login: LoginPlugin | None = None,
        *,
        needs_login: bool = False,
        own_frame_bytes_max: int = 0,
        authenticator: BookieAuthenticator | None = None,
        view_of: Callable[[AdmittedClient], BookieClient] | None = None,
    ) -> None:
        self.frame_bytes_max, self.connection_bytes_max = frame_bytes_max, connection_bytes_max
        self.own_frame_bytes_max = own_frame_bytes_max
        self.adds, self.reads = adds, reads
        self.bookie: BookieClient | None = None
        self.own_logins: OwnLogins
        self.login, self.needs_login = login, needs_login
        self.refusals = RefusalLog(logging.getLogger("magnetar.bookkeeper.audit"))
        self.warnings = RepeatedWarnings(_log)
        self._authenticator, self.view_of = authenticator, view_of
        self._connections_max, self._tls = connections_max, tls
        self._unauthenticated: dict[ServerConnection, asyncio.TimerHandle] = {}  # oldest first
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Bind and start; the port, which 0 leaves to the system.

        Raises:
            OSError: the address can't be used, or a TLS file.
        """
        self.tls_context()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ServerConnection(self), host or None, port)
        return int(self._server.sockets[0].getsockname()[1])

    def serve(self, bookie: BookieClient, instance_id: str) -> None:
        """Answer for ``bookie`` from now on.

        Args:
            bookie: not a ``Bookie``: only our own clients are answered, and must have logged in.
            instance_id: of the cluster: our clients of another one are refused.
        """
        self.bookie = bookie
        self.own_logins = OwnLogins(self._authenticator, bookie.bookie_id, instance_id)

    @property
    def has_tls(self) -> bool:
        """Requests must be encrypted."""
        return self._tls is not None

    async def close(self) -> None:
        """Disconnect everybody."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()

    def tls_context(self) -> ssl.SSLContext | None:
        """None: this port has no TLS."""
        return None if self._tls is None else self._tls()

    def admit(self, connection: "ServerConnection") -> bool:
        """False: there are too many."""
        if self._connections_max and len(self._connections) >= self._connections_max:
            return False
        self._connections.add(connection)
        if self.needs_login:
            if len(self._unauthenticated) >= _UNAUTHENTICATED_MAX:
                next(iter(self._unauthenticated)).close()
            loop = asyncio.get_running_loop()
            self._unauthenticated[connection] = loop.call_later(_LOGIN_S, connection.close)
        return True

    def on_login(self, connection: "ServerConnection") -> None:
        """Its client may use the bookie."""
        if (timer := self._unauthenticated.pop(connection, None)) is not None:
            timer.cancel()

    def forget(self, connection: "ServerConnection") -> None:
        """It is closed."""
        self._connections.discard(connection)
        self.on_login(connection)


@dataclass(slots=True, eq=False)
class _Adds(AddRequest):
    word: int
    flags: int

    @property
    def has_priority(self) -> bool:
        return bool(self.flags & HIGH_PRIORITY)


class ServerConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: ProtocolServer) -> None:
        self._port = server
        self._loop = asyncio.get_running_loop()
        self._login: ClientLogin | None = None
        self._own: AdmittedClient | None = None
        self._expiry: asyncio.TimerHandle | None = None  # of its right
        self._must_log_in = server.needs_login
        frame_bytes_max = _LOGIN_FRAME_BYTES_MAX if self._must_log_in else server.frame_bytes_max
        self._decoder = v2.RequestDecoder(frame_bytes_max)
        self._transport: asyncio.Transport
        self._bookie: BookieClient
        self._calls_v3: CallsV3 | None = None
        self._replies: list[bytes] = []
        self._pending_bytes = 0
        self._reads = ByteSemaphore(_READS_BYTES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._long_polls = 0  # of the tasks
        self._is_paused = self._is_ending = self._is_over = False
        self._writable: asyncio.Future[None] | None = None  # while the client doesn't read
        self._must_encrypt = False
        # What comes behind the handshake, until the encrypted transport is at hand to answer it.
        self._before_tls: bytes | None = None

    def close(self) -> None:
        """Disconnect."""
        self._transport.abort()

    @property
    def _address(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else "an unknown address"  # it has gone

    def _warn(self, text: str) -> None:
        self._port.warnings.add(f"client of BookKeeper's protocol at {self._address}", text)

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        bookie = self._port.bookie
        if bookie is None or not self._port.admit(self):
            self._is_over = True
            self._transport.abort()
            return
        self._bookie = bookie
        if isinstance(bookie, Bookie):
            self._calls_v3 = CallsV3(bookie)
        self._must_encrypt = self._port.has_tls
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._is_ending:
            return
        if self._before_tls is not None:
            self._before_tls += data
            return
        try:
            for request in self._decoder.feed(data):
                self._take(request)
        except (FrameError, DecodeError) as error:
            self._warn(f"disconnected: {error}")
            self._transport.abort()
            return
        except UnauthorizedAccessError as error:
            self._refused(error)
            self._transport.close()  # once it is told
            return
        self.read_on()

    def _refused(self, error: UnauthorizedAccessError) -> None:
        self._port.refusals.add(address=self._address, listener="bookie-rpc", reason=str(error))

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
        self._port.forget(self)
        self._port.adds.forget(self)
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks:
            task.cancel()
        if self._writable is not None:
            self._writable.cancel()

    # ---- back-pressure

    def read_on(self) -> None:
        """Read as long as there is room for what comes."""
        if self._is_over or self._transport.is_closing():
            return
        is_full = (
            self._writable is not None
            or self._is_ending
            or self._pending_bytes > self._port.connection_bytes_max
            or len(self._tasks) - self._long_polls > _CALLS_MAX
        )
        if self._port.adds.is_full:
            self._port.adds.read_on_later(self)
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

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_room()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a request of BookKeeper's protocol failed", exc_info=error)
            self._transport.abort()  # its client would wait for ever

    def _on_room(self) -> None:
        """Something was answered."""
        if self._is_ending:
            self._loop.call_soon(self._close_if_answered)
        elif self._is_paused:
            self.read_on()

    def _close_if_answered(self) -> None:
        """All that was taken; the replies to it are sent."""
        if not self._pending_bytes and not self._tasks and not self._is_over:
            self._flush()
            self._transport.close()

    # ---- requests

    def _take(self, request: v2.ClientRequest) -> None:
        if isinstance(request, v2.BodyV3):
            self._take_v3(pb.Request.FromString(request.body))
        elif isinstance(request, v2.RefusedV2):
            if request.fault:
                self._warn(request.fault)
            self._reply(request.reply)
        elif isinstance(request, v2.AuthV2):
            self._authenticate_v2(request)
        elif isinstance(request, v2.OwnReadV2):
            self._start(self._read_own(request))
        elif self._must_encrypt:
            raise FrameError("a request before START_TLS")
        elif self._must_log_in:
            self._reply(v2.encode_refusal(request, EUA.v2))
        elif isinstance(request, v2.AddsV2):
            self._add(request)
        elif isinstance(request, v2.ReadsV2):
            if request.fences or request.first == LAST_ENTRY:
                self._start(self._read_special(request))
            else:
                self._start(self._read_singles(request))
        else:
            self._start(self._read_batch(request))

    def _authenticate_v2(self, request: v2.AuthV2) -> None:
        message = pb.AuthMessage.FromString(request.message)
        if message.authPluginName == MAGNETAR:
            answer = pb.AuthMessage(authPluginName=MAGNETAR, payload=b"")
            try:
                self._admit(message.payload)
            except RefusedLoginError as error:
                answer.payload = error.told.encode()
                self._reply(v2.encode_auth_reply(request.word, answer.SerializeToString()))
                self._flush()
                raise
        else:
            answer = self._authenticate(message)
        self._reply(v2.encode_auth_reply(request.word, answer.SerializeToString()))

    def _admit(self, payload: bytes) -> None:
        """Let in a client of ours, or go on with one that shows another token.

        Raises:
            FrameError: no login. RefusedLoginError: it is refused.
        """
        port = self._port
        if self._must_encrypt:
            raise FrameError("a login before START_TLS")
        is_new = self._own is None
        self._own = port.own_logins.admit(payload, self._transport)
        if port.view_of is not None:
            self._bookie = port.view_of(self._own)
        if is_new:
            self._must_log_in = False
            self._decoder.allow_frames(port.own_frame_bytes_max)
            self._decoder.take_own()
            self._reads = ByteSemaphore(_OWN_READS_BYTES_MAX)
            port.on_login(self)
        self._check_right()

    def _check_right(self) -> None:
        """Now, and whenever what it has shown may not hold any more."""
        if self._expiry is not None:
            self._expiry.cancel()
        assert self._own is not None
        try:
            left_s = self._own.left_s()
        except RefusedLoginError as error:
            self._refused(error)
            self._is_ending = True  # what was taken is done, and it is told so
            self.read_on()
            self._close_if_answered()
            self._expiry = self._loop.call_later(_ENDING_S, self._transport.abort)
            return
        if left_s is not None:
            self._expiry = self._loop.call_later(left_s, self._check_right)

    def _authenticate(self, message: pb.AuthMessage) -> pb.AuthMessage:
        """The answer to a message of a login of Apache BookKeeper's clients.

        Raises:
            UnauthorizedAccessError: the client is refused.
        """
        # They send an empty message behind the last one, and want this answer.
        if not self._must_log_in:
            return auth_disabled()
        plugin = self._port.login
        name = MAGNETAR if plugin is None else plugin.name
        if plugin is None or message.authPluginName != name:
            raise UnauthorizedAccessError(
                f"it has the plug-in {message.authPluginName!r}, not {name}"
            )
        if self._login is None:
            self._login = plugin.begin()
        answer = pb.AuthMessage(authPluginName=name, payload=self._login.respond(message.payload))
        if self._login.is_complete:
            self._must_log_in = False
            self._decoder.allow_frames(self._port.frame_bytes_max)
            self._port.on_login(self)
        return answer

    def _add(self, adds: v2.AddsV2) -> None:
        ids = range(adds.first, adds.first + len(adds.heads))
        is_own, bookie = self._own is not None, self._bookie
        # At once, where our own clients wait for space: Apache's have other bookies.
        if (
            not is_own
            and isinstance(bookie, Bookie)
            and bookie.read_only
            and not adds.flags & HIGH_PRIORITY
        ):
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
                adds.flags,
                deferred_sync=is_own and adds.is_deferred,
                creator=adds.creator,
            )
        )

    def _submit(self, request: AddRequest) -> None:
        self._pending_bytes += request.body_bytes
        self._port.adds.pending_bytes += request.body_bytes
        self._bookie.add_entries(request)

    def _on_added(self, request: AddRequest, code: int) -> None:
        adds = cast("_Adds", request)
        self._on_answered(adds)
        if code in (codes.ENTRY_DIFFERS, codes.BAD_REQUEST) and len(adds.heads) > 1:
            self._add_singly(adds)  # only one of them may be to blame
            return
        ids, ledger_id = adds.entry_ids, adds.ledger_id
        if self._own is not None:
            self._reply(v2.encode_run_reply(adds.word, code, ledger_id, ids[0], len(ids)))
        else:
            self._reply(v2.encode_add_replies(adds.word, to_v2(code), ledger_id, ids))

    def _on_answered(self, request: AddRequest) -> None:
        self._pending_bytes -= request.body_bytes
        self._port.adds.on_answered(request.body_bytes)
        self._on_room()

    def _add_singly(self, adds: _Adds) -> None:
        for entry_id, head, body in zip(adds.entry_ids, adds.heads, adds.bodies, strict=True):
            ids = range(entry_id, entry_id + 1)
            size = len(head) + len(body)
            self._submit(replace(adds, entry_ids=ids, heads=[head], bodies=[body], body_bytes=size))

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
            async with self._room(1):
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
        size, taken = BATCH_REPLY_BYTES, 0
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

    async def _read_own(self, read: v2.OwnReadV2) -> None:
        request = read.request
        request.bytes_max = min(request.bytes_max, _OWN_READ_BYTES_MAX)
        packets: Sequence[Buffer]
        if request.head_bytes is None:
            async with self._room(request.bytes_max):
                found = await self._bookie.read_entries(request)
            code, packets = found.code, found.packets
        else:
            async with self._room(request.bytes_max + PIECE_BYTES_MAX):
                cut = await read_cut(self._bookie.read_entries, request)
            code, packets = cut.code, [encode_heads(cut)]
        ids = request.ledger_id, request.first, read.request_id
        self._reply(v2.encode_batch_reply(read.word, code, *ids, packets))

    async def _read(self, request: ReadRequest) -> tuple[int, list[Buffer]]:
        """Code and packets as they were sent."""
        async with self._room(request.bytes_max):
            reply = await self._bookie.read_entries(request)
            return reply.code, [as_sent(packet) for packet in reply.packets]

    @asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[None]:
        """What is read within it is bounded, for the connection and for all.

        A client that doesn't read its replies waits here: it has few bytes in memory, and holds up
        nobody else.
        """
        charged = max(_READ_CHARGE, size)
        await self._reads.acquire(charged)
        try:
            if self._writable is not None:
                await asyncio.shield(self._writable)
            await self._port.reads.acquire(charged)
            try:
                yield
            finally:
                self._port.reads.release(charged)
        finally:
            # Its reply is written by then, and says whether the client reads.
            self._loop.call_soon(self._reads.release, charged)

    # ---- version 3

    def _take_v3(self, request: pb.Request) -> None:
        if request.header.operation == pb.START_TLS:
            self._start_tls(request)
        elif request.header.operation == pb.AUTH and request.HasField("authRequest"):
            self._authenticate_v3(request)
        elif self._must_encrypt or self._must_log_in:
            self._reply_v3(refused(request, EUA))
        elif self._calls_v3 is None:
            raise FrameError("version 3 on a port for readers")
        elif request.header.operation == pb.ADD_ENTRY and request.HasField("addRequest"):
            self._calls_v3.add(request, self._submit, self._on_answered, self._reply_v3)
        else:
            self._call_v3(self._calls_v3, request)

    def _authenticate_v3(self, request: pb.Request) -> None:
        response = refused(request, EOK)
        try:
            response.authResponse.CopyFrom(self._authenticate(request.authRequest))
        except UnauthorizedAccessError:
            self._reply_v3(refused(request, EUA))
            self._flush()
            raise
        self._reply_v3(response)

    def _call_v3(self, calls: CallsV3, request: pb.Request) -> None:
        if not calls.is_long_poll(request):
            self._start(self._answer_v3(calls, request))
        elif self._long_polls < _LONG_POLLS_MAX:
            self._long_polls += 1
            self._start(self._poll_v3(calls, request))
        else:
            self._reply_v3(refused(request, ETOOMANYREQUESTS))

    async def _answer_v3(self, calls: CallsV3, request: pb.Request) -> None:
        async with self._room(1):
            self._reply_v3(await calls.answer(request))

    async def _poll_v3(self, calls: CallsV3, request: pb.Request) -> None:
        try:
            await calls.wait(request.readRequest)
        finally:
            self._long_polls -= 1
        await self._answer_v3(calls, request)

    def _reply_v3(self, response: pb.Response) -> None:
        body = response.SerializeToString()
        self._reply(LENGTH.pack(len(body)) + body)

    def _start_tls(self, request: pb.Request) -> None:
        context = self._port.tls_context()
        if context is None or not self._must_encrypt:
            self._reply_v3(refused(request, EBADREQ))
            return
        response = refused(request, EOK)
        response.startTLSResponse.SetInParent()
        self._reply_v3(response)
        self._flush()
        self._transport.pause_reading()
        self._start(self._encrypt(context))

    async def _encrypt(self, context: ssl.SSLContext) -> None:
        self._before_tls = b""
        try:
            transport = await self._loop.start_tls(
                *(self._transport, self, context),
                server_side=True,
                ssl_handshake_timeout=_TLS_HANDSHAKE_S,
            )
        except OSError as error:  # ssl.SSLError is one
            self._warn(f"no TLS: {error}")
            self._transport.abort()
            return
        assert transport is not None
        self._transport = transport
        self._must_encrypt = False
        data, self._before_tls = self._before_tls, None
        if data:
            self.data_received(data)
