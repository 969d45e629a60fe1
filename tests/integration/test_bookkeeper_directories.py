"""A bookie on several directories: where its files lie, and which directories it refuses."""

import asyncio
import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.bookie.storage.directories import MEMBER_FILE, SET_FILE, open_directories
from magnetar.bookkeeper.client.ledger_store import LedgerStore, ledger_path
from magnetar.bookkeeper.errors import CookieMismatchError, DirectoryLockedError
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, encode
from magnetar.bookkeeper.storage.file_system import FileSystem
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.store import MetadataStore
from tests.integration.bookie_node import KEY, SMALL, add


class Disk(OsFileSystem):
    """A root with a size of its own, in bytes, that counts what lies in it."""

    sizes: dict[str, int]

    def free_bytes(self) -> int:
        used = sum(file.stat().st_size for file in self.root.rglob("*.log"))
        return self.total_bytes() - used

    def total_bytes(self) -> int:
        return self.sizes.get(self.root.name, 1 << 40)


def disks(**sizes: int) -> type[Disk]:
    return type("SizedDisk", (Disk,), {"sizes": sizes})


async def open_several(
    tmp_path: Path,
    store: MetadataStore,
    ledgers: Sequence[str],
    journal: str | None,
    disk: type[OsFileSystem] = OsFileSystem,
    accept_data_loss: bool = False,
) -> Bookie:
    paths = [tmp_path / name for name in ledgers]
    files = open_directories(
        paths,
        None if journal is None else tmp_path / journal,
        open_root=disk,
        accept_data_loss=accept_data_loss,
    )
    config = BookieConfig(
        "b1",
        paths[0],
        SMALL,
        disk_reserve_bytes=0,
        disk_usage_max=1.0,
        accept_data_loss=accept_data_loss,
    )
    return await open_bookie(config, files, store)


async def fill(bookie: Bookie, first: int, count: int) -> None:
    """Entries of 40 KB each, flushed as they come."""
    for entry_id in range(first, first + count):
        assert await add(bookie, 1, [entry_id], _body) == codes.OK
        if entry_id % 20 == 0:
            await bookie.flush()
    await bookie.flush()


def _body(entry_id: int) -> bytes:
    return b"%08d" % entry_id * 5000


async def check(bookie: Bookie, count: int) -> None:
    for entry_id in range(count):
        reply = await bookie.read_entries(ReadRequest(1, entry_id, 1, 1))
        assert reply.code == codes.OK
        assert bytes(reply.packets[0]).endswith(_body(entry_id))


def logs(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "entry-log").glob("*.log"))


async def test_every_file_lies_where_it_belongs(tmp_path: Path, store: MetadataStore) -> None:
    places = ["one", "two", "three"], "journal"
    # The fullest share doesn't matter for a new log, free bytes do: "two" is filled at last.
    disk = disks(one=60_000_000, two=50_000_000, three=60_000_000)
    bookie = await open_several(tmp_path, store, *places, disk)
    await fill(bookie, 0, 400)  # 16 MB in logs of 4 MiB
    await bookie.close()
    assert list((tmp_path / "journal" / "journal").iterdir())
    assert not (tmp_path / "one" / "journal").exists()
    assert (tmp_path / "one" / "index").exists()
    assert logs(tmp_path / "one")
    assert logs(tmp_path / "three")
    assert logs(tmp_path / "two") == []
    bookie = await open_several(tmp_path, store, *places, disk)
    await check(bookie, 400)
    await fill(bookie, 400, 10)
    await bookie.close()


async def open_with_journals(
    tmp_path: Path, store: MetadataStore, journals: int, first: str | None = "j0"
) -> Bookie:
    """Ledgers in "one"; journals in "j0", "j1", ..., the first perhaps in "one"."""
    more = [tmp_path / f"j{number}" for number in range(1, journals)]
    journal = None if first is None else tmp_path / first
    files = open_directories([tmp_path / "one"], journal, more)
    storage = replace(SMALL, journals=journals)
    config = BookieConfig("b1", tmp_path / "one", storage, disk_reserve_bytes=0, disk_usage_max=1.0)
    return await open_bookie(config, files, store)


@pytest.mark.parametrize("first", ["j0", None])
async def test_several_journals_share_the_ledgers_and_may_become_more(
    tmp_path: Path, store: MetadataStore, first: str | None
) -> None:
    held: dict[int, int] = {}
    for journals in (1, 2, 3):
        bookie = await open_with_journals(tmp_path, store, journals, first)
        for ledger_id, count in held.items():
            assert await bookie.list_entries(ledger_id) == [(0, count)]
            assert await add(bookie, 100 + ledger_id, [0]) == codes.FENCED
        for ledger_id in range(7):
            count = held.get(ledger_id, 0)
            answers = [add(bookie, ledger_id, [count + at]) for at in range(5)]
            assert await asyncio.gather(*answers) == [codes.OK] * 5
            held[ledger_id] = count + 5
            fenced = await bookie.read_entries(
                ReadRequest(100 + ledger_id, 0, 1, 1, fence=True, master_key=KEY)
            )
            assert fenced.code == codes.NO_ENTRY
        for number in range(journals):
            home = tmp_path / ("one" if first is None and number == 0 else f"j{number}")
            name = "journal" if number == 0 else f"journal-{number}"
            assert list((home / name).glob("*.journal"))
        assert len(bookie.storage.journals) == journals
        bookie._lock.release()  # no orderly end: the next start replays all journals
        bookie.give_up(OSError("as if the process had ended"))
        await bookie.close()
    with pytest.raises(CookieMismatchError, match="3"):
        await open_with_journals(tmp_path, store, 2, first)
    (tmp_path / "j1").rename(tmp_path / "away")
    (tmp_path / "j2").rename(tmp_path / "j1")
    (tmp_path / "away").rename(tmp_path / "j2")
    with pytest.raises(CookieMismatchError, match="another place"):
        await open_with_journals(tmp_path, store, 3, first)


async def test_acknowledged_entries_are_replayed_from_the_journals_directory(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await open_several(tmp_path, store, ["one"], "journal")
    for entry_id in range(10):
        assert await add(bookie, 1, [entry_id], _body) == codes.OK
    # A copy of all directories at this moment is what a crash leaves behind.
    for name in ("one", "journal"):
        shutil.copytree(tmp_path / name, tmp_path / "crashed" / name)
    await bookie.close()
    bookie = await open_several(tmp_path / "crashed", store, ["one"], "journal")
    await check(bookie, 10)
    await bookie.close()


async def test_directories_may_be_added_but_not_taken_away(
    tmp_path: Path, store: MetadataStore
) -> None:
    bookie = await open_several(tmp_path, store, ["one"], None)
    await fill(bookie, 0, 50)
    await bookie.close()
    bookie = await open_several(tmp_path, store, ["one", "two"], None)
    await check(bookie, 50)
    await bookie.close()
    with pytest.raises(CookieMismatchError, match="entries lie in 2"):
        await open_several(tmp_path, store, ["one"], None)
    with pytest.raises(CookieMismatchError, match="the first of ledgerDirectories"):
        await open_several(tmp_path, store, ["one", "two"], "journal")
    bookie = await open_several(tmp_path, store, ["one", "two", "three"], "one")
    await check(bookie, 50)
    await bookie.close()


async def test_a_lost_swapped_or_foreign_directory_is_refused(
    tmp_path: Path, store: MetadataStore
) -> None:
    places = ["one", "two", "three"], "journal"
    await (await open_several(tmp_path, store, *places)).close()
    with pytest.raises(CookieMismatchError, match="belongs to another"):
        await open_several(tmp_path, store, ["one", "three", "two"], "journal")
    with pytest.raises(CookieMismatchError, match="the journal lies in another"):
        await open_several(tmp_path, store, ["one", "two", "three"], None)
    other = EmbeddedMetadataStore.open(None)
    await (await open_several(tmp_path / "other", other, *places)).close()
    await other.close()
    shutil.move(tmp_path / "two", tmp_path / "kept")
    shutil.copytree(tmp_path / "other" / "two", tmp_path / "two")
    with pytest.raises(CookieMismatchError, match="belongs to another"):
        await open_several(tmp_path, store, *places)
    shutil.rmtree(tmp_path / "two")
    with pytest.raises(CookieMismatchError, match="is the right disk mounted"):
        await open_several(tmp_path, store, *places)
    shutil.rmtree(tmp_path / "two")
    shutil.move(tmp_path / "kept", tmp_path / "two")
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(CookieMismatchError, match="is the right disk mounted"):
        await open_several(tmp_path, store, *places)


@pytest.mark.parametrize("lost", ["two", "journal"])
async def test_a_lost_directory_that_was_accepted_leads_to_limbo(
    tmp_path: Path, store: MetadataStore, lost: str
) -> None:
    """Not to a bookie that denies what it had: of the rest everything is answered."""
    places = ["one", "two", "three"], "journal"
    ledgers = LedgerStore(store)
    for ledger_id in (1, 2):
        metadata = LedgerMetadata(ledger_id, 1, 1, 1, (EnsembleSegment(0, ("b1",)),))
        await store.put(ledger_path(ledger_id), encode(metadata))
    assert [found.ledger_ids async for found in ledgers.ranges()] == [[1, 2]]
    disk = disks(one=300_000, two=1_000_000, three=300_000)
    bookie = await open_several(tmp_path, store, *places, disk)
    await fill(bookie, 0, 15)  # to the roomiest
    assert logs(tmp_path / "two")
    assert not logs(tmp_path / "one")
    assert await add(bookie, 2, range(3)) == codes.OK
    bookie.give_up(RuntimeError("killed"))  # those are in the journal only
    await bookie.close()
    shutil.rmtree(tmp_path / lost)
    with pytest.raises(CookieMismatchError, match="is the right disk mounted"):
        await open_several(tmp_path, store, *places, disk)
    shutil.rmtree(tmp_path / lost)
    bookie = await open_several(tmp_path, store, *places, disk, accept_data_loss=True)
    has_one, has_two = lost == "journal", lost == "two"
    reply = await bookie.read_entries(ReadRequest(1, 3, 1, 1))
    assert reply.code == (codes.OK if has_one else codes.UNKNOWN_LEDGER_STATE)
    reply = await bookie.read_entries(ReadRequest(2, 1, 1, 1))
    assert reply.code == (codes.OK if has_two else codes.UNKNOWN_LEDGER_STATE)
    assert (await bookie.read_entries(ReadRequest(1, 99, 1, 1))).code == codes.UNKNOWN_LEDGER_STATE
    # A lost journal concerns everything, a lost entry log what was in it.
    reply = await bookie.read_entries(ReadRequest(2, 99, 1, 1))
    assert reply.code == (codes.NO_ENTRY if has_two else codes.UNKNOWN_LEDGER_STATE)
    await bookie.close()
    bookie = await open_several(tmp_path, store, *places, disk)  # it stays so, accepted or not
    assert (await bookie.read_entries(ReadRequest(1, 99, 1, 1))).code == codes.UNKNOWN_LEDGER_STATE
    await bookie.close()


async def test_a_new_directory_must_be_empty(tmp_path: Path, store: MetadataStore) -> None:
    (tmp_path / "two" / "lost+found").mkdir(parents=True)
    (tmp_path / "two" / "photos").mkdir()
    with pytest.raises(CookieMismatchError, match="isn't empty"):
        await open_several(tmp_path, store, ["one", "two"], None)
    (tmp_path / "two" / "photos").rmdir()
    await (await open_several(tmp_path, store, ["one", "two"], None)).close()


async def test_each_directory_is_locked(tmp_path: Path, store: MetadataStore) -> None:
    bookie = await open_several(tmp_path, store, ["one", "two"], "journal")
    with pytest.raises(DirectoryLockedError):
        await open_several(tmp_path, store, ["one", "two"], "journal")
    await bookie.close()
    held = OsFileSystem(tmp_path / "two").lock("lock")
    with pytest.raises(DirectoryLockedError):
        await open_several(tmp_path, store, ["one", "two"], "journal")
    held.release()
    await (await open_several(tmp_path, store, ["one", "two"], "journal")).close()


def test_a_first_start_can_be_cut_short_anywhere(tmp_path: Path) -> None:
    """Fail each rename and each sync of a directory in turn; the next start goes through."""
    failures = 0
    for fail_at in range(100):
        root = tmp_path / str(fail_at)
        calls = 0

        class Failing(OsFileSystem):
            def _count(self) -> None:
                nonlocal calls
                calls += 1
                if calls == fail_at + 1:  # noqa: B023 used in this round only
                    raise OSError(errno.EIO, os.strerror(errno.EIO))

            def rename(self, path: str, new_path: str) -> None:
                self._count()
                super().rename(path, new_path)

            def sync_dir(self, path: str, sync_point: str) -> None:
                self._count()
                super().sync_dir(path, sync_point)

        ledgers = [root / "one", root / "two"]
        try:
            open_directories(ledgers, root / "journal", open_root=Failing)
        except OSError:
            failures += 1
            files: FileSystem = open_directories(ledgers, root / "journal")
            assert files.exists(SET_FILE)
            assert (root / "journal" / MEMBER_FILE).exists()
        else:
            break
    assert failures == 8  # four files, each renamed and synced


def test_the_fullest_disk_that_matters_decides(tmp_path: Path) -> None:
    """One full ledger directory of several is no reason to refuse writes, a full journal is."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for full, is_full in (("two", False), ("one", True), ("journal", True)):
        sizes = dict.fromkeys(("one", "two", "journal"), 1000) | {full: 1}
        files = open_directories(paths, tmp_path / "journal", open_root=disks(**sizes))
        for name in sizes:
            log = tmp_path / name / "x.log"
            log.write_bytes(b"1")
        share = files.free_bytes() / files.total_bytes()
        assert (share < 0.5) is is_full, full
