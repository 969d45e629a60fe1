"""``magnetar metadata``: what is done to metadata while nobody uses them.

``recover``: a standalone's embedded metadata without what is lost of them. ``convert``: those of a
cluster's ledgers and bookies into Apache BookKeeper's form.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.bookie.cookie import INSTANCE_ID_PATH
from magnetar.bookkeeper.bookie.storage.directory_contents import DirectoryContents, read_holdings
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.convert_metadata import convert, look_at_conversion
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.layout.layout import ID_BLOCK
from magnetar.bookkeeper.service_info import COOKIES_PATH, LEDGERS_ROOT
from magnetar.bookkeeper.storage.os_file_system import OsFileSystem, sync_directory
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.progress import progress
from magnetar.loadbalance.registry import BROKERS_ROOT
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.paths import encode_name
from magnetar.metadata.salvage import Salvage, salvage, write_recovered
from magnetar.metadata.store import CommitMark, MetadataStore

_FILE: Final = "metadata.sqlite"
_IDS: Final = f"{LEDGERS_ROOT}/idgen"
_NAMED_MAX: Final = 20


def run_metadata(options: argparse.Namespace) -> int:
    """1: something is lost, and nobody has accepted it; or a conversion isn't possible."""
    if options.action == "convert":
        return asyncio.run(_convert(options))
    data = Path(options.data)
    try:
        with _locked(data / "bookie"), progress("reading ledgers and metadata", None):
            _finish_renaming(data)
            return _recover(data, accepted=options.accept_data_loss)
    except (MetadataError, BookkeeperError, OSError) as error:
        raise CliError(str(error)) from error


def _recover(data: Path, *, accepted: bool) -> int:
    holdings = read_holdings(data / "bookie")
    found = salvage(data / "metadata" / _FILE)
    _check_cluster(found, holdings, data)
    losses = [*found.losses, *_behind(found, holdings)]
    if not found.refusal and not losses:
        print(f"{data / 'metadata'}: nothing is lost, start the broker")
        return 0
    if found.refusal:
        print(found.refusal)
    print(f"{len(found.rows)} nodes can be read")
    for loss in losses:
        print(f"lost: {loss}")
    _tell_ledgers(found, holdings)
    if not accepted:
        print("nothing was changed; --accept-data-loss goes on without what is lost")
        return 1
    _complete(found, holdings)
    aside = _replace(data, found, _next_mark(found, holdings))
    print(f"{data / 'metadata'} was made anew; the old files are in {aside}")
    print(f"new ledgers get ids from {found.rows[_IDS][1].decode()} on")
    return 0


async def _convert(options: argparse.Namespace) -> int:
    path = options.metadata_config
    try:
        store = await connect_store(options.metadata, Path(path) if path else None)
        try:
            return await _convert_cluster(store, dry_run=options.dry_run)
        finally:
            await store.close()
    except (MetadataError, BookkeeperError, OSError, ValueError) as error:
        raise CliError(str(error)) from error


async def _convert_cluster(store: MetadataStore, *, dry_run: bool) -> int:
    with progress("reading metadata", None):
        found = await look_at_conversion(store)
        brokers = await store.children(BROKERS_ROOT)
    if not found.is_needed:
        print("nothing to do: there is no metadata in our own form")
        return 0
    print(
        f"in our own form: {found.ledgers} ledgers, {found.cookies} cookies of bookies,"
        f" {found.marks} marks of auto-recovery"
    )
    problems = [*(f"broker {each} runs: stop it" for each in brokers), *found.problems]
    for problem in problems[:_NAMED_MAX]:
        print(problem)
    if len(problems) > _NAMED_MAX:
        print(f"and {len(problems) - _NAMED_MAX} problems more")
    if problems:
        print("nothing was changed")
        return 1
    if found.first_id:
        print(f"new ledgers get ids from {found.first_id} on")
    if dry_run:
        print("nothing was changed; without --dry-run it is done")
        return 0
    with progress("converting ledgers", None) as told:
        await convert(store, told)
    print("done: bookies and brokers may be started")
    return 0


@contextlib.contextmanager
def _locked(bookie: Path) -> Iterator[None]:
    if not bookie.is_dir():
        raise CliError(f"{bookie} is missing: is this the data directory of a standalone?")
    try:
        lock = OsFileSystem(bookie).lock("lock")
    except BlockingIOError as error:
        raise CliError(f"{bookie}: another process uses it") from error
    try:
        yield
    finally:
        lock.release()


def _check_cluster(found: Salvage, holdings: DirectoryContents, data: Path) -> None:
    row = found.rows.get(INSTANCE_ID_PATH)
    cookie = holdings.cookie
    if row is not None and cookie is not None and row[1].decode() != cookie.cookie.instance_id:
        raise CliError(f"{data / 'metadata'} belongs to another data directory")


def _behind(found: Salvage, holdings: DirectoryContents) -> list[str]:
    """Commits that only the bookie knows of."""
    seen, now = holdings.metadata_mark, found.mark
    if seen is None:
        return []
    if now is None or now.store_id == seen.store_id:
        first = 1 if now is None else now.commit + 1
        if seen.commit < first:
            return []
        return [f"commits {first} to {seen.commit}, which the bookie has seen"]
    return [f"all that the bookie has seen of its metadata, commits up to {seen.commit}"]


def _tell_ledgers(found: Salvage, holdings: DirectoryContents) -> None:
    unknown = sorted(each for each in holdings.ledgers if ledger_path(each) not in found.rows)
    if unknown:
        named = ", ".join(map(str, unknown[:_NAMED_MAX]))
        more = f" and {len(unknown) - _NAMED_MAX} more" if len(unknown) > _NAMED_MAX else ""
        print(
            f"ledgers that the bookie holds and no metadata know: {named}{more}; "
            "the broker's garbage collection removes them"
        )


def _complete(found: Salvage, holdings: DirectoryContents) -> None:
    """The metadata that the bookie needs, and a counter above every id it has seen."""
    if holdings.cookie is not None:
        cookie = holdings.cookie.cookie
        path = f"{COOKIES_PATH}/{encode_name(cookie.bookie_id)}"
        for name, value in ((INSTANCE_ID_PATH, cookie.instance_id.encode()), (path, None)):
            if name not in found.rows:
                found.rows[name] = (name, value or cookie.encode(), 0, 0, 0)
    old = found.rows.get(_IDS, (_IDS, b"0", -1, 0, 0))
    number = int(old[1]) if old[1].isdigit() else 0
    number = max(number, holdings.last_ledger + 1) + ID_BLOCK
    found.rows[_IDS] = (_IDS, b"%d" % number, old[2] + 1, old[3], old[4])


def _next_mark(found: Salvage, holdings: DirectoryContents) -> CommitMark:
    """Above every commit there was, so that none of the older files is taken for this state."""
    known = [each for each in (holdings.metadata_mark, found.mark) if each is not None]
    if not known:
        return CommitMark(os.urandom(16), 1)
    return dataclasses.replace(known[0], commit=max(each.commit for each in known) + 1)


def _replace(data: Path, found: Salvage, mark: CommitMark) -> Path:
    """The new directory in place of the old one; cut short, ``_finish_renaming`` goes on."""
    making, made = data / "metadata.recovering", data / "metadata.recovered"
    for left in (making, made):  # by a run that was cut short
        shutil.rmtree(left, ignore_errors=True)
    write_recovered(making / _FILE, found, mark)
    sync_directory(making)
    making.rename(made)
    sync_directory(data)
    names = (data / f"metadata.damaged-{number}" for number in itertools.count(1))
    aside = next(each for each in names if not each.exists())
    if (data / "metadata").exists():
        (data / "metadata").rename(aside)
    _finish_renaming(data)
    return aside


def _finish_renaming(data: Path) -> None:
    made, current = data / "metadata.recovered", data / "metadata"
    if made.exists() and not current.exists():
        made.rename(current)
        sync_directory(data)
