"""Sessions that end, servers that are killed and paused, watches across it all."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from magnetar.metadata.coordination import LeaderElection, LeaderState, ResourceLock
from magnetar.metadata.errors import (
    MetadataError,
    OutcomeUnknownError,
    SessionLostError,
    ValueTooLargeError,
)
from magnetar.metadata.recipes import CachedValues
from magnetar.metadata.store import VALUE_BYTES_MAX, EventType, MetadataEvent, SessionEvent
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.store import ZooKeeperStore
from tests.integration.metadata_history import PATH, History
from tests.integration.metadata_proxy import Proxy
from tests.unit.metadata.conformance import seen
from tests.unit.metadata.event_log import EventLog
from tests.zookeeper_process import ZooKeeperProcess

_numbers = itertools.count()
_LOST = [SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST]
_BACK = [SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED]


@asynccontextmanager
async def connected(url: str, session_s: float = 20.0) -> AsyncIterator[ZooKeeperStore]:
    settings = ZooKeeperSettings.parse(url, session_timeout_s=session_s)
    store = await ZooKeeperStore.connect(settings)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def chroot() -> str:
    return f"/faults/{next(_numbers)}"


@pytest.fixture
async def proxy(zookeeper: ZooKeeperProcess) -> AsyncIterator[Proxy]:
    async with Proxy(zookeeper.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A server of this module's own: it is killed and paused."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("fragile")) as process:
        yield process


async def _isolate(proxy: Proxy, log: EventLog[SessionEvent]) -> None:
    """Cuts the store off until it has lost its session."""
    proxy.accepts = False
    proxy.cut()
    await log.until(lambda events: SessionEvent.SESSION_LOST in events)


async def test_a_session_ends_and_another_begins(
    zookeeper: ZooKeeperProcess, proxy: Proxy, chroot: str
) -> None:
    async with (
        connected(proxy.url(chroot), 3.0) as store,
        connected(zookeeper.url(chroot)) as direct,
    ):
        log = EventLog[SessionEvent]()
        store.on_session_event(log)
        await store.put("/e", b"", ephemeral=True)
        first = store.session_id
        waiting = asyncio.ensure_future(store.get("/e"))
        await asyncio.sleep(0)
        await _isolate(proxy, log)
        with pytest.raises(SessionLostError):
            await waiting
        for operation in (store.get("/e"), store.put("/e", b""), store.delete("/e")):
            with pytest.raises(SessionLostError):
                await operation
        proxy.heal()
        await log.until(lambda events: events[-1:] == _BACK[1:])
        assert log.events == _LOST + _BACK
        assert store.session_id != first
        # Not "will go": the old session was closed, or had expired, before the new one began.
        assert not await store.exists("/e")
        mine = await store.put("/e", b"", -1, ephemeral=True)
        assert mine.stat.created_by_self
        await seen(lambda: direct.exists("/e"), True)


async def test_a_change_under_way_when_the_session_ends_is_unknown(
    zookeeper: ZooKeeperProcess, proxy: Proxy, chroot: str
) -> None:
    async with connected(proxy.url(chroot), 3.0) as store:
        log = EventLog[SessionEvent]()
        store.on_session_event(log)
        proxy.answers_pass = False
        change = asyncio.ensure_future(store.put("/a", b"", -1))
        await log.until(lambda events: SessionEvent.SESSION_LOST in events)
        with pytest.raises(OutcomeUnknownError):
            await change
        proxy.heal()
        proxy.cut()
        await log.until(lambda events: events[-1:] == _BACK[1:])
        assert await store.exists("/a")


async def test_locks_and_leaders_come_back_after_the_session(
    zookeeper: ZooKeeperProcess, proxy: Proxy, chroot: str
) -> None:
    async with (
        connected(proxy.url(chroot), 3.0) as store,
        connected(zookeeper.url(chroot)) as direct,
    ):
        log, lost = EventLog[SessionEvent](), EventLog[ResourceLock]()
        store.on_session_event(log)
        kept = await ResourceLock.acquire(store, "/locks/kept", b"me", lost)
        taken = await ResourceLock.acquire(store, "/locks/taken", b"me", lost)
        states, other_states = EventLog[LeaderState](), EventLog[LeaderState]()
        election = LeaderElection(store, "/leader", b"me", states)
        other = LeaderElection(direct, "/leader", b"other", other_states)
        assert await election.elect() is LeaderState.LEADING
        assert await other.elect() is LeaderState.FOLLOWING
        await _isolate(proxy, log)
        assert (kept.held, kept.proven) == (True, False)
        assert election.state is LeaderState.NO_LEADER
        await other_states.until(lambda states: states[-1:] == [LeaderState.LEADING])
        await seen(lambda: direct.children("/locks"), [])
        theirs = await ResourceLock.acquire(direct, "/locks/taken", b"them", lost)
        proxy.heal()
        await log.until(lambda events: events[-1:] == _BACK[1:])
        await lost.until(lambda locks: locks == [taken])
        assert await kept.revalidate()
        await states.until(lambda states: states[-1:] == [LeaderState.FOLLOWING])
        await other.close()
        await states.until(lambda states: states[-1:] == [LeaderState.LEADING])
        assert not taken.held
        for lock in (kept, theirs):
            await lock.release()
        await election.close()


async def test_caches_never_stay_behind_on_a_bad_line(
    zookeeper: ZooKeeperProcess, proxy: Proxy, chroot: str
) -> None:
    """A change whose event got lost would stay in the cache for ever."""
    rng = random.Random(13)
    async with (
        connected(proxy.url(chroot)) as store,
        connected(zookeeper.url(chroot)) as direct,
    ):
        cache = CachedValues(store, "/c", lambda _, value: int(value))

        async def cached() -> int:
            found = await cache.get("/c/n")
            return -1 if found is None else found.value

        for round_ in range(12):
            for step in range(3):
                proxy.heal()
                proxy.cut()
                await cached()
                if rng.random() < 0.5:
                    proxy.cut()
                proxy.answers_pass = rng.random() < 0.5
                await direct.put("/c/n", b"%d" % (round_ * 3 + step))
            proxy.heal()
            proxy.cut()
            await seen(cached, round_ * 3 + 2)


async def test_events_go_on_after_a_reconnect(
    zookeeper: ZooKeeperProcess, proxy: Proxy, chroot: str
) -> None:
    async with (
        connected(proxy.url(chroot)) as store,
        connected(zookeeper.url(chroot)) as direct,
    ):
        log, session = EventLog[MetadataEvent](), EventLog[SessionEvent]()
        store.watch("/w", log)
        store.on_session_event(session)
        for round_ in range(5):
            proxy.cut()
            # From RECONNECTED on nothing is missed: the watch is there before it is announced.
            await session.until(lambda events, n=round_: len(events) == 2 * (n + 1))  # type: ignore[misc]
            await direct.put(f"/w/{round_}", b"")
            wanted = MetadataEvent(EventType.CREATED, f"/w/{round_}")
            await log.until(lambda events, wanted=wanted: wanted in events)  # type: ignore[misc]


async def test_kills_under_compare_and_set_lose_and_repeat_nothing(
    fragile: ZooKeeperProcess, chroot: str
) -> None:
    async with (
        connected(fragile.url(chroot)) as one,
        connected(fragile.url(chroot)) as other,
    ):
        await one.put(PATH, b"", -1)
        history, stop = History(), asyncio.Event()

        async def write(store: ZooKeeperStore, name: str) -> None:
            for part in itertools.count():
                await history.write(store, f"{name}.{part}", 10)
                if stop.is_set():
                    return

        writers = [
            asyncio.ensure_future(write(store, f"{store.session_id}.{i}"))
            for i, store in enumerate([one, one, other, other])
        ]
        for fault in ("pause", "kill"):
            written = len(history.written)
            await seen_count(history, written + 20)
            if fault == "kill":
                fragile.kill()
                await asyncio.to_thread(fragile.start)
            else:
                fragile.pause()
                await asyncio.sleep(0.3)
                fragile.resume()
        await seen_count(history, len(history.written) + 20)
        stop.set()
        await asyncio.gather(*writers)
        await history.check(one)


async def seen_count(history: History, count: int) -> None:
    async def reached() -> bool:
        return len(history.written) >= count

    await seen(reached, True)


async def test_a_paused_server_ends_sessions_by_the_clients_clock(
    fragile: ZooKeeperProcess, chroot: str
) -> None:
    async with connected(fragile.url(chroot), 3.0) as store:
        log = EventLog[SessionEvent]()
        store.on_session_event(log)
        await store.put("/e", b"old", -1, ephemeral=True)
        fragile.pause()
        try:
            await log.until(lambda events: events[:2] == _LOST)
        finally:
            fragile.resume()
        await log.until(lambda events: events[-1:] == _BACK[1:])
        # Closed by its owner if the server had kept it: it can't be there, and is ours to create.
        await store.put("/e", b"new", -1, ephemeral=True)


async def test_long_listings(zookeeper: ZooKeeperProcess, chroot: str) -> None:
    """More names than fit in a request's limit of 1 MiB."""
    async with connected(zookeeper.url(chroot)) as store:
        names = [f"{number:04d}-{'n' * 1200}" for number in range(1000)]
        await store.put("/big", b"")
        await asyncio.gather(*(store.put(f"/big/{name}", b"", -1) for name in names))
        assert await store.children("/big") == names
        await store.delete_recursive("/big")
        assert await store.children("/big") == []
        assert not await store.exists("/big")


async def test_a_request_that_a_server_would_hang_up_on_is_not_sent(
    zookeeper: ZooKeeperProcess, chroot: str
) -> None:
    """A long path beside the largest value: together more than jute.maxbuffer."""
    async with connected(zookeeper.url(chroot)) as store:
        log = EventLog[SessionEvent]()
        store.on_session_event(log)
        path = "/" + "p" * 60_000
        with pytest.raises(ValueTooLargeError):
            await store.put(path, bytes(VALUE_BYTES_MAX))
        await store.put(path, bytes(900_000))
        assert len(await store.children("/")) == 1
        assert log.events == []


async def test_an_unreachable_server_of_several_is_passed_by(
    zookeeper: ZooKeeperProcess, chroot: str
) -> None:
    async with connected(f"zk:127.0.0.1:1,127.0.0.1:{zookeeper.port}{chroot}") as store:
        await store.put("/a", b"")
        assert await store.exists("/a")


async def test_a_closed_store_leaves_nothing_behind(
    zookeeper: ZooKeeperProcess, chroot: str
) -> None:
    async with connected(zookeeper.url(chroot)) as direct:
        store = await ZooKeeperStore.connect(ZooKeeperSettings.parse(zookeeper.url(chroot)))
        writes = [asyncio.ensure_future(store.put(f"/w/{i}", b"")) for i in range(20)]
        await asyncio.sleep(0)
        await store.close()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert all(
            not isinstance(each, BaseException) or isinstance(each, MetadataError)
            for each in outcomes
        )
        await direct.put("/sync", b"")
        names = await direct.children("/w")
        for number, outcome in enumerate(outcomes):
            if not isinstance(outcome, BaseException):
                assert str(number) in names
    mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert mine == []
