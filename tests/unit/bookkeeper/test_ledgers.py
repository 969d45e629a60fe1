"""Ledgers as a library: single entries, bounded memory, honest errors."""

import asyncio
from pathlib import Path

import pytest

from magnetar.bookkeeper.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
)
from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.metadata.errors import MetadataError
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.conftest import cluster as cluster  # a fixture


@pytest.fixture
def ledgers(cluster: Cluster) -> Ledgers:
    cluster.add_bookies(4)
    return Ledgers(cluster.store, cluster.client, pending_bytes_max=1000)


async def test_what_was_appended_is_read_back_in_order(ledgers: Ledgers) -> None:
    ledger = await ledgers.create()
    assert await ledger.append(b"zero") == 0
    assert await ledger.append_all([b"one", b"", b"three"]) == range(1, 4)
    assert await asyncio.gather(*(ledger.append(b"%d" % n) for n in range(4, 10))) == [
        *range(4, 10)
    ]
    assert await ledger.view().read(0, 3) == [b"zero", b"one", b"", b"three"]
    assert await ledger.close() == 9
    view = await ledgers.open(ledger.ledger_id)
    assert (view.is_closed, view.last_confirmed) == (True, 9)
    assert [entry async for _, entry in view.entries(3)] == [
        b"three",
        *(b"%d" % number for number in range(4, 10)),
    ]
    with pytest.raises(NoSuchEntryError):
        await view.read(9, 10)


async def test_an_open_ledger_is_watched_without_disturbing_its_writer(ledgers: Ledgers) -> None:
    ledger = await ledgers.create()
    view = await ledgers.open(ledger.ledger_id, recover=False)
    assert (view.is_closed, view.last_confirmed) == (False, -1)
    await ledger.append(b"a")
    await ledger.append(b"b")
    assert await view.refresh() == 0  # b told that a is confirmed; nobody told of b
    await ledger.append(b"c")
    assert await view.refresh() == 1
    await ledger.close()
    assert await view.refresh() == 2
    assert view.is_closed


async def test_opening_with_recovery_takes_the_ledger_over(ledgers: Ledgers) -> None:
    ledger = await ledgers.create()
    await ledger.append_all([b"a", b"b"])
    view = await ledgers.open(ledger.ledger_id)
    assert (view.is_closed, view.last_confirmed) == (True, 1)
    with pytest.raises(LedgerFencedError):
        await ledger.append(b"late")
    with pytest.raises(LedgerFencedError):
        await ledger.append(b"later")  # and again for whoever doesn't listen
    assert [entry async for _, entry in view.entries()] == [b"a", b"b"]


async def test_appends_wait_for_room_in_the_order_of_their_calls(
    ledgers: Ledgers, cluster: Cluster
) -> None:
    ledger = await ledgers.create()
    for bookie in cluster.clients.values():
        bookie.hold_adds = True
    sizes = [600, 600, 600, 1, 1]
    tasks = [asyncio.create_task(ledger.append(b"x" * size)) for size in sizes]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sent = sum(len(bookie.requests) for bookie in cluster.clients.values())
    assert sent == 2 * 3  # the second went out while there was room; the third has to wait
    tasks[2].cancel()  # its place goes to the next
    for bookie in cluster.clients.values():
        bookie.release()
    ids = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ids.pop(2), asyncio.CancelledError)
    assert ids == [0, 1, 2, 3]
    assert await ledger.view().read(0, 3) == [b"x" * 600, b"x" * 600, b"x", b"x"]


async def test_closing_fails_what_is_still_on_its_way(ledgers: Ledgers, cluster: Cluster) -> None:
    ledger = await ledgers.create()
    await ledger.append(b"a")
    for bookie in cluster.clients.values():
        bookie.hold_adds = True
    tasks = [asyncio.create_task(ledger.append(b"b" * 600)) for _ in range(4)]
    await asyncio.sleep(0)
    assert await ledger.close() == 0
    assert all(
        isinstance(each, LedgerClosedError)
        for each in await asyncio.gather(*tasks, return_exceptions=True)
    )
    with pytest.raises(LedgerError):
        await ledger.append(b"c")


async def test_errors_name_what_is_wrong(ledgers: Ledgers) -> None:
    with pytest.raises(NotEnoughBookiesError):
        await ledgers.create(5, 3, 2)
    with pytest.raises(ValueError, match="E >= Qw >= Qa"):
        await ledgers.create(2, 3, 2)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.open(77)
    ledger = await ledgers.create(password=b"secret")
    with pytest.raises(UnauthorizedAccessError):
        await ledgers.open(ledger.ledger_id)
    with pytest.raises(ValueError, match="no entries"):
        await ledger.append_all([])


async def test_ledgers_are_listed_and_deleted(ledgers: Ledgers) -> None:
    made = [(await ledgers.create(custom_metadata={"n": b"1"})).ledger_id for _ in range(3)]
    assert [found async for found in ledgers.ids()] == made
    await ledgers.delete(made[1])
    await ledgers.delete(made[1])
    assert await ledgers.metadata(made[1]) is None
    kept = await ledgers.metadata(made[0])
    assert kept is not None
    assert kept.custom_metadata == {"n": b"1"}
    assert [found async for found in ledgers.ids()] == [made[0], made[2]]


async def test_a_cancelled_caller_harms_nobody(ledgers: Ledgers, cluster: Cluster) -> None:
    ledger = await ledgers.create()
    for bookie in cluster.clients.values():
        bookie.hold_adds = True
    task = asyncio.create_task(ledger.append(b"a"))
    await asyncio.sleep(0)
    task.cancel()
    for bookie in cluster.clients.values():
        bookie.release()
    await eventually(lambda: ledger.last_confirmed == 0)
    assert await ledger.append(b"b") == 1


async def test_a_reader_waits_for_what_comes(ledgers: Ledgers) -> None:
    ledger = await ledgers.create()
    view = await ledgers.open(ledger.ledger_id, recover=False)
    waiting = asyncio.create_task(view.wait(-1, 30.0))
    await ledger.append(b"a")
    await ledger.append(b"b")
    assert await waiting == 0
    waiting = asyncio.create_task(view.wait(1, 30.0))
    await ledger.close()
    assert await waiting == 1  # there will never be more
    assert view.is_closed


async def test_the_library_logs_in_to_the_metadata_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no way to say how: only clusters open to everybody could be used."""
    seen: list[tuple[object, ...]] = []

    async def connect(*arguments: object, **_: object) -> None:
        seen.append(arguments)
        raise MetadataError("seen enough")

    monkeypatch.setattr("magnetar.bookkeeper.ledgers.connect_store", connect)
    with pytest.raises(MetadataError):
        async with connect_ledgers("zk:host:2181", metadata_config=tmp_path / "p"):
            pass
    assert seen == [("zk:host:2181", tmp_path / "p")]
