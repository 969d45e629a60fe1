"""A WebSocket's channel: order, back-pressure, idle timeout, the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from magnetar.broker.http.websocket import channel
from magnetar.broker.http.websocket.channel import CLOSE_BASE, GOING_AWAY, TOO_BIG, WebSocketChannel
from tests.waiting import eventually


class FakeSocket:
    """The ASGI side of one socket: the test feeds frames and holds what is sent."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[str] = []
        self.closed_with: tuple[int, str] | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: dict[str, Any]) -> None:
        await self.open.wait()
        self.sent += message["texts"]

    async def close(self, code: int, reason: str) -> None:
        self.closed_with = code, reason

    def consumer_feed(self, text: str) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "texts": [text]})


class Session:
    """A channel whose client is heard for as long as the test likes."""

    def __init__(self, idle_timeout_s: float = 60, text_bytes_max: int = 100) -> None:
        self.socket = FakeSocket()
        self.channel = WebSocketChannel(self.socket, idle_timeout_s, text_bytes_max)  # type: ignore[arg-type] # its four methods
        self.ended = asyncio.create_task(self.channel.run(self._read))

    async def _read(self, _: WebSocketChannel) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(**options: Any) -> Session:
        sessions.append(Session(**options))
        return sessions[-1]

    yield make
    for session in sessions:
        session.ended.cancel()
        await session.channel.finish(0)
    await asyncio.gather(*(each.ended for each in sessions), return_exceptions=True)


async def test_frames_go_out_in_order_and_say_so(opened: Callable[..., Session]) -> None:
    session = opened()
    told: list[int] = []
    for number in range(5):
        session.channel.send(str(number), on_sent=lambda n=number: told.append(n))  # type: ignore[misc]
    assert session.channel.queued == 5
    await eventually(lambda: session.channel.queued == 0)
    session.channel.send("later")
    await eventually(lambda: len(session.socket.sent) == 6)
    assert session.socket.sent == ["0", "1", "2", "3", "4", "later"]
    assert told == [0, 1, 2, 3, 4]


async def test_what_is_queued_goes_before_the_close(opened: Callable[..., Session]) -> None:
    session = opened()
    session.channel.send("last words")
    session.channel.close_soon(CLOSE_BASE + 3, "why")
    session.channel.close_soon(CLOSE_BASE + 8, "too late")
    async with asyncio.timeout(30):
        await session.ended
    assert session.socket.sent == ["last words"]
    assert session.socket.closed_with == (4003, "why")
    assert await session.channel.receive() is None


async def test_who_never_reads_is_not_read(opened: Callable[..., Session]) -> None:
    session = opened()
    session.socket.open.clear()
    for number in range(4097):
        session.channel.send(str(number))
    session.socket.consumer_feed("next")
    reading = asyncio.create_task(session.channel.receive())
    await eventually(session.socket.incoming.empty)
    done, _ = await asyncio.wait((reading,), timeout=0.05)
    assert not done
    session.socket.open.set()
    async with asyncio.timeout(30):
        assert await reading == ["next"]
    assert session.channel.queued == 0


async def test_an_idle_socket_is_closed(opened: Callable[..., Session]) -> None:
    session = opened(idle_timeout_s=0.05)
    session.channel.watch_idle()
    async with asyncio.timeout(30):
        await session.ended
    assert session.socket.closed_with == (GOING_AWAY, "Idle for too long")


async def test_frames_keep_a_socket_open(opened: Callable[..., Session]) -> None:
    session = opened(idle_timeout_s=30)
    session.channel.watch_idle()
    session.socket.consumer_feed("x")
    assert await session.channel.receive() == ["x"]
    session.channel.watch_idle()  # as the timer would
    assert not session.channel.ending


async def test_large_and_binary_frames_end_it(opened: Callable[..., Session]) -> None:
    session = opened(text_bytes_max=10)
    session.socket.consumer_feed("x" * 11)
    assert await session.channel.receive() is None
    async with asyncio.timeout(30):
        await session.ended
    assert session.socket.closed_with is not None
    assert session.socket.closed_with[0] == TOO_BIG
    session = opened()
    session.socket.incoming.put_nowait({"type": "websocket.receive", "bytes": b"x"})
    assert await session.channel.receive() is None
    assert session.channel.ending


async def test_a_cancellation_from_outside_is_no_end_of_ours(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    await asyncio.sleep(0)
    session.ended.cancel()
    with pytest.raises(asyncio.CancelledError):
        await session.ended
    both = opened()
    await asyncio.sleep(0)
    both.channel.close_soon(CLOSE_BASE + 3, "why")
    await eventually(lambda: both.socket.closed_with is not None or both.channel.closed)
    both.ended.cancel()
    await asyncio.gather(both.ended, return_exceptions=True)
    assert both.socket.closed_with == (4003, "why")


async def test_a_reader_that_waits_for_something_else_is_ended_too(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    await asyncio.sleep(0)
    session.channel.close_soon(CLOSE_BASE + 8, "why")
    async with asyncio.timeout(30):
        await session.ended
    assert not session.ended.cancelled()
    assert session.ended.exception() is None


async def test_a_socket_that_is_gone_ends_the_writer_only(opened: Callable[..., Session]) -> None:
    session = opened()

    async def lost(message: dict[str, Any]) -> None:
        raise OSError("gone")

    session.socket.send = lost  # type: ignore[method-assign]
    session.channel.send("x")
    await session.channel.finish(0)
    assert not session.ended.done()


async def test_a_writer_that_fails_ends_the_session(
    opened: Callable[..., Session], caplog: pytest.LogCaptureFixture
) -> None:
    session = opened()
    await asyncio.sleep(0)

    def fail() -> None:
        raise ValueError("a bug")

    session.channel.send("x", on_sent=fail)
    async with asyncio.timeout(30):
        await session.ended
    assert "a bug" in caplog.text


async def test_the_last_words_have_some_time_only(opened: Callable[..., Session]) -> None:
    session = opened()
    session.socket.open.clear()
    session.channel.send("x")
    session.channel.close_soon(CLOSE_BASE + 3, "why")
    await session.channel.finish(0.01)
    assert session.socket.sent == []
    assert session.socket.closed_with is None


async def test_a_client_that_takes_nothing_is_left_behind(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CLOSE_S", 0.01)
    session = opened()
    await asyncio.sleep(0)
    session.socket.open.clear()
    session.channel.send("x")
    session.channel.close_soon(CLOSE_BASE + 3, "why")
    async with asyncio.timeout(30):
        await session.ended
        await session.channel.finish()
    assert session.ended.exception() is None
    assert session.socket.closed_with is None


async def test_a_slow_client_is_not_idle(opened: Callable[..., Session]) -> None:
    session = opened(idle_timeout_s=30)
    session.channel._last_frame_s -= 31
    session.channel.send("x")
    session.channel.send("y")
    session.socket.open.clear()
    sent = session.socket.send

    async def slow(message: dict[str, Any]) -> None:
        session.socket.open.set()
        await sent(message)
        session.socket.open.clear()
        session.socket.send = sent  # type: ignore[method-assign]  # the second one waits

    session.socket.send = slow  # type: ignore[method-assign]
    await eventually(lambda: session.socket.sent == ["x"])
    session.channel.watch_idle()
    assert not session.channel.ending
