"""Reads the heads of a ledger's entries, and their sizes, without the bodies.

For whoever counts messages or plans how much to read. One request brings thousands of entries, of a
striped ledger (E > Qw), too: each bookie is asked for a stripe of them, several at a time. Replicas
stand in for each other as in ``ledger_reader.py``; where the ledger ends is for the caller to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from bookkeeper import codes
from bookkeeper.client import quorum
from bookkeeper.client.config import ClientConfig
from bookkeeper.client.ledger_directory import LedgerDirectory
from bookkeeper.client.ledger_reader import worst_failure
from bookkeeper.client.pool import BookiePool
from bookkeeper.client.replicas import Replicas
from bookkeeper.client.speculation import Race, first_good
from bookkeeper.client.striped_runs import held_end, plan_runs
from bookkeeper.errors import (
    BookieUnavailableError,
    BookkeeperError,
    EntryDigestError,
    LedgerError,
    NoSuchEntryError,
    error_for_code,
)
from bookkeeper.ledger_metadata import LedgerMetadata
from bookkeeper.transport import ALL_ENTRIES, HEADS_BYTES_MAX, Stripe

__all__ = ["HeadRun", "HeadsReader"]


@dataclass(slots=True)
class HeadRun:
    """Consecutive entries of one ledger, from ``first`` on, as two parallel lists.

    Attributes:
        heads: the first bytes of each entry.
        sizes: bytes of each whole entry, its head included.
    """

    ledger_id: int
    first: int
    heads: list[bytes]
    sizes: list[int]

    @property
    def end(self) -> int:
        return self.first + len(self.heads)


@dataclass(slots=True)
class _Part:
    """What one bookie is asked for: the entries of ``stripe`` from ``first`` on.

    Attributes:
        slots: whom to ask, in order. All hold ``first``, and the first one the whole stripe.
        failures: why replicas gave nothing.
    """

    slots: Sequence[int]
    first: int
    stripe: Stripe
    failures: list[LedgerError] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    """Entries of ``stripe`` from ``first`` on; at least one."""

    first: int
    stripe: Stripe
    heads: list[bytes]
    sizes: list[int]


class HeadsReader:
    """Reads heads of one ledger; never of an entry above ``last_confirmed``.

    Args:
        head_bytes: of each entry. The ledger's entries have that many at least: a shorter one is
            corrupt.

    Attributes:
        metadata: as it was read last.
        last_confirmed: may be raised when the caller learns of more.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        last_confirmed: int,
        ledgers: LedgerDirectory,
        bookies: BookiePool,
        config: ClientConfig,
        replicas: Replicas,
        *,
        head_bytes: int,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self.metadata = metadata
        self.last_confirmed = last_confirmed
        self._ledgers = ledgers
        self._bookies = bookies
        self._bytes_max = min(HEADS_BYTES_MAX, config.read_bytes_max)
        self._replicas = replicas
        self._head_bytes = head_bytes
        # As in ``LedgerReader``: the first choice differs from ledger to ledger, and stays.
        self._start = metadata.ledger_id % metadata.ensemble_size
        self._last_until: dict[str, float] = {}  # bookie that gave nothing -> loop time

    async def runs(self, first: int, end: int) -> AsyncIterator[HeadRun]:
        """All heads of the entries ``first <= id < end``; whoever has enough may stop.

        Raises: as ``read``.
        """
        while first < end:
            run = await self.read(first, end)
            yield run
            first = run.end

    async def read(self, first: int, end: int) -> HeadRun:
        """Heads from entry ``first`` on: at least one, at most up to ``end``, not in it.

        Digests are checked by the bookie that gives a head, over its whole entry.

        Raises:
            NoSuchEntryError: above ``last_confirmed``, or every replica denies to have it.
            EntryDigestError: every replica that answered is corrupt.
            LedgerError: no replica could answer; retry later. BadRequestError: only bookies were
                found that don't know of heads yet.
        """
        if not 0 <= first < end:
            raise ValueError(f"not a range of entries: {first} up to {end}")
        if end - 1 > self.last_confirmed:
            raise NoSuchEntryError(
                f"ledger {self.ledger_id}: entry {end - 1} is above the last confirmed entry "
                f"{self.last_confirmed}"
            )
        failures: list[LedgerError] = []
        metadata = self.metadata
        run = await self._read_from(metadata, first, end, failures)
        if run is None:
            # Auto-recovery may have moved the replicas since we read the metadata.
            fresh = (await self._ledgers.require(self.ledger_id)).metadata
            if fresh.segment_of(first).bookies != metadata.segment_of(first).bookies:
                self.metadata = fresh
                run = await self._read_from(fresh, first, end, failures)
        if run is None:
            raise worst_failure(failures)
        return run

    async def _read_from(
        self, metadata: LedgerMetadata, first: int, end: int, failures: list[LedgerError]
    ) -> HeadRun | None:
        """A run from the segment of ``first``; None: ``failures`` says why."""
        bookies = metadata.segment_of(first).bookies
        segment_end = metadata.segment_end(first)
        end = end if segment_end is None else min(end, segment_end)
        parts = self._plan(metadata, bookies, first, end)
        reads = (self._read_part(metadata, bookies, part, end) for part in parts)
        found = await asyncio.gather(*reads)
        failures += parts[0].failures  # those of others end the run, if there is one
        if found[0] is None:
            return None
        return self._merge(first, end, metadata.ensemble_size, [f for f in found if f is not None])

    def _plan(
        self, metadata: LedgerMetadata, bookies: Sequence[str], first: int, end: int
    ) -> list[_Part]:
        """Stripes that together are all entries, in the order of their first ones."""
        quorums = (metadata.ensemble_size, metadata.write_quorum)
        if not metadata.is_striped:
            slots = self._order(bookies, quorum.write_set(self._start, *quorums))
            return [_Part(slots, first, ALL_ENTRIES)]
        cycle = metadata.ensemble_size
        order = partial(self._order, bookies)
        turn = min(end, first + cycle)
        parts = []
        for run in plan_runs(first, turn, quorums, order, runs_max=cycle, shift=self._start):
            others = [s for s in quorum.write_set(run.first, *quorums) if s != run.slot]
            stripe = Stripe(cycle, run.first % cycle, run.end - run.first)
            parts.append(_Part((run.slot, *order(others)), run.first, stripe))
        return parts

    def _order(self, bookies: Sequence[str], slots: Sequence[int]) -> Sequence[int]:
        """Who gave nothing lately comes last: each time it would end a run of all others, too."""
        slots = self._replicas.order(bookies, slots)
        if not self._last_until:
            return slots
        now_s = asyncio.get_running_loop().time()
        self._last_until = {
            name: until for name, until in self._last_until.items() if until > now_s
        }
        return sorted(slots, key=lambda slot: bookies[slot] in self._last_until)

    async def _read_part(
        self, metadata: LedgerMetadata, bookies: Sequence[str], part: _Part, end: int
    ) -> _Found | None:
        """From the first replica that has it."""
        quorums = (metadata.ensemble_size, metadata.write_quorum)

        async def ask(slot: int) -> _Found | None:
            ask_end = end
            if slot != part.slots[0] and metadata.is_striped:
                # It holds fewer of the stripe in a row: the run will end behind these.
                row_end = part.first + part.stripe.width
                held = held_end(slot, part.first, row_end, *quorums)
                ask_end = min(end, held) if held < row_end else end
            found = await self._ask_for(bookies[slot], part, ask_end)
            if found is None:
                later_s = self._replicas.config.slow_memory_ms / 1000
                self._last_until[bookies[slot]] = asyncio.get_running_loop().time() + later_s
            return found

        race = Race()
        found = await first_good(part.slots, ask, self._replicas.config.speculation, race)
        self._replicas.count(race, [bookies[slot] for slot in part.slots])
        return found

    async def _ask_for(self, bookie: str, part: _Part, end: int) -> _Found | None:
        """Heads from one bookie; None: ``part.failures`` has one more."""
        first, stripe = part.first, part.stripe
        where = f"ledger {self.ledger_id}: head of entry {first} on {bookie}"
        try:
            reply = await self._bookies.client(bookie).read_heads(
                *(self.ledger_id, first, stripe.count(first, end), self._head_bytes),
                stripe=stripe,
                bytes_max=self._bytes_max,
            )
        except LedgerError as error:
            self._replicas.note_code(bookie, error.code)
            part.failures.append(error)
            return None
        except BookkeeperError as error:
            self._replicas.note_code(bookie, codes.UNAVAILABLE)
            part.failures.append(BookieUnavailableError(f"{where}: {error}"))
            return None
        if reply.code != codes.OK or not reply.heads:
            code = codes.UNAVAILABLE if reply.code == codes.OK else reply.code
            self._replicas.note_code(bookie, code)
            part.failures.append(error_for_code(code, where))
            return None
        heads, sizes = reply.heads, reply.sizes
        if min(sizes) < self._head_bytes:
            short = next(n for n, size in enumerate(sizes) if size < self._head_bytes)
            self._replicas.note_corrupt(self.ledger_id, stripe.nth(first, short), bookie)
            if not short:
                part.failures.append(EntryDigestError(f"{where} is too short"))
                return None
            heads, sizes = heads[:short], sizes[:short]
        return _Found(first, stripe, heads, sizes)

    def _merge(self, first: int, end: int, cycle: int, found: list[_Found]) -> HeadRun:
        """What was found of all stripes, up to the first entry that is missing."""
        if found[0].stripe == ALL_ENTRIES:
            return HeadRun(self.ledger_id, first, found[0].heads, found[0].sizes)
        by_place: list[Iterator[tuple[bytes, int]]] = [iter(())] * cycle
        for each in found:
            entries = zip(each.heads, each.sizes, strict=True)
            for place in range(each.stripe.offset, each.stripe.offset + each.stripe.width):
                by_place[place % cycle] = entries
        run = HeadRun(self.ledger_id, first, [], [])
        for entry_id in range(first, end):
            entry = next(by_place[entry_id % cycle], None)
            if entry is None:
                break
            run.heads.append(entry[0])
            run.sizes.append(entry[1])
        return run
