"""Damage of every kind in a bookie's files: the scrub names it, and a repair is all or nothing."""

import errno
import random
from collections.abc import Iterator

import pytest

from magnetar.bookkeeper.bookie.integrity.scrub import (
    DamagedRange,
    ScrubStep,
    check_entries_steps,
    check_index_steps,
    scrub_steps,
)
from magnetar.bookkeeper.bookie.integrity.scrub_repair import RepairCopies, repair_steps
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.errors import CorruptFileError
from tests.memory_file_system import MemoryFileSystem, PowerLoss
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import KEY, Machine
from tests.simulation.simulator import seeds
from tests.simulation.test_bookie_disk_faults import Acked, add, flush, read, reopen, write_groups

TAG = record_format.make_tag(0, 0xC0FFEE)


def filled(
    batches: int = 5,
) -> tuple[MemoryFileSystem, MemoryStore, LedgerStorage, Acked, str]:
    """Ledger 1 in several runs of one entry log."""
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    for batch in range(batches):
        add(storage, 10 * batch, 8, acked)  # two holes after each: the run ends there or not
        flush(storage)
    (name,) = fs.list("entry-log")
    return fs, index, storage, acked, f"entry-log/{name}"


def run(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def scrub(storage: LedgerStorage, slice_bytes: int = 1 << 30) -> list[DamagedRange]:
    found = ScrubStep(min(storage.logs.logs), b"", max(storage.logs.logs))
    while found.log_id <= found.last_log:
        found.bytes = 0
        run(scrub_steps(storage, found, slice_bytes))
    return found.damages


def damaged_ids(damages: list[DamagedRange]) -> list[int]:
    return [id_ for damage in damages for id_ in range(damage.first, damage.end)]


def repair(storage: LedgerStorage, ids: list[int], acked: Acked) -> list[int]:
    copies = RepairCopies(1, {id_: acked[id_] for id_ in ids}, TAG, ids)
    run(repair_steps(storage, copies))
    return copies.stored


@pytest.mark.parametrize("slice_bytes", [1, 1000, 1 << 30])
def test_a_sound_disk_has_no_damage_and_every_byte_is_read(slice_bytes: int) -> None:
    _, _, storage, acked, _ = filled()
    found = ScrubStep(1, b"", 1)
    total = 0
    while found.log_id <= found.last_log:
        found.bytes = 0
        run(scrub_steps(storage, found, slice_bytes))
        total += found.bytes
    assert found.damages == []
    assert found.entries == len(acked)
    assert total == storage.logs.logs[1].end - 64


def test_every_flipped_byte_is_found_and_named() -> None:
    fs, _, storage, acked, path = filled(2)
    data = fs.contents(path)
    for offset in range(64, len(data), 7):
        data[offset] ^= 0x20
        (damage,) = scrub(storage)
        assert damage.end == damage.first + 1
        assert (damage.path, damage.ledger_id) == (path, 1)
        assert damage.offset <= offset < damage.offset + 16 + len(acked[damage.first])
        assert damage.first in acked
        data[offset] ^= 0x20


def test_neighbours_are_one_range_and_others_are_not() -> None:
    fs, _, storage, acked, path = filled(1)
    run_of = storage.find_run(1, 0)
    assert run_of is not None
    for id_ in (1, 2, 3, 6):
        fs.contents(path)[run_of.offset_of(id_) + 60] ^= 1
    damages = scrub(storage)
    assert [(damage.first, damage.end) for damage in damages] == [(1, 4), (6, 7)]
    found: list[DamagedRange] = []
    run(check_entries_steps(storage, 1, [2, 6, 900], found))
    assert found == damages
    assert repair(storage, [1, 2, 3, 6], acked) == [1, 2, 3, 6]
    assert scrub(storage) == []
    assert {id_: read(storage, id_) for id_ in acked} == acked


def test_a_short_missing_or_unreadable_log_is_damage() -> None:
    fs, _, storage, acked, path = filled(3)
    del fs.contents(path)[-100:]
    assert damaged_ids(scrub(storage)) == [27]
    fs.faults.error, fs.faults.fail_at = errno.EIO, fs.call_count
    assert damaged_ids(scrub(storage)) == [27]  # read in pieces, all is well but the end
    storage.logs.close()
    fs.remove(path)
    assert [id_ for id_ in damaged_ids(scrub(storage)) if id_ in acked] == sorted(acked)


def test_a_repair_survives_a_restart_and_later_passes() -> None:
    fs, index, storage, acked, path = filled()
    run_of = storage.find_run(1, 20)
    assert run_of is not None
    fs.contents(path)[run_of.offset + 70] ^= 1
    assert damaged_ids(scrub(storage)) == [20]
    assert repair(storage, [20], acked) == [20]
    add(storage, 50, 3, acked)
    flush(storage)
    fs.power_off()
    after = fs.crash(random.Random(5))
    storage = reopen(after, index.crash(random.Random(5), after))
    assert scrub(storage) == []
    assert {id_: read(storage, id_) for id_ in acked} == acked


def test_a_repair_cut_short_anywhere_leaves_the_old_state_or_the_new() -> None:
    """Power fails in call n, for every n: sound entries stay, the damaged one is bad or good."""
    outcomes = set()
    for seed in range(3):
        number = 0
        while True:
            fs, index, storage, acked, path = filled(3)
            run_of = storage.find_run(1, 12)
            assert run_of is not None
            fs.contents(path)[run_of.offset_of(12) + 70] ^= 1
            inode = fs._inode(path)
            inode.durable[:] = inode.data  # and so it lies on the disk
            fs.faults.power_loss_at = fs.call_count + number
            cut = False
            try:
                repair(storage, [12], acked)
            except PowerLoss:
                cut = True
            fs.power_off()
            rng = random.Random(seed)
            after = fs.crash(rng)
            storage = reopen(after, index.crash(rng, after))
            for id_, packet in acked.items():
                if id_ != 12:
                    assert read(storage, id_) == packet
            bad = damaged_ids(scrub(storage))
            assert bad in ([], [12])
            outcomes.add((cut, bool(bad)))
            if bad:
                with pytest.raises(CorruptFileError):
                    read(storage, 12)
                repair(storage, [12], acked)
            assert read(storage, 12) == acked[12]
            assert scrub(storage) == []
            if not cut:
                break
            number += 1
        assert number >= 3
    assert (True, True) in outcomes


def test_a_repair_that_finds_no_space_changes_nothing() -> None:
    fs, _, storage, acked, path = filled(2)
    run_of = storage.find_run(1, 3)
    assert run_of is not None
    fs.contents(path)[run_of.offset_of(3) + 50] ^= 1
    fs.faults.error, fs.faults.fail_at = errno.ENOSPC, fs.call_count
    with pytest.raises(OSError, match="space"):
        repair(storage, [3], acked)
    assert damaged_ids(scrub(storage)) == [3]
    assert repair(storage, [3], acked) == [3]
    assert scrub(storage) == []


def test_a_damaged_run_of_the_index_is_repaired_only_as_a_whole() -> None:
    fs, index, storage, acked, path = filled(3)
    first = storage.stored_runs(1)[1].first
    key = index_format.run_key(1, first)
    index._values[key] = b"?" + (index.get(key) or b"")[1:]
    (damage,) = scrub(storage)
    owned = [id_ for id_ in range(damage.first, damage.end) if id_ in acked]
    assert damage.path == "index"
    assert owned
    assert owned[0] == first
    part = RepairCopies(1, {owned[0]: acked[owned[0]]}, TAG, owned)
    run(repair_steps(storage, part))
    assert part.stored == []
    with pytest.raises(CorruptFileError):  # nobody may take the rest for missing
        read(storage, owned[-1])
    assert repair(storage, owned, acked) == owned
    assert {id_: read(storage, id_) for id_ in acked} == acked
    assert scrub(storage) == []
    # What the old run left behind is gone, so compaction doesn't stumble over it.
    low, high = index_format.log_runs(1)
    for mark, _ in index.range(low, high):
        _, ledger_id, at = index_format.decode_log_run(mark)
        _, found = index_format.decode_run(
            index_format.run_key(ledger_id, at),
            index.get(index_format.run_key(ledger_id, at)) or b"",
        )
        assert found.log_id == 1
    assert path in {f"entry-log/{name}" for name in fs.list("entry-log")}


def test_a_location_of_another_record_is_damage() -> None:
    """A value with a good CRC that points to the wrong place: the records say who they are."""
    _, index, storage, acked, _ = filled(3)
    one, two = storage.stored_runs(1)[:2]
    wrong, one.offset = one.offset, two.offset
    key, value = index_format.encode_run(1, one)
    index._values[key] = value
    assert set(damaged_ids(scrub(storage))) & acked.keys() == set(range(one.first, one.end)) & set(
        acked
    )
    with pytest.raises(CorruptFileError):
        read(storage, one.first)
    assert wrong != one.offset
    ids = [id_ for id_ in range(one.first, one.end) if id_ in acked]
    assert repair(storage, ids, acked) == ids
    assert scrub(storage) == []


def test_a_deleted_ledger_is_not_brought_back() -> None:
    _, _, storage, acked, _ = filled(1)
    storage.forget(1, 1)
    assert repair(storage, [3], acked) == []


@pytest.mark.parametrize("seed", seeds(40))
def test_a_scrub_beside_flush_deletion_and_compaction_sees_no_damage(seed: int) -> None:
    machine = Machine(seed)
    machine.start()
    found = ScrubStep(0, b"", 0)
    for _ in range(1500):
        machine.step()
        if machine.flushing is None and machine.storage.logs.logs and machine.rng.random() < 0.3:
            if found.log_id > found.last_log or not found.last_log:
                logs = machine.storage.logs.logs
                found = ScrubStep(min(logs), b"", max(logs))
            found.bytes = 0
            run(scrub_steps(machine.storage, found, machine.rng.randrange(1, 4000)))
            assert found.damages == []
    machine.check_reads()


def test_damaged_records_of_ledgers_and_logs_are_written_again() -> None:
    fs, index, storage, acked, _ = filled(2)
    storage.fence(1, KEY, lambda _code: None)
    write_groups(storage)
    flush(storage)
    for key in (index_format.ledger_key(1), index_format.log_key(1)):
        index._values[key] = b"?" + (index.get(key) or b"")[1:]
    with pytest.raises(CorruptFileError):
        reopen(fs, index)
    damaged: list[int] = []
    run(check_index_steps(storage, damaged))
    assert damaged == [1]
    storage.mark_dirty(storage.ledgers[1])
    flush(storage)
    again: list[int] = []
    run(check_index_steps(storage, again))
    assert again == []
    storage = reopen(fs, index)
    assert storage.ledgers[1].fenced
    assert {id_: read(storage, id_) for id_ in acked} == acked
