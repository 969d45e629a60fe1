"""Sessions over a Unix socket: how they begin, end and follow each other; frames."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import (
    BadVersionError,
    EphemeralParentError,
    MetadataWriteError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
    StoreUnreachableError,
)
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent
from magnetar.metadata.unix_socket.frames import (
    NOTHING,
    OK,
    Operation,
    SocketFrameError,
    SocketFrameReader,
    connect_body,
    error_frame,
    frame,
    put_body,
    read_error,
)
from magnetar.metadata.unix_socket.server import MetadataServer
from magnetar.metadata.unix_socket.store import UnixSocketStore
from tests.unit.metadata.conformance import seen
from tests.unit.metadata.event_log import EventLog

LONG_S = 60.0  # no session of a test ends because the machine is busy
LOST_AND_FOUND = [
    SessionEvent.CONNECTION_LOST,
    SessionEvent.SESSION_LOST,
    SessionEvent.RECONNECTED,
    SessionEvent.SESSION_REESTABLISHED,
]


class Served:
    """A store, its server, and its clients."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "metadata.db"
        self.path = folder / "metadata.socket"
        self.clients: list[MetadataStore] = []

    async def start(self) -> None:
        self.main = EmbeddedMetadataStore.open(self.database)
        self.server = MetadataServer(self.main, self.path)
        await self.server.listen()

    async def stop(self) -> None:
        await self.server.close()
        await self.main.close()

    async def client(self, timeout_s: float = LONG_S) -> MetadataStore:
        url = f"unix:{self.path}"
        store = await connect_store(url, session_timeout_s=timeout_s, operation_timeout_s=5.0)
        self.clients.append(store)
        return store


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    await made.start()
    yield made
    for client in made.clients:
        await client.close()
    await made.stop()


async def raw(served: Served, key: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that says nothing by itself, with a session of 0.2 s."""
    reader, writer = await asyncio.open_unix_connection(served.path)
    writer.write(frame(1, Operation.CONNECT, connect_body(200, key)))
    assert await next_reply(reader) == (1, OK)
    return reader, writer


async def next_reply(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Number and code, behind the events in front of it."""
    while True:
        number, code, _ = await next_frame(reader)
        if number:
            return number, code


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    head = await reader.readexactly(9)
    length = int.from_bytes(head[:4], "little")
    return int.from_bytes(head[4:8], "little"), head[8], await reader.readexactly(length - 5)


async def test_what_a_killed_client_held_is_free_at_once(served: Served) -> None:
    other = await served.client()
    log = EventLog[MetadataEvent]()
    other.watch("/owner", log)
    _, writer = await raw(served)
    writer.write(
        frame(2, Operation.PUT, put_body("/owner", b"", -1, ephemeral=True, sequential=False))
    )
    await log.until(lambda all: MetadataEvent(EventType.CREATED, "/owner") in all)
    writer.transport.abort()
    await log.until(lambda all: MetadataEvent(EventType.DELETED, "/owner") in all)


async def test_a_silent_client_loses_its_session(served: Served) -> None:
    other = await served.client()
    reader, writer = await raw(served)
    writer.write(
        frame(2, Operation.PUT, put_body("/owner", b"", -1, ephemeral=True, sequential=False))
    )
    assert await next_reply(reader) == (2, OK)
    assert await other.exists("/owner")
    await seen(lambda: other.exists("/owner"), False)
    await reader.read()  # and its connection, after the event of that
    writer.close()


async def test_a_restarted_server_is_found_again(served: Served) -> None:
    store = await served.client()
    events, changes = EventLog[SessionEvent](), EventLog[MetadataEvent]()
    store.on_session_event(events)
    store.watch("/a", changes)
    await store.put("/a/stays", b"")
    await store.put("/a/ephemeral", b"", ephemeral=True)
    first_id = store.session_id
    await served.stop()
    with pytest.raises(SessionLostError):
        await store.get("/a/stays")
    await served.start()
    await events.until(lambda all: SessionEvent.SESSION_REESTABLISHED in all)
    assert events.events == LOST_AND_FOUND
    assert store.session_id != first_id
    assert await store.exists("/a/stays")
    assert not await store.exists("/a/ephemeral")
    changes.events.clear()
    await served.main.put("/a/new", b"")
    await changes.until(lambda all: MetadataEvent(EventType.CREATED, "/a/new") in all)


async def test_a_session_that_another_client_ends_is_followed_by_the_next(served: Served) -> None:
    victim, other = await served.client(), await served.client()
    events = EventLog[SessionEvent]()
    victim.on_session_event(events)
    await victim.put("/owner", b"", -1, ephemeral=True)
    await other.end_session(victim.session_key)
    assert not await other.exists("/owner")
    await events.until(lambda all: SessionEvent.SESSION_REESTABLISHED in all)
    assert events.events == LOST_AND_FOUND
    await victim.put("/owner", b"", -1, ephemeral=True)
    with pytest.raises(ValueError, match="not a key"):
        await other.end_session("nonsense")


async def test_the_next_session_begins_after_the_end_of_the_one_before(served: Served) -> None:
    """Also when its client is faster than the news that its connection is gone."""
    old_reader, old_writer = await raw(served)
    old = put_body("/owner", b"", -1, ephemeral=True, sequential=False)
    old_writer.write(frame(2, Operation.PUT, old))
    assert await next_reply(old_reader) == (2, OK)
    key = next(iter(served.server._sessions))._session
    assert key is not None
    reader, writer = await raw(served, key.session_key)
    writer.write(frame(2, Operation.EXISTS, b"/owner"))
    assert await next_reply(reader) == (2, NOTHING)
    await old_reader.read()  # its connection has ended
    old_writer.close()
    writer.close()


@contextlib.asynccontextmanager
async def silent_server(path: Path, answers: int) -> AsyncIterator[None]:
    """Answers ``answers`` requests, and then nothing."""
    connections: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        for _ in range(answers):
            number, _, _ = await next_frame(reader)
            writer.write(frame(number, OK, b"1-1"))
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_unix_server(serve, path)
    yield
    server.close()
    await asyncio.gather(*filter(None, connections), return_exceptions=True)


async def test_a_silent_server_costs_the_session(tmp_path: Path) -> None:
    async with silent_server(tmp_path / "socket", answers=1):
        store = await UnixSocketStore.connect(tmp_path / "socket", 0.2, 5.0)
        events = EventLog[SessionEvent]()
        store.on_session_event(events)
        putting = asyncio.ensure_future(store.put("/a", b""))
        reading = asyncio.ensure_future(store.get("/a"))
        await events.until(lambda all: SessionEvent.SESSION_LOST in all)
        with pytest.raises(OutcomeUnknownError):  # it may have been done
            await putting
        with pytest.raises(SessionLostError):
            await reading
        await store.close()


async def test_a_connection_that_ends_with_the_answer_to_its_begin_is_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are told in one turn of the loop, before whoever waits for the answer goes on."""
    begun: list[bytes] = []

    async def connect(path: Path, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        protocol = new_protocol()

        class Transport(asyncio.Transport):
            def write(self, data: bytes | bytearray | memoryview) -> None:
                begun.append(bytes(data))
                protocol.data_received(frame(1, OK, b"1-1"))
                protocol.connection_lost(None)

        protocol.connection_made(Transport())

    monkeypatch.setattr("magnetar.metadata.unix_socket.store.connect_unix", connect)
    with pytest.raises(StoreUnreachableError, match="is lost"):
        await UnixSocketStore.connect(tmp_path / "socket", LONG_S, 0.1)
    assert len(begun) > 1  # it has tried again


async def test_a_client_that_leaves_while_its_session_begins_has_none(served: Served) -> None:
    store = await served.client()
    before = len(served.main._shared.stores)
    for _ in range(20):
        _, writer = await asyncio.open_unix_connection(served.path)
        writer.write(frame(1, Operation.CONNECT, connect_body(60_000, "0-1")))
        await writer.drain()
        writer.transport.abort()
    await store.put("/a", b"")
    await seen(lambda: _value(len(served.main._shared.stores)), before)


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError, match="socket"):
        await UnixSocketStore.connect(tmp_path / "socket", LONG_S, 0.05)
    async with silent_server(tmp_path / "socket", answers=0):
        with pytest.raises(StoreUnreachableError):
            await UnixSocketStore.connect(tmp_path / "socket", LONG_S, 0.05)


async def test_a_client_that_starts_first_waits(tmp_path: Path) -> None:
    served = Served(tmp_path)
    connecting = asyncio.ensure_future(served.client())
    await asyncio.sleep(0)
    await served.start()
    assert await (await connecting).children("/") == []
    await served.clients[0].close()
    await served.stop()


async def test_a_path_longer_than_the_systems_addresses(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    served = Served(folder)
    await served.start()
    store = await served.client()
    await store.put("/a", b"1")
    assert await store.exists("/a")
    await store.close()
    await served.stop()
    assert not served.path.exists()


async def test_only_its_user_may_connect(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o600


async def test_another_version_is_refused(served: Served) -> None:
    reader, writer = await asyncio.open_unix_connection(served.path)
    writer.write(frame(1, Operation.CONNECT, b"\x63\x00" + connect_body(200, "")[2:]))
    number, code, body = await next_frame(reader)
    error = read_error(code, body)
    assert (number, type(error)) == (1, StoreClosedError)
    assert "version 99" in str(error)
    assert await reader.read() == b""
    writer.close()


async def test_random_bytes_harm_nobody_else(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    store = await served.client()
    await store.put("/a", b"1", ephemeral=True)
    rng = random.Random(1)
    for number in range(200):
        reader, writer = await asyncio.open_unix_connection(served.path)
        if number % 2:
            writer.write(frame(1, Operation.CONNECT, connect_body(60_000, "")))
        body = rng.randbytes(rng.randrange(40))
        writer.write(frame(2, rng.randrange(256), body) if number % 3 else body)
        writer.write_eof()
        await reader.read()
        writer.close()
    assert await store.exists("/a")
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize(
    "error",
    [
        BadVersionError("/a", -1, 3),
        BadVersionError("/a", 2, None),
        NotFoundError("/ä"),
        NotEmptyError("/a"),
        EphemeralParentError("/a/b", "/a"),
        MetadataWriteError("/a", OSError(28, "full")),
        OutcomeUnknownError("/a", OSError(5, "broken")),
        SessionLostError("1-2"),
        StoreClosedError("it closed itself"),
        ValueError("not a key"),
    ],
)
def test_errors_cross_the_socket(error: Exception) -> None:
    ((number, code, body),) = SocketFrameReader(1000).feed(error_frame(7, error))
    found = read_error(code, body)
    assert (number, type(found), str(found)) == (7, type(error), str(error))


def test_frames_in_pieces_of_any_size() -> None:
    rng = random.Random(7)
    wanted = [
        (rng.randrange(1, 1 << 32), rng.randrange(256), rng.randbytes(rng.randrange(50)))
        for _ in range(200)
    ]
    stream = b"".join(frame(*each) for each in wanted)
    reader, start = SocketFrameReader(100), 0
    found: list[tuple[int, int, bytes]] = []
    while start < len(stream):
        end = start + rng.randrange(1, 30)
        found += reader.feed(stream[start:end])
        start = end
    assert found == wanted
    with pytest.raises(SocketFrameError):
        list(SocketFrameReader(100).feed(frame(1, 1, bytes(101))))


async def test_an_event_comes_before_the_answer_to_what_caused_it(served: Served) -> None:
    store = await served.client()
    log: list[object] = []
    store.watch("/a", log.append)
    written = await store.put("/a", b"1")
    assert log == [MetadataEvent(EventType.CREATED, "/a")]
    assert written.stat.version == 0


async def _value(value: object) -> object:
    return value
