"""The client's end of the add stream, against a call that the test plays."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.transport import AddRequest
from magnetar.bookkeeper.transport_grpc.add_frames import decode_message, encode_answers
from magnetar.bookkeeper.transport_grpc.add_sender import AddSender, MessageCache
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from tests.unit.bookkeeper.client.conftest import eventually
from tests.unit.bookkeeper.transport_grpc.test_add_frames import make_request


@dataclass
class FakeCall:
    """A call whose messages are kept and whose answers are given by hand."""

    written: list[bytes] = field(default_factory=list)
    answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    may_write: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    ended: bool = False  # in good order: no more is written

    async def write(self, message: bytes) -> None:
        self.written.append(message)
        await self.may_write.wait()

    async def read(self) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> bool:
        self.cancelled = True
        return True

    async def done_writing(self) -> None:
        self.ended = True


class Bench:
    """A sender, the calls it opened and the answers its requests got."""

    def __init__(self, **settings: Any) -> None:
        self.calls: list[FakeCall] = []
        self.codes: dict[int, int] = {}  # first entry id -> code
        self.failures: list[BaseException | None] = []
        self.open_error: Exception | None = None
        self.may_write = True
        self.token_of_now = 0
        self.tokens: list[int] = []  # of the calls
        self.sender = AddSender(
            *("b1", TransportConfig(**settings), self._open, self.failures.append),
            MessageCache(),
            self._has_other_token,
        )

    def _has_other_token(self, *, at_once: bool = False) -> bool:
        return bool(self.tokens) and self.tokens[-1] != self.token_of_now

    async def _open(self) -> FakeCall:
        if self.open_error is not None:
            raise self.open_error
        call = FakeCall()
        if self.may_write:
            call.may_write.set()
        self.calls.append(call)
        self.tokens.append(self.token_of_now)
        return call

    def add(self, first: int, count: int = 1, body: bytes = b"body") -> AddRequest:
        request = make_request(1, range(first, first + count), [body] * count)
        request.done = self._on_done
        self.sender.add(request)
        return request

    def _on_done(self, request: AddRequest, code: int) -> None:
        assert request.entry_ids[0] not in self.codes, "answered twice"
        self.codes[request.entry_ids[0]] = code


async def test_what_is_queued_while_a_message_is_on_its_way_goes_with_the_next() -> None:
    bench = Bench()
    bench.may_write = False
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    for first in range(1, 10):
        bench.add(first)
    call = bench.calls[0]
    call.may_write.set()
    await eventually(lambda: len(call.written) == 2)
    (frame,) = decode_message(call.written[1])
    assert list(frame.entry_ids) == list(range(1, 10))
    call.answers.put_nowait(encode_answers([(0, codes.OK), (1, codes.FENCED)]))
    await eventually(lambda: len(bench.codes) == 10)
    assert bench.codes == {0: codes.OK, **dict.fromkeys(range(1, 10), codes.FENCED)}
    assert bench.sender.pending_bytes == 0
    await bench.sender.close()
    assert call.cancelled


async def test_messages_end_at_their_size_but_hold_at_least_one_request() -> None:
    bench = Bench(message_bytes=3000)
    for first, size in enumerate((1000, 1000, 1000, 5000, 10)):
        bench.add(first, body=bytes(size))
    await eventually(lambda: len(bench.calls[0].written) == 4 if bench.calls else False)
    held = [decode_message(message)[0].entry_ids for message in bench.calls[0].written]
    assert [list(ids) for ids in held] == [[0, 1], [2], [3], [4]]
    await bench.sender.close()


async def test_a_message_has_a_bounded_number_of_requests() -> None:
    bench = Bench()
    for first in range(1500):
        bench.add(2 * first, body=b"")  # never neighbours: a frame each
    await eventually(lambda: bool(bench.calls and len(bench.calls[0].written) == 2))
    assert [len(decode_message(message)) for message in bench.calls[0].written] == [1000, 500]
    await bench.sender.close()


async def test_a_request_above_a_messages_limit_travels_in_pieces() -> None:
    bench = Bench(message_bytes=1000)
    bench.add(0, count=10, body=bytes(1000))
    await eventually(lambda: bool(bench.calls and len(bench.calls[0].written) == 4))
    frames = [decode_message(message) for message in bench.calls[0].written]
    ids = [list(frame.entry_ids) for message in frames for frame in message]
    assert ids == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    bench.calls[0].answers.put_nowait(encode_answers([(0, codes.OK), (1, codes.OK)]))
    bench.calls[0].answers.put_nowait(encode_answers([(3, codes.OK), (2, codes.OK)]))
    await eventually(lambda: bench.codes == {0: codes.OK})
    await bench.sender.close()


async def test_an_entry_above_the_limit_is_refused_before_it_is_sent() -> None:
    bench = Bench(entry_bytes_max=1000)
    bench.add(0, body=bytes(2000))
    await eventually(lambda: bench.codes == {0: codes.BAD_REQUEST})
    assert bench.calls == []
    assert bench.sender.pending_bytes == 0


async def test_above_the_bound_adds_are_refused_and_nothing_else_happens() -> None:
    bench = Bench(pending_bytes_max=2000)
    bench.add(0, body=bytes(5000))  # alone it may be larger than the bound
    bench.add(1)
    assert bench.codes == {}, "never within the call"
    await eventually(lambda: 1 in bench.codes)
    assert bench.codes == {1: codes.TOO_MANY_REQUESTS}
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(encode_answers([(0, codes.OK)]))
    await eventually(lambda: 0 in bench.codes)
    bench.add(2)
    await eventually(lambda: len(bench.calls[0].written) == 2)
    await bench.sender.close()
    assert bench.codes[2] == codes.UNAVAILABLE


@pytest.mark.parametrize(
    "end",
    [
        grpc.aio.EOF,
        ConnectionResetError("gone"),
        encode_answers([(7, codes.OK)]),  # an answer to what was never sent
        b"garbage",
        asyncio.CancelledError(),  # what gRPC raises when the call was cancelled under us
    ],
)
async def test_a_stream_that_ends_answers_everything_as_unavailable(end: object) -> None:
    bench = Bench(message_bytes=10)
    bench.may_write = False
    bench.add(0)
    bench.add(1)  # still queued when the stream ends
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(end)
    await eventually(lambda: len(bench.codes) == 2)
    assert set(bench.codes.values()) == {codes.UNAVAILABLE}
    assert bench.sender.pending_bytes == 0
    assert len(bench.failures) == 1
    await bench.sender.close()


async def test_after_a_failure_adds_are_refused_until_it_is_time_to_try_again() -> None:
    bench = Bench(backoff_first_s=0.05, backoff_max_s=0.05)
    bench.open_error = OSError("nobody there")
    bench.add(0)
    await eventually(lambda: 0 in bench.codes)
    bench.add(1)
    await eventually(lambda: 1 in bench.codes)
    assert bench.codes == {0: codes.UNAVAILABLE, 1: codes.UNAVAILABLE}
    assert len(bench.failures) == 1, "the second one was refused without a look"
    bench.open_error = None
    number = 2

    def sent() -> bool:
        nonlocal number
        bench.add(number)
        number += 1
        return bool(bench.calls)

    await eventually(sent)
    await bench.sender.close()


async def test_numbers_begin_anew_with_each_stream() -> None:
    bench = Bench(backoff_first_s=0.0)
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(grpc.aio.EOF)
    await eventually(lambda: 0 in bench.codes)
    bench.add(1)
    await eventually(lambda: len(bench.calls) == 2 and bool(bench.calls[1].written))
    bench.calls[1].answers.put_nowait(encode_answers([(0, codes.OK)]))
    await eventually(lambda: 1 in bench.codes)
    assert bench.codes == {0: codes.UNAVAILABLE, 1: codes.OK}
    await bench.sender.close()


async def test_a_bookie_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.add_sender._CHECK_S", 0.01)
    bench = Bench(add_timeout_s=0.05)
    bench.add(0)
    await eventually(lambda: 0 in bench.codes)
    assert bench.codes == {0: codes.UNAVAILABLE}
    assert isinstance(bench.failures[0], TimeoutError)
    assert bench.calls[0].cancelled


def test_one_message_serves_every_bookie_of_a_write_set() -> None:
    cache = MessageCache()
    request = make_request(1, range(2), [b"a", b"b"])
    equal_request = AddRequest(
        *(1, request.master_key, request.entry_ids, request.heads, request.bodies),
        *(request.body_bytes, False, request.done),
    )
    first = cache.encode([[request]])
    assert cache.encode([[equal_request]]) is first
    other = make_request(1, range(2, 4), [b"a", b"b"])
    assert cache.encode([[other]]) != first
    both = cache.encode([[request, other]])
    assert [list(frame.entry_ids) for frame in decode_message(both)] == [[0, 1, 2, 3]]
    apart = cache.encode([[request], [other]])
    assert [list(frame.entry_ids) for frame in decode_message(apart)] == [[0, 1], [2, 3]]


def test_the_cache_tells_recovery_from_normal_adds() -> None:
    """Recovery sends the same lists on with other rights."""
    cache = MessageCache()
    request = make_request(1, range(1), [b"a"])
    normal = cache.encode([[request]])
    request.recovery = True
    recovery = cache.encode([[request]])
    assert not decode_message(normal)[0].recovery
    assert decode_message(recovery)[0].recovery


async def test_a_bookie_that_answers_is_slow_and_a_silent_one_is_failing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(backlog_bytes=1000)

    def is_slow() -> bool:
        return bench.sender.is_slow

    bench.add(0, body=bytes(5000))
    assert not is_slow(), "nothing was ever answered"
    bench.add(1, body=bytes(5000))
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(encode_answers([(0, codes.OK)]))
    await eventually(lambda: bool(bench.codes))
    bench.add(2, body=bytes(5000))
    assert is_slow()
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.add_sender._SILENT_S", 0.0)
    assert not is_slow()
    await bench.sender.close()
    assert not is_slow()


async def test_with_another_token_the_stream_ends_in_good_order_and_a_new_one_begins() -> None:
    bench = Bench()
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    first = bench.calls[0]
    bench.token_of_now = 1
    bench.add(1)
    bench.add(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(first.written) == 1  # what is under way is waited for
    assert not first.ended
    first.answers.put_nowait(encode_answers([(0, codes.OK)]))
    await eventually(lambda: first.ended)
    assert len(bench.calls) == 1
    first.answers.put_nowait(grpc.aio.EOF)
    await eventually(lambda: len(bench.calls) == 2 and bool(bench.calls[1].written))
    second = bench.calls[1]
    (frame,) = decode_message(second.written[0])
    assert list(frame.entry_ids) == [1, 2]
    second.answers.put_nowait(encode_answers([(0, codes.OK)]))  # frames are counted anew
    await eventually(lambda: len(bench.codes) == 3)
    assert set(bench.codes.values()) == {codes.OK}
    assert bench.failures == []
    assert bench.tokens == [0, 1]
    await bench.sender.close()


async def test_a_stream_that_dies_while_it_is_drained_fails_what_waits() -> None:
    bench = Bench()
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.token_of_now = 1
    bench.add(1)
    for _ in range(20):
        await asyncio.sleep(0)
    bench.calls[0].answers.put_nowait(OSError("gone"))
    await eventually(lambda: len(bench.codes) == 2)
    assert set(bench.codes.values()) == {codes.UNAVAILABLE}
    await bench.sender.close()


def refused(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "refused")


async def test_an_idle_stream_that_expired_costs_no_back_off_when_there_is_a_new_token() -> None:
    bench = Bench(backoff_first_s=30.0)
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(encode_answers([(0, codes.OK)]))
    await eventually(lambda: bench.codes == {0: codes.OK})
    bench.token_of_now = 1
    bench.calls[0].answers.put_nowait(refused(grpc.StatusCode.UNAUTHENTICATED))
    await eventually(lambda: not bench.sender.is_open)
    bench.add(1)
    await eventually(lambda: len(bench.calls) == 2 and bool(bench.calls[1].written))
    # The same token again would be refused again, so that costs what any failure does.
    bench.calls[1].answers.put_nowait(refused(grpc.StatusCode.UNAUTHENTICATED))
    await eventually(lambda: not bench.sender.is_open)
    bench.add(2)
    await eventually(lambda: bench.codes.get(2) == codes.UNAVAILABLE)
    assert len(bench.calls) == 2
    await bench.sender.close()
