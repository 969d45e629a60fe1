"""Faults in splits and unloads; all faults: docs/internals/cluster-faults.md."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import orjson
import pytest

from magnetar.bundles.errors import BundleNotReadyError
from magnetar.bundles.local_policies import LocalPolicies
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.namespace_bundles import HashRange
from magnetar.bundles.ownership import Ownership, OwnershipService
from magnetar.bundles.splitting import halve_range
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import OutcomeUnknownError
from magnetar.metadata.store import MetadataEvent, Versioned
from tests.unit.bundles.test_ownership import TOPIC, Broker
from tests.unit.metadata.event_log import eventually_equal

T = TypeVar("T")

NAMESPACE = "t/n"
LOCAL, POLICIES = "/admin/local-policies/t/n", "/admin/policies/t/n"
FIRST = HashRange(0, 0x40000000)
HALF = 0x20000000
TOPICS = [f"persistent://t/n/topic-{number}" for number in range(40)]


class Troubled(EmbeddedMetadataStore):
    """A session that can go deaf, lose what it sends, and end in the middle of what it does."""

    def __init__(self, base: EmbeddedMetadataStore) -> None:
        super().__init__(base._shared, owner=False)
        self.is_deaf = False
        self.lost_deletes: list[str] = []  # "request", "reply"
        self.changes_left: int | None = None  # until its process dies
        self.dies_before = False  # the last of them, else behind it
        self.died = asyncio.Event()
        self.after_get: Callable[[str], Awaitable[None]] | None = None

    def _deliver(self, events: list[MetadataEvent]) -> None:
        if not self.is_deaf:
            super()._deliver(events)

    async def _die(self) -> None:
        self.died.set()
        await asyncio.Event().wait()  # nothing comes back to a dead process

    async def _change(self, call: Callable[[], Awaitable[T]]) -> T:
        if self.died.is_set() or self.changes_left == 0:
            await self._die()
        is_last = self.changes_left == 1
        if self.changes_left is not None:
            self.changes_left -= 1
        if is_last and self.dies_before:
            await self._die()
        done = await call()
        if is_last:
            await self._die()
        return done

    async def get(self, path: str) -> Versioned | None:
        if self.died.is_set():
            await self._die()
        found = await super().get(path)
        if self.after_get is not None:
            await self.after_get(path)
        return found

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        put = super().put
        return await self._change(
            lambda: put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential)
        )

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        lost = self.lost_deletes.pop(0) if self.lost_deletes else ""
        if lost == "request":
            raise OutcomeUnknownError(path)
        delete = super().delete
        await self._change(lambda: delete(path, expected_version))
        if lost == "reply":
            raise OutcomeUnknownError(path)


class Shaky(Broker):
    """A broker on such a session."""

    store: Troubled

    def __init__(self, base: EmbeddedMetadataStore, name: str) -> None:
        super().__init__(base, name)
        self.store = Troubled(base)
        self.service = OwnershipService(self.store, self.lookup, unload=self._unload)


@pytest.fixture
async def base() -> EmbeddedMetadataStore:
    store = EmbeddedMetadataStore.open(None)
    await store.put(POLICIES, orjson.dumps({"bundles": {"numBundles": 4}}))
    await store.put(LOCAL, orjson.dumps({"bundles": {"numBundles": 4}, "other": "kept"}))
    await store.put("/namespace/t/n", b"")
    return store


@pytest.fixture
async def a(base: EmbeddedMetadataStore) -> AsyncIterator[Shaky]:
    yield Shaky(base, "a")
    # Tasks of a process that has died; what is cancelled may begin another one to clean up.
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)


@pytest.fixture
async def b(base: EmbeddedMetadataStore) -> Shaky:
    return Shaky(base, "b")


async def stored(base: EmbeddedMetadataStore) -> LocalPolicies:
    found = await base.get(LOCAL)
    assert found is not None
    return LocalPolicies.decode(NAMESPACE, found.value)


async def owner(broker: Broker, topic: str = TOPIC) -> BrokerLookup | None:
    try:
        answer = await broker.service.lookup(topic)
    except BundleNotReadyError:
        return None
    assert isinstance(answer, Ownership)
    return answer.broker


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_f6_a_release_whose_end_is_unknown_leaves_one_owner(
    base: EmbeddedMetadataStore, a: Shaky, b: Shaky, lost: str
) -> None:
    """It isn't owned again by itself; the node, if there is one, says whose it is."""
    bundle = (await a.service.acquire(TOPIC)).bundle
    a.store.lost_deletes = [lost]
    await a.service.release(bundle)
    assert a.unloaded.events == [bundle]
    assert a.service.owned_bundles == [], "I10: nobody has asked for it"
    node = await base.get(f"/namespace/{bundle}")
    answers = {await owner(b), await owner(a), await owner(b)}
    assert len(answers) == 1, "one owner, whoever is asked"
    if node is None:
        assert answers == {b.lookup}
    proving = [each for each in (a, b) if each.service.owns_nowait(TOPIC)]
    assert [each.lookup for each in proving] == list(answers)


@pytest.mark.parametrize("seed", range(5))
async def test_f10_a_hundred_pairs_of_splits_keep_all_cuts(
    base: EmbeddedMetadataStore, a: Shaky, b: Shaky, seed: int
) -> None:
    rng, cuts = random.Random(seed), set[int]()
    for number in range(100):
        before = (await stored(base)).bundles
        wide = [each for each in before.ranges if each.upper - each.lower > 1]
        pair = rng.sample(wide, 2)
        points = [each.lower + rng.randrange(1, each.upper - each.lower) for each in pair]
        brokers = (a, b) if number % 2 else (b, a)
        for each in (a, b):  # what it owns already the other one couldn't split
            for name in each.service.owned_bundles:
                await each.service.release(name)
        await asyncio.gather(
            *(
                broker.service.split(NAMESPACE, found, [point])
                for broker, found, point in zip(brokers, pair, points, strict=True)
            )
        )
        cuts.update(points)
        after = (await stored(base)).bundles
        assert cuts | set(before.boundaries) == set(after.boundaries)
        assert len(after) == len(before) + 2
    local = await stored(base)
    assert local.other_fields == {"other": "kept"}
    policies = await base.get(POLICIES)
    assert policies is not None
    assert orjson.loads(policies.value)["bundles"] == local.encode_bundles(), "I7"


STEPS = ("the bundle", "one part", "the other part", "boundaries", "their copy", "the old node")


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("step", range(1, len(STEPS) + 1), ids=STEPS)
async def test_f12_a_splitter_that_dies_at_any_step_leaves_a_partition(
    base: EmbeddedMetadataStore, a: Shaky, b: Shaky, step: int, dies_before: bool
) -> None:
    """Each write of a split, done or not: its topics have owners, and it can be split again."""
    a.store.changes_left, a.store.dies_before = step, dies_before
    splitting = asyncio.ensure_future(a.service.split(NAMESPACE, FIRST, [HALF]))
    end = asyncio.ensure_future(a.store.died.wait())
    await asyncio.wait((splitting, end), return_when=asyncio.FIRST_COMPLETED)
    assert a.store.died.is_set(), "so many writes are in a split"
    assert not splitting.done()
    is_cut = (step, dies_before) >= (4, False) and (step, dies_before) != (4, True)
    bundles = (await stored(base)).bundles
    assert (HALF in bundles.boundaries) == is_cut
    await base.expire_session(a.store.session_id)

    async def owners() -> set[BrokerLookup | None]:
        return {await owner(b, topic) for topic in TOPICS}

    await eventually_equal(owners, {b.lookup})
    names = {f"t/n/{name}" for name in await base.children("/namespace/t/n")}
    assert names == set(b.service.owned_bundles) <= set(bundles.names), "I6: no orphan is left"
    whole = FIRST if not is_cut else HashRange(0, HALF)
    await b.service.split(NAMESPACE, whole, halve_range(whole))
    local = await stored(base)
    assert len(local.bundles) == len(bundles) + 1
    policies = await base.get(POLICIES)
    assert policies is not None
    assert orjson.loads(policies.value)["bundles"] == local.encode_bundles(), "I7"


async def test_f13_who_does_not_hear_of_a_split_answers_nothing_wrong(
    base: EmbeddedMetadataStore, a: Shaky, b: Shaky
) -> None:
    inside = [name for name in TOPICS if (await b.service.bundle_of(name)).endswith(str(FIRST))]
    assert inside
    b.store.is_deaf = True
    await a.service.split(NAMESPACE, FIRST, [HALF])
    assert b.service.bundle_of_nowait(inside[0]) == f"{NAMESPACE}/{FIRST}", "it goes by old ranges"
    with pytest.raises(BundleNotReadyError, match="it was split"):
        await b.service.split(NAMESPACE, FIRST, [HALF // 2])
    for name in inside:
        answers = [await owner(b, name) for _ in range(2)]  # its client asks again
        assert answers[-1] == a.lookup
    names = set((await stored(base)).bundles.names)
    assert {f"t/n/{name}" for name in await base.children("/namespace/t/n")} <= names
    assert len(names) == 5, "what it knew was not written"


@pytest.mark.parametrize("count", [7, 0])
async def test_f34_a_namespace_deleted_in_a_split_keeps_no_old_boundary(
    base: EmbeddedMetadataStore, a: Shaky, b: Shaky, count: int
) -> None:
    """And made again with other bundles, whose documents begin with the same version.

    Who deletes a namespace has its owners give it up first; a split looks at that behind each
    read. What is sent by then arrives before what gives the bundle up, in the same session.
    """
    deleted = asyncio.Event()

    async def delete(path: str) -> None:
        if path != LOCAL or len(a.service.owned_bundles) < 3:
            return  # the split doesn't write yet
        a.store.after_get = None
        await a.service.release_namespace(NAMESPACE)
        await base.delete(LOCAL)
        await base.delete(POLICIES)
        if count:
            await base.put(POLICIES, orjson.dumps({"bundles": {"numBundles": count}}))
            await base.put(LOCAL, orjson.dumps({"bundles": {"numBundles": count}}))
        deleted.set()

    a.store.after_get = delete
    with pytest.raises(BundleNotReadyError):
        await a.service.split(NAMESPACE, FIRST, [HALF])
    assert deleted.is_set()
    assert a.service.owned_bundles == []
    assert await base.children("/namespace/t/n") == []
    if not count:
        assert await base.get(LOCAL) is None, "nothing of it comes back"
        assert await base.get(POLICIES) is None
        return
    assert len((await stored(base)).bundles) == count

    async def owners() -> set[BrokerLookup | None]:
        return {await owner(b, topic) for topic in TOPICS}

    await eventually_equal(owners, {b.lookup})
    names = {f"t/n/{name}" for name in await base.children("/namespace/t/n")}
    assert names <= set((await stored(base)).bundles.names)
