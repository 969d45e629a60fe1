"""What happens before anybody is known: paced work, handshakes in turns, records of TLS."""

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.listener import time_sliced_queue as time_sliced_queue
from magnetar.broker.listener.time_sliced_queue import TimeSlicedQueue
from magnetar.broker.listener.tls_handshakes import CpuBudget, TlsHandshake, TlsHandshakes
from magnetar.broker.listener.tls_stream import _ENCRYPTED_BYTES, _RECORD_BYTES, _records
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter
from tests.unit.managed_ledger.cluster import eventually


class Turns:
    """A loop whose turns the test makes."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.ready.append(call)

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for call in ready:
            call()


def _queue(turns: Turns, work: Callable[[int], None], turn_s: float) -> TimeSlicedQueue[int]:
    return TimeSlicedQueue(cast("asyncio.AbstractEventLoop", turns), work, turn_s=turn_s)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is 0.1 ms later than the one before."""
    now_s = [0.0]

    def perf_counter() -> float:
        now_s[0] += 0.0001
        return now_s[0]

    monkeypatch.setattr(time_sliced_queue, "perf_counter", perf_counter)


@pytest.mark.parametrize(("turn_s", "a_turn"), [(0.0, 1), (0.00035, 4), (1.0, 20)])
def test_unauthenticated_clients_get_so_much_of_a_turn(
    ticking: None, turn_s: float, a_turn: int
) -> None:
    turns, done = Turns(), list[int]()
    queue = _queue(turns, done.append, turn_s)
    for number in range(20):
        queue.add(number)
    assert len(turns.ready) == 1
    rounds = 0
    while turns.ready:
        turns.turn()
        rounds += 1
        assert len(done) == min(20, rounds * a_turn)
    assert done == list(range(20))
    queue.add(20)
    turns.turn()
    assert (done[-1], len(queue), turns.ready) == (20, 0, [])


def test_one_pending_socket_that_fails_stops_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    turns, done = Turns(), list[int]()

    def work(number: int) -> None:
        if number == 1:
            raise RuntimeError("of this one")
        done.append(number)

    queue = _queue(turns, work, 1.0)
    for number in range(3):
        queue.add(number)
    turns.turn()
    assert done == [0, 2]
    assert "of this one" in caplog.text


# --- rooms


class Waits:
    def __init__(self, ip: str) -> None:
        self.ip = ip
        self.closed = False

    def close(self, reason: str, *, level: int = 0) -> None:
        self.closed = True


def test_an_address_pushes_out_its_own_before_others() -> None:
    limiter = UnauthenticatedLimiter(4, 2)
    quiet = Waits("quiet")
    limiter.enter(quiet)
    many = [Waits("many") for _ in range(10)]
    for each in many:
        limiter.enter(each)
    assert [each.closed for each in many] == [True] * 8 + [False] * 2
    assert (len(limiter), limiter.cut, quiet.closed) == (3, 8, False)
    others = [Waits(f"other{number}") for number in range(3)]
    for each in others:
        limiter.enter(each)
    assert quiet.closed  # the oldest of all
    for each in (*many, *others, quiet):
        limiter.leave(each)
    assert len(limiter) == 0
    assert not limiter._by_address


# --- handshakes


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_peers_that_finish_keep_the_thread_at_a_quarter(steps: int) -> None:
    """Whatever number of steps a handshake takes; and a crowd before them is soon forgotten."""
    cpu_budget = CpuBudget()
    for number in range(3_000):
        if number == 1_000:
            for _ in range(1_000):
                cpu_budget.rest_s(0.001)
        rest_s = cpu_budget.rest_s(0.001)
        if number % steps == steps - 1:
            cpu_budget.finished()
        if not 1_000 <= number < 1_000 + 200 * steps:
            assert rest_s == pytest.approx(0.003)


def test_a_crowd_that_leaves_gets_a_sixteenth() -> None:
    cpu_budget = CpuBudget()
    rests = [cpu_budget.rest_s(0.001) for _ in range(300)]
    assert rests[0] == pytest.approx(0.003)
    assert rests == sorted(rests)
    assert 0.0145 < rests[-1] <= 0.015
    for number in range(1_000):  # some who mean it among them
        rest_s = cpu_budget.rest_s(0.001)
        if number % 10 == 0:
            cpu_budget.finished()
    assert 0.008 < rest_s < 0.013
    assert cpu_budget.rest_s(1.0) <= 0.02, "however long a step took"


class Step:
    """In a handshake's place: notes its turn."""

    def __init__(self, name: str, made: list[str], gate: threading.Event) -> None:
        self.name, self._made, self._gate = name, made, gate

    def step(self, data: bytes) -> bytes:
        assert self._gate.wait(30)
        self._made.append(self.name)
        return data


async def test_addresses_take_turns() -> None:
    made, told, gate = list[str](), list[bytes](), threading.Event()
    done = asyncio.Event()

    def on_step(handshake: Any, answer: bytes) -> None:
        told.append(answer)
        if len(told) == 22:
            done.set()

    handshakes = TlsHandshakes(asyncio.get_running_loop(), on_step)
    steps = [Step("first", made, gate)]
    steps += [Step("many", made, gate) for _ in range(20)]
    steps += [Step("one", made, gate), Step("gone", made, gate)]
    for step in steps:
        address = "many" if step.name == "first" else step.name
        handshakes.add(address, cast("TlsHandshake", step), step.name.encode())
    handshakes.drop("gone", cast("TlsHandshake", steps[-1]))
    gate.set()
    await asyncio.wait_for(done.wait(), 30)
    assert made.index("one") <= 3
    assert made == [each.decode() for each in told]
    assert sorted(made) == sorted(["first", *["many"] * 20, "one"])
    handshakes.close()


async def test_what_waits_at_the_end_is_dropped() -> None:
    made, gate = list[str](), threading.Event()
    handshakes = TlsHandshakes(asyncio.get_running_loop(), lambda handshake, answer: None)
    handshakes.close()  # nothing was ever started
    handshakes = TlsHandshakes(asyncio.get_running_loop(), lambda handshake, answer: None)
    for name in ("a", "b", "c"):
        handshakes.add(name, cast("TlsHandshake", Step(name, made, gate)), b"")
    closing = threading.Thread(target=handshakes.close)
    closing.start()
    await eventually(lambda: handshakes._closed)
    gate.set()
    closing.join(30)
    assert not closing.is_alive()
    assert len(made) <= 1


def test_a_step_is_made_of_whole_records() -> None:
    record = b"\x16\x03\x01\x00\x04abcd"
    for cut in range(1, len(record)):
        assert TlsHandshake.records(bytearray(record[:cut]), first=True) == 0
    assert TlsHandshake.records(bytearray(record), first=True) == len(record)
    assert TlsHandshake.records(bytearray(record + record[:6]), first=True) == len(record)
    later = bytearray(b"\x17" + record[1:])
    assert TlsHandshake.records(later + later, first=False) == 2 * len(record)
    for nonsense in (
        b"GET / HTTP/1.1",
        b"\x16\x04\x01\x00\x04abcd",
        b"\x16\x03\x01\xff\xff",
        later,
    ):
        with pytest.raises(ValueError, match=r"TLS|too long"):
            TlsHandshake.records(bytearray(nonsense), first=True)


@given(st.binary(min_size=1, max_size=300))
def test_any_first_words_are_records_or_none(data: bytes) -> None:
    try:
        size = TlsHandshake.records(bytearray(data), first=True)
    except ValueError:
        return
    assert 0 <= size <= len(data)
    assert data[0] == 22


def test_what_openssl_refuses_is_an_error_and_an_alert() -> None:
    handshake = TlsHandshake(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    answer = handshake.step(b"\x16\x03\x01\x00\x04abcd")
    assert isinstance(handshake.error, ssl.SSLError)
    assert not handshake.done
    assert answer[:1] == b"\x15"  # an alert


# --- records


@given(st.lists(st.sampled_from([0, 1, 40, 5_000, 16_383, 16_384, 70_000, 200_000]), max_size=12))
def test_small_pieces_share_a_record(sizes: list[int]) -> None:
    buffers = [bytes([number]) * size for number, size in enumerate(sizes)]
    parts = list(_records([memoryview(each) for each in buffers]))
    assert b"".join(parts) == b"".join(buffers)
    assert all(0 < len(part) <= _ENCRYPTED_BYTES for part in parts)
    # Of two neighbours that are both small, something large was in between
    large = sum(size >= _RECORD_BYTES for size in sizes)
    assert sum(len(part) < _RECORD_BYTES for part in parts) <= 2 * large + 1
