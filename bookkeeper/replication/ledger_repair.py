"""Repairs one marked ledger: look, copy, look again, clear the marker.

Rounds, each on fresh facts (docs/spec/storage.md, "Repair"): read marker, metadata and
registrations; check the ledger; nothing found: clear the marker at the version read first.
Otherwise mend what is closed and begin again. A bookie that is there, but misses entries or has
damaged copies, gets them back from the others; one that is gone, or that couldn't take them, is
replaced.

An open last segment that names a bookie which is gone is left to its writer for a grace period.
After that the ledger is closed by recovery and repaired as a closed one.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final

from magnetar.bookkeeper.client.async_ledger_recovery import recover_ledger
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy, PlacementRandom
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError, NoSuchLedgerError
from magnetar.bookkeeper.layout.under_replication_format import UnderreplicationMarker
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    begin_recovery,
)
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.errors import (
    FragmentChangedError,
    NoTargetError,
    RepairStoppedError,
    ReplicationError,
    TargetFailedError,
    UnreadableEntryError,
)
from magnetar.bookkeeper.replication.fragments import Fragment, Run, entry_bytes
from magnetar.bookkeeper.replication.ledger_checker import (
    CheckResult,
    LedgerChecker,
    ReplicaProblem,
)
from magnetar.bookkeeper.replication.metrics import ReplicationMetrics
from magnetar.bookkeeper.replication.replicator import RepairReport, Replicator
from magnetar.bookkeeper.replication.under_replication import (
    MarkerLock,
    UnderReplicationStore,
)
from magnetar.metadata.errors import MetadataError

_ROUNDS_MAX: Final = 20
_TARGETS_MAX: Final = 3  # bookies tried for one slot in one round
_REASONS_MAX: Final = 3  # told of one ledger
_SMALL_ENTRY_BYTES: Final = 256  # assumed of a ledger whose length isn't known yet


class RepairStatus(Enum):
    """How an attempt on a ledger ended."""

    CLEARED = "cleared"  # the ledger isn't marked any more
    BUSY = "busy"  # another worker has it
    WAITING = "waiting"  # something is missing: ``reason``
    STOPPED = "stopped"  # lock lost, switched off or closing


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Result of one attempt.

    Attributes:
        until_s: when to try again, in the loop's time; None: after the usual pause.
        needs_bookie: another bookie that registers may help at once.
    """

    verdict: RepairStatus
    reason: str = ""
    until_s: float | None = None
    needs_bookie: bool = False


@dataclass(slots=True)
class RepairProgress:
    """What a worker remembers of a ledger between attempts.

    Attributes:
        attempts: that ended without success, for the pause.
        segment, since_s: the open segment whose writer has been given time, and since when.
        report: what was done so far.
    """

    attempts: int = 0
    segment: EnsembleSegment | None = None
    since_s: float = 0.0
    report: RepairReport = field(default_factory=RepairReport)


class _WaitError(ReplicationError):
    """Nothing to do before ``until_s``."""

    def __init__(self, until_s: float, reason: str) -> None:
        super().__init__(reason)
        self.until_s = until_s


@dataclass(eq=False, repr=False)
class LedgerRepair:
    """Everything the repairs of one worker share.

    Args:
        registered: reads which bookies are there now.
        held: reads whose loss isn't to be repaired: their zone is down, and an operator has the
            word.
        is_stopped: auto-recovery is off, or the worker closes: asked before each step.
    """

    markers: UnderReplicationStore
    ledgers: LedgerStore
    bookies: BookiePool
    placement: EnsemblePlacementPolicy
    checker: LedgerChecker
    replicator: Replicator
    rng: PlacementRandom
    config: ReplicationConfig
    client_config: ClientConfig
    metrics: ReplicationMetrics
    registered: Callable[[], Awaitable[Collection[str]]]
    is_stopped: Callable[[], bool]
    held: Callable[[], Awaitable[Collection[str]]] | None = None
    # bookies registered without an answer
    silent_since: dict[str, float] = field(default_factory=dict, init=False)

    async def run(
        self, ledger_id: int, progress: RepairProgress, mark: Collection[str] = ()
    ) -> RepairResult:
        """One attempt.

        Args:
            mark: bookies to put into the marker first, once the lock is ours.
        Raises:
            MetadataError: the store could not tell the lock's holder.
        """
        lock = await self.markers.lock(ledger_id)
        if lock is None:
            return RepairResult(RepairStatus.BUSY)
        try:
            if mark:
                await self.markers.mark(ledger_id, mark)
            return await _Attempt(self, ledger_id, lock, progress).run()
        except RepairStoppedError as error:
            return RepairResult(RepairStatus.STOPPED, str(error))
        except MetadataError as error:
            return RepairResult(RepairStatus.WAITING, f"the metadata store: {error}")
        except BookkeeperError as error:
            reason = str(error)
            with contextlib.suppress(MetadataError, BookkeeperError):
                await self.markers.note(ledger_id, reason)
            return RepairResult(RepairStatus.WAITING, reason)
        finally:
            with contextlib.suppress(MetadataError):  # else it ends with the session
                await lock.release()


class _Attempt:
    """One ledger under its lock."""

    def __init__(
        self, shared: LedgerRepair, ledger_id: int, lock: MarkerLock, progress: RepairProgress
    ) -> None:
        self._shared, self._ledger_id, self._lock = shared, ledger_id, lock
        self._progress = progress
        self._failed: set[str] = set()  # bookies that didn't take copies
        self._filled: set[tuple[int, int]] = set()  # (first entry, slot) given what it missed
        self._worked = False
        self._now = asyncio.get_running_loop().time

    async def run(self) -> RepairResult:
        markers = self._shared.markers
        for _ in range(_ROUNDS_MAX):
            self._check()
            marker = await markers.read(self._ledger_id)
            if marker is None:
                await markers.remove_traces(self._ledger_id)
                return RepairResult(RepairStatus.CLEARED)
            found = await self._shared.ledgers.read(self._ledger_id)
            if found is None:
                outcome = await self._clear(marker)
            else:
                outcome = await self._round(marker, found.metadata)
            if outcome is not None:
                return outcome
        return await self._wait([ReplicationError("it changes faster than it can be repaired")])

    async def _round(
        self, marker: UnderreplicationMarker, metadata: LedgerMetadata
    ) -> RepairResult | None:
        """Look and mend; None: look again."""
        registered = frozenset(await self._shared.registered())
        findings = await self._shared.checker.check(
            metadata,
            registered,
            listed=marker.bookies & registered,
            every=marker.suspects & registered,
        )
        self._remember_silence(metadata, findings)
        if not findings:
            return await self._end(marker, metadata)
        waits: list[ReplicationError] = []
        wait: ReplicationError | None
        findings = await self._without_held(findings, waits)
        if any(not finding.fragment.is_closed for finding in findings):
            wait = self._grace(metadata, findings)
            if wait is None and (wait := await self._close(metadata)) is None:
                return None
            waits.append(wait)
        try:
            for finding in (each for each in findings if each.fragment.is_closed):
                self._check()
                try:
                    metadata = await self._repair(marker, metadata, finding, registered)
                except (
                    UnreadableEntryError,
                    NoTargetError,
                    TargetFailedError,
                    _WaitError,
                ) as error:
                    waits.append(error)  # the other members are mended all the same
        except (FragmentChangedError, NoSuchLedgerError):
            return None
        return await self._wait(waits) if waits else None

    async def _without_held(
        self, findings: list[CheckResult], waits: list[ReplicationError]
    ) -> list[CheckResult]:
        """Those that may be repaired; the others go to ``waits``."""
        gone = {finding.bookie for finding in findings if finding.problem is ReplicaProblem.GONE}
        if self._shared.held is None or not gone:
            return findings
        held = gone & frozenset(await self._shared.held())
        waits += [
            ReplicationError(f"{bookie} is gone with its zone, which an operator may let be copied")
            for bookie in sorted(held)
        ]
        return [finding for finding in findings if finding.bookie not in held]

    # What a round does

    async def _repair(
        self,
        marker: UnderreplicationMarker,
        metadata: LedgerMetadata,
        finding: CheckResult,
        registered: frozenset[str],
    ) -> LedgerMetadata:
        slot, first = finding.slot, finding.fragment.first_entry
        # An earlier repair of this round may have changed the segment's other members.
        fragment = replace(finding.fragment, bookies=metadata.segment_of(first).bookies)
        if fragment.bookies[slot] != finding.bookie:
            raise FragmentChangedError(f"segment {first} has another bookie at slot {slot}")
        if finding.problem is ReplicaProblem.SILENT:
            self._check_patience(finding)
        elif finding.problem is not ReplicaProblem.GONE and (first, slot) not in self._filled:
            try:
                await self._fill(metadata, fragment, finding)
                return metadata
            except TargetFailedError as error:
                self._failed.add(error.bookie)
        return await self._replace(marker, metadata, fragment, slot, registered)

    async def _fill(
        self, metadata: LedgerMetadata, fragment: Fragment, finding: CheckResult
    ) -> None:
        """Give a bookie that is there what it lacks; its place in the metadata stays."""
        runs = await self._lacking(fragment, finding)
        await self._shared.replicator.fill(
            *(metadata, fragment, finding.slot, finding.bookie, runs, self._check),
            self._progress.report,
        )
        # Whether that helped, the next round tells; a second time it is replaced.
        self._filled.add((fragment.first_entry, finding.slot))
        self._worked = True
        self._shared.metrics.members_filled += 1
        self._progress.report.on_filled(fragment.first_entry, finding.bookie)

    async def _lacking(self, fragment: Fragment, finding: CheckResult) -> list[Run]:
        """All of it, while the finding may rest on a few probes."""
        checker = self._shared.checker
        if finding.problem is ReplicaProblem.ABSENT:
            missing = await checker.missing(fragment, finding.slot)
            return list(fragment.runs_of(finding.slot)) if missing is None else missing
        full = await checker.examine(fragment, finding.slot)
        if full is None:  # it was mended meanwhile, by its own scrub
            return []
        return list(finding.runs if full.problem is ReplicaProblem.SILENT else full.runs)

    async def _replace(
        self,
        marker: UnderreplicationMarker,
        metadata: LedgerMetadata,
        fragment: Fragment,
        slot: int,
        registered: frozenset[str],
    ) -> LedgerMetadata:
        shared, place = self._shared, (fragment.first_entry, slot)
        entries = fragment.count_of(slot)
        planned = marker.targets.get(place)
        size = entries * max(entry_bytes(metadata), _SMALL_ENTRY_BYTES)
        failure: TargetFailedError | None = None
        for _ in range(_TARGETS_MAX):
            # What isn't registered any more, or is being emptied, may still count as writable.
            excluded = self._failed | shared.silent_since.keys()
            excluded |= shared.bookies.writable - registered
            try:
                target = shared.replicator.choose_target(
                    metadata, fragment, slot, excluded, planned
                )
            except NoTargetError as error:
                raise failure or error from None
            if target != planned and size >= shared.config.resume_bytes_min:
                await shared.markers.plan(self._ledger_id, *place, target)
            try:
                stored = await shared.replicator.replace(
                    metadata, fragment, slot, target, self._check, self._progress.report
                )
            except TargetFailedError as error:
                self._failed.add(error.bookie)
                failure = error
                continue
            self._worked = True
            return stored
        assert failure is not None
        raise failure

    # Waiting

    def _check(self) -> None:
        if not self._lock.held:
            raise RepairStoppedError("the lock is lost")
        if self._shared.is_stopped():
            raise RepairStoppedError("auto-recovery was switched off")

    def _remember_silence(self, metadata: LedgerMetadata, findings: list[CheckResult]) -> None:
        silent = {f.bookie for f in findings if f.problem is ReplicaProblem.SILENT}
        since = self._shared.silent_since
        for segment in metadata.segments:
            for bookie in segment.bookies:
                if bookie not in silent:
                    since.pop(bookie, None)
        for bookie in silent:
            since.setdefault(bookie, self._now())

    def _check_patience(self, finding: CheckResult) -> None:
        """A bookie may be registered before it can be reached."""
        since_s = self._shared.silent_since.get(finding.bookie, self._now())
        until_s = since_s + self._shared.config.unreachable_grace_s
        if self._now() < until_s:
            raise _WaitError(until_s, str(finding))

    def _grace(self, metadata: LedgerMetadata, findings: list[CheckResult]) -> _WaitError | None:
        """Time for the writer to replace the lost bookie by itself; None: it had enough."""
        progress, segment = self._progress, metadata.last_segment
        if progress.segment != segment:
            progress.segment, progress.since_s = segment, self._now()
        grace_s = self._shared.config.open_ledger_grace_s
        until_s = progress.since_s + grace_s
        if self._now() >= until_s:
            return None
        lost = ", ".join(f.bookie for f in findings if not f.fragment.is_closed)
        return _WaitError(
            until_s,
            f"segment {segment.first_entry} is open and names {lost}, which is not registered: "
            f"its writer has {grace_s:g} s to replace it",
        )

    async def _close(self, metadata: LedgerMetadata) -> ReplicationError | None:
        """Fence the writer and close the ledger, unless the writer was faster.

        Returns:
            Why it can't be closed now: what is closed of it is repaired all the same.
        """
        shared = self._shared
        change = partial(_begin_unless_changed, metadata.last_segment)
        try:
            await shared.ledgers.update(self._ledger_id, change)
            await recover_ledger(
                self._ledger_id,
                shared.ledgers,
                shared.bookies,
                shared.placement,
                shared.rng,
                shared.client_config,
            )
        except (FragmentChangedError, NoSuchLedgerError):
            return None
        except BookkeeperError as error:
            return ReplicationError(f"it can't be closed: {error}")
        shared.metrics.ledgers_recovered += 1
        self._progress.report.on_closed()
        self._worked = True
        self._progress.segment = None
        return None

    async def _wait(self, waits: list[ReplicationError]) -> RepairResult:
        reasons = list(dict.fromkeys(map(str, waits)))
        more = f"; and {len(reasons) - _REASONS_MAX} more"
        text = "; ".join(reasons[:_REASONS_MAX]) + (more if len(reasons) > _REASONS_MAX else "")
        await self._shared.markers.note(self._ledger_id, text)
        untils = [wait.until_s for wait in waits if isinstance(wait, _WaitError)]
        return RepairResult(
            RepairStatus.WAITING,
            text,
            min(untils) if untils else None,
            any(not isinstance(wait, _WaitError) for wait in waits),
        )

    # The end

    async def _end(
        self, marker: UnderreplicationMarker, metadata: LedgerMetadata
    ) -> RepairResult | None:
        """Nothing was found: clear the marker, unless what it doubts can't be judged yet."""
        last = metadata.last_segment
        if metadata.state is LedgerState.CLOSED:
            return await self._clear(marker)
        if doubted := marker.suspects.intersection(last.bookies):
            until_s = self._now() + self._shared.config.backoff_max_s
            reason = (
                f"copies of {', '.join(sorted(doubted))} are in doubt, and segment "
                f"{last.first_entry} is still written to"
            )
            return await self._wait([_WaitError(until_s, reason)])
        # Who came back may have missed entries, and stays in the segment when that is closed, by
        # its writer or by a recovery. Then nobody would look for them before the next check.
        if returned := marker.bookies.intersection(last.bookies):
            behind = await self._shared.checker.behind(metadata, returned)
            if behind:
                return await self._wait(
                    [ReplicationError(f"{finding}; it is still open") for finding in behind]
                )
        return await self._clear(marker)

    async def _clear(self, marker: UnderreplicationMarker) -> RepairResult | None:
        """None: it was marked again meanwhile."""
        self._check()
        if not await self._shared.markers.clear(self._ledger_id, marker.version):
            return None
        self._shared.metrics.ledgers_cleared += 1
        self._shared.metrics.ledgers_repaired += self._worked
        return RepairResult(RepairStatus.CLEARED)


def _begin_unless_changed(
    segment: EnsembleSegment, current: LedgerMetadata
) -> LedgerMetadata | None:
    if current.state is LedgerState.OPEN and current.last_segment != segment:
        raise FragmentChangedError("the writer has replaced the bookie")
    return begin_recovery(current)
