"""What one read brings is parsed for a millisecond a turn of the loop, in order."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.http.server import request_protocol as request_protocol
from magnetar.broker.http.server.request_protocol import LenientHttpProtocol
from magnetar.broker.http.websocket import protocol as websocket_protocol
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
