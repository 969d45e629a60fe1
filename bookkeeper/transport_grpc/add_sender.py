"""A client's end of the add stream to one bookie.

Whatever is queued while a message is on its way goes out with the next one, up to a size; there is
no timer. A request is answered once: by the bookie, or with UNAVAILABLE when the stream ends, which
proves nothing about what the bookie stored.

The stream begins over gRPC. If the bookie offers an add connection (``add_connection.py``),
messages go there as soon as it is connected; if it can't be, everything stays with gRPC.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import AddRequest
from magnetar.bookkeeper.transport_grpc.add_connection import (
    AddConnectionListener,
    AddConnectionOffer,
    ClientAddConnection,
)
from magnetar.bookkeeper.transport_grpc.add_frames import (
    MANY_BYTES_MAX,
    decode_answers,
    encode_message,
    largest_packet,
    merge_requests,
    split_request,
)
from magnetar.bookkeeper.transport_grpc.config import TransportConfig

_log = logging.getLogger(__name__)

_SILENT_S = 2.0  # without any answer a bookie isn't waited for
_REQUESTS_MAX = 1000  # of a message: encoding and decoding it hold a loop for some 2 ms
_PIECES = 4  # a request is cut above so many messages, as a message has a largest size
_CHECK_S = 1.0  # how often the oldest frame's age is looked at, while there is one
_REASON_S = 1.0  # for the stream to say why, after its add connection was lost


class AddCall(Protocol):
    """A bidirectional gRPC call with identity serializers."""

    async def write(self, message: bytes) -> None: ...

    async def read(self) -> Any: ...

    def cancel(self) -> bool: ...

    async def done_writing(self) -> None: ...


OpenCall = Callable[[], Awaitable[AddCall]]
TakeOffer = Callable[[AddConnectionOffer, AddConnectionListener], Awaitable[ClientAddConnection]]
"""Raises OSError or TimeoutError: the add connection can't be connected."""


class CredentialsChanged(Protocol):
    """Whether a stream would begin with other credentials now."""

    def __call__(self, *, at_once: bool = False) -> bool: ...


def _never(*, at_once: bool = False) -> bool:
    return False


REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class MessageCache:
    """The last messages encoded, because all bookies of a write set get the same ones.

    A key names each frame by the lists of its first and last request and their number: in between
    are the batches that one writer made of the ids in between. The lists are kept with the message,
    so an identity can't be re-used while it is here.
    """

    def __init__(self, messages_max: int = 4, message_bytes_max: int = 2 << 20) -> None:
        self._messages: dict[tuple[object, ...], tuple[object, bytes]] = {}
        self._messages_max = messages_max
        self._message_bytes_max = message_bytes_max

    def encode(self, groups: list[list[AddRequest]], *, creators: bool = True) -> bytes:
        """``encode_message``, once for requests that share their lists."""
        key = (
            creators,
            *[(id(g[0].heads), id(g[-1].heads), len(g), g[0].recovery) for g in groups],
        )
        found = self._messages.pop(key, None)
        if found is not None:
            self._messages[key] = found
            return found[1]
        message = encode_message(groups, creators=creators)
        if len(message) <= self._message_bytes_max:
            kept = [(group[0].heads, group[-1].heads) for group in groups]
            self._messages[key] = (kept, message)
            if len(self._messages) > self._messages_max:
                del self._messages[next(iter(self._messages))]
        return message

    def clear(self) -> None:
        self._messages.clear()


@dataclass(slots=True, eq=False)
class _Frame:
    requests: list[AddRequest]
    size: int
    sent_at: float  # loop time, s


class AddSender:
    """Owns the stream, its queue and its two tasks.

    Args:
        open_call: connect and begin a call; an exception means that there is no bookie.
        on_failed: told why a stream ended, before its requests are answered.
        has_other_token: asked before a message leaves: then the stream ends in good order, and the
            next one begins with the new credentials.
        take_offer: connect an add connection; None: this client asks for no offers.
    """

    def __init__(
        self,
        name: str,
        config: TransportConfig,
        open_call: OpenCall,
        on_failed: Callable[[BaseException | None], None],
        cache: MessageCache,
        has_other_token: CredentialsChanged = _never,
        take_offer: TakeOffer | None = None,
    ) -> None:
        self.pending_bytes = 0  # queued and unanswered
        self.pending_requests = 0  # the same ones; pieces of a large one count
        self.creators = True  # the bookie of this stream takes frames with the creator's token
        self._name = name
        self._config = config
        self._open_call = open_call
        self._on_failed = on_failed
        self._cache = cache
        self._piece_bytes = min(
            *(_PIECES * config.message_bytes, config.entry_bytes_max, MANY_BYTES_MAX // 2)
        )
        self._loop = asyncio.get_running_loop()
        self._queue: deque[AddRequest] = deque()
        self._in_flight: dict[int, _Frame] = {}  # by number, ascending
        self._next_number = 0
        self._task: asyncio.Task[None] | None = None
        self._wake_sender: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed_out = False
        self._has_other_token = has_other_token
        self._take_offer = take_offer
        self._sender: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[None] | None = None  # an add connection
        self._new_connection: ClientAddConnection | None = (
            None  # connected, and to be used from the next message
        )
        self._connection: ClientAddConnection | None = None
        self._connection_error: BaseException | None = None
        self._connection_timer: asyncio.TimerHandle | None = None
        self._call: AddCall | None = None  # of the add connection
        self._is_flushing = False  # scheduled, over the add connection
        self._is_draining = False  # what is under way is waited for, before the stream ends
        self._is_renewed = False  # the stream was ended to begin another one
        self._closed = False
        self._answered_at = 0.0  # loop time of the last answer
        self._retry_at = 0.0  # loop time before which nothing is tried
        self._backoff_s = config.backoff_first_s

    @property
    def is_slow(self) -> bool:
        """Too much waits although the bookie answers; a silent one is failing, not slow."""
        return (
            self.pending_bytes > self._config.backlog_bytes
            and self._loop.time() - self._answered_at < _SILENT_S
        )

    @property
    def is_open(self) -> bool:
        """There is a stream, or one is being opened."""
        return self._task is not None

    def add(self, request: AddRequest) -> None:
        """Queue a request; ``done`` is called later, never within this call."""
        size = request.body_bytes
        is_large = size > self._piece_bytes
        if is_large and largest_packet(request) > self._config.entry_bytes_max:
            self._refuse(request, codes.BAD_REQUEST)
            return
        if self.pending_bytes and self.pending_bytes + size > self._config.pending_bytes_max:
            self._refuse(request, codes.TOO_MANY_REQUESTS)
            return
        if self._task is None:
            if self._closed or self._loop.time() < self._retry_at:
                self._refuse(request, codes.UNAVAILABLE)
                return
            self._task = self._loop.create_task(self._run())
        if is_large:
            pieces = split_request(request, self._piece_bytes)
            self._queue.extend(pieces)
            self.pending_requests += len(pieces)
        else:
            self._queue.append(request)
            self.pending_requests += 1
        self.pending_bytes += size
        self._wake()

    async def close(self) -> None:
        """End the stream; what isn't answered by now gets UNAVAILABLE."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._task is task:  # cancelled before its first step, so it has ended nothing
                self._end(None)

    def _refuse(self, request: AddRequest, code: int) -> None:
        self._loop.call_soon(_answer, request, code)

    async def _run(self) -> None:
        """One stream from its first request to its end, or several with one token each."""
        error: BaseException | None = None
        call: AddCall | None = None
        try:
            while call is None or self._is_renewed:
                self._is_renewed = False
                async with asyncio.timeout(self._config.connect_timeout_s):
                    call = await self._open_call()
                self._sender = self._loop.create_task(self._send(call))
                await self._receive(call)
                self._leave_connection()
        except asyncio.CancelledError:
            # Our own end, or a call that gRPC cancelled: the same for the adds that wait.
            error = self._connection_error
            if self._timed_out:
                error = TimeoutError(f"no answer within {self._config.add_timeout_s} s")
        except (grpc.RpcError, OSError, LookupError, FrameError, TimeoutError) as caught:
            error = caught
        except Exception as caught:  # a bug here: what waits is answered all the same
            _log.exception("%s: the add stream failed", self._name)
            error = caught
        finally:
            if self._sender is not None:
                self._sender.cancel()
            if call is not None:
                call.cancel()
            self._end(error)

    async def _receive(self, call: AddCall) -> None:
        while (message := await call.read()) is not grpc.aio.EOF:
            if (
                self._take_offer is not None
                and (offer := AddConnectionOffer.decode(message)) is not None
            ):
                if self._connecting is not None:
                    raise FrameError("a second offer of an add connection")
                self._connecting = self._loop.create_task(self._connect(self._take_offer, offer))
            else:
                self._on_answers(message)

    async def _send(self, call: AddCall) -> None:
        """Write messages for as long as the stream lives, or until there is an add connection; the
        reader notices when it ends."""
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                if self._new_connection is not None:
                    self._change_over(call, self._new_connection)
                    return
                if not self._queue:
                    await self._wait_to_be_woken()
                    continue
                if self._has_other_token():
                    await self._end_renewed(call)
                    return
                await call.write(self._take_message())

    async def _end_renewed(self, call: AddCall) -> None:
        """Let the stream end when all that is under way is answered; the queue is the next one's.

        Not two at a time: the bookie would get requests in another order than they were made.
        """
        self._is_draining = True
        while self._in_flight:
            await self._wait_to_be_woken()
        self._is_draining = False
        self._is_renewed = True
        self._next_number = 0  # counted anew in each stream
        await call.done_writing()

    async def _wait_to_be_woken(self) -> None:
        self._wake_sender = self._loop.create_future()
        await self._wake_sender

    def _wake(self) -> None:
        wake = self._wake_sender
        if wake is not None and not wake.done():
            wake.set_result(None)
        elif self._connection is not None and not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    # ---- over an add connection

    async def _connect(self, take_offer: TakeOffer, offer: AddConnectionOffer) -> None:
        try:
            self._new_connection = await take_offer(offer, self)
        except (OSError, TimeoutError) as error:
            _log.warning(
                "%s: no add connection, adds stay with gRPC: %s", self._name, describe(error)
            )
        else:
            self._wake()

    def _change_over(self, call: AddCall, connection: ClientAddConnection) -> None:
        """All that was written is on its way over gRPC; the rest over the add connection."""
        self._new_connection, self._wake_sender = None, None
        self._connection, self._call = connection, call
        connection.begin(self._next_number)
        self._flush()

    def _flush(self) -> None:
        """All that was queued within a turn of the loop, as far as the add connection takes it."""
        self._is_flushing = False
        connection, call = self._connection, self._call
        if connection is None or call is None or self._is_draining:
            return
        while self._queue and connection.is_writable:
            if self._has_other_token():
                self._is_draining = True
                self._sender = self._loop.create_task(self._end_connection(call))
                return
            connection.write(self._take_message())

    async def _end_connection(self, call: AddCall) -> None:
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await self._end_renewed(call)

    def on_add_connection_answers(self, message: bytes) -> None:
        self._on_answers(message)

    def on_add_connection_writable(self) -> None:
        self._flush()

    def on_add_connection_lost(self, connection: ClientAddConnection, error: BaseException) -> None:
        """The stream ends, too; it may know a better reason."""
        task = self._task
        if task is not None and connection in (self._connection, self._new_connection):
            self._connection = self._new_connection = None
            self._connection_error = error
            self._connection_timer = self._loop.call_later(_REASON_S, task.cancel)

    def _leave_connection(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection_timer is not None:
            self._connection_timer.cancel()
        for connection in (self._connection, self._new_connection):
            if connection is not None:
                connection.close()
        self._connecting = self._connection_timer = self._connection_error = None
        self._connection = self._new_connection = self._call = None

    def _take_message(self) -> bytes:
        """The next message out of the queue; its frames are in flight from now on."""
        queue, room = self._queue, self._config.message_bytes
        requests: list[AddRequest] = []
        while queue and (not requests or queue[0].body_bytes <= room):
            if len(requests) == _REQUESTS_MAX:
                break
            request = queue.popleft()
            room -= request.body_bytes
            requests.append(request)
        groups = merge_requests(requests)
        now, number = self._loop.time(), self._next_number
        for group in groups:
            size = group[0].body_bytes if len(group) == 1 else sum(r.body_bytes for r in group)
            self._in_flight[number] = _Frame(group, size, now)
            number += 1
        self._next_number = number
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_S, self._check_age)
        return self._cache.encode(groups, creators=self.creators)

    def _on_answers(self, message: bytes) -> None:
        self._backoff_s = self._config.backoff_first_s
        self._answered_at = self._loop.time()
        pop = self._in_flight.pop
        for first, count, code in decode_answers(message):
            for number in range(first, first + count):
                frame = pop(number, None)
                if frame is None:
                    raise FrameError(f"an answer to frame {number}, which isn't under way")
                self.pending_bytes -= frame.size
                self.pending_requests -= len(frame.requests)
                for request in frame.requests:
                    _answer(request, code)
        if self._is_draining and not self._in_flight:
            self._wake()
        if not self._in_flight and not self._queue:
            self._cache.clear()  # an idle client keeps no messages

    def _check_age(self) -> None:
        self._timer = None
        if not self._in_flight:
            return
        oldest = next(iter(self._in_flight.values()))
        if self._loop.time() - oldest.sent_at > self._config.add_timeout_s:
            # What was written is ambiguous from here on; later frames can only be slower.
            self._timed_out = True
            if self._task is not None:
                self._task.cancel()
            return
        self._timer = self._loop.call_later(_CHECK_S, self._check_age)

    def _end(self, error: BaseException | None) -> None:
        """The stream is gone: everything of it is answered, the next request begins anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave_connection()
        self._task = self._sender = self._wake_sender = None
        self._timed_out = self._is_draining = self._is_renewed = False
        self._cache.clear()
        frames, self._in_flight = list(self._in_flight.values()), {}
        queue, self._queue = self._queue, deque()
        self._next_number = 0
        self.pending_bytes = self.pending_requests = 0
        if _is_expired(error) and self._has_other_token(at_once=True):
            self._retry_at = 0.0  # with that one there is nothing to wait for
        elif not self._closed:
            self._retry_at = self._loop.time() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, self._config.backoff_max_s)
        if (frames or queue) and not self._closed:
            _log.warning(
                "%s: add stream ended with %d frames and %d requests unanswered: %s",
                *(self._name, len(frames), len(queue), describe(error)),
            )
        self._on_failed(error)
        for frame in frames:
            for request in frame.requests:
                _answer(request, codes.UNAVAILABLE)
        for request in queue:
            _answer(request, codes.UNAVAILABLE)


def _is_expired(error: BaseException | None) -> bool:
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)


def describe(error: BaseException | None) -> str:
    """Why a call failed, in a line."""
    if error is None:
        return "closed"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def _answer(request: AddRequest, code: int) -> None:
    try:
        request.done(request, code)
    except Exception:  # a caller's bug must not keep the others from their answers
        _log.exception("a caller's completion failed")
