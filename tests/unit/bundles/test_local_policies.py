"""Boundaries of a namespace: written once, kept, followed."""

import asyncio

import orjson
import pytest

from magnetar.bundles.bookie_affinity import BookieAffinity
from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.local_policies import BundleFactory, LocalPolicies
from magnetar.bundles.namespace_bundles import NamespaceBundles
from magnetar.metadata.embedded import EmbeddedMetadataStore

LOCAL, POLICIES = "/admin/local-policies/t/n", "/admin/policies/t/n"


@pytest.fixture
def store() -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore.open(None)


def test_other_fields_survive() -> None:
    value = orjson.dumps(
        {
            "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
            "bookieAffinityGroup": {"bookkeeperAffinityGroupPrimary": "a"},
            "migrated": False,
        }
    )
    policies = LocalPolicies.decode("t/n", value)
    assert policies.bundles == NamespaceBundles.equal_parts("t/n", 1)
    assert orjson.loads(policies.encode()) == orjson.loads(value)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"bundles":{"boundaries":["0x00000000"]}}', b'{"bundles":null}']
)
def test_local_policies_that_cannot_be(value: bytes) -> None:
    with pytest.raises(InvalidBundleError):
        LocalPolicies.decode("t/n", value)


async def test_first_use_writes_the_default_count(store: EmbeddedMetadataStore) -> None:
    await store.put(POLICIES, b"{}")
    factory = BundleFactory(store, default_count=4)
    assert factory.bundles_nowait("t/n") is None
    bundles = await factory.bundles("t/n")
    assert len(bundles) == 4
    stored = await store.get(LOCAL)
    assert stored is not None
    assert orjson.loads(stored.value) == {
        "bundles": {
            "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
            "numBundles": 4,
        }
    }
    other = BundleFactory(store, default_count=16)
    assert await other.bundles("t/n") == bundles
    assert other.bundles_nowait("t/n") == bundles


@pytest.mark.parametrize(
    "policies",
    [
        b'{"bundles":{"numBundles":2}}',
        b'{"bundles":{"boundaries":["0x00000000","0x80000000","0xffffffff"],"numBundles":2}}',
        b'{"bundles":{"boundaries":["0x0","0x80000000","0xffffffff"]}}',
    ],
)
async def test_policies_rule_at_first_use(store: EmbeddedMetadataStore, policies: bytes) -> None:
    await store.put(POLICIES, policies)
    assert len(await BundleFactory(store, 32).bundles("t/n")) == 2
    await store.put(POLICIES, b'{"bundles":{"numBundles":8}}')
    assert len(await BundleFactory(store, 32).bundles("t/n")) == 2  # local policies rule now


async def test_groups_of_bookies_are_changed_beside_what_others_write(
    store: EmbeddedMetadataStore,
) -> None:
    await store.put(POLICIES, b"{}")
    factory, other = BundleFactory(store, 4), BundleFactory(store, 4)
    assert not await factory.is_stored("t/n")
    await other.set_anti_affinity_group("t/n", "apart")
    for affinity in (
        BookieAffinity("ssd", "hdd,tape"),
        BookieAffinity("ssd"),
        BookieAffinity(),
        None,
    ):
        await factory.set_bookie_affinity("t/n", affinity)
        assert await factory.bookie_affinity("t/n") == affinity
    await factory.set_bookie_affinity("t/n", BookieAffinity("ssd", "hdd"))
    stored = await store.get(LOCAL)
    assert stored is not None
    document = orjson.loads(stored.value)
    assert document["bundles"]["numBundles"] == 4
    assert document["namespaceAntiAffinityGroup"] == "apart"
    assert document["bookieAffinityGroup"] == {
        "bookkeeperAffinityGroupPrimary": "ssd",
        "bookkeeperAffinityGroupSecondary": "hdd",
    }
    # As Pulsar leaves it behind, and what nobody can use.
    for value, found in (
        (None, None),
        ("ssd", None),
        ({"bookkeeperAffinityGroupPrimary": 7}, BookieAffinity()),
    ):
        await store.put(LOCAL, orjson.dumps({**document, "bookieAffinityGroup": value}))
        assert await BundleFactory(store, 4).bookie_affinity("t/n") == found
    with pytest.raises(InvalidBundleError):
        await factory.set_bookie_affinity("t/none", BookieAffinity("ssd"))


async def test_a_made_up_namespace_leaves_nothing_behind(store: EmbeddedMetadataStore) -> None:
    factory = BundleFactory(store, default_count=4)
    assert len(await factory.bundles("t/n")) == 4
    assert await store.children("/") == []
    await store.put(POLICIES, b'{"bundles":{"numBundles":2}}')  # now it is created
    assert len(await factory.bundles("t/n")) == 2


async def test_changed_boundaries_are_followed(store: EmbeddedMetadataStore) -> None:
    await store.put(POLICIES, b"{}")
    factory = BundleFactory(store, default_count=1)
    assert len(await factory.bundles("t/n")) == 1
    await store.put(LOCAL, LocalPolicies(NamespaceBundles.equal_parts("t/n", 2)).encode())
    assert len(await factory.bundles("t/n")) == 2
    await store.delete(LOCAL)
    await store.delete(POLICIES)
    await store.put(POLICIES, b'{"bundles":{"numBundles":3}}')  # deleted and created anew: F34
    assert len(await factory.bundles("t/n")) == 3


async def test_a_lost_race_takes_the_winners_boundaries(store: EmbeddedMetadataStore) -> None:
    await store.put(POLICIES, b"{}")
    first, second = BundleFactory(store, 4), BundleFactory(store.new_session(), 8)
    one, two = await asyncio.gather(first.bundles("t/n"), second.bundles("t/n"))
    assert one == two


async def test_broken_local_policies_are_told_and_can_be_repaired(
    store: EmbeddedMetadataStore,
) -> None:
    await store.put(LOCAL, b'{"bundles":{"boundaries":["0x00000000","0x10000000"]}}')
    factory = BundleFactory(store, 32)
    with pytest.raises(InvalidBundleError, match="t/n"):
        await factory.bundles("t/n")
    await store.put(LOCAL, LocalPolicies(NamespaceBundles.equal_parts("t/n", 2)).encode())
    assert len(await factory.bundles("t/n")) == 2
