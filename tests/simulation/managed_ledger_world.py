"""Brokers that write one managed ledger, and the judge of what they were told.

Numbers in comments are those of storage.md 10.1. The storage below is that of the ledger protocol's
simulation, without its judge of a single ledger.
"""

from __future__ import annotations

from bookkeeper.errors import LedgerError
from bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, decode
from bookkeeper.transport import AddRequest
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.entry_batch import Buffer
from managed_ledger.entry_cache import EntryCache
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ROOT, FactoryConfig, ManagedLedgerFactory
from managed_ledger.ledger_list import ManagedLedgerInfo, decode_info
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from metadata.errors import MetadataError
from tests.simulation.ledger_world import LedgerWorld, SimulatedStore
from tests.simulation.simulator import Node, Simulator

NAME = "t/n/persistent/log"
PATH = f"{ROOT}/{NAME}"
HEAD = b"head"


class LogWorld(LedgerWorld):
    """The cluster; judges every acknowledgement when it is given, and the log at the end."""

    def __init__(self, simulator: Simulator, bookie_count: int) -> None:
        super().__init__(simulator, bookie_count)
        self.acked_at: dict[bytes, Position] = {}
        self.owners = 0
        self.consumed = EARLIEST  # the furthest that any consumer acknowledged

    def on_sent(self, node: Node, request: AddRequest) -> None:
        """The payloads are judged at the end."""

    def on_metadata(self, node: Node, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        """Ledgers have a simulation of their own."""

    def stored(self) -> ManagedLedgerInfo | None:
        found = self.registry.nodes.get(PATH)
        return None if found is None else decode_info(found[0], PATH)

    def on_acked(self, payload: bytes, position: Position) -> None:
        info = self.stored()
        listed = () if info is None else tuple(x.ledger_id for x in info.ledgers)
        # A paused owner may hear of an entry that the next one has delivered and trimmed.
        is_kept = position[0] in listed or position <= self.consumed
        self._check(is_kept, f"33: {position} acked, listed are {listed}")
        self._check(payload not in self.acked_at, f"33: {payload!r} acked twice")
        self.acked_at[payload] = position

    def check_log(
        self,
        log: list[tuple[Position, bytes]],
        sent: list[list[bytes]],
        consumed: Position = EARLIEST,
    ) -> None:
        """Everything a fresh owner reads, against everything that was promised.

        Args:
            consumed: entries up to it may be trimmed.
        """
        positions = [x for x, _ in log]
        self._check(positions == sorted(set(positions)), "31: positions don't ascend")
        at = dict(log)
        for payload, position in self.acked_at.items():
            self._check(
                at.get(position) == payload or (position <= consumed and position not in at),
                f"33: {payload!r} was acked at {position}, there is {at.get(position)!r}",
            )
        found = [x for _, x in log]
        self._check(len(found) == len(set(found)), "34: a payload is there twice")
        for payloads in sent:
            mine = set(payloads)
            ours = [x for x in found if x in mine]
            self._check(ours == [x for x in payloads if x in set(ours)], "33: order changed")

    def check_list(self) -> None:
        """The stored list agrees with the ledgers' own metadata."""
        info = self.stored()
        assert info is not None
        ids = [x.ledger_id for x in info.ledgers]
        self._check(ids == sorted(set(ids)), f"31: {ids}")
        known = {
            metadata.ledger_id: metadata
            for path, (value, _) in self.registry.nodes.items()
            if path.rpartition("/")[2].startswith("L") and (metadata := decode(value))
        }
        for ledger in info.ledgers:
            found = known.get(ledger.ledger_id)
            self._check(found is not None, f"36: listed ledger {ledger} doesn't exist")
            if ledger.closed_ms and found is not None:
                truth = (found.state, found.last_entry + 1, found.length)
                says = (LedgerState.CLOSED, ledger.entries, ledger.size)
                self._check(truth == says, f"35: {ledger} but {truth}")


class Broker:
    """One process that opens the log and appends numbered payloads to it."""

    def __init__(self, world: LogWorld, config: ManagedLedgerConfig) -> None:
        self.world = world
        self.simulator = world.simulator
        self.number = world.owners
        world.owners += 1
        self.node = Node(f"broker-{self.number}")
        self.config = config
        clock = lambda: 1 + int(self.simulator.loop.now * 1000)  # noqa: E731  a clock is a function
        self.factory = ManagedLedgerFactory(
            world.client(self.node),
            SimulatedStore(self.node, world),
            EntryCache(1 << 16),
            FactoryConfig(),
            clock,
            self.simulator.rng,
        )
        self.log: ManagedLedger | None = None
        self.sent: list[bytes] = []
        self.reported = 0
        self.failed = 0
        self.is_fenced = False

    async def open(self) -> ManagedLedger:
        """Retries until it owns the log, as a broker does for its clients."""
        while True:
            try:
                self.log = await self.factory.open(NAME, self.config)
            except (ManagedLedgerError, LedgerError, MetadataError):
                await self.simulator.sleep_ms(100)
                continue
            self.log.on_fenced = self._on_fenced
            try:
                if self.config.retention_ms == 0:
                    await self.log.open_cursor("sub", EARLIEST)
            except (ManagedLedgerError, LedgerError, MetadataError):
                await self.log.close()
                self.is_fenced = False
                continue
            return self.log

    def acknowledge(self) -> None:
        """Somewhere between what is acknowledged and the end, as a consumer does."""
        log = self.log
        assert log is not None
        cursor = log.cursors.get("sub")
        if cursor is None or not cursor.backlog:
            return
        steps = self.simulator.rng.randint(1, cursor.backlog)
        position = log.position_after(cursor.mark_delete, steps)
        if log.is_valid(position):
            self.world.consumed = max(self.world.consumed, position)
            cursor.ack_cumulative(position)

    def _on_fenced(self, error: BaseException) -> None:
        self.simulator.check(not self.is_fenced, "on_fenced was called twice")
        self.is_fenced = True

    def append(self, count: int) -> None:
        log = self.log
        assert log is not None
        payloads = [b"%d-%d" % (self.number, len(self.sent) + i) for i in range(count)]
        self.sent += payloads
        waiting = list(payloads)

        def done(ledger_id: int, first: int, entries: int, error: BaseException | None) -> None:
            check = self.simulator.check
            if not self.node.alive:
                return  # its timers still run here; a client would hear nothing
            part = waiting[:entries]
            del waiting[:entries]
            check(len(part) == entries > 0, f"told about {entries} entries, open are {len(part)}")
            expected = self.sent[self.reported : self.reported + entries]
            check(part == expected, f"33: {part} reported before {expected}")
            self.reported += entries
            if error is not None:
                self.failed += entries
                return
            check(not self.is_fenced, "32: acked after fenced")
            for i, payload in enumerate(part):
                self.world.on_acked(payload, (ledger_id, first + i))

        bodies: list[Buffer] = list(payloads)
        log.append([HEAD] * count, bodies, done)

    async def read_all(self, start: Position = EARLIEST) -> list[tuple[Position, bytes]]:
        """All there is, by reads of random length."""
        log = self.log
        assert log is not None
        found: list[tuple[Position, bytes]] = []
        position, failures = start, 0
        while True:
            try:
                batch = await log.read(position, self.simulator.rng.randint(1, 20), 1 << 16)
            except LedgerError as error:
                failures += 1
                if failures == 200:
                    raise AssertionError(f"{position} can't be read") from error
                await self.simulator.sleep_ms(50)
                continue
            if batch is None:
                return found
            found += [
                ((batch.ledger_id, batch.first + i), bytes(x)) for i, x in enumerate(batch.bodies)
            ]
            position = (batch.ledger_id, batch.last + 1)
