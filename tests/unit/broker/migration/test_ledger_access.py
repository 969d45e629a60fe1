"""Ledgers that a swap makes, with bookies and a metadata store in memory."""

from magnetar.bookkeeper.ledgers import PENDING_BYTES_MAX, Ledgers
from magnetar.broker.migration.ledger_access import MARK, BookKeeperAccess
from tests.unit.bookkeeper.replication.cluster import Cluster, virtual


def test_ledgers_are_found_by_their_mark() -> None:
    async def scenario() -> None:
        async with Cluster() as cluster:
            ledgers = Ledgers(cluster.store, cluster.client, PENDING_BYTES_MAX)
            access = BookKeeperAccess(ledgers, recover=True)
            await cluster.write(1)  # a ledger of others
            made = [
                await access.create([b"x"], {MARK: mark}) for mark in (b"a", b"b", b"a", b"\xff")
            ]
            gone = await access.create([b"x"], {MARK: b"a"})
            await access.delete([gone])
            assert await access.marked({"a", "c"}) == {made[0]: "a", made[2]: "a"}
            assert await access.marked({"b"}) == {made[1]: "b"}

    virtual(scenario)
