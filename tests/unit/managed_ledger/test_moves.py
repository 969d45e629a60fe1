"""A topic moves between brokers: positions go on ascending."""

from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.position import Position
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Cluster, appended


async def test_positions_ascend_when_a_topic_moves_to_an_older_broker(cluster: Cluster) -> None:
    """Brokers reserve ledger ids in blocks: the older one's are lower (metadata.recipes)."""
    older, newer = cluster.factory(), cluster.factory()
    await append_one(older, "t/ns/persistent/other")
    first = await append_one(newer, NAME)
    second = await append_one(older, NAME)
    assert second > first


async def append_one(factory: ManagedLedgerFactory, name: str) -> Position:
    log = await factory.open(name, CONFIG)
    appends = await appended(log, b"x")
    await log.close()
    return appends.acked[0][0]
