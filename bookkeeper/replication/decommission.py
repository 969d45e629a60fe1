"""Takes bookies out of a cluster for good: everything they held is copied elsewhere first.

``decommission`` is for a bookie that was stopped: it marks the bookie's ledgers, the cluster's
workers repair them, and this only watches. ``recover_bookies`` repairs in this process, and empties
bookies that still run, too.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.errors import BookieRegisteredError
from magnetar.bookkeeper.replication.ledger_checker import gather_all
from magnetar.bookkeeper.replication.ledger_repair import LedgerRepair, RepairProgress, RepairStatus
from magnetar.bookkeeper.replication.registrations import read_registered
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.metadata.errors import BadVersionError, NotFoundError
from magnetar.metadata.store import MetadataStore

_PARALLEL: Final = 32  # metadata operations under way at once
_WAITING_TOLD_MAX: Final = 1000  # ledgers whose reasons are told; all are counted


@dataclass(frozen=True, slots=True)
class DecommissionState:
    """How far a decommission has come.

    Attributes:
        ledgers: that named the bookie when it began.
        ledgers_left: those that still do, or whose markers still name it.
        waiting: of those left, why each waits; at most 1,000 of them.
        done: the bookie's cookie is deleted: it was the last step.
    """

    ledgers: int
    ledgers_left: int
    waiting: Mapping[int, str] = field(default_factory=dict)
    done: bool = False


async def ledgers_of(ledgers: LedgerStore, bookies: Collection[str]) -> AsyncGenerator[int, None]:
    """Ids of the ledgers of which a segment names one of ``bookies``, ascending.

    Raises:
        LedgerMetadataError: a ledger can't be read, so its bookies aren't known.
    """
    wanted = frozenset(bookies)
    async for found in ledgers.ranges():
        ids = found.ledger_ids
        for start in range(0, len(ids), _PARALLEL):
            chunk = ids[start : start + _PARALLEL]
            read = await gather_all(ledgers.read(ledger_id) for ledger_id in chunk)
            for ledger_id, node in zip(chunk, read, strict=True):
                if node is not None and names_any(node.metadata, wanted):
                    yield ledger_id


def names_any(metadata: LedgerMetadata, bookies: frozenset[str]) -> bool:
    """True if some segment names one of ``bookies``."""
    return any(not bookies.isdisjoint(segment.bookies) for segment in metadata.segments)


async def decommission(
    bookie: str,
    store: MetadataStore,
    ledgers: LedgerStore,
    markers: UnderReplicationStore,
    *,
    config: ReplicationConfig | None = None,
) -> AsyncGenerator[DecommissionState, None]:
    """Wait until nothing names the stopped ``bookie``, then delete its cookie.

    Yields a state at the beginning, whenever it changed, and at the end. Can be cut short anywhere
    and begun again.

    Raises:
        BookieRegisteredError: it runs, or was started meanwhile.
        LedgerMetadataError: a ledger can't be read, and may name the bookie.
        MetadataError: the store failed; begin again.
    """
    run = _Decommission(bookie, store, ledgers, markers, config or ReplicationConfig())
    try:
        async with aclosing(run.states()) as states:
            async for state in states:
                yield state
    finally:
        run.close()


@dataclass(eq=False, repr=False)
class _Decommission:
    _bookie: str
    _store: MetadataStore
    _ledgers: LedgerStore
    _markers: UnderReplicationStore
    _config: ReplicationConfig

    def __post_init__(self) -> None:
        self._left: dict[int, str] = {}  # ledger -> why it waits
        self._changed: set[int] = set()
        self._off = ""  # why no worker works, for the state
        self._wake = asyncio.Event()
        self._watch = self._markers.watch_each(self._on_marker)

    def close(self) -> None:
        self._watch.close()

    async def states(self) -> AsyncGenerator[DecommissionState, None]:
        await self._check_stopped()
        cookie = await self._store.get(self._ledgers.layout.cookie_path(self._bookie))
        await self._find()
        total, told = len(self._left), None
        while True:
            await self._look()
            state = DecommissionState(total, len(self._left), self._reasons())
            if state != told:
                yield (told := state)
            await self._check_stopped()
            if not self._left:
                # Once more from the start: a writer may have chosen it before it was gone.
                await self._find()
                if not self._left:
                    break
                total = max(total, len(self._left))
                continue
            await self._sleep()
        if cookie is not None:
            try:
                # As it was: a bookie that was started meanwhile has written it again.
                await self._store.delete(cookie.path, cookie.stat.version)
            except NotFoundError:
                pass
            except BadVersionError:
                raise BookieRegisteredError(f"bookie {self._bookie} was started again") from None
        yield DecommissionState(total, 0, {}, done=True)

    async def _find(self) -> None:
        """All ledgers and markers that name it; the ledgers are marked."""
        found = [i async for i in ledgers_of(self._ledgers, {self._bookie})]
        for start in range(0, len(found), _PARALLEL):
            chunk = found[start : start + _PARALLEL]
            await gather_all(self._markers.mark(i, {self._bookie}) for i in chunk)
        async for ids in self._markers.ledger_ids():
            for start in range(0, len(ids), _PARALLEL):
                chunk = ids[start : start + _PARALLEL]
                read = await gather_all(map(self._markers.read, chunk))
                found += [m.ledger_id for m in read if m is not None and self._bookie in m.bookies]
        self._left = dict.fromkeys(found, "")
        self._changed.update(found)

    async def _look(self) -> None:
        """Look again at those that something happened to."""
        changed, self._changed = sorted(self._changed & self._left.keys()), set()
        switch = await self._markers.disabled()
        off = "" if switch is None else f"auto-recovery is switched off: {switch.reason}"
        for start in range(0, len(changed), _PARALLEL):
            chunk = changed[start : start + _PARALLEL]
            for ledger_id, why in zip(chunk, await gather_all(map(self._why, chunk)), strict=True):
                if why is None:
                    del self._left[ledger_id]
                else:
                    self._left[ledger_id] = why
        self._off = off

    async def _why(self, ledger_id: int) -> str | None:
        """Why a ledger is left; None: it isn't."""
        marker = await self._markers.read(ledger_id)
        if marker is not None and self._bookie in marker.bookies:
            return marker.reason or "waits for a worker"
        found = await self._ledgers.read(ledger_id)
        if found is None or not names_any(found.metadata, frozenset({self._bookie})):
            return None
        await self._markers.mark(ledger_id, {self._bookie})
        return "marked again"

    def _reasons(self) -> dict[int, str]:
        told = list(self._left.items())[:_WAITING_TOLD_MAX]
        return {ledger_id: self._off or why for ledger_id, why in told}

    def _on_marker(self, ledger_id: int) -> None:
        self._changed.add(ledger_id)
        if ledger_id in self._left:
            self._wake.set()

    async def _sleep(self) -> None:
        """Until a marker changed, or for long enough that events may have been lost."""
        try:
            async with asyncio.timeout(self._config.decommission_poll_s):
                await self._wake.wait()
        except TimeoutError:
            self._changed.update(list(self._left)[:_WAITING_TOLD_MAX])
        self._wake.clear()

    async def _check_stopped(self) -> None:
        if self._bookie in await read_registered(self._store):
            raise BookieRegisteredError(f"bookie {self._bookie} is registered: stop it first")


@dataclass(frozen=True, slots=True)
class RecoverState:
    """One ledger is done with, for now.

    Attributes:
        ledger_id: which one.
        done, ledgers: how many of how many have been looked at.
        problem: why it still names one of the bookies; "": it doesn't.
    """

    ledger_id: int
    done: int
    ledgers: int
    problem: str = ""


async def recover_bookies(
    bookies: Collection[str],
    repair: LedgerRepair,
    *,
    open_ledgers: bool = False,
    dry_run: bool = False,
    ledger_ids: Collection[int] | None = None,
) -> AsyncGenerator[RecoverState, None]:
    """Copy what ``bookies`` hold to others and name those instead, here and now.

    Args:
        bookies: running ones, too: they are emptied, and serve as sources.
        repair: ``registered`` of it must leave ``bookies`` out (``without``).
        open_ledgers: close open ledgers that still write to one of them, at the end of the grace
            period that ``repair`` is set to; False: skip those.
        dry_run: change nothing; ``problem`` tells what would be done.
        ledger_ids: only these.
    Raises:
        LedgerMetadataError, MetadataError: as for ``decommission``.
    """
    wanted = frozenset(bookies)
    found = ledgers_of(repair.ledgers, wanted)
    ids = [i async for i in found if ledger_ids is None or i in ledger_ids]
    left, done = [(ledger_id, RepairProgress()) for ledger_id in ids], 0
    at_once = repair.config.concurrent_ledgers
    while left:
        later: list[tuple[float, int, RepairProgress]] = []
        for start in range(0, len(left), at_once):
            chunk = left[start : start + at_once]
            results = await gather_all(
                _recover(repair, ledger_id, progress, wanted, open_ledgers, dry_run)
                for ledger_id, progress in chunk
            )
            for (ledger_id, progress), result in zip(chunk, results, strict=True):
                if isinstance(result, float):
                    later.append((result, ledger_id, progress))
                else:
                    done += 1
                    yield RecoverState(ledger_id, done, len(ids), result)
        left = [(ledger_id, progress) for _, ledger_id, progress in later]
        if later:
            # The grace of writers, or of bookies that may still answer: that of all at once.
            latest_s = max(until_s for until_s, _, _ in later)
            await asyncio.sleep(max(0.0, latest_s - asyncio.get_running_loop().time()))


async def _recover(
    repair: LedgerRepair,
    ledger_id: int,
    progress: RepairProgress,
    bookies: frozenset[str],
    open_ledgers: bool,
    dry_run: bool,
) -> str | float:
    """What is in the way; "" when it is done; or the loop's time when to try again."""
    found = await repair.ledgers.read(ledger_id)
    if found is None or not names_any(found.metadata, bookies):
        return ""
    if _is_written(found.metadata, bookies) and not open_ledgers:
        return "open: skipped"
    if dry_run:
        segments = sum(not bookies.isdisjoint(s.bookies) for s in found.metadata.segments)
        return f"would repair {segments} segments"
    outcome = await repair.run(ledger_id, progress, mark=bookies)
    if outcome.verdict is RepairStatus.CLEARED:
        return ""
    if outcome.verdict is RepairStatus.BUSY:
        return "a worker is repairing it"
    return outcome.reason if outcome.until_s is None else outcome.until_s


def without(
    bookies: Collection[str], registered: Callable[[], Awaitable[Collection[str]]]
) -> Callable[[], Awaitable[Collection[str]]]:
    """``registered`` as if ``bookies`` were gone."""

    async def read() -> Collection[str]:
        return frozenset(await registered()) - frozenset(bookies)

    return read


def _is_written(metadata: LedgerMetadata, bookies: frozenset[str]) -> bool:
    closed = metadata.state is LedgerState.CLOSED
    return not closed and not bookies.isdisjoint(metadata.last_segment.bookies)
