"""Actions on the directories of a bookie on this machine; no cluster is asked."""

import argparse
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from magnetar.bookkeeper.storage.file_system import DirectoryLock
from magnetar.bookkeeper.storage.os_file_system import OsDirectoryLock
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.shell.cluster import ShellOutput

_LOCK = "lock"  # held by a running bookie in each of its directories
_MARKS = ("cookie.json", "directory.json", _LOCK, "journal", "entry-log", "index")


def list_files(options: argparse.Namespace, out: ShellOutput) -> int:
    total = 0
    for root in _roots(options):
        sizes: dict[str, tuple[int, int]] = {}
        for path in sorted(root.rglob("*")):
            if path.is_file():
                kind = path.relative_to(root).parts[0]
                count, size = sizes.get(kind, (0, 0))
                # Bytes on the disk: files are made longer in advance, or have holes.
                sizes[kind] = (count + 1, size + path.stat().st_blocks * 512)
        for kind, (count, size) in sizes.items():
            total += size
            out.say(
                f"{root}/{kind}\t{count} files\t{size / 2**20:.1f} MiB",
                directory=str(root),
                kind=kind,
                files=count,
                bytes=size,
            )
    out.say(f"all\t{total / 2**20:.1f} MiB", bytes=total)
    return 0


def format_bookie(options: argparse.Namespace, out: ShellOutput) -> int:
    roots = _roots(options)
    for root in roots:
        strange = [path.name for path in root.iterdir() if path.name not in _known(root)]
        if strange:
            raise CliError(f"{root} has files that are no bookie's: {', '.join(sorted(strange))}")
    if not options.force:
        raise CliError(
            f"all data in {', '.join(map(str, roots))} would be lost for ever; --force does it"
        )
    with _locked(roots):
        for root in roots:
            for path in root.iterdir():
                if path.name != _LOCK:  # the last thing to go, or another could start meanwhile
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        for root in roots:
            with contextlib.suppress(FileNotFoundError):
                (root / _LOCK).unlink()
    out.say(
        f"{', '.join(map(str, roots))}: empty. `cookie delete` before it starts as a new bookie",
        formatted=[str(root) for root in roots],
    )
    return 0


def _known(root: Path) -> set[str]:
    return {*_MARKS, *(path.name for path in root.glob("*.new"))}


def _roots(options: argparse.Namespace) -> list[Path]:
    names = (options.data or "data/bookie").split(",")
    if options.journal:
        names.append(options.journal)
    roots = list(dict.fromkeys(Path(name.strip()) for name in names if name.strip()))
    for root in roots:
        if not root.is_dir():
            raise CliError(f"{root}: no such directory")
        if not any((root / mark).exists() for mark in _MARKS):
            raise CliError(f"{root} isn't a bookie's directory")
    return roots


@contextlib.contextmanager
def _locked(roots: list[Path]) -> Iterator[None]:
    locks: list[DirectoryLock] = []
    try:
        for root in roots:
            try:
                locks.append(OsDirectoryLock(root / _LOCK))
            except OSError as error:
                raise CliError(f"{root}: a bookie is running there: {error}") from error
        yield
    finally:
        for lock in locks:
            lock.release()
