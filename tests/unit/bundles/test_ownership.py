"""Ownership of bundles: acquire, answer, release, lose."""

import asyncio

import pytest

from magnetar.bundles.errors import BundleBusyError, BundleNotReadyError, InvalidBundleError
from magnetar.bundles.local_policies import LocalPolicies
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.namespace_bundles import NamespaceBundles
from magnetar.bundles.ownership import Ownership, OwnershipService
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.store import MetadataEvent
from tests.unit.metadata.event_log import EventLog, eventually

TOPIC, OTHER_TOPIC = "persistent://t/n/topic", "persistent://t/n/other"


class Broker:
    """An ownership service with the unload hook of a broker."""

    def __init__(
        self,
        base: EmbeddedMetadataStore,
        name: str,
        unload_timeout_s: float = 60.0,
        incarnation: int = 0,
    ) -> None:
        self.store, self.unloaded = base.new_session(), EventLog[str]()
        urls = (f"pulsar://{name}:6650", None, f"http://{name}:8080", None)
        self.lookup = BrokerLookup(*urls, incarnation=incarnation)
        self.hold_unload: asyncio.Event | None = None
        self.fail_unload = False
        self.service = OwnershipService(
            self.store,
            self.lookup,
            unload=self._unload,
            default_bundle_count=4,
            unload_timeout_s=unload_timeout_s,
        )

    async def _unload(self, bundle: str) -> None:
        self.unloaded(bundle)
        if self.hold_unload is not None:
            await self.hold_unload.wait()
        if self.fail_unload:
            raise OSError("a topic can't be closed")


@pytest.fixture
async def a(base: EmbeddedMetadataStore) -> Broker:
    return Broker(base, "a")


@pytest.fixture
async def b(base: EmbeddedMetadataStore) -> Broker:
    return Broker(base, "b")


async def test_acquire_writes_pulsars_node(base: EmbeddedMetadataStore, a: Broker) -> None:
    assert not a.service.owns_nowait(TOPIC)
    assert await a.service.owner_of(TOPIC) is None
    ownership = await a.service.acquire(TOPIC)
    assert ownership.broker == a.lookup
    assert ownership.bundle == await a.service.bundle_of(TOPIC)
    assert a.service.owns_nowait(TOPIC)
    node = await base.get(f"/namespace/{ownership.bundle}")
    assert node is not None
    assert node.stat.ephemeral
    assert BrokerLookup.decode(node.value) == a.lookup
    assert a.service.owned_bundles == [ownership.bundle]


async def test_many_lookups_make_one_owner(
    base: EmbeddedMetadataStore, a: Broker, b: Broker
) -> None:
    """I13: any number of lookups, on any broker, name one owner."""
    log = EventLog[MetadataEvent]()
    answers = await asyncio.gather(
        *((a, b)[i % 2].service.lookup(TOPIC) for i in range(60)), return_exceptions=True
    )
    base.watch("/namespace", log)
    named = {each.broker for each in answers if isinstance(each, Ownership)}
    assert len(named) == 1
    losers = [each for each in answers if not isinstance(each, Ownership)]
    assert all(isinstance(each, BundleBusyError) for each in losers)
    again = await asyncio.gather(*((a, b)[i % 2].service.lookup(TOPIC) for i in range(60)))
    assert {each.broker for each in again if each} == named
    assert log.events == []


async def test_another_brokers_bundle_is_busy(a: Broker, b: Broker) -> None:
    await a.service.acquire(TOPIC)
    with pytest.raises(BundleBusyError):
        await b.service.acquire(TOPIC)
    assert not b.service.owns_nowait(TOPIC)
    assert await b.service.owner_of(TOPIC) == a.lookup
    await a.service.close()
    assert (await b.service.acquire(TOPIC)).broker == b.lookup


async def test_release_unloads_first_and_frees_last(
    base: EmbeddedMetadataStore, a: Broker, b: Broker
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.hold_unload = asyncio.Event()
    releasing = asyncio.ensure_future(a.service.release(bundle))
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    assert not a.service.owns_nowait(TOPIC)
    for call in (a.service.acquire, a.service.lookup, a.service.owner_of):
        with pytest.raises(BundleNotReadyError, match="redo the lookup"):
            await call(TOPIC)
    assert await base.exists(f"/namespace/{bundle}")
    with pytest.raises(BundleBusyError):
        await b.service.acquire(TOPIC)
    a.hold_unload.set()
    await releasing
    assert not await base.exists(f"/namespace/{bundle}")
    await a.service.release(bundle)
    assert a.unloaded.events == [bundle]
    assert (await b.service.acquire(TOPIC)).broker == b.lookup


async def test_a_bundle_is_freed_even_when_its_topics_cannot_be_closed(
    base: EmbeddedMetadataStore, a: Broker
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.fail_unload = True
    await a.service.release(bundle)
    assert not await base.exists(f"/namespace/{bundle}")
    assert a.service.owned_bundles == []


async def test_a_hanging_unload_is_given_up_after_its_limit(base: EmbeddedMetadataStore) -> None:
    """F20: the ownership is released, and the topic isn't served here afterwards."""
    broker = Broker(base, "a", unload_timeout_s=0.01)
    bundle = (await broker.service.acquire(TOPIC)).bundle
    broker.hold_unload = asyncio.Event()
    await broker.service.release(bundle)
    assert not await base.exists(f"/namespace/{bundle}")
    assert not broker.service.owns_nowait(TOPIC)


async def test_a_lost_bundle_is_not_acquired_again_before_its_topics_are_closed(
    base: EmbeddedMetadataStore, a: Broker, b: Broker
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.hold_unload = asyncio.Event()
    old = a.store.session_id
    a.store.lose_session()
    await base.expire_session(old)
    await b.service.acquire(TOPIC)
    a.store.begin_session()
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    await b.service.close()
    with pytest.raises(BundleNotReadyError, match="unloading"):
        await a.service.acquire(TOPIC)
    a.hold_unload.set()
    await eventually(lambda: not a.service._tasks)
    assert (await a.service.acquire(TOPIC)).bundle == bundle


async def test_a_lost_session_acquires_nothing_and_serves_on(
    base: EmbeddedMetadataStore, a: Broker
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.store.lose_session()
    assert not a.service.owns_nowait(TOPIC)
    for call in (a.service.acquire, a.service.lookup, a.service.owner_of):
        with pytest.raises(BundleNotReadyError):
            await call(TOPIC)
    assert a.service.owned_bundles == [bundle]
    assert a.unloaded.events == []
    a.store.begin_session()
    assert (await a.service.acquire(TOPIC)).bundle == bundle
    assert a.service.owns_nowait(TOPIC)
    assert a.unloaded.events == []


async def test_a_bundle_taken_over_is_unloaded(
    base: EmbeddedMetadataStore, a: Broker, b: Broker
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    old = a.store.session_id
    a.store.lose_session()
    await base.expire_session(old)
    await b.service.acquire(TOPIC)
    a.store.begin_session()
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    assert a.service.owned_bundles == []
    assert await a.service.owner_of(TOPIC) == b.lookup
    assert b.service.owns_nowait(TOPIC)
    await a.service.close()
    assert b.service.owns_nowait(TOPIC)


async def test_a_node_that_the_cache_lost_is_adopted(
    base: EmbeddedMetadataStore, a: Broker
) -> None:
    """Spec 3.3: same session, same URLs."""
    bundle = await a.service.bundle_of(TOPIC)
    await a.store.put(f"/namespace/{bundle}", a.lookup.encode(), -1, ephemeral=True)
    assert await a.service.owner_of(TOPIC) == a.lookup
    assert a.service.owns_nowait(TOPIC)


async def test_a_node_of_this_brokers_previous_session_is_taken_over(
    base: EmbeddedMetadataStore, a: Broker
) -> None:
    bundle = await a.service.bundle_of(TOPIC)
    previous = base.new_session()
    await previous.put(f"/namespace/{bundle}", a.lookup.encode(), -1, ephemeral=True)
    assert await a.service.owner_of(TOPIC) is None  # it will vanish: nobody's
    await a.service.acquire(TOPIC)
    await previous.close()
    assert await base.exists(f"/namespace/{bundle}")
    assert a.service.owns_nowait(TOPIC)


async def test_a_cancelled_caller_does_not_end_the_acquisition(a: Broker) -> None:
    await a.service.bundle_of(TOPIC)
    first = asyncio.ensure_future(a.service.acquire(TOPIC))
    second = asyncio.ensure_future(a.service.acquire(TOPIC))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).broker == a.lookup


@pytest.mark.parametrize("lost", [True, False])
async def test_a_bundle_that_went_before_the_callers_turn_is_not_acquired(
    base: EmbeddedMetadataStore, a: Broker, lost: bool
) -> None:
    """Simulation seeds 1195, 1535, 1550: the caller loaded a topic of a bundle that was gone."""
    bundle = await a.service.bundle_of(TOPIC)
    await base.put("/namespace/t/n", b"")  # so that the acquisition needs no thread
    acquiring = asyncio.ensure_future(a.service.acquire(TOPIC))
    for _ in range(100):
        if bundle in a.service.owned_bundles:
            break
        await asyncio.sleep(0)  # turn by turn: not one too many
    assert not acquiring.done()
    if lost:
        a.service._owned[bundle].lock._lose()
    else:
        a.service._owned[bundle].unloading = True
    with pytest.raises(BundleNotReadyError):
        await acquiring


async def test_close_releases_all_and_refuses_more(base: EmbeddedMetadataStore, a: Broker) -> None:
    topics = [f"persistent://t/n/{i}" for i in range(30)]
    for topic in topics:
        await a.service.acquire(topic)
    assert len(a.service.owned_bundles) == 4
    await a.service.close()
    assert sorted(a.unloaded.events) == sorted(set(a.unloaded.events))
    assert await base.children("/namespace/t/n") == []
    for topic in topics:
        with pytest.raises(BundleNotReadyError):
            await a.service.acquire(topic)


async def test_unloads_are_counted(a: Broker) -> None:
    bundle = await a.service.bundle_of(TOPIC)
    for _ in range(3):
        await a.service.acquire(TOPIC)
        assert await a.service.release(bundle)
    assert not await a.service.release(bundle)
    assert a.service.unloads(60.0) == {bundle: 3}
    assert a.service.unloads(-1.0) == {}


async def test_changed_boundaries_are_followed(
    base: EmbeddedMetadataStore, a: Broker, b: Broker
) -> None:
    await a.service.acquire(TOPIC)
    finer = LocalPolicies(NamespaceBundles.equal_parts("t/n", 64))
    await base.put("/admin/local-policies/t/n", finer.encode())
    bundle = await a.service.bundle_of(TOPIC)
    assert bundle == finer.bundles.bundle_of(TOPIC)
    assert not a.service.owns_nowait(TOPIC)
    assert (await b.service.acquire(TOPIC)).bundle == bundle


async def test_bad_names_and_bad_owner_data_are_told(
    base: EmbeddedMetadataStore, a: Broker
) -> None:
    with pytest.raises(InvalidBundleError):
        a.service.owns_nowait("topic")
    with pytest.raises(InvalidBundleError):
        await a.service.acquire("persistent://t/n")
    bundle = await a.service.bundle_of(TOPIC)
    await base.put(f"/namespace/{bundle}", b"not json", ephemeral=True)
    with pytest.raises(InvalidBundleError):
        await a.service.owner_of(TOPIC)


async def test_a_process_that_was_replaced_takes_nothing_back(base: EmbeddedMetadataStore) -> None:
    """It was given up, cut off or not, and another of its name was started elsewhere: the later one
    has what the former had, and they don't take it from each other for ever."""
    former, later = (Broker(base, "a", incarnation=number) for number in (1, 2))
    bundle = (await former.service.acquire(TOPIC)).bundle
    cut_off = (await former.service.acquire(OTHER_TOPIC)).bundle
    assert bundle != cut_off
    log = EventLog[MetadataEvent]()
    await later.service.acquire(TOPIC)  # as what a killed process left behind
    await former.unloaded.until(lambda events: events == [bundle])
    former.store.lose_session()
    await later.service.acquire(OTHER_TOPIC)
    former.store.begin_session()
    await former.unloaded.until(lambda events: events == [bundle, cut_off])
    base.watch("/namespace", log)
    for topic in (TOPIC, OTHER_TOPIC):
        with pytest.raises(BundleBusyError):
            await former.service.acquire(topic)
        with pytest.raises(BundleBusyError):
            await former.service.ensure_owned(topic)
        assert await former.service.lookup(topic) == Ownership(
            await later.service.bundle_of(topic), later.lookup
        )
        assert later.service.owns_nowait(topic)
    assert former.service.owned_bundles == []
    assert later.unloaded.events == []
    assert log.events == []
