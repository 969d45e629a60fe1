"""What every metadata backend must do. Subclass it and give it a fixture ``new_session``.

``new_session`` is an async function: each call returns another session on one tree that is empty at
the start of the test. Backends may deliver events late and serve reads of other sessions' writes
late, so both are awaited with a deadline; nothing here knows how a backend works inside.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from magnetar.metadata.coordination import LeaderElection, LeaderState, ResourceLock
from magnetar.metadata.errors import (
    BadVersionError,
    EphemeralParentError,
    LockBusyError,
    NotEmptyError,
    NotFoundError,
    SessionLostError,
    StoreClosedError,
    ValueTooLargeError,
)
from magnetar.metadata.recipes import CachedValues, IdGenerator, update
from magnetar.metadata.store import (
    CREATE_ONLY,
    VALUE_BYTES_MAX,
    EventType,
    MetadataEvent,
    MetadataStore,
    SessionEvent,
)
from tests.unit.metadata.event_log import DEADLINE_S, EventLog

NewSession = Callable[[], Awaitable[MetadataStore]]

CREATED, MODIFIED = EventType.CREATED, EventType.MODIFIED
DELETED, CHILDREN_CHANGED = EventType.DELETED, EventType.CHILDREN_CHANGED


async def seen(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Asks until the answer is ``wanted``: another session's write may arrive late."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while (answer := await ask()) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"got {answer!r}, wanted {wanted!r}"
        await asyncio.sleep(0.002)


class StoreConformance:
    """The operations of ``MetadataStore``."""

    @pytest.fixture
    async def store(self, new_session: NewSession) -> MetadataStore:
        return await new_session()

    async def test_put_creates_and_get_reads_it_back(self, store: MetadataStore) -> None:
        written = await store.put("/a", b"one")
        assert (written.path, written.value, written.stat.version) == ("/a", b"one", 0)
        assert not written.stat.ephemeral
        assert not written.stat.created_by_self
        assert await store.get("/a") == written
        assert await store.exists("/a")

    async def test_missing_paths_read_as_nothing(self, store: MetadataStore) -> None:
        assert await store.get("/none") is None
        assert not await store.exists("/none/deeper")
        assert await store.children("/none") == []

    async def test_versions_count_changes_and_restart_after_delete(
        self, store: MetadataStore
    ) -> None:
        for version in range(3):
            assert (await store.put("/a", b"%d" % version)).stat.version == version
        await store.delete("/a")
        assert (await store.put("/a", b"again")).stat.version == 0

    async def test_times_tell_creation_and_change(self, store: MetadataStore) -> None:
        first = (await store.put("/a", b"1")).stat
        second = (await store.put("/a", b"2")).stat
        assert first.created_ms == first.modified_ms == second.created_ms
        assert second.modified_ms >= first.modified_ms > 1_600_000_000_000

    async def test_create_only_refuses_an_existing_node(self, store: MetadataStore) -> None:
        await store.put("/a", b"first", -1)
        with pytest.raises(BadVersionError) as refused:
            await store.put("/a", b"second", -1)
        assert (refused.value.path, refused.value.expected) == ("/a", -1)
        found = await store.get("/a")
        assert found is not None
        assert found.value == b"first"

    async def test_a_version_must_match_exactly(self, store: MetadataStore) -> None:
        await store.put("/a", b"0")
        await store.put("/a", b"1", 0)
        for stale in (0, 2, 77):
            with pytest.raises(BadVersionError):
                await store.put("/a", b"x", stale)
            with pytest.raises(BadVersionError):
                await store.delete("/a", stale)
        with pytest.raises(BadVersionError):
            await store.put("/absent", b"x", 0)
        assert await store.get("/absent") is None
        await store.delete("/a", 1)
        assert not await store.exists("/a")

    async def test_parents_are_created_empty_and_persistent(self, store: MetadataStore) -> None:
        await store.put("/a/b/c", b"leaf")
        for parent in ("/a", "/a/b"):
            found = await store.get(parent)
            assert found is not None
            assert (found.value, found.stat.version, found.stat.ephemeral) == (b"", 0, False)
        await store.delete("/a/b/c")
        assert await store.exists("/a/b")

    async def test_children_are_direct_and_sorted(self, store: MetadataStore) -> None:
        for name in ("b", "a", "c/deeper", "B", "10", "9"):
            await store.put(f"/p/{name}", b"")
        assert await store.children("/p") == ["10", "9", "B", "a", "b", "c"]
        assert await store.children("/p/c") == ["deeper"]
        await store.delete("/p/b")
        assert await store.children("/p") == ["10", "9", "B", "a", "c"]
        assert "p" in await store.children("/")

    async def test_the_list_of_children_belongs_to_the_caller(self, store: MetadataStore) -> None:
        await store.put("/p/a", b"")
        (await store.children("/p")).append("mine")
        assert await store.children("/p") == ["a"]

    async def test_delete_tells_why_not(self, store: MetadataStore) -> None:
        await store.put("/a/b", b"")
        with pytest.raises(NotFoundError):
            await store.delete("/none")
        with pytest.raises(NotEmptyError):
            await store.delete("/a")
        with pytest.raises(BadVersionError):
            await store.delete("/a", 5)
        assert await store.exists("/a/b")

    async def test_delete_recursive_takes_everything_below_and_nothing_beside(
        self, store: MetadataStore
    ) -> None:
        for path in ("/a/b/c", "/a/b/d/e", "/a/f", "/ab"):
            await store.put(path, b"")
        await store.delete_recursive("/a")
        assert not await store.exists("/a")
        assert not await store.exists("/a/b/d/e")
        assert await store.exists("/ab")
        await store.delete_recursive("/a")

    async def test_values_are_any_bytes_up_to_the_limit(self, store: MetadataStore) -> None:
        for value in (b"", bytes(range(256)), b"x" * VALUE_BYTES_MAX):
            await store.put("/a", value)
            found = await store.get("/a")
            assert found is not None
            assert found.value == value
        with pytest.raises(ValueTooLargeError):
            await store.put("/a", b"x" * (VALUE_BYTES_MAX + 1))

    async def test_names_beyond_ascii(self, store: MetadataStore) -> None:
        path = "/пространство/名前/a%2Fb c+~"
        await store.put(path, b"v")
        assert await store.children("/пространство/名前") == ["a%2Fb c+~"]
        assert (await store.get(path)) is not None

    @pytest.mark.parametrize(
        "path", ["", "a", "/a/", "//a", "/a//b", "/.", "/a/..", "/a/./b", "/a\x00", "/a\n"]
    )
    async def test_malformed_paths_are_refused(self, store: MetadataStore, path: str) -> None:
        for operation in (store.get, store.children, store.exists, store.delete):
            with pytest.raises(ValueError, match="path"):
                await operation(path)
        with pytest.raises(ValueError, match="path"):
            await store.put(path, b"")

    async def test_the_root_exists_and_stays(self, store: MetadataStore) -> None:
        assert await store.exists("/")
        for change in (store.put("/", b"x"), store.delete("/"), store.delete_recursive("/")):
            with pytest.raises(ValueError, match="root"):
                await change

    async def test_of_concurrent_creators_one_wins(self, new_session: NewSession) -> None:
        stores = [await new_session() for _ in range(4)]
        outcomes = await asyncio.gather(
            *(stores[i % 4].put("/race", b"%d" % i, -1) for i in range(40)), return_exceptions=True
        )
        won = [each for each in outcomes if not isinstance(each, BaseException)]
        assert len(won) == 1
        assert sum(isinstance(each, BadVersionError) for each in outcomes) == 39
        found = await stores[0].get("/race")
        assert found is not None
        assert found.value == won[0].value

    async def test_concurrent_compare_and_set_loses_no_increment(
        self, new_session: NewSession
    ) -> None:
        stores = [await new_session() for _ in range(3)]

        def increment(value: bytes | None) -> bytes:
            return b"%d" % (int(value or b"0") + 1)

        await asyncio.gather(*(update(stores[i % 3], "/count", increment) for i in range(30)))
        last = await stores[0].put("/sync", b"")  # an own write: reads are at least this fresh
        assert last.stat.version == 0
        found = await stores[0].get("/count")
        assert found is not None
        assert (found.value, found.stat.version) == (b"30", 29)

    async def test_results_of_concurrent_operations_are_their_own(
        self, store: MetadataStore
    ) -> None:
        await store.put("/exists", b"")
        outcomes = await asyncio.gather(
            store.put("/n/1", b"", -1),
            store.put("/exists", b"", -1),
            store.put("/n/2", b"", -1),
            store.delete("/none"),
            store.put("/n/3", b"", -1),
            return_exceptions=True,
        )
        assert [type(each).__name__ for each in outcomes] == [
            "Versioned",
            "BadVersionError",
            "Versioned",
            "NotFoundError",
            "Versioned",
        ]
        assert await store.children("/n") == ["1", "2", "3"]

    # Sequential nodes

    async def test_sequential_names_have_ten_digits_and_grow(self, store: MetadataStore) -> None:
        paths = [(await store.put("/q/n-", b"", sequential=True)).path for _ in range(5)]
        assert all(path.startswith("/q/n-") and len(path) == len("/q/n-") + 10 for path in paths)
        assert paths == sorted(set(paths))
        assert await store.children("/q") == [path.removeprefix("/q/") for path in paths]

    async def test_sequence_numbers_are_not_used_again_after_delete(
        self, store: MetadataStore
    ) -> None:
        given = set[str]()
        for _ in range(4):
            path = (await store.put("/q/n-", b"", -1, sequential=True)).path
            assert path not in given
            given.add(path)
            await store.delete(path)

    async def test_one_counter_per_parent_for_all_prefixes(self, new_session: NewSession) -> None:
        one, other = await new_session(), await new_session()
        written = await asyncio.gather(
            *(
                (one, other)[i % 2].put(f"/q/{'ab'[i % 2]}-", b"", sequential=True)
                for i in range(20)
            )
        )
        assert len({each.path[-10:] for each in written}) == 20

    # Ephemeral nodes and sessions

    async def test_an_ephemeral_node_says_whose_it_is(self, new_session: NewSession) -> None:
        mine, other = await new_session(), await new_session()
        assert mine.session_id != other.session_id
        written = await mine.put("/e/node", b"v", -1, ephemeral=True)
        assert (written.stat.ephemeral, written.stat.created_by_self) == (True, True)

        async def as_seen_by_other() -> object:
            found = await other.get("/e/node")
            return found and (found.stat.ephemeral, found.stat.created_by_self, found.value)

        await seen(as_seen_by_other, (True, False, b"v"))

    async def test_ephemeral_nodes_end_with_their_session_alone(
        self, new_session: NewSession
    ) -> None:
        mine, other = await new_session(), await new_session()
        log = EventLog[MetadataEvent]()
        other.watch("/e", log)
        await mine.put("/e/mine-1", b"", ephemeral=True)
        await mine.put("/e/mine-2", b"", ephemeral=True)
        await mine.put("/e/kept", b"")
        await other.put("/e/other", b"", ephemeral=True)
        await mine.close()
        await log.until(lambda events: sum(each.type is DELETED for each in events) == 2)
        await seen(lambda: other.children("/e"), ["kept", "other"])

    async def test_a_session_is_ended_by_whoever_has_its_key(self, new_session: NewSession) -> None:
        """Its holder lives: what it had is gone, it hears of it, and goes on in a new session."""
        store, ended, other = [await new_session() for _ in range(3)]
        events = list[SessionEvent]()
        ended.on_session_event(events.append)
        for number, each in enumerate((store, ended, other)):
            await each.put(f"/of-{number}", b"", ephemeral=True)
        key, former = ended.session_key, ended.session_id
        await store.end_session(key)
        assert await store.get("/of-1") is None
        await store.end_session(key)  # it has ended: nothing to be done

        async def told() -> list[SessionEvent]:
            return events

        again = [SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED]
        await seen(told, [SessionEvent.CONNECTION_LOST, SessionEvent.SESSION_LOST, *again])
        assert ended.session_id != former
        assert ended.session_key != key
        assert (await ended.put("/of-1", b"", CREATE_ONLY, ephemeral=True)).stat.created_by_self
        await store.end_session(key)  # of the former session: the new one stays
        assert await ended.exists("/of-1")
        assert await store.exists("/of-0")
        assert await store.exists("/of-2")

    async def test_a_session_is_ended_by_several_at_once(self, new_session: NewSession) -> None:
        ended, *others = [await new_session() for _ in range(4)]
        for round_ in range(10):
            await ended.put(f"/of-{round_}", b"", CREATE_ONLY, ephemeral=True)
            key = ended.session_key
            await asyncio.gather(*(other.end_session(key) for other in others))
            assert await others[0].get(f"/of-{round_}") is None

            async def is_new(key: str = key) -> bool:
                return ended.session_key != key and await self._answers(ended)

            await seen(is_new, True)

    @staticmethod
    async def _answers(store: MetadataStore) -> bool:
        try:
            return await store.exists("/")
        except SessionLostError:
            return False

    @pytest.mark.parametrize("key", ["", "-", "x", "12", "zz-00", "12-0g", "-1-00"])
    async def test_what_is_no_key_ends_nothing(self, store: MetadataStore, key: str) -> None:
        with pytest.raises(ValueError, match="not a key"):
            await store.end_session(key)

    async def test_an_ephemeral_node_has_no_children(self, store: MetadataStore) -> None:
        await store.put("/e", b"", ephemeral=True)
        for path in ("/e/child", "/e/child/deeper"):
            with pytest.raises(EphemeralParentError):
                await store.put(path, b"")
        with pytest.raises(EphemeralParentError):
            await store.put("/e/n-", b"", sequential=True)
        assert await store.children("/e") == []

    async def test_a_put_never_changes_the_kind_of_a_node(self, new_session: NewSession) -> None:
        mine, other = await new_session(), await new_session()
        await mine.put("/p", b"")
        assert not (await mine.put("/p", b"2", ephemeral=True)).stat.ephemeral
        await mine.put("/e", b"", ephemeral=True)
        changed = await other.put("/e", b"theirs")
        assert (changed.stat.ephemeral, changed.stat.created_by_self) == (True, False)
        await mine.close()
        await seen(lambda: other.exists("/e"), False)
        assert await other.exists("/p")

    async def test_ephemeral_sequential_nodes(self, new_session: NewSession) -> None:
        mine, other = await new_session(), await new_session()
        path = (await mine.put("/c/-", b"", ephemeral=True, sequential=True)).path
        await mine.close()
        await seen(lambda: other.children("/c"), [])
        assert (await other.put("/c/-", b"", ephemeral=True, sequential=True)).path > path

    async def test_a_closed_store_refuses(self, store: MetadataStore) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreClosedError):
            await store.get("/a")
        with pytest.raises(StoreClosedError):
            await store.put("/a", b"")

    # Watches

    async def test_events_of_one_path_in_order(self, store: MetadataStore) -> None:
        log = EventLog[MetadataEvent]()
        store.watch("/a", log)
        await store.put("/a", b"1")
        await store.put("/a", b"2")
        await store.delete("/a")
        await log.until(lambda events: len(events) >= 3)
        assert [(each.type, each.path) for each in log.events] == [
            (CREATED, "/a"),
            (MODIFIED, "/a"),
            (DELETED, "/a"),
        ]

    async def test_watches_see_other_sessions_and_parents_see_children(
        self, new_session: NewSession
    ) -> None:
        watcher, writer = await new_session(), await new_session()
        await writer.put("/p", b"")
        await seen(lambda: watcher.exists("/p"), True)
        log = EventLog[MetadataEvent]()
        watcher.watch("/p", log)
        await writer.put("/p/c", b"")
        await writer.put("/p/c", b"2")
        await writer.delete("/p/c")
        await log.until(lambda events: len(events) >= 5)
        assert [each.type for each in log.events if each.path == "/p/c"] == [
            CREATED,
            MODIFIED,
            DELETED,
        ]
        assert [each.type for each in log.events if each.path == "/p"] == [CHILDREN_CHANGED] * 2

    async def test_delete_recursive_tells_children_before_parents(
        self, store: MetadataStore
    ) -> None:
        await store.put("/a/b/c", b"")
        await store.put("/a/d", b"")
        log = EventLog[MetadataEvent]()
        store.watch("/a", log)
        await store.delete_recursive("/a")
        await log.until(lambda events: MetadataEvent(DELETED, "/a") in events)
        deleted = [each.path for each in log.events if each.type is DELETED]
        assert sorted(deleted) == ["/a", "/a/b", "/a/b/c", "/a/d"]
        assert deleted.index("/a/b/c") < deleted.index("/a/b")
        assert deleted[-1] == "/a"

    async def test_a_prefix_ends_at_a_name(self, store: MetadataStore) -> None:
        log, root_log = EventLog[MetadataEvent](), EventLog[MetadataEvent]()
        store.watch("/a", log)
        store.watch("/", root_log)
        await store.put("/ab", b"")
        await store.put("/a/b", b"")
        await root_log.until(lambda events: MetadataEvent(CREATED, "/a/b") in events)
        await log.until(lambda events: MetadataEvent(CREATED, "/a/b") in events)
        assert not any(each.path.startswith("/ab") for each in log.events)
        assert MetadataEvent(CREATED, "/ab") in root_log.events

    async def test_a_closed_watch_is_silent(self, store: MetadataStore) -> None:
        closed, open_log = EventLog[MetadataEvent](), EventLog[MetadataEvent]()
        watch = store.watch("/a", closed)
        store.watch("/a", open_log)
        watch.close()
        watch.close()
        await store.put("/a", b"")
        await open_log.until(lambda events: len(events) >= 1)
        assert closed.events == []

    async def test_a_watch_closed_by_a_callback_of_the_same_event_is_silent(
        self, store: MetadataStore
    ) -> None:
        called = list[int]()

        def close_the_other(number: int) -> None:
            called.append(number)
            watches[1 - number].close()

        watches = [
            store.watch("/a", lambda _: close_the_other(0)),
            store.watch("/a", lambda _: close_the_other(1)),
        ]
        log = EventLog[MetadataEvent]()
        store.watch("/a", log)
        await store.put("/a", b"")
        await log.until(lambda events: len(events) >= 1)
        assert len(called) == 1

    async def test_an_event_comes_after_the_change_is_readable(self, store: MetadataStore) -> None:
        log = EventLog[MetadataEvent]()
        store.watch("/a", log)
        for round_ in range(5):
            put = asyncio.ensure_future(store.put(f"/a/{round_}", b""))
            await log.until(lambda events, n=round_: MetadataEvent(CREATED, f"/a/{n}") in events)  # type: ignore[misc]
            assert await store.exists(f"/a/{round_}")
            await put

    async def test_a_failing_callback_hurts_nobody(self, store: MetadataStore) -> None:
        reported = EventLog[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported(context))

        def fail(event: MetadataEvent) -> None:
            raise RuntimeError("broken callback")

        log = EventLog[MetadataEvent]()
        store.watch("/a", fail)
        store.watch("/a", log)
        await store.put("/a", b"")
        await log.until(lambda events: len(events) >= 1)
        await reported.until(lambda contexts: len(contexts) >= 1)
        await store.put("/a", b"2")
        await log.until(lambda events: len(events) >= 2)


class RecipesConformance:
    """The recipes on several sessions of a backend."""

    async def test_a_lock_has_one_holder(self, new_session: NewSession) -> None:
        stores = [await new_session() for _ in range(5)]
        lost = EventLog[ResourceLock]()
        outcomes = await asyncio.gather(
            *(ResourceLock.acquire(s, "/lock", b"%d" % i, lost) for i, s in enumerate(stores)),
            return_exceptions=True,
        )
        held = [each for each in outcomes if isinstance(each, ResourceLock)]
        assert len(held) == 1
        assert sum(isinstance(each, LockBusyError) for each in outcomes) == 4
        assert (held[0].held, held[0].proven) == (True, True)
        await held[0].release()
        assert (held[0].held, held[0].proven) == (False, False)
        other = stores[-1] if held[0].value != b"4" else stores[0]
        await seen(lambda: other.exists("/lock"), False)
        again = await ResourceLock.acquire(other, "/lock", b"again", lost)
        await again.release()
        assert lost.events == []

    async def test_a_lock_is_adopted_by_its_own_session(self, new_session: NewSession) -> None:
        store = await new_session()
        lost = EventLog[ResourceLock]()
        await store.put("/lock", b"me", -1, ephemeral=True)  # a create whose reply was lost
        lock = await ResourceLock.acquire(store, "/lock", b"me", lost)
        found = await store.get("/lock")
        assert found is not None
        assert found.stat.version == 0
        await lock.release()

    async def test_a_deleted_lock_node_is_created_again(self, new_session: NewSession) -> None:
        store, other = await new_session(), await new_session()
        log = EventLog[MetadataEvent]()
        other.watch("/lock", log)
        lock = await ResourceLock.acquire(store, "/lock", b"me", EventLog[ResourceLock]())
        await seen(lambda: other.exists("/lock"), True)
        await other.delete("/lock")
        await log.until(lambda events: [e.type for e in events].count(CREATED) == 2)
        assert await lock.revalidate()
        await lock.release()

    async def test_a_released_lock_leaves_anothers_node_alone(
        self, new_session: NewSession
    ) -> None:
        store, other = await new_session(), await new_session()
        lock = await ResourceLock.acquire(store, "/lock", b"me", EventLog[ResourceLock]())
        await lock.release()
        theirs = await other.put("/lock", b"them", -1, ephemeral=True)
        await lock.release()
        assert await other.get("/lock") == theirs

    async def test_leaders_follow_one_another(self, new_session: NewSession) -> None:
        stores = [await new_session() for _ in range(3)]
        elections, logs = [], []
        for i, store in enumerate(stores):
            log = EventLog[LeaderState]()
            logs.append(log)
            elections.append(LeaderElection(store, "/leader", b"%d" % i, log))
        states = [await election.elect() for election in elections]
        assert states == [LeaderState.LEADING, LeaderState.FOLLOWING, LeaderState.FOLLOWING]
        await seen(elections[2].leader, b"0")
        await stores[0].close()  # its session ends: nobody has to give anything up

        async def leading() -> int:
            return sum(each.state is LeaderState.LEADING for each in elections[1:])

        await seen(leading, 1)
        first = next(i for i in (1, 2) if elections[i].state is LeaderState.LEADING)
        await elections[first].close()
        rest = 3 - first
        await logs[rest].until(lambda states: states[-1:] == [LeaderState.LEADING])
        await elections[rest].close()
        await seen(elections[rest].leader, None)

    async def test_ids_are_unique_over_sessions_and_callers(self, new_session: NewSession) -> None:
        generators = [IdGenerator(await new_session(), "/ids", block=7) for _ in range(3)]
        ids = await asyncio.gather(*(generators[i % 3].next_id() for i in range(120)))
        assert len(set(ids)) == 120
        later = IdGenerator(await new_session(), "/ids", block=7)
        assert await later.next_id() not in ids

    async def test_cached_values_follow_the_store(self, new_session: NewSession) -> None:
        store, other = await new_session(), await new_session()
        cache = CachedValues(store, "/c", lambda _, value: int(value))

        async def cached() -> int | None:
            found = await cache.get("/c/n")
            return None if found is None else found.value

        assert await cached() is None
        await other.put("/c/n", b"1")
        await seen(cached, 1)
        await other.put("/c/n", b"2")
        await seen(cached, 2)
        await other.delete("/c/n")
        await seen(cached, None)
        cache.close()
