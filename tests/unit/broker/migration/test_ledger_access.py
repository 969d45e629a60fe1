"""Ledgers that a swap makes, with bookies and a metadata store in memory."""

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
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


def test_an_open_ledger_is_ended_with_one_look_at_its_metadata_besides_recovery() -> None:
    """Ten thousand of them are ended in a row, and each look is a request."""

    async def scenario() -> None:
        async with Cluster() as cluster:
            ledgers = Ledgers(cluster.store, cluster.client, PENDING_BYTES_MAX)
            open_ = await ledgers.create(2, 2, 2, password=b"secret")
            await open_.append(b"x")
            looks = 0
            metadata = ledgers.metadata

            async def count(ledger_id: int) -> LedgerMetadata | None:
                nonlocal looks
                looks += 1
                return await metadata(ledger_id)

            ledgers.metadata = count  # type: ignore[method-assign]
            access = BookKeeperAccess(ledgers, recover=True)
            found = await access.end(open_.ledger_id)
            assert looks == 1
            assert found is not None
            assert (found.state, found.last_entry) == (LedgerState.CLOSED, 0)
            assert await access.end(open_.ledger_id) == found
            assert await access.end(open_.ledger_id + 99) is None

    virtual(scenario)
