"""Quotas of bundles are kept where the balancer's leader looks for them."""

import orjson

from magnetar.broker.resources.cluster_documents import DEFAULT_QUOTA, ClusterDocuments
from magnetar.metadata.embedded import EmbeddedMetadataStore

BUNDLE = "acme/orders/0x00000000_0x40000000"


async def test_places_of_bookies_are_beside_their_ledgers() -> None:
    store, ledgers = EmbeddedMetadataStore.open(None), EmbeddedMetadataStore.open(None)
    documents = ClusterDocuments(store)
    documents.racks_store = ledgers
    await documents.put_rack("default", "b1:3181", {"rack": "/r1"})
    node = await ledgers.get("/bookies")
    assert node is not None
    assert orjson.loads(node.value) == {"default": {"b1:3181": {"rack": "/r1"}}}
    assert await documents.racks() == {"default": {"b1:3181": {"rack": "/r1"}}}
    assert await documents.delete_rack("b1:3181")
    assert not await store.exists("/bookies")
    await store.close()
    await ledgers.close()


async def test_quotas_of_bundles_have_pulsars_paths() -> None:
    store = EmbeddedMetadataStore.open(None)
    documents = ClusterDocuments(store)
    quota = {**DEFAULT_QUOTA, "msgRateIn": 7.0}
    assert await documents.quota(BUNDLE) == DEFAULT_QUOTA
    await documents.put_quota(BUNDLE, quota)
    await documents.put_quota(None, {**DEFAULT_QUOTA, "memory": 9.0})
    for name in (f"namespace/{BUNDLE}", "default"):
        node = await store.get(f"/loadbalance/resource-quota/{name}")
        assert node is not None
        expected = await documents.quota(None if name == "default" else BUNDLE)
        assert orjson.loads(node.value) == expected
    assert await documents.quota(BUNDLE) == quota
    assert await documents.delete_quota(BUNDLE)
    assert (await documents.quota(BUNDLE))["memory"] == 9.0
    assert not await documents.delete_quota(BUNDLE)
    await store.close()
