"""Every operation over a Unix socket whose connection ends at its k-th request, for every k.

Before the server has performed it, or behind that and before its answer. Whatever the caller is
told, the store is as before the operation or as after it; as after it, if the caller was told no
error; and the next session repeats what is left.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, OutcomeUnknownError, SessionLostError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.recipes import update
from magnetar.metadata.store import CREATE_ONLY, MetadataStore, SessionEvent
from magnetar.metadata.unix_socket import server
from magnetar.metadata.unix_socket.frames import Operation
from magnetar.metadata.unix_socket.server import MetadataServer, ServedSession

Perform = Callable[[EmbeddedMetadataStore, Operation, bytes], Awaitable[tuple[int, bytes]]]
Work = Callable[[MetadataStore, str], Awaitable[object]]


async def put_new(store: MetadataStore, at: str) -> None:
    await store.put(f"{at}/new", b"1", CREATE_ONLY)


async def put_ephemeral(store: MetadataStore, at: str) -> None:
    await store.put(f"{at}/new", b"1", CREATE_ONLY, ephemeral=True)


async def put_version(store: MetadataStore, at: str) -> None:
    found = await store.get(f"{at}/old")
    assert found is not None
    await store.put(f"{at}/old", b"2", found.stat.version)


async def count_up(store: MetadataStore, at: str) -> None:
    await update(store, f"{at}/old", lambda value: b"%d" % (int(value or b"0") + 1))


async def delete(store: MetadataStore, at: str) -> None:
    await store.delete(f"{at}/old")


async def delete_all(store: MetadataStore, at: str) -> None:
    await store.delete_recursive(at)


async def read(store: MetadataStore, at: str) -> None:
    assert await store.exists(f"{at}/old")
    assert await store.children(at) == ["old"]
    assert await store.get(f"{at}/old") is not None


WORKS: list[Work] = [
    *(put_new, put_ephemeral, put_version, count_up, delete, delete_all, read),
]


class BreakingServer:
    """Ends the connection of whoever asks for the n-th time from now on."""

    def __init__(self, perform: Perform, sessions: "set[ServedSession]") -> None:
        self._perform, self._sessions = perform, sessions
        self._left, self._performs_first = 0, False

    def break_at(self, number: int, *, performs_first: bool) -> None:
        self._left, self._performs_first = number, performs_first

    @property
    def has_broken(self) -> bool:
        return self._left <= 0

    async def perform(
        self, session: EmbeddedMetadataStore, operation: Operation, body: bytes
    ) -> tuple[int, bytes]:
        self._left -= 1
        if self._left != 0:
            return await self._perform(session, operation, body)
        if self._performs_first:
            await self._perform(session, operation, body)
        (asking,) = (each for each in self._sessions if each._session is session)
        asking.cut_off("planted")
        raise SessionLostError("planted")


class World:
    def __init__(self, main: EmbeddedMetadataStore, breaking: BreakingServer, url: str) -> None:
        self.main, self.breaking, self._url = main, breaking, url
        self.client: MetadataStore
        self._is_back = asyncio.Event()

    async def connect(self) -> None:
        self.client = await connect_store(self._url, session_timeout_s=60, operation_timeout_s=5)
        self.client.on_session_event(self._on_event)

    def _on_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED:
            self._is_back.set()

    async def wait_until_back(self) -> None:
        await self._is_back.wait()
        self._is_back.clear()

    async def values(self, at: str) -> Mapping[str, bytes]:
        nodes = [f"{at}/{name}" for name in await self.main.children(at)]
        found = {node: await self.main.get(node) for node in nodes}
        return {node.removeprefix(at): each.value for node, each in found.items() if each}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    main = EmbeddedMetadataStore.open(tmp_path / "metadata.db")
    path = tmp_path / "metadata.socket"
    serving = MetadataServer(main, path)
    breaking = BreakingServer(server._perform, serving._sessions)
    monkeypatch.setattr(server, "_perform", breaking.perform)
    await serving.listen()
    made = World(main, breaking, f"unix:{path}")
    await made.connect()
    yield made
    await made.client.close()
    await serving.close()
    await main.close()


@pytest.mark.parametrize("performs_first", [False, True])
@pytest.mark.parametrize("work", WORKS)
async def test_the_connection_ends_at_every_request(
    world: World, work: Work, performs_first: bool
) -> None:
    plain = await _prepared(world, "/plain")
    before = await world.values(plain)
    await work(world.client, plain)
    after = await world.values(plain)
    for number in itertools.count(1):
        at = await _prepared(world, f"/broken-{number}")
        world.breaking.break_at(number, performs_first=performs_first)
        error = await _error_of(work(world.client, at))
        if not world.breaking.has_broken:
            assert error is None
            break
        await world.wait_until_back()
        found = await world.values(at)
        _check(found, before, after, error)
        if found != after:
            await work(world.client, at)
            assert await world.values(at) == after
    assert number > 1  # it asked at least once


def _check(found: Any, before: Any, after: Any, error: MetadataError | None) -> None:
    if error is None:
        assert found == after
        return
    assert isinstance(error, OutcomeUnknownError | SessionLostError)
    assert found in (before, after)
    if isinstance(error, SessionLostError):  # of what changes nothing
        assert found == before


async def _prepared(world: World, at: str) -> str:
    await world.main.put(f"{at}/old", b"1", CREATE_ONLY)
    return at


async def _error_of(work: Awaitable[object]) -> MetadataError | None:
    try:
        await work
    except MetadataError as error:
        return error
    return None
