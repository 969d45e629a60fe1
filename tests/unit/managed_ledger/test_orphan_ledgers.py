"""Ledgers that a crash left without a log."""

from dataclasses import replace

import pytest

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.managed_ledger import ledger_rows
from magnetar.managed_ledger.orphan_ledgers import (
    COMPACTED_LEDGER,
    COMPACTION_CURSOR,
    OWNER,
    compacted_metadata,
    custom_metadata,
    read_owner,
)
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
    read_all,
)


async def test_only_what_nobody_can_list_any_more_is_deleted(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    await log.open_cursor("hold", EARLIEST)
    create = log.client.create_ledger
    appends = await appended(log, b"a")
    passed = await create(LedgerConfig(), custom_metadata(NAME))
    log.appends.core.rotate(0)  # type: ignore[union-attr]  # it has appended
    log.appends.run()  # type: ignore[union-attr]
    await appends.stored(b"b")
    assert appends.acked[1][0][0] > passed.ledger_id
    newest = await create(LedgerConfig(), custom_metadata(NAME))  # may be listed any moment
    orphan = await create(LedgerConfig(), custom_metadata("t/ns/persistent/deleted"))
    foreign = await create(LedgerConfig(), {"component": b"something else"})
    # As Apache Pulsar's brokers have it, which may be on the same bookies.
    name = b"t/ns/persistent/deleted"
    pulsars = {"application": b"pulsar", "component": b"managed-ledger"}
    of_pulsar = await create(LedgerConfig(), {**pulsars, "pulsar/managed-ledger": name})
    assert pulsars.items() < custom_metadata("x").items()
    assert await factory.collect_leaked_ledgers() == [passed.ledger_id, orphan.ledger_id]
    for kept in (newest, foreign, of_pulsar):
        assert await log.client.read_ledger_metadata(kept.ledger_id) is not None
    assert await read_all(log) == appends.acked
    assert await factory.collect_leaked_ledgers() == []


async def test_what_other_brokers_have_on_the_same_bookies_stays(cluster: Cluster) -> None:
    """Their logs are in another metadata store: here they look as if they had been deleted."""
    other = EmbeddedMetadataStore.open(None)
    ids = iter(["first", "second", "third"])
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    client = log.client
    theirs = []
    for owner in ({}, {OWNER: await read_owner(other, lambda: next(ids))}):
        client.custom_metadata = owner
        theirs.append(await client.create_ledger(LedgerConfig(), custom_metadata("t/ns/of/theirs")))
    ours = await read_owner(cluster.store, lambda: next(ids))
    assert ours == await read_owner(cluster.store, lambda: next(ids)) == b"second"
    client.custom_metadata = {OWNER: ours}
    orphan = await client.create_ledger(LedgerConfig(), custom_metadata("t/ns/of/ours"))
    assert await factory.collect_leaked_ledgers() == [orphan.ledger_id]
    for each in theirs:
        assert await client.read_ledger_metadata(each.ledger_id) is not None
    client.custom_metadata = {}  # whose bookies these are
    assert await factory.collect_leaked_ledgers() == [theirs[0].ledger_id]
    await other.close()


async def test_ledgers_of_a_chunk_are_listed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_rows, "TAIL_ROWS_MAX", 2)
    monkeypatch.setattr(ledger_rows, "CHUNK_ROWS", 2)
    factory = cluster.factory()
    log = await factory.open(NAME, replace(CONFIG, ledger_entries_max=1))
    await log.open_cursor("hold", EARLIEST)
    appends, passed = Appends(log), []
    for n in range(9):
        await appends.stored(b"%d" % n)
        passed.append(await log.client.create_ledger(LedgerConfig(), custom_metadata(NAME)))
    # The next ledger is listed and all before it are closed: the list stays as it is.
    await eventually(lambda: len(log.lists.info.ledgers) == 10)
    await eventually(lambda: all(x.closed_ms for x in log.lists.info.ledgers[:9]))
    chunk = log.lists.info.ledgers.segments[1]
    path = log.lists.chunks.path_of(chunk.name)
    stored = await cluster.store.get(path)
    assert stored is not None
    ids = {x.ledger_id for x in passed}
    in_chunk = ids & {*range(chunk[0].ledger_id, chunk[-1].ledger_id + 1)}
    await cluster.store.delete(path)  # as while the list changes: nobody can tell
    told = await factory.collect_leaked_ledgers()
    assert not {*told} & in_chunk
    assert in_chunk
    await cluster.store.put(path, stored.value)
    told += await factory.collect_leaked_ledgers()
    newest = {x for x in ids if x > log.lists.info.ledgers[-1].ledger_id}
    assert {*told} == ids - newest
    assert await read_all(log) == appends.acked
    for each in log.lists.info.ledgers.ids():
        assert await log.client.read_ledger_metadata(each) is not None


async def test_cursor_ledgers_that_no_node_will_ever_name(cluster: Cluster) -> None:
    """An owner dies between the creation of a cursor ledger and the write of its node."""
    first = await cluster.factory().open(NAME, CONFIG)
    cursor = await first.open_cursor("sub", EARLIEST)
    gone = await first.open_cursor("gone", EARLIEST)
    appends = await appended(first, b"a", b"b")
    for each in (cursor, gone):
        each.ack([appends.acked[0][0]])
        await each.flush()
    named = cursor.ledger_position[0]
    metadata = await first.client.read_ledger_metadata(named)
    assert metadata is not None
    begun = await first.client.create_ledger(LedgerConfig(), metadata.custom_metadata)
    metadata = await first.client.read_ledger_metadata(gone.ledger_position[0])
    assert metadata is not None
    orphan = await first.client.create_ledger(LedgerConfig(), metadata.custom_metadata)
    elder = await first.client.create_ledger(LedgerConfig(), {"component": b"cursor"})

    factory = cluster.factory()  # of anybody; the first owner may still write its nodes
    assert await factory.collect_leaked_ledgers() == []
    second = await factory.open(NAME, CONFIG)  # takes every node
    await second.delete_cursor("gone")
    assert await factory.collect_leaked_ledgers() == [begun.ledger_id, orphan.ledger_id]
    for kept in (named, elder.ledger_id):
        assert await second.client.read_ledger_metadata(kept) is not None
    third = await cluster.factory().open(NAME, CONFIG)
    assert third.cursors["sub"].mark_delete == appends.acked[0][0]


async def test_compacted_ledgers_that_no_cursor_will_ever_name(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)

    async def compacted(name: str) -> int:
        metadata = compacted_metadata(name, "persistent://t/ns/x", "0:0")
        return (await log.client.create_ledger(LedgerConfig(), metadata)).ledger_id

    cursor = await log.open_cursor(COMPACTION_CURSOR, EARLIEST)
    of_crash, named, newest = [await compacted(NAME) for _ in range(3)]
    assert await factory.collect_leaked_ledgers() == [], "no compaction has ended yet"
    await cursor.set_cursor_properties({COMPACTED_LEDGER: str(named)})
    deleted = await compacted("t/ns/persistent/deleted")
    assert await factory.collect_leaked_ledgers() == [of_crash, deleted]
    await log.delete_cursor(COMPACTION_CURSOR)
    assert await factory.collect_leaked_ledgers() == [named, newest]
