"""Tenants, namespaces and partitioned topics in the metadata store."""

import json
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.errors import (
    AlreadyExistsError,
    BrokerMetadataError,
    NamespaceNotFoundError,
    PreconditionFailedError,
    TenantNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.resources.resources import Resources, stored_topic_of
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.managed_ledger.cluster import eventually


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    store = EmbeddedMetadataStore.open(None)
    yield store
    await store.close()


async def test_bootstrap_is_idempotent_and_keeps_what_an_admin_changed(
    store: EmbeddedMetadataStore,
) -> None:
    first, second = Resources(store), Resources(store)
    await first.bootstrap("here", {"serviceUrl": "http://a"}, 4)
    await first.update_policies("public/default", lambda old: {**old, "message_ttl_in_seconds": 5})
    await second.bootstrap("here", {"serviceUrl": "http://b"}, 8)
    assert await second.clusters() == ["here"]
    assert await second.cluster("here") == {"serviceUrl": "http://a"}
    assert await second.tenants() == ["public", "pulsar"]
    assert await second.tenant("public") == {"adminRoles": [], "allowedClusters": ["here"]}
    assert await second.namespaces("public") == ["public/default"]
    policies = await second.policies("public/default")
    assert policies is not None
    assert policies.document["bundles"]["numBundles"] == 4
    assert policies.message_ttl_s == 5
    raw = await store.get("/admin/policies/public/default")
    assert raw is not None
    assert json.loads(raw.value)["replication_clusters"] == ["here"]


async def test_tenants(store: EmbeddedMetadataStore) -> None:
    resources = Resources(store)
    await resources.create_tenant("t", {"adminRoles": ["x"], "allowedClusters": []})
    with pytest.raises(AlreadyExistsError):
        await resources.create_tenant("t", {})
    with pytest.raises(TenantNotFoundError):
        await resources.update_tenant("u", {})
    await resources.create_namespace("t/n", ["c"], 2)
    with pytest.raises(PreconditionFailedError):
        await resources.delete_tenant("t")
    await resources.delete_namespace("t/n")
    await resources.delete_tenant("t")
    with pytest.raises(TenantNotFoundError):
        await resources.delete_tenant("t")


async def test_namespaces(store: EmbeddedMetadataStore) -> None:
    resources, other = Resources(store), Resources(store)
    with pytest.raises(TenantNotFoundError):
        await resources.create_namespace("t/n", ["c"], 4)
    await resources.create_tenant("t", {})
    assert await other.policies("t/n") is None
    await resources.create_namespace("t/n", ["c"], 4, {"message_ttl_in_seconds": 3})
    with pytest.raises(AlreadyExistsError):
        await resources.create_namespace("t/n", ["c"], 4)
    found = await other.policies("t/n")  # the cached absence was repaired by the event
    assert found is not None
    await resources.update_policies("t/n", lambda old: {**old, "encryption_required": True})
    await eventually(lambda: other._policies.get_nowait("/admin/policies/t/n") is None)
    changed = await other.policies("t/n")
    assert changed is not None
    assert changed.encryption_required
    with pytest.raises(NamespaceNotFoundError):
        await resources.update_policies("t/x", dict)
    await resources.delete_namespace("t/n")
    with pytest.raises(NamespaceNotFoundError):
        await resources.delete_namespace("t/n")


async def test_partitioned_topics(store: EmbeddedMetadataStore) -> None:
    resources = Resources(store)
    name = TopicName.parse("persistent://t/n/a bü")
    assert await resources.partitioned(name) is None
    await resources.create_partitioned(name, 3, {"k": "v"})
    assert await resources.partitioned(name) == {"partitions": 3, "properties": {"k": "v"}}
    assert await resources.partitioned_topics("t/n") == [str(name)]
    with pytest.raises(AlreadyExistsError):
        await resources.create_partitioned(name, 3)
    await resources.update_partitioned(name, lambda old: {**old, "partitions": 5})
    await resources.delete_partitioned(name)
    with pytest.raises(TopicNotFoundError):
        await resources.delete_partitioned(name)
    with pytest.raises(TopicNotFoundError):
        await resources.update_partitioned(name, dict)


async def test_a_damaged_document_is_named(store: EmbeddedMetadataStore) -> None:
    await store.put("/admin/policies/t/n", b"{")
    with pytest.raises(BrokerMetadataError, match="/admin/policies/t/n"):
        await Resources(store).policies("t/n")
    await store.put("/admin/policies/t/m", b"[]")
    with pytest.raises(BrokerMetadataError, match="not a JSON object"):
        await Resources(store).policies("t/m")


def test_only_the_log_s_own_path_names_a_topic() -> None:
    path = "/managed-ledgers/t/n/persistent/a%20b"
    assert str(stored_topic_of(path)) == "persistent://t/n/a b"
    assert stored_topic_of(path + "/cursor") is None
    assert stored_topic_of("/managed-ledgers/t/n/persistent") is None
