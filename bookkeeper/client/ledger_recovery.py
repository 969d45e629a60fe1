"""Recovery of a ledger whose writer is gone: where does it end? Calls in, effects out; pure.

The ledger is IN_RECOVERY when this begins, so its writer can change nothing in the metadata. Then
(docs/spec/storage.md, "Recovery"):

1. Fence. Every bookie of the last segment is asked for its last-add-confirmed, and fences the
   ledger before it answers. Once every write set is covered, the writer can't confirm any more.
2. Read upwards from the highest LAC, each read fencing too: a "no" from an unfenced bookie could be
   followed by the very add that it denied. Found entries are written again, byte for byte, to their
   full write set. Qf explicit negatives end the ledger; an answer that proves nothing never counts.
3. Close at the last entry found, when all of it has its quorum.

Reads go by the metadata as it was when recovery began. Bookies that replace failed ones during step
2 form segments which stay private until the closing compare-and-set publishes them with the end:
the next recoverer, if this one dies, must not be sent to bookies that lack what was not yet copied.

A bookie that holds another ledger with the id (OTHER_CREATOR) took nothing of this one, and never
will: its "no" is for all entries. Qf of them in a write set mean that nothing there was confirmed,
whoever else has it, and that a copy could not be written again: so they end the ledger, too.

Why starting at too low a LAC is harmless: all entries read belong to the last segment, and one that
was confirmed can't collect Qf negatives. Too high can't happen: a LAC in an intact packet is true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.pending_adds import PendingAdds, SendAdds
from magnetar.bookkeeper.errors import LedgerError, LedgerRecoveryError, UnauthorizedAccessError
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    with_segment,
)
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, Buffer, decode_header, is_intact
from magnetar.bookkeeper.transport import AddRequest

PENDING_BYTES_MAX: Final = 16 * 1024 * 1024  # re-writes in flight; reading waits above


@dataclass(slots=True)
class ReadLac:
    """Fence ``bookie`` and ask what it knows of the end. Answer: ``on_lac``."""

    slot: int
    bookie: str


@dataclass(slots=True, eq=False)
class RecoveryRead:
    """Fencing read of at most ``count_max`` entries. Answer: ``on_read`` with this effect."""

    slot: int
    bookie: str
    first: int
    count_max: int


@dataclass(slots=True)
class ReplaceBookies:
    """Choose other bookies for failed ones, in memory only. Answer: ``on_replacements``."""

    ensemble: tuple[str, ...]
    failed: dict[int, str]  # slot -> bookie


@dataclass(slots=True)
class CloseRecoveredLedger:
    """Publish the end and the private segments with one compare-and-set. The last effect."""

    last_entry: int
    length: int
    segments: tuple[EnsembleSegment, ...]


@dataclass(slots=True)
class AbortRecovery:
    """The end can't be decided now; the ledger stays IN_RECOVERY. The last effect."""

    error: LedgerError


RecoveryEffect: TypeAlias = (
    ReadLac | RecoveryRead | ReplaceBookies | CloseRecoveredLedger | AbortRecovery
)


class RecoveryPhase(Enum):
    """Steps of a recovery, in order; LENGTH only when nothing above the LAC was found."""

    FENCE = "fence"
    READ = "read"
    REWRITE = "rewrite"
    LENGTH = "length"
    DONE = "done"


class LedgerRecovery:
    """One attempt to find the end of one ledger.

    Args:
        metadata: the snapshot to go by; read after the ledger became IN_RECOVERY.
        done: put into the requests of ``take_sends``; must lead to ``on_add_done``.
        read_entries_max: entries per recovery read of an unstriped ledger.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        done: Callable[[AddRequest, int], None],
        *,
        read_entries_max: int = 500,
    ) -> None:
        # A snapshot from before IN_RECOVERY could miss the writer's last ensemble change.
        assert metadata.state is LedgerState.IN_RECOVERY
        self.metadata = metadata
        self.phase = RecoveryPhase.FENCE
        self.base_lac = -1
        self._done = done
        self._read_entries_max = 1 if metadata.is_striped else read_entries_max
        self._quorums = (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self._absence_quorum = quorum.absence_quorum(metadata.write_quorum, metadata.ack_quorum)
        self._bookies = metadata.last_segment.bookies  # of the segment that is being read
        self._effects: list[RecoveryEffect] = []
        # FENCE
        self._fenced: set[int] = set()
        self._lac_answers: set[int] = set()
        self._foreign: set[int] = set()  # slots of the last segment that hold another ledger
        self._foreign_counted = 0  # of them when reading began
        self._lac = -1
        self._lengths: dict[int, int] = {}  # entry id -> length field of an intact packet
        # READ and LENGTH: answers about entry ``_reading``
        self._reading = -1
        self._candidates: tuple[int, ...] = ()
        self._asked: set[int] = set()
        self._negatives: set[int] = set()
        self._unknown: set[int] = set()
        self._preferred = -1  # slot that answered last
        self._read_paused = False
        # Re-writes
        self._adds: PendingAdds | None = None
        self._attempt = 0  # to find the end; answers to adds of an earlier one are ignored
        self._segments: tuple[EnsembleSegment, ...] = (metadata.last_segment,)
        self._in_change: dict[int, str] = {}
        self._differing: set[str] = set()  # bookies with another payload under an entry's id
        self._end = -1
        self._end_length = 0

    def start(self) -> None:
        """Fence all bookies of the last segment."""
        for slot, bookie in enumerate(self._bookies):
            self._effects.append(ReadLac(slot, bookie))

    def take_effects(self) -> list[RecoveryEffect]:
        effects, self._effects = self._effects, []
        return effects

    def take_sends(self) -> list[SendAdds]:
        if self._adds is None:
            return []
        sends, self._adds.sends = self._adds.sends, []
        return sends

    # 1: fence

    def on_lac(self, slot: int, code: int, last_packet: Buffer | None, explicit_lac: int) -> None:
        """A bookie answered the fencing LAC query; after coverage answers are ignored."""
        if code == codes.OTHER_CREATOR and self.phase is not RecoveryPhase.DONE:
            self._foreign.add(slot)
        if self.phase is not RecoveryPhase.FENCE or slot in self._lac_answers:
            return
        self._lac_answers.add(slot)
        if code == codes.UNAUTHORIZED:
            self._abort_unauthorized()
            return
        if code == codes.OK or codes.is_explicit_negative(code):
            # A corrupt last packet still counts here: the fence is set. Its LAC is left out.
            self._fenced.add(slot)
            self._lac = max(self._lac, explicit_lac)
            if last_packet is not None and self._is_ours(last_packet):
                header = decode_header(last_packet)
                self._lac = max(self._lac, header.lac)
                self._lengths[header.entry_id] = header.length
        if quorum.is_covered(self._fenced, *self._quorums):
            self._begin_reading()
        elif len(self._lac_answers) == len(self._bookies):
            self._abort(
                LedgerRecoveryError(
                    f"ledger {self.metadata.ledger_id}: only {len(self._fenced)} of "
                    f"{len(self._bookies)} bookies could be fenced: {self._bookies}"
                )
            )

    def _begin_reading(self) -> None:
        # The floor: new bookies of the last segment may hold nothing, but all before is confirmed.
        self.base_lac = max(self._lac, self.metadata.last_segment.first_entry - 1)
        self._foreign_counted = len(self._foreign)
        self._adds = PendingAdds(
            self.metadata.ledger_id,
            self._quorums,
            list(self._bookies),
            self.metadata.master_key,
            self._done,
            last_written=self.base_lac,
            recovery=True,
            creator=self.metadata.creator_token,
            generation=self._attempt,
        )
        self.phase = RecoveryPhase.READ
        self._ask(self.base_lac + 1)

    # 2: read

    def on_read(self, read: RecoveryRead, code: int, packets: Sequence[Buffer]) -> None:
        """A bookie answered a recovery read; answers about entries already decided are ignored."""
        if (
            self.phase not in (RecoveryPhase.READ, RecoveryPhase.LENGTH)
            or read.first != self._reading
        ):
            return
        slot = read.slot
        if self._bookies[slot] != read.bookie or slot in self._negatives | self._unknown:
            return
        found = self._intact_run(read.first, packets) if code == codes.OK else []
        if found:
            self._preferred = slot
            self._on_found(found)
            return
        if code == codes.OTHER_CREATOR and self.phase is RecoveryPhase.READ:
            self._foreign.add(slot)
        if codes.is_explicit_negative(code):
            self._negatives.add(slot)
        elif code == codes.UNAUTHORIZED:
            self._abort_unauthorized()
            return
        else:
            self._unknown.add(slot)  # corrupt bytes too: unknown is never "not found"
        self._decide_absence()

    def on_slow(self, first: int) -> None:
        """Entry ``first`` takes long: ask its other replicas too."""
        if self.phase in (RecoveryPhase.READ, RecoveryPhase.LENGTH) and first == self._reading:
            self._ask_all()

    def _ask(self, entry_id: int) -> None:
        """Ask one replica; the others only when it hasn't the entry, or is slow."""
        self._reading = entry_id
        size, write_quorum, _ = self._quorums
        slots = quorum.write_set(entry_id, size, write_quorum)
        if self._preferred in slots:  # its next entries are warm
            slots = (self._preferred, *(s for s in slots if s != self._preferred))
        self._candidates = slots
        self._asked, self._negatives, self._unknown = set(), set(), set()
        if self._foreign and self.phase is RecoveryPhase.READ:
            self._negatives = self._foreign.intersection(slots)
            self._asked = set(self._negatives)
            if len(self._negatives) >= self._absence_quorum:
                self._on_absent()
                return
        self._ask_slot(next(slot for slot in slots if slot not in self._asked))

    def _ask_slot(self, slot: int) -> None:
        self._asked.add(slot)
        count_max = 1 if self.phase is RecoveryPhase.LENGTH else self._read_entries_max
        self._effects.append(RecoveryRead(slot, self._bookies[slot], self._reading, count_max))

    def _ask_all(self) -> None:
        for slot in self._candidates:
            if slot not in self._asked:
                self._ask_slot(slot)

    def _decide_absence(self) -> None:
        answered = len(self._negatives) + len(self._unknown)
        if self.phase is RecoveryPhase.READ and len(self._negatives) >= self._absence_quorum:
            self._on_absent()
        elif answered == len(self._candidates):
            self._abort(
                LedgerRecoveryError(
                    f"ledger {self.metadata.ledger_id}: entry {self._reading} undecidable: "
                    f"{len(self._negatives)} of {self._absence_quorum} negatives, no answer from "
                    f"{[self._bookies[slot] for slot in sorted(self._unknown)]}"
                )
            )
        else:
            self._ask_all()

    def _on_found(self, packets: list[Buffer]) -> None:
        last = decode_header(packets[-1])
        if self.phase is RecoveryPhase.LENGTH:
            self._close(decode_header(packets[0]).length)
            return
        assert self._adds is not None
        self._end_length = last.length
        # Byte for byte what the writer made: all replicas stay identical, and the digest stays its.
        heads = [bytes(packet[:PACKET_HEADER_BYTES]) for packet in packets]
        bodies = [bytes(packet[PACKET_HEADER_BYTES:]) for packet in packets]
        self._adds.push(self._reading, heads, bodies, sum(map(len, bodies)), last.length)
        if not self._adds.can_reach_quorum():
            self._abort_rewrite()
            return
        self._reading += len(packets)
        if self._adds.pending_bytes > PENDING_BYTES_MAX:
            self._read_paused = True
        else:
            self._ask(self._reading)

    def _on_absent(self) -> None:
        self._end = self._reading - 1
        self.phase = RecoveryPhase.REWRITE
        self._finish_rewrites()

    def _intact_run(self, first: int, packets: Sequence[Buffer]) -> list[Buffer]:
        """The packets up to the first one that is corrupt or isn't the entry it should be."""
        run: list[Buffer] = []
        for entry_id, packet in enumerate(packets, first):
            if not self._is_ours(packet) or decode_header(packet).entry_id != entry_id:
                break
            run.append(packet)
        return run

    def _is_ours(self, packet: Buffer) -> bool:
        return is_intact(packet) and decode_header(packet).ledger_id == self.metadata.ledger_id

    # 2b: write again

    def on_add_done(self, request: SendAdds, code: int) -> None:
        """A bookie answered a re-write."""
        adds = self._adds
        if adds is None or self.phase is RecoveryPhase.DONE:
            return
        if code == codes.OTHER_CREATOR and request.bookie in self.metadata.last_segment.bookies:
            self._foreign.add(self.metadata.last_segment.bookies.index(request.bookie))
        if code == codes.OK:
            if adds.on_stored(request):
                self._on_progress()
        elif code == codes.UNAUTHORIZED and adds.is_current(request):
            self._abort_unauthorized()
        elif (
            adds.is_current(request)
            and request.slot not in adds.failed
            and (code == codes.ENTRY_DIFFERS or not adds.is_satisfied(request.batch))
        ):
            if code == codes.ENTRY_DIFFERS:
                self._differing.add(request.bookie)
            adds.fail(request.slot)
            if not self._in_change:
                self._replace_failed()

    def on_replacements(self, replacements: dict[int, tuple[str, str]]) -> None:
        """Answer to ``ReplaceBookies``: slot -> (failed, new), for as many as could be replaced."""
        adds = self._adds
        if adds is None or self.phase is RecoveryPhase.DONE:
            return
        handled, self._in_change = self._in_change, {}
        bookies = list(adds.bookies)
        for slot, (failed, newcomer) in replacements.items():
            assert handled[slot] == failed, "an answer to another question"
            bookies[slot] = newcomer
        if replacements:
            segment = EnsembleSegment(adds.last_written + 1, tuple(bookies))
            self._segments = with_segment(self._segments, segment)
            adds.replace(bookies)
        kept = self._differing.intersection(
            bookie for slot, bookie in handled.items() if slot not in replacements
        )
        if kept:
            # Not given up like others: it would stay a member, and readers would take its entry.
            self._abort(
                LedgerRecoveryError(
                    f"ledger {self.metadata.ledger_id}: {sorted(kept)} hold other entries under "
                    "its ids, and nobody can replace them: two ledgers share the id"
                )
            )
            return
        # Nobody to replace a bookie with: the rest will do if it makes a quorum (a cluster of just
        # E bookies with one down must be able to recover its ledgers).
        if not adds.give_up([slot for slot in handled if slot not in replacements]):
            self._abort_rewrite()
        elif adds.failed:
            self._replace_failed()
        elif adds.complete():
            self._on_progress()

    def _replace_failed(self) -> None:
        assert self._adds is not None
        self._in_change = dict(self._adds.failed)
        self._effects.append(ReplaceBookies(tuple(self._adds.bookies), dict(self._in_change)))

    def _on_progress(self) -> None:
        assert self._adds is not None
        if self.phase is RecoveryPhase.REWRITE:
            self._finish_rewrites()
        elif self._read_paused and self._adds.pending_bytes <= PENDING_BYTES_MAX:
            self._read_paused = False
            self._ask(self._reading)

    def _abort_rewrite(self) -> None:
        if len(self._foreign) > self._foreign_counted:
            # What can't be written again may be what was never confirmed: look once more.
            assert self._adds is not None
            self._adds.drop_pending()
            self._attempt += 1
            self._segments, self._in_change = (self.metadata.last_segment,), {}
            self._effects = [e for e in self._effects if not isinstance(e, ReplaceBookies)]
            self._read_paused = False
            self._begin_reading()
            return
        self._abort(
            LedgerRecoveryError(
                f"ledger {self.metadata.ledger_id}: too few bookies to write its end again"
            )
        )

    # 3: close

    def _finish_rewrites(self) -> None:
        assert self._adds is not None
        if self._adds.last_written < self._end:
            return
        if self._end > self.base_lac:
            self._close(self._end_length)
        elif self._end == -1:
            self._close(0)
        elif self._end in self._lengths:
            self._close(self._lengths[self._end])
        else:
            # Nothing above the LAC: the length is that of the last entry itself. The packet that
            # supplied the LAC won't do: it lies above the end, and so does its length.
            self.phase = RecoveryPhase.LENGTH
            self._bookies = self.metadata.segment_of(self._end).bookies
            self._preferred = -1
            self._ask(self._end)

    def _close(self, length: int) -> None:
        self.phase = RecoveryPhase.DONE
        private = self._segments[1:]
        if self._segments[0] != self.metadata.last_segment:
            private = self._segments  # replaced in place: nothing of it was confirmed before
        self._effects.append(CloseRecoveredLedger(self._end, length, private))

    def _abort_unauthorized(self) -> None:
        ledger_id = self.metadata.ledger_id
        self._abort(UnauthorizedAccessError(f"ledger {ledger_id}: a bookie knows another password"))

    def _abort(self, error: LedgerError) -> None:
        self.phase = RecoveryPhase.DONE
        if self._adds is not None:
            self._adds.drop_pending()
        self._effects.append(AbortRecovery(error))
