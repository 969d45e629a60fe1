"""Quorum writer of one open ledger: calls in, effects out; no clock, socket, task or chance.

``append`` packs a batch and sends it; answers of bookies move a watermark. A bookie that fails is
replaced by an ensemble change, which the shell publishes by compare-and-set. Rules:
docs/spec/storage.md, "Adds"; the queue and its race rules are in ``pending_adds.py``.

When a bookie's failure is acted upon (2.6): before the batch has its quorum, at once; after, the
failure is only remembered and handled by the next append, before that append is sent.

A writer of deferred adds confirms nothing by itself: ``force`` does (``force_rounds.py``). Its
bookies can't be replaced, as what they hold in memory is nowhere else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import WriteConfig
from magnetar.bookkeeper.client.force_rounds import ForceLedger, ForceRounds
from magnetar.bookkeeper.client.pending_adds import PendingAdds, SendAdds, SpreadOf
from magnetar.bookkeeper.errors import (
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    WriteFailedError,
    error_for_code,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.packet import encode_head, encode_heads
from magnetar.bookkeeper.transport import AddRequest

_DEFAULTS: Final = WriteConfig()
# Another bookie would answer the same, so replacing this one can't help.
_FATAL: Final = {
    *(codes.FENCED, codes.UNAUTHORIZED, codes.BAD_REQUEST),
    *(codes.OTHER_CREATOR, codes.ENTRY_DIFFERS),  # two ledgers share the id: another id is needed
}
_NONE: Final[frozenset[Any]] = frozenset()  # a new empty set is 216 bytes in each idle writer


@dataclass(slots=True)
class AddsConfirmed:
    """Every entry up to ``upto`` is durable on an ack quorum. No answer."""

    upto: int


@dataclass(slots=True)
class ChangeEnsemble:
    """Publish a segment at ``first_entry`` without the failed bookies.

    Answer: ``on_ensemble_changed`` with the ensemble that the store now names, or ``on_fatal``.
    """

    first_entry: int
    failed: dict[int, str]  # slot -> bookie


@dataclass(slots=True)
class WriterFailed:
    """The writer stopped for good, once; what is above the last confirmed entry is undecided."""

    error: LedgerError


@dataclass(slots=True)
class DeferredAddsWritten:
    """Deferred adds up to ``upto`` are on an ack quorum, in memory at least. No answer."""

    upto: int


WriterEffect: TypeAlias = (
    AddsConfirmed | ChangeEnsemble | WriterFailed | DeferredAddsWritten | ForceLedger
)


class LedgerWriter(PendingAdds):
    """Appends to one ledger and confirms in order.

    Invariants: an entry is confirmed after every lower one, and once Qa bookies of its write set
    *in the published ensemble* hold it; nothing is confirmed after ``error`` is set.

    Attributes:
        next_entry: id of the next appended entry.
        length: payload bytes appended so far.
        error: why the writer stopped; None while it can append.
        lac_carried: the last confirmed entry as the last append told it to the bookies.
    """

    __slots__ = (
        "_changes",
        "_config",
        "_delayed",
        "_effects",
        "_forces",
        "_in_change",
        "_is_plain",
        "_tolerated",
        "error",
        "lac_carried",
        "length",
        "next_entry",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        done: Callable[[AddRequest, int], None],
        *,
        spread_of: SpreadOf | None = None,
        config: WriteConfig = _DEFAULTS,
        deferred_sync: bool = False,
    ) -> None:
        assert len(metadata.segments) == 1, "a ledger is written only by its creator"
        super().__init__(
            metadata.ledger_id,
            (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
            list(metadata.last_segment.bookies),
            metadata.master_key,
            done,
            deferred_sync=deferred_sync,
            spread_of=spread_of,
            creator=metadata.creator_token,
        )
        self.next_entry = 0
        self.length = 0
        self.error: LedgerError | None = None
        self.lac_carried = -1
        self._config = config
        self._forces = ForceRounds() if deferred_sync else None
        self._is_plain = not deferred_sync and not config.delay_ensemble_change
        self._delayed: frozenset[int] = _NONE  # slots that failed after the quorum of their batch
        self._in_change: dict[int, str] = {}  # failures the running change knows
        self._changes = 0
        self._tolerated: dict[int, int] = {}  # batch -> slots whose failure it can do without
        self._effects: list[WriterEffect] = []

    @property
    def last_confirmed(self) -> int:
        """Durable on its quorum, with everything below it: of deferred adds less than written."""
        return self.last_written if self._forces is None else self._forces.last_forced

    @property
    def confirmed_length(self) -> int:
        return self.written_length if self._forces is None else self._forces.forced_length

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        """Accept a batch; its sends leave with the next ``take_sends``.

        Args:
            heads, bodies: two parallel, non-empty lists; the writer's property afterwards.

        Returns:
            The first entry's id; the others follow without gaps.

        Raises:
            LedgerError: the writer has failed or is closed; nothing was accepted.
        """
        if self.error is not None:
            raise self.error
        assert heads, "a batch without entries"
        if self._delayed and not self.frozen:
            for slot in self._delayed:
                self.fail(slot)
            self._delayed = _NONE
            self._change_ensemble()
            if self.error is not None:
                raise self.error
        lac = self.lac_carried = self.last_confirmed
        first = self.next_entry
        before = self.length
        if len(heads) == 1:  # one entry an append is common; the loop's set-up costs as much again
            head, body = heads[0], bodies[0]
            self.length = before + len(head) + len(body)
            encoded = [encode_head(self.ledger_id, first, lac, self.length, head, body)]
        else:
            encoded, self.length = encode_heads(self.ledger_id, first, lac, before, heads, bodies)
        self.next_entry = first + len(encoded)
        batch = self.push(first, encoded, bodies, self.length - before, self.length)
        if self._forces is not None:
            self._forces.on_pushed(batch)
        return first

    @property
    def is_forcing(self) -> bool:
        return self._forces is not None and self._forces.is_running

    def begin_force(self) -> bool:
        """Ask the bookies to make durable what has its quorum; False: nothing waits for that.

        Confirmed follows, or the writer fails. REQUIRES: deferred adds, no force under way.
        """
        assert self._forces is not None
        if self.error is not None:
            return False
        sends = self._forces.begin(self)
        self._effects += sends
        return bool(sends)

    def on_forced(self, sent: ForceLedger, code: int) -> None:
        """A bookie answered a force; answers to earlier ones are ignored."""
        if self.error is not None or self._forces is None:
            return
        moved = self._forces.on_answer(sent, code == codes.OK, self)
        if moved:
            self._effects.append(AddsConfirmed(self._forces.last_forced))
        elif moved is False:
            self.on_fatal(
                WriteFailedError(
                    f"ledger {self.ledger_id}: too few bookies could make durable what they had "
                    f"acknowledged, the last one said {codes.code_name(code)}"
                )
            )

    def on_add_done(self, request: SendAdds, code: int) -> None:
        """A bookie answered; answers of replaced bookies and of a stopped writer are ignored."""
        if self.error is not None:
            return
        if code == codes.OK:
            if self.on_stored(request):
                if self._is_plain:
                    self._effects.append(AddsConfirmed(self.last_written))
                else:
                    self._on_written()
        elif code == codes.FENCED:
            # From a replaced bookie too: the client that fenced it has taken the ledger from us.
            self.on_fatal(LedgerFencedError(f"ledger {self.ledger_id}: fenced by {request.bookie}"))
        elif self.is_current(request):
            self._on_failure(request, code)

    def on_ensemble_changed(self, bookies: tuple[str, ...]) -> None:
        """The store names ``bookies`` for the segment at last confirmed + 1."""
        if self.error is not None:
            return
        handled, self._in_change = self._in_change, {}
        # A failed bookie that stays (partial replacement) gets its batches once more, or a batch
        # that needs its ack would wait for ever; if it fails again, a new change decides.
        keep = [slot for slot, bookie in handled.items() if bookies[slot] == bookie]
        replaced = {slot for slot, bookie in enumerate(self.bookies) if bookies[slot] != bookie}
        self.replace(bookies, retry=keep)
        self._delayed = (self._delayed - replaced) or _NONE
        if self.failed:
            self._change_ensemble()
        elif self.complete():
            self._on_written()

    def _on_written(self) -> None:
        upto = self.last_written
        if self._tolerated:
            self._tolerated = {first: s for first, s in self._tolerated.items() if first > upto}
        self._effects.append(
            AddsConfirmed(upto) if self._forces is None else DeferredAddsWritten(upto)
        )

    def on_fatal(self, error: LedgerError) -> None:
        """Stop for good: what is pending stays undecided until the ledger is closed."""
        if self.error is not None:
            return
        self.error = error
        self.drop_pending()
        self._effects.append(WriterFailed(error))

    def close(self) -> tuple[int, int]:
        """Stop appending; pending entries fail.

        Returns:
            The last confirmed entry and the length up to it: what the ledger is to be closed at.

        Raises:
            LedgerError: the writer had failed as fenced; the ledger is another client's to close.
        """
        if isinstance(self.error, LedgerFencedError):
            raise self.error
        if self.error is None:
            self.error = LedgerClosedError(f"ledger {self.ledger_id} was closed by its writer")
            if self.drop_pending():
                self._effects.append(WriterFailed(self.error))
        return self.last_confirmed, self.confirmed_length

    @property
    def has_effects(self) -> bool:
        """True if ``take_effects`` or ``take_sends`` has something to give."""
        return bool(self._effects or self.sends)

    def take_sends(self) -> list[SendAdds]:
        sends, self.sends = self.sends, []
        return sends

    def take_effects(self) -> list[WriterEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _on_failure(self, request: SendAdds, code: int) -> None:
        if code in _FATAL:
            self.on_fatal(
                error_for_code(code, f"ledger {self.ledger_id}: refused by {request.bookie}")
            )
            return
        if self._forces is not None:
            # What it acknowledged and hasn't on disk can't be sent again: it is gone from here.
            self.on_fatal(
                WriteFailedError(
                    f"ledger {self.ledger_id}: {request.bookie} failed "
                    f"({codes.code_name(code)}), and deferred adds have no other"
                )
            )
            return
        if request.slot in self.failed:
            return  # reported before
        tolerates = self._config.delay_ensemble_change and code != codes.READ_ONLY
        if self.is_satisfied(request.batch):
            # With tolerance the next batch decides for itself if it can do without the bookie.
            if not tolerates:
                self._delayed |= {request.slot}
            return
        slots = {request.slot}
        if tolerates:
            tolerated = self._tolerated.get(request.batch.first, 0) | 1 << request.slot
            self._tolerated[request.batch.first] = tolerated
            if self.is_satisfied(request.batch, ~tolerated & ((1 << self.ensemble_size) - 1)):
                return
            slots |= {slot for slot in range(self.ensemble_size) if tolerated >> slot & 1}
        for slot in slots:
            self.fail(slot)
        self._delayed = (self._delayed - slots) or _NONE
        if not self._in_change:
            self._change_ensemble()

    def _change_ensemble(self) -> None:
        self._changes += 1
        if self._changes > self._config.ensemble_changes_max:
            failed = sorted(self.failed.values())
            self.on_fatal(
                WriteFailedError(
                    f"ledger {self.ledger_id}: {failed} failed after "
                    f"{self._config.ensemble_changes_max} ensemble changes, no more are allowed"
                )
            )
            return
        self._in_change = dict(self.failed)
        self._effects.append(ChangeEnsemble(self.last_written + 1, dict(self._in_change)))
