"""Doubles for cursor tests: a log's ledger list, a BookKeeper and a metadata store in memory.

They keep the contracts of docs/internals/contracts.md, lose what those allow to be lost, and fail
where told: `Faults.step` is called before and after every effect on storage, and decides.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    LedgerError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    WriteFailedError,
)
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import BadVersionError, NotFoundError, OutcomeUnknownError
from magnetar.metadata.errors import MetadataWriteError as NotWritten
from magnetar.metadata.paths import check_path
from magnetar.metadata.store import Stat, Versioned, check_delete, check_put


class Positions:
    """A list of ledgers with their confirmed entries; answers as a managed ledger does."""

    def __init__(self, ledgers: Mapping[int, int]) -> None:
        self.ledgers = dict(sorted(ledgers.items()))

    @property
    def last_confirmed(self) -> Position:
        for ledger_id, entries in reversed(self.ledgers.items()):
            if entries:
                return (ledger_id, entries - 1)
        return (max(self.ledgers), -1) if self.ledgers else (-1, -1)

    @property
    def offsets(self) -> "Positions":
        return self

    def entries(self, ledger_id: int) -> int | None:
        return self.ledgers.get(ledger_id)

    def is_valid(self, position: Position) -> bool:
        return 0 <= position[1] < self.ledgers.get(position[0], 0)

    def first_position(self) -> Position:
        return self.next_position((-1, -1))

    def next_position(self, position: Position) -> Position:
        for ledger_id, entries in self.ledgers.items():
            if ledger_id == position[0] and position[1] + 1 < entries:
                return (ledger_id, max(position[1] + 1, 0))
            if ledger_id > position[0] and entries:
                return (ledger_id, 0)
        ledger_id, entry_id = self.last_confirmed
        return (ledger_id, entry_id + 1)

    def previous_position(self, position: Position) -> Position:
        for ledger_id, entries in reversed(self.ledgers.items()):
            if ledger_id < position[0] and entries:
                return (ledger_id, entries - 1)
            if ledger_id == position[0] and entries and position[1] > 0:
                return (ledger_id, min(position[1], entries) - 1)
        return (min(self.ledgers), -1) if self.ledgers else (-1, -1)

    def position_after(self, position: Position, entries: int) -> Position:
        for _ in range(entries):
            position = self.next_position(position)
        return position

    def entries_between(self, after: Position, upto: Position) -> int:
        return max(0, self._rank(upto) - self._rank(after))

    def _rank(self, position: Position) -> int:
        total = 0
        for ledger_id, entries in self.ledgers.items():
            if ledger_id < position[0]:
                total += entries
            elif ledger_id == position[0]:
                total += max(0, min(entries, position[1] + 1))
        return total

    def all_positions(self) -> list[Position]:
        return [(ledger, entry) for ledger, count in self.ledgers.items() for entry in range(count)]


_LIMBO: list[asyncio.Future[None]] = []  # what dead owners wait for; the loop holds no reference


@dataclass
class Faults:
    """What goes wrong for one owner. ``step`` numbers its effects on storage."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    crash_at: int = -1
    unknown_rate: float = 0.0
    append_failure_rate: float = 0.0
    create_failure_rate: float = 0.0
    put_failure_rate: float = 0.0  # the store says that it didn't write
    delay_max: int = 0
    steps: int = 0
    is_killed: bool = False
    names: list[str] = field(default_factory=list)

    def dies(self, name: str) -> bool:
        """Counts one step; True when the owner is dead from here on."""
        if not self.is_killed:
            self.steps += 1
            self.names.append(name)
            self.is_killed = self.steps == self.crash_at
        return self.is_killed

    async def step(self, name: str) -> None:
        for _ in range(self.rng.randint(0, self.delay_max) if self.delay_max else 0):
            await asyncio.sleep(0)
        if self.dies(name):
            for_ever: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            _LIMBO.append(for_ever)
            await for_ever


@dataclass
class StoredLedger:
    ledger_id: int
    bodies: list[bytes] = field(default_factory=list)
    confirmed: int = -1
    is_closed: bool = False


class Storage:
    """All cursor ledgers; shared by the owners."""

    def __init__(self) -> None:
        self.ledgers: dict[int, StoredLedger] = {}
        self.next_id = 1000
        self.deleted: set[int] = set()
        self.is_unavailable = False
        self.deletes_fail = False

    def recover(self, ledger_id: int, rng: random.Random) -> StoredLedger:
        """Ends the ledger: confirmed entries stay, a suffix of the others is lost."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError(f"ledger {ledger_id}")
        if not ledger.is_closed:
            kept = rng.randint(ledger.confirmed + 1, len(ledger.bodies))
            del ledger.bodies[kept:]
            ledger.is_closed = True
        return ledger


class FakeWriter:
    def __init__(self, storage: Storage, ledger: StoredLedger, faults: Faults) -> None:
        self.ledger_id = ledger.ledger_id
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self.held = False  # confirmations wait until `release`
        self._ledger = ledger
        self._faults = faults
        self._error: LedgerError | None = None
        self._upto = -1

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        assert len(heads) == len(bodies) > 0
        assert not any(heads)
        if self._error is not None:
            raise self._error
        first = len(self._ledger.bodies)
        if self._faults.dies("append"):
            return first
        if self._ledger.is_closed or self._ledger.ledger_id < 0:
            self.fail(LedgerFencedError("fenced"))
            return first
        kept = len(bodies)
        failing = self._faults.rng.random() < self._faults.append_failure_rate
        if failing:
            kept = self._faults.rng.randint(0, len(bodies))
        self._ledger.bodies.extend(bodies[:kept])
        self._upto = len(self._ledger.bodies) - 1
        if failing:
            self.fail(WriteFailedError("injected"))
        elif not self.held:
            self._later(self.release)
        return first

    def _later(self, call: Callable[[], None]) -> None:
        rounds = (
            self._faults.rng.randint(0, self._faults.delay_max) if self._faults.delay_max else 0
        )
        loop = asyncio.get_running_loop()

        def tick(left: int) -> None:
            if left:
                loop.call_soon(tick, left - 1)
            else:
                call()

        loop.call_soon(tick, rounds)

    def release(self) -> None:
        """What was appended so far is durable, unless somebody fenced the ledger meanwhile."""
        if self._error is not None or self._faults.is_killed:
            return
        if self._ledger.is_closed:
            self.fail(LedgerFencedError("fenced"))
            return
        self._ledger.confirmed = max(self._ledger.confirmed, self._upto)
        if self._faults.dies("confirmed"):
            return
        if self.on_confirmed is not None:
            self.on_confirmed(self._upto)

    def fail(self, error: LedgerError) -> None:
        self._error = error
        asyncio.get_running_loop().call_soon(self._report, error)

    def _report(self, error: LedgerError) -> None:
        if not self._faults.is_killed and self.on_failed is not None:
            self.on_failed(error)

    async def close(self) -> object:
        await self._faults.step("close-ledger")
        if self._ledger.is_closed:
            raise LedgerFencedError("fenced")
        self._ledger.is_closed = True
        del self._ledger.bodies[self._ledger.confirmed + 1 :]
        return self._ledger


@dataclass
class Run:
    ledger_id: int
    first: int
    bodies: list[bytes]


class FakeReader:
    def __init__(self, ledger: StoredLedger) -> None:
        self.ledger_id = ledger.ledger_id
        self.last_confirmed = len(ledger.bodies) - 1
        self._ledger = ledger

    async def read(self, first: int, last: int, bytes_max: int) -> Run:
        if not 0 <= first <= last <= self.last_confirmed:
            raise NoSuchEntryError(f"{first}..{last}")
        bodies: list[bytes] = []
        size = 0
        for body in self._ledger.bodies[first : last + 1]:
            size += len(body)
            if bodies and size > bytes_max:
                break
            bodies.append(body)
        return Run(self.ledger_id, first, bodies)


class FakeBookKeeper:
    """One owner's client."""

    def __init__(self, storage: Storage, faults: Faults) -> None:
        self.storage = storage
        self.faults = faults
        self.writers: list[FakeWriter] = []
        self.created: list[LedgerConfig] = []

    async def create_ledger(
        self, config: LedgerConfig, custom_metadata: Mapping[str, bytes]
    ) -> FakeWriter:
        assert custom_metadata["cursor"]
        await self.faults.step("create-ledger")
        if self.storage.is_unavailable or (
            self.faults.rng.random() < self.faults.create_failure_rate
        ):
            raise BookieUnavailableError("injected")
        ledger = StoredLedger(self.storage.next_id)
        self.storage.next_id += 1
        self.storage.ledgers[ledger.ledger_id] = ledger
        writer = FakeWriter(self.storage, ledger, self.faults)
        self.writers.append(writer)
        self.created.append(config)
        await self.faults.step("created-ledger")
        return writer

    async def open_ledger(
        self, ledger_id: int, password: bytes = b"", *, recover: bool
    ) -> FakeReader:
        assert recover
        await self.faults.step("open-ledger")
        if self.storage.is_unavailable and ledger_id in self.storage.ledgers:
            raise BookieUnavailableError("injected")
        return FakeReader(self.storage.recover(ledger_id, self.faults.rng))

    async def delete_ledger(self, ledger_id: int) -> None:
        await self.faults.step("delete-ledger")
        if self.storage.deletes_fail:
            raise BookieUnavailableError("injected")
        self.storage.ledgers.pop(ledger_id, None)
        self.storage.deleted.add(ledger_id)


@dataclass
class Late:
    """A put whose reply was lost and which may still be applied, as long as its version fits."""

    path: str
    value: bytes
    expected: int | None


class FakeNodes:
    """The metadata tree, shared by the owners."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self.late: list[Late] = []
        self.history: list[tuple[str, bytes]] = []
        self.owner: FakeLog | None = None  # whose the log's list is
        self.check: Callable[[], None] = lambda: None

    def apply(self, path: str, value: bytes, expected: int | None) -> int:
        found = self.nodes.get(path)
        actual = -1 if found is None else found[1]
        if expected is not None and expected != actual:
            raise BadVersionError(path, expected, None if found is None else actual)
        self.nodes[path] = (value, actual + 1)
        self.history.append((path, value))
        self.check()
        return actual + 1

    def apply_late(self, rng: random.Random) -> None:
        """Lost puts reach the store long after their caller gave up."""
        for late in self.late:
            if rng.random() < 0.7:
                try:
                    self.apply(late.path, late.value, late.expected)
                except BadVersionError:
                    continue
        self.late.clear()


class FakeStore:
    """One owner's session."""

    def __init__(self, nodes: FakeNodes, faults: Faults, session_id: str) -> None:
        self.nodes = nodes
        self.faults = faults
        self.session_id = session_id
        self.puts = 0
        self.is_down = False

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        await self.faults.step("get")
        if self.is_down:
            raise OutcomeUnknownError(path)
        found = self.nodes.nodes.get(path)
        return None if found is None else self._versioned(path, *found)

    async def put(self, path: str, value: bytes, expected_version: int | None = None) -> Versioned:
        check_put(path, value, expected_version, sequential=False)
        await self.faults.step("put")
        self.puts += 1
        if self.is_down or self.faults.rng.random() < self.faults.put_failure_rate:
            raise NotWritten(path, OSError("injected"))
        if self.faults.rng.random() < self.faults.unknown_rate:
            if self.faults.rng.random() < 0.5:
                self.nodes.late.append(Late(path, value, expected_version))
            else:
                with contextlib.suppress(BadVersionError):
                    self.nodes.apply(path, value, expected_version)
            raise OutcomeUnknownError(path)
        version = self.nodes.apply(path, value, expected_version)
        await self.faults.step("put-done")
        return self._versioned(path, value, version)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_delete(path, expected_version)
        await self.faults.step("delete")
        found = self.nodes.nodes.get(path)
        if found is None:
            raise NotFoundError(path)
        if expected_version is not None and expected_version != found[1]:
            raise BadVersionError(path, expected_version, found[1])
        del self.nodes.nodes[path]
        if self.faults.rng.random() < self.faults.unknown_rate:
            raise OutcomeUnknownError(path)

    async def children(self, path: str) -> list[str]:
        prefix = path + "/"
        return sorted(name[len(prefix) :] for name in self.nodes.nodes if name.startswith(prefix))

    def _versioned(self, path: str, value: bytes, version: int) -> Versioned:
        return Versioned(path, value, Stat(version, 0, 0, False, False))


class FakeLog(Positions):
    """The `ManagedLedgerView` of one owner."""

    def __init__(
        self,
        ledgers: Mapping[int, int],
        storage: Storage | None = None,
        nodes: FakeNodes | None = None,
        faults: Faults | None = None,
        config: ManagedLedgerConfig | None = None,
        session_id: str = "s1",
    ) -> None:
        super().__init__(ledgers)
        self.name = "t/n/persistent/log"
        self.path = "/managed-ledgers/t/n/persistent/log"
        self.faults = faults or Faults()
        self.storage = storage or Storage()
        self.nodes = nodes or FakeNodes()
        self.bookkeeper = FakeBookKeeper(self.storage, self.faults)
        self.fake_store = FakeStore(self.nodes, self.faults, session_id)
        # Any: the doubles implement what cursors use of these classes, not all of them.
        self.client: Any = self.bookkeeper
        self.store: Any = self.fake_store
        self.config = config or ManagedLedgerConfig()
        self.clock_ms = 1_000_000
        self.is_owner = True
        self.moves: list[tuple[Position, Position]] = []
        self.list_reads = 0
        self.nodes.owner = self.nodes.owner or self
        self.fenced: list[BaseException] = []

    def now_ms(self) -> int:
        return self.clock_ms

    async def owns_list(self) -> bool:
        self.list_reads += 1
        await self.fake_store.get(self.path)
        return self.nodes.owner is self

    def on_mark_delete(self, previous: Position, current: Position) -> None:
        self.moves.append((previous, current))

    def on_cursor_fenced(self, error: BaseException) -> None:
        self.fenced.append(error)

    def successor(self, session_id: str, faults: Faults | None = None) -> "FakeLog":
        """The same log at another owner, over the same storage."""
        self.nodes.owner = log = self.rival(session_id, faults)
        return log

    def rival(self, session_id: str, faults: Faults | None = None) -> "FakeLog":
        """At a process that had taken the list, before the one that has it now did."""
        return FakeLog(self.ledgers, self.storage, self.nodes, faults, self.config, session_id)


async def cancel_all_tasks() -> None:
    """Ends the tasks of dead owners, whatever they do about it."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.sleep(0)  # one that is cancelled may begin another, and wait for it
    _LIMBO.clear()
