"""A split by its owner: boundaries, nodes, races with lookups and with other splits."""

import asyncio
import logging
from typing import Any

import orjson
import pytest

from magnetar.bundles import local_policies
from magnetar.bundles.errors import BundleBusyError, BundleNotReadyError, InvalidBundleError
from magnetar.bundles.local_policies import BundleFactory, LocalPolicies
from magnetar.bundles.namespace_bundles import HashRange
from magnetar.bundles.splitting import halve_range
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, ValueTooLargeError
from magnetar.metadata.store import VALUE_BYTES_MAX
from tests.unit.bundles.test_ownership import TOPIC, Broker
from tests.unit.metadata.event_log import eventually_equal

NAMESPACE = "t/n"
POLICIES = "/admin/policies/t/n"
LOCAL = "/admin/local-policies/t/n"
FIRST = HashRange(0, 0x40000000)
TWO = ["t/n/0x00000000_0x20000000", "t/n/0x20000000_0x40000000"]


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    store = EmbeddedMetadataStore.open(None)
    await store.put(POLICIES, orjson.dumps({"bundles": {"numBundles": 4}, "kept": 1}))
    await store.put(
        LOCAL,
        orjson.dumps({"bundles": {"numBundles": 4}, "namespaceAntiAffinityGroup": "g"}),
    )
    return store


async def stored(store: EmbeddedMetadataStore) -> LocalPolicies:
    found = await store.get(LOCAL)
    assert found is not None
    return LocalPolicies.decode(NAMESPACE, found.value)


async def test_a_split_stores_both_documents_and_owns_the_parts(
    base: EmbeddedMetadataStore,
) -> None:
    a = Broker(base, "a")
    names = await a.service.split(NAMESPACE, FIRST, halve_range(FIRST))
    assert names == TWO
    local = await stored(base)
    assert set(names) < set(local.bundles.names)
    assert local.other_fields == {"namespaceAntiAffinityGroup": "g"}
    policies = await base.get("/admin/policies/t/n")
    assert policies is not None
    document = orjson.loads(policies.value)
    assert document == {"bundles": local.encode_bundles(), "kept": 1}
    assert sorted(a.service.owned_bundles) == names
    assert await base.children("/namespace/t/n") == [name.rpartition("/")[2] for name in names]
    assert a.unloaded.events == [], "the topics stay open"


_FULL = orjson.dumps({"bundles": {"numBundles": 4}, "kept": "x" * (VALUE_BYTES_MAX - 50)})


@pytest.mark.parametrize(
    ("policies", "error"), [(_FULL, ValueTooLargeError), (b"{", InvalidBundleError)]
)
async def test_a_split_whose_copy_cannot_be_written_changes_nothing(
    base: EmbeddedMetadataStore, policies: bytes, error: type[Exception]
) -> None:
    """Found by reading: the cut was stored, the copy refused, and so the call."""
    await base.put(POLICIES, policies)
    a = Broker(base, "a")
    with pytest.raises(error):
        await a.service.split(NAMESPACE, FIRST, halve_range(FIRST))
    assert len((await stored(base)).bundles) == 4
    found = await base.get(POLICIES)
    assert found is not None
    assert found.value == policies
    assert a.service.owned_bundles == [f"t/n/{FIRST}"]
    assert await base.children("/namespace/t/n") == [str(FIRST)]


async def test_a_copy_that_the_store_does_not_take_is_written_later(
    base: EmbeddedMetadataStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cut is stored, so the split has happened: who is told that it failed would repeat it."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(local_policies, "_COPY_RETRY_S", 0.001)
    a, refusals = Broker(base, "a"), iter(range(3))
    put = a.store.put

    async def put_but_no_policies(path: str, *more: Any, **named: Any) -> Any:
        if path == POLICIES and next(refusals, None) is not None:
            raise MetadataError(f"{path}: connection loss")
        return await put(path, *more, **named)

    monkeypatch.setattr(a.store, "put", put_but_no_policies)
    assert await a.service.split(NAMESPACE, FIRST, halve_range(FIRST)) == TWO

    async def bundles() -> Any:
        found = await base.get(POLICIES)
        assert found is not None
        return orjson.loads(found.value)["bundles"]

    assert await bundles() == {"numBundles": 4}
    await eventually_equal(bundles, (await stored(base)).encode_bundles())
    told = [each for each in caplog.messages if "no copy" in each]
    assert told == [
        f"t/n: its policies have no copy of its bundles yet: {POLICIES}: connection loss"
    ]
    await a.service.close()


async def test_a_copy_keeps_what_others_change_meanwhile(
    base: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles, changes = BundleFactory(base, 4), iter(range(2))
    put = base.put

    async def put_behind_another(path: str, *more: Any, **named: Any) -> Any:
        if path == POLICIES and (number := next(changes, None)) is not None:
            await put(path, orjson.dumps({"bundles": {"numBundles": 4}, "kept": number}))
        return await put(path, *more, **named)

    monkeypatch.setattr(base, "put", put_behind_another)
    await bundles.split(NAMESPACE, FIRST, halve_range(FIRST), lambda: None)
    found = await base.get(POLICIES)
    assert found is not None
    expected = {"bundles": (await stored(base)).encode_bundles(), "kept": 1}
    assert orjson.loads(found.value) == expected
    bundles.close()


async def test_a_copy_is_not_written_to_a_namespace_that_was_made_anew(
    base: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, is_anew = base.new_session(), False
    bundles, get = BundleFactory(session, 4), session.get

    async def get_before_it_is_made_anew(path: str) -> Any:
        nonlocal is_anew
        found = await get(path)
        if not is_anew and path in (POLICIES, LOCAL) and len((await stored(base)).bundles) == 5:
            is_anew = True  # behind the first read of the copy
            for each in (POLICIES, LOCAL):
                await base.delete(each)
                for _ in range(2):
                    await base.put(each, orjson.dumps({"bundles": {"numBundles": 2}}))
        return found

    monkeypatch.setattr(session, "get", get_before_it_is_made_anew)
    await bundles.split(NAMESPACE, FIRST, halve_range(FIRST), lambda: None)
    found = await base.get(POLICIES)
    assert is_anew
    assert found is not None
    assert orjson.loads(found.value)["bundles"] == (await stored(base)).encode_bundles()
    assert len((await stored(base)).bundles) == 2
    bundles.close()


async def test_nothing_to_cut_is_no_change(base: EmbeddedMetadataStore) -> None:
    a = Broker(base, "a")
    assert await a.service.split(NAMESPACE, FIRST, []) == [f"t/n/{FIRST}"]
    assert len((await stored(base)).bundles) == 4


async def test_what_another_broker_owns_is_its_to_split(base: EmbeddedMetadataStore) -> None:
    a, b = Broker(base, "a"), Broker(base, "b")
    bundle = await b.service.bundle_of(TOPIC)
    await b.service.acquire(TOPIC)
    found = (await a.service.bundles(NAMESPACE)).find(bundle.rpartition("/")[2])
    with pytest.raises(BundleBusyError):
        await a.service.split(NAMESPACE, found, halve_range(found))
    assert len((await stored(base)).bundles) == 4


async def test_a_bundle_that_is_gone_is_refused(base: EmbeddedMetadataStore) -> None:
    a = Broker(base, "a")
    await a.service.split(NAMESPACE, FIRST, halve_range(FIRST))
    with pytest.raises(InvalidBundleError, match="Cannot find bundle"):
        await a.service.split(NAMESPACE, FIRST, halve_range(FIRST))


async def test_splits_of_two_brokers_keep_each_others_cuts(base: EmbeddedMetadataStore) -> None:
    """pulsar#1117: each wrote a full list, and the last one erased the other's cut."""
    a, b = Broker(base, "a"), Broker(base, "b")
    ranges = (await a.service.bundles(NAMESPACE)).ranges
    await asyncio.gather(
        a.service.split(NAMESPACE, ranges[0], halve_range(ranges[0])),
        b.service.split(NAMESPACE, ranges[1], halve_range(ranges[1])),
    )
    bundles = (await stored(base)).bundles
    assert len(bundles) == 6
    assert await base.children("/namespace/t/n") == [str(each) for each in bundles.ranges[:4]]


async def test_two_splits_of_one_bundle(base: EmbeddedMetadataStore) -> None:
    """The same cut twice is one cut; another one is refused, and leaves no node behind."""
    a = Broker(base, "a")
    await asyncio.gather(
        *(a.service.split(NAMESPACE, FIRST, [0x20000000]) for _ in range(2)),
        return_exceptions=True,
    )
    assert len((await stored(base)).bundles) == 5
    second = (await a.service.bundles(NAMESPACE)).find("0x40000000_0x80000000")
    answers = await asyncio.gather(
        a.service.split(NAMESPACE, second, [0x50000000]),
        a.service.split(NAMESPACE, second, [0x60000000]),
        return_exceptions=True,
    )
    assert sum(isinstance(each, list) for each in answers) == 1
    bundles = (await stored(base)).bundles
    assert len(bundles) == 6
    assert set(a.service.owned_bundles) <= set(bundles.names)
    owners = {f"t/n/{name}" for name in await base.children("/namespace/t/n")}
    assert owners == set(a.service.owned_bundles)


async def test_a_lookup_that_trails_a_split_leaves_no_node_of_the_old_bundle(
    base: EmbeddedMetadataStore,
) -> None:
    """pulsar#13677."""
    a, b = Broker(base, "a"), Broker(base, "b")
    bundle = await b.service.bundle_of(TOPIC)  # b has the boundaries now
    found = (await b.service.bundles(NAMESPACE)).find(bundle.rpartition("/")[2])
    answers = await asyncio.gather(
        a.service.split(NAMESPACE, found, halve_range(found)),
        *(b.service.lookup(TOPIC) for _ in range(5)),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            assert isinstance(answer, BundleNotReadyError | BundleBusyError)
    names = set((await stored(base)).bundles.names)
    owners = {f"t/n/{name}" for name in await base.children("/namespace/t/n")}
    assert owners <= names


async def test_a_namespace_is_released_as_a_whole(base: EmbeddedMetadataStore) -> None:
    a = Broker(base, "a")
    await base.put("/admin/policies/t/n2", b"{}")
    for number in range(20):
        await a.service.acquire(f"{TOPIC}{number}")
    await a.service.acquire("persistent://t/n2/x")
    await a.service.release_namespace(NAMESPACE)
    assert [name.rpartition("/")[0] for name in a.service.owned_bundles] == ["t/n2"]
    assert sorted(a.unloaded.events) == [
        f"t/n/{each}" for each in (await stored(base)).bundles.ranges
    ]
