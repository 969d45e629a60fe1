"""The ZooKeeper store on a hostile ensemble: cuts, stalls, lagging and crashing servers.

The model's log is the truth. Every answer that a client got is held against it: acknowledged means
once in the log, refused means never, also not later, unknown means at most once. And no session is
given up by the ensemble before its client knew, no new one begins while the old one can still act.
"""

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import pytest

from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.errors import MetadataError, NotFoundError, OutcomeUnknownError
from magnetar.metadata.recipes import CachedValues, IdGenerator
from magnetar.metadata.store import SessionEvent
from magnetar.metadata.zookeeper import connection
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.store import ZooKeeperStore
from tests.simulation.simulator import Simulator, run_simulation, seeds
from tests.simulation.zookeeper_model import Ensemble

SERVERS, CLIENTS = 3, 3
SESSION_S = 4.0
FAULTY_MS = 20_000.0
REGISTER, SEAT, QUEUE, IDS = "/r/register", "/seats/seat", "/q/n-", "/ids"
PATHS = [f"/p/{number}" for number in range(3)]


class Tally:
    """What all clients were told."""

    def __init__(self) -> None:
        self.written: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.versions: dict[bytes, int] = {}
        self.deleted: Counter[str] = Counter()
        self.maybe_deleted: Counter[str] = Counter()
        self.ids: list[int] = []
        self.operations: Counter[str] = Counter()


class Client:
    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number = world, number
        self.store: ZooKeeperStore
        self.caches: CachedValues[bytes]
        self._words = 0
        self._session = ""
        self._register_version = 0

    async def open(self) -> None:
        settings = ZooKeeperSettings(
            servers=tuple((name, 1) for name in self.world.ensemble.servers),
            session_timeout_s=SESSION_S,
            operation_timeout_s=30.0,
        )
        self.store = await ZooKeeperStore.connect(settings)
        self._session = self.store.session_id
        self.store.on_session_event(self._on_session_event)
        self.caches = CachedValues(self.store, "/p", lambda _, value: value)
        self.ids = IdGenerator(self.store, IDS, block=2)

    @property
    def session_number(self) -> int:
        return int(self.store.session_id, 16)

    @property
    def is_lost(self) -> bool:
        return self.store._link.core.lost

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED:
            old, self._session = self._session, self.store.session_id
            leader, check = self.world.ensemble.leader, self.world.simulator.check
            check(old != self._session, "a new session has the old one's id")
            check(not leader.sessions[int(old, 16)].alive, "the old session can still act")

    async def work(self) -> None:
        rng, simulator = self.world.simulator.rng, self.world.simulator
        steps = [
            *(self._append, self._append, self._upsert, self._create, self._sit, self._queue),
            *(self._delete, self._take_ids, self._look, self._lock),
        ]
        while simulator.loop.now * 1000 < FAULTY_MS:
            step = rng.choice(steps)
            try:
                await step()
                self.world.tally.operations[step.__name__] += 1
            except MetadataError:
                await simulator.sleep_ms(rng.uniform(1, 200))
            await simulator.sleep_ms(rng.uniform(0, 30))

    def _word(self) -> bytes:
        self._words += 1
        return b"%d.%d" % (self.number, self._words)

    async def _put(
        self,
        path: str,
        version: int | None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        after: bytes = b"",
    ) -> None:
        tally, word = self.world.tally, after + self._word()
        try:
            written = await self.store.put(
                path, word, version, ephemeral=ephemeral, sequential=sequential
            )
        except OutcomeUnknownError:
            tally.unknown.add(word)
            raise
        except MetadataError:
            tally.refused.add(word)
            raise
        tally.written.add(word)
        tally.versions[word] = written.stat.version
        if path == REGISTER:
            self._register_version = written.stat.version

    async def _append(self) -> None:
        found = await self.store.get(REGISTER)
        version = -1 if found is None else found.stat.version
        check = self.world.simulator.check
        check(version >= self._register_version or found is None, "a read went back in time")
        await self._put(REGISTER, version, after=b"" if found is None else found.value + b" ")

    async def _upsert(self) -> None:
        await self._put(self.world.simulator.rng.choice(PATHS), None)

    async def _create(self) -> None:
        await self._put(self.world.simulator.rng.choice(PATHS), -1)

    async def _sit(self) -> None:
        await self._put(SEAT, -1, ephemeral=True)
        await self.world.simulator.sleep_ms(self.world.simulator.rng.uniform(0, 50))
        await self._delete_path(SEAT)

    async def _queue(self) -> None:
        await self._put(QUEUE, None, ephemeral=True, sequential=True)

    async def _delete(self) -> None:
        await self._delete_path(self.world.simulator.rng.choice(PATHS))

    async def _delete_path(self, path: str) -> None:
        try:
            await self.store.delete(path)
            self.world.tally.deleted[path] += 1
        except OutcomeUnknownError:
            self.world.tally.maybe_deleted[path] += 1
        except NotFoundError:
            pass

    async def _take_ids(self) -> None:
        self.world.tally.ids.append(await self.ids.next_id())

    async def _look(self) -> None:
        await self.caches.get(self.world.simulator.rng.choice(PATHS))

    async def _lock(self) -> None:
        lock = await ResourceLock.acquire(
            self.store, "/lock", b"holder %d" % self.number, lambda _: None
        )
        await self.world.simulator.sleep_ms(self.world.simulator.rng.uniform(0, 300))
        await lock.release()


class World:
    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.ensemble = Ensemble.of(simulator, SERVERS, lag_s=simulator.rng.choice([0.001, 0.2]))
        self.ensemble.serve(simulator.loop)
        self.ensemble.leader.on_expired = self._on_expired
        self.tally = Tally()
        self.clients = [Client(self, number) for number in range(CLIENTS)]

    def _on_expired(self, session_id: int) -> None:
        for client in self.clients:
            if hasattr(client, "store") and client.session_number == session_id:
                self.simulator.check(client.is_lost, "the ensemble was first to end a session")

    async def run(self) -> None:
        for client in self.clients:
            await client.open()
        faults = self.simulator.start(self._break_things())
        await asyncio.gather(*(client.work() for client in self.clients))
        faults.cancel()
        for server in self.ensemble.servers.values():
            if not server.up:
                server.restart()
        async with asyncio.timeout(60.0):  # healed: everybody gets through, caches converge
            for client in self.clients:
                await self._works_again(client)
            for client in self.clients:
                await self._caches_converge(client)
        for client in self.clients:
            await client.store.close()
        self._check()

    async def _break_things(self) -> None:
        rng, leader = self.simulator.rng, self.ensemble.leader
        while True:
            await self.simulator.sleep_ms(rng.expovariate(1 / 400))
            connections = self.ensemble.connections()
            fault = rng.random()
            if fault < 0.5 and connections:
                rng.choice(connections).break_off()
            elif fault < 0.6 and connections:
                # Something is heard all the time, and yet the session may be over.
                rng.choice(connections).late_s = rng.uniform(0, 5 / 6) * SESSION_S
            elif fault < 0.75 and connections:
                longest = 1.5 * SESSION_S
                rng.choice(connections).stall(rng.uniform(0, longest), rng.uniform(0, longest))
            elif fault < 0.85:
                leader.stalled_until = self.simulator.loop.now + rng.uniform(0, SESSION_S)
            else:
                server = rng.choice(list(self.ensemble.servers.values()))
                if server.up:
                    server.crash()
                    self.simulator.loop.call_later(rng.uniform(0.1, 3.0), server.restart)

    async def _works_again(self, client: Client) -> None:
        while True:
            try:
                await client.store.put(f"/done/{client.number}", b"")
                return
            except MetadataError:
                await self.simulator.sleep_ms(100)

    async def _caches_converge(self, client: Client) -> None:
        tree = self.ensemble.leader.tree
        for path in PATHS:
            wanted = tree[path].value if path in tree else None
            while True:
                found = await client.caches.get(path)
                if (None if found is None else found.value) == wanted:
                    break
                await self.simulator.sleep_ms(10)

    def _check(self) -> None:
        leader, tally, check = self.ensemble.leader, self.tally, self.simulator.check
        in_log = Counter(txn.value for txn in leader.log if txn.value)
        for word in tally.written:
            check(in_log[word] == 1, f"acknowledged, {in_log[word]} times in the log: {word!r}")
        for word in tally.unknown:
            check(in_log[word] <= 1, f"unknown, {in_log[word]} times in the log: {word!r}")
        for word in tally.refused:
            check(in_log[word] == 0, f"refused, but in the log: {word!r}")
        for txn in leader.log:
            if txn.value in tally.versions and txn.path == REGISTER:
                node = dict(txn.nodes)[REGISTER]
                assert node is not None
                check(tally.versions[txn.value] == node.version, f"wrong version: {txn.value!r}")
        check(len(set(tally.ids)) == len(tally.ids), "an id was given twice")
        for path in [*PATHS, SEAT]:
            deletes = sum(txn.is_delete and txn.path == path for txn in leader.log)
            least, most = tally.deleted[path], tally.deleted[path] + tally.maybe_deleted[path]
            check(least <= deletes <= most, f"{path}: {least} <= {deletes} <= {most} deletes")


async def scenario(simulator: Simulator) -> Tally:
    chance = SimpleNamespace(Random=lambda: random.Random(simulator.rng.getrandbits(64)))
    with mock.patch.object(connection, "random", chance):  # a seed is one run
        world = World(simulator)
        await world.run()
    return world.tally


@pytest.mark.parametrize("seed", seeds(35))
def test_answers_are_true(seed: int) -> None:
    run_simulation(seed, scenario)


def test_the_scenario_meets_every_outcome() -> None:
    total = Counter[str]()
    for seed in range(1000, 1010):
        tally = run_simulation(seed, scenario)
        total += tally.operations
        total.update(
            written=len(tally.written), unknown=len(tally.unknown), refused=len(tally.refused)
        )
    wanted = {"_append", "_create", "_sit", "_queue", "_delete", "_take_ids", "_lock", "unknown"}
    assert all(total[name] > 10 for name in wanted), total
