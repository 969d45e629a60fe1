"""What one read brings is parsed for a millisecond a turn of the loop, in order."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect

from magnetar.broker.http.server import request_protocol as request_protocol
from magnetar.broker.http.server.request_protocol import LenientHttpProtocol
from magnetar.broker.http.websocket import channel as channel_module
from magnetar.broker.http.websocket import protocol as websocket_protocol
from magnetar.broker.http.websocket.channel import WebSocketChannel
from magnetar.broker.http.websocket.protocol import CorkedWebSocketProtocol


class Side:
    """Loop, transport and flow control of a protocol, whose parser is slow."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.paused = False
        self.held = False
        self.now_s = 0.0
        self.parsed = b""
        self.protocol: Any = None

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        assert not self.held
        self.paused = False

    def is_closing(self) -> bool:
        return False

    def get_protocol(self) -> Any:
        return self.protocol

    def perf_counter(self) -> float:
        return self.now_s

    def parse(self, data: bytes) -> None:
        self.parsed += data
        self.now_s += 0.0006

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def side() -> Side:
    return Side()


def http_of(side: Side, monkeypatch: pytest.MonkeyPatch) -> Any:
    protocol: Any = LenientHttpProtocol.__new__(LenientHttpProtocol)
    protocol.loop = protocol.transport = protocol.flow = side
    protocol.pipeline, protocol.cycle, protocol._parse = [], None, side.parse
    side.protocol = protocol
    monkeypatch.setattr(request_protocol, "time", side)
    return protocol


def test_http_goes_on_in_later_turns(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol, size = http_of(side, monkeypatch), request_protocol._SLICE_BYTES
    data = bytes(range(256)) * (5 * size // 256)
    protocol.data_received(data)
    assert len(side.parsed) == 2 * size  # 1.2 ms
    assert side.paused
    protocol.data_received(b"late")  # read before the pause
    side.turn()
    assert len(side.parsed) == 4 * size
    side.turn()
    assert (side.parsed, side.paused, side.calls) == (data + b"late", False, [])


def test_http_parses_nothing_behind_a_request_that_waits(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = http_of(side, monkeypatch)
    protocol.pipeline.append("a request")
    protocol.data_received(b"next")
    side.turn()
    assert side.parsed == b""
    assert side.paused
    protocol.pipeline.clear()
    protocol._go_on()
    assert (side.parsed, side.paused) == (b"next", False)


def test_websockets_go_on_in_later_turns(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol: Any = CorkedWebSocketProtocol.__new__(CorkedWebSocketProtocol)
    protocol.loop = protocol.transport = side
    protocol._parse, protocol.read_paused = side.parse, False
    monkeypatch.setattr(websocket_protocol, "time", side)
    size = websocket_protocol._SLICE_BYTES
    data = bytes(range(256)) * (5 * size // 256)
    protocol.data_received(data)
    assert len(side.parsed) == 2 * size
    assert side.paused
    protocol.data_received(b"late")
    side.turn()
    side.turn()
    assert (side.parsed, side.paused) == (data + b"late", False)


async def test_texts_of_a_websocket_are_handed_on_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [str(number) for number in range(1_000)]

    class Socket:
        async def receive(self) -> dict[str, object]:
            return {"type": "websocket.receive", "texts": texts}

    clock = Side()
    monkeypatch.setattr(channel_module, "time", clock)
    channel = WebSocketChannel(Socket(), 60.0, 100)  # type: ignore[arg-type] # its one method
    others, got = list[int](), list[str]()

    def take_turn() -> None:
        others.append(len(got))

    while len(got) < len(texts):
        asyncio.get_running_loop().call_soon(take_turn)
        found = await channel.receive()
        assert found is not None
        got += found
        clock.now_s += 15e-6 * len(found)  # what a text takes
    assert got == texts
    first = others[0]
    assert 0 < first * 15e-6 < 0.002
    assert len(set(others)) >= 6


async def test_who_waits_for_room_hears_that_the_client_has_left() -> None:
    """One that sends and never reads; its session would stay for good, and its producer too."""
    sending = asyncio.Event()

    class Socket:
        has_left = False

        async def receive(self) -> dict[str, object]:
            if self.has_left:
                return {"type": "websocket.disconnect"}
            return {"type": "websocket.receive", "texts": ["a"]}

        async def send(self, event: object) -> None:
            await sending.wait()
            self.has_left = True
            raise WebSocketDisconnect

    channel = WebSocketChannel(Socket(), 60.0, 100)  # type: ignore[arg-type] # its two methods
    channel.send(*["answer"] * (channel_module._UNSENT_MAX + 1))
    reading = asyncio.create_task(channel.receive())
    await asyncio.sleep(0)
    assert not reading.done()
    sending.set()
    assert await asyncio.wait_for(reading, 20) == ["a"]
    assert await channel.receive() is None
    await channel.finish(0)
