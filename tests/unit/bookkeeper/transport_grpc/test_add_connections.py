"""Add connections: frames in pieces, the order over two ways, unauthenticated clients."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import AddRequest
from magnetar.bookkeeper.transport_grpc.add_connection import (
    FIRST_FRAME,
    TOKEN_BYTES,
    AddConnectionListener,
    AddConnectionOffer,
    AddConnectionServer,
    ClientAddConnection,
    FrameSplitter,
    ServerAddConnection,
)
from magnetar.bookkeeper.transport_grpc.add_frames import (
    ANSWER_RUN,
    FRAME_HEADER,
    MANY_BYTES_MAX,
    decode_answers,
    decode_message,
    encode_answers,
    encode_message,
)
from magnetar.bookkeeper.transport_grpc.add_service import AddService
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from tests.unit.bookkeeper.transport_grpc.test_add_frames import make_request
from tests.unit.bookkeeper.transport_grpc.test_add_sender import Bench, FakeCall
from tests.waiting import eventually

_FRAME_MAX = 16 << 20


def frame(entry_id: int, body: bytes = b"body") -> bytes:
    return encode_message([[make_request(1, range(entry_id, entry_id + 1), [body])]])


# ---- what comes over an add connection is cut into messages


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_frames_are_the_same_however_they_arrive(sizes: list[int], rng: random.Random) -> None:
    stream = b"".join(frame(number, bytes(size)) for number, size in enumerate(sizes))
    cutter, found = FrameSplitter(_FRAME_MAX), []
    at = 0
    while at < len(stream):
        end = at + rng.choice((1, 2, 7, 30, 200, 1000))
        messages = cutter.feed(stream[at:end])
        found += [each for message in messages for each in decode_message(message)]
        at = end
    assert [list(each.entry_ids) for each in found] == [[number] for number in range(len(sizes))]
    assert all(each.is_intact for each in found)


@pytest.mark.parametrize(
    ("size", "count", "says"),
    [
        (FRAME_HEADER.size - 1, 1, "a frame of"),
        (_FRAME_MAX + 1, 1, "a frame of"),
        (MANY_BYTES_MAX + 1, 2, "more than one"),
    ],
)
@pytest.mark.parametrize("step", [1, 100])
def test_a_header_that_no_frame_has_is_refused(size: int, count: int, says: str, step: int) -> None:
    header = FRAME_HEADER.pack(size, count, 1, 0, 0, 0)
    cutter = FrameSplitter(_FRAME_MAX)

    def feed() -> None:
        for at in range(0, len(header), step):
            cutter.feed(header[at : at + step])

    with pytest.raises(FrameError, match=says):
        feed()


def test_an_offer_is_no_answers() -> None:
    offer = AddConnectionOffer.make(3181)
    assert AddConnectionOffer.decode(offer.encode()) == offer
    assert len(offer.encode()) % ANSWER_RUN.size != 0
    assert AddConnectionOffer.decode(encode_answers([(0, codes.OK)])) is None
    other = AddConnectionOffer.make(3181)
    assert (
        len({offer.client_token, offer.server_token, other.client_token, other.server_token}) == 4
    )


# ---- a bookie's end, with a transport and a gRPC context that the test plays


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.gone = False
        self.owner: asyncio.Protocol | None = None

    def write(self, data: Any) -> None:
        assert not self.gone
        self.written += data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, *_: int) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.gone:
            self.gone = True
            if self.owner is not None:
                asyncio.get_running_loop().call_soon(self.owner.connection_lost, None)


class Aborted(Exception):
    pass


@dataclass
class FakeContext:
    """A call as the server sees it."""

    messages: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    written: list[bytes] = field(default_factory=list)
    status: tuple[grpc.StatusCode, str] | None = None
    may_write: asyncio.Event | None = None
    """A write lasts until it is set; None: it is done at once."""
    is_writing: bool = False

    async def read(self) -> Any:
        return await self.messages.get()

    async def write(self, message: bytes) -> None:
        if self.may_write is not None:
            self.is_writing = True
            await self.may_write.wait()
            self.is_writing = False
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert not self.is_writing, "gRPC has no place for it: the call would never end"
        self.status = code, details
        raise Aborted

    def peer(self) -> str:
        return "test"


class FakeBookie:
    """Answers when the test wants it."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.waiting: list[AddRequest] = []

    def add_entries(self, request: AddRequest) -> None:
        self.entries += request.entry_ids
        self.waiting.append(request)

    def answer(self, at: int = 0) -> None:
        request = self.waiting.pop(at)
        request.done(request, codes.OK)


class Served:
    """One stream of a bookie, and its add connection once it was taken."""

    def __init__(self, **settings: Any) -> None:
        self.bookie, self.context = FakeBookie(), FakeContext()
        self.service = AddService(TransportConfig(**settings))
        self.add_server = AddConnectionServer(_FRAME_MAX)
        self.wire = Wire()
        self.connection = ServerAddConnection(self.add_server)
        self.task = asyncio.get_running_loop().create_task(
            self.service.run(
                cast("BookieClient", self.bookie), self.context, cast("Any", self), self.add_server
            )
        )

    # StreamAuthorizer
    def begin(self, refuse: Callable[[str], None]) -> None:
        self.refuse = refuse

    def end(self) -> None:
        pass

    async def take_offer(self) -> AddConnectionOffer:
        await eventually(lambda: bool(self.context.written))
        offer = AddConnectionOffer.decode(self.context.written.pop(0))
        assert offer is not None
        self.wire.owner = self.connection
        self.connection.connection_made(self.wire)
        self.connection.data_received(offer.client_token)
        assert self.wire.written == offer.server_token
        self.wire.written = b""
        return offer

    def answered(self) -> list[int]:
        """Numbers of frames, over whichever way."""
        found = [run for message in self.context.written for run in decode_answers(message)]
        if self.wire.written:
            found += decode_answers(self.wire.written)
        return sorted(n for first, count, _ in found for n in range(first, first + count))

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.parametrize("how", ["the client ends it", "the bookie ends it"])
async def test_a_stream_does_not_end_while_its_offer_is_written(how: str) -> None:
    """gRPC refuses a status then, and the call, with what it has to answer, would stay for ever."""
    served = Served()
    served.context.may_write = asyncio.Event()
    await eventually(lambda: served.context.is_writing)
    if how == "the client ends it":
        served.context.messages.put_nowait(grpc.aio.EOF)
    else:
        served.refuse("expired")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not served.task.done()
    served.context.may_write.set()
    await asyncio.wait([served.task])
    assert len(served.context.written) == 1


@pytest.mark.parametrize("seed", range(60))
async def test_frames_of_both_ways_are_taken_in_order(seed: int) -> None:
    """gRPC may be behind: what it carries comes first, whenever it comes."""
    rng = random.Random(seed)
    served = Served(stream_bytes_max=rng.choice((100, 2000, 1 << 20)))
    served.service.limit(rng.choice((100, 1 << 20)))
    await served.take_offer()
    total, over_grpc = 40, rng.randrange(20)
    frames = [frame(number, bytes(rng.randrange(200))) for number in range(total)]
    slow = frames[:over_grpc]
    fast = FIRST_FRAME.pack(over_grpc) + b"".join(frames[over_grpc:])
    while len(served.answered()) < total:
        assert not served.task.done()
        match rng.randrange(4):
            case 0 if slow:
                count = rng.randrange(1, 4)
                served.context.messages.put_nowait(b"".join(slow[:count]))
                del slow[:count]
            case 1 if fast and served.wire.reads:
                size = rng.choice((1, 10, 100, 1000))
                served.connection.data_received(fast[:size])
                fast = fast[size:]
            case 2 if served.bookie.waiting:
                served.bookie.answer(rng.randrange(len(served.bookie.waiting)))
            case _:
                await asyncio.sleep(0)
    assert served.bookie.entries == list(range(total))
    assert served.answered() == list(range(total))
    assert served.service.pending_bytes == 0
    served.context.messages.put_nowait(grpc.aio.EOF)
    await served.task
    assert served.wire.gone
    assert served.context.status is None


async def test_an_add_connection_that_is_lost_ends_its_stream() -> None:
    served = Served()
    await served.take_offer()
    served.connection.data_received(FIRST_FRAME.pack(0) + frame(0))
    served.connection.connection_lost(ConnectionResetError())
    with pytest.raises(Aborted):
        await served.task
    assert served.context.status == (grpc.StatusCode.UNAVAILABLE, "the add connection is lost")
    served.bookie.answer()  # nobody listens, and nothing breaks


@pytest.mark.parametrize(
    "garbage",
    [
        FIRST_FRAME.pack(0) + b"\0" * 26,
        FIRST_FRAME.pack(0) + frame(0)[:-1] + b"\xff" * 100,
        FIRST_FRAME.pack(0) + FRAME_HEADER.pack(_FRAME_MAX + 1, 1, 1, 0, 0, 0),
    ],
)
async def test_garbage_on_an_add_connection_ends_the_stream_with_the_reason(garbage: bytes) -> None:
    served = Served()
    await served.take_offer()
    served.connection.data_received(garbage)
    with pytest.raises(Aborted):
        await served.task
    assert served.context.status is not None
    assert served.context.status[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert served.wire.gone


async def test_no_frame_comes_twice_or_on_both_ways() -> None:
    late = Served()
    await late.take_offer()
    late.context.messages.put_nowait(frame(0) + frame(1))
    await eventually(lambda: late.bookie.entries == [0, 1])
    late.connection.data_received(FIRST_FRAME.pack(1) + frame(1))  # it came already
    with pytest.raises(Aborted):
        await late.task
    both = Served()
    await both.take_offer()
    both.connection.data_received(FIRST_FRAME.pack(0) + frame(0))
    both.context.messages.put_nowait(frame(1))
    with pytest.raises(Aborted):
        await both.task
    for served in (late, both):
        assert served.context.status is not None
        assert served.context.status[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_refused_stream_answers_what_it_took_over_the_connection_and_takes_no_more() -> (
    None
):
    served = Served()
    await served.take_offer()
    served.connection.data_received(FIRST_FRAME.pack(0) + frame(0))
    served.refuse("expired")
    assert not served.wire.reads
    await asyncio.sleep(0)
    served.bookie.answer()
    with pytest.raises(Aborted):
        await served.task
    assert served.answered() == [0]
    assert served.context.status == (grpc.StatusCode.UNAUTHENTICATED, "expired")
    assert served.wire.gone


async def test_who_does_not_read_its_answers_is_not_read_either() -> None:
    served = Served()
    await served.take_offer()
    served.connection.data_received(FIRST_FRAME.pack(0) + frame(0))
    served.connection.pause_writing()
    assert not served.wire.reads
    served.bookie.answer()
    for _ in range(5):
        await asyncio.sleep(0)
    assert served.answered() == []
    served.connection.resume_writing()
    await eventually(lambda: served.answered() == [0] and served.wire.reads)
    await served.close()


async def test_an_add_connection_that_waits_for_answers_of_another_goes_on() -> None:
    served = Served(stream_bytes_max=1 << 20)
    served.service.limit(100)
    await served.take_offer()
    served.service.pending_bytes += 200  # of another stream
    served.connection.data_received(FIRST_FRAME.pack(0) + frame(0))
    served.bookie.answer()
    await eventually(lambda: served.answered() == [0])
    assert not served.wire.reads
    served.service.on_answered(200)
    await eventually(lambda: served.wire.reads)
    await served.close()


async def test_an_unauthenticated_client_at_the_add_port_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.add_connection._UNAUTHENTICATED_MAX", 3)
    served = Served()
    offer = await served.take_offer()

    def unauthenticated() -> tuple[ServerAddConnection, Wire]:
        wire, connection = Wire(), ServerAddConnection(served.add_server)
        wire.owner = connection
        connection.connection_made(wire)
        return connection, wire

    for client_token in (
        bytes(TOKEN_BYTES),
        offer.server_token,
        offer.client_token,
    ):  # that one is used
        connection, wire = unauthenticated()
        connection.data_received(client_token[:5])
        connection.data_received(client_token[5:] + frame(0))
        assert wire.gone
        assert wire.written == b""
    wires = [unauthenticated()[1] for _ in range(4)]
    assert [wire.gone for wire in wires] == [True, False, False, False]
    await asyncio.sleep(0)
    assert served.bookie.entries == []
    served.add_server.close()
    assert all(wire.gone for wire in wires)
    assert not served.wire.gone, "an add connection in use ends with its stream"
    await served.close()


async def test_an_unauthenticated_client_that_sends_nothing_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.add_connection._TOKEN_TIMEOUT_S", 0.01)
    add_server, wire = AddConnectionServer(_FRAME_MAX), Wire()
    ServerAddConnection(add_server).connection_made(wire)
    await eventually(lambda: wire.gone)


# ---- a client's end


class AddConnectionBench(Bench):
    """A sender whose offers are taken with a wire of the test's."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.wires: list[Wire] = []
        self.add_connections: list[ClientAddConnection] = []
        self.connect_error: OSError | None = None
        self.sender._take_offer = self._take_offer

    async def _take_offer(
        self, offer: AddConnectionOffer, owner: AddConnectionListener
    ) -> ClientAddConnection:
        if self.connect_error is not None:
            raise self.connect_error
        wire, connection = Wire(), ClientAddConnection(offer, owner)
        wire.owner = connection
        connection.connection_made(wire)
        connection.data_received(offer.server_token)
        self.wires.append(wire)
        self.add_connections.append(connection)
        return connection

    async def begin(self) -> FakeCall:
        """One frame over gRPC, then an add connection."""
        self.add(0)
        await eventually(lambda: bool(self.calls and self.calls[-1].written))
        self.calls[-1].answers.put_nowait(AddConnectionOffer.make(1).encode())
        await eventually(lambda: bool(self.wires and len(self.wires[-1].written) > TOKEN_BYTES))
        return self.calls[-1]

    def carried(self) -> list[int]:
        """Entries of the last add connection."""
        stream = self.wires[-1].written[TOKEN_BYTES + FIRST_FRAME.size :]
        found = decode_message(stream) if stream else []
        return [entry_id for each in found for entry_id in each.entry_ids]


async def test_a_sender_goes_on_over_the_add_connection_and_takes_answers_from_both() -> None:
    bench = AddConnectionBench()
    call = await bench.begin()
    (first,) = FIRST_FRAME.unpack_from(bench.wires[0].written, TOKEN_BYTES)
    assert first == 1
    bench.add(1)
    bench.add(2)
    await eventually(lambda: bench.carried() == [1, 2])
    assert len(call.written) == 1
    answers = encode_answers([(0, codes.OK), (1, codes.OK)])
    for at in range(len(answers)):
        bench.add_connections[0].data_received(answers[at : at + 1])
    await eventually(lambda: len(bench.codes) == 3)
    bench.add(3)
    await eventually(lambda: bench.carried() == [1, 2, 3])
    call.answers.put_nowait(encode_answers([(2, codes.FENCED)]))
    await eventually(lambda: bench.codes.get(3) == codes.FENCED)
    await bench.sender.close()
    assert bench.wires[0].gone


async def test_what_is_on_its_way_over_grpc_counts_before_the_add_connection_begins() -> None:
    bench = AddConnectionBench()
    bench.may_write = False
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(AddConnectionOffer.make(1).encode())
    await eventually(lambda: bool(bench.wires))
    bench.add(2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bench.wires[0].written) == TOKEN_BYTES, "a message is being written"
    bench.calls[0].may_write.set()
    await eventually(lambda: bench.carried() == [2])
    assert FIRST_FRAME.unpack_from(bench.wires[0].written, TOKEN_BYTES) == (1,)
    await bench.sender.close()


async def test_without_an_add_connection_everything_stays_with_grpc() -> None:
    bench = AddConnectionBench()
    bench.connect_error = ConnectionRefusedError("nobody there")
    bench.add(0)
    await eventually(lambda: bool(bench.calls and bench.calls[0].written))
    bench.calls[0].answers.put_nowait(AddConnectionOffer.make(1).encode())
    bench.calls[0].answers.put_nowait(encode_answers([(0, codes.OK)]))
    await eventually(lambda: bench.codes == {0: codes.OK})
    bench.add(1)
    await eventually(lambda: len(bench.calls[0].written) == 2)
    bench.calls[0].answers.put_nowait(encode_answers([(1, codes.OK)]))
    await eventually(lambda: bench.codes.get(1) == codes.OK)
    assert bench.failures == []
    await bench.sender.close()


@pytest.mark.parametrize("stream_says_why", [True, False])
async def test_a_lost_add_connection_fails_what_waits(
    stream_says_why: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason_s = 60.0 if stream_says_why else 0.01
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.add_sender._REASON_S", reason_s)
    bench = AddConnectionBench()
    call = await bench.begin()
    bench.add(1)
    await eventually(lambda: bench.carried() == [1])
    bench.add_connections[0].connection_lost(ConnectionResetError("cut"))
    bench.add(2)
    if stream_says_why:
        call.answers.put_nowait(FrameError("because"))
    await eventually(lambda: len(bench.codes) == 3)
    assert set(bench.codes.values()) == {codes.UNAVAILABLE}
    assert str(bench.failures[0]) == ("because" if stream_says_why else "cut")
    assert call.cancelled
    assert bench.sender.pending_bytes == 0
    await bench.sender.close()


@pytest.mark.parametrize("answers", [encode_answers([(7, codes.OK)]), encode_answers([(0, 0)]) * 2])
async def test_answers_to_what_was_never_sent_end_the_add_connection(
    answers: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.transport_grpc.add_sender._REASON_S", 0.01)
    bench = AddConnectionBench()
    await bench.begin()
    bench.add(1)
    await eventually(lambda: bench.carried() == [1])
    bench.add_connections[0].data_received(answers)
    await eventually(lambda: bench.codes.get(1) == codes.UNAVAILABLE)
    assert isinstance(bench.failures[0], FrameError)
    await bench.sender.close()


async def test_with_another_token_the_add_connection_is_drained_and_a_new_stream_begins() -> None:
    bench = AddConnectionBench()
    call = await bench.begin()
    bench.add(1)
    await eventually(lambda: bench.carried() == [1])
    bench.token_of_now = 1
    for first in (2, 3):
        bench.add(first)
        for _ in range(20):
            await asyncio.sleep(0)
    draining = bench.sender._sender
    bench.add(4)
    bench.add_connections[0].pause_writing()
    bench.add_connections[0].resume_writing()
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.sender._sender is draining, "one drain at a time"
    assert bench.carried() == [1]
    assert not call.ended
    bench.add_connections[0].data_received(encode_answers([(0, codes.OK), (1, codes.OK)]))
    await eventually(lambda: call.ended)
    call.answers.put_nowait(grpc.aio.EOF)
    await eventually(lambda: len(bench.calls) == 2 and bool(bench.calls[1].written))
    assert bench.wires[0].gone
    (sent,) = decode_message(bench.calls[1].written[0])
    assert list(sent.entry_ids) == [2, 3, 4]
    assert bench.failures == []
    await bench.sender.close()


async def test_what_a_full_add_connection_does_not_take_waits_and_goes_as_one() -> None:
    bench = AddConnectionBench()
    await bench.begin()
    bench.add_connections[0].pause_writing()
    for first in range(1, 5):
        bench.add(first)
        await asyncio.sleep(0)
    assert bench.carried() == []
    bench.add_connections[0].resume_writing()
    await eventually(lambda: bench.carried() == [1, 2, 3, 4])
    assert len(decode_message(bench.wires[0].written[TOKEN_BYTES + FIRST_FRAME.size :])) == 1
    await bench.sender.close()


async def test_a_client_believes_only_the_bookie_that_made_the_offer() -> None:
    class Impostor(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast("asyncio.Transport", transport).write(bytes(TOKEN_BYTES))

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Impostor, "127.0.0.1", 0)
    offer = AddConnectionOffer.make(server.sockets[0].getsockname()[1])
    try:
        with pytest.raises(ConnectionError, match="isn't the bookie"):
            await ClientAddConnection.connect("127.0.0.1", offer, AddConnectionBench().sender)
    finally:
        server.close()
