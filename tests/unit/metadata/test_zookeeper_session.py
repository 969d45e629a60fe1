"""The session core: a server in a few lines, a clock that is a number."""

from struct import Struct

import pytest

from magnetar.metadata.sasl.digest_md5 import DigestMd5Client, SaslCredentials
from magnetar.metadata.store import SessionEvent
from magnetar.metadata.zookeeper.session import (
    ENDED,
    LOST,
    SENDS_MAX,
    SESSION_ENDED,
    CallKind,
    DropConnection,
    Effect,
    FirstConnected,
    NodeEvent,
    SessionCore,
    ZooKeeperCall,
)

WATCH = Struct(">i").pack(106) + b"watch"
TIMEOUT_S = 6.0
PASSWORD = b"0123456789abcdef"


class Peer:
    """What a server says, and what it was asked."""

    def __init__(self) -> None:
        self.core = SessionCore(TIMEOUT_S, 30.0, [], [WATCH])
        self.now = 100.0
        self.effects: list[Effect] = []
        self.requests: list[tuple[int, int, bytes]] = []  # xid, type, rest
        self.connects: list[tuple[int, int]] = []  # session id, last zxid

    def dial(
        self, session_id: int = 7, timeout_ms: int = 6000, login: DigestMd5Client | None = None
    ) -> None:
        self.core.connection_made(self.now, 2.0, login)
        self._take(handshake=True)
        answer = Struct(">iiqi16s?").pack(0, timeout_ms, session_id, 16, PASSWORD, False)
        self.feed(answer)

    def feed(self, *frames: bytes) -> None:
        data = b"".join(Struct(">i").pack(len(frame)) + frame for frame in frames)
        self.core.data_received(data, self.now)
        self._take()

    def answer(self, xid: int, code: int = 0, zxid: int = 0, body: bytes = b"") -> None:
        self.feed(Struct(">iqi").pack(xid, zxid, code) + body)

    def answer_all(self, zxid: int = 0) -> None:
        requests, self.requests = self.requests, []
        for xid, _, _ in requests:
            self.answer(xid, zxid=zxid)

    def cut(self) -> None:
        self.core.connection_lost(self.now)
        self.requests.clear()
        self._take()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.core.on_time(self.now)
        self._take()

    def ask(self, kind: CallKind, name: bytes = b"body") -> ZooKeeperCall:
        call = ZooKeeperCall(kind, Struct(">i").pack(4) + name)
        self.core.submit(call)
        self._take()
        return call

    def told(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def _take(self, handshake: bool = False) -> None:
        self.effects += self.core.take_effects()
        for frames in self.core.take_output(self.now):
            while frames:
                (length,) = Struct(">i").unpack_from(frames)
                frame, frames = frames[4 : 4 + length], frames[4 + length :]
                if handshake:
                    _, zxid, _, session_id = Struct(">iqiq").unpack_from(frame)
                    self.connects.append((session_id, zxid))
                    handshake = False
                else:
                    xid, type_ = Struct(">ii").unpack_from(frame)
                    self.requests.append((xid, type_, frame[8:]))


@pytest.fixture
def peer() -> Peer:
    """Connected, in its first session."""
    peer = Peer()
    peer.dial()
    peer.answer_all()
    assert [type(each) for each in peer.told()] == [FirstConnected]
    return peer


def _drops(effects: list[Effect]) -> list[str]:
    return [each.reason for each in effects if isinstance(each, DropConnection)]


def _events(effects: list[Effect]) -> list[SessionEvent]:
    return [each for each in effects if isinstance(each, SessionEvent)]


def test_answers_go_to_their_requests_in_any_cut_of_the_stream(peer: Peer) -> None:
    calls = [peer.ask(CallKind.READ, b"%d" % i) for i in range(3)]
    frames = b"".join(
        Struct(">iiqi").pack(17, xid, 5, -101 if i == 1 else 0) + b"%d" % i
        for i, (xid, _, _) in enumerate(peer.requests)
    )
    for i in range(len(frames)):
        peer.core.data_received(frames[i : i + 1], peer.now)
    assert peer.core.take_effects() == calls
    assert [call.code for call in calls] == [0, -101, 0]
    assert [call.reply[call.offset :] for call in calls] == [b"0", b"1", b"2"]
    assert peer.core.last_zxid == 5


def test_a_cut_repeats_reads_and_hands_changes_back(peer: Peer) -> None:
    read, change = peer.ask(CallKind.READ, b"r"), peer.ask(CallKind.CHANGE, b"c")
    peer.cut()
    queued = peer.ask(CallKind.CHANGE, b"q")
    assert peer.told() == [SessionEvent.CONNECTION_LOST, change]
    assert change.code == LOST
    peer.dial()
    assert [rest for _, _, rest in peer.requests] == [b"watch", b"r", b"q"]
    peer.answer_all()
    assert peer.told() == [SessionEvent.RECONNECTED, read, queued]
    assert peer.connects == [(0, 0), (7, 0)]
    assert peer.core.session_id == 7


def test_a_read_that_breaks_every_connection_is_given_up(peer: Peer) -> None:
    call = peer.ask(CallKind.READ)
    for _ in range(SENDS_MAX - 1):
        peer.cut()
        peer.dial()
    assert call not in peer.told()
    peer.cut()
    assert call in peer.told()
    assert call.code == LOST


def test_a_cancelled_request_is_not_sent(peer: Peer) -> None:
    peer.cut()
    call = peer.ask(CallKind.CHANGE, b"cancelled")
    call.cancelled = True
    peer.dial()
    assert [rest for _, _, rest in peer.requests] == [b"watch"]


def test_nothing_is_announced_before_the_watch_is_there(peer: Peer) -> None:
    peer.cut()
    peer.told()
    peer.dial()
    assert peer.told() == []
    assert not peer.core.connected
    peer.answer_all()
    assert peer.told() == [SessionEvent.RECONNECTED]
    assert peer.core.connected


def test_pings_keep_an_idle_session(peer: Peer) -> None:
    for _ in range(20):
        peer.pass_time(TIMEOUT_S / 3)
        ((xid, type_, _),) = peer.requests
        assert (xid, type_) == (-2, 11)
        peer.answer_all()
    assert peer.told() == []


def test_a_silent_connection_is_dropped_before_the_session_is_lost(peer: Peer) -> None:
    peer.pass_time(TIMEOUT_S / 3)
    peer.pass_time(TIMEOUT_S / 3)
    told = peer.told()
    assert len(_drops(told)) == 1
    assert _events(told) == [SessionEvent.CONNECTION_LOST]
    assert not peer.core.lost


def test_the_session_is_lost_at_five_sixths_of_what_the_server_surely_heard(peer: Peer) -> None:
    """An answer proves that its request was heard when it was sent, not when the answer came."""
    peer.ask(CallKind.READ)
    sent_at = peer.now
    peer.now += 3.0
    peer.answer_all()
    peer.ask(CallKind.READ)
    peer.cut()
    assert peer.core.deadline() == pytest.approx(sent_at + 5.0)
    peer.now = sent_at
    peer.pass_time(4.99)
    assert not peer.core.lost
    change = peer.ask(CallKind.CHANGE)
    peer.told()
    peer.pass_time(0.02)
    assert peer.told()[0] is SessionEvent.SESSION_LOST
    assert change.code == SESSION_ENDED


def test_late_answers_do_not_revive_a_lost_session(peer: Peer) -> None:
    """The process was stopped: what lies in the socket is older than what may have happened."""
    call = peer.ask(CallKind.CHANGE)
    peer.now += 5.5
    peer.answer_all()
    told = peer.told()
    assert _events(told) == [SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST]
    assert call.code == LOST


def test_a_lost_session_is_closed_on_the_server_before_the_next_begins(peer: Peer) -> None:
    peer.cut()
    peer.pass_time(5.1)
    assert peer.core.lost
    peer.told()
    peer.dial(session_id=7)
    ((xid, type_, _),) = peer.requests
    assert type_ == -11
    assert _events(peer.told()) == []
    peer.requests.clear()
    peer.answer(xid, zxid=40)
    assert _drops(peer.told()) == ["the lost session is closed"]
    peer.dial(session_id=8)
    peer.answer_all()
    assert peer.told() == [SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED]
    assert peer.connects == [(0, 0), (7, 0), (0, 40)]
    assert (peer.core.session_id, peer.core.lost) == (8, False)


def test_the_server_says_that_the_session_has_expired(peer: Peer) -> None:
    peer.cut()
    change = peer.ask(CallKind.CHANGE)
    peer.told()
    peer.dial(session_id=0, timeout_ms=0)
    told = peer.told()
    assert _events(told) == [SessionEvent.SESSION_LOST]
    assert change.code == SESSION_ENDED
    assert _drops(told) == ["the session has expired"]
    peer.dial(session_id=9)
    peer.answer_all()
    assert _events(peer.told()) == [SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED]
    assert [session_id for session_id, _ in peer.connects] == [0, 7, 0]


def test_an_expired_answer_is_not_taken_for_the_requests_own(peer: Peer) -> None:
    change = peer.ask(CallKind.CHANGE)
    ((xid, _, _),) = peer.requests
    peer.answer(xid, code=-112)
    told = peer.told()
    assert len(_drops(told)) == 1
    assert change.code == LOST


@pytest.mark.parametrize(
    "frame",
    [b"", b"short", Struct(">iqi").pack(12345, 0, 0)],
    ids=["empty", "short", "unknown xid"],
)
def test_garbage_ends_the_connection_not_the_session(peer: Peer, frame: bytes) -> None:
    call = peer.ask(CallKind.READ)
    peer.feed(frame)
    told = peer.told()
    assert len(_drops(told)) == 1
    assert _events(told) == [SessionEvent.CONNECTION_LOST]
    peer.requests.clear()
    peer.dial()
    peer.answer_all()
    assert call in peer.told()


def test_an_absurd_length_ends_the_connection(peer: Peer) -> None:
    peer.core.data_received(b"\xff\xff\xff\xff", peer.now)
    peer.core.data_received(b"more", peer.now)
    assert len(_drops(peer.core.take_effects())) == 1


def test_an_unanswered_request_ends_the_connection() -> None:
    peer = Peer()
    peer.core = SessionCore(60.0, 5.0, [], [])
    peer.dial(timeout_ms=60_000)
    peer.ask(CallKind.READ)
    peer.pass_time(5.0)
    assert _drops(peer.told()) == ["a request was not answered in time"]


def test_events_of_nodes(peer: Peer) -> None:
    path = "/café".encode()
    peer.feed(Struct(">iqiiii").pack(-1, 3, 0, 1, 3, len(path)) + path)
    (event,) = peer.told()
    assert isinstance(event, NodeEvent)
    assert (event.type, event.path) == (1, "/café")


def test_close_waits_for_what_was_asked_before(peer: Peer) -> None:
    change = peer.ask(CallKind.CHANGE)
    closing = peer.core.close()
    assert closing is not None
    peer._take()
    assert [type_ for _, type_, _ in peer.requests] == [4, -11]
    peer.answer_all()
    assert peer.told() == [change, closing]
    assert peer.core.deadline() is None


def test_close_without_a_connection_hands_everything_back(peer: Peer) -> None:
    change = peer.ask(CallKind.CHANGE)
    peer.cut()
    read = peer.ask(CallKind.READ)
    assert peer.core.close() is None
    peer._take()
    assert (change.code, read.code) == (LOST, ENDED)


def test_a_refused_login_is_told() -> None:
    peer = Peer()
    peer.core = SessionCore(TIMEOUT_S, 30.0, [Struct(">i").pack(100) + b"login"], [WATCH])
    peer.dial()
    assert peer.requests[0][0] == -4
    peer.answer(-4, code=-115)
    (drop,) = peer.told()
    assert isinstance(drop, DropConnection)
    assert drop.login_refused


def _token(text: bytes) -> bytes:
    return Struct(">i").pack(len(text)) + text


def _login() -> DigestMd5Client:
    """The client of RFC 2831's second example."""
    return DigestMd5Client(
        SaslCredentials("chris", "secret"), "acap", "elwood.innosoft.com", "OA9BSuZWMSpW8m"
    )


CHALLENGE = (
    b'realm="elwood.innosoft.com",nonce="OA9BSXrbuRhWay",qop="auth",algorithm=md5-sess,'
    b"charset=utf-8"
)
PROOF = b"rspauth=2f0b3d7c3c2e486600ef710726aa2eae"


def _log_in(peer: Peer, proof: bytes = PROOF) -> None:
    for token in (CHALLENGE, proof):
        ((xid, type_, _),) = peer.requests
        assert type_ == 102
        peer.requests.clear()
        peer.answer(xid, body=_token(token))


def test_nothing_is_sent_before_the_login_by_sasl() -> None:
    peer = Peer()
    peer.dial(login=_login())
    peer.ask(CallKind.READ)
    _log_in(peer)
    assert [type_ for _, type_, _ in peer.requests] == [106, 4]
    assert peer.told() == []
    peer.answer_all()
    assert [type(each) for each in peer.told()] == [FirstConnected, ZooKeeperCall]


def test_each_connection_logs_in_also_the_one_that_ends_a_lost_session(peer: Peer) -> None:
    peer.cut()
    peer.pass_time(5.1)
    peer.told()
    peer.dial(login=_login())
    _log_in(peer)
    assert [type_ for _, type_, _ in peer.requests] == [-11]
    peer.answer_all()
    assert _drops(peer.told()) == ["the lost session is closed"]
    peer.dial(session_id=8, login=_login())
    _log_in(peer)
    peer.answer_all()
    assert peer.told() == [SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED]


def test_a_server_without_a_proof_is_left() -> None:
    peer = Peer()
    peer.dial(login=_login())
    _log_in(peer, b"rspauth=0f0b3d7c3c2e486600ef710726aa2eae")
    (drop,) = peer.told()
    assert isinstance(drop, DropConnection)
    assert drop.login_refused
    assert "didn't prove" in drop.reason


def test_a_server_without_sasl_and_one_that_refuses() -> None:
    for code, body, reason in ((0, _token(b""), "no SASL"), (-115, b"", "refuses the login")):
        peer = Peer()
        peer.dial(login=_login())
        peer.answer(peer.requests[0][0], code=code, body=body)
        (drop,) = peer.told()
        assert isinstance(drop, DropConnection)
        assert drop.login_refused
        assert reason in drop.reason


def test_a_login_without_an_answer_ends_the_connection() -> None:
    peer = Peer()
    peer.dial(login=_login())
    peer.pass_time(2.0)
    assert len(_drops(peer.told())) == 1
