"""One client's TCP connection: frames in, commands out, back-pressure in both directions.

Reading stops while too many published bytes of this connection, or of the whole process, wait for
storage, and while the client doesn't read its replies; a client that stops reading costs a bounded
amount of memory. Dispatch, which writes in bulk, asks ``writable`` first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import DecodeError, Message

from magnetar.broker.connection.command_turns import (
    COMMAND_COST,
    COST_PER_TURN,
    IDS_PER_COST,
    OPENING_COST,
)
from magnetar.broker.connection.consumer_commands import IDS_AT_ONCE, on_acks, on_entries_acked
from magnetar.broker.connection.consumer_sink import BinaryConsumerSink
from magnetar.broker.connection.handlers import FIELDS, HANDLERS
from magnetar.broker.connection.receive_buffer import FrameBuffer, PauseReason
from magnetar.broker.connection.send_path import SendPath
from magnetar.broker.errors import BrokerError
from magnetar.broker.listener.tcp_socket import (
    KERNEL_UNSENT_FIRST_BYTES,
    grow_kernel_buffer,
    limit_kernel_buffer,
    transferred_bytes,
)
from magnetar.broker.listener.tls import client_certificate
from magnetar.broker.producer.producer import Producer, ProducerRequest
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    COMMAND_FIELDS,
    FRAME_PADDING_BYTES,
    NO_ID,
    MalformedFrameError,
    encode,
    varint,
)
from magnetar.broker.protocol.plain_sends import scan_ack, scan_acks
from magnetar.broker.protocol.text import has_broken_text
from magnetar.broker.transaction.transaction_id import TransactionId

if TYPE_CHECKING:
    from magnetar.broker.connection.auth_session import AuthSession
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger(__name__)

_TWO_U32 = Struct(">II")
_SEND, _ACK, _FLOW = pb.BaseCommand.SEND, pb.BaseCommand.ACK, pb.BaseCommand.FLOW
_OPENING = frozenset((pb.BaseCommand.SUBSCRIBE, pb.BaseCommand.PRODUCER))
_BEFORE_CONNECT = frozenset(
    (pb.BaseCommand.CONNECT, pb.BaseCommand.AUTH_RESPONSE, pb.BaseCommand.PING, pb.BaseCommand.PONG)
)
# Hot commands are parsed straight from their sub-message when the bytes in front of it are the
# canonical ones (type, then the field of the same number, length below 128): 0.3 us instead of 0.9.
_HOT: Final[dict[bytes, Any]] = {
    bytes((0x08, kind, kind << 3 | 2)): message
    for kind, message in ((_ACK, pb.CommandAck), (_FLOW, pb.CommandFlow))
}
_BY_PREFIX: Final[dict[bytes, tuple[int, Any]]] = {
    bytes((0x08, kind)) + varint(kind << 3 | 2): (kind, message)
    for message, (kind, _) in COMMAND_FIELDS.items()
    if kind in HANDLERS and kind > 15
}
"""Other commands as clients encode them: type, and tag of the field, which takes two bytes."""
_SEND_PREFIX = bytes((0x08, _SEND, _SEND << 3 | 2))
_PING_FRAME = bytes.fromhex("00000009000000050812920100")

_TASKS_MAX = 5_000
"""Requests of one connection under way at which its next ones wait."""
_COMMAND_BYTES_MAX = 1024 * 1024
"""Of a command without its payload: over 50,000 message ids, as many as a consumer can owe. What a
frame could hold besides, 500,000 ids, would stop all others for seconds.
"""
UNKNOWN_FRAME_BYTES_MAX: Final = 192 * 1024
"""Of a client that isn't authenticated yet: enough for two large tokens, and no more memory."""
_LINGER_S = 5.0
"""How long a closed connection may take to read what was still queued for it."""
_OUTGOING_BYTES_MAX = 16 * 1024 * 1024
"""Unsent bytes at which the client's commands wait until it reads."""
_HELD_BYTES_MAX = 1024 * 1024
_HELD_SENDS_MAX = 512
"""SENDs wait for the next read of the same turn while there are no more of them, and no more bytes
of such reads. Then others have their turn: the loop would go on for 32 reads."""
_JOIN_MEAN_BYTES = 2048
"""Below this mean size one joined copy is cheaper than a vector of small pieces."""
_JOIN_BELOW_BYTES = 4096

_LASTING: Final = {
    PauseReason.RATE: "a publish rate holds its producers",
    PauseReason.IN_FLIGHT: "too much of what it published is not stored yet",
    PauseReason.PROCESS: "too much of what clients published is not stored yet "
    "(maxMessagePublishBufferSizeInMB)",
    PauseReason.OUTGOING: "its client does not read what it is sent",
}
"""Why a connection may not be read for long, in words."""


class Connection(asyncio.BufferedProtocol):
    """The shell around the protocol; command handlers are functions in ``*_commands.py``.

    consumer_commands.py wraps it in its ConsumerSink and keeps its consumers in ``consumers``.
    One object, since asyncio calls one protocol object: bytes in, back-pressure and keep-alive all
    pause the same transport. SEND and receipts are in ``SendPath``.
    """

    sink_type = BinaryConsumerSink
    listener: str | None = None
    """Whose addresses its lookups ask for; "": for none's; None: it made none, or differing ones,
    as a proxy does.
    """
    has_looked_up = False
    _scans_acks = scan_ack is not None
    _scans_runs = False
    _kernel_unsent_bytes = KERNEL_UNSENT_FIRST_BYTES

    def __init__(self, service: BrokerService, received: bytes = b"") -> None:
        """``received``: what the client has said before there was a connection
        (binary_pre_auth.py)."""
        self.service = service
        self._received = received
        self.client_version = ""
        self.protocol_version = 0
        self.features = pb.FeatureFlags()
        self.role: str | None = None  # authenticated principal; None while authentication is off
        self.original_role: str | None = None  # a proxy's client; None: no proxy
        self.session: AuthSession | None = None  # from CONNECT on, while authentication is on
        self.remote = self.ip = ""
        self.connected = False
        """CONNECTED was sent."""
        self.closed = False
        self.writable = True
        """False while the socket's send buffer is above its high-water mark."""
        self.producers: dict[int, Producer | ProducerRequest] = {}
        self.consumers: dict[int, Any] = {}
        self.watchers: dict[int, Any] = {}
        self.on_writable: dict[object, Callable[[], None]] = {}
        """Called when the connection becomes writable again; keyed so that owners can leave."""
        self.on_closed: dict[object, Callable[[], None]] = {}
        """Called once when the connection is gone."""
        self.accepted_ms = service.wall_clock()
        self.in_flight_bytes, self._loop = 0, service.loop
        self._buffer = FrameBuffer(service.shared_buffer)
        self._frame_bytes_max = service.config.max_message_size + FRAME_PADDING_BYTES
        if service.authenticator is not None:
            self._frame_bytes_max = min(self._frame_bytes_max, UNKNOWN_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._unsent_bytes = 0  # at the last keep-alive tick
        self._outgoing: list[bytes | memoryview] = []
        self._bulk_bytes, self._bulk_bytes_max = 0, 0  # of dispatch, since the last flush
        self._waiting_bytes = 0  # while it isn't writable, for the broker's budget
        self._flush_scheduled = False
        self._paused = 0
        self._rest: bytes | memoryview = b""  # of a read with more commands than one turn takes
        self._asked_bytes = 0  # room of the read under way
        self._held_bytes = 0  # read, and their SENDs not published yet
        self.read_max = 0  # bytes of one read while publish limits hold here; 0: what comes
        self._heard = True  # any byte since the last keep-alive tick
        self._ping_sent = False
        self._keep_alive_ms = self.accepted_ms + service.keep_alive_ms
        self._liveness: list[asyncio.Future[bool]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.sends = SendPath(self)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.ip = str(peer[0]) if isinstance(peer, tuple) else "local"
        self.remote = f"{self.ip}:{peer[1]}" if isinstance(peer, tuple) else self.ip
        config = self.service.config
        self._bulk_bytes_max = config.connection_write_buffer_high_bytes
        transport.set_write_buffer_limits(
            config.connection_write_buffer_high_bytes, config.connection_write_buffer_low_bytes
        )
        limit_kernel_buffer(transport, self._kernel_unsent_bytes)
        if (refusal := self.service.add_connection(self)) is not None:
            # Not one line for each: a flood of connections must not fill the log.
            self.refuse(pb.NotAllowedError, refusal, level=logging.DEBUG)
        elif self._received:
            received, self._received = self._received, b""
            self._buffer.target()[: len(received)] = received
            self.buffer_updated(len(received))
            # uvloop's transports read after this, although they were paused in it.
            self._loop.call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self._paused and self._is_open():
            assert self._transport is not None
            self._transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._buffer.target()
        if self.read_max:
            target = target[: self.read_max]
        self._asked_bytes = len(target)
        return target

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        if self._liveness:
            self._alive()
        view, end = self._buffer.received(nbytes)
        if self._rest:  # a transport may hand over what it had read before it was paused
            self._rest = b"".join((self._rest, view[:end]))
        elif not self.closed:
            self._take(view, end, nbytes, self.service.command_turns.left)

    def _go_on(self) -> None:
        rest, self._rest = self._rest, b""
        if not self.closed:
            self._take(memoryview(rest), len(rest), 0, COST_PER_TURN)
            if not self._rest:
                self.resume_reading(PauseReason.TURN)

    def _take(self, view: memoryview, end: int, nbytes: int, cost_max: int) -> None:
        """Handle ``view[0:end]``, of which ``nbytes`` were read just now, and keep what is left.

        Args:
            cost_max: of its commands; the rest waits for its turn.
        """
        try:
            start = self._take_frames(view, end, cost_max)
        except (MalformedFrameError, DecodeError, ValueError) as error:
            self.close(f"malformed frame: {error}")
        except Exception:  # our bug ends this connection and no other
            logger.exception("connection %s: handler failed", self.remote)
            self.close("internal error")
        else:
            if start < end:
                self._buffer.keep(view, start, end)
        # What was accepted before a bad frame is published: a malformed frame ends the connection,
        # not the messages in front of it.
        held = self._held_bytes + nbytes
        is_filled = 0 < nbytes == self._asked_bytes
        is_enough = is_filled and (held > _HELD_BYTES_MAX or self.sends.collected > _HELD_SENDS_MAX)
        if not is_filled or is_enough or self.read_max or self.closed:
            self._held_bytes = 0
            self.sends.publish()
            if is_enough:
                self.pause_reading(PauseReason.TURN)
                self._loop.call_soon(self._read_on)
        else:  # the loop reads again at once, as the read filled its room: one append for all
            if not self._held_bytes:
                self._loop.call_soon(self._publish_held)
            self._held_bytes = held

    def _read_on(self) -> None:
        if not self._rest:  # else after those commands
            self.resume_reading(PauseReason.TURN)

    def _publish_held(self) -> None:
        """No read has followed that published them."""
        if self._held_bytes:
            self._held_bytes = 0
            self.sends.publish()

    def _take_frames(self, view: memoryview, end: int, cost_max: int) -> int:
        """Handle every complete frame of ``view[0:end]``; where the incomplete one begins."""
        start, unpack, frame_bytes_max = 0, _TWO_U32.unpack_from, self._frame_bytes_max
        sends, left, scans = self.sends, cost_max, self.sends.scan is not None
        while end - start >= 8:
            total, size = unpack(view, start)
            if total > frame_bytes_max:
                raise MalformedFrameError(f"frame of {total} bytes, limit {frame_bytes_max}")
            if (frame_end := start + 4 + total) > end:
                break
            command_from, body_from = start + 8, start + 8 + size
            if not 2 <= size <= _COMMAND_BYTES_MAX or body_from > frame_end:
                raise MalformedFrameError(
                    f"command of {size} bytes in a frame of {total}, limit {_COMMAND_BYTES_MAX}"
                )
            if (
                (left > 0 and view[command_from + 1] == _ACK)
                and (self._scans_acks and self.connected)
                and (taken := self._take_acks(view, start, end, left)) is not None
            ):
                start, left = taken
                continue
            # 4 bytes of prefix and length: type, field, length of the sub-message
            if size > 3 and view[command_from + 3] + 4 == size and self.connected:
                prefix = bytes(view[command_from : command_from + 3])
                if prefix == _SEND_PREFIX:
                    if scans and (next_start := sends.take_plain(view, start, end)) > start:
                        start = next_start
                        continue
                    sends.on_send(view, command_from + 4, body_from, frame_end)
                    start = frame_end
                    continue
                if left > 0 and (message := _HOT.get(prefix)) is not None:
                    left -= 1
                    command = message.FromString(view[command_from + 4 : body_from])
                    if not command.IsInitialized():
                        raise MalformedFrameError("required field missing")
                    HANDLERS[view[command_from + 1]](self, command)
                    start = frame_end
                    continue
            if left <= 0:
                self._wait_for_turn(view[start:end], cost_max - left)
                return end
            is_opening = view[command_from + 1] in _OPENING
            left -= OPENING_COST if is_opening else COMMAND_COST
            self._take_command(view, command_from, body_from, frame_end)
            if self.closed:
                return end
            start = frame_end
        if left < cost_max:  # it had more than SENDs
            self.service.command_turns.spend(cost_max - left)
        if end - start >= 4:
            total = int.from_bytes(view[start : start + 4], "big")
            if total > frame_bytes_max or total < 4:
                raise MalformedFrameError(f"frame of {total} bytes, limit {frame_bytes_max}")
        return start

    def _wait_for_turn(self, rest: memoryview, spent: int) -> None:
        # a copy of what lies in the buffer of all connections, once
        self._rest = rest if rest.readonly else memoryview(bytes(rest))
        self.pause_reading(PauseReason.TURN)
        turns = self.service.command_turns
        turns.spend(spent)
        turns.add(self, self._go_on)

    def expect_acks_in_transactions(self) -> None:
        """From now on its ACKs are looked at for runs of one transaction."""
        self._scans_runs = True

    def _take_acks(
        self, view: memoryview, start: int, end: int, left: int
    ) -> tuple[int, int] | None:
        """The plain ACK that ``view[start:end]`` begins with, or a run of them in a transaction.

        Returns:
            Where the next frame begins, and how many more this turn takes; None: ask protobuf.
        """
        assert scan_ack is not None
        assert scan_acks is not None
        if self._scans_runs and (run := scan_acks(view, start, end, left)) is not None:
            next_start, consumer_id, most, least, request_ids, acks = run
            on_acks(self, consumer_id, TransactionId(most, least), request_ids, acks)
            return next_start, left - len(request_ids)
        total, size = _TWO_U32.unpack_from(view, start)
        if (ack := scan_ack(view, start + 8, start + 8 + size, IDS_AT_ONCE)) is None:
            return None
        consumer_id, request_id, positions = ack
        on_entries_acked(self, consumer_id, request_id, positions)
        return start + 4 + total, left - 1 - len(positions) // IDS_PER_COST

    def _take_command(self, view: memoryview, start: int, body_from: int, end: int) -> None:
        size = body_from - start
        if size > 4 and view[start + 4] + 5 == size and self.connected:
            found = _BY_PREFIX.get(bytes(view[start : start + 4]))
            if found is not None:
                command = found[1].FromString(view[start + 5 : body_from])
                if not command.IsInitialized():
                    raise MalformedFrameError("required field missing")
                self._handle(found[0], command)
                return
        base = pb.BaseCommand.FromString(bytes(view[start:body_from]))
        if not base.IsInitialized():  # covers unknown types: a closed enum drops them
            raise MalformedFrameError("command lacks a required field")
        kind = base.type
        if not self.connected and kind not in _BEFORE_CONNECT:
            raise MalformedFrameError(f"command {kind} before CONNECT")
        # typed by field name in the stubs, but these names come from the descriptor
        has_field: Callable[[str], bool] = cast("Callable[[str], bool]", base.HasField)
        if (field := FIELDS.get(kind)) is None or not has_field(field):
            raise MalformedFrameError(f"command {kind} without its message, or not for a broker")
        if kind == _SEND:
            # A client that encodes SEND in another order: same rules, slower
            self.sends.on_send(view, start, body_from, end, base.send.SerializeToString())
            return
        self._handle(kind, getattr(base, field))

    def _handle(self, kind: int, message: Message) -> None:
        if has_broken_text(message):
            raise MalformedFrameError(f"command {kind} holds text that isn't UTF-8")
        if (command_authorizer := self.service.command_authorizer) is not None:
            command_authorizer.take(self, kind, message)
        else:
            HANDLERS[kind](self, message)

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._count_waiting(0)
        if self._transport is not None:
            grown = grow_kernel_buffer(self._transport, self._kernel_unsent_bytes)
            self._kernel_unsent_bytes = grown
        self.resume_reading(PauseReason.OUTGOING)
        for wake in list(self.on_writable.values()):
            wake()

    # --- output

    def write_bulk(self, buffers: list[bytes | memoryview]) -> None:
        """As `write`, for dispatch: much output leaves at once, so that ``writable`` is true to it.

        Otherwise a thousand consumers of one connection could each add a piece in one tick.
        """
        self._bulk_bytes += sum(map(len, buffers))
        self.write(buffers)
        if self._bulk_bytes > self._bulk_bytes_max:
            self._flush()
            self._flush_scheduled = True  # the scheduled call finds nothing, or what comes now

    def write(self, buffers: list[bytes | memoryview]) -> None:
        """Queue buffers in call order; all of a tick leave with one write."""
        self._outgoing += buffers
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send(self, command: Message) -> None:
        """Queue ``pb.CommandSuccess(...)`` and the like; it is serialised before this returns."""
        self.write([encode(command)])

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._bulk_bytes = 0
        outgoing, self._outgoing = self._outgoing, []
        transport = self._transport
        if self.closed or transport is None or not outgoing:
            return
        transport.writelines(coalesce(outgoing))
        if self.writable:
            return
        self._count_waiting(transport.get_write_buffer_size())
        if not self.connected and transport.get_write_buffer_size() > UNKNOWN_FRAME_BYTES_MAX:
            # Pings are answered before CONNECT, too, but not to a client that reads no answer.
            self.close("it reads nothing before its CONNECT", level=logging.DEBUG)
            return
        if self._waiting_bytes > _OUTGOING_BYTES_MAX:
            self.pause_reading(PauseReason.OUTGOING)

    def _count_waiting(self, size: int) -> None:
        """So much wasn't taken by the socket; 0 also when there is little."""
        self.service.unsent_budget.changed(size - self._waiting_bytes)
        self._waiting_bytes = size

    def reply_error(self, request_id: int, error: BrokerError | int, message: str = "") -> None:
        """Queue an ERROR command; ``error`` is an exception of the tree or a ServerError number."""
        if isinstance(error, BrokerError):
            error, message = error.wire_code, message or str(error)
        code = pb.ServerError.ValueType(error)
        self.send(pb.CommandError(request_id=request_id, error=code, message=message))

    def reply_success(self, request_id: int) -> None:
        """Queue a SUCCESS command."""
        self.send(pb.CommandSuccess(request_id=request_id))

    def refuse(self, code: int, message: str, *, level: int = logging.INFO) -> None:
        """ERROR outside of any request, then close: refused connections and failed logins."""
        self.reply_error(NO_ID, code, message)
        self._flush()
        self.close(message, level=level)

    # --- life

    def admit(self) -> None:
        """CONNECTED is sent: from now on any command may come."""
        self.connected = True
        self.service.unauthenticated_limiter.leave(self)
        self._frame_bytes_max = self.service.config.max_message_size + FRAME_PADDING_BYTES

    def client_certificate(self) -> bytes | None:
        """The client's certificate, DER; None when TLS has verified none."""
        return None if self._transport is None else client_certificate(self._transport)

    def summary(self) -> dict[str, Any]:
        """Who is connected, since when, and what it uses. REQUIRES: not closed."""
        assert self._transport is not None
        received, sent = transferred_bytes(self._transport)
        is_tls = self._transport.get_extra_info("ssl_object") is not None
        return {
            "address": self.remote,
            "listener": "pulsar+ssl" if is_tls else "pulsar",
            "advertisedListener": self.listener or None,
            "role": self.role,
            "originalRole": self.original_role,
            "clientVersion": self.client_version,
            "protocolVersion": self.protocol_version,
            "since": self.accepted_ms,
            "producers": len(self.producers),
            "consumers": len(self.consumers),
            "bytesIn": received,
            "bytesOut": sent,
        }

    def close(self, reason: str, *, level: int = logging.INFO) -> None:
        """Close without an answer; what is queued still leaves."""
        if self.closed:
            return
        service = self.service
        if not self.connected and not service.unauthenticated_limiter.may_log(service.wall_clock()):
            level = logging.DEBUG  # a flood of connections must not fill the log
        logger.log(level, "connection %s: closed: %s", self.remote, reason)
        self._flush()
        if (transport := self._transport) is not None:
            transport.close()
            if transport.get_write_buffer_size():
                # A peer that never reads must not keep these bytes for ever.
                self._loop.call_later(_LINGER_S, transport.abort)
        self._gone()

    def _gone(self) -> None:
        """Forget producers, consumers and tasks; once."""
        if self.closed:
            return
        self.closed = True
        self.writable = False
        self._count_waiting(0)
        self.service.remove_connection(self)
        for task in list(self._tasks):
            task.cancel()
        for future in self._liveness:
            if not future.done():
                future.set_result(False)
        self._liveness.clear()
        for producer in list(self.producers.values()):
            if isinstance(producer, ProducerRequest):
                producer.cancelled = True
            else:
                producer.topic.remove_producer(producer)
        self.producers.clear()
        for callback in list(self.on_closed.values()):
            callback()
        self.on_closed.clear()
        self.on_writable.clear()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task that the connection owns: cancelled when it closes, errors are reported."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        if len(self._tasks) >= _TASKS_MAX:
            self.pause_reading(PauseReason.TASKS)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._paused & PauseReason.TASKS and len(self._tasks) <= _TASKS_MAX // 2:
            self.resume_reading(PauseReason.TASKS)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("connection %s: request failed", self.remote, exc_info=error)
            self.close("internal error")

    # --- back-pressure on reading

    def pause_for_process(self) -> None:
        """The process's publish buffer is full."""
        self.pause_reading(PauseReason.PROCESS)

    def resume_for_process(self) -> None:
        self.resume_reading(PauseReason.PROCESS)

    @property
    def paused(self) -> bool:
        """Whether something keeps it from reading: a rate, memory, unsent answers."""
        return self._paused != 0

    @property
    def unheard(self) -> str:
        """What it isn't read for, if that may last; "": nothing."""
        return next((why for reason, why in _LASTING.items() if self._paused & reason), "")

    def pause_reading(self, reason: PauseReason) -> None:
        """Stop reading for ``reason``; idempotent."""
        if not self._paused and self._is_open():
            assert self._transport is not None
            self._transport.pause_reading()
        self._paused |= reason

    def resume_reading(self, reason: PauseReason) -> None:
        """``reason`` is over; reads again when it was the last one."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        if not self._paused and self._is_open():
            assert self._transport is not None
            self._keep_alive_ms = self.service.wall_clock() + self.service.keep_alive_ms
            self._heard = True
            self._transport.resume_reading()

    def _is_open(self) -> bool:
        """Whether the socket can still be paused and resumed."""
        return not self.closed and self._transport is not None and not self._transport.is_closing()

    # --- keep-alive

    def on_sweep(self, now_ms: int) -> None:
        """One look per sweep of all connections: handshake deadline and keep-alive."""
        if now_ms < self._keep_alive_ms or self.closed:
            return
        self._keep_alive_ms = now_ms + self.service.keep_alive_ms
        if self.read_max:
            self.sends.fit_reads()
        if not self.connected:
            self.close("handshake timeout")
        elif self._ping_sent and not self._heard and not self._excused():
            self.close("keep-alive timeout")
        else:
            self._ping_sent, self._heard = True, False
            self.write([_PING_FRAME])

    def _excused(self) -> bool:
        """Whether silence proves nothing: we don't read, and the peer takes what we send."""
        unsent, before = 0, self._unsent_bytes
        if self._transport is not None:
            unsent = self._unsent_bytes = self._transport.get_write_buffer_size()
        if self._paused & PauseReason.OUTGOING and 0 < before <= unsent:
            return False  # it read nothing of what it has to read first
        return bool(self._paused)

    async def check_liveness(self) -> bool:
        """PING; whether any byte came back in time. Closes the dead one."""
        if self.closed:
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        self._liveness.append(future)
        self.write([_PING_FRAME])
        timeout_s = self.service.config.connection_liveness_check_timeout_millis / 1000
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            if self._paused:
                return True  # its answer may wait to be read
            self.close("no answer to the liveness check")
            return False
        finally:
            if future in self._liveness:
                self._liveness.remove(future)

    def _alive(self) -> None:
        for future in self._liveness:
            if not future.done():
                future.set_result(True)
        self._liveness.clear()


def coalesce(buffers: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Same bytes in the same order, small neighbours joined, large ones untouched."""
    if len(buffers) < 2:
        return list(buffers)
    if sum(map(len, buffers)) < _JOIN_MEAN_BYTES * len(buffers):
        return [b"".join(buffers)]
    grouped: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) < _JOIN_BELOW_BYTES:
            small.append(buffer)
            continue
        if small:
            grouped.append(b"".join(small) if len(small) > 1 else small[0])
            small = []
        grouped.append(buffer)
    if small:
        grouped.append(b"".join(small) if len(small) > 1 else small[0])
    return grouped
