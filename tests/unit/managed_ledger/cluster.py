"""A small cluster for tests of the shells: real client, model bookies, metadata in memory."""

import random

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.placement.isolation import IsolationPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.entry_form import HeadsInFront
from magnetar.managed_ledger.factory import FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.offload.interfaces import LedgerOffloader
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.simulation.model_bookie import ModelBookie, ModelBookieClient
from tests.waiting import eventually as eventually

NAME = "t/ns/persistent/topic"
HEAD = b"head"
CONFIG = ManagedLedgerConfig(form=HeadsInFront(len(HEAD)), ledger_age_min_ms=0)


class Cluster:
    """One bookie, one metadata store; every `factory` is another broker with its own session."""

    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        self.store = EmbeddedMetadataStore.open(None)
        self.bookie = ModelBookie("b0")
        self.now_ms = 1_000_000
        self.rng = random.Random(7)
        self.cache_bytes = cache_bytes
        self.connections: list[ModelBookieClient] = []
        self.factories: list[ManagedLedgerFactory] = []
        self.sessions: list[EmbeddedMetadataStore] = []
        self.offloaders: list[LedgerOffloader] = []

    def factory(self) -> ManagedLedgerFactory:
        """Another broker process."""
        pool = BookiePool()
        connection = ModelBookieClient(self.bookie)
        pool.add(connection)
        self.connections.append(connection)
        session = self.store.new_session()
        self.sessions.append(session)
        clock = lambda: self.now_ms  # noqa: E731  a clock is a function here
        placement = IsolationPlacement(RandomPlacement(self.rng), None, pool.groups_of)
        client = BookKeeperClient(session, pool, placement, clock=clock, rng=self.rng)
        cache = EntryCache(self.cache_bytes)
        factory = ManagedLedgerFactory(
            client, session, cache, FactoryConfig(), clock, self.rng, self.offloaders
        )
        self.factories.append(factory)
        return factory

    async def close(self) -> None:
        for connection in self.connections:
            connection.release()
        for factory in self.factories:
            await factory.close()
        for session in self.sessions:
            await session.close()
        await self.store.close()


class Appends:
    """Appends to a log and keeps what became of it: payloads by position, and errors."""

    def __init__(self, log: ManagedLedger) -> None:
        self.log = log
        self.acked: list[tuple[Position, bytes]] = []
        self.errors: list[BaseException] = []
        self.failed = 0
        self.open = 0
        self.sent = 0

    def send(self, *payloads: bytes) -> None:
        waiting = list(payloads)
        self.sent += len(waiting)
        self.open += len(waiting)

        def done(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
            self.open -= count
            part = waiting[:count]
            del waiting[:count]
            assert len(part) == count > 0
            if error is None:
                self.acked += [((ledger_id, first + i), x) for i, x in enumerate(part)]
            else:
                assert ledger_id == -1
                self.failed += count
                self.errors.append(error)

        bodies: list[Buffer] = list(payloads)
        self.log.append([HEAD] * len(bodies), bodies, done)

    async def settle(self) -> None:
        await eventually(lambda: self.open == 0)

    async def stored(self, *payloads: bytes) -> None:
        self.send(*payloads)
        await self.settle()


async def appended(log: ManagedLedger, *payloads: bytes) -> Appends:
    appends = Appends(log)
    await appends.stored(*payloads)
    return appends


async def read_all(
    log: ManagedLedger, start: Position = EARLIEST, entries_max: int = 100
) -> list[tuple[Position, bytes]]:
    """Everything from ``start`` on, by repeated reads."""
    found: list[tuple[Position, bytes]] = []
    position = start
    while (batch := await log.read(position, entries_max, 1 << 20)) is not None:
        assert len(batch.heads) == len(batch.bodies) > 0
        assert (batch.ledger_id, batch.first) >= position
        assert all(bytes(x) == HEAD for x in batch.heads)
        found += [
            ((batch.ledger_id, batch.first + i), bytes(x)) for i, x in enumerate(batch.bodies)
        ]
        position = (batch.ledger_id, batch.last + 1)
    return found
