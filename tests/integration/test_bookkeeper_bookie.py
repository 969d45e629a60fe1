"""A bookie on a real disk with LMDB and threads: add, read, fence, restart."""

import asyncio
import errno
import threading
from functools import partial
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie import cookie as cookies
from magnetar.bookkeeper.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.errors import (
    BookieClosedError,
    CookieMismatchError,
    CorruptFileError,
    DirectoryLockedError,
    UnknownLedgerStateError,
)
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.bookkeeper.storage.lmdb_store import LmdbStore
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import KEY, SMALL, Node, Registry, add, request
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.waiting import eventually


async def test_entries_survive_a_restart(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, 1, range(1000)) == codes.OK
    assert await add(bookie, 2, range(3), lambda i: b"%d" % i * 200_000) == codes.OK
    reply = await bookie.read_entries(ReadRequest(1, 10, 5, 1 << 20))
    assert [packet.decode_header(p).entry_id for p in reply.packets] == [10, 11, 12, 13, 14]
    await bookie.close()
    bookie = await node.start()
    reply = await bookie.read_entries(ReadRequest(1, 0, 2000, 1 << 20))
    assert reply.code == codes.OK
    assert [bytes(p[40:]) for p in reply.packets] == [b"body %d" % i for i in range(1000)]
    reply = await bookie.read_entries(ReadRequest(2, 1, 10, 1))
    assert [bytes(p[40:]) for p in reply.packets] == [b"1" * 200_000]
    assert await bookie.list_entries(1) == [(0, 1000)]
    lac = await bookie.read_lac(1, fence=False)
    assert lac.last_packet is not None
    assert packet.decode_header(lac.last_packet).entry_id == 999
    await bookie.close()


async def test_the_highest_ledger_id(tmp_path: Path, store: MetadataStore) -> None:
    """Clients may choose ids; Apache's bookies take all that aren't negative."""
    node, highest = Node(tmp_path / "b1", store), 2**63 - 1
    bookie = await node.start()
    assert await add(bookie, highest, range(3)) == codes.OK
    assert await add(bookie, highest, (5,)) == codes.OK  # one entry is checked elsewhere
    await bookie.flush()
    assert await add(bookie, highest, range(6, 8)) == codes.OK
    await bookie.close()
    bookie = await node.start()
    reply = await bookie.read_entries(ReadRequest(highest, 1, 2, 1 << 20))
    assert [bytes(p[40:]) for p in reply.packets] == [b"body 1", b"body 2"]
    assert await bookie.list_entries(highest) == [(0, 3), (5, 8)]
    reply = await bookie.read_entries(ReadRequest(highest, 0, 1, 1, fence=True, master_key=KEY))
    assert reply.code == codes.OK
    assert await add(bookie, highest, (8,)) == codes.FENCED
    await bookie.close()


async def test_a_fence_survives_a_restart(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, 1, range(3)) == codes.OK
    reply = await bookie.read_entries(ReadRequest(1, 0, 1, 1, fence=True, master_key=KEY))
    assert reply.code == codes.OK
    assert await add(bookie, 1, range(3, 4)) == codes.FENCED
    assert await add(bookie, 1, range(3, 4), recovery=True) == codes.OK
    await bookie.close()
    bookie = await node.start()
    assert await add(bookie, 1, range(4, 5)) == codes.FENCED
    assert await add(bookie, 1, range(4, 5), key=b"k" * 20) == codes.UNAUTHORIZED
    await bookie.close()


async def test_a_second_process_is_locked_out(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    with pytest.raises(DirectoryLockedError):
        await node.start()
    await bookie.close()


async def test_flush_moves_entries_to_entry_logs_and_frees_the_journal(
    tmp_path: Path, store: MetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    for first in range(0, 400, 20):
        assert await add(bookie, 7, range(first, first + 20), lambda i: bytes(10_000)) == codes.OK
    await bookie.flush()
    assert bookie.storage.active.bytes == 0
    assert bookie.storage.flushing is None
    ids: list[int] = []
    while len(ids) < 400:
        reply = await bookie.read_entries(ReadRequest(7, len(ids), 1000, 1 << 20))
        assert reply.code == codes.OK
        ids += [packet.decode_header(p).entry_id for p in reply.packets]
    assert ids == list(range(400))
    assert (await bookie.read_entries(ReadRequest(7, 400, 1, 1))).code == codes.NO_ENTRY
    journals = sum(f.stat().st_size for f in (node.path / "journal").iterdir())
    assert journals <= 4 * SMALL.journal_segment_bytes
    await bookie.close()


def fill(size: int, entry_id: int) -> bytes:
    return b"%d" % (entry_id % 10) * size


async def test_entries_are_readable_before_they_are_durable(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    codes_seen: list[int] = []
    entries = request(1, range(2), lambda i: b"x", lambda _request, code: codes_seen.append(code))
    bookie.add_entries(entries)
    reply = await bookie.read_entries(ReadRequest(1, 0, 10, 1 << 20))
    assert len(reply.packets) == 2
    assert codes_seen == []
    await bookie.close()  # answers what it accepted
    assert codes_seen == [codes.OK]


async def test_negative_answers(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    assert (await bookie.read_entries(ReadRequest(5, 0, 1, 1))).code == codes.NO_LEDGER
    assert (await bookie.read_lac(5, fence=False)).code == codes.NO_LEDGER
    assert await bookie.list_entries(5) == []
    assert await add(bookie, 5, [3, 5, 6]) == codes.OK
    assert (await bookie.read_entries(ReadRequest(5, 4, 1, 1))).code == codes.NO_ENTRY
    assert (await bookie.read_entries(ReadRequest(5, 7, 1, 1))).code == codes.NO_ENTRY
    assert (await bookie.read_entries(ReadRequest(5, -1, 1, 1))).code == codes.BAD_REQUEST
    await bookie.flush()
    assert (await bookie.read_entries(ReadRequest(5, 4, 1, 1))).code == codes.NO_ENTRY
    assert await bookie.list_entries(5) == [(3, 4), (5, 7)]
    assert len((await bookie.read_entries(ReadRequest(5, 5, 9, 999))).packets) == 2
    await bookie.close()
    assert (await bookie.read_entries(ReadRequest(5, 3, 1, 1))).code == codes.UNAVAILABLE
    assert await add(bookie, 5, [9]) == codes.UNAVAILABLE


@pytest.mark.parametrize("ids", [[], [2, 1], [1, 1], [-1]])
async def test_malformed_requests_are_refused(
    tmp_path: Path, store: MetadataStore, ids: list[int]
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    entries = request(1, range(len(ids)), lambda i: b"x", lambda _r, code: answer.set_result(code))
    entries.entry_ids = ids
    bookie.add_entries(entries)
    assert await answer == codes.BAD_REQUEST
    await bookie.close()


async def test_fencing_an_unknown_ledger_creates_it_fenced(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    replies = await asyncio.gather(
        bookie.read_lac(1, fence=True, master_key=KEY),
        bookie.read_lac(1, fence=True, master_key=KEY),
        bookie.read_lac(1, fence=True, master_key=b"wrong" * 4),
    )
    assert [reply.code for reply in replies] == [codes.OK, codes.OK, codes.UNAUTHORIZED]
    assert replies[0].last_packet is None
    assert await add(bookie, 1, range(1)) == codes.FENCED
    await bookie.close()


async def test_fencing_needs_the_password(tmp_path: Path, store: MetadataStore) -> None:
    """BOOKKEEPER-135: who doesn't know it can neither stop the writer nor read as a recovery."""
    bookie = await Node(tmp_path / "b1", store).start()
    assert await add(bookie, 1, range(3)) == codes.OK
    wrong = b"k" * 20
    reply = await bookie.read_entries(ReadRequest(1, 0, 1, 1, fence=True, master_key=wrong))
    assert (reply.code, reply.packets) == (codes.UNAUTHORIZED, [])
    assert (await bookie.read_lac(1, fence=True, master_key=wrong)).code == codes.UNAUTHORIZED
    assert await add(bookie, 1, range(3, 4)) == codes.OK  # not fenced
    await bookie.close()


async def test_explicit_lac_survives_a_restart(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await bookie.write_lac(1, 41, master_key=KEY) == codes.OK
    assert await bookie.write_lac(1, 17, master_key=KEY) == codes.OK
    assert await bookie.write_lac(1, 99, master_key=b"k" * 20) == codes.UNAUTHORIZED
    await bookie.close()
    bookie = await node.start()
    assert (await bookie.read_lac(1, fence=False)).explicit_lac == 41
    await bookie.close()


async def test_deleted_ledgers_give_their_bytes_back(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    for first in range(0, 120, 10):
        for ledger_id in (1, 2):
            size = 60_000 if ledger_id == 1 else 20_000
            assert await add(bookie, ledger_id, range(first, first + 10), partial(fill, size)) == 0
    await bookie.flush()
    before = node.disk_bytes("entry-log")
    assert before > 9_600_000
    registry = Registry(2)
    collector = GarbageCollector(bookie, registry, now_s=lambda: 1000)
    report = await collector.collect()
    assert report.ledgers_dropped == 1
    assert (await bookie.read_entries(ReadRequest(1, 0, 1, 1))).code == codes.NO_LEDGER
    assert await add(bookie, 1, [500]) == codes.FENCED  # a late writer
    # A sparse log that is still the active one is compacted once a newer one is.
    assert await add(bookie, 2, range(120, 340), partial(fill, 20_000)) == codes.OK
    await bookie.flush()
    await collector.collect()
    live = 340 * 20_000
    assert live < node.disk_bytes("entry-log") < live * 1.3
    for first in range(0, 340, 10):
        assert len((await bookie.read_entries(ReadRequest(2, first, 10, 1 << 20))).packets) == 10
    await bookie.close()
    bookie = await node.start()
    assert await add(bookie, 1, [500]) == codes.FENCED
    assert len((await bookie.read_entries(ReadRequest(2, 335, 10, 1 << 20))).packets) == 5
    await bookie.close()


async def test_collection_deletes_nothing_without_proof(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    for ledger_id in (1, 2, 3):
        assert await add(bookie, ledger_id, range(3)) == codes.OK
    registry = Registry(1, 2, 3)
    collector = GarbageCollector(bookie, registry)
    registry.hidden = {2}  # the listing misses it, the point read knows it
    assert (await collector.collect()).ledgers_dropped == 0
    registry.ledger_ids = set()  # an empty tree
    assert (await collector.collect()).ledgers_dropped == 0
    registry.ledger_ids = {1}
    registry.error = ConnectionError("metadata store")
    with pytest.raises(ConnectionError):
        await collector.collect()
    assert set(bookie.storage.ledgers) == {1, 2, 3}
    registry.error = None
    assert (await collector.collect()).ledgers_dropped == 2
    await bookie.close()


async def test_a_hint_frees_a_ledger_at_once(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    for ledger_id in (1, 2):
        assert await add(bookie, ledger_id, range(3)) == codes.OK
    await bookie.flush()
    collector = GarbageCollector(bookie, Registry(2))
    collector.ledger_deleted_hint(1)
    collector.ledger_deleted_hint(2)  # a wrong hint
    await eventually(lambda: 1 not in bookie.storage.ledgers)
    await collector.collect()
    assert (await bookie.read_entries(ReadRequest(2, 0, 9, 999))).code == codes.OK
    await collector.close()
    await bookie.close()


async def test_a_failed_journal_write_ends_the_bookie(tmp_path: Path, store: MetadataStore) -> None:
    fs = MemoryFileSystem()
    node = Node(tmp_path / "b1", store)
    bookie = await open_bookie(node.config, fs, store, index=MemoryStore(fs))
    fatal: list[BaseException] = []
    bookie.on_fatal = fatal.append
    assert await add(bookie, 1, range(2)) == codes.OK
    fs.faults.fail_at = fs.call_count
    answers = await asyncio.gather(*(add(bookie, 1, [at]) for at in range(2, 5)))
    assert answers == [codes.IO_ERROR] * 3
    assert len(fatal) == 1
    assert await add(bookie, 1, [9]) == codes.IO_ERROR  # never retried
    with pytest.raises(BookieClosedError):
        await bookie.flush()
    await bookie.close()


async def test_a_full_disk_makes_it_read_only_and_back(
    tmp_path: Path, store: MetadataStore
) -> None:
    fs = MemoryFileSystem()
    node = Node(tmp_path / "b1", store, disk_usage_max=0.9, disk_usage_low=0.8)
    config = node.config
    index = MemoryStore(fs)
    fs.faults.space_bytes = 10_000_000
    bookie = await open_bookie(config, fs, store, index=index)
    assert await store.children(AVAILABLE_PATH) == ["b1"]
    assert await add(bookie, 1, range(10), lambda i: bytes(1000)) == codes.OK
    fs.faults.space_bytes = int(fs.used_bytes() * 1.05)
    await bookie.flush()
    assert bookie.read_only
    assert (await bookie.info()).read_only
    assert await add(bookie, 1, [10]) == codes.READ_ONLY
    assert await add(bookie, 1, [10], recovery=True) == codes.OK  # while the reserve lasts
    assert len((await bookie.read_entries(ReadRequest(1, 0, 10, 1 << 20))).packets) == 10
    await eventually(lambda: bookie._disk_timer is not None)
    async with asyncio.timeout(30):
        while await store.children(READ_ONLY_PATH) != ["b1"]:  # noqa: ASYNC110 no event for it
            await asyncio.sleep(0.005)
    fs.faults.space_bytes = 100_000_000
    bookie._on_disk_timer()
    assert await add(bookie, 1, [11]) == codes.OK
    assert not (await bookie.info()).read_only
    await bookie.close()
    assert await store.children(AVAILABLE_PATH) in ([], ["readonly"])


async def test_a_flush_without_space_is_retried_when_there_is_some(
    tmp_path: Path, store: MetadataStore
) -> None:
    fs = MemoryFileSystem()
    bookie = await open_bookie(
        Node(tmp_path / "b1", store).config, fs, store, index=MemoryStore(fs)
    )
    assert await add(bookie, 1, range(10)) == codes.OK
    fs.faults.fail_at = fs.call_count
    fs.faults.error = errno.ENOSPC
    flushed = asyncio.ensure_future(bookie.flush())
    await eventually(lambda: bookie.read_only)
    assert len((await bookie.read_entries(ReadRequest(1, 0, 10, 1 << 20))).packets) == 10
    assert not flushed.done()
    bookie._on_disk_timer()
    await flushed
    assert not bookie.read_only
    assert len((await bookie.read_entries(ReadRequest(1, 0, 10, 1 << 20))).packets) == 10
    await bookie.close()


async def test_a_full_index_on_a_disk_with_space_ends_with_a_restart(
    tmp_path: Path, store: MetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    """LMDB's map has one size as long as a process lives."""
    node = Node(tmp_path / "b1", store)
    index = LmdbStore(node.config.data_dir / "index", map_bytes=1 << 17)
    bookie = await open_bookie(node.config, OsFileSystem(node.path), store, index=index)
    ledgers = range(1, 600)
    for ledger_id in ledgers:
        assert await add(bookie, ledger_id, [0], lambda _: bytes(600)) == codes.OK
    flushed = asyncio.ensure_future(bookie.flush())
    await eventually(lambda: bookie.read_only)
    for _ in range(3):  # tried again, and the disk has space
        bookie._on_disk_timer()
        await eventually(lambda: not bookie._job_running)
        assert bookie.read_only
    assert not [each for each in caplog.messages if "takes writes again" in each]
    assert await add(bookie, 1, [1]) == codes.READ_ONLY
    assert not flushed.done()
    told = [each for each in caplog.messages if "no space to flush" in each]
    assert len(told) == 1
    assert "its map of 131072 bytes is full; a restart makes it larger" in told[0]
    assert len((await bookie.read_entries(ReadRequest(1, 0, 9, 1 << 20))).packets) == 1
    await bookie.close()
    with pytest.raises(BookieClosedError):
        await asyncio.wait_for(flushed, 60)  # it hung
    bookie = await node.start()
    await bookie.flush()
    for ledger_id in ledgers:
        assert len((await bookie.read_entries(ReadRequest(ledger_id, 0, 9, 1 << 20))).packets) == 1
    assert await add(bookie, 1, [1]) == codes.OK
    await bookie.close()


async def test_what_waits_for_a_flush_that_finds_no_space_is_answered(
    tmp_path: Path, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = MemoryFileSystem()
    config = Node(tmp_path / "b1", store, storage=SMALL.__class__(flush_entries=5)).config
    bookie = await open_bookie(config, fs, store, index=MemoryStore(fs))
    assert await add(bookie, 1, range(4)) == codes.OK
    bookie._job_running = True  # a long flush, and the other half fills up as well
    bookie._begin_flush()
    answers: list[int] = []

    def on_done(_request: AddRequest, code: int) -> None:
        answers.append(code)

    bookie.add_entries(request(1, range(4, 14), lambda i: b"x", on_done))
    for _ in range(20):
        await asyncio.sleep(0)
    assert answers == []
    monkeypatch.setattr(bookie, "_arm_disk_timer", lambda: None)  # the disk stays full
    bookie._on_flushed(OSError(errno.ENOSPC, "no space"))
    await eventually(lambda: answers == [codes.OK])
    await bookie.close()


async def test_closing_on_a_full_disk_ends_and_the_journal_keeps_the_entries(
    tmp_path: Path, store: MetadataStore
) -> None:
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    node = Node(tmp_path / "b1", store)
    bookie = await open_bookie(node.config, fs, store, index=index)
    assert await add(bookie, 1, range(10)) == codes.OK
    fs.faults.fail_at = fs.call_count
    fs.faults.error = errno.ENOSPC
    await asyncio.wait_for(bookie.close(), 30)
    bookie = await open_bookie(node.config, fs, store, index=index)
    assert len((await bookie.read_entries(ReadRequest(1, 0, 99, 1 << 20))).packets) == 10
    await bookie.close()


async def test_a_journal_without_space_waits_for_some(tmp_path: Path, store: MetadataStore) -> None:
    fs = MemoryFileSystem()
    node = Node(tmp_path / "b1", store)
    bookie = await open_bookie(node.config, fs, store, index=MemoryStore(fs))
    fs.faults.fail_at = fs.call_count  # the journal's next blocks
    fs.faults.error = errno.ENOSPC
    first = asyncio.ensure_future(add(bookie, 1, range(10)))
    await eventually(lambda: bookie.read_only)
    second = asyncio.ensure_future(add(bookie, 1, range(10, 20)))
    assert not first.done()
    assert bookie.error is None
    bookie._on_disk_timer()
    assert await first == await second == codes.OK
    assert not bookie.read_only
    assert len((await bookie.read_entries(ReadRequest(1, 0, 99, 1 << 20))).packets) == 20
    await bookie.close()


async def test_closing_while_the_journal_has_no_space_answers_everybody(
    tmp_path: Path, store: MetadataStore
) -> None:
    fs = MemoryFileSystem()
    index = MemoryStore(fs)
    node = Node(tmp_path / "b1", store)
    bookie = await open_bookie(node.config, fs, store, index=index)
    assert await add(bookie, 1, range(10)) == codes.OK
    fs.faults.space_bytes = fs.used_bytes()
    large = asyncio.ensure_future(add(bookie, 1, range(10, 14), lambda i: bytes(1 << 20)))
    await eventually(lambda: bookie.read_only)
    await asyncio.wait_for(bookie.close(), 30)
    assert await large == codes.IO_ERROR
    fs.faults.space_bytes = 1 << 40
    bookie = await open_bookie(node.config, fs, store, index=index)
    assert len((await bookie.read_entries(ReadRequest(1, 0, 99, 1 << 20))).packets) == 10
    await bookie.close()


async def test_a_stalled_journal_pushes_back(tmp_path: Path, store: MetadataStore) -> None:
    node = Node(tmp_path / "b1", store, storage=SMALL.__class__(journal_queue_bytes_max=10_000))
    bookie = await node.start()
    answers: list[int] = []

    def on_done(_request: AddRequest, code: int) -> None:
        answers.append(code)

    for first in range(0, 100, 10):  # all in one tick: nothing can be written meanwhile
        bookie.add_entries(request(1, range(first, first + 10), lambda i: bytes(300), on_done))
    await eventually(lambda: len(answers) == 10)
    assert set(answers) == {codes.OK, codes.TOO_MANY_REQUESTS}
    assert await add(bookie, 2, range(1)) == codes.OK
    await bookie.close()


async def test_cookies_keep_foreign_and_empty_disks_out(
    tmp_path: Path, store: MetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    await (await node.start()).close()
    await (await node.start()).close()
    with pytest.raises(CookieMismatchError, match="belongs to bookie b1"):
        await node.start(bookie_id="b2")
    other = Node(tmp_path / "empty", store)
    with pytest.raises(CookieMismatchError, match="empty"):
        await other.start()
    foreign = EmbeddedMetadataStore.open(None)
    with pytest.raises(CookieMismatchError, match="cluster"):
        await Node(node.path, foreign).start()
    await foreign.close()
    (node.path / cookies.FILE).unlink()
    with pytest.raises(CookieMismatchError, match="missing"):
        await node.start()


async def test_a_first_start_that_was_cut_short_is_begun_again(
    tmp_path: Path, store: MetadataStore
) -> None:
    path = tmp_path / "b1"
    fs = OsFileSystem(path)
    checked = await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    assert checked.state is cookies.DirectoryState.NEW
    await (await Node(path, store).start()).close()
    checked = await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    assert checked.state is cookies.DirectoryState.COMPLETE


async def test_an_empty_disk_accepted_by_the_operator_is_in_limbo(
    tmp_path: Path, store: MetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    await store.put(ledger_path(7), b"metadata")
    assert await add(bookie, 7, range(3)) == codes.OK
    await bookie.close()
    empty = Node(tmp_path / "empty", store, accept_data_loss=True)
    for _ in range(2):  # and it stays so over a restart
        bookie = await empty.start()
        assert (
            await bookie.read_entries(ReadRequest(7, 0, 1, 1))
        ).code == codes.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_lac(7, fence=False)).code == codes.UNKNOWN_LEDGER_STATE
        with pytest.raises(UnknownLedgerStateError):
            await bookie.list_entries(7)
        # It may have forgotten a fence, and doesn't know.
        assert await add(bookie, 7, [3]) == codes.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_entries(ReadRequest(8, 0, 1, 1))).code == codes.NO_LEDGER
        await bookie.close()


async def test_a_damaged_journal_is_refused_or_leads_to_limbo(
    tmp_path: Path, store: MetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    await store.put(ledger_path(7), b"metadata")
    assert await add(bookie, 7, range(3)) == codes.OK
    await bookie.flush()
    assert await add(bookie, 7, range(3, 6)) == codes.OK
    assert await add(bookie, 7, range(6, 9)) == codes.OK
    bookie.give_up(RuntimeError("killed"))  # leaves without its last flush
    await bookie.close()
    segment = max((node.path / "journal").glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"body 3")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptFileError, match=segment.name):
        await node.start()
    bookie = await node.start(accept_data_loss=True)
    assert (
        len((await bookie.read_entries(ReadRequest(7, 0, 9, 999))).packets) == 3
    )  # positives are answered
    assert (
        len((await bookie.read_entries(ReadRequest(7, 6, 9, 999))).packets) == 3
    )  # behind the damage, too
    assert (await bookie.read_entries(ReadRequest(7, 3, 1, 1))).code == codes.UNKNOWN_LEDGER_STATE
    assert await add(bookie, 7, range(3, 6), recovery=True) == codes.OK  # repair
    bookie.storage.clear_limbo(7, fenced=True)
    assert (await bookie.read_entries(ReadRequest(7, 9, 1, 1))).code == codes.NO_ENTRY
    await bookie.close()


class HeldFileSystem(OsFileSystem):
    """Its listings wait until they are let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_asked, self.go_on = threading.Event(), threading.Event()

    def list(self, directory: str) -> list[str]:
        self.is_asked.set()
        assert self.go_on.wait(60)
        return super().list(directory)


async def test_a_start_that_is_broken_off_gives_nothing_back_that_its_thread_uses(
    tmp_path: Path, store: MetadataStore
) -> None:
    """The index would be closed under its hands, and another process let in beside it."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    assert await add(bookie, 1, range(100)) == codes.OK
    await bookie.close()
    held = HeldFileSystem(node.path)
    starting = asyncio.create_task(node.start(held))
    assert await asyncio.to_thread(held.is_asked.wait, 60)
    starting.cancel()
    done, _ = await asyncio.wait((starting,), timeout=0.2)
    assert not done
    with pytest.raises(DirectoryLockedError):
        await node.start()
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    bookie = await node.start()
    assert await bookie.list_entries(1) == [(0, 100)]
    await bookie.close()
