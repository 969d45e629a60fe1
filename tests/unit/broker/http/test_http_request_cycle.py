"""A whole answer leaves in one write; what isn't whole leaves as before."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from magnetar.broker.http.server.request_cycle import RequestCycle


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def cycle_of(transport: Transport, method: str = "GET", *, keep_alive: bool = True) -> RequestCycle:
    return RequestCycle(
        scope={"method": method},  # type: ignore[typeddict-item] # all that is read of it
        transport=transport,
        flow=FlowControl(transport),
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


def start(length: int | None, *more: tuple[bytes, bytes]) -> Any:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    return {"type": "http.response.start", "status": 200, "headers": [*headers, *more]}


def piece(body: bytes, more_body: bool = False) -> Any:
    return {"type": "http.response.body", "body": body, "more_body": more_body}


async def test_a_whole_answer_is_one_write() -> None:
    cycle = cycle_of(transport := Transport())
    await cycle.send(start(2, (b"x-request-id", b"7")))
    assert not transport.writes
    await cycle.send(piece(b"ok"))
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-request-id: 7\r\n"
    assert transport.writes == [head + b"\r\nok"]
    assert cycle.response_complete
    assert not transport.closed


@pytest.mark.parametrize(
    ("length", "pieces"),
    [(None, [b"a", b"b"]), (4, [b"ab", b"cd"]), (100_000, [b"x" * 100_000])],
    ids=["of unknown length", "in pieces", "large"],
)
async def test_others_come_as_they_are_sent(length: int | None, pieces: list[bytes]) -> None:
    cycle = cycle_of(transport := Transport())
    await cycle.send(start(length))
    assert len(transport.writes) == (length is None)  # nobody knows when the first piece comes
    for number, body in enumerate(pieces, start=1):
        await cycle.send(piece(body, number < len(pieces)))
    assert len(transport.writes) == 1 + len(pieces)
    assert cycle.response_complete


async def test_head_gets_no_body() -> None:
    cycle = cycle_of(transport := Transport(), "HEAD")
    await cycle.send(start(2))
    await cycle.send(piece(b"ok"))
    assert b"".join(transport.writes).endswith(b"content-length: 2\r\n\r\n")
    assert cycle.response_complete


@pytest.mark.parametrize("says_so", [True, False])
async def test_the_last_answer_says_so_once(says_so: bool) -> None:
    cycle = cycle_of(transport := Transport(), keep_alive=says_so)
    await cycle.send(start(0, *[(b"connection", b"close")] * says_so))
    await cycle.send(piece(b""))
    assert transport.writes[0].count(b"connection: close\r\n") == 1
    assert transport.closed


@pytest.mark.parametrize(
    ("head", "body"), [(start(3), b"ok"), (start(2, (b"location", b"/a\r\nb: c")), b"ok")]
)
async def test_what_fails_in_front_of_the_body_is_answered_with_500(head: Any, body: bytes) -> None:
    """The length is wrong, or a header would end in the middle of its value."""
    cycle = cycle_of(transport := Transport())

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(head)
        await send(piece(body))

    await cycle.run_asgi(app)
    assert b"".join(transport.writes).startswith(b"HTTP/1.1 500 ")
    assert transport.closed
