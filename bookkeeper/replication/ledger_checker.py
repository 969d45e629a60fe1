"""Finds the replicas that a ledger misses.

By default it asks little: is each member registered, and does it give the first and the last entry
it owns? More on demand: a share of its entries, all of them, or the bookie's own list of what it
holds. Only closed fragments are probed: what is missing from an open one may be on its way.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil
from typing import Any, TypeVar

from magnetar.bookkeeper.client.placement import PlacementRandom
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.fragments import (
    Fragment,
    Run,
    fragments_of,
    join_runs,
    subtract_runs,
)
from magnetar.bookkeeper.replication.replica_reader import (
    EntrySet,
    ReplicaStatus,
    examine_replica,
    list_entries,
    read_replica,
)

T = TypeVar("T")


class ReplicaProblem(Enum):
    """Why a replica doesn't count."""

    GONE = "is not registered"
    ABSENT = "misses entries"
    CORRUPT = "has damaged copies"
    UNKNOWN = "may have lost entries"
    SILENT = "is registered, but does not answer"


_PROBLEMS = {
    ReplicaStatus.ABSENT: ReplicaProblem.ABSENT,
    ReplicaStatus.CORRUPT: ReplicaProblem.CORRUPT,
    ReplicaStatus.UNKNOWN: ReplicaProblem.UNKNOWN,
    ReplicaStatus.SILENT: ReplicaProblem.SILENT,
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One member of one fragment that doesn't hold what it should.

    Attributes:
        runs: entries that were looked at and found wanting; others may be, too.
        detail: of a silent bookie: how it was silent.
    """

    fragment: Fragment
    slot: int
    problem: ReplicaProblem
    runs: tuple[Run, ...] = ()
    detail: str = ""

    @property
    def bookie(self) -> str:
        return self.fragment.bookies[self.slot]

    def __str__(self) -> str:
        where = f"segment {self.fragment.first_entry}: {self.bookie} {self.problem.value}"
        if self.detail:
            return f"{where}: {self.detail}"
        if not self.runs:
            return where
        listed = ", ".join(f"{a}-{b - 1}" if b - a > 1 else f"{a}" for a, b in self.runs[:3])
        return f"{where} ({listed}{', ...' if len(self.runs) > 3 else ''})"


class LedgerChecker:
    """Looks at ledgers one at a time; changes nothing.

    Args:
        rng: chooses the entries of a share.
    """

    def __init__(
        self, bookies: BookiePool, rng: PlacementRandom, config: ReplicationConfig
    ) -> None:
        self._bookies, self._rng, self._config = bookies, rng, config

    async def check(
        self,
        metadata: LedgerMetadata,
        registered: Collection[str],
        *,
        share: float = 0.0,
        listed: Collection[str] = (),
        every: Collection[str] = (),
    ) -> list[CheckResult]:
        """What is missing, in the order of the entries; at most one finding per member.

        Args:
            registered: bookies that are there now, also those that accept no writes.
            share: this part (0..1) of each member's entries is read, beside the first and last.
            listed: bookies that are asked for their list of entries, too.
            every: bookies of which every entry is read.
        """
        gate = asyncio.Semaphore(self._config.parallel_reads)
        lists: dict[str, asyncio.Future[EntrySet]] = {}

        async def look(fragment: Fragment, slot: int) -> CheckResult | None:
            bookie = fragment.bookies[slot]
            async with gate:
                if bookie in every:
                    return await self.examine(fragment, slot)
                found = await self._probe(fragment, slot, share)
            if found is None and bookie in listed:
                if bookie not in lists:  # one answer is for all fragments of the ledger
                    lists[bookie] = asyncio.ensure_future(self._list(fragment, bookie))
                found = await self._compare(fragment, slot, await lists[bookie])
            return found

        findings: list[CheckResult] = []
        looks: list[Coroutine[Any, Any, CheckResult | None]] = []
        for fragment in fragments_of(metadata):
            for slot, bookie in enumerate(fragment.bookies):
                if bookie not in registered:
                    findings.append(CheckResult(fragment, slot, ReplicaProblem.GONE))
                elif fragment.is_closed and fragment.count_of(slot):
                    looks.append(look(fragment, slot))
        try:
            findings += [found for found in await gather_all(looks) if found is not None]
        finally:
            for task in lists.values():
                task.cancel()
        return sorted(findings, key=lambda f: (f.fragment.first_entry, f.slot))

    async def examine(self, fragment: Fragment, slot: int) -> CheckResult | None:
        """Reads everything that ``slot`` owns; the finding names all that is wanting."""
        bookie = fragment.bookies[slot]
        held = await self._list(fragment, bookie)
        if held.answer is ReplicaStatus.SILENT:
            return CheckResult(fragment, slot, ReplicaProblem.SILENT, (), held.detail)
        owned = list(fragment.runs_of(slot))
        absent = list(subtract_runs(owned, held.runs)) if held.answer is ReplicaStatus.GOOD else []
        answer, bad = await examine_replica(
            self._bookies,
            bookie,
            fragment.ledger_id,
            subtract_runs(owned, absent),
            self._config,
            stripe=fragment.stripe_of(slot),
            creator=fragment.creator,
        )
        if answer is ReplicaStatus.SILENT:
            return CheckResult(fragment, slot, ReplicaProblem.SILENT, (owned[0],) if owned else ())
        if answer is ReplicaStatus.GOOD and not absent:
            return None
        problem = ReplicaProblem.ABSENT if answer is ReplicaStatus.GOOD else _PROBLEMS[answer]
        return CheckResult(fragment, slot, problem, tuple(join_runs([*absent, *bad])))

    async def missing(self, fragment: Fragment, slot: int) -> list[Run] | None:
        """What ``slot`` owns and its bookie doesn't list; None: it can't tell."""
        held = await self._list(fragment, fragment.bookies[slot])
        if held.answer is not ReplicaStatus.GOOD:
            return None
        return list(subtract_runs(fragment.runs_of(slot), held.runs))

    async def behind(self, metadata: LedgerMetadata, named: Collection[str]) -> list[CheckResult]:
        """Of the last segment of a ledger that isn't closed: those of ``named`` that lack entries.

        Its last entry isn't known yet, but what another member has should be there.
        Something that is on its way counts as lacking. A member that doesn't say what it holds is
        a finding, too, named or not: it may have what the others haven't.
        """
        fragment = fragments_of(metadata)[-1]
        held = await gather_all(self._list(fragment, b) for b in fragment.bookies)
        mute = [
            CheckResult(fragment, slot, _PROBLEMS[listing.answer], (), listing.detail)
            for slot, listing in enumerate(held)
            if listing.answer is not ReplicaStatus.GOOD
        ]
        if mute:
            return mute
        there = join_runs(run for listing in held for run in listing.runs)
        fragment = replace(fragment, end=max(fragment.first_entry, there[-1][1] if there else 0))
        findings: list[CheckResult] = []
        for slot, bookie in enumerate(fragment.bookies):
            if bookie in named:
                owned = list(fragment.runs_of(slot))
                should = subtract_runs(owned, subtract_runs(owned, there))
                if lacks := tuple(subtract_runs(should, held[slot].runs)):
                    findings.append(CheckResult(fragment, slot, ReplicaProblem.ABSENT, lacks))
        return findings

    async def _probe(self, fragment: Fragment, slot: int, share: float) -> CheckResult | None:
        """First and last entry, and some between."""
        count = fragment.count_of(slot)
        chosen = {0, count - 1}
        if share > 0:
            extra = min(count, ceil(share * count))
            chosen.update(int(self._rng.random() * count) for _ in range(extra))
        bad: list[Run] = []
        problem: ReplicaProblem | None = None
        detail = ""
        for index in sorted(chosen):
            entry_id = fragment.nth_of(slot, index)
            found = await read_replica(
                self._bookies,
                fragment.bookies[slot],
                fragment.ledger_id,
                entry_id,
                1,
                1,
                self._config.request_timeout_s,
                creator=fragment.creator,
            )
            if found.answer is ReplicaStatus.GOOD:
                continue
            bad.append((entry_id, entry_id + 1))
            problem, detail = _PROBLEMS[found.answer], found.detail
            if found.answer is ReplicaStatus.SILENT:
                break
        return None if problem is None else CheckResult(fragment, slot, problem, tuple(bad), detail)

    async def _compare(self, fragment: Fragment, slot: int, held: EntrySet) -> CheckResult | None:
        if held.answer is not ReplicaStatus.GOOD:
            return await self.examine(fragment, slot)
        bad = tuple(subtract_runs(fragment.runs_of(slot), held.runs))
        return CheckResult(fragment, slot, ReplicaProblem.ABSENT, bad) if bad else None

    async def _list(self, fragment: Fragment, bookie: str) -> EntrySet:
        timeout_s = self._config.request_timeout_s
        return await list_entries(
            self._bookies, bookie, fragment.ledger_id, timeout_s, fragment.creator
        )


async def gather_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; when one fails the others are cancelled before it is raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:  # also when cancelled
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
