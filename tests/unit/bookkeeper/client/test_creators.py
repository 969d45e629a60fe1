"""Two ledgers that share an id: writers, recoveries and readers of the second one."""

from dataclasses import replace

import pytest

from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore, ledger_path
from magnetar.bookkeeper.errors import EntryDiffersError, LedgerRecoveryError, OtherCreatorError
from magnetar.bookkeeper.ledger_metadata import LedgerState, decode, encode
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, encode_head
from tests.simulation.model_bookie import ModelLedger
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import created

CONFIG = LedgerConfig(3, 3, 2)


async def write(writer: AsyncLedgerWriter, count: int, body: bytes = b"theirs") -> None:
    for _ in range(count):
        writer.append([b"head"], [body])
    await eventually(lambda: writer.last_confirmed == writer.next_entry - 1 or bool(writer.error))


async def reset_ids(cluster: Cluster, writer: AsyncLedgerWriter) -> None:
    """The store forgets the ledger, and that its id was given out."""
    await cluster.store.delete(ledger_path(writer.ledger_id))
    await cluster.store.delete("/ledgers/idgen")
    cluster.client.ledgers._ids = type(cluster.client.ledgers)(cluster.store)._ids


async def two_ledgers(
    cluster: Cluster, count: int = 10
) -> tuple[AsyncLedgerWriter, AsyncLedgerWriter]:
    cluster.add_bookies(3)
    first = await cluster.client.create_ledger(CONFIG)
    await write(first, count)
    await reset_ids(cluster, first)
    second = await cluster.client.create_ledger(CONFIG)
    assert second.ledger_id == first.ledger_id
    return first, second


async def test_the_second_writer_is_told_and_changes_nothing(cluster: Cluster) -> None:
    first, second = await two_ledgers(cluster)
    before = {name: dict(b.ledgers[first.ledger_id].entries) for name, b in cluster.bookies.items()}
    second.append([b"head"], [b"ours"])
    await eventually(lambda: second.error is not None)
    assert isinstance(second.error, OtherCreatorError)
    with pytest.raises(OtherCreatorError, match="two ledgers share the id"):
        second.append([b"head"], [b"ours"])
    closed = await second.close()
    assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, -1)
    after = {name: dict(b.ledgers[first.ledger_id].entries) for name, b in cluster.bookies.items()}
    assert after == before
    third = await cluster.client.create_ledger(CONFIG, above=second.ledger_id)
    await write(third, 1)
    assert third.last_confirmed == 0


async def test_a_recovery_finds_none_of_the_other_ledgers_entries(cluster: Cluster) -> None:
    first, second = await two_ledgers(cluster)
    reader = await cluster.client.open_ledger(second.ledger_id, recover=True)
    assert (reader.is_closed, reader.last_confirmed) == (True, -1)
    assert not any(b.is_fenced(first.ledger_id) for b in cluster.bookies.values())
    await write(first, 1)  # goes on as long as nothing else stops it
    assert first.last_confirmed == 10


@pytest.mark.parametrize("others", [1, 2])
async def test_a_recovery_counts_a_bookie_of_the_other_ledger_as_a_no(
    cluster: Cluster, others: int
) -> None:
    """Its own entries are on the rest; what was acknowledged stays."""
    writer = await created(cluster, LedgerConfig(3, 3, 3 - others))
    await write(writer, 5, b"ours")
    members = writer.metadata.last_segment.bookies
    for name in members[:others]:
        ledger = cluster.bookies[name].ledgers[writer.ledger_id]
        ledger.creator = writer.metadata.creator_token + 1
        for entry_id in ledger.entries:
            ledger.entries[entry_id] += b"!"
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_confirmed == 4
    run = await reader.read(0, 4, 1 << 20)
    assert [bytes(body) for body in run.bodies] == [b"headours"] * 5


async def test_a_recovery_does_not_decide_by_a_bookie_in_limbo(cluster: Cluster) -> None:
    _, second = await two_ledgers(cluster)
    for bookie in list(cluster.bookies.values())[:2]:
        bookie.limbo = True
    with pytest.raises(LedgerRecoveryError):
        await cluster.client.open_ledger(second.ledger_id, recover=True)


async def test_a_reader_takes_no_entry_of_the_other_ledger(cluster: Cluster) -> None:
    first, second = await two_ledgers(cluster)
    tail = await cluster.client.open_ledger(second.ledger_id, recover=False)
    assert tail.last_confirmed == -1
    stored = await cluster.store.get(ledger_path(second.ledger_id))
    assert stored is not None
    closed = replace(decode(stored.value), state=LedgerState.CLOSED, last_entry=9, length=100)
    await cluster.store.put(ledger_path(second.ledger_id), encode(closed))
    reader = await cluster.client.open_ledger(second.ledger_id, recover=False)
    with pytest.raises(Exception, match="entry 0"):
        await reader.read(0, 0, 1 << 20)
    assert first.last_confirmed == 9


async def test_handles_of_the_first_ledger_leave_the_seconds_metadata_alone(
    cluster: Cluster,
) -> None:
    """A node that was made anew has the version that the old one had."""
    first, second = await two_ledgers(cluster)
    reader = first.reader()
    tail = await cluster.client.open_ledger(second.ledger_id, recover=False)
    tail.creator = first.metadata.creator_token
    with pytest.raises(OtherCreatorError, match="restored"):
        await first.close()
    with pytest.raises(OtherCreatorError):
        await tail.refresh()
    found = await cluster.client.read_ledger_metadata(second.ledger_id)
    assert found is not None
    assert found.creator_token == second.metadata.creator_token
    assert found.state is LedgerState.OPEN
    assert (await reader.read(0, 9, 1 << 20)).first == 0  # what it has it may read


async def test_another_payload_ends_the_writer(cluster: Cluster) -> None:
    """Where nobody knows who made the first ledger, its entries stay all the same."""
    first, second = await two_ledgers(cluster)
    for bookie in cluster.bookies.values():
        bookie.ledgers[first.ledger_id].creator = 0
    second.append([b"head"], [b"ours"])
    await eventually(lambda: second.error is not None)
    assert isinstance(second.error, EntryDiffersError)
    assert all(b.payload(first.ledger_id, 0) == b"headtheirs" for b in cluster.bookies.values())


async def test_a_recovery_leaves_no_member_with_another_payload(cluster: Cluster) -> None:
    """Two bookies disagree about an entry, and nobody can replace one: that is no end to adopt."""
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(CONFIG)
    await write(writer, 5, b"ours")
    odd = writer.metadata.last_segment.bookies[2]
    held = writer.metadata.last_segment.bookies[:2]
    entries = cluster.bookies[odd].ledgers[writer.ledger_id].entries
    other = await cluster.client.create_ledger(CONFIG)
    await write(other, 5, b"theirs")
    source = cluster.bookies[odd].ledgers[other.ledger_id].entries[4]
    body = source[PACKET_HEADER_BYTES + 4 :]
    entries[4] = encode_head(writer.ledger_id, 4, 3, 50, b"head", body) + body
    for name in held:
        assert cluster.bookies[name].payload(writer.ledger_id, 4) == b"headours"
    with pytest.raises(LedgerRecoveryError):
        await cluster.client.open_ledger(writer.ledger_id, recover=True)
    cluster.add_bookies(1)  # who takes its place
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_confirmed == 4
    assert odd not in reader.metadata.last_segment.bookies


async def test_ids_that_are_in_use_are_skipped(cluster: Cluster) -> None:
    """Twice as many each time, for all processes: thousands of ledgers may be above the counter."""
    cluster.add_bookies(3)
    used = 5000
    for bookie in cluster.bookies.values():
        for ledger_id in range(used):
            bookie.ledgers[ledger_id] = ModelLedger(bytes(20), creator=7)
    attempts = 0
    while True:
        writer = await cluster.client.create_ledger(CONFIG)
        await write(writer, 1)
        attempts += 1
        if writer.error is None:
            break
        assert isinstance(writer.error, OtherCreatorError)
    assert writer.ledger_id >= used
    assert attempts <= 5
    assert await LedgerStore(cluster.store).ids_end() == writer.ledger_id + 1000


async def test_what_can_not_be_written_again_ends_the_ledger_if_it_was_never_confirmed(
    cluster: Cluster,
) -> None:
    """One of three bookies took an entry, the others hold the id's other ledger, and there is no
    fourth: recovery must not fail for ever.
    """
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(CONFIG)
    for name in list(cluster.bookies)[1:]:
        cluster.bookies[name].ledgers[writer.ledger_id] = ModelLedger(bytes(20), creator=7)
    writer.append([b"head"], [b"ours"])
    await eventually(lambda: writer.error is not None)
    taken = [b.payload(writer.ledger_id, 0) for b in cluster.bookies.values()]
    assert taken.count(b"headours") == 1
    for _ in range(2):
        reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
        assert reader.last_confirmed == -1
