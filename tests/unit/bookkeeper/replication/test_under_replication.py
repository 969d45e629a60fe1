"""Markers, locks and switches, over the embedded store and over one that loses answers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.under_replication_format import UnderreplicationMarker
from magnetar.bookkeeper.replication.under_replication import (
    CHECK_ALL_LEDGERS,
    ReplicationDisabled,
    UnderReplicationStore,
)
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import OutcomeUnknownError, SessionLostError
from magnetar.metadata.store import Versioned

ROOT = "/ledgers/underreplication"


class LostAnswers(EmbeddedMetadataStore):
    """A store that can lose the answer of the next change, after or instead of doing it."""

    lose: bool | None = None  # True: done, answer lost; False: not done, answer lost

    def _answer_lost(self, path: str) -> OutcomeUnknownError:
        self.lose = None
        return OutcomeUnknownError(path)

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        if self.lose is False:
            raise self._answer_lost(path)
        written = await super().put(
            path, value, expected_version, ephemeral=ephemeral, sequential=sequential
        )
        if self.lose:
            raise self._answer_lost(path)
        return written

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        if self.lose is False:
            raise self._answer_lost(path)
        await super().delete(path, expected_version)
        if self.lose:
            raise self._answer_lost(path)


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    store = LostAnswers.open(None)
    yield store
    await store.close()


@pytest.fixture
def markers(store: EmbeddedMetadataStore) -> UnderReplicationStore:
    return UnderReplicationStore(store, lambda: 1000)


async def listed(markers: UnderReplicationStore) -> list[list[int]]:
    return [ids async for ids in markers.ledger_ids()]


async def read(markers: UnderReplicationStore, ledger_id: int) -> UnderreplicationMarker:
    marker = await markers.read(ledger_id)
    assert marker is not None
    return marker


async def test_marks_merge(markers: UnderReplicationStore) -> None:
    await markers.mark(7, ["b1"])
    assert await markers.read(7) == UnderreplicationMarker(7, frozenset({"b1"}), 1000, 0)
    await markers.mark(7, ["b2"], suspects=["b2"])
    marker = await read(markers, 7)
    assert (set(marker.bookies), set(marker.suspects)) == ({"b1", "b2"}, {"b2"})
    assert await markers.read(8) is None


async def test_marks_of_many_at_once_all_count(markers: UnderReplicationStore) -> None:
    await asyncio.gather(*(markers.mark(7, [f"b{n}"]) for n in range(20)))
    assert (await read(markers, 7)).bookies == {f"b{n}" for n in range(20)}


@pytest.mark.parametrize("done", [True, False])
async def test_a_mark_whose_answer_was_lost(markers: UnderReplicationStore, done: bool) -> None:
    markers._store.lose = done  # type: ignore[attr-defined]
    await markers.mark(7, ["b1"])
    assert (await read(markers, 7)).bookies == {"b1"}


async def test_the_path_is_bookkeepers(markers: UnderReplicationStore) -> None:
    assert markers.marker_path(0x1_2345) == f"{ROOT}/ledgers/0000/0000/0001/2345/urL0000074565"
    assert markers.lock_path(7) == f"{ROOT}/locks/urL0000000007"
    with pytest.raises(ValueError, match="ledger id"):
        markers.marker_path(-1)


async def test_ids_ascend_over_directories(markers: UnderReplicationStore) -> None:
    ids = [2**62, 5, 0x1_0000, 0x1_0003, 2**33, 3]
    for ledger_id in ids:
        await markers.mark(ledger_id, ["b1"])
    assert await listed(markers) == [[3, 5], [0x1_0000, 0x1_0003], [2**33], [2**62]]


async def test_clear_leaves_nothing_behind(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    await markers.mark(7, ["b1"])
    await markers.mark(8, ["b1"])
    for ledger_id in (7, 8):
        lock = await markers.lock(ledger_id)
        assert lock is not None
        assert await markers.clear(ledger_id, 0)
        await lock.release()
    assert await listed(markers) == []
    assert await store.children(f"{ROOT}/ledgers") == []
    assert await store.children(f"{ROOT}/locks") == []


async def test_marked_again_stays(markers: UnderReplicationStore) -> None:
    await markers.mark(7, ["b1"])
    assert await markers.lock(7) is not None
    seen = await read(markers, 7)
    await markers.mark(7, ["b1"])  # the same again: it may have come back and died since
    assert not await markers.clear(7, seen.version)
    assert (await read(markers, 7)).bookies == {"b1"}


async def test_only_the_holder_of_the_lock_clears(markers: UnderReplicationStore) -> None:
    await markers.mark(7, ["b1"])
    assert not await markers.clear(7, 0)
    lock = await markers.lock(7)
    assert lock is not None
    await lock.release()
    assert not await markers.clear(7, 0)
    assert await markers.read(7) is not None


async def test_a_marker_made_anew_is_another_one(store: EmbeddedMetadataStore) -> None:
    """A's session ends in the middle; B repairs and clears; the ledger is marked again. Both
    markers have version 0: A, back with another session, must not clear the second one."""
    ours = store.new_session()
    a, b = UnderReplicationStore(ours, lambda: 1), UnderReplicationStore(store, lambda: 2)
    await b.mark(7, ["b1"])
    lock = await a.lock(7)
    assert lock is not None
    seen = await read(a, 7)
    ours.lose_session()
    await store.expire_session(ours.session_id)
    other = await b.lock(7)
    assert other is not None
    assert await b.clear(7, 0)
    await other.release()
    await b.mark(7, ["b2"])
    ours.begin_session()
    assert not lock.held
    assert not await a.clear(7, seen.version)
    assert (await read(b, 7)).bookies == {"b2"}


@pytest.mark.parametrize(("done", "cleared"), [(True, True), (False, False)])
async def test_a_clear_whose_answer_was_lost(
    markers: UnderReplicationStore, done: bool, cleared: bool
) -> None:
    await markers.mark(7, ["b1"])
    assert await markers.lock(7) is not None
    markers._store.lose = done  # type: ignore[attr-defined]
    assert await markers.clear(7, 0) is cleared
    assert (await markers.read(7) is None) is cleared


async def test_a_clear_without_answer_isnt_repeated(markers: UnderReplicationStore) -> None:
    """The delete happened and the ledger was marked again, at version 0 as before."""
    await markers.mark(7, ["b1"])
    assert await markers.lock(7) is not None
    delete = markers._store.delete

    async def delete_and_mark(path: str, expected_version: int | None = None) -> None:
        await delete(path, expected_version)
        await markers.mark(7, ["b2"])
        raise OutcomeUnknownError(path)

    markers._store.delete = delete_and_mark  # type: ignore[method-assign]
    assert not await markers.clear(7, 0)
    assert (await read(markers, 7)).bookies == {"b2"}


async def test_notes(markers: UnderReplicationStore) -> None:
    await markers.note(7, "nobody marked it")
    assert await markers.read(7) is None
    await markers.mark(7, ["b1"])
    await markers.note(7, "no other bookie")
    noted = await read(markers, 7)
    assert (noted.reason, set(noted.bookies)) == ("no other bookie", {"b1"})
    await markers.note(7, "no other bookie")
    assert (await read(markers, 7)).version == noted.version  # watchers aren't woken for nothing
    await markers.note(7, "x" * 5000)
    assert len((await read(markers, 7)).reason) == 1000


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"format":1}', b'{"format":2}', b"\xff"])
async def test_unreadable_markers(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore, value: bytes
) -> None:
    await store.put(markers.marker_path(7), value)
    with pytest.raises(LedgerMetadataError):
        await markers.read(7)


async def test_an_operators_empty_marker(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    await store.put(markers.marker_path(7), b"")
    assert (await read(markers, 7)).bookies == frozenset()
    await markers.mark(7, ["b1"])
    assert (await read(markers, 7)).bookies == {"b1"}


async def test_one_has_the_lock(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    other = UnderReplicationStore(store, lambda: 0)  # the same session
    third = UnderReplicationStore(store.new_session(), lambda: 0)
    lock = await markers.lock(7)
    assert lock is not None
    for rival in (markers, other, third):
        assert await rival.lock(7) is None
    assert await markers.lock(8) is not None
    await lock.release()
    again = await third.lock(7)
    assert again is not None
    await lock.release()  # late and twice: not ours any more
    assert again.held
    assert await other.lock(7) is None


async def test_repairs_under_way_are_told_apart(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    """By who waits for those of before to end: the next one of the same ledger is another."""
    assert await markers.repairs() == {}
    lock = await markers.lock(7)
    assert lock is not None
    assert await markers.lock(70_000) is not None
    first = await UnderReplicationStore(store.new_session(), lambda: 0).repairs()
    assert sorted(first) == [7, 70_000]
    assert await markers.repairs() == first
    await lock.release()
    assert sorted(await markers.repairs()) == [70_000]
    assert await markers.lock(7) is not None
    again = await markers.repairs()
    assert sorted(again) == [7, 70_000]
    assert again[7] != first[7]
    assert again[70_000] == first[70_000]


@pytest.mark.parametrize("done", [True, False])
async def test_a_lock_whose_answer_was_lost(markers: UnderReplicationStore, done: bool) -> None:
    markers._store.lose = done  # type: ignore[attr-defined]
    lock = await markers.lock(7)
    assert (lock is not None) is done
    if lock is None:
        assert await markers.lock(7) is not None


async def test_a_lock_taken_as_another_ends_is_ours_or_nobodys(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    """Simulation (cluster) seed 84: the end of the one before looked like the end of ours."""
    rival = UnderReplicationStore(store.new_session(), lambda: 5)
    lock = await rival.lock(7)
    assert lock is not None
    _, ours = await asyncio.gather(lock.release(), markers.lock(7))
    assert ours is not None or await store.get(markers.lock_path(7)) is None
    assert await rival.lock(7) is None or ours is None


async def test_a_cancelled_lock_leaves_no_node(markers: UnderReplicationStore) -> None:
    task = asyncio.ensure_future(markers.lock(7))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await markers._store.get(markers.lock_path(7)) is None
    assert await markers.lock(7) is not None


async def test_a_lock_ends_with_its_session(store: EmbeddedMetadataStore) -> None:
    ours = store.new_session()
    markers = UnderReplicationStore(ours, lambda: 0)
    lock = await markers.lock(7)
    assert lock is not None
    told: list[bool] = []
    lock.on_lost = lambda: told.append(True)
    ours.lose_session()
    assert (lock.held, told) == (False, [True])
    with pytest.raises(SessionLostError):
        await markers.lock(7)
    await store.expire_session(ours.session_id)
    ours.begin_session()
    assert not lock.held
    assert await markers.lock(7) is not None


async def test_a_lock_ends_with_its_node(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    lock = await markers.lock(7)
    assert lock is not None
    await store.delete(lock.path)
    await asyncio.sleep(0)
    assert not lock.held


async def test_the_switch(store: EmbeddedMetadataStore, markers: UnderReplicationStore) -> None:
    told: list[int] = []
    watch = markers.watch_switch(lambda: told.append(1))
    assert await markers.is_enabled()
    assert await markers.disabled() is None
    await markers.enable()
    await markers.disable("zone a is down")
    await markers.disable("another reason")
    assert not await markers.is_enabled()
    assert await markers.disabled() == ReplicationDisabled("zone a is down", 1000)
    assert len(told) == 1
    await markers.enable()
    assert await markers.is_enabled()
    assert len(told) == 2
    watch.close()
    await markers.disable("nobody listens")
    assert len(told) == 2


async def test_a_switch_made_by_hand(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    await store.put(f"{ROOT}/disable", b"")
    assert not await markers.is_enabled()
    disabled = await markers.disabled()
    assert disabled is not None
    assert disabled.reason == ""


async def test_the_auditors_facts(
    store: EmbeddedMetadataStore, markers: UnderReplicationStore
) -> None:
    assert await markers.lost_bookie_delay_s() is None
    await markers.set_lost_bookie_delay_s(0.5)
    assert await markers.lost_bookie_delay_s() == 0.5
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="delay"):
            await markers.set_lost_bookie_delay_s(wrong)
    assert await markers.check_time_ms(CHECK_ALL_LEDGERS) is None
    await markers.set_check_time_ms(CHECK_ALL_LEDGERS, 77)
    assert await markers.check_time_ms(CHECK_ALL_LEDGERS) == 77
    with pytest.raises(ValueError, match="periodic check"):
        await markers.check_time_ms("disable")
    await store.put(f"{ROOT}/{CHECK_ALL_LEDGERS}", b"x")
    await store.put(f"{ROOT}/lostBookieRecoveryDelay", b"x")
    with pytest.raises(LedgerMetadataError):
        await markers.check_time_ms(CHECK_ALL_LEDGERS)
    with pytest.raises(LedgerMetadataError):
        await markers.lost_bookie_delay_s()


async def test_watches_tell_of_marks_not_of_clears(store: EmbeddedMetadataStore) -> None:
    ours = store.new_session()
    markers = UnderReplicationStore(ours, lambda: 0)
    told: list[int] = []
    watch = markers.watch(lambda: told.append(1))
    await markers.mark(7, ["b1"])
    assert told
    await markers.lock(7)
    del told[:]
    await markers.mark(7, ["b1"])
    assert len(told) == 1
    assert await markers.clear(7, 1)
    assert len(told) == 1
    ours.lose_session()
    await store.expire_session(ours.session_id)
    ours.begin_session()  # what happened meanwhile was not told
    assert len(told) > 1
    del told[:]
    watch.close()
    await markers.mark(8, ["b1"])
    assert told == []
