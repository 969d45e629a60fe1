"""What a bookie that lost entries gets from a ledger's other bookies, and what that proves."""

from magnetar.bookkeeper.bookie.integrity.replica_source import EnsembleReplicaSource
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.packet import decode_header
from tests.simulation.model_bookie import ModelBookieClient
from tests.unit.bookkeeper.client.conftest import Cluster
from tests.unit.bookkeeper.client.conftest import cluster as cluster
from tests.unit.bookkeeper.client.test_client import write


async def three_copies(cluster: Cluster) -> tuple[AsyncLedgerWriter, EnsembleReplicaSource]:
    """Of five entries; what the first bookie of the ensemble asks the others with."""
    cluster.add_bookies(3)
    writer = await cluster.client.create_ledger(LedgerConfig(3, 3, 2))
    await write(writer, 5)

    async def never(*_: object) -> object:
        raise AssertionError("nobody asks for this")

    asker = writer.metadata.last_segment.bookies[0]
    source = EnsembleReplicaSource(
        *(asker, cluster.client.ledgers, cluster.pool, never, never)  # type: ignore[arg-type]
    )
    return writer, source


def others_of(cluster: Cluster, writer: AsyncLedgerWriter) -> list[ModelBookieClient]:
    return [cluster.clients[each] for each in writer.metadata.last_segment.bookies[1:]]


async def test_sound_packets_of_the_first_that_has_them(cluster: Cluster) -> None:
    writer, source = await three_copies(cluster)
    first, _ = others_of(cluster, writer)
    first.bookie.corrupt(writer.ledger_id, 2)
    found = await source.fetch(writer.metadata, 2, 5)
    assert first.reports == [(writer.ledger_id, 2)] * len(first.reads)
    assert [decode_header(packet)[1] for packet in found.packets] == [2, 3, 4]
    assert not found.absent


async def test_only_a_no_of_all_others_is_one(cluster: Cluster) -> None:
    writer, source = await three_copies(cluster)
    found = await source.fetch(writer.metadata, 5, 6)
    assert not found.packets
    assert found.absent
    assert found.reason.count("does not have it") == 2


async def test_who_does_not_answer_may_have_it(cluster: Cluster) -> None:
    writer, source = await three_copies(cluster)
    _, silent = others_of(cluster, writer)
    silent.bookie.up = False
    found = await source.fetch(writer.metadata, 5, 6)
    assert not found.absent
    assert f"{silent.bookie_id}: does not answer (UNAVAILABLE)" in found.reason
