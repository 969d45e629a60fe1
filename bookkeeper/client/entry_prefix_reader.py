"""Reads the heads of a ledger's entries, and their sizes, without the bodies.

To count messages, or to plan how much to read. One request brings thousands of entries, of a
striped ledger (E > Qw), too: each bookie is asked for a stripe of them, several at a time. Replicas
stand in for each other as in ``ledger_reader.py``; where the ledger ends is for the caller to know.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_reader import worst_failure
from magnetar.bookkeeper.client.ledger_store import LedgerMetadataSource
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.replica_choice import FailedReplicas, Replicas
from magnetar.bookkeeper.client.speculative_read import SpeculativeRead, first_good
from magnetar.bookkeeper.client.striped_runs import StripeRead, plan_parts, put_together
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    BookkeeperError,
    LedgerError,
    NoSuchEntryError,
    error_for_code,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.transport import ALL_ENTRIES, HEADS_BYTES_MAX, ReadRequest, Stripe


@dataclass(slots=True)
class EntryPrefixRun:
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
class _Found:
    """Entries of ``stripe``, at least one."""

    stripe: Stripe
    heads: list[bytes]
    sizes: list[int]


@dataclass(eq=False, repr=False)
class EntryPrefixReader:
    """Reads heads of one ledger; never of an entry above ``last_confirmed``.

    Attributes:
        metadata: as it was read last.
        last_confirmed: may be raised when the caller learns of more.
        head_bytes: of each entry; a shorter one comes whole.
    """

    metadata: LedgerMetadata
    last_confirmed: int
    _ledgers: LedgerMetadataSource
    _bookies: BookiePool
    _config: ClientConfig
    _replicas: Replicas
    head_bytes: int

    def __post_init__(self) -> None:
        self.ledger_id, self._creator = self.metadata.ledger_id, self.metadata.creator_token
        self._bytes_max = min(HEADS_BYTES_MAX, self._config.read_bytes_max)
        # As in ``LedgerReader``: the first choice differs from ledger to ledger, and stays.
        self._start = self.ledger_id % self.metadata.ensemble_size
        self._last_resort = FailedReplicas(self._replicas)

    async def runs(self, first: int, end: int) -> AsyncIterator[EntryPrefixRun]:
        """All heads of the entries ``first <= id < end``; the caller may stop.

        Raises: as ``read``.
        """
        while first < end:
            run = await self.read(first, end)
            yield run
            first = run.end

    async def read(self, first: int, end: int) -> EntryPrefixRun:
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
            fresh.require_creator(self._creator)
            if fresh.segment_of(first).bookies != metadata.segment_of(first).bookies:
                self.metadata = fresh
                run = await self._read_from(fresh, first, end, failures)
        if run is None:
            raise worst_failure(failures)
        return run

    async def _read_from(
        self, metadata: LedgerMetadata, first: int, end: int, failures: list[LedgerError]
    ) -> EntryPrefixRun | None:
        """A run from the segment of ``first``; None: ``failures`` says why."""
        bookies = metadata.segment_of(first).bookies
        segment_end = metadata.segment_end(first)
        end = end if segment_end is None else min(end, segment_end)
        quorums = (metadata.ensemble_size, metadata.write_quorum)
        order = partial(self._last_resort.order, bookies)
        if metadata.is_striped:
            parts = plan_parts(first, end, quorums, order, shift=self._start)
        else:
            slots = order(quorum.write_set(self._start, *quorums))
            parts = [StripeRead(slots, first, ALL_ENTRIES)]
        # Why others than the first one failed doesn't matter: they end the run.
        failed = [failures, *([] for _ in parts[1:])]
        found = await asyncio.gather(
            *(
                self._read_part(quorums, bookies, part, end, errors)
                for part, errors in zip(parts, failed, strict=True)
            )
        )
        if found[0] is None:
            return None
        if not metadata.is_striped:
            return EntryPrefixRun(self.ledger_id, first, found[0].heads, found[0].sizes)
        stripes = [
            (each.stripe, zip(each.heads, each.sizes, strict=True)) for each in found if each
        ]
        entries = put_together(stripes, range(first, end), metadata.ensemble_size)
        heads, sizes = zip(*entries, strict=True)
        return EntryPrefixRun(self.ledger_id, first, list(heads), list(sizes))

    async def _read_part(
        self,
        quorums: tuple[int, int],
        bookies: Sequence[str],
        part: StripeRead,
        end: int,
        failures: list[LedgerError],
    ) -> _Found | None:
        """From the first replica that has it."""

        async def ask(slot: int) -> _Found | None:
            slot_end = part.end_at(slot, end, quorums)
            found = await self._ask_for(bookies[slot], part, slot_end, failures)
            if found is None:
                self._last_resort.note(bookies[slot])
            return found

        race = SpeculativeRead()
        found = await first_good(part.slots, ask, self._replicas.config.speculation, race)
        self._replicas.count(race, [bookies[slot] for slot in part.slots])
        return found

    async def _ask_for(
        self, bookie: str, part: StripeRead, end: int, failures: list[LedgerError]
    ) -> _Found | None:
        """Heads from one bookie; None: ``failures`` has one more."""
        first, stripe = part.first, part.stripe
        where = f"ledger {self.ledger_id}: head of entry {first} on {bookie}"
        try:
            request = ReadRequest(
                *(self.ledger_id, first, stripe.count(first, end), self._bytes_max),
                stripe=stripe,
                head_bytes=self.head_bytes,
                creator=self._creator,
            )
            reply = await self._bookies.client(bookie).read_heads(request)
        except LedgerError as error:
            self._replicas.note_code(bookie, error.code)
            failures.append(error)
            return None
        except BookkeeperError as error:
            self._replicas.note_code(bookie, codes.UNAVAILABLE)
            failures.append(BookieUnavailableError(f"{where}: {error}"))
            return None
        if reply.code != codes.OK or not reply.heads:
            code = codes.UNAVAILABLE if reply.code == codes.OK else reply.code
            self._replicas.note_code(bookie, code)
            failures.append(error_for_code(code, where))
            return None
        return _Found(stripe, reply.heads, reply.sizes)
