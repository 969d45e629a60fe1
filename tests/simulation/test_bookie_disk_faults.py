"""Failing calls, torn tails and flipped bits in a bookie's files: each has one defined answer."""

import errno
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.duplicate_adds import add_unless_stored
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.storage import record_format as record_format
from magnetar.bookkeeper.bookie.storage.flush import flush_steps
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.storage_startup import open_storage
from magnetar.bookkeeper.errors import (
    BookieClosedError,
    CorruptFileError,
    JournalFullError,
    MissingFileError,
)
from magnetar.bookkeeper.transport import AddRequest
from tests.memory_file_system import Faults, MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG, KEY, Machine

Acked = dict[int, bytes]


def reopen(fs: MemoryFileSystem, index: MemoryStore) -> LedgerStorage:
    return open_storage(fs, index, CONFIG, lambda: 0x5EED)


def error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def error_number(error: Exception) -> int | None:
    assert isinstance(error, OSError)
    return error.errno


def work(machine: Machine, steps: int) -> None:
    machine.start()
    for _ in range(steps):
        machine.step()


def write_groups(storage: LedgerStorage) -> None:
    """Write what waits, beginning with the group in flight."""
    journal = storage.journal
    while (group := journal.in_flight or journal.take_group()) is not None:
        storage.writer.write(group)
        journal.on_durable(group)


def add(storage: LedgerStorage, first: int, count: int, acked: Acked, size: int = 60) -> None:
    """Add entries of ledger 1 and write their group."""
    ids = range(first, first + count)
    bodies = [b"%d" % entry_id + b"." * size for entry_id in ids]
    heads = [
        packet.encode_head(1, entry_id, -1, 0, b"", body)
        for entry_id, body in zip(ids, bodies, strict=True)
    ]
    total = sum(map(len, heads)) + sum(map(len, bodies))
    request = AddRequest(1, KEY, ids, heads, bodies, total, False, lambda _request, _code: None)
    assert add_unless_stored(storage, request) == codes.OK
    write_groups(storage)
    for entry_id, head, body in zip(ids, heads, bodies, strict=True):
        acked[entry_id] = head + body


def flush(storage: LedgerStorage) -> None:
    for _ in flush_steps(storage, storage.begin_flush()):
        pass
    storage.end_flush()


def read(storage: LedgerStorage, entry_id: int) -> bytes | None:
    packets = storage.read_cached(1, entry_id, 1, 1) or storage.read_stored(1, entry_id, 1, 1)
    return bytes(packets[0]) if packets else None


def test_fail_call_n_for_every_n() -> None:
    """One call fails with EIO: the storage stops there, and a restart finds everything promised."""
    number = 0
    while True:
        machine = Machine(seed=7)
        machine.fs.faults.fail_at = number
        error = error_of(partial(work, machine, 150))
        assert error is None or error_number(error) == errno.EIO
        if machine.fs.call_count <= number:
            break  # a run without a fault: every call failed once
        machine.crash()
        machine.start()
        machine.check_promises()
        number += 1
    assert number > 80


@pytest.mark.parametrize("seed", range(3))
def test_a_full_disk_in_a_flush_loses_nothing_and_is_retried(seed: int) -> None:
    """ENOSPC at every call of a flush: the same job succeeds later, entries stay readable."""
    number = 0
    while True:
        fs = MemoryFileSystem()
        index = MemoryStore(fs)
        storage = reopen(fs, index)
        acked: Acked = {}
        add(storage, 0, 40, acked, size=60 + seed * 700)
        job = storage.begin_flush()
        fs.faults = Faults(fail_at=fs.call_count + number, error=errno.ENOSPC)
        steps = flush_steps(storage, job)
        error = error_of(partial(list, steps))
        if error is None:
            break
        assert error_number(error) == errno.ENOSPC
        assert all(read(storage, entry_id) == data for entry_id, data in acked.items())
        fs.faults = Faults()
        for _ in flush_steps(storage, job):
            pass
        storage.end_flush()
        assert all(read(storage, entry_id) == data for entry_id, data in acked.items())
        number += 1
    assert number >= 4


def test_a_journal_without_space_writes_the_same_group_later() -> None:
    """ENOSPC at every call of groups that begin a segment: tried again, or final at its write."""
    number, retried, final = 0, 0, 0
    while True:
        fs = MemoryFileSystem()
        index = MemoryStore(fs)
        storage = reopen(fs, index)
        acked: Acked = {}
        add(storage, 0, 9, acked, size=1000)
        fs.faults = Faults(fail_at=fs.call_count + number, error=errno.ENOSPC)
        error = error_of(partial(add, storage, 9, 9, acked, 1000))
        fs.faults = Faults()
        if error is None:
            break
        if isinstance(error, JournalFullError):
            retried += 1
            write_groups(storage)
            last = 18
        else:
            final += 1
            assert error_number(error) == errno.ENOSPC
            last = 9
        after = fs.crash(random.Random(number))
        found = reopen(after, index.crash(random.Random(number), after))
        assert all(read(found, entry_id) is not None for entry_id in range(last))
        number += 1
    assert retried >= 4
    assert final >= 1


def test_a_sync_that_fails_once_is_never_trusted_again() -> None:
    """The bytes are gone although the next sync succeeds: the entry was not acknowledged."""
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    add(storage, 0, 3, acked)
    fs.faults.fail_at = fs.call_count
    with pytest.raises(OSError, match="Input/output error"):
        add(storage, 3, 1, {})
    after = fs.crash(random.Random(0))
    found = reopen(after, index.crash(random.Random(0), after))
    assert {entry_id: read(found, entry_id) for entry_id in range(3)} == acked


def journal_image() -> tuple[MemoryFileSystem, MemoryStore, str, Acked, list[tuple[int, int]]]:
    """A journal of four groups; where each group lies."""
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    groups = []
    for number in range(4):
        start = storage.journal.barrier()[1]
        add(storage, number * 3, 3, acked)
        groups.append((start, storage.journal.barrier()[1]))
    path = journal_format.segment_path(storage.journal.barrier()[0])
    return fs, index, path, acked, groups


def test_a_torn_tail_at_every_byte_keeps_all_groups_before() -> None:
    fs, index, path, acked, groups = journal_image()
    intact = bytes(fs.contents(path))
    start, end = groups[-1]
    for cut in range(start, end):
        for rest in (bytes(end - cut), b"\xff" * (end - cut)):
            fs, index, path, acked, _ = journal_image()
            data = fs.contents(path)
            assert bytes(data) == intact
            data[cut:end] = rest
            storage = reopen(fs, index)
            for entry_id in range(9):
                assert read(storage, entry_id) == acked[entry_id]
            for entry_id in range(9, 12):  # its group was torn: there or not, but never wrong
                assert read(storage, entry_id) in (None, acked[entry_id])


def test_a_flipped_bit_in_the_middle_of_the_journal_is_refused_by_name_and_offset() -> None:
    _, _, _, _, groups = journal_image()
    start, end = groups[1]
    for offset in range(start, end, 11):
        fs, index, path, _, _ = journal_image()
        fs.contents(path)[offset] ^= 0x10
        error = error_of(partial(reopen, fs, index))
        if error is None:  # the flip hit padding behind what a CRC covers
            assert offset > end - 512
            continue
        assert isinstance(error, CorruptFileError)
        assert (error.path, error.offset) == (path, start)
        assert path in str(error)


def test_a_flipped_bit_in_a_segment_header_is_refused() -> None:
    for offset in range(journal_format.HEADER_BYTES):
        fs, index, path, _, _ = journal_image()
        fs.contents(path)[offset] ^= 1
        with pytest.raises(CorruptFileError, match=path):
            reopen(fs, index)


def test_a_zero_filled_block_in_the_middle_is_refused() -> None:
    fs, index, path, _, groups = journal_image()
    start, end = groups[2]
    fs.contents(path)[start:end] = bytes(end - start)
    with pytest.raises(CorruptFileError, match=f"{path}.*offset {start}"):
        reopen(fs, index)


def many_segments() -> tuple[MemoryFileSystem, MemoryStore, list[str], Acked]:
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    for first in range(0, 100, 4):
        add(storage, first, 4, acked, size=600)
    paths = [f"journal/{name}" for name in fs.list("journal") if name.endswith(".journal")]
    assert len(paths) >= 4
    return fs, index, paths, acked


@pytest.mark.parametrize("which", [0, 1, -2])
def test_a_missing_journal_segment_is_refused(which: int) -> None:
    fs, index, paths, _ = many_segments()
    fs.remove(paths[which])
    with pytest.raises(MissingFileError, match="journal"):
        reopen(fs, index)


def test_a_segment_that_lost_its_last_group_is_refused() -> None:
    """No group follows in this file, but the next segment says where it ended."""
    fs, index, paths, _ = many_segments()
    data = fs.contents(paths[1])
    last = max(
        at
        for at in range(512, len(data), 512)
        if (found := record_format.check_record(bytes(data), at)) is not None
        and found[0] == record_format.GROUP
    )
    data[last:] = bytes(len(data) - last)
    with pytest.raises(CorruptFileError, match=f"{paths[1]}.*offset {last}"):
        reopen(fs, index)


def test_a_payload_that_looks_like_a_journal_group_does_not_stop_a_start() -> None:
    """A client can't know the tag, so what it writes never passes for a group of ours."""
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    add(storage, 0, 3, acked)
    segment_id, start = storage.journal.barrier()
    tag = record_format.make_tag(segment_id, 0xBAD)
    fake = record_format.encode_record(record_format.GROUP, tag, (512).to_bytes(8, "big"))
    storage_offset = 512 - record_format.RECORD_HEADER_BYTES - 36 - 36
    body = b"." * 4096
    body = (body[:storage_offset] + fake).ljust(512, b".") * 8
    head = packet.encode_head(1, 3, -1, 0, b"", body)
    request = AddRequest(
        1, KEY, range(3, 4), [head], [body], 36 + len(body), False, lambda _request, _code: None
    )
    assert add_unless_stored(storage, request) == codes.OK
    group = storage.journal.take_group()
    assert group is not None
    storage.writer.write(group)
    fs.contents(journal_format.segment_path(segment_id))[start + 40] ^= 1  # torn
    found = reopen(fs, index)
    assert {entry_id: read(found, entry_id) for entry_id in range(3)} == acked


def flushed() -> tuple[MemoryFileSystem, MemoryStore, LedgerStorage, Acked, str]:
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    add(storage, 0, 6, acked)
    flush(storage)
    (name,) = fs.list("entry-log")
    return fs, index, storage, acked, f"entry-log/{name}"


def test_a_flipped_bit_in_an_entry_log_is_an_error_and_never_a_missing_entry() -> None:
    fs, _, storage, acked, path = flushed()
    data = fs.contents(path)
    for offset in range(64, len(data)):
        data[offset] ^= 4
        damaged = 0
        for entry_id, expected in acked.items():
            error = error_of(partial(read, storage, entry_id))
            if error is None:
                assert read(storage, entry_id) == expected
                continue
            damaged += 1
            assert isinstance(error, CorruptFileError)
            assert error.path == path
            assert f"entry {entry_id} " in str(error)
        data[offset] ^= 4
        assert damaged == 1


def test_a_damaged_entry_ends_a_batch_before_it() -> None:
    fs, _, storage, acked, path = flushed()
    data = fs.contents(path)
    data[-1] ^= 1
    packets = storage.read_stored(1, 0, 100, 1 << 20)
    assert [bytes(found) for found in packets] == [acked[entry_id] for entry_id in range(5)]


def test_a_missing_or_shortened_entry_log_is_refused_at_the_start() -> None:
    fs, index, _, _, path = flushed()
    del fs.contents(path)[-1:]
    with pytest.raises(CorruptFileError, match=path):
        reopen(fs, index)
    fs.remove(path)
    with pytest.raises(MissingFileError, match=path):
        reopen(fs, index)


def test_a_flipped_bit_in_any_index_value_is_refused_or_an_error() -> None:
    _, index, _, _, _ = flushed()
    keys = [key for key, _ in index.range(b"", b"\xff")]
    assert {key[:1] for key in keys} == {b"m", b"g", b"l", b"r", b"x"}
    for key in keys:
        fs, index, storage, _, _ = flushed()
        value = bytearray(index.get(key) or b"")
        value[0] ^= 1
        index._values[key] = bytes(value)
        if key[:1] == b"r":
            with pytest.raises(CorruptFileError, match=key.hex()):
                storage.read_stored(1, 0, 1, 1)
        elif key[:1] == b"x":
            continue  # only its key is used
        else:
            with pytest.raises(CorruptFileError, match=key.hex()):
                reopen(fs, index)


def test_an_empty_index_beside_data_is_refused() -> None:
    fs, _, _, _, _ = flushed()
    with pytest.raises(MissingFileError, match="index"):
        reopen(fs, MemoryStore(fs))


def test_replaying_twice_is_replaying_once() -> None:
    fs, index, _, acked, _ = (*journal_image()[:4], None)
    for _ in range(3):
        storage = reopen(fs, index)
    assert {entry_id: read(storage, entry_id) for entry_id in acked} == acked
    assert sum(len(run.sizes) for run in storage.stored_runs(1)) == len(acked)


def test_a_start_that_is_stopped_anywhere_loses_nothing() -> None:
    """As by a signal while a long journal is replayed: the next start does it all."""
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Acked = {}
    for first in range(0, 60, 3):
        add(storage, first, 3, acked)
    number = 0
    while True:
        asked = itertools.count()
        start = partial(
            open_storage,
            fs,
            index,
            CONFIG,
            lambda: 0x5EED,
            is_stopped=partial(_is_over, asked, number),
        )
        if (error := error_of(start)) is None:
            break
        assert isinstance(error, BookieClosedError)
        number += 1
    assert number > len(acked)
    storage = reopen(fs, index)
    assert all(read(storage, entry_id) == data for entry_id, data in acked.items())


def _is_over(asked: Iterator[int], number: int) -> bool:
    return next(asked) >= number
