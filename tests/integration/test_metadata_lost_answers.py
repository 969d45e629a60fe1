"""Answers that get lost between a real ZooKeeper and the store: each is judged by proof alone."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from magnetar.metadata.errors import (
    BadVersionError,
    NotFoundError,
    OutcomeUnknownError,
)
from magnetar.metadata.store import SessionEvent
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.store import ZooKeeperStore
from tests.integration.metadata_proxy import Proxy
from tests.unit.metadata.event_log import EventLog, eventually
from tests.zookeeper_process import ZooKeeperProcess

_numbers = itertools.count()
_SESSION_S = 20.0  # cut connections are found at once, so nothing here waits for it


@dataclass
class Scene:
    """A store behind a proxy, and one that isn't."""

    proxy: Proxy
    store: ZooKeeperStore
    direct: ZooKeeperStore

    async def lose_answer(self, change: Awaitable[object]) -> asyncio.Future[object]:
        """Starts the change; returns when the server has answered it and the answer is lost."""
        lost = self.proxy.answer_bytes_lost
        self.proxy.answers_pass = False
        future = asyncio.ensure_future(change)
        await eventually(lambda: self.proxy.answer_bytes_lost > lost)
        return future

    async def lose_request(self, change: Awaitable[object]) -> asyncio.Future[object]:
        """Starts the change; what it sends vanishes."""
        lost = self.proxy.request_bytes_lost
        self.proxy.requests_pass = False
        future = asyncio.ensure_future(change)
        await eventually(lambda: self.proxy.request_bytes_lost > lost)
        return future

    def reconnect(self) -> None:
        self.proxy.heal()
        self.proxy.cut()


@pytest.fixture
async def scene(zookeeper: ZooKeeperProcess) -> AsyncIterator[Scene]:
    chroot = f"/lost/{next(_numbers)}"
    async with Proxy(zookeeper.port) as proxy:
        store = await _connect(proxy.url(chroot))
        direct = await _connect(zookeeper.url(chroot))
        yield Scene(proxy, store, direct)
        proxy.heal()
        await store.close()
        await direct.close()


async def _connect(url: str) -> ZooKeeperStore:
    settings = ZooKeeperSettings.parse(url, session_timeout_s=_SESSION_S)
    return await ZooKeeperStore.connect(settings)


async def test_a_request_that_never_arrived_is_sent_again(scene: Scene) -> None:
    await scene.store.put("/a", b"0")
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: scene.store.put("/a", b"1", 0),
        lambda: scene.store.put("/a", b"2"),
        lambda: scene.store.put("/b", b"", -1),
        lambda: scene.store.put("/q/n-", b"", sequential=True),
        lambda: scene.store.delete("/b"),
    ]
    await scene.direct.put("/q", b"")
    for change in changes:
        future = await scene.lose_request(change())
        scene.reconnect()
        await future
    found = await scene.direct.get("/a")
    assert found is not None
    assert (found.value, found.stat.version) == (b"2", 2)
    assert await scene.direct.children("/") == ["a", "q"]
    assert len(await scene.direct.children("/q")) == 1


async def test_a_request_that_never_arrived_meets_what_came_first(scene: Scene) -> None:
    await scene.store.put("/a", b"0")
    future = await scene.lose_request(scene.store.put("/a", b"mine", 0))
    await scene.direct.put("/a", b"theirs", 0)
    scene.reconnect()
    with pytest.raises(BadVersionError):
        await future


async def test_a_conditional_write_is_unknown_though_its_value_is_there(scene: Scene) -> None:
    """Another id generator could have written the same bytes: the store must not claim them."""
    await scene.store.put("/a", b"0")
    future = await scene.lose_answer(scene.store.put("/a", b"1", 0))
    scene.reconnect()
    with pytest.raises(OutcomeUnknownError):
        await future
    found = await scene.store.get("/a")
    assert found is not None
    assert (found.value, found.stat.version) == (b"1", 1)


async def test_an_unconditional_write_is_known_by_its_value(scene: Scene) -> None:
    await scene.store.put("/a", b"0")
    future = await scene.lose_answer(scene.store.put("/a", b"1"))
    scene.reconnect()
    await future
    found = await scene.store.get("/a")
    assert found is not None
    assert (found.value, found.stat.version) == (b"1", 1)


async def test_an_ephemeral_create_is_known_by_its_session(scene: Scene) -> None:
    future = await scene.lose_answer(scene.store.put("/e", b"me", -1, ephemeral=True))
    scene.reconnect()
    await future
    found = await scene.store.get("/e")
    assert found is not None
    assert (found.stat.created_by_self, found.stat.version) == (True, 0)


async def test_an_ephemeral_sequential_create_is_found_again(scene: Scene) -> None:
    await scene.direct.put("/q/n-", b"me", ephemeral=True, sequential=True)
    await scene.store.put("/q/n-", b"me", ephemeral=True, sequential=True)
    future = await scene.lose_answer(
        scene.store.put("/q/n-", b"me", ephemeral=True, sequential=True)
    )
    await scene.direct.put("/q/n-", b"me", ephemeral=True, sequential=True)
    scene.reconnect()
    written = await future
    assert getattr(written, "path", None) == "/q/n-0000000002"
    assert len(await scene.direct.children("/q")) == 4


@pytest.mark.parametrize("sequential", [False, True])
async def test_a_persistent_create_is_unknown(scene: Scene, sequential: bool) -> None:
    future = await scene.lose_answer(scene.store.put("/p", b"v", -1, sequential=sequential))
    scene.reconnect()
    with pytest.raises(OutcomeUnknownError):
        await future
    assert len(await scene.store.children("/")) == 1


async def test_a_delete_is_unknown(scene: Scene) -> None:
    await scene.store.put("/a", b"")
    future = await scene.lose_answer(scene.store.delete("/a", 0))
    scene.reconnect()
    with pytest.raises(OutcomeUnknownError):
        await future
    with pytest.raises(NotFoundError):
        await scene.store.delete("/a")


async def test_everything_below_is_deleted_in_spite_of_cuts(scene: Scene) -> None:
    for number in range(30):
        await scene.direct.put(f"/tree/{number % 5}/{number}", b"")
    future = await scene.lose_answer(scene.store.delete_recursive("/tree"))
    scene.reconnect()
    await future
    assert not await scene.direct.exists("/tree")


async def test_reads_wait_for_the_connection(scene: Scene) -> None:
    await scene.store.put("/a", b"0")
    log = EventLog[SessionEvent]()
    scene.store.on_session_event(log)
    scene.proxy.accepts = False
    scene.proxy.cut()
    await log.until(lambda events: len(events) == 1)
    reads = asyncio.gather(scene.store.get("/a"), scene.store.exists("/a"))
    await scene.direct.put("/a", b"1")
    scene.proxy.heal()
    found, exists = await reads
    assert found is not None
    assert (found.value, exists) == (b"1", True)
    assert log.events == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]
