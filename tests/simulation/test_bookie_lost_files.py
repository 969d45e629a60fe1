"""Files of a bookie that are gone, short or damaged: what is left is served, the rest unknown."""

import random
from collections.abc import Callable

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie.duplicate_adds import add_unless_stored
from magnetar.bookkeeper.bookie.integrity.scrub import ScrubStep, scrub_steps
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.limbo import note_steps
from magnetar.bookkeeper.bookie.open_bookie import open_damaged
from magnetar.bookkeeper.bookie.storage import index_format as index_format
from magnetar.bookkeeper.bookie.storage.index_format import LIMBO_CHECKING, LIMBO_ENTERING
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.errors import CorruptFileError, MissingFileError, StorageError
from magnetar.bookkeeper.transport import AddRequest
from tests.memory_file_system import MemoryFileSystem, PowerLoss
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG, KEY
from tests.simulation.test_bookie_disk_faults import flush, reopen, write_groups

Packets = dict[tuple[int, int], bytes]
LEDGERS = range(1, 5)


def add(storage: LedgerStorage, ledger_id: int, ids: range, acked: Packets) -> None:
    assert offer(storage, ledger_id, ids, acked) == codes.OK


def offer(
    storage: LedgerStorage, ledger_id: int, ids: range, acked: Packets, *, recovery: bool = False
) -> int:
    """Add entries, durably; what the bookie says to it."""
    bodies = [b"%d.%d" % (ledger_id, entry_id) + bytes(100) for entry_id in ids]
    heads = [
        packet.encode_head(ledger_id, entry_id, -1, 0, b"head", body)
        for entry_id, body in zip(ids, bodies, strict=True)
    ]
    size = sum(map(len, heads)) + sum(map(len, bodies))
    request = AddRequest(
        ledger_id, KEY, ids, heads, bodies, size, recovery, lambda _request, _code: None
    )
    code = add_unless_stored(storage, request)
    if code != codes.OK:
        return code
    write_groups(storage)
    for entry_id, head, body in zip(ids, heads, bodies, strict=True):
        acked[ledger_id, entry_id] = head + body
    return code


def filled() -> tuple[MemoryFileSystem, MemoryStore, Packets]:
    """Four ledgers over several entry logs, and more in the journal; the process was killed."""
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    acked: Packets = {}
    for batch in range(4):
        for ledger_id in LEDGERS:
            add(storage, ledger_id, range(10 * batch, 10 * batch + 10), acked)
        flush(storage)
    assert len(storage.logs.logs) > 2
    storage.fence(4, KEY, lambda _code: None)
    for ledger_id in LEDGERS:
        add_late(storage, ledger_id, acked)
    fs.power_off()
    after = fs.crash(random.Random(1))
    return after, index.crash(random.Random(1), after), acked


def add_late(storage: LedgerStorage, ledger_id: int, acked: Packets) -> None:
    if ledger_id != 4:
        add(storage, ledger_id, range(40, 45), acked)


def open_what_is_left(fs: MemoryFileSystem, index: MemoryStore) -> LedgerStorage:
    return open_damaged(fs, index, CONFIG, lambda: 0x5EED)


def served(storage: LedgerStorage, acked: Packets) -> set[tuple[int, int]]:
    """Which acknowledged entries are there; all others must be unknown, never denied."""
    found = set()
    for ledger_id, entry_id in acked:
        packets = storage.read_cached(ledger_id, entry_id, 1, 1)
        packets = packets or storage.read_stored(ledger_id, entry_id, 1, 1)
        if packets:
            assert bytes(packets[0]) == acked[ledger_id, entry_id]
            found.add((ledger_id, entry_id))
        elif storage.limbo_phase != LIMBO_ENTERING:  # else all that lives here will be marked
            assert storage.ledgers[ledger_id].limbo
    return found


def check_sound(storage: LedgerStorage, acked: Packets) -> None:
    """The index is one that everything else can work with."""
    found = ScrubStep(0, b"", max(storage.logs.logs, default=0))
    while found.log_id <= found.last_log:
        found.bytes = 0
        for _ in scrub_steps(storage, found, 1 << 30):
            pass
    assert found.damages == []
    for ledger_id in LEDGERS:
        end = 0
        for run in storage.stored_runs(ledger_id):
            assert run.first >= end
            end = run.end
        storage.clear_limbo(ledger_id, fenced=False)
        state = storage.ledgers[ledger_id]
        state.master_key, state.fenced = KEY, False
        add(storage, ledger_id, range(50, 53), acked)
    flush(storage)
    live = dict.fromkeys(storage.logs.logs, 0)
    for ledger_id in LEDGERS:
        for run in storage.stored_runs(ledger_id):
            live[run.log_id] += run.bytes
    assert live == {log_id: log.live for log_id, log in storage.logs.logs.items()}


def log_paths(fs: MemoryFileSystem) -> list[str]:
    return [f"entry-log/{name}" for name in fs.list("entry-log")]


def test_a_lost_entry_log_puts_those_into_limbo_that_were_in_it() -> None:
    for which in range(3):
        fs, index, acked = filled()
        path = log_paths(fs)[which]
        fs.remove(path)
        with pytest.raises(MissingFileError, match=path):
            reopen(fs, index)
        storage = open_what_is_left(fs, index)
        assert storage.limbo_phase == LIMBO_CHECKING
        found = served(storage, acked)
        lost = {ledger_id for ledger_id, _ in acked.keys() - found}
        assert lost == set(storage.limbo_ledgers())
        assert storage.ledgers[4].fenced  # what the index and the journal know is still known
        again = reopen(fs, index)  # and it stays so
        assert set(again.limbo_ledgers()) == lost
        assert again.limbo_phase == LIMBO_CHECKING
        check_sound(storage, acked)


def test_a_shortened_entry_log_keeps_what_is_there() -> None:
    fs, index, acked = filled()
    path = log_paths(fs)[0]
    before = reopen(fs, index)
    size = before.logs.logs[1].end - 400
    fs, index, acked = filled()
    del fs.contents(path)[size:]
    with pytest.raises(CorruptFileError, match=path):
        reopen(fs, index)
    storage = open_what_is_left(fs, index)
    found = served(storage, acked)
    assert 1 <= len(acked.keys() - found) <= 4
    assert len(storage.limbo_ledgers()) == 1
    check_sound(storage, acked)


def test_a_damaged_header_of_an_entry_log_loses_nothing() -> None:
    fs, index, acked = filled()
    path = log_paths(fs)[1]
    fs.contents(path)[3] ^= 1
    with pytest.raises(CorruptFileError, match=path):
        reopen(fs, index)
    storage = open_what_is_left(fs, index)
    assert storage.limbo_phase == 0
    assert served(storage, acked) == acked.keys()
    assert served(reopen(fs, index), acked) == acked.keys()


def test_a_lost_journal_keeps_the_entry_logs() -> None:
    fs, index, acked = filled()
    for name in fs.list(journal_format.DIRECTORY):
        fs.remove(f"{journal_format.DIRECTORY}/{name}")
    with pytest.raises(MissingFileError):
        reopen(fs, index)
    storage = open_what_is_left(fs, index)
    assert storage.limbo_phase == LIMBO_ENTERING
    assert acked.keys() - served(storage, acked) == {key for key in acked if key[1] >= 40}
    check_sound(storage, acked)


def test_of_a_journal_damaged_anywhere_all_other_groups_are_kept() -> None:
    fs, index, acked = filled()
    (*_, name) = sorted(fs.list(journal_format.DIRECTORY))
    path = f"{journal_format.DIRECTORY}/{name}"
    intact = bytes(fs.contents(path))
    for key, data in acked.items():
        at = intact.find(data)
        if key[1] < 40:  # flushed: the journal may hold it still, behind the mark
            continue
        fs, index, acked = filled()
        fs.contents(path)[at + 40] ^= 1
        try:
            storage = reopen(fs, index)
            assert key[0] == 3  # the last group: a torn end
        except CorruptFileError:
            storage = open_what_is_left(fs, index)
            assert storage.limbo_phase == LIMBO_ENTERING
            lost = acked.keys() - served(storage, acked)
            assert key in lost
            assert {ledger_id for ledger_id, _ in lost} == {key[0]}
            check_sound(storage, acked)


def damaged_index() -> list[Callable[[MemoryStore], None]]:
    def empty(index: MemoryStore) -> None:
        index._values.clear()
        index._keys.clear()

    def flip(prefix: bytes) -> Callable[[MemoryStore], None]:
        def change(index: MemoryStore) -> None:
            key = next(key for key in index._keys if key.startswith(prefix))
            index._values[key] = b"?" + index._values[key][1:]

        return change

    return [empty, *map(flip, (b"m:format", b"m:mark", b"m:next", b"l", b"g"))]


@pytest.mark.parametrize("damage", damaged_index())
def test_an_index_is_made_anew_from_the_entry_logs(damage: Callable[[MemoryStore], None]) -> None:
    fs, index, acked = filled()
    damage(index)
    with pytest.raises(StorageError):
        reopen(fs, index)
    storage = open_what_is_left(fs, index)
    assert storage.limbo_phase == LIMBO_ENTERING
    assert set(storage.limbo_ledgers()) == set(LEDGERS)
    assert served(storage, acked) == acked.keys()
    for ledger_id in LEDGERS:
        last = max(entry_id for id_, entry_id in acked if id_ == ledger_id)
        assert storage.ledgers[ledger_id].last_entry == last
    check_sound(storage, acked)


def test_a_new_index_steps_over_damaged_records() -> None:
    fs, index, acked = filled()
    paths = log_paths(fs)
    hurt = []
    for key in ((1, 3), (2, 14), (3, 38)):
        for path in paths:
            at = bytes(fs.contents(path)).find(acked[key])
            if at >= 0:
                fs.contents(path)[at + 50] ^= 1
                hurt.append(key)
    assert len(hurt) == 3
    index = MemoryStore(fs)
    storage = open_what_is_left(fs, index)
    lost = acked.keys() - served(storage, acked)
    assert lost
    assert lost <= set(hurt)  # the journal may have one of them still
    check_sound(storage, acked)


@pytest.mark.parametrize("kind", ["log", "journal", "index"])
def test_power_fails_anywhere_in_such_a_start(kind: str) -> None:
    """It never comes back as a healthy bookie, and in the end nothing more is lost."""
    number = 0
    while True:
        fs, index, acked = filled()
        if kind == "log":
            fs.remove(log_paths(fs)[0])
            fs.sync_dir("entry-log", "test")
        elif kind == "journal":
            (*_, name) = sorted(fs.list(journal_format.DIRECTORY))
            data = fs.contents(f"{journal_format.DIRECTORY}/{name}")
            data[bytes(data).find(acked[1, 42]) + 60] ^= 1
        else:
            index = MemoryStore(fs)
        for inode in fs._names.values():
            inode.durable[:] = inode.data
        expected = None
        fs.faults.power_loss_at = fs.call_count + number
        try:
            storage = open_what_is_left(fs, index)
            expected = storage
            fs.faults.power_loss_at = None
        except PowerLoss:
            rng = random.Random(number)
            fs.power_off()
            after = fs.crash(rng)
            index = index.crash(rng, after)
            fs = after
            try:
                storage = reopen(fs, index)
            except StorageError:
                storage = open_what_is_left(fs, index)
        assert storage.limbo_phase != 0
        found = served(storage, acked)
        if kind == "index":
            assert found == acked.keys()
        assert len(found) > len(acked) // 2
        if expected is not None:
            break
        number += 1
    assert number > 3
    value = index.get(index_format.LIMBO_KEY)
    assert value is not None


@pytest.mark.parametrize("ignored", [False, True])
def test_the_note_that_all_ledgers_are_marked_is_durable(ignored: bool) -> None:
    """The cookie follows it, and with that nothing else tells of the loss."""
    kept = 0
    for seed in range(20):
        fs, index, _ = filled()
        storage = reopen(fs, index)
        if ignored:
            fs.faults.ignored_sync_points = {"index.limbo"}
        for _ in note_steps(storage, LIMBO_CHECKING, 7):
            pass
        assert (storage.limbo_phase, storage.limbo_last) == (LIMBO_CHECKING, 7)
        fs.power_off()
        rng = random.Random(seed)
        after = fs.crash(rng)
        storage = reopen(after, index.crash(rng, after))
        kept += (storage.limbo_phase, storage.limbo_last) == (LIMBO_CHECKING, 7)
    assert (kept < 20) if ignored else (kept == 20)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_copy_doesn_t_make_up_for_a_forgotten_fence(flushed: bool) -> None:
    """A fence was lost with the disk, limbo is over. Then a repair brings copies of the ledger.

    An old writer, asleep since before the fence, must find it as closed as it was without them; a
    restart changes nothing. Only who has looked at the metadata since may let a writer in.
    """
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    storage = reopen(fs, index)
    for phase, last in ((LIMBO_CHECKING, 7), (0, -1)):
        for _ in note_steps(storage, phase, last):
            pass
    acked: Packets = {}
    assert offer(storage, 6, range(3, 4), {}) == codes.UNKNOWN_LEDGER_STATE
    assert offer(storage, 6, range(3), acked, recovery=True) == codes.OK
    assert offer(storage, 8, range(3), acked) == codes.OK  # it is younger than the loss
    if flushed:
        flush(storage)
    for seed in range(3):
        assert offer(storage, 6, range(3, 4), {}) == codes.UNKNOWN_LEDGER_STATE
        assert offer(storage, 6, range(3, 4), acked, recovery=True) == codes.OK
        assert offer(storage, 8, range(3 + seed, 4 + seed), acked) == codes.OK
        fs.power_off()
        after = fs.crash(random.Random(seed))
        fs, index = after, index.crash(random.Random(seed), after)
        storage = reopen(fs, index)
        assert served(storage, acked) == acked.keys()
    storage.set_limbo(6)  # lost once more, and looked at: nobody fences it by then
    storage.clear_limbo(6, fenced=False)
    assert offer(storage, 6, range(4, 5), acked) == codes.OK
    storage.fence(6, KEY, lambda _code: None)
    assert offer(storage, 6, range(5, 6), {}) == codes.FENCED
