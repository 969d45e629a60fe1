"""The auditor's periodic checks: of all copies' ends, of places, of the number of copies.

Each keeps the time of its last complete run in a node, so that neither a restart nor another
auditor begins it anew; the daily look for lost bookies is an audit and needs no such memory.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from magnetar.bookkeeper.client.placement import Adherence, EnsemblePlacementPolicy
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError, LedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.replication.audit_pass import (
    LedgerWalk,
    members_of,
    read_ledger,
    walk_ledgers,
)
from magnetar.bookkeeper.replication.auditor import Auditor
from magnetar.bookkeeper.replication.fragments import (
    Fragment,
    ReplicaCounts,
    Run,
    count_replicas,
    fragments_of,
    missing_runs,
)
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker, ReplicaProblem, gather_all
from magnetar.bookkeeper.replication.metrics import AuditorMetrics
from magnetar.bookkeeper.replication.replica_reader import ReplicaStatus, list_entries
from magnetar.bookkeeper.replication.under_replication import (
    CHECK_ALL_LEDGERS,
    PLACEMENT_CHECK,
    REPLICAS_CHECK,
)
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.item_errors import ItemErrors

_log = logging.getLogger(__name__)

_RETRY_S: Final = 60.0
_RUNS_A_TURN: Final = 500  # steps of counting between two turns of the loop
_CHECKS: Final = 4  # ledgers at a time whose copies are read
_SUSPECT: Final = (ReplicaProblem.ABSENT, ReplicaProblem.CORRUPT, ReplicaProblem.UNKNOWN)
_SILENT_MAX: Final = 100_000  # ledgers that are looked at again
_NAMED_MAX: Final = 100  # ledgers whose ids one check logs


@dataclass(frozen=True, slots=True)
class ChecksConfig:
    """Intervals of the periodic checks, in seconds; 0: never.

    Attributes:
        bookie_check_s: audit all lost bookies, whatever events said.
        all_ledgers_s: read the first and last entry of all fragments from all their bookies.
        share: in the same check, read this part (0..1) of the entries between, too.
        silent_grace_s: time in which a registered bookie that gave no answer may answer again; at
            least the lost-bookie delay.
        placement_s: compare the ensembles with the placement policy.
        replicas_s: ask bookies which entries they hold, and count the copies.
        census_s: count the ledgers that are marked for repair.
        grace_s: time after which a marked ledger counts as overdue.
        request_timeout_s: longest wait for the answer to one request.
    """

    bookie_check_s: float = 86_400.0
    all_ledgers_s: float = 604_800.0
    share: float = 0.0
    silent_grace_s: float = 60.0
    placement_s: float = 0.0
    replicas_s: float = 0.0
    census_s: float = 60.0
    grace_s: float = 0.0
    request_timeout_s: float = 30.0


class PeriodicChecks:
    """The checks of one elected auditor; ``coroutines()`` go to ``Auditor.start``."""

    def __init__(
        self,
        auditor: Auditor,
        config: ChecksConfig,
        bookies: BookiePool,
        placement: EnsemblePlacementPolicy,
        checker: LedgerChecker,
    ) -> None:
        self._auditor, self._config = auditor, config
        self._ports, self._metrics = auditor.ports, auditor.metrics
        self._bookies, self._placement, self._checker = bookies, placement, checker
        expected = (MetadataError, BookkeeperError)
        self._ledgers = ItemErrors("check of all ledgers", _log, expected)
        self._places = ItemErrors("check of places", _log, expected)
        self._replicas = ItemErrors("check of replicas", _log, expected)
        self._census = ItemErrors("census of markers", _log, expected)

    def coroutines(self) -> list[Coroutine[None, None, None]]:
        config = self._config
        named = (
            (CHECK_ALL_LEDGERS, config.all_ledgers_s, self.check_all_ledgers),
            (PLACEMENT_CHECK, config.placement_s, self.check_placement),
            (REPLICAS_CHECK, config.replicas_s, self.check_replicas),
        )
        wanted = [self._repeat(*each) for each in named if each[1]]
        if config.bookie_check_s:
            wanted.append(self._audit_daily(config.bookie_check_s))
        if config.census_s:
            wanted.append(self._count_markers(config.census_s))
        return wanted

    # When

    async def _repeat(
        self, name: str, interval_s: float, check: Callable[[], Awaitable[bool]]
    ) -> None:
        marks, clock = self._ports.marks, self._ports.clock
        while True:
            try:
                await asyncio.sleep(await self._due_in_s(name, interval_s))
                await self._auditor.wait_enabled()
                if await check():
                    await marks.set_check_time_ms(name, clock())
                    continue
            except (MetadataError, BookkeeperError) as error:
                _log.warning("%s failed, will be repeated: %s", name, error)
            await asyncio.sleep(min(_RETRY_S, interval_s))

    async def _due_in_s(self, name: str, interval_s: float) -> float:
        last_ms = await self._ports.marks.check_time_ms(name)
        if last_ms is None:
            return 0.0
        passed_s = (self._ports.clock() - last_ms) / 1000
        # A time in the future was written by a clock that was wrong.
        return max(0.0, interval_s - passed_s) if passed_s >= 0 else interval_s

    async def _audit_daily(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self._auditor.want_audit("periodic")

    # What

    async def check_all_ledgers(self) -> bool:
        """Read the ends of every closed fragment from every bookie; mark what is missing.

        A bookie that is registered and silent may be one that just died, or restarts: what only it
        gives no answer for is looked at again after the delay that every loss has, as is a ledger
        whose check failed.

        Returns:
            False: given up, as automatic repair was switched off, or the store didn't answer for
            all of it.
        """
        with self._ledgers.round() as each:
            return await self._check_all(LedgerWalk(each))

    async def _check_all(self, walk: LedgerWalk) -> bool:
        began_ms, metrics = _now_ms(), self._metrics
        marked, silent = 0, list[int]()
        async for batch in walk_ledgers(self._ports.ledgers, walk):
            for start in range(0, len(batch), _CHECKS):
                part = batch[start : start + _CHECKS]
                checks = await gather_all(self._try_ledger(each, walk) for each in part)
                marked += sum(each is True for each in checks)
                pairs = zip(part, checks, strict=True)
                silent += [ledger.ledger_id for ledger, mark in pairs if mark is None]
                if not self._auditor.is_enabled:
                    return False
                del silent[_SILENT_MAX:]  # the next run finds the others
        if silent:
            await asyncio.sleep(max(self._config.silent_grace_s, self._auditor.delay_s))
            marked += await self._check_again(silent, walk)
        metrics.marked_ledgers.record(marked)
        metrics.checked_ledgers = walk.ledgers
        metrics.check_all_ledgers.record(_now_ms() - began_ms)
        _log.info("all ledgers checked: %d of %d marked", marked, walk.ledgers)
        return self._auditor.is_enabled and not walk.unanswered

    async def _check_again(self, ledger_ids: Sequence[int], walk: LedgerWalk) -> int:
        marked = 0
        for ledger_id in ledger_ids:
            found = await read_ledger(self._ports.ledgers, ledger_id, walk)
            if found is not None:
                marked += bool(await self._try_ledger(found, walk, was_silent=True))
        return marked

    async def _try_ledger(
        self, metadata: LedgerMetadata, walk: LedgerWalk, *, was_silent: bool = False
    ) -> bool | None:
        marked: bool | None = None
        with walk.item(f"ledger {metadata.ledger_id}"):
            marked = await self._check_ledger(metadata, was_silent=was_silent)
        return marked

    async def _check_ledger(
        self, metadata: LedgerMetadata, *, was_silent: bool = False
    ) -> bool | None:
        """True: it was marked. None: it may have to be; a bookie gave no answer."""
        metrics, auditor = self._metrics, self._auditor
        found = await self._checker.check(metadata, auditor.available, share=self._config.share)
        metrics.fragments_per_ledger.record(len(metadata.segments))
        metrics.bookies_per_ledger.record(len(members_of(metadata)))
        # One that is gone is a matter of delays and zones, whoever notices it.
        found = [
            f for f in found if f.problem is not ReplicaProblem.GONE or auditor.may_mark(f.bookie)
        ]
        bad = [f for f in found if was_silent or f.problem is not ReplicaProblem.SILENT]
        if bad:
            doubted = {each.bookie for each in bad if each.problem in _SUSPECT}
            await auditor.mark(metadata.ledger_id, {each.bookie for each in bad}, suspects=doubted)
            return True
        return None if found else False

    async def check_placement(self) -> bool:
        """Count the ledgers with a segment that breaks the placement policy.

        Returns:
            False: the store didn't answer for all of it.
        """
        with self._places.round() as each:
            return await self._check_places(LedgerWalk(each))

    async def _check_places(self, walk: LedgerWalk) -> bool:
        began_ms, failing, soft = _now_ms(), 0, 0
        async for batch in walk_ledgers(self._ports.ledgers, walk):
            for metadata in batch:
                worst = self._adherence(metadata)
                soft += worst is Adherence.SOFT
                if worst is Adherence.FAIL:
                    failing += 1
                    if failing <= _NAMED_MAX:
                        _log.warning("ledger %d breaks the placement policy", metadata.ledger_id)
        metrics = self._metrics
        metrics.not_adhering, metrics.softly_adhering = failing, soft
        metrics.placement_check.record(_now_ms() - began_ms)
        _log.info("placement: %d ledgers break the policy, %d follow it loosely", failing, soft)
        return not walk.unanswered

    def _adherence(self, metadata: LedgerMetadata) -> Adherence:
        found = {
            self._placement.adherence(segment.bookies, metadata.write_quorum, metadata.ack_quorum)
            for segment in metadata.segments
        }
        for worst in (Adherence.FAIL, Adherence.SOFT):
            if worst in found:
                return worst
        return Adherence.STRICT

    async def check_replicas(self) -> bool:
        """Ask all bookies which entries they hold, and count ledgers with too few copies.

        A bookie that can't tell counts for nothing: its ledgers are only counted as unknown.

        Returns:
            False: the store didn't answer for all of it.
        """
        began_ms, totals = _now_ms(), ReplicaTotals()
        with self._replicas.round() as each:
            walk = LedgerWalk(each)
            async for batch in walk_ledgers(self._ports.ledgers, walk):
                for metadata in batch:
                    counts: ReplicaCounts | None = None
                    with walk.item(f"ledger {metadata.ledger_id}"):
                        counts = await self._count(metadata)
                    totals.add(metadata.ledger_id, counts)
        totals.show(self._metrics)
        self._metrics.replicas_check.record(_now_ms() - began_ms)
        return not walk.unanswered

    async def _count(self, metadata: LedgerMetadata) -> ReplicaCounts | None:
        """None: some bookie didn't answer."""
        members = sorted(members_of(metadata))
        answers = await asyncio.gather(
            *(
                list_entries(
                    *(self._bookies, each, metadata.ledger_id, self._config.request_timeout_s),
                    metadata.creator_token,
                )
                for each in members
            )
        )
        held: dict[str, list[Run]] = {}
        for bookie, listing in zip(members, answers, strict=True):
            if listing.answer is not ReplicaStatus.GOOD:
                return None
            held[bookie] = list(listing.runs)
        counts = ReplicaCounts()
        for fragment in fragments_of(metadata):
            if fragment.is_closed:
                counts.add(await self._count_fragment(fragment, held, metadata.ack_quorum))
        return counts

    async def _count_fragment(
        self, fragment: Fragment, held: dict[str, list[Run]], ack_quorum: int
    ) -> ReplicaCounts:
        missing: list[list[Run]] = []
        for slot, bookie in enumerate(fragment.bookies):
            runs: list[Run] = []
            steps = missing_runs(fragment, slot, held[bookie])
            while part := list(islice(steps, _RUNS_A_TURN)):
                runs += part
                await asyncio.sleep(0)
            missing.append(runs)
        return count_replicas(missing, fragment.write_quorum, ack_quorum)

    async def _count_markers(self, interval_s: float) -> None:
        """Marked ledgers, and those that are so for too long."""
        while True:
            began_s = asyncio.get_running_loop().time()
            await self.count_markers()
            took_s = asyncio.get_running_loop().time() - began_s
            await asyncio.sleep(max(interval_s, 10 * took_s))

    async def count_markers(self) -> None:
        """One census; it counts for nothing if some can't be counted."""
        marked = overdue = 0
        marks, grace_ms = self._ports.marks, self._config.grace_s * 1000
        with self._census.round() as each:
            async for ids in marks.ledger_ids(each.item):
                marked += len(ids)
                for ledger_id in ids if grace_ms else ():
                    with each.item(f"ledger {ledger_id}"), contextlib.suppress(LedgerError):
                        marker = await marks.read(ledger_id)  # its repair tells if it's damaged
                        if marker is not None:
                            overdue += self._ports.clock() - marker.created_ms > grace_ms
                    await asyncio.sleep(0)
        if not each.failed:
            self._metrics.marked_now, self._metrics.marked_over_grace = marked, overdue


class ReplicaTotals:
    """Sums of one check of replicas."""

    def __init__(self) -> None:
        self.no_replica = self.under_ack = self.under_write = self.unknown = 0
        self._named = 0

    def add(self, ledger_id: int, counts: ReplicaCounts | None) -> None:
        """One ledger; None: it couldn't be counted."""
        if counts is None:
            self.unknown += 1
            return
        self.no_replica += counts.no_replica > 0
        self.under_ack += counts.under_ack_quorum > 0
        self.under_write += counts.under_write_quorum > 0
        if counts.under_write_quorum and self._named < _NAMED_MAX:
            self._named += 1
            _log.warning("ledger %d: too few copies of entries: %s", ledger_id, counts)

    def show(self, metrics: AuditorMetrics) -> None:
        metrics.no_replica, metrics.under_ack_quorum = self.no_replica, self.under_ack
        metrics.under_write_quorum, metrics.replicas_unknown = self.under_write, self.unknown


def _now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)
