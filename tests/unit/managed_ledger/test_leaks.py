"""Ledgers that a crash left without a log."""

from __future__ import annotations

from bookkeeper.client.config import LedgerConfig
from managed_ledger.leaks import custom_metadata
from managed_ledger.position import EARLIEST
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Appends, Cluster, read_all


async def test_only_what_nobody_can_list_any_more_is_deleted(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    create = log.client.create_ledger
    appends = Appends(log)
    appends.send(b"a")
    await appends.settle()
    passed = await create(LedgerConfig(), custom_metadata(NAME))
    log._appends.core.rotate(0)  # type: ignore[union-attr]  # it has appended
    log._appends.run()  # type: ignore[union-attr]
    appends.send(b"b")
    await appends.settle()
    assert appends.acked[1][0][0] > passed.ledger_id
    newest = await create(LedgerConfig(), custom_metadata(NAME))  # may be listed any moment
    orphan = await create(LedgerConfig(), custom_metadata("t/ns/persistent/deleted"))
    foreign = await create(LedgerConfig(), {"component": b"something else"})
    assert await factory.collect_leaked_ledgers() == [passed.ledger_id, orphan.ledger_id]
    for kept in (newest, foreign):
        assert await log.client.read_ledger_metadata(kept.ledger_id) is not None
    assert await read_all(log) == appends.acked
    assert await factory.collect_leaked_ledgers() == []
