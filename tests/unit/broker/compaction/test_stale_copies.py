"""A compacted ledger whose owner has crashed before it deleted it, with its copy."""

from dataclasses import replace

import pytest

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.ledger_handles import WriteHandle
from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.compaction_places import CompactionPlaces
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.managed_ledger.ledger_rows import LedgerInfo
from magnetar.managed_ledger.offload.config import OffloadConfig
from magnetar.managed_ledger.orphan_ledgers import COMPACTED_LEDGER, COMPACTION_CURSOR
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Appends, Cluster, eventually
from tests.unit.managed_ledger.offload_doubles import MemoryStore, memory_offloader

OFFLOAD = OffloadConfig("memory", (), threshold_bytes=0, deletion_lag_ms=0)


@pytest.mark.parametrize("is_current", [False, True])
async def test_the_next_owner_deletes_it(is_current: bool) -> None:
    cluster, store = Cluster(), MemoryStore()
    cluster.offloaders.append(memory_offloader(store))
    config = replace(CONFIG, offload=OFFLOAD)
    log = await cluster.factory().open(NAME, config)
    writer = await log.client.create_ledger(LedgerConfig(1, 1, 1, b""))
    handle = WriteHandle(writer, 1024)
    await handle.append_all([b"entry"])
    await handle.close()
    Appends(log).send(b"1")
    cursor = await log.open_cursor(COMPACTION_CURSOR, EARLIEST)
    await eventually(lambda: log.last_confirmed[1] == 0)
    named = writer.ledger_id if is_current else 10**6
    cursor.ack_cumulative(log.last_confirmed, {COMPACTED_LEDGER: named})
    await cursor.flush()
    here = CompactedLedger(log.client, log.offloads, writer.ledger_id, (0, 0), config.form)
    before = await here.opened()
    log.offloads.keep_apart(LedgerInfo(writer.ledger_id, 1, 5, cluster.now_ms))
    await eventually(lambda: log.offloads.context(writer.ledger_id) is not None)
    assert await here.opened() is not before, "who has it open reads the copy from now on"
    await log.close()
    log = await cluster.factory().open(NAME, config)
    places = CompactionPlaces(lambda: 0)
    compaction = TopicCompaction(
        *("topic", -1, log, lambda: cluster.now_ms, lambda cursor: None, places)
    )
    if is_current:
        assert compaction.current is not None
        assert await compaction.current.read_encoded(0, 9, 100) == [b"entry"], "from its copy"
        assert store.objects
    else:
        await eventually(lambda: not store.objects and not log.lists.info.apart)
        assert await log.client.read_ledger_metadata(writer.ledger_id) is None
    await cluster.close()
