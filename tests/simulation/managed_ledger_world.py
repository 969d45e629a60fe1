"""Brokers that write one managed ledger, and the judge of what they were told.

Numbers in comments are those of docs/spec/storage.md, "Safety". The storage below is that of the
ledger protocol's simulation, without its judge of a single ledger.
"""

import itertools
import random
from dataclasses import replace

from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, decode
from magnetar.bookkeeper.transport import AddRequest
from magnetar.managed_ledger.append_core import AppendState
from magnetar.managed_ledger.append_path import AppendPath
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import AckDone, Cursor
from magnetar.managed_ledger.cursor.cursor_format import ImageReplay, decode_record
from magnetar.managed_ledger.cursor.cursor_store import decode_node
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.factory import ROOT, FactoryConfig, ManagedLedgerFactory
from magnetar.managed_ledger.ledger_info_chunks import chunks_path
from magnetar.managed_ledger.ledger_rows import PackedRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo, decode_list_node
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.errors import MetadataError
from tests.simulation.ledger_world import LedgerWorld
from tests.simulation.simulator import Node, Simulator

NAME = "t/n/persistent/log"
PATH = f"{ROOT}/{NAME}"
HEAD = b"head"
OPENS_MAX = 1000
"""Far more than any run needs in which nothing is broken."""


class LogWorld(LedgerWorld):
    """The cluster; judges every acknowledgement when it is given, and the log at the end."""

    def __init__(self, simulator: Simulator, bookie_count: int) -> None:
        super().__init__(simulator, bookie_count)
        self.acked_at: dict[bytes, Position] = {}
        self.owners = 0
        self.consumed = EARLIEST  # the furthest that any consumer acknowledged
        self.consumed_singly: set[Position] = set()
        self.durable = EARLIEST  # of these, what a consumer was told is stored
        self.durable_singly: set[Position] = set()
        self._list = ManagedLedgerInfo()  # as it was written last

    def on_sent(self, node: Node, request: AddRequest) -> None:
        """The payloads are judged at the end."""

    def on_metadata(self, node: Node, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        """Ledgers have a simulation of their own."""

    def on_put(self, path: str, value: bytes) -> None:
        if path == PATH:
            before, self._list = self._list, self.list_in(value)
            self.on_list(before, self._list)

    def on_list(self, before: ManagedLedgerInfo, info: ManagedLedgerInfo) -> None:
        """What leaves the list is behind every cursor, wherever a crash would take that back to."""
        ends = [(x.ledger_id, x.entries - 1) for x in before.ledgers if x.closed_ms and x.entries]
        gone = [x for x in ends if not info.ledgers.has(x[0])]
        if not gone:
            return
        for path, (value, _) in self.registry.nodes.items():
            if path.startswith(f"{PATH}/"):
                stored = self.stored_mark_delete(value)
                self._check(gone[-1] <= stored, f"36: {gone[-1]} is trimmed, stored is {stored}")

    def stored_mark_delete(self, value: bytes) -> Position:
        """What is recovered from a cursor's node and its ledger, whose quorums are 1."""
        node, _ = decode_node(value, PATH)
        replay, has_records = ImageReplay(), False
        for entry_id in itertools.count():
            copies = (x.payload(node.ledger_id, entry_id) for x in self.bookies.values())
            if (record := next((x for x in copies if x is not None), None)) is None:
                break
            replay.on_record(decode_record(record, PATH), PATH)
            has_records = True
        return replay.image(PATH).mark_delete if has_records else node.mark_delete

    def stored(self) -> ManagedLedgerInfo | None:
        found = self.registry.nodes.get(PATH)
        return None if found is None else self.list_in(found[0])

    def list_in(self, value: bytes) -> ManagedLedgerInfo:
        """What a value of the list's node says; its chunks are there."""
        node, segments = decode_list_node(value, PATH), list[PackedRows]()
        for ref in node.chunks:
            found = self.registry.nodes.get(f"{chunks_path(PATH)}/{ref.name}")
            self._check(found is not None, f"41: chunk {ref.name} is named and doesn't exist")
            if found is not None:
                segments.append(PackedRows.decode(found[0], ref))
        return node.with_segments(segments)

    def on_acked(self, payload: bytes, position: Position) -> None:
        info = self.stored()
        listed = () if info is None else tuple(x.ledger_id for x in info.ledgers)
        # A paused owner may hear of an entry that the next one has delivered and trimmed.
        is_consumed = position <= self.consumed or position in self.consumed_singly
        is_kept = position[0] in listed or is_consumed
        self._check(is_kept, f"33: {position} acked, listed are {listed}")
        self._check(payload not in self.acked_at, f"33: {payload!r} acked twice")
        self.acked_at[payload] = position

    def check_log(
        self,
        log: list[tuple[Position, bytes]],
        brokers: "list[Broker]",
        consumed: Position = EARLIEST,
    ) -> None:
        """Everything a fresh owner reads, against everything that was promised.

        Args:
            brokers: all that appended.
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
        for broker in brokers:
            mine = set(broker.sent)
            ours = [x for x in found if x in mine]
            kept = set(ours)
            self._check(ours == [x for x in broker.sent if x in kept], "33: order changed")
            if ours:
                self._check_gaps(broker, kept, ours[-1], consumed)

    def _check_gaps(
        self, broker: "Broker", kept: set[bytes], last: bytes, consumed: Position
    ) -> None:
        """Before an entry that is there, only those may be missing that the producer was told
        aren't stored, and those that were trimmed: a prefix.
        """
        if consumed == EARLIEST:
            before = broker.sent
        else:
            start = next(i for i, x in enumerate(broker.sent) if x in kept)
            before = broker.sent[start:]
        for payload in before:
            if payload == last:
                return
            self._check(
                payload in kept or payload in broker.failed,
                f"33: {last!r} is there, but {payload!r} before it was lost",
            )

    def check_cursor(self, cursor: Cursor, log: list[tuple[Position, bytes]]) -> None:
        """What consumers were told is stored is; nothing is that none of them acknowledged."""
        self._check(
            self.durable <= cursor.mark_delete,
            f"37: the cursor is at {cursor.mark_delete}, {self.durable} was stored",
        )
        for position in self.durable_singly:
            self._check(cursor.state.is_acked(position), f"38: {position} comes again")
        for position in {*self.acked_at.values(), *(x for x, _ in log)}:
            self._check(
                position <= self.consumed
                or position in self.consumed_singly
                or not cursor.state.is_acked(position),
                f"38: {position} is skipped",
            )

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

    def __init__(
        self, world: LogWorld, config: ManagedLedgerConfig, node: Node | None = None
    ) -> None:
        self.world = world
        self.simulator = world.simulator
        self.number = world.owners
        world.owners += 1
        self.node = node or Node(f"broker-{self.number}")
        # Dice of its own, as it came later than the others.
        self.receipts = random.Random(11 * self.simulator.seed + self.number)
        self.config = replace(config, mark_delete_rate=self.receipts.choice([0.0, 0.0, 2.0]))
        self.unreceipted = EARLIEST  # what its consumer acknowledged and heard nothing of
        self.unreceipted_singly: set[Position] = set()
        clock = lambda: 1 + int(self.simulator.loop.now * 1000)  # noqa: E731  a clock is a function
        self.factory = ManagedLedgerFactory(
            world.client(self.node),
            world.make_store(self.node),
            EntryCache(1 << 16),
            FactoryConfig(),
            clock,
            self.simulator.rng,
        )
        self.log: ManagedLedger | None = None
        self.sent: list[bytes] = []
        self.reported = 0
        self.failed: set[bytes] = set()  # told that they aren't stored
        self.is_fenced = self._comes_between = False

    async def open(self) -> ManagedLedger:
        """Retries until it owns the log, as a broker does for its clients.

        Raises:
            AssertionError: it never does.
        """
        for _ in range(OPENS_MAX):
            try:
                return await self.open_once()
            except (ManagedLedgerError, LedgerError, MetadataError) as error:
                last = error
                await self.simulator.sleep_ms(100)
        raise AssertionError(f"liveness: the log can't be opened: {last!r}") from last

    async def open_once(self) -> ManagedLedger:
        """Raises what the factory, and the log when it is asked for its cursor, do."""
        self.log = await self.factory.open(NAME, self.config)
        self.unreceipted, self.unreceipted_singly = EARLIEST, set()
        self.log.on_fenced = self._on_fenced
        try:
            if self.config.retention_ms == 0:
                await self.log.open_cursor("sub", EARLIEST)
        except (ManagedLedgerError, LedgerError, MetadataError):
            await self.log.close()
            self.is_fenced = False
            raise
        return self.log

    def acknowledge(self, *, singly: bool | None = None) -> None:
        """Somewhere between what is acknowledged and the end, as a consumer does.

        Args:
            singly: one entry only, or all up to it; by default either.
        """
        log, rng, world = self.log, self.simulator.rng, self.world
        assert log is not None
        cursor = log.cursors.get("sub")
        if cursor is None or cursor.is_closed or not cursor.state.backlog:
            return
        steps = log.offsets.entries_between(cursor.mark_delete, log.last_confirmed)
        position = log.offsets.position_after(cursor.mark_delete, rng.randint(1, steps))
        if not log.offsets.is_valid(position):
            return
        is_single = rng.random() < 0.5 if singly is None else singly

        on_durable: AckDone | None = None

        def stored(error: BaseException | None) -> None:
            if error is not None or not self.node.alive:
                return
            if is_single:
                world.durable_singly.add(position)
            else:
                world.durable = max(world.durable, position)

        if self.receipts.random() < 0.5:
            on_durable = stored
        elif is_single:
            self.unreceipted_singly.add(position)
        else:
            self.unreceipted = max(self.unreceipted, position)
        if is_single:
            world.consumed_singly.add(position)
            cursor.ack([position], on_durable)
        else:
            world.consumed = max(world.consumed, position)
            cursor.ack_cumulative(position, on_durable=on_durable)

    @property
    def is_owner(self) -> bool:
        """It lives, and nobody took the log from it, whether it noticed or not."""
        info, log = self.world.stored(), self.log
        has_list = info is not None and log is not None and info.owner == log.lists._token
        return self.node.alive and not self.is_fenced and has_list

    def expect_stored(self) -> None:
        """After a clean end, or in rest, all that it acknowledged is stored, receipt or not.

        REQUIRES: it was the owner until now, and nothing failed meanwhile.
        """
        self.world.durable = max(self.world.durable, self.unreceipted)
        self.world.durable_singly |= self.unreceipted_singly

    def _on_fenced(self, error: BaseException) -> None:
        self.simulator.check(not self.is_fenced, "on_fenced was called twice")
        self.is_fenced = True

    def append(self, count: int) -> None:
        payloads = [b"%d-%d" % (self.number, len(self.sent) + i) for i in range(count)]
        self.append_entries([HEAD] * count, payloads)
        path = None if self.log is None else self.log.appends
        if path is not None and path.core._queued and not self._comes_between:
            self._comes_between = True
            self.simulator.start(self._come_between(path))

    def append_entries(self, heads: list[bytes], payloads: list[bytes]) -> None:
        """Payloads that no broker has sent before."""
        log = self.log
        assert log is not None
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
                self.failed.update(part)
                return
            last = (ledger_id, first + entries - 1)
            check(log.last_confirmed >= last, f"read after write: {last} can't be read yet")
            check(not self.is_fenced, "32: acked after fenced")
            for i, payload in enumerate(part):
                self.world.on_acked(payload, (ledger_id, first + i))

        bodies: list[Buffer] = list(payloads)
        log.append(heads, bodies, done)
        assert log.appends is not None, "it was made for the first append"
        log.appends.core.turn_entries = 1 + self.number % 3

    async def _come_between(self, path: AppendPath) -> None:
        """Append between two turns in which the log writes what was queued."""
        while self.node.alive and path.core._queued and path.core.refusal is None:
            if await path.wait_change(1) and path.core.state is AppendState.OPEN:
                self.append(1)
                break
        self._comes_between = False

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
