"""Compaction at every step: power cuts, failing calls, flushes, deletions and reads in between.

Invariant 26: the set of live entries and their bytes stay the same; the old log goes last.
"""

import errno
import random
from collections.abc import Callable, Iterator

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.duplicate_adds import add_unless_stored
from magnetar.bookkeeper.bookie.gc.compaction import (
    Compaction,
    compact_steps,
    entry_log_bytes_fitting,
)
from magnetar.bookkeeper.bookie.gc.garbage_scan import drop_steps, remove_unreferenced_logs
from magnetar.bookkeeper.bookie.gc.over_replicated import empty_steps
from magnetar.bookkeeper.bookie.storage.entry_log import DATA_OFFSET, DIRECTORY
from magnetar.bookkeeper.bookie.storage.flush import flush_steps
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.storage_startup import open_storage
from magnetar.bookkeeper.transport import AddRequest
from tests.memory_file_system import Faults, MemoryFileSystem, PowerLoss
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG, KEY

DELETED, LIVE = (1, 2, 3), (4, 5)


class Disk:
    """A storage, the disk below it and what it must hold."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.index = MemoryStore(self.fs)
        self.storage = self._open()
        self.expected: dict[tuple[int, int], bytes] = {}

    def _open(self) -> LedgerStorage:
        return open_storage(self.fs, self.index, CONFIG, lambda: 0x5EED)

    def crash(self, seed: int) -> None:
        """Power off, and the next start."""
        rng = random.Random(seed)
        self.fs.power_off()
        after = self.fs.crash(rng)
        self.fs, self.index = after, self.index.crash(rng, after)
        self.storage = self._open()

    def add(
        self, ledger_id: int, first: int, count: int, size: int, *, recovery: bool = False
    ) -> None:
        ids = range(first, first + count)
        bodies = [b"%d.%d" % (ledger_id, entry_id) + b"." * size for entry_id in ids]
        heads = [
            packet.encode_head(ledger_id, entry_id, -1, 0, b"", body)
            for entry_id, body in zip(ids, bodies, strict=True)
        ]
        total = sum(map(len, heads)) + sum(map(len, bodies))
        done: Callable[[AddRequest, int], None] = lambda _request, _code: None  # noqa: E731
        request = AddRequest(ledger_id, KEY, ids, heads, bodies, total, recovery, done)
        assert add_unless_stored(self.storage, request) == codes.OK
        journal = self.storage.journal
        while (group := journal.take_group()) is not None:
            self.storage.writer.write(group)
            journal.on_durable(group)
        for entry_id, head, body in zip(ids, heads, bodies, strict=True):
            self.expected[ledger_id, entry_id] = head + body

    def flush(self) -> None:
        list(flush_steps(self.storage, self.storage.begin_flush()))
        self.storage.end_flush()

    def delete(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.storage.forget(ledger_id, 1)
        list(drop_steps(self.storage, ledger_ids, 1, []))
        for key in [key for key in self.expected if key[0] in ledger_ids]:
            del self.expected[key]

    def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        found = self.storage.read_cached(ledger_id, entry_id, 1, 1)
        found = found or self.storage.read_stored(ledger_id, entry_id, 1, 1)
        return bytes(found[0]) if found else None

    def check(self) -> None:
        """Exactly the live entries are there, and every location points to its record."""
        for (ledger_id, entry_id), data in self.expected.items():
            assert self.read(ledger_id, entry_id) == data, (ledger_id, entry_id)
        for ledger_id, state in self.storage.ledgers.items():
            held = {key[1] for key in self.expected if key[0] == ledger_id}
            stored = [
                entry_id
                for run in self.storage.stored_runs(ledger_id)
                for entry_id, size in enumerate(run.sizes, run.first)
                if size
            ]
            assert set(stored) <= held
            assert state.last_entry == max(held, default=-1)
        for log_id, log in self.storage.logs.logs.items():
            assert self.fs.exists(f"{DIRECTORY}/{log_id:016x}.log")
            live = sum(
                run.bytes
                for ledger_id in self.storage.ledgers
                for run in self.storage.stored_runs(ledger_id)
                if run.log_id == log_id
            )
            assert log.live == live, "what the index says to be alive is counted"


def sparse_disk() -> Disk:
    """Several logs, most of whose bytes belong to deleted ledgers."""
    disk = Disk()
    for round_number in range(12):
        for ledger_id in (*DELETED, *LIVE):
            disk.add(ledger_id, 4 * round_number, 4, size=300 if ledger_id in DELETED else 60)
        disk.flush()
    disk.delete(*DELETED)
    assert len(disk.storage.logs.logs) >= 5
    return disk


def steps_of(disk: Disk) -> tuple[Compaction, Iterator[None]]:
    compaction = Compaction("major", 0.9)
    return compaction, compact_steps(disk.storage, compaction)


def error_number(steps: Iterator[None]) -> int | None:
    try:
        list(steps)
    except OSError as error:
        return error.errno
    return None


def test_compaction_keeps_what_lives_and_frees_the_rest() -> None:
    disk = sparse_disk()
    before = sum(state.end for state in disk.storage.logs.logs.values())
    compaction, steps = steps_of(disk)
    left: list[int] = []
    for _ in steps:
        left.append(compaction.bytes_left)
        disk.check()
    assert compaction.done
    assert compaction.logs_removed >= 4
    assert left == sorted(left, reverse=True), "progress only goes one way"
    after = sum(state.end for state in disk.storage.logs.logs.values())
    assert compaction.bytes_freed > before // 2
    headers = 2 * DATA_OFFSET  # of the logs that it began
    assert compaction.bytes_freed - headers <= before - after <= compaction.bytes_freed
    disk.crash(seed=1)
    disk.check()


def test_power_fails_in_every_call_of_a_compaction() -> None:
    number = 0
    while True:
        disk = sparse_disk()
        disk.fs.faults.power_loss_at = disk.fs.call_count + number
        _, steps = steps_of(disk)
        try:
            list(steps)
            finished = True
        except PowerLoss:
            finished = False
        for seed in (number, -number - 1):  # two fates of what wasn't synced
            copy = Disk()
            copy.fs, copy.index, copy.expected = disk.fs, disk.index, disk.expected
            copy.crash(seed)
            copy.check()
            list(steps_of(copy)[1])  # and it can be done again
            copy.check()
        if finished:
            break
        number += 1
    assert number > 40


def test_every_call_of_a_compaction_fails_once() -> None:
    """EIO and ENOSPC: nothing is lost, now and after a restart; the next pass finishes."""
    for error in (errno.EIO, errno.ENOSPC):
        number = 0
        while True:
            disk = sparse_disk()
            disk.fs.faults = Faults(fail_at=disk.fs.call_count + number, error=error)
            _, steps = steps_of(disk)
            failed = error_number(steps)
            if failed is None:
                break
            assert failed == error
            disk.fs.faults = Faults()
            if error == errno.ENOSPC:  # with EIO the process ends
                disk.check()
                disk.add(9, 0, 3, size=60)
                disk.flush()
                list(steps_of(disk)[1])
                disk.check()
            disk.crash(number)
            disk.check()
            number += 1
        assert number > 40


def test_a_flush_or_a_deletion_between_any_two_steps() -> None:
    """New entries stay; a ledger that is deleted in the middle doesn't come back."""
    number = 0
    while True:
        disk = sparse_disk()
        _, steps = steps_of(disk)
        for at, _ in enumerate(steps):
            if at == number:
                disk.add(LIVE[0], 48, 4, size=60)
                disk.add(LIVE[0], 0, 4, size=60, recovery=True)  # copies that a repair wrote again
                disk.flush()
                disk.delete(LIVE[1])
            disk.check()
        if at < number:
            break
        disk.crash(number)
        disk.check()
        assert LIVE[1] not in disk.storage.ledgers
        number += 1
    assert number > 5


def test_a_deletion_that_waits_while_its_ledger_is_moved() -> None:
    """Forgotten on the loop, still in the index: what compaction moves meanwhile is dropped."""
    disk = sparse_disk()
    disk.storage.forget(LIVE[1], 1)
    list(steps_of(disk)[1])
    list(drop_steps(disk.storage, [LIVE[1]], 1, []))
    disk.expected = {key: data for key, data in disk.expected.items() if key[0] != LIVE[1]}
    disk.check()
    disk.crash(3)
    disk.check()
    assert LIVE[1] in disk.storage.deleted


def test_an_empty_log_that_a_flush_goes_on_with_stays() -> None:
    """The log at work may be dead and be written to between two steps of a removal."""
    disk = Disk()
    for ledger_id in DELETED:
        disk.add(ledger_id, 0, 8, size=900)
        disk.flush()
    for ledger_id in DELETED:
        disk.storage.forget(ledger_id, 1)
    disk.expected.clear()
    steps = drop_steps(disk.storage, DELETED, 1, [])
    next(steps)  # the index has dropped them, their logs are there
    assert len(disk.storage.logs.logs) >= 2
    next(steps)  # the first log is gone
    assert disk.storage.logs.active_id is not None
    disk.add(4, 0, 3, size=60)
    disk.flush()
    list(steps)
    disk.check()
    disk.crash(1)
    disk.check()


def test_a_damaged_log_is_kept_whole() -> None:
    disk = sparse_disk()
    run = disk.storage.stored_runs(LIVE[0])[0]
    path = f"{DIRECTORY}/{run.log_id:016x}.log"
    disk.fs.contents(path)[run.offset + 30] ^= 1
    compaction, steps = steps_of(disk)
    list(steps)
    assert compaction.logs_damaged == 1
    assert run.log_id in disk.storage.damaged_logs
    assert disk.fs.exists(path)
    disk.add(LIVE[0], 48, 4, size=60)
    disk.flush()  # into a log whose name is durable, whatever compaction had begun
    disk.crash(5)
    del disk.expected[LIVE[0], 0]
    for (ledger_id, entry_id), data in disk.expected.items():
        assert disk.read(ledger_id, entry_id) == data


def test_an_emptied_ledger_keeps_its_key_and_its_fence() -> None:
    """Over-replicated: no entry is left, a late writer is refused, a repair may fill it again."""
    disk = sparse_disk()
    disk.storage.empty(LIVE[0])
    report: list[object] = []
    list(empty_steps(disk.storage, [LIVE[0]], report))  # type: ignore[arg-type]
    disk.expected = {key: data for key, data in disk.expected.items() if key[0] != LIVE[0]}
    disk.check()
    for crash in (False, True):
        if crash:
            disk.flush()
            disk.crash(2)
        state = disk.storage.ledgers[LIVE[0]]
        assert (state.fenced, state.last_entry, state.master_key) == (True, -1, KEY)
        assert disk.storage.stored_runs(LIVE[0]) == []
    disk.add(LIVE[0], 8, 4, size=60, recovery=True)
    disk.flush()
    list(steps_of(disk)[1])
    disk.check()
    disk.crash(4)
    disk.check()
    assert disk.storage.ledgers[LIVE[0]].fenced


@pytest.mark.parametrize("percent", [90, 95, 99])
def test_a_disk_at_its_threshold_is_never_at_a_standstill(percent: int) -> None:
    """Logs as small as the bookie makes them there: a pass finds room and frees nearly all."""
    space = 1_000_000_000
    kept_free = space * (100 - percent) // 100
    log_bytes = entry_log_bytes_fitting(1 << 30, kept_free)
    assert log_bytes <= max(16 << 20, kept_free // 2)
    assert entry_log_bytes_fitting(8 << 20, kept_free) == 8 << 20
    # The same proportions on the small disk of the simulation.
    disk = sparse_disk()
    used = disk.fs.used_bytes()
    disk.fs.faults.space_bytes = used + 2 * CONFIG.entry_log_bytes
    compaction, steps = steps_of(disk)
    least = disk.fs.free_bytes()
    for _ in steps:
        least = min(least, disk.fs.free_bytes())
        disk.check()
    assert compaction.skipped_for_space == 0
    assert least > 0
    assert disk.fs.free_bytes() > 2 * CONFIG.entry_log_bytes


def test_a_log_that_does_not_fit_is_left_alone() -> None:
    disk = sparse_disk()
    disk.fs.faults.space_bytes = disk.fs.used_bytes()
    compaction, steps = steps_of(disk)
    list(steps)
    assert compaction.skipped_for_space > 0
    assert compaction.bytes_moved == 0
    disk.check()


def test_much_garbage_in_the_log_at_work_is_compacted_too() -> None:
    disk = Disk()
    disk.add(1, 0, 4, size=900)
    disk.add(4, 0, 4, size=60)
    disk.flush()
    disk.delete(1)
    (log_id,) = disk.storage.logs.logs
    list(steps_of(disk)[1])
    assert log_id not in disk.storage.logs.logs
    disk.check()


def test_empty_logs_of_a_crash_between_commit_and_removal_go_with_the_next_pass() -> None:
    disk = Disk()
    disk.add(1, 0, 8, size=900)
    disk.add(4, 0, 1, size=60)
    disk.flush()
    disk.storage.forget(1, 1)
    next(drop_steps(disk.storage, [1], 1, []))
    disk.expected = {key: data for key, data in disk.expected.items() if key[0] == 4}
    disk.crash(1)
    list(remove_unreferenced_logs(disk.storage))
    list(steps_of(disk)[1])
    disk.check()
    assert sum(state.end for state in disk.storage.logs.logs.values()) < 1000
