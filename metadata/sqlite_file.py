"""The SQLite file of an embedded store. Used by one thread at a time; blocks.

Layout (``PRAGMA user_version`` = FORMAT_VERSION): ``nodes`` has one row per persistent node except
the root, and in the root's place (path "") one for the state itself; ``counters`` the next sequence
number of each parent that ever had sequential children.
SQLite notices damage of its own structure only, so every row ends with a CRC32C over its fields; a
damaged frame of the WAL it drops, and everything behind it. ``database.py`` finds that out, and
makes commits durable: here a commit syncs nothing (synchronous=NORMAL), ``checkpoint`` does. The
lock is exclusive: a second process that opens the file is refused instead of serving a tree that is
about to be stale.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError  # it is a class
from typing import Any

from crc32c import crc32c

from magnetar.metadata.errors import DatabaseError
from magnetar.metadata.rows import DIGEST_BYTES, CommitRows, Row

APPLICATION_ID = 0x4D474D44  # "MGMD"
FORMAT_VERSION = 3  # 1 had no checksums, 2 no row of the state and no log
_UNLOGGED_VERSION = 2

# Rows per statement. sqlite3 releases the GIL once per statement, and beside a busy loop each
# release costs a switch interval: executemany, one release a row, is far slower there.
_ROWS_MAX = 64
_PUT = "REPLACE INTO nodes (path, value, version, created_ms, modified_ms, crc) VALUES "
_COUNT = "REPLACE INTO counters (parent, next, crc) VALUES "
_NUMBERS = Struct(">qqq")
_NUMBER = Struct(">q")
_STATE_PATH = ""  # a row among the others: a statement of its own would cost each commit more
_STATE = Struct(">16s16sQ")  # store id, digest, log segment
_OTHER_TYPES = (TypeError, AttributeError, StructError, UnicodeError)
"""A damaged row may hold a number where a text was, and SQLite's message may quote damaged text."""


@dataclass(frozen=True, slots=True)
class FileState:
    """Holds the file's identity and its last commit, as stored in the file.

    Attributes:
        store_id: random, made with the store: 16 bytes.
        commit: how many commits made it.
        digest: of all other rows, see ``rows.py``.
        segment: the newest segment of the log that certainly exists; 0: none.
    """

    store_id: bytes
    commit: int
    digest: int
    segment: int


class SqliteFile:
    """Opened by the constructor; any thread may use it, one at a time.

    A file is then in a transaction, which ``finish_opening`` ends: until then nothing is changed.

    Attributes:
        is_new: there are no tables yet.
        is_unlogged: of an earlier version, which had no state.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.is_new = self.is_unlogged = False
        try:
            if path is not None:
                _make_directories(path.parent)
            self._db = sqlite3.connect(
                path or ":memory:", isolation_level=None, check_same_thread=False, timeout=0
            )
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(path, error) from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            is_locked = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            reason = "another process is using it" if is_locked else error
            raise DatabaseError(path, reason) from error
        except UnicodeError as error:
            self._db.close()
            raise DatabaseError(path, error) from error
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        run = self._db.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=NORMAL")
        run("BEGIN EXCLUSIVE")
        (version,) = run("PRAGMA user_version").fetchone()
        (application,) = run("PRAGMA application_id").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version) == (0, 0) and not tables:
            self.is_new = True
        elif application != APPLICATION_ID:
            raise DatabaseError(self.path, f"not a metadata database (id {application:#x})")
        elif version not in (_UNLOGGED_VERSION, FORMAT_VERSION):
            raise DatabaseError(self.path, f"format version {version}, known is {FORMAT_VERSION}")
        else:
            self.is_unlogged = version == _UNLOGGED_VERSION
            # Rows have checksums; this tells of rows that a damaged page doesn't show any more.
            ((verdict,),) = run("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                raise DatabaseError(self.path, verdict)

    def make_tables(self) -> None:
        """Gives a new file its tables."""
        run = self._db.execute
        run(
            "CREATE TABLE nodes (path TEXT PRIMARY KEY, value BLOB NOT NULL,"
            " version INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
            " modified_ms INTEGER NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
        )
        run(
            "CREATE TABLE counters (parent TEXT PRIMARY KEY, next INTEGER NOT NULL,"
            " crc INTEGER NOT NULL) WITHOUT ROWID"
        )
        run(f"PRAGMA application_id={APPLICATION_ID}")

    def finish_opening(self, state: FileState | None) -> None:
        """Ends the transaction of the constructor; a file is durable after ``checkpoint``."""
        self._db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        self.apply(CommitRows(), state)
        self._db.execute("COMMIT")

    def state(self) -> FileState:
        """Raises DatabaseError: the file or the row is damaged."""
        try:
            found = _read_state(self._db)
        except (sqlite3.Error, *_OTHER_TYPES) as error:
            raise DatabaseError(self.path, error) from error
        if found is None:
            raise DatabaseError(self.path, "the row of its state is damaged or missing")
        return found

    def nodes(self) -> Iterator[Row]:
        """All nodes. Raises DatabaseError: the file or a row is damaged."""
        try:
            for *fields, crc in self._db.execute(
                "SELECT path, value, version, created_ms, modified_ms, crc FROM nodes"
                f" WHERE path != '{_STATE_PATH}'"
            ):
                path, value, version, created_ms, modified_ms = fields
                row = (path, value, version, created_ms, modified_ms)
                self._check(path, crc, _row_crc(row))
                yield row
        except (sqlite3.Error, *_OTHER_TYPES) as error:
            raise DatabaseError(self.path, error) from error

    def counters(self) -> dict[str, int]:
        """Next sequence numbers. Raises DatabaseError: the file or a row is damaged."""
        counters: dict[str, int] = {}
        try:
            for parent, number, crc in self._db.execute("SELECT parent, next, crc FROM counters"):
                self._check(parent, crc, _counter_crc(parent, number))
                counters[parent] = number
        except (sqlite3.Error, *_OTHER_TYPES) as error:
            raise DatabaseError(self.path, error) from error
        return counters

    def _check(self, path: str, found: int, expected: int) -> None:
        if found != expected:
            raise DatabaseError(self.path, f"the row of {path} is damaged: it does not fit its CRC")

    def commit(self, change: CommitRows, state: FileState | None) -> None:
        """All or nothing; durable only after ``checkpoint``.

        Raises:
            sqlite3.Error: nothing was written.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self.apply(change, state)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def apply(self, change: CommitRows, state: FileState | None) -> None:
        """REQUIRES: a transaction."""
        run = self._db.execute
        for part in _parts(change.deletes):
            run(f"DELETE FROM nodes WHERE path IN ({_marks('?', len(part))})", part)
        puts = change.puts if state is None else [*change.puts, _state_row(state)]
        for rows in _parts(puts):
            run(
                _PUT + _marks("(?,?,?,?,?,?)", len(rows)),
                [field for row in rows for field in (*row, _row_crc(row))],
            )
        for pairs in _parts(list(change.counters.items())):
            run(
                _COUNT + _marks("(?,?,?)", len(pairs)),
                [field for pair in pairs for field in (*pair, _counter_crc(*pair))],
            )

    def checkpoint(self) -> None:
        """Makes all commits durable in the main file, and the WAL empty.

        Raises:
            sqlite3.Error: the commits are still where they were.
        """
        (is_busy, _, _) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not is_busy  # no other connection has the file open

    def close(self) -> None:
        self._db.close()


def commit_without_wal(path: Path) -> int:
    """Which commit the main file alone is at; 0: it can't tell.

    That of the file with its WAL is never smaller: else the WAL is an older copy.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as main:
            state = _read_state(main)
    except (sqlite3.Error, *_OTHER_TYPES):
        return 0
    return 0 if state is None else state.commit


def read_intact(path: Path) -> tuple[list[Row], dict[str, int], FileState | None, list[str]]:
    """Rows and counters that fit their CRC, the state, and what is wrong beside them.

    Of a file that no start would open; SQLite may change it.
    """
    rows, counters, state, damage = list[Row](), dict[str, int](), None, list[str]()
    if not path.exists():
        return rows, counters, state, [f"all that only {path.name} had: it is missing"]
    with closing(sqlite3.connect(path)) as db:
        db.text_factory = bytes  # a damaged text must not end the reading
        try:
            state = _read_state(db)
            query = "SELECT path, value, version, created_ms, modified_ms, crc FROM nodes"
            for found in db.execute(query):
                if found[0] in (b"", ""):  # the state
                    continue
                if (row := _intact_row(found)) is not None:
                    rows.append(row)
                else:
                    damage.append(f"the node {_readable(found[0])}")
            for found in db.execute("SELECT parent, next, crc FROM counters"):
                if (counter := _intact_counter(found)) is not None:
                    counters |= counter
                else:
                    damage.append(f"the counter of {_readable(found[0])}")
        except (sqlite3.Error, *_OTHER_TYPES) as error:
            damage.append(f"nodes of {path.name} that can't be read: {error}")
    return rows, counters, state, damage


def _intact_row(found: tuple[Any, ...]) -> Row | None:
    """The row, whatever a damaged one holds."""
    try:
        row = (found[0].decode(), *found[1:-1])
        return row if _row_crc(row) == found[-1] else None
    except _OTHER_TYPES:
        return None


def _intact_counter(found: tuple[Any, ...]) -> dict[str, int] | None:
    try:
        parent, number = found[0].decode(), found[1]
        return {parent: number} if _counter_crc(parent, number) == found[-1] else None
    except _OTHER_TYPES:
        return None


def _readable(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else repr(name)


def _read_state(db: sqlite3.Connection) -> FileState | None:
    query = "SELECT value, version, created_ms, modified_ms, crc FROM nodes WHERE path=?"
    found = db.execute(query, (_STATE_PATH,)).fetchone()
    if found is None or found[-1] != _row_crc((_STATE_PATH, *found[:-1])):
        return None
    store_id, digest, segment = _STATE.unpack(found[0])
    return FileState(store_id, found[1], int.from_bytes(digest, "big"), segment)


def _state_row(state: FileState) -> Row:
    digest = state.digest.to_bytes(DIGEST_BYTES, "big")
    value = _STATE.pack(state.store_id, digest, state.segment)
    return _STATE_PATH, value, state.commit, 0, 0


def _row_crc(row: Row) -> int:
    path, value, *numbers = row
    crc: int = crc32c(_NUMBERS.pack(*numbers), crc32c(value, crc32c(path.encode())))
    return crc


def _counter_crc(parent: str, number: int) -> int:
    crc: int = crc32c(_NUMBER.pack(number), crc32c(parent.encode()))
    return crc


def _marks(mark: str, count: int) -> str:
    return ",".join([mark] * count)


def _parts(items: Sequence[Row] | Sequence[str] | Sequence[tuple[str, int]]) -> Iterator[list]:  # type: ignore[type-arg]
    # Sizes are powers of two, so that few statements stay in sqlite3's statement cache.
    start = 0
    while start < len(items):
        count = min(_ROWS_MAX, 1 << (len(items) - start).bit_length() - 1)
        yield list(items[start : start + count])
        start += count


def _make_directories(directory: Path) -> None:
    """Creates what is missing and syncs each parent, so that a power cut can't lose the names.

    The file's own name is synced together with that of its log.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in it durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
