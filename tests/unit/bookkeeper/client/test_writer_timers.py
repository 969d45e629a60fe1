"""Explicit LAC, force and quorum timeout through the writer's shell."""

import asyncio

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig, WriteConfig
from magnetar.bookkeeper.errors import (
    AddQuorumTimeoutError,
    LedgerError,
    LedgerFencedError,
    NoSuchEntryError,
    WriteFailedError,
)
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import (
    batch,
    created,
    entries,
    payload_bytes,
    read_all,
    write,
)

LONG = 30.0


def is_waiting(writer: AsyncLedgerWriter) -> bool:
    """It has a timer or a request for its explicit LAC."""
    return writer._lac is not None and writer._lac.is_waiting


def configure(cluster: Cluster, **changes: int) -> None:
    client = cluster.client
    cluster.client = BookKeeperClient(
        *(cluster.store, cluster.pool, client._placement),
        clock=lambda: 0,
        rng=client._rng,
        config=ClientConfig(writes=WriteConfig(**changes)),  # type: ignore[arg-type]  # fields by name
    )


# ---- explicit LAC (2.9)


async def test_an_idle_writer_tells_its_bookies_once(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, explicit_lac_interval_ms=5)
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    await write(writer, 10)
    told = [client.explicit_lacs for client in cluster.clients.values()]
    await eventually(lambda: told == [[9]] * 3)
    await eventually(lambda: not is_waiting(writer))
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_confirmed == 9
    await writer.close()
    assert told == [[9]] * 3


async def test_nothing_is_told_that_an_add_has_carried(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    configure(cluster, explicit_lac_interval_ms=20)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 1)
    client = cluster.clients["b0"]
    client.hold_adds = True
    writer.append(*batch(1, 1))  # carries 0
    await eventually(lambda: not is_waiting(writer))
    assert client.explicit_lacs == []
    client.release()
    await eventually(lambda: client.explicit_lacs == [1])


async def test_it_is_tried_again_until_an_ack_quorum_knows(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, explicit_lac_interval_ms=2)
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    await write(writer, 1)
    names = writer.metadata.last_segment.bookies
    for name in names[:2]:
        cluster.bookies[name].up = False
    one = cluster.clients[names[2]]
    await eventually(lambda: len(one.explicit_lacs) >= 3)
    cluster.bookies[names[0]].up = True
    await eventually(lambda: cluster.clients[names[0]].explicit_lacs == [0])
    await eventually(lambda: not is_waiting(writer))


@pytest.mark.parametrize("end", ["close", "fail"])
async def test_no_timer_outlives_the_writer(cluster: Cluster, end: str) -> None:
    cluster.add_bookies(1)
    configure(cluster, explicit_lac_interval_ms=60_000, add_quorum_timeout_ms=60_000)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 1)
    await eventually(lambda: is_waiting(writer))
    if end == "close":
        await writer.close()
    else:
        cluster.bookies["b0"].up = False
        writer.append(*batch(1, 1))
        await eventually(lambda: writer.error is not None)
        await eventually(lambda: not is_waiting(writer))
    assert not is_waiting(writer)
    assert writer._deadline_timer is None


async def test_off_there_is_no_timer(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 3)
    assert writer._lac is None
    assert writer._deadline_timer is None


# ---- quorum timeout


async def test_an_add_without_quorum_ends_the_writer(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, add_quorum_timeout_ms=30)
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    await write(writer, 5)
    failed: list[LedgerError] = []
    writer.on_failed = failed.append
    for client in list(cluster.clients.values())[:2]:
        client.hold_adds = True
    writer.append(*batch(5, 2))
    await eventually(lambda: bool(failed))
    assert isinstance(failed[0], AddQuorumTimeoutError)
    assert writer.last_confirmed == 4
    with pytest.raises(AddQuorumTimeoutError):
        writer.append(*batch(7, 1))
    assert (await writer.close()).last_entry == 4  # the end is the writer's to say


async def test_a_slow_copy_beyond_the_quorum_does_not_count(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, add_quorum_timeout_ms=20)
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    cluster.clients["b1"].hold_adds = True
    await write(writer, 5)
    await eventually(lambda: writer._deadline_timer is None)
    assert writer.error is None


# ---- deferred adds


async def test_written_then_forced_then_readable(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 2, deferred_sync=True))
    written: list[int] = []
    confirmed: list[int] = []
    writer.on_written, writer.on_confirmed = written.append, confirmed.append
    writer.append(*batch(0, 5))
    await eventually(lambda: written == [4])
    assert (confirmed, writer.last_confirmed) == ([], -1)
    with pytest.raises(NoSuchEntryError):
        await writer.reader().read(0, 0, 100)
    assert await writer.force() == 4
    assert confirmed == [4]
    run = await writer.reader().read(0, 4, 1 << 20)
    assert run.bodies == entries(0, 5)
    assert await writer.force() == 4  # nothing new
    assert all(not b.ledgers[writer.ledger_id].unsynced for b in cluster.bookies.values())


async def test_many_forces_at_the_same_time(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(3, 2, 2, deferred_sync=True))
    forces: list[asyncio.Task[int]] = []
    for count in range(1, 6):
        writer.append(*batch(writer.next_entry, 3))
        await eventually(lambda count=count: writer.last_written == 3 * count - 1)
        forces.append(asyncio.create_task(writer.force()))
    async with asyncio.timeout(LONG):
        results = await asyncio.gather(*forces)
    assert all(result >= 3 * n - 1 for n, result in enumerate(results, 1))
    assert writer.last_confirmed == 14


async def test_a_power_cut_of_all_loses_what_was_not_forced_and_nothing_else(
    cluster: Cluster,
) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 2, deferred_sync=True))
    writer.append(*batch(0, 5))
    await eventually(lambda: writer.last_written == 4)
    await writer.force()
    writer.append(*batch(5, 5))
    await eventually(lambda: writer.last_written == 9)
    for bookie in cluster.bookies.values():
        bookie.power_cut()
    with pytest.raises(WriteFailedError):
        await writer.force()  # bookies that were started again vouch for nothing
    assert (await writer.close()).last_entry == 4
    assert await read_all(cluster, writer.ledger_id) == 5


async def test_entries_after_a_restart_do_not_cover_up_for_those_before(cluster: Cluster) -> None:
    """One of three copies was lost; the bookie takes new entries, and is asked about both."""
    writer = await created(cluster, LedgerConfig(3, 3, 3, deferred_sync=True))
    writer.append(*batch(0, 5))
    await eventually(lambda: writer.last_written == 4)
    cluster.bookies["b1"].power_cut()
    writer.append(*batch(5, 5))
    await eventually(lambda: writer.last_written == 9)
    with pytest.raises(WriteFailedError):
        await writer.force()
    assert writer.last_confirmed == -1


async def test_close_forces_before(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(2, 2, 2, deferred_sync=True))
    writer.append(*batch(0, 7))
    await eventually(lambda: writer.last_written == 6)
    metadata = await writer.close()
    assert (metadata.last_entry, metadata.length) == (6, payload_bytes(7))
    for bookie in cluster.bookies.values():
        bookie.power_cut()
    assert await read_all(cluster, writer.ledger_id) == 7


async def test_recovery_of_a_deferred_ledger_makes_found_entries_durable(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(3, 3, 2, deferred_sync=True))
    writer.append(*batch(0, 5))
    await eventually(lambda: writer.last_written == 4)
    await writer.force()
    writer.append(*batch(5, 2))
    await eventually(lambda: writer.last_written == 6)
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_confirmed == 6
    writer.append(*batch(7, 1))
    await eventually(lambda: isinstance(writer.error, LedgerFencedError))
    for bookie in cluster.bookies.values():
        bookie.power_cut()
    assert await read_all(cluster, writer.ledger_id) == 7


async def test_force_of_a_normal_writer_has_nothing_to_do(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    await write(writer, 3)
    assert await writer.force() == 2


async def test_a_bookie_that_raises_fails_the_force(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig(deferred_sync=True))
    writer.append(*batch(0, 1))
    await eventually(lambda: writer.last_written == 0)
    cluster.bookies["b0"].up = False
    with pytest.raises(WriteFailedError, match=codes.code_name(codes.UNAVAILABLE)):
        await writer.force()
