"""What is special about the embedded backend: files, groups, failing commits, lost sessions."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.metadata.database import Database
from magnetar.metadata.embedded import EmbeddedMetadataStore, _Shared
from magnetar.metadata.errors import (
    BadVersionError,
    DatabaseError,
    MetadataWriteError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
)
from magnetar.metadata.rows import CommitRows
from magnetar.metadata.sqlite_file import FileState, SqliteFile
from magnetar.metadata.store import EventType, MetadataEvent, SessionEvent
from tests.unit.metadata.event_log import EventLog


class CountingDatabase(Database):
    """Counts transactions, and fails those that a test picks."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self.fail_next: list[Exception] = []

    def run_sql(self, text: str) -> None:
        self._sqlite._db.execute(text)

    def commit(self, change: CommitRows) -> None:
        if self.fail_next:
            raise self.fail_next.pop(0)
        super().commit(change)


def open_on(database: Database) -> EmbeddedMetadataStore:
    return EmbeddedMetadataStore(_Shared(database, lambda: 1_700_000_000_000), owner=True)


def sqlite_error(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


# Restart


async def test_a_restart_keeps_persistent_nodes_and_drops_ephemeral_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "directories" / "metadata.db"
    store = EmbeddedMetadataStore.open(path)
    await store.put("/a/b", b"\x00value")
    written = await store.put("/a/b", b"\x00second")
    await store.put("/a/e", b"", ephemeral=True)
    await store.put("/a/gone", b"")
    await store.delete("/a/gone")
    number = (await store.put("/q/-", b"", sequential=True)).path
    first_session = store.session_id
    await store.close()
    store = EmbeddedMetadataStore.open(path)
    assert await store.get("/a/b") == written
    assert await store.children("/a") == ["b"]
    assert store.session_id != first_session
    await store.delete(number)
    await store.delete("/q")
    await store.close()
    store = EmbeddedMetadataStore.open(path)
    assert (await store.put("/q/-", b"", sequential=True)).path > number
    await store.close()
    names = sorted(each.name for each in path.parent.iterdir())
    assert names == ["metadata.db", *(f"metadata.db-log-{n:016d}" for n in (2, 3))]


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store = EmbeddedMetadataStore.open(tmp_path / "m.db")
    with pytest.raises(DatabaseError, match=r"m\.db: another process is using it"):
        EmbeddedMetadataStore.open(tmp_path / "m.db")
    await store.put("/a", b"still fine")
    await store.close()
    again = EmbeddedMetadataStore.open(tmp_path / "m.db")
    await again.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\x00" * 300])
def test_a_foreign_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"m\.db"):
        EmbeddedMetadataStore.open(path)
    assert path.read_bytes() == content


def test_other_programs_and_newer_formats_are_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    with pytest.raises(DatabaseError, match="not a metadata database"):
        Database(tmp_path / "other.db")
    open_on(Database(tmp_path / "newer.db"))._shared.committer._database.close()
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version=4")
    newer.close()
    with pytest.raises(DatabaseError, match="format version 4, known is 3"):
        Database(tmp_path / "newer.db")


def test_a_path_that_cannot_be_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DatabaseError, match="unable to open"):
        EmbeddedMetadataStore.open(tmp_path)
    with pytest.raises(DatabaseError, match="file"):
        EmbeddedMetadataStore.open(tmp_path / "file" / "m.db")


async def test_a_damaged_schema_is_told(tmp_path: Path) -> None:
    """SQLite quotes it in its message, which is no text then."""
    path = tmp_path / "m.db"
    store = EmbeddedMetadataStore.open(path)
    await store.close()
    data = bytearray(path.read_bytes())
    data[data.index(b"CREATE TABLE nodes") + 7] ^= 0x80
    path.write_bytes(data)
    with pytest.raises(DatabaseError, match="decode"):
        Database(path)


async def test_rows_that_vanish_are_told(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    store = EmbeddedMetadataStore.open(path)
    for number in range(20):
        await store.put(f"/topics/topic-{number}", b"value")
    await store.close()
    data = bytearray(path.read_bytes())
    count_at = 4096 + 4  # of the cells of the root page of ``nodes``
    assert data[count_at] > 20
    data[count_at] -= 1
    path.write_bytes(data)
    with pytest.raises(DatabaseError):
        Database(path)


async def test_a_node_without_its_parent_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    store = EmbeddedMetadataStore.open(path)
    await store.put("/a/b", b"")
    await store.close()
    damaged = sqlite3.connect(path)
    damaged.execute("DELETE FROM nodes WHERE path = '/a'")
    damaged.commit()
    damaged.close()
    for _ in range(2):  # refused without keeping the file locked
        with pytest.raises(DatabaseError, match="/a has children but is missing"):
            EmbeddedMetadataStore.open(path)


KILLED_WRITER = """
import asyncio, sys
from pathlib import Path
from magnetar.metadata.embedded import EmbeddedMetadataStore

async def write(store, worker):
    number = 0
    while True:
        await store.put(f"/w/{worker}/{number}", b"%d" % number, -1)
        print(worker, number, flush=True)
        number += 1

async def main():
    store = EmbeddedMetadataStore.open(Path(sys.argv[1]))
    await store.put("/e/ephemeral", b"", ephemeral=True)
    await asyncio.gather(*(write(store, worker) for worker in range(20)))

asyncio.run(main())
"""


def write_and_kill(path: Path, acknowledged_min: int) -> list[bytes]:
    """Kills a writing process after so many acknowledged puts; all that it acknowledged."""
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(path)], stdout=subprocess.PIPE, cwd=root
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(acknowledged_min)]
        writer.kill()
        lines += [line for line in writer.stdout.readlines() if line.endswith(b"\n")]
    return lines


@pytest.mark.parametrize("acknowledged_min", [1, 500, 3000])
async def test_kill_nine_keeps_every_acknowledged_put(
    tmp_path: Path, acknowledged_min: int
) -> None:
    path = tmp_path / "m.db"
    lines = write_and_kill(path, acknowledged_min)
    assert len(lines) >= acknowledged_min
    store = EmbeddedMetadataStore.open(path)
    for line in lines:
        worker, number = line.split()
        found = await store.get(f"/w/{worker.decode()}/{number.decode()}")
        assert found is not None
        assert (found.value, found.stat.version) == (number, 0)
    assert await store.children("/e") == []
    await store.close()


# Group commit


async def test_concurrent_operations_share_transactions() -> None:
    database = CountingDatabase(None)
    store = open_on(database)
    await asyncio.gather(*(store.put(f"/a/{i}", b"") for i in range(200)))
    assert database.commits == 1
    await asyncio.gather(*(store.put(f"/b/{i}", b"") for i in range(1000)))
    assert database.commits == 1 + 4  # groups of at most 256
    await store.put("/c", b"")
    assert database.commits == 6
    await store.close()


async def test_ephemeral_nodes_and_refusals_cost_no_transaction() -> None:
    database = CountingDatabase(None)
    store = open_on(database)
    await store.put("/e", b"")
    for i in range(10):
        await store.put(f"/e/{i}", b"", ephemeral=True)
        with pytest.raises(BadVersionError):
            await store.put("/e", b"", -1)
    assert database.commits == 1
    await store.close()
    assert database.commits == 1


async def test_a_lone_put_waits_for_no_timer() -> None:
    store = EmbeddedMetadataStore.open(None)
    await store.put("/warm", b"")
    durations = []
    for i in range(20):
        start = time.perf_counter()
        await store.put(f"/a/{i}", b"")
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.004  # the smallest usual linger; typical is 0.05 ms
    await store.close()


async def test_nothing_is_shown_before_its_commit() -> None:
    store = EmbeddedMetadataStore.open(None)
    log = EventLog[MetadataEvent]()
    store.watch("/a", log)
    put = asyncio.ensure_future(store.put("/a", b"v"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the group is formed and handed to the thread
    assert not await store.exists("/a")
    assert log.events == []
    await put
    assert await store.exists("/a")
    assert log.events == [MetadataEvent(EventType.CREATED, "/a")]
    await store.close()


async def test_events_of_a_group_keep_the_order_of_its_operations() -> None:
    store = EmbeddedMetadataStore.open(None)
    log = EventLog[MetadataEvent]()
    store.watch("/a", log)
    await asyncio.gather(
        store.put("/a", b"1"), store.put("/a/b", b""), store.put("/a", b"2"), store.delete("/a/b")
    )
    assert [(each.type.name, each.path) for each in log.events] == [
        ("CREATED", "/a"),
        ("CREATED", "/a/b"),
        ("CHILDREN_CHANGED", "/a"),
        ("MODIFIED", "/a"),
        ("DELETED", "/a/b"),
        ("CHILDREN_CHANGED", "/a"),
    ]
    await store.close()


async def test_a_cancelled_caller_disturbs_no_one() -> None:
    store = EmbeddedMetadataStore.open(None)
    tasks = [asyncio.ensure_future(store.put(f"/a/{i}", b"")) for i in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [i for i, each in enumerate(done) if isinstance(each, asyncio.CancelledError)] == [3]
    assert set(await store.children("/a")) >= {"0", "9"}
    await store.close()


async def test_close_commits_what_is_queued(tmp_path: Path) -> None:
    store = EmbeddedMetadataStore.open(tmp_path / "m.db")
    puts = [asyncio.ensure_future(store.put(f"/a/{i}", b"")) for i in range(600)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)
    store = EmbeddedMetadataStore.open(tmp_path / "m.db")
    assert len(await store.children("/a")) == 600
    await store.close()


async def test_the_owner_ends_all_sessions() -> None:
    store = EmbeddedMetadataStore.open(None)
    other = store.new_session()
    await store.close()
    with pytest.raises(StoreClosedError):
        await other.put("/a", b"")
    await other.close()


# Commits that fail


async def test_a_full_disk_fails_only_what_does_not_fit(tmp_path: Path) -> None:
    database = CountingDatabase(tmp_path / "m.db")
    store = open_on(database)
    await store.put("/small", b"1")
    database.run_sql("PRAGMA max_page_count=20")  # 80 KiB: then SQLite says that the disk is full
    log = EventLog[MetadataEvent]()
    store.watch("/", log)
    outcomes = await asyncio.gather(
        store.put("/small", b"2", 0),
        store.put("/large", b"x" * 500_000),
        store.put("/small", b"3", 1),
        store.put("/after", b""),
        return_exceptions=True,
    )
    assert [type(each).__name__ for each in outcomes] == [
        "Versioned",
        "MetadataWriteError",
        "Versioned",
        "Versioned",
    ]
    assert isinstance(outcomes[1], MetadataWriteError)
    assert str(outcomes[1]) == "/large: not written: database or disk is full"
    assert not await store.exists("/large")
    assert not any(each.path == "/large" for each in log.events)
    database.run_sql("PRAGMA max_page_count=100000")
    await store.put("/large", b"x" * 500_000)
    await store.close()
    store = EmbeddedMetadataStore.open(tmp_path / "m.db")
    found = await store.get("/small")
    assert found is not None
    assert (found.value, found.stat.version) == (b"3", 2)
    assert sorted(await store.children("/")) == ["after", "large", "small"]
    await store.close()


async def test_conditions_are_checked_again_after_a_refused_group() -> None:
    database = CountingDatabase(None)
    store = open_on(database)
    full = sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full")
    database.fail_next = [full, full]  # the group, then its first member alone
    first, second = await asyncio.gather(
        store.put("/a", b"1", -1), store.put("/a", b"2", -1), return_exceptions=True
    )
    assert isinstance(first, MetadataWriteError)
    assert not isinstance(second, BaseException)
    assert (second.value, second.stat.version) == (b"2", 0)
    await store.close()


async def test_a_commit_counts_once_it_can_not_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies note it: one that is refused would make the next start refuse the metadata."""
    store = EmbeddedMetadataStore.open(tmp_path / "m.sqlite")
    begun, gate, commit = threading.Event(), threading.Event(), SqliteFile.commit

    def refuse(file: SqliteFile, change: CommitRows, state: FileState | None) -> None:
        begun.set()
        gate.wait()
        raise sqlite_error(sqlite3.SQLITE_FULL, "full")

    before = store.commit_mark
    assert before is not None
    monkeypatch.setattr(SqliteFile, "commit", refuse)
    put = asyncio.create_task(store.put("/a", b""))
    await asyncio.to_thread(begun.wait)
    assert store.commit_mark == before
    gate.set()
    with pytest.raises(MetadataWriteError):
        await put
    assert store.commit_mark == before
    monkeypatch.setattr(SqliteFile, "commit", commit)
    await store.put("/b", b"")
    assert store.commit_mark == replace(before, commit=before.commit + 1)
    await store.close()


async def test_a_failing_sync_closes_the_store(tmp_path: Path) -> None:
    database = CountingDatabase(tmp_path / "m.db")
    store = open_on(database)
    other = store.new_session()
    sessions = EventLog[SessionEvent]()
    other.on_session_event(sessions)
    await store.put("/kept", b"")
    database.fail_next = [sqlite_error(sqlite3.SQLITE_IOERR, "disk I/O error")]
    puts = [asyncio.ensure_future(store.put(f"/a/{i}", b"")) for i in range(300)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(each) for each in outcomes] == [OutcomeUnknownError] * 256 + [
        StoreClosedError
    ] * 44
    assert str(outcomes[0]) == "/a/0: disk I/O error; the outcome is unknown"
    assert sessions.events == [SessionEvent.SESSION_LOST]
    with pytest.raises(StoreClosedError, match="closed itself: disk I/O error"):
        await other.put("/b", b"")
    with pytest.raises(StoreClosedError, match="closed itself"):
        await store.get("/a/0")
    await other.close()
    await store.close()
    store = EmbeddedMetadataStore.open(tmp_path / "m.db")
    assert await store.children("/") == ["kept"]
    await store.close()


# Lost sessions (the fault door for simulations)


async def test_a_lost_session_refuses_until_a_new_one_begins() -> None:
    store = EmbeddedMetadataStore.open(None)
    session = store.new_session()
    events, log = EventLog[SessionEvent](), EventLog[MetadataEvent]()
    session.on_session_event(events)
    session.watch("/", log)
    await session.put("/e", b"", ephemeral=True)
    old, before = session.session_id, len(log.events)
    session.lose_session()
    session.lose_session()
    with pytest.raises(SessionLostError):
        await session.get("/e")
    with pytest.raises(SessionLostError):
        await session.put("/x", b"")
    await store.put("/missed", b"")
    assert len(log.events) == before  # events are lost, as with a broken connection
    assert await store.exists("/e")
    session.begin_session()
    assert session.session_id != old
    found = await session.get("/e")
    assert found is not None
    assert found.stat.ephemeral
    assert not found.stat.created_by_self
    await session.expire_session(old)
    assert not await store.exists("/e")
    assert [each.name for each in events.events] == [
        "CONNECTION_LOST",
        "SESSION_LOST",
        "RECONNECTED",
        "SESSION_REESTABLISHED",
    ]
    await store.close()


async def test_a_queued_operation_of_an_expired_session_leaves_no_node() -> None:
    store = EmbeddedMetadataStore.open(None)
    session = store.new_session()
    expire = asyncio.ensure_future(store.expire_session(session.session_id))
    put = asyncio.ensure_future(session.put("/e", b"", ephemeral=True))
    await expire
    with pytest.raises(SessionLostError):
        await put
    assert not await store.exists("/e")
    await store.close()
