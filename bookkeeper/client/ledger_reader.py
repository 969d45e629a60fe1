"""Reads a ledger up to its last confirmed entry, from whichever replica gives intact bytes.

A run of entries is one request, one reply and two lists; per entry there is only a head, a body and
their digest. Rules: storage.md 4.1, 4.2, 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from bookkeeper import codes
from bookkeeper.client import quorum
from bookkeeper.client.config import ClientConfig
from bookkeeper.client.ledger_store import LedgerStore
from bookkeeper.client.pool import BookiePool
from bookkeeper.errors import (
    BookieUnavailableError,
    BookkeeperError,
    EntryDigestError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    error_for_code,
)
from bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bookkeeper.packet import (
    PACKET_HEADER,
    PACKET_HEADER_BYTES,
    Buffer,
    decode_header,
    is_intact,
)

#: From this packet size on a body stays a view of the buffer it was read into. Smaller ones are
#: copied: a view costs as much as the copy, and would pin the whole read buffer.
VIEW_BYTES_MIN: Final = 4096
_DIGESTED_BYTES: Final = PACKET_HEADER_BYTES - 4


@dataclass(slots=True)
class EntryRun:
    """Consecutive entries of one ledger, from ``first`` on, as two parallel lists."""

    ledger_id: int
    first: int
    heads: list[bytes]
    bodies: list[bytes | memoryview]


def split_packets(
    ledger_id: int, first: int, packets: Sequence[Buffer], head_bytes: int
) -> tuple[list[bytes], list[bytes | memoryview]]:
    """Heads and bodies of the packets up to the first that is corrupt or of another entry.

    Both lists are empty when that is the first packet.
    """
    heads: list[bytes] = []
    bodies: list[bytes | memoryview] = []
    unpack = PACKET_HEADER.unpack_from
    body_at = PACKET_HEADER_BYTES + head_bytes
    body: bytes | memoryview
    for entry_id, packet in enumerate(packets, first):
        size = len(packet)
        if size < body_at:
            break
        found_ledger, found_entry, _, _, digest = unpack(packet)
        head = bytes(packet[PACKET_HEADER_BYTES:body_at])
        # bytes(...) of a slice of bytes is the slice itself; of a view it is the one copy.
        body = bytes(packet[body_at:]) if size < VIEW_BYTES_MIN else memoryview(packet)[body_at:]
        if (
            crc32c(body, crc32c(head, crc32c(packet[:_DIGESTED_BYTES]))) != digest
            or found_entry != entry_id
            or found_ledger != ledger_id
        ):
            break
        heads.append(head)
        bodies.append(body)
    return heads, bodies


class LedgerReader:
    """Reads one ledger; never shows an entry above ``last_confirmed``.

    Attributes:
        corrupt_replicas: digest mismatches met so far.
        on_corrupt: told (ledger id, entry id, bookie id) of each, so that it can be repaired.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        last_confirmed: int,
        ledgers: LedgerStore,
        bookies: BookiePool,
        config: ClientConfig,
    ) -> None:
        self.ledger_id = metadata.ledger_id
        self.corrupt_replicas = 0
        self.on_corrupt: Callable[[int, int, str], None] | None = None
        self._metadata = metadata
        self._last_confirmed = last_confirmed
        self._ledgers = ledgers
        self._bookies = bookies
        self._config = config
        # Unstriped ledgers stay with one bookie, whose read-ahead is warm, until it fails; the
        # first choice differs from ledger to ledger.
        self._sticky = metadata.ledger_id % metadata.ensemble_size

    @property
    def last_confirmed(self) -> int:
        """Highest entry that may be read; -1: none. Never decreases."""
        return self._last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int, bytes_max: int, head_bytes: int) -> EntryRun:
        """Entries from ``first`` on: at least one, at most up to ``last``.

        Args:
            last: inclusive.
            bytes_max: packets beyond the first one stop before this many bytes.
            head_bytes: where an entry's payload is cut into head and body.

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
        metadata = self.metadata
        failures: list[LedgerError] = []
        run = await self._read_from(metadata, first, last, bytes_max, head_bytes, failures)
        if run is None:
            # Auto-recovery may have moved the replicas since we read the metadata.
            fresh = (await self._ledgers.require(self.ledger_id)).metadata
            if fresh.segment_of(first).bookies != metadata.segment_of(first).bookies:
                self._metadata = fresh
                run = await self._read_from(fresh, first, last, bytes_max, head_bytes, failures)
        if run is None:
            raise _worst(failures)
        return run

    async def refresh(self) -> None:
        """Learn how far an open ledger has grown, and whether it was closed.

        Raises:
            BookieUnavailableError: no bookie of the last segment answered.
            NoSuchLedgerError: the ledger was deleted.
        """
        metadata = (await self._ledgers.require(self.ledger_id)).metadata
        self._metadata = metadata
        if metadata.state is LedgerState.CLOSED:
            self._last_confirmed = metadata.last_entry
            return
        self._raise_bound(metadata.last_segment.first_entry - 1)
        answered = False
        for bookie in metadata.last_segment.bookies:
            try:
                reply = await self._bookies.client(bookie).read_lac(self.ledger_id, fence=False)
            except BookkeeperError:
                continue
            if reply.code != codes.OK and not codes.is_explicit_negative(reply.code):
                continue
            answered = True
            self._raise_bound(reply.explicit_lac)
            packet = reply.last_packet
            if packet is not None and is_intact(packet):
                header = decode_header(packet)
                if header.ledger_id == self.ledger_id:
                    self._raise_bound(header.lac)
        if not answered:
            raise BookieUnavailableError(
                f"ledger {self.ledger_id}: no answer from {metadata.last_segment.bookies}"
            )

    def _raise_bound(self, lac: int) -> None:
        # A LAC is a lower bound whatever its source, so the highest one seen is true.
        if lac > self._last_confirmed and self._metadata.state is not LedgerState.CLOSED:
            self._last_confirmed = lac

    async def _read_from(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        bytes_max: int,
        head_bytes: int,
        failures: list[LedgerError],
    ) -> EntryRun | None:
        """Try the replicas of ``first`` one after the other; None: ``failures`` says why."""
        segment = metadata.segment_of(first)
        segment_end = metadata.segment_end(first)
        end = last + 1 if segment_end is None else min(last + 1, segment_end)
        bytes_max = min(bytes_max, self._config.read_bytes_max)
        for slot in self._candidates(metadata, first):
            packets = await self._ask(segment, slot, first, end, bytes_max, failures)
            heads, bodies = split_packets(self.ledger_id, first, packets, head_bytes)
            if len(heads) < len(packets):
                self._note_corrupt(first + len(heads), segment.bookies[slot])
                if not heads:
                    failures.append(
                        EntryDigestError(
                            f"ledger {self.ledger_id}: entry {first} is corrupt on "
                            f"{segment.bookies[slot]}"
                        )
                    )
            if heads:
                return EntryRun(self.ledger_id, first, heads, bodies)
            self._sticky = (slot + 1) % metadata.ensemble_size
        return None

    def _candidates(self, metadata: LedgerMetadata, first: int) -> Sequence[int]:
        start = first if metadata.is_striped else self._sticky
        return quorum.write_set(start, metadata.ensemble_size, metadata.write_quorum)

    async def _ask(
        self,
        segment: Segment,
        slot: int,
        first: int,
        end: int,
        bytes_max: int,
        failures: list[LedgerError],
    ) -> Sequence[Buffer]:
        bookie = segment.bookies[slot]
        try:
            reply = await self._bookies.client(bookie).read_entries(
                self.ledger_id, first, end - first, bytes_max
            )
        except LedgerError as error:
            failures.append(error)
            return ()
        except BookkeeperError as error:
            failures.append(BookieUnavailableError(f"bookie {bookie}: {error}"))
            return ()
        if reply.code != codes.OK or not reply.packets:
            code = codes.UNAVAILABLE if reply.code == codes.OK else reply.code
            failures.append(
                error_for_code(code, f"ledger {self.ledger_id}: entry {first} on {bookie}")
            )
            return ()
        return reply.packets[: end - first]

    def _note_corrupt(self, entry_id: int, bookie: str) -> None:
        self.corrupt_replicas += 1
        if self.on_corrupt is not None:
            self.on_corrupt(self.ledger_id, entry_id, bookie)


def _worst(failures: list[LedgerError]) -> LedgerError:
    """The error of a read that no replica could serve.

    "No such entry" only if all of them said so: one that couldn't answer may well have it.
    """
    for failure in failures:
        if not isinstance(failure, NoSuchEntryError | NoSuchLedgerError):
            return failure
    return NoSuchEntryError(str(failures[0]))
