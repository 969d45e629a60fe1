"""A cluster in memory under virtual time, and the judge of its repairs.

The judge looks at every change of the metadata (docs/spec/storage.md, "Safety"): a transition must
be legal (2); a new member of a closed segment holds everything it owns when it is named (29); a
marker vanishes only if the ledger is gone, or each closed segment is whole on bookies that are
registered (30).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar

import orjson

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore, ledger_path
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookieUnavailableError, error_for_code
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, decode
from magnetar.bookkeeper.packet import is_intact
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.fragments import fragments_of, join_runs
from magnetar.bookkeeper.replication.replication_worker import ReplicationWorker
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH, ServiceInfo
from magnetar.bookkeeper.transport import ReadReply, ReadRequest
from magnetar.metadata.node_tree import Node
from tests.ledger_transitions import transition_error
from tests.simulation.model_bookie import ModelBookie, ModelBookieClient
from tests.simulation.simulator import VirtualLoop
from tests.unit.bookkeeper.replication.memory_store import MemoryMetadataStore, Server

T = TypeVar("T")
MARKERS = "/ledgers/underreplication/ledgers/"


def virtual(scenario: Callable[[], Coroutine[Any, Any, T]], limit_s: float = 100_000) -> T:
    """Run a scenario to its end; time passes when nothing else is left to do."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(asyncio.wait_for(scenario(), limit_s))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


READ_S = 0.005


class Client(ModelBookieClient):
    """As a process: reads take time, and nothing is answered while it is down."""

    def __init__(self, bookie: ModelBookie) -> None:
        super().__init__(bookie)
        self.reported: list[tuple[int, int]] = []
        self.added_ids: list[int] = []
        self.fail_adds_after: int | None = None  # requests until it goes down
        self.keeps_rot = False  # unlike the product's bookies, whose newest copy counts

    def add_entries(self, request: Any) -> None:
        if self.fail_adds_after is not None:
            if self.fail_adds_after == 0:
                self.bookie.up = False
            self.fail_adds_after -= 1
        if self.bookie.up and request.recovery:
            self.added_ids += request.entry_ids
            self._make_room(request)
        super().add_entries(request)

    def _make_room(self, request: Any) -> None:
        ledger = self.bookie.ledgers.get(request.ledger_id)
        if ledger is None or self.keeps_rot:
            return
        for entry_id in request.entry_ids:
            if entry_id in ledger.entries and not is_intact(ledger.entries[entry_id]):
                del ledger.entries[entry_id]

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        await asyncio.sleep(READ_S)
        return await super().read_entries(request)

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        if not self.bookie.up:
            raise BookieUnavailableError("down")
        if self.bookie.limbo:
            raise error_for_code(codes.UNKNOWN_LEDGER_STATE, "list entries")
        return join_runs(await super().list_entries(ledger_id, creator=creator))

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        self.reported.append((ledger_id, entry_id))
        return codes.OK


class Cluster:
    """Bookies b0, b1, ..., a client, and any number of workers."""

    def __init__(self, bookies: int = 4, config: ReplicationConfig | None = None) -> None:
        self.server = Server()
        self.server.on_change = self._check
        self.store = self.server.new_store()
        self.ledgers = LedgerStore(self.store)
        self.markers = UnderReplicationStore(self.store, self.clock)
        self.config = config or ReplicationConfig()
        self.bookies: dict[str, ModelBookie] = {}
        self.clients: dict[str, Client] = {}
        self.written: dict[int, dict[int, bytes]] = {}
        self.workers: list[ReplicationWorker] = []
        self.checked = 0
        self.violations: list[str] = []
        self.announced: set[tuple[int, str]] = set()  # losses that a marker has told of
        self._pools: list[BookiePool] = []
        self._count = bookies

    async def __aenter__(self) -> Self:
        for _ in range(self._count):
            await self.add_bookie()
        self.pool = await self.new_pool(self.store)
        rng = random.Random(7)
        self.client = BookKeeperClient(
            self.store, self.pool, RandomPlacement(rng), clock=self.clock, rng=rng
        )
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        # A worker takes what the judge raises in its write for a bug of its own, and goes on.
        assert kind is not None or self.violations == []
        for worker in self.workers:
            await worker.close()
        for pool in self._pools:
            await pool.close()

    def clock(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # Bookies

    async def add_bookie(self) -> str:
        name = f"b{len(self.bookies)}"
        self.bookies[name] = ModelBookie(name)
        self.clients[name] = Client(self.bookies[name])
        for pool in self._pools:
            pool.use(self.clients[name])
        await self.register(name)
        return name

    async def register(self, name: str, path: str = AVAILABLE_PATH) -> None:
        await self.store.put(f"{path}/{name}", ServiceInfo(name, "/zone/ud").encode(), -1)

    async def make_read_only(self, name: str) -> None:
        await self.register(name, READ_ONLY_PATH)
        await self.store.delete(f"{AVAILABLE_PATH}/{name}")
        self.bookies[name].refuse_adds = codes.READ_ONLY

    async def kill(self, name: str) -> None:
        """The process is gone, and its registration, too."""
        self.announced = {pair for pair in self.announced if pair[1] != name}
        self.bookies[name].up = False
        await self.store.delete(f"{AVAILABLE_PATH}/{name}")

    async def revive(self, name: str) -> None:
        self.bookies[name].up = True
        await self.register(name)

    async def new_pool(self, store: MemoryMetadataStore) -> BookiePool:
        pool = BookiePool(store)
        for client in self.clients.values():
            pool.use(client)
        await pool.start()
        self._pools.append(pool)
        return pool

    # Workers

    async def add_worker(
        self, *, start: bool = True, seed: int = 1, placement: EnsemblePlacementPolicy | None = None
    ) -> ReplicationWorker:
        """With a session of its own: ``session_of(worker)``."""
        store = self.server.new_store()
        worker = ReplicationWorker(
            store,
            LedgerStore(store),
            await self.new_pool(store),
            placement or RandomPlacement(random.Random(seed)),
            clock=self.clock,
            rng=random.Random(seed),
            config=self.config,
            client_config=ClientConfig(),
        )
        self.workers.append(worker)
        if start:
            worker.start()
        return worker

    def session_of(self, worker: ReplicationWorker) -> MemoryMetadataStore:
        store = worker._store
        assert isinstance(store, MemoryMetadataStore)
        return store

    # Ledgers

    async def write(
        self,
        count: int,
        quorums: tuple[int, int, int] = (3, 3, 3),
        *,
        body: bytes = b"x" * 100,
        close: bool = True,
    ) -> Any:
        """A ledger with ``count`` entries; its writer."""
        writer = await self.client.create_ledger(LedgerConfig(*quorums, password=b"secret"))
        self.written[writer.ledger_id] = {}
        await self.append(writer, count, body)
        if close:
            await writer.close()
        return writer

    async def append(self, writer: Any, count: int, body: bytes = b"x" * 100) -> None:
        first = writer.next_entry
        for entry_id in range(first, first + count):
            payload = b"%d/%d " % (writer.ledger_id, entry_id)
            writer.append([payload], [body])
            self.written[writer.ledger_id][entry_id] = payload + body
        await until(lambda: writer.last_confirmed == first + count - 1)

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.ledgers.require(ledger_id)).metadata

    async def mark_all(self, bookie: str) -> None:
        """What an auditor does when a bookie is lost."""
        async for found in self.ledgers.ranges():
            for ledger_id in found.ledger_ids:
                metadata = await self.metadata(ledger_id)
                if any(bookie in segment.bookies for segment in metadata.segments):
                    await self.markers.mark(ledger_id, [bookie])

    async def lose_first(self, writer: AsyncLedgerWriter) -> str:
        """Kill the first bookie of the ledger's first segment, mark its ledgers; returns it."""
        lost = writer.metadata.segments[0].bookies[0]
        await self.kill(lost)
        await self.mark_all(lost)
        return lost

    async def marked(self) -> list[int]:
        return [i async for ids in self.markers.ledger_ids() for i in ids]

    async def lose(self, bookie: str) -> None:
        await self.kill(bookie)
        await self.mark_all(bookie)

    async def repaired(self, ledger_id: int) -> LedgerMetadata:
        await self.until_repaired()
        return await self.metadata(ledger_id)

    async def until_repaired(self) -> None:
        await until_async(lambda: self._none_marked())

    async def _none_marked(self) -> bool:
        return not await self.marked()

    def assert_whole(self, metadata: LedgerMetadata) -> None:
        """Each member holds each entry it owns, intact and as it was written."""
        for fragment in fragments_of(metadata):
            for slot in range(fragment.ensemble_size):
                assert self.missing_of(fragment, slot) == []

    def missing_of(self, fragment: Any, slot: int) -> list[int]:
        bookie = self.bookies[fragment.bookies[slot]]
        ledger = bookie.ledgers.get(fragment.ledger_id)
        missing = []
        for first, end in fragment.runs_of(slot):
            for entry_id in range(first, end):
                packet = None if ledger is None else ledger.entries.get(entry_id)
                wanted = self.written[fragment.ledger_id][entry_id]
                if packet is None or not is_intact(packet) or packet[36:] != wanted:
                    missing.append(entry_id)
        return missing

    # The judge

    def _check(self, session: str, path: str, before: Node | None, after: Node | None) -> None:
        try:
            self._check_node(path, before, after)
        except AssertionError as error:
            self.violations.append(f"{path}: {error}")
            raise

    def _check_node(self, path: str, before: Node | None, after: Node | None) -> None:
        name = path.rpartition("/")[2]
        if path.startswith(MARKERS):
            if name.startswith("urL") and after is None:
                self._check_clear(int(name[3:]))
            elif name.startswith("urL") and after is not None:
                gone = set(orjson.loads(after.value)["bookies"]) - self._registered()
                self.announced.update((int(name[3:]), bookie) for bookie in gone)
        elif path.startswith("/ledgers/0") and name.startswith("L") and before and after:
            self._check_change(decode(before.value), decode(after.value))

    def _check_change(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        assert transition_error(old, new) is None
        fragments = {fragment.first_entry: fragment for fragment in fragments_of(new)}
        for index, segment in enumerate(old.segments):
            fragment = fragments[segment.first_entry]
            was_open = old.state.name != "CLOSED" and index == len(old.segments) - 1
            for slot, bookie in enumerate(segment.bookies):
                if fragment.bookies[slot] != bookie and not was_open:
                    missing = self.missing_of(fragment, slot)
                    assert not missing, f"invariant 29: {fragment.bookies[slot]}: {missing}"
                    self.checked += 1

    def _check_clear(self, ledger_id: int) -> None:
        node = self.server.tree.nodes.get(ledger_path(ledger_id))
        if node is None:
            return
        registered = self._registered()
        for fragment in fragments_of(decode(node.value)):
            for slot, bookie in enumerate(fragment.bookies):
                # One that died a moment ago will be marked again.
                is_known = (ledger_id, bookie) in self.announced
                assert bookie in registered or not is_known, f"invariant 30: {bookie} is gone"
                if fragment.is_closed:
                    assert self.missing_of(fragment, slot) == [], "invariant 30"
        self.checked += 1

    def _registered(self) -> set[str]:
        tree = self.server.tree
        return {*tree.children(AVAILABLE_PATH), *tree.children(READ_ONLY_PATH)}


async def until(condition: Callable[[], bool], seconds: float = 3600) -> None:
    """Let virtual time pass until ``condition`` holds."""

    async def ask() -> bool:
        return condition()

    await until_async(ask, seconds)


async def until_async(condition: Callable[[], Awaitable[bool]], seconds: float = 3600) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await condition():
        waited = loop.time() - began
        assert waited < seconds, "never became true"
        await asyncio.sleep(min(0.05, 0.001 + waited / 100))


def reason_of(marker: Any) -> str:
    assert marker is not None
    return str(marker.reason)


async def is_replaced(cluster: Cluster, ledger_id: int, lost: str) -> bool:
    return lost not in (await cluster.metadata(ledger_id)).segments[0].bookies
