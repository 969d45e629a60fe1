"""The client's side of one ZooKeeper session after another, over one connection after another.

Pure: bytes, closed connections and the time go in; bytes to send and effects come out. One
connection exists at a time. What matters here:

- An answer is matched by order. A request without its answer when the connection ends is sent again
  if it is a read; a change is in doubt and goes back to its owner as ``LOST``.
- The server ends a session when it has heard nothing for the timeout, so the session is declared
  lost, here, 5/6 of it after the *sending* of the last request that was answered: before the
  server can give its ephemeral nodes away, however long the answer took.
- A session that was declared lost may be alive on the server, and requests of it under way. Before
  a new one begins, the old one is resumed and closed: afterwards its ephemeral nodes are gone and
  nothing that was sent in it can happen any more.
"""

from collections import deque
from enum import Enum
from struct import Struct
from typing import Any, Final

from magnetar.metadata.sasl.digest_md5 import DigestMd5Client, SaslError
from magnetar.metadata.store import SessionEvent

#: Own codes of calls, beside the server's, which are 0 or negative.
LOST: Final = 1
"""Sent, and the connection ended without an answer. A change may have happened; a read was repeated
``SENDS_MAX`` times."""
SESSION_ENDED: Final = 2
"""Nothing was done, or it was a read; this session can't be proven to be alive."""
ENDED: Final = 3
"""The same, and there will be no other session."""

SENDS_MAX: Final = 5
"""Of a read. One that makes the server hang up must not do so for ever."""

FRAME_BYTES_MAX: Final = 512 * 1024 * 1024
"""Children of a node come in one frame; above this the stream must be garbage."""

_WATCH_XID, _PING_XID, _LOGIN_XID = -1, -2, -4
_XID_MAX = 0x7FFFFFFF
_SESSION_EXPIRED, _SESSION_MOVED = -112, -118

_LENGTH = Struct(">i")
_FRAME = Struct(">ii")  # length, xid; the type follows
_CONNECT = Struct(">iqiqi16s?")
_CONNECTED = Struct(">iiqi")
_HEADER = Struct(">iqi")
_EVENT = Struct(">iii")
_PING = _LENGTH.pack(8) + _LENGTH.pack(_PING_XID) + _LENGTH.pack(11)
_CLOSE_BODY = _LENGTH.pack(-11)
_SASL = Struct(">ii")  # type, length of the token that follows
_SASL_TYPE = 102
_NO_PASSWORD = bytes(16)

# Parts of the session's timeout.
_PING_AFTER, _SILENT_AFTER, _LOST_AFTER = 1 / 3, 2 / 3, 5 / 6


class CallKind(Enum):
    READ = "read"  # may be sent again
    CHANGE = "change"
    OWN = "own"  # of the connection: login, watch


_READ, _CHANGE, _OWN = CallKind.READ, CallKind.CHANGE, CallKind.OWN


class ZooKeeperCall:
    """A request; with the effect that hands it back, also its answer."""

    __slots__ = (
        *("body", "cancelled", "code", "kind", "offset", "reply"),
        *("sends", "sent_at", "sent_zxid", "session_id", "waiter", "xid"),
    )

    def __init__(self, kind: CallKind, body: bytes) -> None:
        self.kind, self.body = kind, body
        self.code, self.reply, self.offset = 0, b"", 0  # the answer is reply[offset:]
        self.xid, self.sent_at, self.sends = 0, 0.0, 0
        self.session_id = 0  # in which it was sent last
        self.sent_zxid = 0  # when it was sent, the server had done all up to here and not this
        self.cancelled = False  # not to be sent any more
        self.waiter: Any = None  # belongs to the shell


class NodeEvent:
    """Of a watch: type as on the wire (1 created, 2 deleted, 3 value changed), full path."""

    __slots__ = ("path", "type")

    def __init__(self, type: int, path: str) -> None:
        self.type, self.path = type, path


class FirstConnected:
    """The first session has begun. Of later ones tell ``SessionEvent``s."""

    __slots__ = ()


class DropConnection:
    """Close the connection; ``connection_lost`` has been accounted for. Then connect again."""

    __slots__ = ("at_once", "login_refused", "reason")

    def __init__(self, reason: str, *, at_once: bool = False, login_refused: bool = False) -> None:
        self.reason, self.at_once, self.login_refused = reason, at_once, login_refused


Effect = ZooKeeperCall | NodeEvent | SessionEvent | FirstConnected | DropConnection


class _Phase(Enum):
    OFF = "off"  # no connection
    HANDSHAKE = "handshake"
    LOGIN = "login"  # by SASL: nothing else is sent before it is over
    BURYING = "burying"  # closing a session that was declared lost
    OPEN = "open"
    ENDED = "ended"


_OFF, _HANDSHAKE, _LOGIN, _BURYING = _Phase.OFF, _Phase.HANDSHAKE, _Phase.LOGIN, _Phase.BURYING
_BEFORE_OPEN = frozenset({_HANDSHAKE, _LOGIN, _BURYING})
_OPEN, _ENDED = _Phase.OPEN, _Phase.ENDED


class SessionCore:
    """Times are seconds of any clock that never goes back."""

    def __init__(
        self, timeout_s: float, answer_timeout_s: float, logins: list[bytes], watches: list[bytes]
    ) -> None:
        """
        Args:
            timeout_s: of the session, wanted; the server may set another.
            answer_timeout_s: a connection that leaves a request unanswered for so long is dropped.
            logins, watches: bodies of what every new connection begins with.
        """
        self.session_id = 0
        self.timeout_s, self._wanted_s = timeout_s, timeout_s
        self.lost = False  # from SESSION_LOST to RECONNECTED
        self.last_zxid = 0
        self._answer_timeout_s = answer_timeout_s
        self._logins, self._watches = logins, watches
        self._phase = _OFF
        self._connected_once = self._up = False
        self._resume_id, self._password = 0, _NO_PASSWORD
        self._queue: deque[ZooKeeperCall] = deque()
        self._pending: deque[ZooKeeperCall] = deque()
        self._pings: deque[float] = deque()  # when they were sent
        self._own_left = 0
        self._login: DigestMd5Client | None = None  # of this connection
        self._connected = b""  # the answer to the connect request
        self._closing: ZooKeeperCall | None = None
        self._xid = 0
        self._buffer = bytearray()  # a frame's beginning
        self._buffer_wanted = 0  # bytes before it is worth a look
        self._output: list[bytes] = []
        self._effects: list[Effect] = []
        self._contact = self._sent_at = self._received_at = self._handshake_until = 0.0

    @classmethod
    def of_condemned(cls, timeout_s: float, session_id: int, password: bytes) -> "SessionCore":
        """Of a session that another process has: the first connection ends it (``is_expired``)."""
        core = cls(timeout_s, timeout_s, [], [])
        core.lost, core._resume_id, core._password = True, session_id, password
        return core

    @property
    def is_expired(self) -> bool:
        """There is no session that was declared lost and may be alive."""
        return not (self.lost and self._resume_id)

    @property
    def password(self) -> bytes:
        """With ``session_id``: what resumes the session, or ends it."""
        return self._password

    @property
    def connected(self) -> bool:
        """Requests are being answered, as far as is known."""
        return self._up

    def submit(self, call: ZooKeeperCall) -> None:
        """Queues a request. REQUIRES: not ``lost``, not ended."""
        assert not self.lost
        assert self._phase is not _ENDED
        self._queue.append(call)

    def close(self) -> ZooKeeperCall | None:
        """Ends the session after what is queued; handed back when it is over. None: it is."""
        assert self._closing is None
        if self._phase is not _OPEN or self.lost:
            self._end()
            return None
        call = self._closing = ZooKeeperCall(_OWN, _CLOSE_BODY)
        self._queue.append(call)
        return call

    def abandon(self) -> None:
        """There will be no other connection: what waits is handed back."""
        self._end()

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def take_output(self, now: float) -> list[bytes]:
        """Takes all bytes that the shell shall write to the connection now."""
        if self._queue and self._phase is _OPEN:
            append = self._output.append
            for call in self._queue:
                if not call.cancelled:
                    append(self._send(call, now))
            self._queue.clear()
        output, self._output = self._output, []
        if output:
            self._sent_at = now
        return output

    def deadline(self) -> float | None:
        """When ``on_time`` has something to do, unless something happens before."""
        times = list[float]()
        if self._is_alive():
            times.append(self._contact + _LOST_AFTER * self.timeout_s)
        if self._phase in _BEFORE_OPEN:
            times.append(self._handshake_until)
        elif self._phase is _OPEN:
            times.append(self._sent_at + _PING_AFTER * self.timeout_s)
            times.append(self._received_at + _SILENT_AFTER * self.timeout_s)
            if self._pending:
                times.append(self._pending[0].sent_at + self._answer_timeout_s)
        return min(times, default=None)

    def on_time(self, now: float) -> None:
        self._check_alive(now)
        if self._phase in _BEFORE_OPEN:
            if now >= self._handshake_until:
                self._drop("no answer to the connect request", now)
        elif self._phase is _OPEN:
            if now >= self._received_at + _SILENT_AFTER * self.timeout_s:
                self._drop("nothing was heard for 2/3 of the session's timeout", now)
            elif self._pending and now >= self._pending[0].sent_at + self._answer_timeout_s:
                self._drop("a request was not answered in time", now)
            elif now >= self._sent_at + _PING_AFTER * self.timeout_s:
                self._output.append(_PING)
                self._pings.append(now)
                self._sent_at = now

    def connection_made(
        self, now: float, answer_within_s: float, login: DigestMd5Client | None = None
    ) -> None:
        """``login``: by SASL, of this connection alone."""
        assert self._phase is _OFF
        self._login = login
        self._phase, self._handshake_until = _HANDSHAKE, now + answer_within_s
        self._sent_at = now
        connect = _CONNECT.pack(
            *(0, self.last_zxid, round(self._wanted_s * 1000), self._resume_id),
            *(len(self._password), self._password, False),
        )
        self._output.append(_LENGTH.pack(len(connect)) + connect)

    def connection_lost(self, now: float) -> None:
        """The connection ended, by whomever."""
        if self._phase in (_OFF, _ENDED):
            return
        self._phase = _OFF
        self._buffer.clear()
        self._output.clear()
        self._pings.clear()
        self._check_alive(now)
        if self._up:
            self._up = False
            self._effects.append(SessionEvent.CONNECTION_LOST)
        if self._closing is not None:  # too late to be sure; the server will expire the session
            self._end()
            return
        again = list[ZooKeeperCall]()
        for call in self._pending:
            if call.kind is _READ and call.sends < SENDS_MAX:
                again.append(call)
            elif call.kind is not _OWN:
                self._hand_back(call, LOST)
        self._pending.clear()
        self._queue.extendleft(reversed(again))

    def data_received(self, data: bytes, now: float) -> None:
        self._check_alive(now)
        if self._phase in (_OFF, _ENDED):
            return
        self._received_at = now
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._buffer_wanted:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        start, end = 0, len(data)
        while end - start >= 4:
            (length,) = _LENGTH.unpack_from(data, start)
            if not 0 <= length <= FRAME_BYTES_MAX:
                self._drop(f"a frame of {length} bytes", now)
                return
            if end - start - 4 < length:
                break
            frame = data[start + 4 : start + 4 + length]
            start += 4 + length
            if not self._on_frame(frame, now):
                return
        if start < end:
            self._buffer += data[start:]
            self._buffer_wanted = 4 + (length if end - start >= 4 else 0)

    # One frame: False when the connection is over.

    def _on_frame(self, frame: bytes, now: float) -> bool:
        if self._phase is _HANDSHAKE:
            return self._on_connected(frame, now)
        if len(frame) < _HEADER.size:
            return self._drop("a frame without header", now)
        xid, zxid, code = _HEADER.unpack_from(frame)
        if zxid > self.last_zxid:
            self.last_zxid = zxid
        if xid == _WATCH_XID:
            type_, _, length = _EVENT.unpack_from(frame, _HEADER.size)
            start = _HEADER.size + _EVENT.size
            self._effects.append(NodeEvent(type_, frame[start : start + length].decode()))
            return True
        if xid == _PING_XID:
            if self._pings:
                self._contact = max(self._contact, self._pings.popleft())
            return True
        if not self._pending or self._pending[0].xid != xid:
            return self._drop(f"an answer to no request (xid {xid})", now)
        if code in (_SESSION_EXPIRED, _SESSION_MOVED):
            # Not done. The next connect tells whether the session still is.
            return self._drop("the server says that the session has ended or moved", now)
        call = self._pending.popleft()
        self._contact = max(self._contact, call.sent_at)
        call.reply, call.offset = frame, _HEADER.size
        if call.kind is not _OWN:
            self._hand_back(call, code)
            return True
        return self._on_own(call, code, now)

    def _on_own(self, call: ZooKeeperCall, code: int, now: float) -> bool:
        if self._phase is _LOGIN:
            return self._on_challenge(call, code, now)
        if call is self._closing:
            self._phase = _OFF
            self._hand_back(call, 0)
            self._closing = None
            self._end()
            return False
        if self._phase is _BURYING:
            self._resume_id, self._password = 0, _NO_PASSWORD
            return self._drop("the lost session is closed", now, at_once=True)
        if code:
            is_login = call.xid == _LOGIN_XID
            what = "the credentials" if is_login else "a watch (ZooKeeper 3.6 is needed)"
            return self._drop(f"the server refuses {what}", now, login_refused=is_login)
        self._own_left -= 1
        if not self._own_left:
            self._announce()
        return True

    def _on_connected(self, frame: bytes, now: float) -> bool:
        if len(frame) < _CONNECTED.size:
            return self._drop("a short answer to the connect request", now)
        timeout_ms = _CONNECTED.unpack_from(frame)[1]
        if timeout_ms <= 0:  # the session that should have been resumed has expired
            self._lose()
            self._resume_id, self._password = 0, _NO_PASSWORD
            return self._drop("the session has expired", now, at_once=True)
        self._connected = frame
        if self._login is None:
            return self._begin(now)
        self._phase = _LOGIN
        self._respond(b"", now)
        return True

    def _respond(self, challenge: bytes, now: float) -> None:
        """Raises SaslError."""
        assert self._login is not None
        token = self._login.respond(challenge)
        if not self._login.is_complete:
            call = ZooKeeperCall(_OWN, _SASL.pack(_SASL_TYPE, len(token)) + token)
            self._output.append(self._send(call, now))

    def _on_challenge(self, call: ZooKeeperCall, code: int, now: float) -> bool:
        assert self._login is not None
        if code:
            return self._drop("the server refuses the login", now, login_refused=True)
        try:
            # After its length, which is -1 for none.
            self._respond(call.reply[call.offset + _LENGTH.size :], now)
        except SaslError as error:
            return self._drop(str(error), now, login_refused=True)
        return self._begin(now) if self._login.is_complete else True

    def _begin(self, now: float) -> bool:
        """The session, or the end of the one that was lost."""
        _, timeout_ms, session_id, length = _CONNECTED.unpack_from(self._connected)
        if self.lost and self._resume_id:
            self._phase = _BURYING
            self._output.append(self._send(ZooKeeperCall(_OWN, _CLOSE_BODY), now))
            return True
        start = _CONNECTED.size
        self._phase = _OPEN
        self.session_id = self._resume_id = session_id
        self._password = self._connected[start : start + length]
        self.timeout_s = timeout_ms / 1000
        self._contact = self._sent_at  # all that was sent is answered
        own = [(_LOGIN_XID, body) for body in self._logins] + [(0, body) for body in self._watches]
        self._own_left = len(own)
        for xid, body in own:
            self._output.append(self._send(ZooKeeperCall(_OWN, body), now, xid))
        if not own:
            self._announce()
        return True

    def _announce(self) -> None:
        self._up = True
        if not self._connected_once:
            self._connected_once = True
            self._effects.append(FirstConnected())
            self.lost = False
            return
        self._effects.append(SessionEvent.RECONNECTED)
        if self.lost:
            self.lost = False
            self._effects.append(SessionEvent.SESSION_REESTABLISHED)

    def _send(self, call: ZooKeeperCall, now: float, xid: int = 0) -> bytes:
        if not xid:
            xid = self._xid = self._xid % _XID_MAX + 1
        call.xid, call.sent_at = xid, now
        call.sends += 1
        call.session_id, call.sent_zxid = self.session_id, self.last_zxid
        self._pending.append(call)
        return _FRAME.pack(len(call.body) + 4, xid) + call.body

    def _hand_back(self, call: ZooKeeperCall, code: int) -> None:
        call.code = code
        self._effects.append(call)

    def _is_alive(self) -> bool:
        return bool(self._resume_id) and not self.lost

    def _check_alive(self, now: float) -> None:
        if self._is_alive() and now >= self._contact + _LOST_AFTER * self.timeout_s:
            self._lose()
            if self._phase is _OPEN:
                self._drop("the session is lost: no answer for 5/6 of its timeout", now)

    def _lose(self) -> None:
        """The session can't be proven to be alive."""
        if self.lost:
            return
        self.lost = True
        if self._up:
            self._up = False
            self._effects.append(SessionEvent.CONNECTION_LOST)
        if self._connected_once:
            self._effects.append(SessionEvent.SESSION_LOST)
        self._hand_back_all(SESSION_ENDED)

    def _hand_back_all(self, code: int) -> None:
        for call in self._pending:
            if call.kind is not _OWN:
                self._hand_back(call, LOST if call.kind is _CHANGE else code)
        for call in self._queue:
            if call.kind is not _OWN:
                self._hand_back(call, code)
        self._pending.clear()
        self._queue.clear()

    def _drop(
        self, reason: str, now: float, *, at_once: bool = False, login_refused: bool = False
    ) -> bool:
        self._effects.append(DropConnection(reason, at_once=at_once, login_refused=login_refused))
        self.connection_lost(now)
        return False

    def _end(self) -> None:
        self._phase, self._up, self._resume_id = _ENDED, False, 0
        self._output.clear()
        if self._closing is not None:
            self._hand_back(self._closing, ENDED)
            self._closing = None
        self._hand_back_all(ENDED)
