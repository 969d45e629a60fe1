"""Adds to one bookie, in version 2."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.adds_in_flight import AddsInFlight
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connection import BookieConnection, ConnectionV2
from magnetar.bookkeeper.bookie_protocol.connections import LazyConnection, Resolve
from magnetar.bookkeeper.bookie_protocol.digests import DigestOf
from magnetar.bookkeeper.bookie_protocol.result_codes import EOK, from_v2
from magnetar.bookkeeper.errors import FrameError, LedgerError, UnauthorizedAccessError
from magnetar.bookkeeper.packet import Buffer
from magnetar.bookkeeper.transport import AddRequest

_log = logging.getLogger(__name__)
_CHECK_S: Final = 1.0
"""How often the time of the last answer is looked at, while adds are under way."""
_KEPT_MAX: Final = 64
"""Encoded requests: the bookies of a write set are given theirs one after the other, and one may be
behind by what waits for it here."""
_JOINED_BYTES_MAX: Final = 256 * 1024
"""As much as a bookie takes from its socket at a time: more would be answered later."""
_JOINED_ROW: Final = 64
"""Requests of different such rows of ids aren't joined: so all bookies of a write set get the same,
however far each of them is, and it is encoded once."""
_SILENT_S: Final = 2.0
"""Without any answer a bookie isn't waited for."""


@dataclass(slots=True, eq=False)
class _Joined(AddRequest):
    """Neighbours as one request; all get the first code that isn't OK."""

    parts: list[AddRequest]


class EncodedAdds:
    """The last adds encoded: all bookies of a write set get the same bytes."""

    def __init__(self, bytes_max: int = 8 << 20) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._found: dict[tuple[int, int, int, bool, bool], tuple[object, list[Buffer], int]] = {}

    def encode(
        self, request: AddRequest, digest_of: DigestOf, *, is_own: bool = False
    ) -> list[Buffer]:
        """``is_own``: for a bookie of ours, which takes the creator's token and deferred adds."""
        # One writer made the requests between the first and the last of joined ones.
        kept: tuple[list[bytes], ...] = (request.heads,)
        if isinstance(request, _Joined):
            kept = (request.parts[0].heads, request.parts[-1].heads)
        key = (id(kept[0]), id(kept[-1]), len(request.heads), request.recovery, is_own)
        if (found := self._found.get(key)) is not None:
            return found[1]
        frames = v2.encode_adds(
            request.master_key,
            request.heads,
            request.bodies,
            recovery=request.recovery,
            digest=digest_of(request.ledger_id),
            creator=request.creator if is_own else 0,
            deferred=request.deferred_sync and is_own,
        )
        # The lists are kept with the frames, so that no other one can get their identity.
        size = sum(map(len, frames))
        self._found[key] = kept, frames, size
        self._bytes += size
        while len(self._found) > _KEPT_MAX or (
            len(self._found) > 1 and self._bytes > self._bytes_max
        ):
            self._bytes -= self._found.pop(next(iter(self._found)))[2]
        return frames


class AddChannel:
    """Sends adds, and answers each once: by the bookie, or with UNAVAILABLE when it is lost.

    Args:
        is_own: the bookie is one of ours, and knows us.
        on_lost: called when a connection is lost, or there is none.
    Attributes:
        pending_bytes, pending_requests: queued and unanswered.
    """

    def __init__(
        self,
        bookie_id: str,
        resolve: Resolve,
        config: ProtocolConfig,
        digest_of: DigestOf,
        encoded: EncodedAdds,
        is_own: bool = False,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.pending_bytes = 0
        self.pending_requests = 0
        self._bookie_id = bookie_id
        self._config = config
        self._digest_of = digest_of
        self._encoded = encoded
        self._is_own, self._tell_lost = is_own, on_lost
        self._loop = asyncio.get_running_loop()
        self._connection = LazyConnection[ConnectionV2](
            bookie_id, resolve, self._create, self._on_lost, config
        )
        self._in_flight = AddsInFlight()
        self._queue: deque[AddRequest] = deque()
        self._is_sending = False  # scheduled
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answered_at = 0.0
        self._retry_at = 0.0
        self._backoff_s = config.backoff_first_s
        self._lost_code = codes.UNAVAILABLE  # of the last loss
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connection.current is not None

    @property
    def is_slow(self) -> bool:
        """Too much waits although the bookie answers; a silent one is failing, not slow."""
        return (
            self.pending_bytes > self._config.backlog_bytes
            and self._loop.time() - self._answered_at < _SILENT_S
        )

    def add(self, request: AddRequest) -> None:
        """``request.done`` is called later, never within this call."""
        if self._closed or (self._connection.current is None and self._is_backing_off()):
            self._refuse(request, self._lost_code)
            return
        size = request.body_bytes
        if size > self._config.frame_bytes_max and not self._fits(request):
            self._refuse(request, codes.BAD_REQUEST)
            return
        if self.pending_bytes and self.pending_bytes + size > self._config.pending_bytes_max:
            self._refuse(request, codes.TOO_MANY_REQUESTS)
            return
        self.pending_bytes += size
        self.pending_requests += 1
        self._queue.append(request)
        if self._connection.current is not None:
            if not self._is_sending:
                self._is_sending = True
                self._loop.call_soon(self._send_queued)  # what this turn brings goes together
        elif self._opening is None:
            self._opening = self._loop.create_task(self._open())

    def drop(self, error: Exception) -> None:
        """Leave the bookie's process; the next add connects anew."""
        self._connection.drop(error)

    async def close(self) -> None:
        """What isn't answered by now gets UNAVAILABLE."""
        self._closed, self._lost_code = True, codes.UNAVAILABLE
        if self._opening is not None:
            self._opening.cancel()
        await self._connection.close()
        self._fail_all()

    def _create(self, on_lost: Callable[[BookieConnection, Exception], None]) -> ConnectionV2:
        return ConnectionV2(on_lost, self._on_reply, self._config.frame_bytes_max)

    def _is_backing_off(self) -> bool:
        return self._loop.time() < self._retry_at

    def _fits(self, request: AddRequest) -> bool:
        room = self._config.frame_bytes_max - v2.ADD_BYTES - v2.CREATOR_BYTES * self._is_own
        pairs = zip(request.heads, request.bodies, strict=True)
        return all(len(head) + len(body) <= room for head, body in pairs)

    def _refuse(self, request: AddRequest, code: int) -> None:
        self._loop.call_soon(_answer, request, code)

    async def _open(self) -> None:
        try:
            await self._connection.get()
        except LedgerError as error:
            self._on_lost(error)
        else:
            self._backoff_s = self._config.backoff_first_s
            self._send_queued()
        finally:
            self._opening = None

    def _begin(self, request: AddRequest) -> bool:
        """Whether it may be sent now."""
        now_s = self._loop.time()
        if not self._in_flight.entries:
            self._answered_at = now_s
            if self._timer is None:
                self._timer = self._loop.call_later(_CHECK_S, self._check)
        return self._in_flight.begin(request, now_s)

    def _frames(self, request: AddRequest) -> list[Buffer]:
        return self._encoded.encode(request, self._digest_of, is_own=self._is_own)

    def _send_queued(self) -> None:
        self._is_sending = False
        connection = self._connection.current
        if connection is None:
            return
        pieces: list[Buffer] = []
        while self._queue and (room := self._config.entries_max - self._in_flight.entries) > 0:
            request = _take_neighbours(self._queue, room)
            if self._begin(request):
                pieces += self._frames(request)
        connection.send(pieces)

    def _on_reply(self, reply: v2.Reply) -> None:
        if not isinstance(reply, v2.AddReplies):
            raise FrameError("a reply to what wasn't asked")
        self._answered_at = self._loop.time()
        done, ready = self._in_flight.answered(reply, self._answered_at)
        connection = self._connection.current
        for request in ready:
            if connection is not None:
                connection.write_all(self._frames(request))
        for request, code in done:
            self._done(request, code if self._is_own or code == EOK.v2 else from_v2(code))
        if self._queue and not self._is_sending:  # it waited for room
            self._send_queued()

    def _done(self, request: AddRequest, code: int) -> None:
        self.pending_bytes -= request.body_bytes
        parts = request.parts if isinstance(request, _Joined) else (request,)
        self.pending_requests -= len(parts)
        for part in parts:
            _answer(part, code)

    def _check(self) -> None:
        self._timer = None
        if not self._in_flight.entries:
            return
        if self._in_flight.waits_s(self._loop.time()) > self._config.add_timeout_s:
            self._connection.drop(TimeoutError(f"no answer in {self._config.add_timeout_s} s"))
        else:
            self._timer = self._loop.call_later(_CHECK_S, self._check)

    def _on_lost(self, error: Exception) -> None:
        is_refused = isinstance(error, UnauthorizedAccessError)
        self._lost_code = codes.UNAUTHORIZED if is_refused else codes.UNAVAILABLE
        if self.pending_requests:
            self._retry_at = self._loop.time() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, self._config.backoff_max_s)
            _log.warning(
                "bookie %s: %d adds get no answer: %s",
                self._bookie_id,
                self.pending_requests,
                error,
            )
        self._fail_all()
        self._tell_lost()

    def _fail_all(self) -> None:
        queue, self._queue = list(self._queue), deque()
        for request in [*self._in_flight.take_all(), *queue]:
            self._done(request, self._lost_code)


def _take_neighbours(queue: deque[AddRequest], entries_max: int) -> AddRequest:
    """The first request with those that go on where it ends, as far as they are small.

    Args:
        entries_max: of all together; the first may have more.
    """
    first = queue.popleft()
    parts, size, end = [first], first.body_bytes, first.entry_ids[-1] + 1
    end_max = first.entry_ids[0] + entries_max
    while queue and type(first.entry_ids) is range:
        following = queue[0]
        if (
            following.entry_ids[0] != end
            or end % _JOINED_ROW == 0
            or following.ledger_id != first.ledger_id
            or type(following.entry_ids) is not range
            or following.entry_ids[-1] >= end_max
            or size + following.body_bytes > _JOINED_BYTES_MAX
            or following.recovery != first.recovery
            or following.deferred_sync != first.deferred_sync
            or following.creator != first.creator
            or following.master_key != first.master_key
        ):
            break
        parts.append(queue.popleft())
        size, end = size + following.body_bytes, following.entry_ids[-1] + 1
    if len(parts) == 1:
        return first
    return _Joined(
        first.ledger_id,
        first.master_key,
        range(first.entry_ids[0], end),
        list(chain.from_iterable(part.heads for part in parts)),
        list(chain.from_iterable(part.bodies for part in parts)),
        size,
        first.recovery,
        first.done,
        deferred_sync=first.deferred_sync,
        creator=first.creator,
        parts=parts,
    )


def _answer(request: AddRequest, code: int) -> None:
    try:
        request.done(request, code)
    except Exception:  # a caller's bug must not keep the others from their answers
        _log.exception("a caller's completion failed")
