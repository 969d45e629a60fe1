"""The recipes under faults: lost sessions, lost replies, refused writes, races."""

import asyncio
from collections.abc import Callable

import pytest

from magnetar.metadata.coordination import LeaderElection, LeaderState, ResourceLock
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import (
    BadVersionError,
    LockBusyError,
    MetadataError,
    MetadataWriteError,
    OutcomeUnknownError,
    ValueTooLargeError,
)
from magnetar.metadata.recipes import CachedValues, IdGenerator, update
from magnetar.metadata.store import VALUE_BYTES_MAX, MetadataEvent, Versioned
from tests.unit.metadata.event_log import EventLog, eventually


class FaultyStore(EmbeddedMetadataStore):
    """A session whose next calls meet the faults that a test lines up."""

    def __init__(self, base: EmbeddedMetadataStore) -> None:
        super().__init__(base._shared, owner=False)
        self.lost_requests = 0  # mutations that never arrive and whose reply never comes
        self.lost_replies = 0  # mutations that happen and whose reply never comes
        self.refusals = 0
        self.before_put: list[Callable[[], object]] = []  # awaited between a read and a write
        self.before_reply: list[Callable[[], object]] = []
        self.gate: asyncio.Event | None = None  # reads answer with the past when it opens

    async def get(self, path: str) -> Versioned | None:
        found = await super().get(path)
        if self.gate is not None:
            await self.gate.wait()
        return found

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        if self.before_put:
            await self.before_put.pop(0)()  # type: ignore[misc]
        if self.refusals:
            self.refusals -= 1
            raise MetadataWriteError(path, OSError("no space"))
        if self.lost_requests:
            self.lost_requests -= 1
            raise OutcomeUnknownError(path)
        written = await super().put(
            path, value, expected_version, ephemeral=ephemeral, sequential=sequential
        )
        if self.before_reply:
            await self.before_reply.pop(0)()  # type: ignore[misc]
        if self.lost_replies:
            self.lost_replies -= 1
            raise OutcomeUnknownError(path)
        return written


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore.open(None)


@pytest.fixture
async def store(base: EmbeddedMetadataStore) -> FaultyStore:
    return FaultyStore(base)


def append(text: bytes) -> Callable[[bytes | None], bytes]:
    return lambda value: (value or b"") + text


# update


async def test_update_creates_changes_and_leaves_alone(store: FaultyStore) -> None:
    assert await update(store, "/a", lambda value: None) is None
    created = await update(store, "/a", append(b"1"))
    assert created is not None
    assert (created.value, created.stat.version) == (b"1", 0)
    assert (await update(store, "/a", lambda value: None)) == created
    with pytest.raises(ZeroDivisionError):
        await update(store, "/a", lambda value: b"%d" % (1 // 0))


async def test_update_decides_again_on_what_a_faster_writer_left(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    store.before_put = [
        lambda: base.put("/a", b"theirs"),  # creates while we want to create
        lambda: base.delete("/a"),  # deletes while we want to change
    ]
    updated = await update(store, "/a", append(b"+ours"))
    assert updated is not None
    assert updated.value == b"+ours"
    store.before_put = [lambda: base.put("/a", b"theirs")]
    updated = await update(store, "/a", append(b"+ours"))
    assert updated is not None
    assert updated.value == b"theirs+ours"


async def test_update_recognises_its_own_write_after_a_lost_reply(store: FaultyStore) -> None:
    store.lost_replies = 1
    written = await update(store, "/a", append(b"once"))
    assert written is not None
    assert (written.value, written.stat.version) == (b"once", 0)
    store.lost_requests = 1
    written = await update(store, "/a", append(b"+again"))
    assert written is not None
    assert (written.value, written.stat.version) == (b"once+again", 1)


async def test_update_does_not_take_a_rivals_equal_value_for_its_own(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    """A conflict is certain: our write didn't happen, whatever the other one wrote."""
    store.before_put = [lambda: base.put("/count", b"1")]
    written = await update(store, "/count", lambda value: b"%d" % (int(value or b"0") + 1))
    assert written is not None
    assert written.value == b"2"


# IdGenerator


async def test_ids_come_in_blocks_and_restart_skips_the_rest(base: EmbeddedMetadataStore) -> None:
    log = EventLog[MetadataEvent]()
    base.watch("/ids", log)
    ids = IdGenerator(base, "/ids", block=10)
    assert [await ids.next_id() for _ in range(12)] == list(range(12))
    assert len(log.events) == 2
    assert await IdGenerator(base, "/ids", block=10).next_id() == 20


async def test_concurrent_callers_share_one_fetch(base: EmbeddedMetadataStore) -> None:
    log = EventLog[MetadataEvent]()
    base.watch("/ids", log)
    ids = IdGenerator(base, "/ids", block=1000)
    assert sorted(await asyncio.gather(*(ids.next_id() for _ in range(900)))) == list(range(900))
    assert len(log.events) == 1


async def test_ids_survive_lost_replies_deleted_counters_and_cancelled_callers(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    ids, given = IdGenerator(store, "/ids", block=2), set[int]()
    for round_ in range(60):
        store.lost_replies, store.lost_requests = round_ % 3 % 2, round_ % 5 % 2
        if round_ == 20:
            await base.delete("/ids")
        if round_ == 30:
            await base.put("/ids", b"0")
        cancelled = asyncio.ensure_future(ids.next_id())
        await asyncio.sleep(0)
        cancelled.cancel()
        number = await ids.next_id()
        assert number not in given
        given.add(number)


async def test_ids_above_what_another_process_was_given(base: EmbeddedMetadataStore) -> None:
    ours, theirs = IdGenerator(base, "/ids", block=10), IdGenerator(base, "/ids", block=10)
    assert [await ours.next_id(), await theirs.next_id()] == [0, 10]
    assert await ours.next_id(above=4) == 5  # skipped within the block
    assert await ours.next_id(above=10) == 20
    assert await theirs.next_id(above=3) == 11
    await base.delete("/ids")
    assert await theirs.next_id(above=20) == 21  # the counter is gone, the proof isn't


async def test_ids_that_others_use_since_the_counter_went_back_are_skipped_by_all(
    base: EmbeddedMetadataStore,
) -> None:
    ours, theirs = IdGenerator(base, "/ids", block=10), IdGenerator(base, "/ids", block=10)
    assert await ours.next_id() == 0
    ours.skip(100)
    assert [await ours.next_id() for _ in range(11)] == [*range(110, 120), 120]
    assert await theirs.next_id() == 130


async def test_a_broken_counter_and_a_refused_write_are_told(store: FaultyStore) -> None:
    await store.put("/ids", b"12x")
    ids = IdGenerator(store, "/ids")
    with pytest.raises(MetadataError, match=r"/ids: not a counter: b'12x'"):
        await ids.next_id()
    await store.put("/ids", b"12")
    store.refusals = 1
    with pytest.raises(MetadataWriteError):
        await ids.next_id()
    assert await ids.next_id() == 12


# CachedValues


async def test_a_cache_reads_once_and_knows_absence(store: FaultyStore) -> None:
    reads = list[str]()

    def decode(path: str, value: bytes) -> bytes:
        reads.append(path)
        return value.upper()

    cache = CachedValues(store, "/c", decode, entries_max=2)
    await store.put("/c/a", b"x")
    for _ in range(3):
        found = await cache.get("/c/a")
        assert found is not None
        assert (found.value, found.stat.version) == (b"X", 0)
    assert await cache.get("/c/none") is None
    assert reads == ["/c/a"]
    assert cache.get_nowait("/c/a") == found
    await cache.get("/c/other")
    assert cache.get_nowait("/c/a") is None  # the oldest left: two entries at most


async def test_a_read_that_an_event_overtook_is_not_cached(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    cache = CachedValues(store, "/c", lambda _, value: value)
    await base.put("/c/a", b"old")
    store.gate = asyncio.Event()
    reading = asyncio.ensure_future(cache.get("/c/a"))
    await asyncio.sleep(0)
    await base.put("/c/a", b"new")
    store.gate.set()
    stale = await reading
    assert stale is not None
    assert stale.value == b"old"
    fresh = await cache.get("/c/a")
    assert fresh is not None
    assert fresh.value == b"new"


async def test_a_cache_distrusts_itself_after_a_lost_connection(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    cache = CachedValues(store, "/c", lambda _, value: value)
    await base.put("/c/a", b"old")
    await cache.get("/c/a")
    store.lose_session()
    await base.put("/c/a", b"new")
    found = await cache.get("/c/a")  # an outage of the store isn't one of what was read from it
    assert found is not None
    assert found.value == b"old"
    store.begin_session()
    found = await cache.get("/c/a")
    assert found is not None
    assert found.value == b"new"


async def test_a_value_that_cannot_be_decoded_is_not_cached(store: FaultyStore) -> None:
    cache = CachedValues(store, "/c", lambda _, value: int(value))
    await store.put("/c/a", b"x")
    with pytest.raises(ValueError, match="invalid literal"):
        await cache.get("/c/a")
    await store.put("/c/a", b"5")
    found = await cache.get("/c/a")
    assert found is not None
    assert found.value == 5


# ResourceLock


async def test_a_lock_outlives_its_session(base: EmbeddedMetadataStore, store: FaultyStore) -> None:
    """Spec, bundles 12.2 F7: the old node still exists when the new session begins."""
    lost = EventLog[ResourceLock]()
    lock = await ResourceLock.acquire(store, "/lock", b"me", lost)
    old = store.session_id
    store.lose_session()
    assert (lock.held, lock.proven) == (True, False)
    store.begin_session()
    await eventually(lambda: lock.proven)
    found = await store.get("/lock")
    assert found is not None
    assert found.stat.created_by_self
    await base.expire_session(old)
    assert await store.exists("/lock")
    assert lost.events == []
    await lock.release()


async def test_a_lock_taken_by_another_is_lost_once(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    """F3: cut off, another session takes over, and on return the first one gives up."""
    lost = EventLog[ResourceLock]()
    lock = await ResourceLock.acquire(store, "/lock", b"me", lost)
    old = store.session_id
    store.lose_session()
    await base.expire_session(old)
    theirs = await base.put("/lock", b"them", -1, ephemeral=True)
    store.begin_session()
    await lost.until(lambda events: len(events) == 1)
    assert not await lock.revalidate()
    await lock.release()
    assert await base.get("/lock") == theirs  # F9: same path and version, another's node
    assert lost.events == [lock]
    with pytest.raises(LockBusyError) as busy:
        await ResourceLock.acquire(store, "/lock", b"me", lost)
    assert busy.value.holder == b"them"


async def test_a_lock_of_an_older_configuration_is_written_anew(store: FaultyStore) -> None:
    await store.put("/lock", b"old port", -1, ephemeral=True)
    lock = await ResourceLock.acquire(store, "/lock", b"new port", EventLog[ResourceLock]())
    found = await store.get("/lock")
    assert found is not None
    assert found.value == b"new port"
    await lock.release()
    assert not await store.exists("/lock")


async def test_a_persistent_node_is_nobodys_lock(store: FaultyStore) -> None:
    await store.put("/lock", b"me")
    with pytest.raises(LockBusyError):
        await ResourceLock.acquire(store, "/lock", b"me", EventLog[ResourceLock]())


async def test_a_lost_reply_of_the_create_is_adopted(store: FaultyStore) -> None:
    store.lost_replies = 1  # F5
    lock = await ResourceLock.acquire(store, "/lock", b"me", EventLog[ResourceLock]())
    found = await store.get("/lock")
    assert found is not None
    assert (found.stat.version, lock.proven) == (0, True)
    await lock.release()


async def test_a_store_that_cannot_tell_keeps_the_lock_and_retries(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    lost = EventLog[ResourceLock]()
    lock = await ResourceLock.acquire(store, "/lock", b"me", lost)
    store.refusals = 2
    await base.delete("/lock")
    await eventually(lambda: not lock.proven)
    assert lock.held
    await eventually(lambda: lock.proven)
    assert await base.exists("/lock")
    assert lost.events == []
    await lock.release()


async def test_a_lock_whose_holder_changes_its_value(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    lost = EventLog[ResourceLock]()
    lock = await ResourceLock.acquire(
        store, "/lock", b"me 1", lost, lambda value: value.startswith(b"me")
    )
    assert await lock.change(b"me 2")
    assert await base.get("/lock") is not None
    with pytest.raises(ValueTooLargeError):
        await lock.change(b"me" * VALUE_BYTES_MAX)
    store.lost_replies = 1
    with pytest.raises(OutcomeUnknownError):
        await lock.change(b"me 3")
    old = store.session_id
    store.lose_session()
    store.begin_session()  # an older value of ours is still ours
    await eventually(lambda: lock.proven)
    await base.expire_session(old)
    found = await base.get("/lock")
    assert found is not None
    assert found.value == b"me 3"
    assert await lock.change(b"me 4")
    await lock.release()
    assert not await lock.change(b"me 5")
    assert not await base.exists("/lock")
    assert lost.events == []


async def test_no_check_recreates_a_released_node(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    """I10: a release waits for the check under way; later ones find the lock stopped."""
    lock = await ResourceLock.acquire(store, "/lock", b"me", EventLog[ResourceLock]())
    held_back = asyncio.Event()
    store.before_put = [held_back.wait]
    await base.delete("/lock")
    await eventually(lambda: not store.before_put)  # a check is about to create the node again
    releasing = asyncio.ensure_future(lock.release())
    await asyncio.sleep(0)
    held_back.set()
    await releasing
    assert not await lock.revalidate()
    assert not await base.exists("/lock")


# LeaderElection


async def test_a_leader_steps_down_when_its_session_is_lost(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    log, other_log = EventLog[LeaderState](), EventLog[LeaderState]()
    mine = LeaderElection(store, "/leader", b"mine", log)
    other = LeaderElection(base.new_session(), "/leader", b"other", other_log)
    assert await mine.elect() is LeaderState.LEADING
    assert await other.elect() is LeaderState.FOLLOWING
    old = store.session_id
    store.lose_session()
    assert mine.state is LeaderState.NO_LEADER
    await base.expire_session(old)
    await other_log.until(lambda states: states[-1] is LeaderState.LEADING)
    store.begin_session()
    await log.until(lambda states: states[-1] is LeaderState.FOLLOWING)
    assert log.events == [LeaderState.LEADING, LeaderState.NO_LEADER, LeaderState.FOLLOWING]
    await other.close()
    await log.until(lambda states: states[-1] is LeaderState.LEADING)
    await mine.close()


async def test_an_election_that_a_session_loss_overtook_makes_no_leader(
    store: FaultyStore,
) -> None:
    states = EventLog[LeaderState]()
    election = LeaderElection(store, "/leader", b"mine", states)
    held_back = asyncio.Event()
    store.before_reply = [held_back.wait]
    electing = asyncio.ensure_future(election.elect())
    await eventually(lambda: not store.before_reply)
    store.lose_session()  # the create has succeeded, its reply is still on its way
    held_back.set()
    assert await electing is LeaderState.NO_LEADER
    assert states.events == []
    await election.close()


async def test_nobody_takes_part_before_elect(
    base: EmbeddedMetadataStore, store: FaultyStore
) -> None:
    election = LeaderElection(store, "/leader", b"mine", EventLog[LeaderState]())
    await base.put("/leader", b"x", ephemeral=True)
    await base.delete("/leader")
    with pytest.raises(BadVersionError):
        await base.put("/leader", b"x", 0)
    await asyncio.sleep(0)
    assert election.state is LeaderState.NO_LEADER
    assert await election.leader() is None
    await election.close()
