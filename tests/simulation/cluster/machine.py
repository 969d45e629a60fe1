"""A machine with one bookie: its disk, the lives of its process, and what it promised.

The bookie is the product's, shell and storage, over a file system in memory that forgets what was
not synced. A restart is a new process on what the disk kept.
"""

import asyncio
import errno
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig, GarbageCollectionConfig, StorageConfig
from magnetar.bookkeeper.bookie.integrity.integrity_service import IntegrityService
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.errors import BookkeeperError, StorageError
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.transport import AddRequest, LacReply
from magnetar.metadata.errors import MetadataError
from tests.memory_file_system import Faults, MemoryFileSystem, PowerLoss
from tests.memory_store import MemoryStore
from tests.simulation.cluster.metadata_model import ClusterStore, MetadataServer
from tests.simulation.cluster.nodes import ClusterLoop, Process
from tests.simulation.simulator import Recorder

STORAGE = StorageConfig(
    journal_segment_bytes=8 << 10,
    journal_group_bytes_max=4 << 10,
    journal_alignment_bytes=512,
    journal_extend_bytes=2 << 10,
    journal_spares_max=1,
    journal_queue_bytes_max=16 << 10,
    flush_bytes=2 << 10,
    flush_entries=20,
    entry_log_bytes=4 << 10,
    entry_log_write_bytes=1 << 10,
    entry_log_sync_bytes=4 << 10,
    run_entries_max=8,
    run_bytes_max=2 << 10,
)
COLLECTION = GarbageCollectionConfig(
    minor_interval_s=0.0,
    major_interval_s=3.0,
    compaction_bytes_per_s=0,  # a limit would go by the real clock
    forced_pause_s=2.0,
    over_replicated_interval_s=3.0,
)
SESSION_TIMEOUT_MS = 3000.0
DISK_BYTES = 256 << 10


class MachineChecker(Protocol):
    """Who is told what a machine's bookie does to its data."""

    def check(self, holds: bool, what: str) -> None: ...

    def count(self, what: str) -> None: ...

    def is_repair(self, request: AddRequest) -> bool: ...

    def on_forgotten(self, machine: "BookieMachine", ledger_id: int) -> None: ...

    def on_added(
        self, machine: "BookieMachine", request: AddRequest, code: int, was_fenced: bool
    ) -> None: ...

    def on_forced(
        self, machine: "BookieMachine", ledger_id: int, early: dict[int, bytes], code: int
    ) -> None: ...


class Promises:
    """What a bookie said it has. It holds over restarts, unless the test took it away.

    Attributes:
        entries: ledger -> entry -> packet, acknowledged as durable.
        early: the same of deferred adds, in this life, and no promise before a force.
        fences: ledgers it said to be fenced.
        lacs: ledger -> highest explicit LAC it said to have.
        spoilt: ledger -> entries whose copy here the test destroyed.
        rotten: those of them that merely can't be read: nobody knows before somebody tries.
    """

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.early: dict[int, dict[int, bytes]] = defaultdict(dict)
        self.fences: set[int] = set()
        self.lacs: dict[int, int] = {}
        self.spoilt: dict[int, set[int]] = defaultdict(set)
        self.rotten: set[tuple[int, int]] = set()

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        entries = self.entries.get(ledger_id)
        return entries is not None and entry_id in entries

    def is_spoilt(self, ledger_id: int, entry_id: int) -> bool:
        spoilt = self.spoilt.get(ledger_id)
        return spoilt is not None and entry_id in spoilt


class BookieMachine:
    """See the module's text.

    Attributes:
        bookie: the bookie that answers; None while there is none.
        refusal: why the last start was refused for good.
        is_damaged: the test took something from its disk since it last started.
        busy_until: until then, by the loop's time, it has no room for what repairs bring.
    """

    def __init__(
        self,
        server: MetadataServer,
        recorder: Recorder,
        checker: MachineChecker,
        host: str,
        location: str,
        layout: Layout,
    ) -> None:
        self.host = host
        self.layout = layout
        self.location = location
        self.bookie: Bookie | None = None
        self.process = Process(host, 0)
        self.process.alive = False
        self.promises = Promises()
        self.refusal: Exception | None = None
        self.clock_rate = 1.0
        self.clock_offset_ms = 0.0
        self.lives = 0
        self.wants_to_run = True
        self.accepts_data_loss = False
        self.is_damaged = False
        self.busy_until = 0.0
        self.background_tasks: IntegrityService | None = None
        self.on_open: Callable[[BookieMachine, Bookie, ClusterStore], None] = lambda *_: None
        self.store: ClusterStore | None = None
        self._server = server
        self._loop: ClusterLoop = server.loop
        self._rng: random.Random = server.rng
        self._recorder = recorder
        self._checker = checker
        self._task: asyncio.Task[None] | None = None
        self.fs = MemoryFileSystem(Faults(space_bytes=DISK_BYTES))
        self.index = MemoryStore(self.fs)

    def __str__(self) -> str:
        return self.host

    @property
    def now_s(self) -> float:
        """The world's time, which its own clock doesn't know."""
        return self._loop.now

    @property
    def is_up(self) -> bool:
        return self.bookie is not None and self.process.alive

    @property
    def storage(self) -> LedgerStorage:
        assert self.bookie is not None
        return self.bookie.storage

    # Life

    def start(self) -> asyncio.Task[None]:
        """Begin a new life; the task ends when the bookie serves, or its start was refused."""
        assert not self.process.alive
        self.lives += 1
        self._recorder.event("start", self.host, self.lives)
        process = self.process = Process(self.host, self.lives)
        process.clock_rate = self.clock_rate
        process.clock_offset_ms = self.clock_offset_ms
        process.on_power_loss = self._on_power_loss
        self.promises.early.clear()
        self.refusal = None
        self._task = process.context.run(self._loop.create_task, self._open(process))
        return self._task

    def stop(self, *, power: bool) -> None:
        """Kill the process; without power the disk keeps only what was synced, and some more."""
        if not self.process.alive:
            return
        self._recorder.event("power cut" if power else "kill", self.host)
        self._recorder.count("fault: power cut" if power else "fault: bookie killed")
        self.process.alive = False
        self.bookie = None
        self.fs.power_off()
        if power:
            fs = self.fs.crash(self._rng)
            self.index = self.index.crash(self._rng, fs)
        else:
            fs = _survive(self.fs)
            self.index = _survive_index(self.index, fs)
        fs.faults.space_bytes = DISK_BYTES
        self.fs = fs
        if self.store is not None:
            store, self.store = self.store, None
            self._loop.after_ms(
                self._rng.uniform(0.3, 1.0) * SESSION_TIMEOUT_MS,
                self._server.end_session,
                store.session_id,
                process=None,
            )

    def lose_disk(self) -> None:
        """The process must be dead. An empty disk takes the place of the old one."""
        assert not self.process.alive
        self._recorder.event("disk lost", self.host)
        self._recorder.count("fault: disk lost")
        self.is_damaged = True
        self.fs = MemoryFileSystem(Faults(space_bytes=DISK_BYTES))
        self.index = MemoryStore(self.fs)
        for ledger_id, entries in self.promises.entries.items():
            self.promises.spoilt[ledger_id].update(entries)
        self.promises.lacs.clear()

    def lose_journal(self) -> None:
        """The process must be dead. All journal segments are gone."""
        self._recorder.event("journal lost", self.host)
        self._recorder.count("fault: journal lost")
        self.is_damaged = True
        self.promises.lacs.clear()
        for name in self.fs.list("journal"):
            self.fs.remove(f"journal/{name}")
        self.fs.sync_dir("journal", "journal.name")

    def rot(self, ledger_id: int, entry_id: int) -> bool:
        """Flip a bit of an entry in an entry log; False: it isn't in one."""
        assert self.bookie is not None
        run = self.storage.find_run(ledger_id, entry_id)
        if run is None:
            return False
        name = next((n for n in self.fs.list("entry-log") if _log_id(n) == run.log_id), None)
        if name is None:
            return False
        packet = self.promises.entries[ledger_id][entry_id]
        data = self.fs.contents(f"entry-log/{name}")
        at = data.find(packet, run.offset)
        if at < 0:
            return False
        data[at + self._rng.randrange(len(packet))] ^= 1 << self._rng.randrange(8)
        self.promises.spoilt[ledger_id].add(entry_id)
        self.promises.rotten.add((ledger_id, entry_id))
        self._recorder.event("bit flipped", self.host, ledger_id, entry_id)
        self._recorder.count("fault: bit flipped")
        return True

    def fail_call(self, calls: int, *, power: bool) -> None:
        """The call after so many is the one in which the disk fails, or power is cut."""
        number = self.fs.call_count + calls
        if power:
            self.fs.faults.power_loss_at = number
        else:
            self.fs.faults.fail_at = number
            self.fs.faults.error = errno.EIO

    def fill_disk(self, left: int) -> None:
        """So many bytes are free from now on."""
        self._recorder.count("fault: disk full")
        self.fs.faults.space_bytes = self.fs.used_bytes() + left

    def empty_disk(self) -> None:
        self.fs.faults.space_bytes = DISK_BYTES

    async def _open(self, process: Process) -> None:
        if not process.alive:
            return  # killed in the very moment of its start
        store = self.store = ClusterStore(self._server, process)
        config = BookieConfig(
            bookie_id=self.host,
            data_dir=Path("/", self.host),
            storage=STORAGE,
            network_location=self.location,
            flush_interval_s=1.0,
            disk_reserve_bytes=8 << 10,
            disk_check_interval_s=0.3,
            collection=COLLECTION,
            accept_data_loss=self.accepts_data_loss,
        )
        lost_before = self.accepts_data_loss
        try:
            bookie = await open_bookie(
                config,
                self.fs,
                store,
                index=self.index,
                new_nonce=lambda: self._rng.getrandbits(32),
                before_register=self._serve,
                layout=self.layout,
            )
        except PowerLoss:
            self._on_power_loss()
        except (MetadataError, BookkeeperError, OSError) as error:
            if process.alive:
                self._on_refused(error)
        else:
            if lost_before:
                self._recorder.count("state: started in limbo")
            if process.alive:
                self.accepts_data_loss = self.is_damaged = False
                self.on_open(self, bookie, store)

    def _on_refused(self, error: Exception) -> None:
        """The process ends; what an operator has to decide is in ``refusal``."""
        kind = type(error).__name__
        self._recorder.event("refused", self.host, kind)
        self._recorder.count(f"state: start refused, {kind}")
        if isinstance(error, StorageError):
            self.refusal = error
            self._checker.check(
                self.is_damaged, f"21: {self.host}, which lost nothing, refuses to start: {error!r}"
            )
        self.stop(power=False)

    async def _serve(self, bookie: Bookie) -> None:
        """The storage is open: whatever was promised must be there."""
        bookie.on_fatal = self._on_fatal
        _DataWatch(self, bookie, self._checker)
        self.bookie = bookie
        self.check_promises()

    def _on_fatal(self, error: BaseException) -> None:
        self._recorder.event("fatal", self.host, type(error).__name__)
        self._recorder.count("state: a bookie ended by a disk error")
        self.stop(power=False)

    def _on_power_loss(self) -> None:
        self.stop(power=True)

    # Promises

    def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        """What the storage has, past the shell; None: nothing, or it is damaged."""
        storage = self.storage
        try:
            packets = storage.read_cached(ledger_id, entry_id, 1, 1)
            packets = packets or storage.read_stored(ledger_id, entry_id, 1, 1)
        except (StorageError, OSError):
            return None
        return bytes(packets[0]) if packets else None

    def has_durably(self, ledger_id: int, entry_id: int) -> bool:
        """Promised, or on disk although nobody heard of it."""
        promises = self.promises
        if promises.is_spoilt(ledger_id, entry_id):
            return (ledger_id, entry_id) in promises.rotten
        if promises.holds(ledger_id, entry_id):
            return True
        if self.bookie is None:
            return False
        journal = self.storage.journal
        for group in (journal.in_flight, *journal._groups):
            for waiting in () if group is None else group.waiting:
                if (
                    isinstance(waiting, AddRequest)
                    and waiting.ledger_id == ledger_id
                    and entry_id in waiting.entry_ids
                ):
                    return False  # only in memory yet
        packet = self.read(ledger_id, entry_id)
        if packet is None:
            return False
        promises.entries[ledger_id][entry_id] = packet
        return True

    def check_promises(self) -> None:
        """21, 22, 23: after a start, everything acknowledged is there, fences and LACs too."""
        promises, storage = self.promises, self.storage
        for ledger_id, entries in promises.entries.items():
            for entry_id, packet in entries.items():
                if promises.is_spoilt(ledger_id, entry_id):
                    continue
                found = self.read(ledger_id, entry_id)
                if found != packet and self.is_damaged:
                    promises.spoilt[ledger_id].add(entry_id)
                    continue
                self._checker.check(
                    found == packet,
                    f"21: {self.host} acknowledged entry {entry_id} of ledger {ledger_id}, "
                    f"after a restart it has {found!r}",
                )
        for ledger_id in sorted(promises.fences):
            state = storage.ledgers.get(ledger_id)
            # After a loss it refuses every writer as long as nobody has looked, trace or not.
            is_fenced = (
                ledger_id < storage.lost_below
                if state is None
                else state.fenced or state.limbo or state.fence_unknown
            )
            self._checker.check(
                is_fenced or ledger_id in storage.deleted or self._is_gone(ledger_id),
                f"15, 21: {self.host} forgot the fence of ledger {ledger_id}",
            )
        for ledger_id, lac in promises.lacs.items():
            state = storage.ledgers.get(ledger_id)
            self._checker.check(
                (state is not None and (state.explicit_lac >= lac or state.limbo))
                or ledger_id in storage.deleted
                or self._is_gone(ledger_id),
                f"9, 21: {self.host} said LAC {lac} of ledger {ledger_id}, now "
                f"{state and state.explicit_lac}",
            )

    def knows_its_loss(self, ledger_id: int) -> bool:
        """Of this ledger it says no "no", or it can't be asked before it has found out."""
        if self.bookie is None:
            return self.is_damaged
        state = self.storage.ledgers.get(ledger_id)
        return self.storage.is_unknown(ledger_id) if state is None else state.limbo

    def _is_gone(self, ledger_id: int) -> bool:
        """Its metadata was deleted: nobody can write to it."""
        return ledger_path(ledger_id) not in self._server.nodes


class _DataWatch:
    """Stands before what adds to a bookie's data and deletes from it, whoever does so."""

    def __init__(self, machine: BookieMachine, bookie: Bookie, checker: MachineChecker) -> None:
        storage = bookie.storage
        self._machine, self._bookie, self._checker = machine, bookie, checker
        self._drops: Counter[int] = Counter()  # ledger -> how often it was forgotten or emptied
        self._add, self._force = bookie.add_entries, bookie.force
        self._write_lac, self._read_lac = bookie.write_lac, bookie.read_lac
        self._forget, self._empty = storage.forget, storage.empty
        bookie.add_entries = self.add_entries  # type: ignore[method-assign]
        bookie.force = self.force  # type: ignore[method-assign]
        bookie.write_lac = self.write_lac  # type: ignore[method-assign]
        bookie.read_lac = self.read_lac  # type: ignore[method-assign]
        storage.forget = self.forget  # type: ignore[method-assign]
        storage.empty = self.empty  # type: ignore[method-assign]

    def add_entries(self, request: AddRequest) -> None:
        machine, tell, ledger_id = self._machine, request.done, request.ledger_id
        drops = self._drops[ledger_id]
        was_fenced = ledger_id in machine.promises.fences

        def done(answered: AddRequest, code: int) -> None:
            if machine.bookie is not self._bookie:
                return  # it died
            if drops == self._drops[ledger_id]:  # else its ledger was deleted meanwhile
                self._checker.on_added(machine, answered, code, was_fenced)
            tell(answered, code)

        request.done = done
        if machine.busy_until > machine.now_s and self._checker.is_repair(request):
            self._checker.count("fault: busy target")
            done(request, codes.TOO_MANY_REQUESTS)
            return
        self._add(request)

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        machine, drops = self._machine, self._drops[ledger_id]
        early = machine.promises.early.get(ledger_id, {})
        vouched = {entry_id: packet for entry_id, packet in early.items() if entry_id >= first}
        code = await self._force(ledger_id, first, master_key=master_key)
        if machine.bookie is self._bookie and drops == self._drops[ledger_id]:
            self._checker.on_forced(machine, ledger_id, vouched, code)
        return code

    async def write_lac(
        self,
        ledger_id: int,
        lac: int,
        *,
        master_key: bytes,
        creator: int = 0,
        digest: bytes | None = None,
    ) -> int:
        drops, lacs = self._drops[ledger_id], self._machine.promises.lacs
        code = await self._write_lac(
            ledger_id, lac, master_key=master_key, creator=creator, digest=digest
        )
        if code == codes.OK and self._is_as_before(ledger_id, drops):
            lacs[ledger_id] = max(lac, lacs.get(ledger_id, -1))
        return code

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        """9: an explicit LAC never goes back."""
        drops, said = self._drops[ledger_id], self._machine.promises.lacs.get(ledger_id, -1)
        reply = await self._read_lac(ledger_id, fence=fence, master_key=master_key, creator=creator)
        if reply.code == codes.OK and self._is_as_before(ledger_id, drops):
            self._checker.check(
                reply.explicit_lac >= said,
                f"9: {self._machine.host} said LAC {said} of ledger {ledger_id}, then "
                f"{reply.explicit_lac}",
            )
        return reply

    def _is_as_before(self, ledger_id: int, drops: int) -> bool:
        """It is still this life, and the ledger was neither forgotten nor emptied meanwhile."""
        return self._machine.bookie is self._bookie and drops == self._drops[ledger_id]

    def forget(self, ledger_id: int, deleted_at_s: int) -> None:
        self._checker.on_forgotten(self._machine, ledger_id)
        self._drops[ledger_id] += 1
        promises = self._machine.promises
        promises.entries.pop(ledger_id, None)
        promises.early.pop(ledger_id, None)
        promises.fences.discard(ledger_id)
        promises.lacs.pop(ledger_id, None)
        self._forget(ledger_id, deleted_at_s)

    def empty(self, ledger_id: int) -> bool:
        """Its key and fence stay."""
        if not self._empty(ledger_id):
            return False
        self._checker.on_forgotten(self._machine, ledger_id)
        self._drops[ledger_id] += 1
        self._machine.promises.entries.pop(ledger_id, None)
        self._machine.promises.early.pop(ledger_id, None)
        return True


def _log_id(name: str) -> int:
    digits = name.partition(".")[0]
    return int(digits, 16)


def _survive(fs: MemoryFileSystem) -> MemoryFileSystem:
    """The machine lives on, its process doesn't: page cache and directories stay."""
    after = MemoryFileSystem(Faults(space_bytes=fs.faults.space_bytes))
    after._directories = set(fs._directories)
    after._names = dict(fs._names)
    after._durable_names = dict(fs._durable_names)
    after._unsynced_names = list(fs._unsynced_names)
    return after


def _survive_index(index: MemoryStore, fs: MemoryFileSystem) -> MemoryStore:
    after = MemoryStore(fs)
    after._values = dict(index._values)
    after._keys = list(index._keys)
    after._durable = dict(index._durable)
    after._unsynced = list(index._unsynced)
    return after
