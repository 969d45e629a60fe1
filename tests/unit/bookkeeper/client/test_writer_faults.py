"""Faults of writers and clients, of docs/spec/storage.md, "Faults", through the real shells.

``test_tables.py`` says which fault is tested where. A writer that crashed is one whose object is
never touched again, while what it has sent may still arrive.
"""

import asyncio

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_writer import LedgerWriter
from magnetar.bookkeeper.client.pending_adds import SendAdds
from magnetar.bookkeeper.errors import LedgerError, LedgerFencedError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.errors import OutcomeUnknownError
from magnetar.metadata.store import Versioned
from tests.simulation.model_bookie import ModelBookieClient
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import (
    batch,
    created,
    payload_bytes,
    read_all,
    write,
    written,
)
from tests.unit.bookkeeper.client.test_replica_reads import members

THREE = LedgerConfig(3, 3, 2)


class _Deaf(LedgerWriter):
    """No answer reaches it."""

    __slots__ = ()

    def on_add_done(self, request: SendAdds, code: int) -> None:
        return


def crash(writer: AsyncLedgerWriter) -> None:
    """It runs no more: no answer reaches its core, no task of it goes on."""
    writer._core.__class__ = _Deaf
    writer._run = lambda: None  # type: ignore[method-assign]
    for task in (writer._change, *writer._tasks):
        if task is not None:
            task.cancel()


def hold(clients: list[ModelBookieClient]) -> None:
    for client in clients:
        client.hold_adds = True


class OnTheWay:
    """Adds that were held and may be delivered later; those of others pass them by."""

    def __init__(self, client: ModelBookieClient) -> None:
        self._client = client
        self._requests, client._held = client._held, []
        client.hold_adds = False

    def arrive(self) -> None:
        for request in self._requests:
            self._client._answer(request)


async def recovered(cluster: Cluster, ledger_id: int) -> int:
    """Entries of the ledger after recovery, every byte checked."""
    return await read_all(cluster, ledger_id, recover=True)


# ---- 1: a crash around the sends of an entry


@pytest.mark.parametrize("arrived", range(4))
async def test_crash_after_an_entry_reached_some_bookies(cluster: Cluster, arrived: int) -> None:
    """None of it was acknowledged, so both ends are right; but all must agree on one."""
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 5)
    clients = members(cluster, writer)
    hold(clients)
    writer.append(*batch(5, 2))
    crash(writer)
    adds = [OnTheWay(client) for client in clients]
    for add in adds[:arrived]:
        add.arrive()
    count = await recovered(cluster, writer.ledger_id)
    assert count == 5 or (arrived and count == 7)
    for add in adds[arrived:]:
        add.arrive()  # the ledger is closed by now
    assert await recovered(cluster, writer.ledger_id) == count


async def test_crash_after_the_quorum_before_anybody_was_told(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    told: list[int] = []
    writer.on_confirmed = told.append
    writer.append(*batch(0, 3))
    await eventually(lambda: writer.last_confirmed == 2)
    crash(writer)
    assert await recovered(cluster, writer.ledger_id) == 3


@pytest.mark.parametrize("down", range(3))
async def test_crash_before_the_next_entry_carried_the_lac(cluster: Cluster, down: int) -> None:
    """No bookie knows that the last entries were confirmed, and one bookie is gone."""
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    told: list[int] = []
    writer.on_confirmed = told.append
    writer.append(*batch(0, 3))
    await eventually(lambda: told == [2])
    crash(writer)
    members(cluster, writer)[down].bookie.up = False
    assert await recovered(cluster, writer.ledger_id) == 3


# ---- 2: a crash in an ensemble change


@pytest.mark.parametrize("step", ["before the write", "before any re-send", "amid re-sends"])
async def test_crash_in_an_ensemble_change(
    cluster: Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was confirmed is kept, whatever the metadata says of the segment that came next."""
    cluster.add_bookies(4)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 5)
    clients = members(cluster, writer)
    (spare,) = (c for c in cluster.clients.values() if c not in clients)
    spare.hold_adds = True
    hold(clients[1:])
    writer.append(*batch(5, 1))
    writer.append(*batch(6, 1))
    put, reached = cluster.store.put, asyncio.Event()

    async def crash_at_the_put(*args: object, **options: object) -> Versioned:
        if step == "before the write":
            reached.set()
            crash(writer)
            await asyncio.get_running_loop().create_future()
        stored = await put(*args, **options)  # type: ignore[arg-type]
        reached.set()
        if step == "before any re-send":
            crash(writer)
            await asyncio.get_running_loop().create_future()
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "put", crash_at_the_put)
        clients[0].bookie.up = False
        writer.append(*batch(7, 1))
        await reached.wait()
        if step == "amid re-sends":
            await eventually(lambda: len(spare._held) == 3)
            del spare._held[1:]  # the others were never sent
            crash(writer)
            spare.release()
    metadata = (await cluster.client.ledgers.require(writer.ledger_id)).metadata
    assert len(metadata.segments) == (1 if step == "before the write" else 2)
    OnTheWay(clients[1]).arrive()
    late = [OnTheWay(client) for client in (clients[2], spare)]
    clients[0].bookie.up = True
    count = await recovered(cluster, writer.ledger_id)
    assert 5 <= count <= 8
    for add in late:
        add.arrive()
    assert await recovered(cluster, writer.ledger_id) == count


# ---- 3: a crash, or a lost answer, in close


@pytest.mark.parametrize("happened", [True, False])
async def test_crash_in_close(cluster: Cluster, happened: bool) -> None:
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 5)
    hold(members(cluster, writer))
    writer.append(*batch(5, 3))
    if happened:
        await writer.close()
    crash(writer)
    adds = [OnTheWay(client) for client in members(cluster, writer)]
    adds[0].arrive()
    count = await recovered(cluster, writer.ledger_id)
    assert count == 5 or (not happened and count == 8)


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("recovered_meanwhile", [True, False])
async def test_the_answer_to_close_is_lost(
    cluster: Cluster, happened: bool, recovered_meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 5)
    put = cluster.store.put

    async def lose(path: str, *args: object, **options: object) -> Versioned:
        monkeypatch.setattr(cluster.store, "put", put)
        if happened:
            await put(path, *args, **options)  # type: ignore[arg-type]
        if recovered_meanwhile:
            await cluster.client.open_ledger(writer.ledger_id, recover=True)
        raise OutcomeUnknownError(path)

    monkeypatch.setattr(cluster.store, "put", lose)
    metadata = await writer.close()  # the same end, whoever wrote it
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 4)
    assert metadata.length == payload_bytes(5)


# ---- 4, 7: what arrives late


async def test_a_writer_that_sleeps_over_a_recovery(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    told: list[int] = []
    failed: list[LedgerError] = []
    writer.on_confirmed, writer.on_failed = told.append, failed.append
    await write(writer, 5)
    await eventually(lambda: told[-1:] == [4])
    clients = members(cluster, writer)
    hold(clients)
    writer.append(*batch(5, 3))
    adds = [OnTheWay(client) for client in clients]
    adds[2].arrive()  # one copy, answered OK
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    end = reader.last_confirmed
    assert end in (4, 7)
    for add in adds[:2]:
        add.arrive()
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], LedgerFencedError)
    assert told[-1] == 4
    with pytest.raises(LedgerFencedError):
        writer.append(*batch(8, 1))
    with pytest.raises(LedgerFencedError):
        await writer.close()
    assert (await cluster.client.open_ledger(writer.ledger_id, recover=True)).last_confirmed == end


async def test_an_add_that_timed_out_but_was_stored(cluster: Cluster) -> None:
    """The bookie counts as failed and is replaced; late copies and repeats change nothing."""
    writer = await written(cluster, LedgerConfig(3, 3, 3), 3, bookies=4)
    slow = members(cluster, writer)[1]
    slow.hold_adds = True
    writer.append(*batch(3, 1))
    (late,) = slow._held
    late.done(late, codes.UNAVAILABLE)  # what the transport says when time is up
    await eventually(lambda: writer.last_confirmed == 3)
    assert slow not in members(cluster, writer)
    slow.release()  # stored after all, and answered a second time
    await write(writer, 6)
    assert [segment.first_entry for segment in writer.metadata.segments] == [0, 3]
    await cluster.client.open_ledger(writer.ledger_id, recover=True)
    again: list[int] = []
    repeat = AddRequest(
        *(late.ledger_id, late.master_key, late.entry_ids, late.heads, late.bodies),
        *(late.body_bytes, late.recovery, lambda _, code: again.append(code)),
    )
    for client in members(cluster, writer):
        client.add_entries(repeat)  # delivered again, now that all is fenced
    await eventually(lambda: len(again) == 3)
    assert set(again) == {codes.FENCED}
    assert await recovered(cluster, writer.ledger_id) == 6


# ---- 5: several bookies fail


@pytest.mark.parametrize("together", [True, False])
async def test_two_of_three_bookies_fail(cluster: Cluster, together: bool) -> None:
    cluster.add_bookies(5)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 3)
    first, second, _ = members(cluster, writer)
    first.bookie.up = False
    if together:
        second.bookie.up = False
    writer.append(*batch(3, 1))
    second.bookie.up = False
    await write(writer, 9)
    assert not {first, second} & set(members(cluster, writer))
    assert writer.metadata.segments[-1].first_entry == 3
    await writer.close()
    assert await read_all(cluster, writer.ledger_id) == 9


# ---- 8: throttling, and a bookie that turns read-only


@pytest.mark.parametrize("code", [codes.TOO_MANY_REQUESTS, codes.READ_ONLY, codes.IO_ERROR])
async def test_refusals_in_the_middle_of_writing(cluster: Cluster, code: int) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 3), bookies=4)
    await write(writer, 10, per_append=1)
    refusing = members(cluster, writer)[0]
    refusing.bookie.refuse_adds = code
    await write(writer, 30, per_append=1)
    assert refusing not in members(cluster, writer)
    assert len(writer.metadata.segments) == 2
    await writer.close()
    assert await read_all(cluster, writer.ledger_id) == 30


async def test_a_storm_of_refusals_ends_the_writer_and_loses_nothing(cluster: Cluster) -> None:
    """Everybody refuses: the writer gives up instead of asking for ever, the ledger is closed."""
    cluster.add_bookies(5)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 5)
    for bookie in cluster.bookies.values():
        bookie.refuse_adds = codes.TOO_MANY_REQUESTS
    writer.append(*batch(5, 3))
    await eventually(lambda: writer.error is not None)
    assert len(writer.metadata.segments) <= 2
    assert (await writer.close()).last_entry == 4
    for bookie in cluster.bookies.values():
        bookie.refuse_adds = codes.OK
    assert await read_all(cluster, writer.ledger_id) == 5


# ---- 10: a failure after the ack, then silence, then another loss


async def test_a_late_failure_of_an_idle_writer_and_then_another_loss(cluster: Cluster) -> None:
    """Two copies of three; one of them is lost: the last one must not be outvoted."""
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(THREE)
    await write(writer, 3)
    first, second, third = members(cluster, writer)
    third.hold_adds = True
    writer.append(*batch(3, 1))
    await eventually(lambda: writer.last_confirmed == 3)
    for late in third._held:
        late.done(late, codes.UNAVAILABLE)  # after the quorum: only remembered
    OnTheWay(third)  # and they never arrive
    crash(writer)
    second.bookie.lose_disk()
    assert await recovered(cluster, writer.ledger_id) == 4
    assert 3 in first.bookie.ledgers[writer.ledger_id].entries
    assert 3 in third.bookie.ledgers[writer.ledger_id].entries  # written again
