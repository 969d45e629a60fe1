"""A durable tree: a SQLite file and the log beside it. Used by one thread at a time; blocks.

Invariants:
- The log has a commit, durably, before the database gets it, and the database has it before a
  caller is told. So after ``kill -9`` both hold all of it, and after a power cut the log does.
- A state has a number (how many commits made it) and a digest of its rows; both files say which
  state is theirs. Opened is the newest state, proven by its digest, or the start is refused.
- A segment of the log is begun only after the database has everything before it, durably; one more
  segment is kept. So a start applies what one segment can hold, and the log stays small.

A store in memory (path None) has none of this.
"""

import errno
import os
import sqlite3
from pathlib import Path

from magnetar.metadata.commit_log import LogWriter, missing_records, remove_segments
from magnetar.metadata.errors import DatabaseError
from magnetar.metadata.log_format import (
    LogPosition,
    UnknownVersionError,
    find_segments,
    new_header,
    read_segment,
)
from magnetar.metadata.node_tree import NodeTree
from magnetar.metadata.rows import DIGEST_END, CommitRows, Digester, digest_of_counters
from magnetar.metadata.sqlite_file import FileState, SqliteFile, commit_without_wal
from magnetar.metadata.store import CommitMark

_STORE_ID_BYTES = 16
_FIRST_COMMIT = 1  # what a file of before there was a log counts as: 0 is the empty store

# Refused before anything was written: the next transaction may succeed (a full disk gets space,
# a smaller value fits). Any other failure, above all of a sync, leaves the files in doubt.
_REFUSALS = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_NOMEM})


def is_refusal(error: BaseException) -> bool:
    """A failed ``commit`` wrote nothing, and another one may follow."""
    return isinstance(error, NoSpaceError) or getattr(error, "sqlite_errorcode", 0) in _REFUSALS


class NoSpaceError(Exception):
    """No space for the log; nothing was written."""


class Database:
    """Opened by the constructor, then ``load``; any thread may use it, one at a time."""

    def __init__(self, path: Path | None) -> None:
        """
        Raises:
            DatabaseError: it is in use, damaged, of another program; or the files together can't
                prove that no commit is missing.
        """
        self.path, self.commits = path, 0
        self._log: LogWriter | None = None
        main_commit = 0
        if path is not None:
            _check_presence(path)
            main_commit = commit_without_wal(path)
        self._sqlite = SqliteFile(path)
        try:
            if path is None:
                self._sqlite.make_tables()
                self._sqlite.finish_opening(None)
            else:
                self._compare(path, main_commit)
        except BaseException:
            self.close()
            raise

    def _compare(self, path: Path, main_commit: int) -> None:
        """Brings the database to the newest state, in a transaction that ``load`` ends."""
        try:
            segments = [read_segment(*each) for each in find_segments(path)]
        except (OSError, UnknownVersionError) as error:
            raise DatabaseError(path, error) from error
        if self._sqlite.is_new:
            self._sqlite.make_tables()
        first = segments[0].header if segments else None
        if not (self._sqlite.is_new or self._sqlite.is_unlogged):
            state = self._sqlite.state()
        elif segments and first is None:
            raise DatabaseError(segments[0].path, "its header is damaged")
        else:
            digest = self._digest()
            if first is None:
                commit = 0 if self._sqlite.is_new else _FIRST_COMMIT
                state = FileState(os.urandom(_STORE_ID_BYTES), commit, digest, 0)
            else:
                # The first start of this kind was cut short, or it is older than what follows.
                state = FileState(first.store_id, first.base.commit, digest, first.number)
                if digest != first.base.digest or (self._sqlite.is_new and state.commit):
                    raise DatabaseError(
                        path,
                        "it is empty, damaged or an older copy: its log begins with another state, "
                        f"commit {state.commit}",
                    )
        end = LogPosition(state.commit, state.digest, 0)
        if segments or state.segment:
            records, end = missing_records(path, segments, state)
            for record in records:
                self._sqlite.apply(record.change(), None)
        if end.commit < main_commit:
            wal = path.with_name(f"{path.name}-wal")
            reason = f"it is an older copy, of commit {end.commit}: {path.name} is at {main_commit}"
            raise DatabaseError(wal, reason)
        self._store_id, self._end = state.store_id, end
        self._segment = max([state.segment, *(each.number for each in segments)])

    def _digest(self) -> int:
        digester = Digester()
        for _ in digester.rows(self._sqlite.nodes()):
            pass
        return (digester.digest + digest_of_counters(self._sqlite.counters())) % DIGEST_END

    def load(self, tree: NodeTree) -> None:
        """Fills an empty tree, and makes ready for commits.

        Raises:
            DatabaseError: a row is damaged, or some are missing; the database is closed.
        """
        try:
            self._load(tree)
        except ValueError as error:
            self.close()
            raise DatabaseError(self.path, error) from error
        except BaseException:
            self.close()
            raise

    def _load(self, tree: NodeTree) -> None:
        digester = Digester()
        rows = self._sqlite.nodes()
        tree.load(rows if self.path is None else digester.rows(rows))
        tree.counters.update(self._sqlite.counters())
        if self.path is None:
            return
        digest = (digester.digest + digest_of_counters(tree.counters)) % DIGEST_END
        if digest != self._end.digest:
            raise DatabaseError(
                self.path, f"its rows do not fit the digest of commit {self._end.commit}"
            )
        try:
            self._log = LogWriter(
                self.path, new_header(self._segment + 1, self._store_id, self._end)
            )
            self._sqlite.finish_opening(self._state())
            self._sqlite.checkpoint()
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(self.path, error) from error
        remove_segments(self.path, self._segment)

    @property
    def mark(self) -> CommitMark | None:
        """Of the last commit; None: in memory."""
        if self._log is None:
            return None
        return CommitMark(self._store_id, self._log.position.commit)

    def _state(self) -> FileState:
        assert self._log is not None
        position = self._log.position
        return FileState(self._store_id, position.commit, position.digest, self._log.header.number)

    def commit(self, change: CommitRows) -> None:
        """All or nothing, durable on return.

        Raises:
            sqlite3.Error, NoSpaceError, OSError: nothing was written if ``is_refusal``; else it may
                have been, and the database must be opened anew.
        """
        if self._log is None:
            self._sqlite.commit(change, None)
        else:
            self._commit_logged(self._log, change)
        self.commits += 1

    def _commit_logged(self, log: LogWriter, change: CommitRows) -> None:
        body = change.encode()
        if not log.has_room(len(body)):
            log = self._begin_segment(log, len(body))
        log.append(body, change.digest_after(log.position.digest))
        try:
            self._sqlite.commit(change, self._state())
        except sqlite3.Error as error:
            if is_refusal(error):  # else it may be in the database, which must not be ahead
                log.take_back()
            raise

    def _begin_segment(self, old: LogWriter, body_bytes: int) -> LogWriter:
        """Cut short anywhere, it leaves one more segment, which holds nothing."""
        assert self.path is not None
        header = new_header(old.header.number + 1, self._store_id, old.position, body_bytes)
        try:
            log = LogWriter(self.path, header)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpaceError(str(error)) from error
            raise
        position = old.position
        state = FileState(self._store_id, position.commit, position.digest, header.number)
        try:
            self._sqlite.commit(CommitRows(), state)
            self._sqlite.checkpoint()
        except BaseException:
            log.close()
            raise
        self._log = log
        old.close()
        remove_segments(self.path, old.header.number)
        return log

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._sqlite.close()


def _check_presence(path: Path) -> None:
    """Before SQLite makes a file in place of one that is missing."""
    if path.exists() or not (found := find_segments(path)):
        return
    try:
        header = read_segment(*found[0]).header
    except (OSError, UnknownVersionError) as error:
        raise DatabaseError(path, error) from error
    if header is None or header.base.commit > 0:
        raise DatabaseError(path, f"the file is missing, but not its log, {found[-1][1].name}")
