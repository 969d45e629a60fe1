"""Bundles that nobody owns, where somebody else decides; and bundles that change hands."""

import asyncio

import pytest

from magnetar.bundles.errors import BundleBusyError, BundleNotReadyError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import Ownership, Redirect
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.bundles.test_ownership import TOPIC, Broker
from tests.unit.metadata.event_log import eventually, eventually_equal


class Chosen(Broker):
    """Its ``redirect`` is what the choice of a broker answers, and ``asked`` for which bundles."""

    redirect: BrokerLookup | None = None
    is_known = True

    def __init__(self, base: EmbeddedMetadataStore, name: str) -> None:
        super().__init__(base, name)
        self.asked: list[str] = []
        self.service._choose = self._choice

    async def _choice(self, bundle: str) -> Redirect | None:
        self.asked.append(bundle)
        if not self.is_known:
            raise BundleNotReadyError(bundle, "no broker may own it")
        return None if self.redirect is None else Redirect(bundle, self.redirect, True)


@pytest.fixture
async def a(base: EmbeddedMetadataStore) -> Chosen:
    return Chosen(base, "a")


@pytest.fixture
async def b(base: EmbeddedMetadataStore) -> Chosen:
    return Chosen(base, "b")


async def ask(broker: Broker, *, authoritative: bool = False) -> Ownership | Redirect | None:
    return await broker.service.lookup(TOPIC, authoritative=authoritative)


async def test_a_lookup_of_an_unowned_bundle_is_sent_to_the_chosen_one(
    a: Chosen, b: Chosen
) -> None:
    a.redirect = b.lookup
    b.redirect = a.lookup  # views differ: who is told to own it asks nobody (I12, #7096)
    bundle = await a.service.bundle_of(TOPIC)
    assert await ask(a) == Redirect(bundle, b.lookup, True)
    assert a.service.owned_bundles == []
    assert await ask(b, authoritative=True) == Ownership(bundle, b.lookup)
    assert (a.asked, b.asked) == ([bundle], [])
    assert await ask(a) == Ownership(bundle, b.lookup), "it has an owner: nobody chooses"
    assert await ask(b) == Ownership(bundle, b.lookup)
    assert (a.asked, b.asked) == ([bundle], [])


async def test_the_chosen_one_may_be_the_asked_one(a: Chosen) -> None:
    bundle = await a.service.bundle_of(TOPIC)
    assert await ask(a) == Ownership(bundle, a.lookup)
    assert a.service.owned_bundles == [bundle]


async def test_when_no_broker_may_own_it_nobody_does(
    base: EmbeddedMetadataStore, a: Chosen
) -> None:
    a.is_known = False
    with pytest.raises(BundleNotReadyError, match="no broker may own it"):
        await ask(a)
    assert await base.children("/namespace/t/n") == []


async def test_the_slower_of_two_chosen_ones_names_the_faster(a: Chosen, b: Chosen) -> None:
    """I13: leaders that differ, or none: one owner, and all answers name it."""
    answers = await asyncio.gather(
        *((a, b)[number % 2].service.lookup(TOPIC, authoritative=False) for number in range(20))
    )
    assert len({answer.broker for answer in answers if answer is not None}) == 1
    assert all(isinstance(answer, Ownership) for answer in answers)


async def test_the_node_of_a_former_session_needs_no_choice(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    """A broker that was killed and is back serves its bundles at once, F7."""
    a.redirect = b.lookup
    bundle = await a.service.bundle_of(TOPIC)
    former = base.new_session()
    await former.put(f"/namespace/{bundle}", a.lookup.encode(), -1, ephemeral=True)
    assert await ask(a) == Ownership(bundle, a.lookup)
    await former.close()
    assert a.service.owns_nowait(TOPIC)
    assert a.asked == []


async def test_clients_take_nothing_that_nobody_chose(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    with pytest.raises(BundleNotReadyError, match="redo the lookup"):
        await a.service.ensure_owned(TOPIC)
    assert a.service.owned_bundles == []
    await ask(b)
    with pytest.raises(BundleBusyError):
        await a.service.ensure_owned(TOPIC)
    await b.service.ensure_owned(TOPIC)
    await b.service.close()
    bundle = await a.service.bundle_of(TOPIC)
    former = base.new_session()
    await former.put(f"/namespace/{bundle}", a.lookup.encode(), -1, ephemeral=True)
    await a.service.ensure_owned(TOPIC)
    assert a.service.owns_nowait(TOPIC)


async def test_calls_that_load_a_topic_take_only_what_they_were_chosen_for(
    a: Chosen, b: Chosen
) -> None:
    a.redirect = b.lookup
    with pytest.raises(BundleBusyError):
        await a.service.acquire_if_assigned(TOPIC)
    assert (a.service.owned_bundles, b.service.owned_bundles) == ([], [])
    await b.service.acquire_if_assigned(TOPIC)
    assert b.service.owns_nowait(TOPIC)
    await b.service.acquire_if_assigned(TOPIC)
    with pytest.raises(BundleBusyError):
        await a.service.acquire_if_assigned(TOPIC)
    assert (len(a.asked), len(b.asked)) == (1, 1), "what has an owner is nobody's choice"


async def test_without_a_choice_the_first_one_that_is_asked_takes_it(
    base: EmbeddedMetadataStore,
) -> None:
    alone = Broker(base, "alone")
    await alone.service.ensure_owned(TOPIC)
    assert alone.service.owns_nowait(TOPIC)


async def test_a_bundle_that_is_expected_comes_and_its_clients_wait_for_it(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    given_up = asyncio.Event()
    coming = b.service.expect(bundle, given_up)
    client = asyncio.ensure_future(b.service.ensure_owned(TOPIC))
    a.hold_unload = asyncio.Event()
    releasing = asyncio.ensure_future(a.service.release(bundle, b.lookup))
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    assert a.service.new_owner(bundle) == b.lookup
    assert await ask(a) == Ownership(bundle, b.lookup), "clients are sent there already"
    assert not client.done()
    assert not coming.done()
    a.hold_unload.set()
    await releasing
    await coming
    await client
    assert b.service.owns_nowait(TOPIC)
    assert a.service.new_owner(bundle) is None
    assert b.asked == []
    assert b.service.expect(bundle, given_up) is not coming, "that is done"


async def test_an_expected_bundle_that_does_not_come(a: Chosen, b: Chosen) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    given_up = asyncio.Event()
    coming = b.service.expect(bundle, given_up)
    client = asyncio.ensure_future(b.service.ensure_owned(TOPIC))
    await asyncio.sleep(0)
    given_up.set()
    await coming
    with pytest.raises(BundleBusyError):
        await client
    assert a.service.owns_nowait(TOPIC)
    assert b.service._expected == {}


async def test_an_expected_bundle_whose_owner_dies_comes_all_the_same(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    coming = b.service.expect(bundle, asyncio.Event())
    a.store.lose_session()
    await base.expire_session(a.store.session_id)
    await coming
    assert b.service.owns_nowait(TOPIC)


async def test_the_end_of_a_broker_ends_its_expectations(a: Chosen, b: Chosen) -> None:
    bundle = (await a.service.acquire(TOPIC)).bundle
    coming = b.service.expect(bundle, asyncio.Event())
    await b.service.close()
    await eventually(lambda: coming.done())
    assert b.service._expected == {}


async def test_who_took_a_lost_bundle_is_its_new_owner(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    """Its clients can be told where to go."""
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.hold_unload = asyncio.Event()
    old = a.store.session_id
    a.store.lose_session()
    await base.expire_session(old)
    await b.service.acquire(TOPIC)
    a.store.begin_session()
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    assert a.service.new_owner(bundle) == b.lookup
    a.hold_unload.set()
    await eventually(lambda: a.service.new_owner(bundle) is None)


# --- the rest of the faults of 12.2 that concern one bundle; F5, F7, F9: test_ownership.py and
# tests/unit/metadata/test_recipes.py


async def test_f1_a_killed_owners_bundle_is_free_when_its_session_ends(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    await a.service.acquire(TOPIC)
    assert await b.service.owner_of(TOPIC) == a.lookup
    a.store.lose_session()
    assert await b.service.owner_of(TOPIC) == a.lookup, "the node is there: nobody takes it"
    with pytest.raises(BundleBusyError):
        await b.service.acquire(TOPIC)
    await base.expire_session(a.store.session_id)
    await eventually_equal(lambda: b.service.owner_of(TOPIC), None)
    assert isinstance(await ask(b), Ownership)
    assert b.service.owns_nowait(TOPIC)


async def test_f4_an_outage_of_the_store_changes_no_owner(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    """Every lock is looked at once afterwards; no topic was closed."""
    topics = [f"{TOPIC}-{number}" for number in range(40)]
    owners = {}
    for number, topic in enumerate(topics):
        answer = await (a, b)[number % 2].service.lookup(topic)
        assert answer is not None
        owners[topic] = answer.broker
    assert len(set(owners.values())) == 2
    for broker in (a, b):
        broker.store.lose_session()
    for topic in topics:
        for broker in (a, b):
            with pytest.raises(BundleNotReadyError):
                await broker.service.lookup(topic)
    a.store.begin_session()
    b.store.begin_session()
    for topic, owner in owners.items():
        await eventually_equal(lambda topic=topic: a.service.owner_of(topic), owner)  # type: ignore[misc]
        await eventually_equal(lambda topic=topic: b.service.owner_of(topic), owner)  # type: ignore[misc]
    assert (a.unloaded.events, b.unloaded.events) == ([], [])
    for broker in (a, b):
        for owned in broker.service._owned.values():
            await eventually(lambda lock=owned.lock: lock.proven)


async def test_f8_who_lost_the_race_for_its_own_bundle_unloads(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    """The new session finds the old node, deletes it, and another broker is faster to create."""
    bundle = (await a.service.acquire(TOPIC)).bundle
    old = a.store.session_id
    a.store.lose_session()
    await base.delete(f"/namespace/{bundle}")  # between a's delete and a's create
    await b.service.acquire(TOPIC)
    a.store.begin_session()
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    await base.expire_session(old)
    assert b.service.owns_nowait(TOPIC)
    assert not a.service.owns_nowait(TOPIC)
    assert await a.service.owner_of(TOPIC) == b.lookup


async def test_f9_a_node_of_the_same_version_is_not_ours(
    base: EmbeddedMetadataStore, a: Chosen, b: Chosen
) -> None:
    """Versions restart at 0 when a node is created again: a release leaves another's alone."""
    bundle = (await a.service.acquire(TOPIC)).bundle
    first = await base.get(f"/namespace/{bundle}")
    a.hold_unload = asyncio.Event()
    releasing = asyncio.ensure_future(a.service.release(bundle))
    await a.unloaded.until(lambda bundles: bundles == [bundle])
    old = a.store.session_id
    a.store.lose_session()
    await base.expire_session(old)
    await b.service.acquire(TOPIC)
    a.store.begin_session()
    second = await base.get(f"/namespace/{bundle}")
    assert first is not None
    assert second is not None
    assert first.stat.version == second.stat.version
    a.hold_unload.set()
    await releasing
    assert await base.get(f"/namespace/{bundle}") == second
    assert b.service.owns_nowait(TOPIC)
