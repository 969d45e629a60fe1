"""Brokers that watch each other: whose session is ended, and whose isn't."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.broker.cluster.peer_failure_detector import (
    SESSION_RECORDS_ROOT,
    PeerFailureDetector,
    SessionRecord,
    next_in_ring,
)
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.waiting import eventually


class ModelConnection:
    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def ended(self) -> None:
        await self.over.wait()

    def close(self) -> None:
        self.over.set()


class Machines:
    """The network between the brokers: who listens, and who is connected to whom."""

    def __init__(self) -> None:
        self.listening = set[str]()
        self.silent = set[str]()  # neither accepts nor refuses
        self.connections: dict[str, list[ModelConnection]] = {}
        self.connects: list[str] = []  # attempts
        self.refusals: list[str] = []  # questions
        self.on_refusal: Callable[[], object] = lambda: None

    async def connect(self, broker: BrokerLookup) -> ModelConnection:
        name = str(broker.broker_url)
        await asyncio.sleep(0)
        self.connects.append(name)
        if name not in self.listening or name in self.silent:
            raise ServiceNotReadyError("can't be reached")
        connection = ModelConnection()
        self.connections.setdefault(name, []).append(connection)
        return connection

    async def refuses(self, broker: BrokerLookup) -> bool:
        name = str(broker.broker_url)
        self.refusals.append(name)
        await asyncio.sleep(0)
        self.on_refusal()
        return name not in self.listening and name not in self.silent

    def open_connections(self, name: str) -> int:
        return sum(not connection.over.is_set() for connection in self.connections.get(name, []))

    def cut(self, name: str) -> None:
        for connection in self.connections.get(name, []):
            connection.over.set()


class Cluster:
    def __init__(self, base: EmbeddedMetadataStore) -> None:
        self.base, self.machines = base, Machines()
        self.stores: dict[str, EmbeddedMetadataStore] = {}
        self.watches: dict[str, PeerFailureDetector] = {}

    async def begin(self, name: str, incarnation: int = 0) -> None:
        """A broker process, with an ephemeral node that stands for all that it has."""
        store = self.stores[name] = self.base.new_session()
        await store.put(f"/of-{name}", b"", ephemeral=True)
        self.machines.listening.add(name)
        lookup = BrokerLookup(name, None, None, None, incarnation=incarnation)
        watch = self.watches[name] = PeerFailureDetector(store, name, lookup, self.machines)
        watch.start()

    async def begin_watched(self, *names: str) -> None:
        for name in names:
            await self.begin(name)
        watchers = min(2, len(names) - 1)
        for name in names:
            await eventually(
                lambda name=name: self.machines.open_connections(name) == watchers, name
            )

    def kill(self, name: str) -> None:
        """As SIGKILL: its tasks stop, its connections end, its port is closed."""
        for task in [*self.watches[name]._tasks, *self.watches[name]._watched.values()]:
            task.cancel()
        self.machines.listening.discard(name)
        self.machines.cut(name)

    def has_session(self, name: str) -> bool:
        return f"/of-{name}" in self.base._tree.nodes


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    base = EmbeddedMetadataStore.open(None)
    cluster = Cluster(base)
    yield cluster
    for watch in cluster.watches.values():
        await watch.leave()
    await base.close()


async def test_the_session_of_a_killed_broker_ends(cluster: Cluster) -> None:
    await cluster.begin_watched("a", "b", "c")
    cluster.kill("b")
    await eventually(lambda: not cluster.has_session("b"), "b's nodes are gone")
    assert cluster.has_session("a")
    assert cluster.has_session("c")
    await eventually(lambda: not cluster.watches["a"]._watched.keys() & {"b"}, "nobody watches b")


async def test_two_brokers_die_at_once(cluster: Cluster) -> None:
    await cluster.begin_watched("a", "b", "c", "d")
    cluster.kill("b")
    cluster.kill("c")
    await eventually(lambda: not cluster.has_session("b"), "b's nodes are gone")
    await eventually(lambda: not cluster.has_session("c"), "c's nodes are gone")
    assert cluster.has_session("a")
    assert cluster.has_session("d")


async def test_a_port_that_closes_after_the_connections(cluster: Cluster) -> None:
    """The first question is still accepted by a process that is dying."""
    await cluster.begin_watched("a", "b")
    machines = cluster.machines
    loop = asyncio.get_running_loop()
    machines.on_refusal = lambda: loop.call_soon(machines.listening.discard, "b")
    machines.cut("b")
    await eventually(lambda: not cluster.has_session("b"), "b's nodes are gone")
    assert machines.refusals.count("b") > 1


async def test_who_leaves_is_not_taken_for_a_crash(cluster: Cluster) -> None:
    await cluster.begin_watched("a", "b")
    await cluster.watches["b"].leave()
    await eventually(lambda: not cluster.machines.open_connections("b"), "nobody watches b")
    cluster.machines.listening.discard("b")
    await cluster.begin("c")  # a looks again
    await eventually(lambda: cluster.machines.open_connections("c"), "a watches c")
    assert cluster.has_session("b")


async def test_who_leaves_while_it_is_checked_is_not_taken_for_a_crash(cluster: Cluster) -> None:
    """Its note goes before its port; whoever asks the port first finds no note."""
    await cluster.begin_watched("a", "b")
    leaving: list[asyncio.Task[None]] = []

    def leave() -> None:
        if not leaving:
            leaving.append(asyncio.get_running_loop().create_task(cluster.watches["b"].leave()))

    cluster.machines.on_refusal = leave
    cluster.machines.listening.discard("b")
    cluster.machines.cut("b")
    await eventually(lambda: leaving and leaving[0].done(), "b has left")
    await eventually(lambda: not cluster.watches["a"]._watched.keys() & {"b"}, "nobody watches b")
    assert cluster.has_session("b")


async def test_a_broken_connection_alone_means_nothing(cluster: Cluster) -> None:
    await cluster.begin_watched("a", "b")
    for _ in range(3):
        connections = len(cluster.machines.connections["b"])
        cluster.machines.cut("b")
        await eventually(
            lambda connections=connections: len(cluster.machines.connections["b"]) > connections,
            "a is connected again",
        )
    assert cluster.machines.refusals.count("b") == 3  # once each: it listens
    assert cluster.has_session("b")


async def test_a_silent_machine_means_nothing(cluster: Cluster) -> None:
    """It lost its power, or its network: its session's timeout tells."""
    await cluster.begin_watched("a", "b")
    attempts = cluster.machines.connects.count("b")
    cluster.machines.silent.add("b")
    cluster.machines.cut("b")
    await eventually(lambda: cluster.machines.connects.count("b") > attempts + 1, "a tries again")
    assert cluster.has_session("b")


async def test_who_was_never_reached_is_not_expired(cluster: Cluster) -> None:
    await cluster.begin_watched("a")
    await cluster.begin("b")
    cluster.machines.listening.discard("b")  # of another network, or behind a wall
    await eventually(lambda: cluster.machines.connects.count("b") > 2, "a tries again")
    assert not cluster.machines.refusals
    assert cluster.has_session("b")


async def test_a_living_process_is_expired_once_at_most(cluster: Cluster) -> None:
    """Its machine refuses us and it lives: it comes back with another session, and keeps it."""
    await cluster.begin_watched("a", "b")
    store = cluster.stores["b"]
    former = store.session_id
    machines = cluster.machines
    machines.listening.discard("b")
    machines.cut("b")
    await eventually(lambda: store.session_id != former, "b was judged, and has a new session")
    machines.listening.add("b")
    await eventually(lambda: machines.open_connections("b"), "a watches b again")
    await store.put("/of-b", b"", ephemeral=True)
    attempts = machines.connects.count("b")
    machines.listening.discard("b")
    machines.cut("b")
    await eventually(lambda: machines.connects.count("b") > attempts, "a goes on")
    assert cluster.has_session("b")


async def test_a_new_process_is_checked_anew(cluster: Cluster) -> None:
    await cluster.begin_watched("a", "b")
    for _ in range(3):
        cluster.kill("b")
        await eventually(lambda: not cluster.has_session("b"), "b's nodes are gone")
        await cluster.begin("b")
        await eventually(lambda: cluster.machines.open_connections("b"), "a watches b again")


async def test_a_note_names_the_session_of_now(cluster: Cluster) -> None:
    await cluster.begin_watched("a", "b")
    store = cluster.stores["b"]
    cluster.base._shared.live_sessions.discard(store.session_id)
    former = store.session_id
    store.lose_session()
    store.begin_session()
    await cluster.base.expire_session(former)

    def key() -> str | None:
        node = cluster.base._tree.nodes.get(f"{SESSION_RECORDS_ROOT}/b")
        record = None if node is None else SessionRecord.decode(node.value)
        return None if record is None else record.key

    await eventually(lambda: key() == store.session_key, "the note is written anew")
    await store.delete(f"{SESSION_RECORDS_ROOT}/b")  # an operator
    await eventually(lambda: key() == store.session_key, "and again")


async def test_the_note_of_a_process_that_was_replaced_is_its_successors(cluster: Cluster) -> None:
    """Two processes of one name: the later one's note stays, whoever gets a new session."""
    await cluster.begin("b", incarnation=1)
    former = cluster.stores["b"]

    def key() -> str | None:
        node = cluster.base._tree.nodes.get(f"{SESSION_RECORDS_ROOT}/b")
        record = None if node is None else SessionRecord.decode(node.value)
        return None if record is None else record.key

    await eventually(lambda: key() == former.session_key, "it is there")
    former_watch = cluster.watches["b"]
    await cluster.begin("b", incarnation=2)
    later = cluster.stores["b"]
    await eventually(lambda: key() == later.session_key, "its successor's")
    former.lose_session()
    former.begin_session()
    await former.get("/")  # what it does at its return has been done
    for _ in range(20):
        await asyncio.sleep(0)
    assert key() == later.session_key
    await former_watch.leave()
    assert key() == later.session_key


async def test_who_got_a_new_session_while_it_was_watched_is_expired_with_that(
    cluster: Cluster,
) -> None:
    """ZooKeeper was away: all have new sessions, and the connections between them lasted."""
    await cluster.begin_watched("a", "b")
    store, connections = cluster.stores["b"], len(cluster.machines.connections["b"])
    former = store.session_id
    cluster.stores["a"].lose_session()
    store.lose_session()
    await cluster.base.expire_session(former)
    store.begin_session()
    await store.put("/of-b", b"", ephemeral=True)

    def is_noted() -> bool:
        node = cluster.base._tree.nodes.get(f"{SESSION_RECORDS_ROOT}/b")
        return node is not None and store.session_key.encode() in node.value

    await eventually(is_noted, "the note is written anew")
    cluster.stores["a"].begin_session()
    assert cluster.machines.open_connections("b") == connections
    cluster.kill("b")
    await eventually(lambda: not cluster.has_session("b"), "b's nodes are gone")


async def test_what_is_no_note_is_nobodys(cluster: Cluster) -> None:
    for number, value in enumerate((b"", b"[]", b"{}", b'{"broker":1}', b'{"broker":{}}')):
        await cluster.base.put(f"{SESSION_RECORDS_ROOT}/b{number}", value)
        assert SessionRecord.decode(value) is None
    await cluster.begin("a")
    await cluster.begin("c")
    await eventually(lambda: cluster.machines.open_connections("a"), "c watches a")


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_everybody_is_watched_by_two(count: int) -> None:
    names = [f"broker-{number}:8080" for number in range(count)]
    watchers = dict.fromkeys(names, 0)
    for name in names:
        found = next_in_ring(names, name)
        assert name not in found
        assert len(set(found)) == len(found)
        for each in found:
            watchers[each] += 1
    assert set(watchers.values()) == {min(2, count - 1)}


def test_who_is_not_in_the_ring_yet_watches_all_the_same() -> None:
    assert next_in_ring(["a", "c"], "b") == ["c", "a"]
    assert next_in_ring([], "b") == []
