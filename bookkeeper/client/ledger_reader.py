"""Reads a ledger up to its last confirmed entry, from whichever replica gives intact bytes.

A run of entries is one request, one reply and a list; per entry there is only its body and a
digest. Of a striped ledger (E > Qw) several bookies are asked at a time, each for a stripe of the
run. Rules: docs/spec/storage.md, "Reads"; where the ledger ends: ``ledger_tail.py``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from crc32c import crc32c

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.ledger_tail import LedgerTail
from magnetar.bookkeeper.client.replica_choice import FailedReplicas
from magnetar.bookkeeper.client.speculative_read import SpeculativeRead, first_good
from magnetar.bookkeeper.client.striped_runs import StripeRead, plan_parts, put_together
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    BookkeeperError,
    EntryDigestError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    error_for_code,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.packet import PACKET_HEADER, PACKET_HEADER_BYTES, Buffer
from magnetar.bookkeeper.transport import ALL_ENTRIES, ReadRequest, StoredRun, Stripe

#: From this packet size on a body stays a view of the buffer it was read into. Smaller ones are
#: copied: a view costs as much as the copy, and would pin the whole read buffer.
VIEW_BYTES_MIN: Final = 4096
_DIGESTED_BYTES: Final = PACKET_HEADER_BYTES - 4


@dataclass(slots=True)
class EntryRun:
    """Consecutive entries of one ledger, from ``first`` on."""

    ledger_id: int
    first: int
    bodies: list[bytes | memoryview]


def split_packets(
    ledger_id: int,
    first: int,
    packets: Sequence[Buffer],
    stripe: Stripe = ALL_ENTRIES,
) -> list[bytes | memoryview]:
    """Bodies of the packets up to the first that is corrupt or of another entry.

    They are of the entries of ``stripe`` from ``first`` on.
    """
    bodies: list[bytes | memoryview] = []
    unpack, body_at = PACKET_HEADER.unpack_from, PACKET_HEADER_BYTES
    body: bytes | memoryview
    for entry_id, packet in zip(stripe.ids(first), packets, strict=False):
        size = len(packet)
        if size < body_at:
            break
        found_ledger, found_entry, _, _, digest = unpack(packet)
        # bytes(...) of a slice of bytes is the slice itself; of a view it is the one copy.
        body = bytes(packet[body_at:]) if size < VIEW_BYTES_MIN else memoryview(packet)[body_at:]
        if (
            crc32c(body, crc32c(packet[:_DIGESTED_BYTES])) != digest
            or found_entry != entry_id
            or found_ledger != ledger_id
        ):
            break
        bodies.append(body)
    return bodies


class LedgerReader(LedgerTail):
    """Reads one ledger; never shows an entry above ``last_confirmed``.

    Attributes:
        corrupt_replicas: digest mismatches met so far.
        on_corrupt: told (ledger id, entry id, bookie id) of each; the bookie is told anyway.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.corrupt_replicas = 0
        self.on_corrupt: Callable[[int, int, str], None] | None = None
        # Unstriped ledgers stay with one bookie, whose read-ahead is warm, until it fails; the
        # first choice differs from ledger to ledger.
        self._start = self.ledger_id % self.metadata.ensemble_size
        self._last_resort = FailedReplicas(self._replicas) if self.metadata.is_striped else None
        self._entry_bytes = 0  # mean size in the last run of a striped ledger; 0: not known

    async def read(self, first: int, last: int, bytes_max: int) -> EntryRun:
        """Entries from ``first`` on: at least one, at most up to ``last``.

        Args:
            last: inclusive.
            bytes_max: packets beyond the first one stop before this many bytes.

        Raises:
            NoSuchEntryError: above ``last_confirmed``, or every replica denies to have it.
            EntryDigestError: every replica that answered is corrupt.
            LedgerError: no replica could answer; retry later.
        """
        if not 0 <= first <= last:
            raise ValueError(f"not a range of entries: {first}..{last}")
        if last > self.last_confirmed:
            raise NoSuchEntryError(
                f"ledger {self.ledger_id}: entry {last} is above the last confirmed entry "
                f"{self.last_confirmed}"
            )
        if self._ahead is not None and first == last == self._ahead[0]:
            run = self._take_ahead()
            if run is not None:
                return run
        metadata = self.metadata
        failures: list[LedgerError] = []  # why replicas gave nothing
        run = await self._read_from(metadata, first, last, bytes_max, failures)
        if run is None:
            # Auto-recovery may have moved the replicas since we read the metadata.
            fresh = await self._require_metadata()
            if fresh.segment_of(first).bookies != metadata.segment_of(first).bookies:
                self._metadata = fresh
                run = await self._read_from(fresh, first, last, bytes_max, failures)
        if run is None:
            raise worst_failure(failures)
        return run

    async def locate(self, first: int, last: int, bytes_max: int) -> list[StoredRun]:
        """Where entries from ``first`` on lie in files of this machine, at most up to ``last``;
        empty: only `read` tells. See ``EntryFiles``.
        """
        metadata = self.metadata
        if metadata.is_striped or last > self.last_confirmed:
            return []
        for bookie in metadata.segment_of(first).bookies:
            if (files := self._bookies.client(bookie).files) is not None:
                # A copy that lies behind the segment was left by a bookie that went and came back.
                end = metadata.segment_end(first)
                last = last if end is None else min(last, end - 1)
                return await files.locate(
                    self.ledger_id, first, last, bytes_max, creator=self.creator
                )
        return []

    def _take_ahead(self) -> EntryRun | None:
        """The entry that came with the news of it, if it is intact."""
        assert self._ahead is not None
        (entry_id, packet), self._ahead = self._ahead, None
        bodies = split_packets(self.ledger_id, entry_id, [packet])
        return EntryRun(self.ledger_id, entry_id, bodies) if bodies else None

    async def _read_from(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        bytes_max: int,
        failures: list[LedgerError],
    ) -> EntryRun | None:
        """A run from the segment of ``first``; None: ``failures`` says why."""
        bookies = metadata.segment_of(first).bookies
        segment_end = metadata.segment_end(first)
        end = last + 1 if segment_end is None else min(last + 1, segment_end)
        bytes_max = min(bytes_max, self._config.read_bytes_max)
        if self._last_resort is not None:
            return await self._read_striped(metadata, bookies, first, end, bytes_max, failures)
        if len(bookies) == 1:
            return await self._ask_for(bookies[0], first, end, bytes_max, failures)
        replicas = self._replicas
        start = self._start if replicas.config.sticky else first
        slots = replicas.order(
            bookies, quorum.write_set(start, len(bookies), metadata.write_quorum)
        )

        def ask(slot: int) -> Coroutine[Any, Any, EntryRun | None]:
            return self._ask_for(bookies[slot], first, end, bytes_max, failures)

        run, place = await self._first_good(bookies, slots, ask)
        if place > 0:
            self._start = slots[place]
        return run

    async def _first_good(
        self,
        bookies: Sequence[str],
        slots: Sequence[int],
        ask: Callable[[int], Coroutine[Any, Any, EntryRun | None]],
    ) -> tuple[EntryRun | None, int]:
        """A run from the first replica that has it, and its place among ``slots``."""
        race, replicas = SpeculativeRead(), self._replicas
        run = await first_good(slots, ask, replicas.config.speculation, race)
        if race.speculative or race.winner > 0:
            replicas.count(race, [bookies[slot] for slot in slots])
        return run, race.winner

    async def _ask_for(
        self,
        bookie: str,
        first: int,
        end: int,
        bytes_max: int,
        failures: list[LedgerError],
        stripe: Stripe = ALL_ENTRIES,
    ) -> EntryRun | None:
        """Intact entries from one bookie; None: ``failures`` has one more."""
        count = stripe.count(first, end)
        try:
            reply = await self._bookies.client(bookie).read_entries(
                ReadRequest(
                    *(self.ledger_id, first, count, bytes_max),
                    stripe=stripe,
                    creator=self.creator,
                )
            )
        except LedgerError as error:
            self._replicas.note_code(bookie, error.code)
            failures.append(error)
            return None
        except BookkeeperError as error:
            self._replicas.note_code(bookie, codes.UNAVAILABLE)
            failures.append(BookieUnavailableError(f"bookie {bookie}: {error}"))
            return None
        packets = reply.packets
        if reply.code != codes.OK or not packets:
            code = codes.UNAVAILABLE if reply.code == codes.OK else reply.code
            self._replicas.note_code(bookie, code)
            failures.append(
                error_for_code(code, f"ledger {self.ledger_id}: entry {first} on {bookie}")
            )
            return None
        if len(packets) > count:
            packets = packets[:count]
        bodies = split_packets(self.ledger_id, first, packets, stripe)
        if len(bodies) < len(packets):
            self._note_corrupt(stripe.nth(first, len(bodies)), bookie)
            if not bodies:
                failures.append(
                    EntryDigestError(
                        f"ledger {self.ledger_id}: entry {first} is corrupt on {bookie}"
                    )
                )
                return None
        return EntryRun(self.ledger_id, first, bodies)

    # ---- striped

    async def _read_striped(
        self,
        metadata: LedgerMetadata,
        bookies: Sequence[str],
        first: int,
        end: int,
        bytes_max: int,
        failures: list[LedgerError],
    ) -> EntryRun | None:
        """A run put together of stripes, for which bookies are asked at the same time."""
        assert self._last_resort is not None
        quorums = (metadata.ensemble_size, metadata.write_quorum)
        if self._entry_bytes:
            end = min(end, first + max(1, bytes_max // self._entry_bytes))
        order = partial(self._last_resort.order, bookies)
        parts = plan_parts(first, end, quorums, order, shift=self._start)
        # Why others than the first one failed doesn't matter: they end the run.
        of_parts = [failures, *(list[LedgerError]() for _ in parts[1:])]
        found = await asyncio.gather(
            *(
                self._read_part(quorums, bookies, part, end, bytes_max, of_part)
                for part, of_part in zip(parts, of_parts, strict=True)
            )
        )
        if found[0] is None:
            return None
        stripes = [
            (part.stripe, run.bodies)
            for part, run in zip(parts, found, strict=True)
            if run is not None
        ]
        bodies = put_together(stripes, range(first, end), quorums[0])
        together = EntryRun(self.ledger_id, first, bodies)
        self._cut(together, bytes_max)
        return together

    async def _read_part(
        self,
        quorums: tuple[int, int],
        bookies: Sequence[str],
        part: StripeRead,
        end: int,
        bytes_max: int,
        failures: list[LedgerError],
    ) -> EntryRun | None:
        """From the first replica that has it."""
        resort, stripe = self._last_resort, part.stripe
        assert resort is not None
        # What is above its share is dropped where another stripe ends before it, and what is below
        # ends the run: sizes differ, so it may be twice as large as is expected.
        expected = 2 * self._entry_bytes * stripe.count(part.first, end)
        share = min(bytes_max, max(1, bytes_max * stripe.width // stripe.cycle, expected))

        async def ask(slot: int) -> EntryRun | None:
            slot_end, bookie = part.end_at(slot, end, quorums), bookies[slot]
            run = await self._ask_for(bookie, part.first, slot_end, share, failures, stripe)
            if run is None:
                resort.note(bookie)
            return run

        return (await self._first_good(bookies, part.slots, ask))[0]

    def _cut(self, run: EntryRun, bytes_max: int) -> None:
        """Drop what is above ``bytes_max``, but never the first entry."""
        bodies = run.bodies
        size = sum(map(len, bodies)) + PACKET_HEADER_BYTES * len(bodies)
        self._entry_bytes = size // len(bodies)
        while size > bytes_max and len(bodies) > 1:
            size -= len(bodies.pop()) + PACKET_HEADER_BYTES

    def _note_corrupt(self, entry_id: int, bookie: str) -> None:
        self.corrupt_replicas += 1
        self._replicas.note_corrupt(self.ledger_id, entry_id, bookie)
        if self.on_corrupt is not None:
            self.on_corrupt(self.ledger_id, entry_id, bookie)


def worst_failure(failures: list[LedgerError]) -> LedgerError:
    """The error of a read that no replica could serve.

    "No such entry" only if all of them said so: one that couldn't answer may well have it.
    """
    for failure in failures:
        if not isinstance(failure, NoSuchEntryError | NoSuchLedgerError):
            return failure
    return NoSuchEntryError(str(failures[0]))
