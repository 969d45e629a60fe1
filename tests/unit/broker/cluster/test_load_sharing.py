"""What a broker of a cluster makes of the others that are registered."""

import orjson

from magnetar.broker.cluster.load_sharing import READS_CHUNKS, LoadSharing
from magnetar.loadbalance.registry import BROKERS_ROOT
from tests.unit.broker.doubles import Broker
from tests.unit.managed_ledger.cluster import eventually


async def test_lists_go_to_chunks_while_no_earlier_release_is_registered() -> None:
    broker = Broker(broker_peer_failure_detection_enabled=False)
    store, ledgers = broker.cluster.store, broker.ledgers
    alone = ledgers.are_chunks_read
    broker.service.sharing = LoadSharing(broker.service, "1")
    assert (alone, ledgers.are_chunks_read) == (True, False), "the others aren't known yet"
    await store.put(f"{BROKERS_ROOT}/old.example:8080", b"{}")
    await broker.start()
    own = await store.get(f"{BROKERS_ROOT}/{broker.service.broker_id}")
    assert own is not None
    assert orjson.loads(own.value)["properties"] == {READS_CHUNKS: "true"}
    assert not ledgers.are_chunks_read
    await store.delete(f"{BROKERS_ROOT}/old.example:8080")
    await eventually(lambda: ledgers.are_chunks_read)
    await store.put(f"{BROKERS_ROOT}/old.example:8080", b"{}")
    await eventually(lambda: not ledgers.are_chunks_read)
    await broker.close()
