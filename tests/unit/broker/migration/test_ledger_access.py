"""Ledgers that a swap makes, with bookies and a metadata store in memory."""

from magnetar.bookkeeper.ledgers import PENDING_BYTES_MAX, Ledgers
from magnetar.broker.migration.ledger_access import MARK, BookKeeperAccess
from magnetar.managed_ledger.orphan_ledgers import APPLICATION, APPLICATION_VALUE, COMPONENT
from tests.unit.bookkeeper.replication.cluster import Cluster, virtual


def test_ledgers_are_found_by_their_mark() -> None:
    async def scenario() -> None:
        async with Cluster() as cluster:
            ledgers = Ledgers(cluster.store, cluster.client, PENDING_BYTES_MAX)
            access = BookKeeperAccess(ledgers, recover=True)
            await cluster.write(1)  # a ledger of others
            made = [
                await access.create(lambda _: [b"x"], {MARK: mark})
                for mark in (b"a", b"b", b"a", b"\xff")
            ]
            gone = await access.create(lambda _: [b"x"], {MARK: b"a"})
            await access.delete([gone])
            assert await access.marked({"a", "c"}) == {made[0]: "a", made[2]: "a"}
            assert await access.marked({"b"}) == {made[1]: "b"}

    virtual(scenario)


def test_a_ledger_is_protected_as_those_of_its_kind_are() -> None:
    """Pulsar's ledgers of schemas have another password than those of topics."""

    async def scenario() -> None:
        async with Cluster() as cluster:
            ledgers = Ledgers(cluster.store, cluster.client, PENDING_BYTES_MAX)
            access = BookKeeperAccess(ledgers, recover=True)
            passwords = {b"schema": b"", b"managed-ledger": b"secret"}
            for component, password in passwords.items():
                custom = {APPLICATION: APPLICATION_VALUE, COMPONENT: component}
                made = await ledgers.create(2, 2, 2, password=password, custom_metadata=custom)
                await made.close()
            for component, password in passwords.items():
                found = await access.metadata(
                    await access.create(lambda _: [b"x"], {COMPONENT: component})
                )
                assert found is not None
                assert found.password == password

    virtual(scenario)
