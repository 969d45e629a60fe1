"""The factory: one log of each name, sweeps, closing."""

import asyncio
from dataclasses import replace

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerFormatError,
    ManagedLedgerNotFoundError,
    OpenFailedError,
)
from magnetar.managed_ledger.factory import ROOT
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataWriteError
from magnetar.metadata.store import CREATE_ONLY, Versioned
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
    read_all,
)


async def test_a_log_is_created_for_whoever_opens_it_first(cluster: Cluster) -> None:
    assert await cluster.factory().create(NAME)
    path = f"{ROOT}/{NAME}"
    created = await cluster.store.get(path)
    assert created is not None
    assert await cluster.factory().create(NAME)
    assert await cluster.store.get(path) == created
    log = await cluster.factory().open(NAME, replace(CONFIG, create_if_missing=False))
    appends = await appended(log, b"a")
    assert await cluster.factory().create(NAME)
    assert await read_all(log) == appends.acked != []


async def test_a_log_that_is_created_while_it_is_opened(cluster: Cluster) -> None:
    factory, opener = cluster.factory(), cluster.factory()
    put, created = cluster.sessions[1].put, list[bool]()

    async def late(path: str, value: bytes, version: int | None = None) -> Versioned:
        if not created:
            created.append(await factory.create(NAME))
        return await put(path, value, version)

    cluster.sessions[1].put = late  # type: ignore[method-assign,assignment]
    assert (await opener.open(NAME, CONFIG)).is_open
    assert created == [True]


async def test_a_log_that_is_being_deleted_is_not_created(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    cluster.sessions[0].delete = _refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(MetadataWriteError):
        await log.delete()
    assert not await cluster.factory().create(NAME)


async def test_what_makes_up_for_a_deletion_deletes_the_logs_that_go_with_it(
    cluster: Cluster,
) -> None:
    """No other one, however much its name is like theirs."""
    factory, names = cluster.factory(), [f"{NAME}-{each}" for each in ("a", "b", "c")]
    log = await factory.open(NAME, CONFIG)
    for each in names:
        assert await factory.create(each)

    async def fail() -> None:
        raise MetadataWriteError(NAME, OSError())

    with pytest.raises(MetadataWriteError):
        await log.delete({names[0]: lambda: factory.delete(names[0]), names[1]: fail})
    await log.close()
    assert [await factory.exists(each) for each in names] == [False, True, True]
    with pytest.raises(ManagedLedgerNotFoundError):
        await cluster.factory().open(NAME, CONFIG)
    assert [await factory.exists(each) for each in (NAME, *names)] == [False, False, False, True]


async def _refuse(path: str, version: int | None = None) -> None:
    raise MetadataWriteError(path, OSError())


async def test_an_open_log_is_shared_and_a_closed_one_replaced(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    assert await factory.open(NAME, CONFIG) is log
    assert factory.open_ledgers == {NAME: log}
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    again = await factory.open(NAME, CONFIG)  # waits for the close
    assert closing.done()
    assert again is not log
    await factory.close()
    assert factory.open_ledgers == {}
    with pytest.raises(ManagedLedgerClosedError):
        await factory.open(NAME, CONFIG)


async def test_a_fenced_log_is_replaced(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = await appended(log, b"a")
    other = await cluster.factory().open(NAME, CONFIG)
    await appends.stored(b"fenced")
    assert not log.is_owner
    back = await factory.open(NAME, CONFIG)
    assert back is not log
    assert log.state == "Fenced"
    assert await read_all(back) == appends.acked
    lost = await appended(other, b"b")
    assert lost.failed == 1


async def test_damaged_metadata_is_told_with_its_path(cluster: Cluster) -> None:
    await cluster.store.put(f"{ROOT}/{NAME}", b"garbage")
    with pytest.raises(ManagedLedgerFormatError, match=NAME):
        await cluster.factory().open(NAME, CONFIG)


async def test_a_listed_ledger_without_metadata_is_dropped(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, b"a")
    await log.client.delete_ledger(appends.acked[0][0][0])
    second = await cluster.factory().open(NAME, CONFIG)
    assert second.offsets.counts() == []
    assert await read_all(second) == []


async def test_a_bookie_that_forgot_a_ledger_is_not_believed(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    await appended(log, b"a")
    cluster.bookie.lose_disk()
    with pytest.raises(OpenFailedError):
        await cluster.factory().open(NAME, CONFIG)


async def test_sweep_closes_idle_old_ledgers_and_trims(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_age_max_ms=1000))
    appends = await appended(log, b"a")
    log.sweep(cluster.now_ms)
    assert log.state == "LedgerOpened"
    cluster.now_ms += 2000
    log.sweep(cluster.now_ms)
    await eventually(lambda: log.lists.info.ledgers[0].closed_ms > 0)
    assert log.state == "ClosedLedger"
    await appends.stored(b"b")
    assert await read_all(log) == appends.acked
    log.sweep(cluster.now_ms)
    await eventually(lambda: log.offsets.entry_count == 1)  # nobody needs the first ledger
    assert await read_all(log) == appends.acked[1:]


async def test_what_an_idle_log_retains_goes_in_time(cluster: Cluster) -> None:
    """Also its last ledger, however long nothing is written."""
    factory = cluster.factory()
    config = replace(CONFIG, ledger_age_max_ms=1000, retention_ms=5000, retention_bytes=-1)
    log = await factory.open(NAME, config)
    appends = await appended(log, b"a", b"b")
    cursor = await log.open_cursor("s", EARLIEST)
    cluster.now_ms += 2000
    await factory.sweep(cluster.now_ms)
    assert log.state == "ClosedLedger"
    cluster.now_ms += 6000
    await factory.sweep(cluster.now_ms)
    assert log.offsets.entry_count == 2  # a backlog
    cursor.ack_cumulative(appends.acked[-1][0])
    await factory.sweep(cluster.now_ms)
    assert (log.offsets.entry_count, log.state) == (0, "LedgerOpened")
    await appends.stored(b"c")
    assert await read_all(log) == appends.acked[2:]


async def test_a_sweep_replaces_few_last_ledgers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.factory._REPLACED_MAX", 2)
    monkeypatch.setattr("magnetar.managed_ledger.factory._STEPS", 1)
    factory = cluster.factory()
    logs = [
        await factory.open(f"{NAME}{n}", replace(CONFIG, ledger_age_max_ms=1000)) for n in range(5)
    ]
    for log in logs:
        await appended(log, b"a")
    cluster.now_ms += 2000
    states = []
    for _ in range(4):
        await factory.sweep(cluster.now_ms)
        states.append(sum(log.state == "LedgerOpened" for log in logs))
    assert states == [0, 2, 4, 5]


async def test_sweep_tries_failed_closes_again(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))
    await log.open_cursor("hold", EARLIEST)
    put = log.store.put
    is_down = True

    async def failing_put(
        path: str, value: bytes, expected_version: int | None = None
    ) -> Versioned:
        if (
            is_down
            and first >= 0
            and path == ledger_path(first)
            and expected_version != CREATE_ONLY
        ):
            raise MetadataWriteError(path, OSError("full"))
        return await put(path, value, expected_version)

    log.store.put = failing_put  # type: ignore[method-assign,assignment]  # one store's fault
    appends = Appends(log)
    first = -1
    await appends.stored(b"a")
    first = appends.acked[0][0][0]
    await appends.stored(b"b", b"c", b"d", b"e")
    second = appends.acked[2][0][0]
    await eventually(lambda: closed(log, second))
    log.sweep(cluster.now_ms)
    await asyncio.sleep(0.01)
    assert not closed(log, first)
    is_down = False
    log.sweep(cluster.now_ms)
    await eventually(lambda: closed(log, first))
    assert [x.entries for x in log.lists.info.ledgers] == [2, 2, 0]
    assert await read_all(log) == appends.acked


def closed(log: ManagedLedger, ledger_id: int) -> bool:
    return any(x.ledger_id == ledger_id and x.closed_ms for x in log.lists.info.ledgers)


async def test_timer_sweeps_the_cache(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = cluster.factory()
    factory._config = replace(factory._config, cache_sweep_s=0.001, ledger_sweep_s=0.002)
    sweep, was_empty = EntryCache.sweep, set[bool]()

    def noted_sweep(cache: EntryCache) -> None:
        was_empty.add(cache.is_empty)
        sweep(cache)

    monkeypatch.setattr(EntryCache, "sweep", noted_sweep)
    log = await factory.open(NAME, CONFIG)
    appends = await appended(log, b"a")
    await eventually(lambda: False in was_empty and factory.cache.is_empty)
    assert log.read_nowait(EARLIEST, 1, 1) is None
    assert await read_all(log) == appends.acked


async def test_closing_while_storage_is_down_ends_and_loses_nothing_acked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.closing.DRAIN_TIMEOUT_S", 0.05)
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = await appended(log, b"a")
    cluster.connections[-1].hold_adds = True
    appends.send(b"b")
    await log.close()
    assert appends.open == 0
    assert appends.failed == 1
    cluster.connections[-1].release()
    cluster.bookie.refuse_adds = codes.OK
    found = await read_all(await factory.open(NAME, CONFIG))
    assert found[:1] == appends.acked
