"""Quotas of bundles are kept where the balancer's leader looks for them."""

import orjson

from magnetar.broker.resources.cluster_documents import DEFAULT_QUOTA, ClusterDocuments
from magnetar.metadata.embedded import EmbeddedMetadataStore

BUNDLE = "acme/orders/0x00000000_0x40000000"


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
