"""Reads the rest of a damaged embedded store for an operator that gives up the lost part. Blocks.

Nothing here proves that something is complete: that is ``database.py``. Files are read from a copy,
as SQLite changes what it opens.
"""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.metadata.database import Database
from magnetar.metadata.errors import DatabaseError, MetadataError
from magnetar.metadata.log_format import (
    LogRecord,
    UnknownVersionError,
    find_segments,
    read_segment,
    segment_path,
)
from magnetar.metadata.node_tree import NodeTree
from magnetar.metadata.paths import ROOT, parent_of
from magnetar.metadata.rows import CommitRows, Row
from magnetar.metadata.sqlite_file import FileState, SqliteFile, read_intact
from magnetar.metadata.store import CommitMark


@dataclass(slots=True)
class Salvage:
    """
    Attributes:
        refusal: why a start refuses the files; "": it doesn't.
        mark: the newest state of which something is there; None: not known.
        rows: by path.
        losses: one sentence each.
    """

    refusal: str = ""
    mark: CommitMark | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)


def salvage(database: Path) -> Salvage:
    """Reads what is there; changes nothing.

    Raises:
        MetadataError: a newer program wrote the log.
        OSError: the files can't be read or copied.
    """
    with tempfile.TemporaryDirectory(prefix="metadata-", dir=database.parent.parent) as directory:
        whole = _open(_copy(database, Path(directory) / "whole"))
        if not whole.refusal:
            return whole
        try:
            found = _pick_up(_copy(database, Path(directory) / "pieces"))
        except UnknownVersionError as error:
            raise MetadataError(str(error)) from error
    # It names the copies; the operator knows only the originals.
    found.refusal = whole.refusal.replace(str(Path(directory) / "whole"), str(database.parent))
    return found


def write_recovered(database: Path, salvaged: Salvage, mark: CommitMark) -> None:
    """Makes a store of it that is at ``mark``, durably; the first start gives it a log."""
    rows = dict(salvaged.rows)
    for path in list(rows):
        while (path := parent_of(path)) != ROOT and path not in rows:
            rows[path] = (path, b"", 0, 0, 0)
    change = CommitRows(list(rows.values()), (), salvaged.counters)
    file = SqliteFile(database)
    try:
        file.make_tables()
        file.apply(change, None)
        file.finish_opening(FileState(mark.store_id, mark.commit, change.digest_after(0), 0))
        file.checkpoint()
    finally:
        file.close()


def _copy(database: Path, directory: Path) -> Path:
    directory.mkdir()
    if database.parent.is_dir():
        for path in database.parent.glob(f"{database.name}*"):
            shutil.copyfile(path, directory / path.name)
    return directory / database.name


def _open(database: Path) -> Salvage:
    """As a start does."""
    if not database.exists() and not find_segments(database):
        return Salvage(f"metadata database {database}: the file is missing")
    try:
        opened, tree = Database(database), NodeTree()
        opened.load(tree)
    except DatabaseError as error:
        return Salvage(str(error))
    opened.close()
    nodes = {path: node for path, node in tree.nodes.items() if path != ROOT}
    rows = {
        path: (path, node.value, node.version, node.created_ms, node.modified_ms)
        for path, node in nodes.items()
    }
    return Salvage("", opened.mark, rows, tree.counters)


def _pick_up(database: Path) -> Salvage:
    rows, counters, state, damage = read_intact(database)
    found = Salvage("", None, {row[0]: row for row in rows}, counters, damage)
    segments = [read_segment(*each) for each in find_segments(database)]
    records = {each.after.commit: each for segment in segments for each in segment.records}
    headers = [each.header for each in segments if each.header is not None]
    at = 0 if state is None else state.commit
    end = max([at, *records, *(each.base.commit for each in headers)])
    _apply(found, (records[commit] for commit in sorted(records) if commit > at))
    first = at + 1 if state is not None else min(records, default=end + 1)
    lost = [commit for commit in range(first, end + 1) if commit not in records]
    if lost:
        found.losses.append(f"{len(lost)} commits between {lost[0]} and {lost[-1]}")
    if state is None and rows:
        found.losses.append("unknown commits: the database doesn't tell at which it is")
    for each in segments:
        if each.header is None:
            found.losses.append(f"what only {each.path.name} held: its header is damaged")
        elif each.is_cut:
            found.losses.append(f"what {each.path.name} held at its end: it was cut")
    if state is not None and state.segment > max([0, *(each.number for each in segments)]):
        name = segment_path(database, state.segment).name
        found.losses.append(f"what only {name} held, or one that followed: they are missing")
    found.losses.append(f"commits after {end}, if there were any: nothing proves that it was last")
    store_id = state.store_id if state is not None else headers[-1].store_id if headers else None
    found.mark = None if store_id is None else CommitMark(store_id, end)
    return found


def _apply(found: Salvage, records: Iterable[LogRecord]) -> None:
    for record in records:
        change = record.change()
        for path in change.deletes:
            found.rows.pop(path, None)
        found.rows |= {row[0]: row for row in change.puts}
        found.counters |= change.counters
