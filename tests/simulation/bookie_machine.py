"""One machine with a bookie's storage on a disk that can lose power, and a model of its promises.

Threads are replaced by steps: whoever drives the machine decides, from a seed, what happens next.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.config import StorageConfig
from magnetar.bookkeeper.bookie.duplicate_adds import add_unless_stored, is_same_entry
from magnetar.bookkeeper.bookie.gc.compaction import Compaction, compact_steps
from magnetar.bookkeeper.bookie.gc.garbage_scan import (
    GarbageReport,
    drop_steps,
    expire_deleted_steps,
)
from magnetar.bookkeeper.bookie.gc.over_replicated import empty_steps
from magnetar.bookkeeper.bookie.journal.journal import JournalGroup
from magnetar.bookkeeper.bookie.storage.flush import flush_steps
from magnetar.bookkeeper.bookie.storage.ledger_storage import FlushJob, LedgerStorage
from magnetar.bookkeeper.bookie.storage.storage_startup import open_storage
from magnetar.bookkeeper.transport import AddRequest
from tests.memory_file_system import Faults, MemoryFileSystem, PowerLoss
from tests.memory_store import MemoryStore
from tests.simulation.disk_roots import several_disks

CONFIG = StorageConfig(
    journal_segment_bytes=16 << 10,
    journal_group_bytes_max=4 << 10,
    journal_alignment_bytes=512,
    journal_extend_bytes=4 << 10,
    journal_spares_max=1,
    flush_bytes=6 << 10,
    flush_entries=50,
    entry_log_bytes=8 << 10,
    entry_log_write_bytes=2 << 10,
    entry_log_sync_bytes=8 << 10,
    run_entries_max=8,
    run_bytes_max=4 << 10,
)
KEY = bytes(20)


def digest_of_lac(lac: int) -> bytes | None:
    """Each LAC came with another one, or with ours."""
    return None if lac % 3 == 0 else bytes([lac % 256] * (lac % 21))


class Promises:
    """What the outside world was told, and what it merely asked for."""

    def __init__(self) -> None:
        self.asked: dict[tuple[int, int], set[bytes]] = {}  # every packet ever sent
        self.acked: dict[tuple[int, int], bytes] = {}
        self.bodies: dict[tuple[int, int], bytes] = {}  # of what was accepted last
        self.fenced: set[int] = set()
        self.lacs: dict[int, int] = {}
        self.deleting: set[int] = set()
        self.deleted: set[int] = set()
        self.next_entry: dict[int, int] = {}


class Machine:
    """Drives one storage; ``crash`` replaces disk and storage by what is left."""

    def __init__(self, seed: int, ignored_sync_points: frozenset[str] = frozenset()) -> None:
        self.rng = random.Random(seed)
        self.promises = Promises()
        self.fs = MemoryFileSystem(Faults(ignored_sync_points=set(ignored_sync_points)))
        self.index = MemoryStore(self.fs)
        self.seen: set[str] = set()
        self.empties = False  # ledgers are emptied now and then
        self.journals = 1  # from the next start on; never fewer than before
        self.ledger_directories = 1  # the same
        self._ignored = set(ignored_sync_points)
        self._storage: LedgerStorage | None = None
        self._reset()

    def _reset(self) -> None:
        self.written: dict[int, JournalGroup] = {}  # by journal: durable, but nobody was told
        self.job: FlushJob | None = None
        self.flushing: Iterator[None] | None = None
        self.long_job: Iterator[None] | None = None
        self.on_long_job_done: list[int] = []
        self.draining = -1
        self.fence_answers: set[int] = set()

    @property
    def storage(self) -> LedgerStorage:
        assert self._storage is not None
        return self._storage

    # ---- life

    def start(self) -> None:
        self._reset()
        self._storage = None
        config = replace(CONFIG, journals=self.journals)
        files = several_disks(self.fs, self.ledger_directories)
        self._storage = open_storage(files, self.index, config, lambda: self.rng.getrandbits(32))

    def crash(self) -> None:
        """Power off; the next start finds what the disk kept."""
        self.seen |= self.fs.sync_points_seen
        self.fs.power_off()
        fs = self.fs.crash(self.rng)
        self.index = self.index.crash(self.rng, fs)
        self.fs = fs
        fs.faults.ignored_sync_points = set(self._ignored)

    def run_until_power_loss(self, calls: int, steps_max: int) -> None:
        """Start and work; power fails in the call with number ``calls``, or after the steps."""
        self.fs.faults.power_loss_at = self.fs.call_count + calls
        try:
            self.start()
            self.check_promises()
            for _ in range(steps_max):
                self.step()
        except PowerLoss:
            pass
        self.crash()

    # ---- one step

    def step(self) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.40:
            self.add()
        elif kind < 0.65:
            self.journal_step()
        elif kind < 0.85:
            self.maintenance_step()
        elif kind < 0.90:
            self.fence(rng.randrange(4))
        elif kind < 0.93:
            self.write_lac(rng.randrange(4))
        elif kind < 0.95:
            if self.empties and rng.random() < 0.5:
                self.empty(rng.randrange(8))
            else:
                self.delete(rng.randrange(8))
        else:
            self.check_reads()

    def add(self) -> None:
        rng, promises = self.rng, self.promises
        ledger_id = rng.randrange(8)
        if ledger_id in promises.deleting:
            return
        recovery = rng.random() < 0.2
        next_entry = promises.next_entry.get(ledger_id, 0)
        count = rng.randrange(1, 7)
        if recovery and next_entry > 3:  # re-sent entries, perhaps with holes
            first = rng.randrange(max(0, next_entry - 20), next_entry)
            ids = [first + at for at in range(count) if rng.random() < 0.8] or [first]
        elif rng.random() < 0.2:  # striped
            ids = [next_entry + 2 * at for at in range(count)]
        else:
            ids = list(range(next_entry, next_entry + count))
        size = rng.choice([10, 100, 300, 1500, 20_000]) if rng.random() < 0.3 else 80
        heads, bodies = [], []
        is_same = rng.random() < 0.7  # else another ledger's entries under these ids
        for entry_id in ids:
            body = b"%d.%d.%d" % (ledger_id, entry_id, rng.getrandbits(32)) + b"x" * size
            body = promises.bodies.get((ledger_id, entry_id), body) if is_same else body
            lac = rng.randrange(-1, 3)  # a recovery may rewrite it
            heads.append(packet.encode_head(ledger_id, entry_id, lac, 0, b"head", body))
            bodies.append(body)
        total = sum(map(len, heads)) + sum(map(len, bodies))
        request = AddRequest(ledger_id, KEY, ids, heads, bodies, total, recovery, self.on_added)
        code = add_unless_stored(self.storage, request)
        if code == codes.OK:
            self.on_accepted(request)
            promises.next_entry[ledger_id] = max(next_entry, ids[-1] + 1)
        elif code == codes.ENTRY_DIFFERS:
            found = [self.read(ledger_id, entry_id) for entry_id in ids]
            sent = zip(found, heads, bodies, strict=True)
            differs = (stored and not is_same_entry(stored, *rest) for stored, *rest in sent)
            assert any(differs), "an add of what is here was refused"
        elif code == codes.TOO_MANY_REQUESTS:
            assert ledger_id == self.draining
        else:
            assert code == codes.FENCED, codes.code_name(code)
            assert self.storage.ledgers[ledger_id].fenced

    def on_accepted(self, request: AddRequest) -> None:
        promises, ledger_id = self.promises, request.ledger_id
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            key = ledger_id, entry_id
            stored = promises.acked.get(key)
            assert stored is None or is_same_entry(stored, head, body), f"{key} was replaced"
            promises.asked.setdefault(key, set()).add(head + body)
            promises.bodies[key] = body

    def on_added(self, request: AddRequest, code: int) -> None:
        assert code == codes.OK
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            self.promises.acked[request.ledger_id, entry_id] = head + body

    def fence(self, ledger_id: int) -> None:
        if ledger_id in self.promises.deleting:
            return

        def on_fenced(code: int) -> None:
            assert code == codes.OK
            if ledger_id in self.storage.ledgers:  # else dropped meanwhile
                self.storage.ledgers[ledger_id].fence_durable = True
                self.promises.fenced.add(ledger_id)

        code, state = self.storage.fence(ledger_id, KEY, on_fenced)
        assert code == codes.OK
        assert state is not None
        if state.fence_durable:
            self.promises.fenced.add(ledger_id)

    def write_lac(self, ledger_id: int) -> None:
        if ledger_id in self.promises.deleting:
            return
        lac = self.rng.randrange(1000)

        def on_written(code: int) -> None:
            assert code == codes.OK
            if ledger_id in self.storage.ledgers:
                self.promises.lacs[ledger_id] = max(lac, self.promises.lacs.get(ledger_id, -1))

        digest = digest_of_lac(lac)
        assert self.storage.write_lac(ledger_id, KEY, lac, on_written, 0, digest) == codes.OK

    def delete(self, ledger_id: int) -> None:
        """Drop a ledger and, afterwards, compact."""
        known = ledger_id in self.storage.ledgers
        if self.long_job is not None or not known or self.rng.random() < 0.5:
            if self.long_job is None:
                self.long_job = self.compaction()
            return
        self.promises.deleting.add(ledger_id)
        self.storage.forget(ledger_id, 1)
        self.on_long_job_done = [ledger_id]
        report: list[GarbageReport] = []
        self.long_job = drop_steps(self.storage, [ledger_id], 1, report)

    def empty(self, ledger_id: int) -> None:
        """Others hold the ledger now; a repair may write it here again."""
        if self.long_job is not None or ledger_id not in self.storage.ledgers:
            return
        if self.storage.empty(ledger_id):
            self.forget_model(ledger_id, keep_fence=True)
            self.long_job = empty_steps(self.storage, [ledger_id], [])
            self.draining = ledger_id

    def compaction(self) -> Iterator[None]:
        yield from compact_steps(self.storage, Compaction("major", 0.5))
        yield from expire_deleted_steps(self.storage, 0)

    # ---- threads, step by step

    def journal_step(self) -> None:
        """Write a group of one of the journals, or answer the one that was written."""
        number = self.rng.randrange(self.journals) if self.journals > 1 else 0
        journal = self.storage.journals[number]
        if (done := self.written.pop(number, None)) is not None:
            journal.on_durable(done)
            for waiting in done.waiting:
                if isinstance(waiting, AddRequest):
                    waiting.done(waiting, codes.OK)
                else:
                    assert callable(waiting)
                    waiting(codes.OK)
        elif (group := journal.take_group()) is not None:
            self.storage.writers[number].write(group)
            self.written[number] = group

    def maintenance_step(self) -> None:
        """One step of the flush that is under way, else of the long job; a flush begins by need."""
        if self.job is not None:
            if self.flushing is None and self.storage.flush_is_ready(self.job):
                self.flushing = flush_steps(self.storage, self.job)
            if self.flushing is not None and not self.advance(self.flushing):
                self.storage.end_flush()
                self.job = self.flushing = None
        elif self.storage.needs_flush:
            self.job = self.storage.begin_flush()
        elif self.long_job is not None and not self.advance(self.long_job):
            self.promises.deleted.update(self.on_long_job_done)
            self.long_job, self.on_long_job_done = None, []
            self.storage.end_draining(self.draining)
            self.draining = -1

    def advance(self, steps: Iterator[None]) -> bool:
        return next(steps, StopIteration) is not StopIteration

    # ---- checks

    def check_promises(self) -> None:
        """After a start: everything promised is there, and nothing that nobody sent."""
        storage, promises = self.storage, self.promises
        for ledger_id, entry_id in promises.acked:
            if ledger_id not in promises.deleting:
                self.check_entry(ledger_id, entry_id)
        for ledger_id in promises.fenced - promises.deleting:
            assert storage.ledgers[ledger_id].fenced, f"ledger {ledger_id} forgot its fence"
            assert storage.ledgers[ledger_id].fence_durable
        for ledger_id, lac in promises.lacs.items():
            if ledger_id not in promises.deleting:
                found = storage.ledgers[ledger_id]
                assert found.explicit_lac >= lac
                assert found.lac_digest == digest_of_lac(found.explicit_lac)
        for ledger_id in promises.deleted:
            assert ledger_id in storage.deleted, f"deleted ledger {ledger_id} is back"
            assert ledger_id not in storage.ledgers
        for ledger_id in list(promises.deleting - promises.deleted):
            # Power failed before the deletion was durable or reported; the next round repeats it.
            if ledger_id in storage.deleted:
                promises.deleted.add(ledger_id)
            else:
                promises.deleting.discard(ledger_id)
                self.forget_model(ledger_id)
        for ledger_id in storage.ledgers:
            self.check_index(ledger_id)

    def forget_model(self, ledger_id: int, *, keep_fence: bool = False) -> None:
        """A half-deleted ledger: its entries may be there or not."""
        for key in [key for key in self.promises.acked if key[0] == ledger_id]:
            del self.promises.acked[key]
        if keep_fence:
            return
        self.promises.fenced.discard(ledger_id)
        self.promises.lacs.pop(ledger_id, None)

    def check_index(self, ledger_id: int) -> None:
        """Every location points to the record it names (invariant 23), and they don't overlap."""
        end = 0
        for run in self.storage.stored_runs(ledger_id):
            assert run.first >= end
            end = run.end
            self.storage.logs.read_records(ledger_id, run)
            for entry_id, size in enumerate(run.sizes, run.first):
                if size:
                    packets = self.read(ledger_id, entry_id)
                    assert packets in self.promises.asked[ledger_id, entry_id]
        assert end - 1 <= self.storage.ledgers[ledger_id].last_entry

    def check_reads(self) -> None:
        """Acknowledged entries are readable at every moment (invariant 24)."""
        keys = [key for key in self.promises.acked if key[0] not in self.promises.deleting]
        for ledger_id, entry_id in self.rng.sample(keys, min(10, len(keys))):
            self.check_entry(ledger_id, entry_id)

    def check_entry(self, ledger_id: int, entry_id: int) -> None:
        found = self.read(ledger_id, entry_id)
        where = f"ledger {ledger_id}, entry {entry_id}"
        assert found is not None, f"{where} was acknowledged and is lost"
        assert found in self.promises.asked[ledger_id, entry_id], f"{where} has foreign bytes"
        acked, head = self.promises.acked[ledger_id, entry_id], found[: packet.PACKET_HEADER_BYTES]
        body = found[packet.PACKET_HEADER_BYTES :]
        assert is_same_entry(acked, head, body), f"{where} was acknowledged with other bytes"

    def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        packets = self.storage.read_cached(ledger_id, entry_id, 1, 1)
        if not packets:
            packets = self.storage.read_stored(ledger_id, entry_id, 1, 1)
        return bytes(packets[0]) if packets else None
