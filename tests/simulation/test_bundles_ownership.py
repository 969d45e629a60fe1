"""Brokers racing for bundles while sessions, requests and replies get lost.

Safety, at every step: at most one broker can prove that it owns a bundle, and a broker that proves
it has its own node in the tree. Liveness, once healed: every topic has one owner, all brokers name
it, and caches agree with the nodes. Nothing waits for a thread or a clock: a seed replays its run.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from magnetar.bundles.errors import BundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OwnershipService, Redirect
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, OutcomeUnknownError
from magnetar.metadata.group_commit import GroupCommitter
from magnetar.metadata.store import MetadataEvent, Versioned
from tests.simulation.simulator import seeds

T = TypeVar("T")

STEPS = 150
TOPICS = [f"persistent://t/n/topic-{i}" for i in range(12)]
BUNDLES = 4


class FaultySession(EmbeddedMetadataStore):
    """A session whose calls take a random number of turns and sometimes lose request or reply."""

    def __init__(self, base: EmbeddedMetadataStore, rng: random.Random) -> None:
        super().__init__(base._shared, owner=False)
        self._rng, self.healed = rng, False
        self.deaf_session: str | None = None  # in which no event arrives

    def _deliver(self, events: list[MetadataEvent]) -> None:
        if self._session_id != self.deaf_session:
            super()._deliver(events)

    @property
    def is_live(self) -> bool:
        """Its session lasts, whatever it believes itself."""
        return self._session_id in self._shared.live_sessions

    async def _travel(self) -> None:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)

    async def _change(self, path: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        fate = 1.0 if self.healed else self._rng.random()
        if fate < 0.05:
            raise OutcomeUnknownError(path)  # the request got lost
        result = await call()
        await self._travel()
        if fate < 0.1:
            raise OutcomeUnknownError(path)  # the reply did
        return result

    async def get(self, path: str) -> Versioned | None:
        await self._travel()
        found = await super().get(path)
        await self._travel()
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
            path,
            lambda: put(path, value, expected_version, ephemeral=ephemeral, sequential=sequential),
        )

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        delete = super().delete
        await self._change(path, lambda: delete(path, expected_version))


class Broker:
    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.store = FaultySession(world.base, world.rng)
        self.lookup = BrokerLookup(f"pulsar://{name}:6650", None, None, None)
        self.service = OwnershipService(self.store, self.lookup, unload=self._unload)
        self.loaded = Counter[str]()  # bundle -> topics loaded since it was last unloaded

    async def _unload(self, bundle: str) -> None:
        for _ in range(self.world.rng.randrange(4)):
            await asyncio.sleep(0)
        del self.loaded[bundle]

    async def load(self, topic: str) -> None:
        self.loaded[(await self.service.acquire(topic)).bundle] += 1

    def proves(self, topic: str) -> bool:
        return self.service.owns_nowait(topic)


class World:
    def __init__(self, seed: int, base: EmbeddedMetadataStore) -> None:
        self.rng, self.base = random.Random(seed), base
        self.brokers = [Broker(self, name) for name in "abc"]
        self.lost_sessions: list[str] = []  # not yet expired
        self.tasks: list[asyncio.Task[None]] = []
        self.outcomes = Counter[str]()
        self.bundle_of: dict[str, str] = {}

    def start(self, call: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(self._tolerate(call))
        task.add_done_callback(lambda _: call.close())  # never begun, if the run was given up
        self.tasks.append(task)

    async def _tolerate(self, call: Coroutine[Any, Any, object]) -> None:
        try:
            await call
        except (BundleError, MetadataError) as error:
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes["done"] += 1

    def act(self) -> None:
        rng, broker = self.rng, self.rng.choice(self.brokers)
        topic, kind = rng.choice(TOPICS), rng.random()
        if kind < 0.45:
            self.start(broker.load(topic))
        elif kind < 0.6:
            self.start(broker.service.lookup(topic, read_only=rng.random() < 0.5))
        elif kind < 0.7 and broker.service.owned_bundles:
            self.start(broker.service.release(rng.choice(broker.service.owned_bundles)))
        elif kind < 0.77:
            if not broker.store._lost:
                self.lost_sessions.append(broker.store.session_id)
                broker.store.lose_session()
        elif kind < 0.87:
            broker.store.begin_session()
        elif kind < 0.93 and self.lost_sessions:
            # The server expires a session only after the client has given it up (spec, I11).
            self.start(self.base.expire_session(self.lost_sessions.pop(0)))
        elif kind < 0.95 and broker.store.is_live:
            self.start(self.condemn(broker))
        else:
            self.start(self.base.delete(f"/namespace/{self.bundle_of[topic]}"))  # an operator

    async def condemn(self, broker: Broker) -> None:
        """Taken for dead, it lives: its session ends, and it hears of that later."""
        session_id, store = broker.store.session_id, broker.store
        if self.rng.random() < 0.5:
            store.deaf_session = session_id
        await self.base.expire_session(session_id)
        for _ in range(self.rng.randrange(60)):
            await asyncio.sleep(0)
        self.outcomes["condemned"] += 1
        if store.session_id == session_id:
            store.lose_session()

    def provers(self, topic: str) -> list[Broker]:
        """Who believes to own it, but for those that don't know yet that their session was ended.

        They can change nothing in the store, so they load no topic, and the next owner fences the
        loaded ones.
        """
        return [each for each in self.brokers if each.store.is_live and each.proves(topic)]

    def check_safety(self) -> None:
        for topic, bundle in self.bundle_of.items():
            provers = self.provers(topic)
            assert len(provers) <= 1, f"{bundle}: {[broker.name for broker in provers]}"
            for broker in provers:
                node = broker.store._tree.nodes.get(f"/namespace/{bundle}")
                assert node is not None, f"{bundle}: {broker.name} has no node"
                assert node.owner == broker.store.session_id

    async def settle(self) -> None:
        for broker in self.brokers:
            broker.store.healed = True
            broker.store.begin_session()
        while any(not task.done() for task in self.tasks):
            await asyncio.gather(*self.tasks)
        for broker in self.brokers:
            broker.store.begin_session()  # of those that heard meanwhile that theirs was ended
        for session_id in self.lost_sessions:
            await self.base.expire_session(session_id)
        for _ in range(200):  # what events have started
            await asyncio.sleep(0)
            self.check_safety()

    async def check_liveness(self) -> None:
        for topic, bundle in self.bundle_of.items():
            answers = []
            for broker in self.rng.sample(self.brokers, len(self.brokers)):
                answer = await broker.service.lookup(topic)
                assert answer is not None
                answers.append(answer.broker)
            assert len(set(answers)) == 1, f"{bundle}: {answers}"
            (owner,) = [broker for broker in self.brokers if broker.lookup == answers[0]]
            assert (await owner.service.acquire(topic)).bundle == bundle
            assert owner.proves(topic)
        self.check_safety()
        nodes = set(await self.base.children("/namespace/t/n"))
        assert len(nodes) == BUNDLES
        caches = [each for broker in self.brokers for each in broker.service.owned_bundles]
        assert sorted(caches) == sorted(f"t/n/{name}" for name in nodes)
        for broker in self.brokers:  # a topic stays loaded only where its bundle is owned
            assert set(+broker.loaded) <= set(broker.service.owned_bundles)


class GivingWorld(World):
    """Brokers also give bundles to each other, and choose among themselves who owns one."""

    def __init__(self, seed: int, base: EmbeddedMetadataStore) -> None:
        super().__init__(seed, base)
        self.expected: list[asyncio.Event] = []
        self.healing = False
        for broker in self.brokers:
            broker.service._choose = self._choose

    async def _choose(self, bundle: str) -> Redirect | None:
        if self.healing:
            return None
        self.outcomes["chosen"] += 1
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        chosen = self.rng.choice([None, *self.brokers])
        return None if chosen is None else Redirect(bundle, chosen.lookup, True)

    def act(self) -> None:
        rng = self.rng
        giver, taker = rng.sample(self.brokers, 2)
        kind = rng.random()
        if kind < 0.6:
            super().act()
        elif kind < 0.75 and giver.service.owned_bundles:
            self.start(self.give(rng.choice(giver.service.owned_bundles), giver, taker))
        elif kind < 0.9:
            topic = rng.choice(TOPICS)
            self.start(giver.service.lookup(topic, authoritative=rng.random() < 0.5))
        else:
            self.start(self.load_as_told(giver, rng.choice(TOPICS)))

    async def load_as_told(self, broker: Broker, topic: str) -> None:
        await broker.service.ensure_owned(topic)
        # As the loader does: who waited asks again.
        if broker.service.owns_nowait(topic):
            broker.loaded[self.bundle_of[topic]] += 1

    async def give(self, bundle: str, giver: Broker, taker: Broker) -> None:
        given_up = asyncio.Event()
        self.expected.append(given_up)
        coming = taker.service.expect(bundle, given_up)
        await giver.service.release(bundle, taker.lookup)
        for _ in range(self.rng.randrange(40)):
            if coming.done():
                self.outcomes["given"] += 1
                return
            await asyncio.sleep(0)
        given_up.set()

    async def settle(self) -> None:
        self.healing = True
        for given_up in self.expected:
            given_up.set()
        await super().settle()
        assert all(not broker.service._expected for broker in self.brokers)


class InlineCommits:
    """Takes the place of a committer's thread: a commit takes some turns of the loop."""

    def __init__(self, committer: GroupCommitter, rng: random.Random) -> None:
        self._committer, self._rng = committer, rng

    def put(self, job: Any) -> None:
        database, error = self._committer._database, None
        if job is None:
            database.close()
            asyncio.get_running_loop().call_soon(self._committer._end, None)
            return
        try:
            database.commit(job)
        except Exception as caught:
            error = caught
        self._wait(self._rng.randrange(1, 6), error)

    def join(self) -> None:
        """It runs only while somebody puts something."""

    def _wait(self, turns: int, error: Exception | None) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._wait, turns - 1, error)
        else:
            self._committer._finish(error)


def commit_inline(base: EmbeddedMetadataStore, seed: int) -> None:
    """No thread: a seed is one run, whatever it commits."""
    committer: Any = base._shared.committer
    committer._thread = committer._jobs = InlineCommits(committer, random.Random(seed))


W = TypeVar("W", bound=World)


async def run_world(make: Callable[[int, EmbeddedMetadataStore], W], seed: int) -> W:
    """One life of a world: start, faults and actions, healing, checks, end."""
    base = EmbeddedMetadataStore.open(None)
    commit_inline(base, seed)
    await base.put("/admin/policies/t/n", b'{"bundles":{"numBundles":%d}}' % BUNDLES)
    await base.put("/namespace/t/n", b"")
    world = make(seed, base)
    world.brokers[0].store.healed = True
    for broker in world.brokers:
        for topic in TOPICS:
            world.bundle_of[topic] = await broker.service.bundle_of(topic)
    world.brokers[0].store.healed = False
    for _ in range(STEPS):
        world.act()
        for _ in range(world.rng.randrange(12)):
            await asyncio.sleep(0)
            world.check_safety()
    await world.settle()
    await world.check_liveness()
    for broker in world.brokers:
        await broker.service.close()
    assert await base.children("/namespace/t/n") == []
    await base.close()
    return world


_OUTCOMES: dict[tuple[type[World], int], Counter[str]] = {}


async def outcomes_of(kind: type[World], seed: int) -> Counter[str]:
    """Of a run that several tests look at."""
    if (kind, seed) not in _OUTCOMES:
        _OUTCOMES[kind, seed] = (await run_world(kind, seed)).outcomes
    return _OUTCOMES[kind, seed]


@pytest.mark.parametrize("seed", seeds(20))
async def test_at_most_one_broker_owns_a_bundle(seed: int) -> None:
    await outcomes_of(World, seed)


@pytest.mark.parametrize("seed", seeds(20))
async def test_bundles_that_are_given_to_others(seed: int) -> None:
    await outcomes_of(GivingWorld, seed)


async def test_giving_and_choosing_happen() -> None:
    outcomes = Counter[str]()
    for seed in range(10):
        outcomes += await outcomes_of(GivingWorld, seed)
    assert outcomes["given"] > 20
    assert outcomes["chosen"] > 20


async def test_the_runs_meet_what_they_are_for() -> None:
    """Without refusals, races and losses the test above would prove nothing."""
    outcomes = Counter[str]()
    for seed in range(10):
        outcomes += await outcomes_of(World, seed)
    assert outcomes["done"] > 100
    assert outcomes["BundleBusyError"] > 50
    assert outcomes["BundleNotReadyError"] > 50
    assert outcomes["condemned"] > 10


async def test_a_seed_replays_its_run() -> None:
    assert (await run_world(World, 7)).outcomes == (await run_world(World, 7)).outcomes
