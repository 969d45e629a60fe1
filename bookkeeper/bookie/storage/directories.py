"""A bookie's files on several disks: journals on some, entry logs on some, the rest on the first.

The bookie's core sees one tree. Here a path finds its root: ``journal/...`` lies in the first
journal directory, ``journal-1/...`` in the second, a file of ``entry-log/`` in whichever ledger
directory had most space when it was created, everything else (cookie, lock, index) in the first
ledger directory, the *main* one.

A directory that is empty, missing or another bookie's would look like lost entry logs or an empty
journal. So every other root carries a file that names the set it belongs to, and the main root
knows how many there are; both are compared before anything is opened.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from magnetar.bookkeeper.bookie import cookie
from magnetar.bookkeeper.bookie.journal import journal_format as journal_format
from magnetar.bookkeeper.bookie.storage import entry_log as entry_log
from magnetar.bookkeeper.errors import CookieMismatchError, CorruptFileError
from magnetar.bookkeeper.storage.file_system import DirectoryLock, File, FileSystem
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem

MEMBER_FILE: Final = "directory.json"  # in every root but the main one
SET_FILE: Final = "directories.json"  # in the main root, once there is more than one
_HARMLESS: Final = frozenset({"lost+found", f"{MEMBER_FILE}.new"})


@dataclass(frozen=True, slots=True)
class DirectoryLayout:
    """What the main root knows of the others.

    Attributes:
        ledgers: directories of entry logs, the main root among them.
        has_journal: the first journal isn't in the main root.
        journals: how many there are, the first among them.
    """

    set_id: str
    ledgers: int
    has_journal: bool
    journals: int = 1

    @property
    def roles(self) -> list[str]:
        """Of all roots but the main one, in order."""
        roles = [f"ledgers-{number}" for number in range(1, self.ledgers)]
        if self.has_journal:
            roles.append("journal")
        return [*roles, *(f"journal-{number}" for number in range(1, self.journals))]

    def encode(self) -> bytes:
        fields = {
            "id": self.set_id,
            "ledgers": self.ledgers,
            "journal": self.has_journal,
            "journals": self.journals,
        }
        return json.dumps(fields, sort_keys=True).encode()


class MultiDirFileSystem(FileSystem):
    """See the module's text. Build with ``open_directories``.

    Args:
        main: first ledger directory.
        journal: of the first journal; None: in ``main``.
        more: further ledger directories.
        more_journals: of further journals.
    """

    def __init__(
        self,
        main: FileSystem,
        journal: FileSystem | None,
        more: Sequence[FileSystem],
        more_journals: Sequence[FileSystem] = (),
    ) -> None:
        self._main = main
        self._journals = (journal or main, *more_journals)
        self._ledgers = (main, *more)
        own = () if journal is None else (journal,)
        self._roots = (*self._ledgers, *own, *more_journals)
        self._home: dict[str, FileSystem] = {}  # path of an entry log -> its root
        for root in self._ledgers:
            for name in root.list(entry_log.DIRECTORY):
                path = f"{entry_log.DIRECTORY}/{name}"
                if path in self._home:
                    raise CorruptFileError(path, 0, "it is in two ledger directories")
                self._home[path] = root

    def make_directory(self, path: str) -> None:
        for root in self._of_directory(path):
            root.make_directory(path)

    def create(self, path: str) -> File:
        if not _is_entry_log(path):
            return self._of(path).create(path)
        root = max(self._ledgers, key=lambda each: each.free_bytes())
        file = root.create(path)
        self._home[path] = root
        return file

    def open(self, path: str) -> File:
        return self._of(path).open(path)

    def exists(self, path: str) -> bool:
        return self._of(path).exists(path)

    def absolute(self, path: str) -> str | None:
        return self._of(path).absolute(path)

    def rename(self, path: str, new_path: str) -> None:
        root = self._of(path)
        if _is_entry_log(path):
            replaced = self._home.get(new_path)
            if replaced is not None and replaced is not root:
                replaced.remove(new_path)
        root.rename(path, new_path)
        if _is_entry_log(path):
            self._home.pop(path, None)
            self._home[new_path] = root

    def remove(self, path: str) -> None:
        self._of(path).remove(path)
        self._home.pop(path, None)

    def list(self, path: str) -> list[str]:
        return sorted(name for root in self._of_directory(path) for name in root.list(path))

    def sync_dir(self, path: str, sync_point: str) -> None:
        for root in self._of_directory(path):
            root.sync_dir(path, sync_point)

    def lock(self, path: str) -> DirectoryLock:
        locks: list[DirectoryLock] = []
        try:
            locks.extend(root.lock(path) for root in self._roots)
        except BaseException:  # no lock stays behind
            for lock in locks:
                lock.release()
            raise
        return _Locks(locks)

    def release_memory(self) -> None:
        for root in self._roots:
            root.release_memory()

    def free_bytes(self) -> int:
        return self._fullest().free_bytes()

    def total_bytes(self) -> int:
        return self._fullest().total_bytes()

    def _fullest(self) -> FileSystem:
        """The root that ends writing first: of the entry logs' roots the emptiest one counts."""
        roomiest = min(self._ledgers, key=_used_share)
        return max((self._main, *self._journals, roomiest), key=_used_share)

    def _of(self, path: str) -> FileSystem:
        number = journal_format.journal_number(path)
        if number is not None and number < len(self._journals):
            return self._journals[number]
        return self._home.get(path, self._main)

    def _of_directory(self, path: str) -> Sequence[FileSystem]:
        number = journal_format.journal_number(path)
        if number is not None and number < len(self._journals):
            return (self._journals[number],)
        return self._ledgers if path == entry_log.DIRECTORY else (self._main,)


class _Locks(DirectoryLock):
    def __init__(self, locks: list[DirectoryLock]) -> None:
        self._locks = locks

    def release(self) -> None:
        for lock in self._locks:
            lock.release()


def open_directories(
    ledgers: Sequence[Path],
    journal: Path | None,
    more_journals: Sequence[Path] = (),
    *,
    accept_data_loss: bool = False,
    open_root: Callable[[Path], FileSystem] = OsFileSystem,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> FileSystem:
    """One file system of all directories; with a single one that one itself.

    Empty directories may be added to those of earlier starts. None may be taken away, and the
    first journal's stays what it is once there is one.

    Args:
        journal: None, or the first of ``ledgers``: the first journal is there.
        more_journals: of further journals, which are told to the bookie as
            ``StorageConfig.journals``.

        accept_data_loss: an empty directory may take the place of a lost one. The files that are
            missing in it tell what was lost (``open_damaged``).

    Raises:
        CookieMismatchError: a directory isn't one of this bookie's, or one is missing.
        OSError: a directory can't be used.
    """
    main, *more = [open_root(path) for path in ledgers]
    journal_root = None if journal in (None, ledgers[0]) else open_root(journal)
    known = _read_set(main)
    others = [open_root(path) for path in more_journals]
    if known is None and not more and journal_root is None and not others:
        return main
    wanted = DirectoryLayout(
        known.set_id if known is not None else new_id(),
        len(ledgers),
        journal_root is not None,
        1 + len(others),
    )
    _check_growth(main, known, wanted)
    if known is None:  # the id first: a start that is cut short from here on is begun again
        cookie.write_durably(main, SET_FILE, DirectoryLayout(wanted.set_id, 1, False).encode())
    own = [(journal_root, journal)] if journal_root is not None else []
    roots = [
        *zip(more, ledgers[1:], strict=True),
        *own,
        *zip(others, more_journals, strict=True),
    ]
    for role, (root, path) in zip(wanted.roles, roots, strict=True):
        is_new = accept_data_loss or known is None or role not in known.roles
        _check_member(root, role, wanted.set_id, str(path), is_new=is_new)
    if wanted != known:
        cookie.write_durably(main, SET_FILE, wanted.encode())
    return MultiDirFileSystem(main, journal_root, more, others)


def _read_set(main: FileSystem) -> DirectoryLayout | None:
    if not main.exists(SET_FILE):
        return None
    fields = _read_json(main, SET_FILE)
    try:
        return DirectoryLayout(
            str(fields["id"]),
            int(fields["ledgers"]),
            bool(fields["journal"]),
            int(fields.get("journals", 1)),  # files of before there were several have none
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CookieMismatchError(f"{SET_FILE} can't be read: {error}") from error


def _check_growth(main: FileSystem, known: DirectoryLayout | None, wanted: DirectoryLayout) -> None:
    before = known or DirectoryLayout(wanted.set_id, 1, False)
    if wanted.ledgers < before.ledgers:
        raise CookieMismatchError(
            f"ledgerDirectories: {wanted.ledgers}, but entries lie in {before.ledgers}"
        )
    if wanted.journals < before.journals:
        raise CookieMismatchError(
            f"journalDirectories: {wanted.journals}, but there are journals in {before.journals}"
        )
    if before.has_journal and not wanted.has_journal:
        raise CookieMismatchError("journalDirectories: the journal lies in another directory")
    if wanted.has_journal and not before.has_journal and main.list(journal_format.DIRECTORY):
        raise CookieMismatchError(
            "journalDirectories: the journal lies in the first of ledgerDirectories"
        )


def _check_member(root: FileSystem, role: str, set_id: str, path: str, *, is_new: bool) -> None:
    expected = {"set": set_id, "role": role}
    if root.exists(MEMBER_FILE):
        if _read_json(root, MEMBER_FILE) != expected:
            raise CookieMismatchError(f"{path} belongs to another bookie or to another place in it")
        return
    if not is_new:
        raise CookieMismatchError(
            f"{path} has no {MEMBER_FILE}: is the right disk mounted? It holds acknowledged entries"
        )
    if set(root.list("")) - _HARMLESS:
        raise CookieMismatchError(f"{path} isn't empty, and isn't this bookie's")
    cookie.write_durably(root, MEMBER_FILE, json.dumps(expected, sort_keys=True).encode())


def _read_json(root: FileSystem, path: str) -> dict[str, Any]:
    file = root.open(path)
    try:
        fields = json.loads(file.pread(file.size(), 0))
    except ValueError as error:
        raise CookieMismatchError(f"{path} can't be read: {error}") from error
    finally:
        file.close()
    if not isinstance(fields, dict):
        raise CookieMismatchError(f"{path} can't be read")
    return fields


def _is_entry_log(path: str) -> bool:
    return path.startswith(f"{entry_log.DIRECTORY}/")


def _used_share(root: FileSystem) -> float:
    return 1 - root.free_bytes() / max(1, root.total_bytes())
