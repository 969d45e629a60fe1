"""The SQLite file behind an embedded store. Used by one thread at a time; blocks.

Layout (``PRAGMA user_version`` = FORMAT_VERSION): ``nodes`` has one row per persistent node except
the root, ``counters`` the next sequence number of each parent that ever had sequential children.
SQLite notices damage of its own structure only, so every row ends with a CRC32C over its fields.
WAL with synchronous=FULL: a commit has synced the log when it returns. The lock is exclusive: a
second process that opens the file is refused instead of serving a tree that is about to be stale.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from struct import error as StructError  # it is a class

from crc32c import crc32c

from metadata.errors import DatabaseError

APPLICATION_ID = 0x4D474D44  # "MGMD"
FORMAT_VERSION = 2  # 1 had no checksums

# Rows per statement. sqlite3 releases the GIL once per statement, and beside a busy loop each
# release costs a switch interval: executemany, one release a row, is far slower there.
_ROWS_MAX = 64
_PUT = "REPLACE INTO nodes (path, value, version, created_ms, modified_ms, crc) VALUES "
_COUNT = "REPLACE INTO counters (parent, next, crc) VALUES "
_NUMBERS = Struct(">qqq")
_NUMBER = Struct(">q")
_OTHER_TYPES = (TypeError, AttributeError, StructError, UnicodeError)
"""A damaged row may hold a number where a text was, and SQLite's message may quote damaged text."""

Row = tuple[str, bytes, int, int, int]


class Database:
    """Opened by the constructor; any thread may use it, one at a time."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.commits = path, 0
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
        run("PRAGMA synchronous=FULL")
        run("BEGIN EXCLUSIVE")
        (version,) = run("PRAGMA user_version").fetchone()
        (application,) = run("PRAGMA application_id").fetchone()
        (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version) == (0, 0) and not tables:
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
            run(f"PRAGMA user_version={FORMAT_VERSION}")
        elif application != APPLICATION_ID:
            raise DatabaseError(self.path, f"not a metadata database (id {application:#x})")
        elif version != FORMAT_VERSION:
            raise DatabaseError(self.path, f"format version {version}, known is {FORMAT_VERSION}")
        else:
            # Rows have checksums; this tells of rows that a damaged page doesn't show any more.
            ((verdict,),) = run("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                raise DatabaseError(self.path, verdict)
        run("COMMIT")

    def nodes(self) -> Iterator[Row]:
        """All nodes. Raises DatabaseError: the file or a row is damaged."""
        try:
            for *fields, crc in self._db.execute(
                "SELECT path, value, version, created_ms, modified_ms, crc FROM nodes"
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

    def commit(self, puts: Sequence[Row], deletes: Sequence[str], counters: dict[str, int]) -> None:
        """All or nothing, durable on return.

        Raises:
            sqlite3.Error: nothing was written.
        """
        run = self._db.execute
        run("BEGIN IMMEDIATE")
        try:
            for part in _parts(deletes):
                run(f"DELETE FROM nodes WHERE path IN ({_marks('?', len(part))})", part)
            for rows in _parts(puts):
                run(
                    _PUT + _marks("(?,?,?,?,?,?)", len(rows)),
                    [field for row in rows for field in (*row, _row_crc(row))],
                )
            for pairs in _parts(list(counters.items())):
                run(
                    _COUNT + _marks("(?,?,?)", len(pairs)),
                    [field for pair in pairs for field in (*pair, _counter_crc(*pair))],
                )
            run("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.commits += 1

    def close(self) -> None:
        self._db.close()


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

    The file's own name is synced by SQLite together with its log's.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        descriptor = os.open(each.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
