"""Where an open ledger ends, for a client that isn't its writer (docs/spec/storage.md: L6, L8)."""

import asyncio
import gc

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig, SpeculationConfig
from magnetar.bookkeeper.client.ledger_reader import LedgerReader
from magnetar.bookkeeper.errors import BookieUnavailableError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.bookkeeper.transport import LacReply
from magnetar.metadata.errors import StoreUnreachableError
from tests.simulation.model_bookie import ModelBookieClient
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import batch, entries, write
from tests.unit.bookkeeper.client.test_replica_reads import configure, members

LONG = 30.0
QUICK = SpeculationConfig(1, 1)
THREE = LedgerConfig(3, 3, 2)


async def open_tail(
    cluster: Cluster, quorums: LedgerConfig = THREE, count: int = 10
) -> tuple[AsyncLedgerWriter, LedgerReader]:
    """A writer, and a reader that isn't its own and knows as much as can be known."""
    writer = await cluster.client.create_ledger(quorums)
    if count:
        await write(writer, count)
    return writer, await cluster.client.open_ledger(writer.ledger_id, recover=False)


async def append(writer: AsyncLedgerWriter, count: int = 1) -> int:
    """More entries, confirmed; the last id."""
    last = writer.next_entry + count - 1
    writer.append(*batch(writer.next_entry, count))
    await eventually(lambda: writer.last_confirmed == last)
    return last


def start_wait(reader: LedgerReader, above: int, seconds: float = LONG) -> asyncio.Task[int]:
    return asyncio.create_task(reader.wait(above, seconds))


async def is_parked(client: ModelBookieClient, above: int) -> None:
    await eventually(lambda: above in client.polls)


# ---- one look


async def test_a_look_needs_one_bookie_that_answers(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    last = await append(writer)
    for client in members(cluster, writer)[:2]:
        client.bookie.up = False
    await reader.refresh()
    assert reader.last_confirmed == last - 1
    members(cluster, writer)[2].bookie.up = False
    with pytest.raises(BookieUnavailableError):
        await reader.refresh()


async def test_a_corrupt_answer_proves_nothing(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer, reader = await open_tail(cluster, LedgerConfig())
    last = await append(writer)
    cluster.bookies["b0"].corrupt(writer.ledger_id, last)
    with pytest.raises(BookieUnavailableError):
        await reader.refresh()


async def test_the_writers_own_reader_asks_nobody(cluster: Cluster) -> None:
    cluster.add_bookies(1)
    writer = await cluster.client.create_ledger(LedgerConfig())
    reader = writer.reader()
    waiting = start_wait(reader, -1)
    last = await append(writer, 3)
    assert await waiting == last
    assert await reader.wait(last, 0.001) == last
    waiting = start_wait(reader, last)
    await asyncio.sleep(0)
    await writer.close()
    assert await waiting == last
    await reader.refresh()
    assert not cluster.clients["b0"].polls


# ---- waiting


async def test_the_next_add_wakes_and_brings_the_entry(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster, count=10)
    bound = reader.last_confirmed
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[(9 + 1) % 3], 9)
    await append(writer)  # carries 9, which the reader need not have known
    await append(writer)  # carries 10
    assert await waiting == 10
    assert bound <= 9
    for client in members(cluster, writer):
        client.reads.clear()
    run = await reader.read(10, 10, 1 << 20)
    assert run.bodies == entries(10, 1)
    assert not any(client.reads for client in members(cluster, writer))  # it came with the news
    run = await reader.read(10, 10, 1 << 20)
    assert run.bodies == entries(10, 1)
    assert sum(len(client.reads) for client in members(cluster, writer)) == 1


async def test_a_corrupt_entry_that_came_along_is_read_again(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    waiting = start_wait(reader, 9)
    asked = members(cluster, writer)[(9 + 1) % 3]
    await is_parked(asked, 9)
    await append(writer)
    asked.bookie.corrupt(writer.ledger_id, 10)
    for _ in range(2):
        await append(writer)
    assert await waiting >= 10
    run = await reader.read(10, 10, 1 << 20)
    assert run.bodies == entries(10, 1)


async def test_an_explicit_lac_wakes(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster, count=10)
    waiting = start_wait(reader, 8)
    first = members(cluster, writer)[0]
    await is_parked(first, 8)
    await first.write_lac(writer.ledger_id, 9, master_key=bytes(20))
    assert await waiting == 9


async def test_close_wakes(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[1], 9)
    await writer.close()
    assert await waiting == 9
    assert reader.is_closed
    assert await reader.wait(9, LONG) == 9  # at once


async def test_a_recovery_by_another_client_wakes(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[1], 9)
    recovered = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert await waiting == recovered.last_confirmed == 9
    assert reader.metadata.state is LedgerState.CLOSED


async def test_what_happens_between_two_waits_is_seen(cluster: Cluster) -> None:
    """A tail that was busy reading when the ledger was closed must not wait for its timeout."""
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await reader.wait(9, LONG)
    await writer.close()
    async with asyncio.timeout(60):
        assert await reader.wait(9, LONG) == 9
    assert reader.is_closed


async def test_what_happened_before_the_first_wait_is_seen(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    await writer.close()
    async with asyncio.timeout(60):
        assert await reader.wait(9, LONG) == 9
    assert reader.is_closed


async def test_a_poll_without_an_answer_does_not_prolong_a_wait(cluster: Cluster) -> None:
    """L8: one bookie hangs; the others say that nothing came."""
    cluster.add_bookies(3)
    configure(cluster, lac_speculation=SpeculationConfig(0))
    writer, reader = await open_tail(cluster)

    async def hang(*_args: object, creator: int) -> LacReply:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    members(cluster, writer)[10 % 3].wait_lac = hang  # type: ignore[method-assign,assignment]
    async with asyncio.timeout(LONG):
        assert await reader.wait(9, 0.02) <= 9


async def test_deletion_wakes(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[1], 9)
    await cluster.client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await waiting


async def test_a_wait_follows_an_ensemble_change(cluster: Cluster) -> None:
    """All members are replaced: the old ones never hear of the ledger again."""
    cluster.add_bookies(6)
    writer, reader = await open_tail(cluster)
    old = members(cluster, writer)
    waiting = start_wait(reader, 12)
    await is_parked(old[13 % 3], 12)
    for client in old:
        client.bookie.refuse_adds = codes.READ_ONLY
    for _ in range(5):
        await append(writer)
    assert await waiting == 13
    assert not set(old) & set(members(cluster, writer))


async def test_polls_spread_so_that_one_deaf_bookie_does_not_matter(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, lac_speculation=QUICK)
    writer, reader = await open_tail(cluster)
    deaf = members(cluster, writer)[10 % 3]  # asked first, and cut off from the writer
    deaf.hold_adds = True
    waiting = start_wait(reader, 9)
    await is_parked(deaf, 9)
    await append(writer)
    await append(writer)
    assert await waiting == 10


async def test_polls_do_not_spread_at_once(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, lac_speculation=SpeculationConfig(60_000, 60_000))
    writer, reader = await open_tail(cluster)
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[10 % 3], 9)
    for _ in range(20):
        await asyncio.sleep(0)
    assert sum(len(client.polls) for client in members(cluster, writer)) == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_failing_bookie_is_replaced_by_the_next_at_once(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    configure(cluster, lac_speculation=SpeculationConfig(60_000, 60_000))
    writer, reader = await open_tail(cluster)
    members(cluster, writer)[10 % 3].bookie.up = False
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[11 % 3], 9)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("spread", [SpeculationConfig(60_000, 60_000), QUICK])
async def test_nothing_new_is_said_by_enough_bookies(
    cluster: Cluster, spread: SpeculationConfig
) -> None:
    """L8: a wait ends by its timeout, whether the polls had spread by then or not."""
    cluster.add_bookies(3)
    configure(cluster, lac_speculation=spread)
    writer, reader = await open_tail(cluster)
    async with asyncio.timeout(LONG):
        assert await reader.wait(9, 0.05) <= 9
    members(cluster, writer)[0].bookie.up = False
    async with asyncio.timeout(LONG):
        assert await reader.wait(9, 0.05) <= 9  # two of three are enough
    members(cluster, writer)[1].bookie.up = False
    async with asyncio.timeout(LONG):
        with pytest.raises(BookieUnavailableError):
            await reader.wait(9, 0.05)


async def test_no_news_from_one_is_not_the_last_word(cluster: Cluster) -> None:
    """The bookie that was asked knows of nothing new, two others do: the wait finds it."""
    cluster.add_bookies(3)
    configure(cluster, lac_speculation=SpeculationConfig(60_000, 60_000))
    writer, reader = await open_tail(cluster)
    members(cluster, writer)[10 % 3].hold_adds = True
    await append(writer)
    await append(writer)
    assert await reader.wait(9, 0.05) == 10


async def test_all_bookies_come_back(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    for client in members(cluster, writer):
        client.bookie.up = False
    waiting = start_wait(reader, 8)
    for _ in range(20):
        await asyncio.sleep(0)
    for client in members(cluster, writer):
        client.bookie.up = True
    await append(writer)
    assert await waiting == 9


async def test_a_store_that_is_away_does_not_stop_a_tail(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_bookies(3)
    writer, reader = await open_tail(cluster)
    waiting = start_wait(reader, 9)
    await is_parked(members(cluster, writer)[1], 9)

    async def away(_path: str) -> None:
        raise StoreUnreachableError(_path, "away")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "get", away)
        # A poll that ends early makes the reader look at the metadata, in vain.
        for client in members(cluster, writer):
            client.bookie.fence(writer.ledger_id, bytes(20))
            client.wake_polls()
        await eventually(lambda: sum(len(c.polls) for c in members(cluster, writer)) > 1)
        await members(cluster, writer)[1].write_lac(writer.ledger_id, 9, master_key=bytes(20))
        assert not waiting.done()
        for client in members(cluster, writer):
            await client.write_lac(writer.ledger_id, 10, master_key=bytes(20))
        assert await waiting == 10


async def test_a_lost_event_is_made_up_for_by_the_next_quiet_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_bookies(1)
    writer, reader = await open_tail(cluster, LedgerConfig())

    class Deaf:
        def close(self) -> None:
            return

    monkeypatch.setattr(cluster.store, "watch", lambda *_args: Deaf())
    await writer.close()
    assert await reader.wait(9, 0.01) == 9
    assert reader.is_closed


async def test_waits_leave_no_watch_behind(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_bookies(1)
    writer, reader = await open_tail(cluster, LedgerConfig())
    watches = closed = 0
    real = cluster.store.watch

    def watch(*args: object) -> object:
        nonlocal watches
        watches += 1
        made = real(*args)  # type: ignore[arg-type]
        close = made.close

        def count() -> None:
            nonlocal closed
            closed += 1
            close()

        made.close = count  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(cluster.store, "watch", watch)
    await reader.wait(9, 0.01)
    waiting = start_wait(reader, 9)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (watches, closed) == (1, 0)  # one for all waits of a reader
    reader.close()
    assert closed == 1
    await reader.wait(9, 0.01)
    assert (watches, closed) == (2, 1)
    del reader, waiting

    def is_forgotten() -> bool:
        gc.collect()
        return closed == 2

    await eventually(is_forgotten)  # nobody has the reader, once cancelled polls have ended
    cluster.clients["b0"].polls.clear()
    other = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    waiting = start_wait(other, 9)
    await is_parked(cluster.clients["b0"], 9)
    await writer.close()
    await waiting
    assert (watches, closed) == (3, 3)  # the end won't change
