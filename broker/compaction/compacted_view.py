"""What is read with ``readCompacted``: the compacted ledger, and behind it the log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.dispatch.interfaces import ReadableLog
from magnetar.broker.errors import STORAGE_ERRORS
from magnetar.managed_ledger.cursor.ack_state import AckState
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.entry_cache import cut_to_bytes
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import EARLIEST, Position

_AHEAD_BYTES: Final = 1024 * 1024
"""Read of the compacted ledger at a time."""


@dataclass(slots=True, eq=False)
class CompactedLog:
    """Source of entries, see `EntrySource`.

    Its answers are runs of entries that survived. A position that none of them has means the next.
    """

    log: ReadableLog
    _compacted: Callable[[], CompactedLedger | None]
    _of: CompactedLedger | None = field(default=None, init=False)
    _ahead: list[EntryBatch] = field(default_factory=list, init=False)  # read and not asked for yet
    _ahead_from: Position = field(default=EARLIEST, init=False)
    _following: int = field(default=0, init=False)  # of the compacted ledger, behind ``_ahead``

    @property
    def last_confirmed(self) -> Position:
        return self.log.last_confirmed

    @property
    def offsets(self) -> LedgerOffsets:
        """Of the log: the compacted ledger may begin before it."""
        return self.log.offsets

    def _current(self, position: Position) -> CompactedLedger | None:
        """The compacted ledger if the position is to be read there."""
        compacted = self._compacted()
        if compacted is None or position > compacted.horizon:
            return None
        if compacted is not self._of:
            self._of, self._ahead, self._ahead_from, self._following = compacted, [], EARLIEST, -1
        return compacted

    def read_nowait(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None:
        if self._current(position) is None:
            return self.log.read_nowait(position, entries_max, bytes_max)
        return self._take(position, entries_max, bytes_max)

    def _take(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """Of what is read ahead: the first run at or after a position."""
        if position < self._ahead_from:
            return None
        ahead = self._ahead
        while ahead and (ahead[0].ledger_id, ahead[0].last) < position:
            del ahead[0]
        if not ahead:
            return None
        self._ahead_from = position
        run = ahead[0]
        if (run.ledger_id, run.first) < position:
            run = run.from_entry(position[1])
        heads, bodies = run.heads[:entries_max], run.bodies[:entries_max]
        cut_to_bytes(heads, bodies, bytes_max)
        return EntryBatch(run.ledger_id, run.first, heads, bodies)

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """See `EntrySource`.

        Raises:
            LedgerError, MetadataError, ManagedLedgerClosedError.
        """
        while (compacted := self._current(position)) is not None:
            if (batch := self._take(position, entries_max, bytes_max)) is not None:
                return batch
            follows = self._following >= 0 and position >= self._ahead_from
            try:
                entry = self._following if follows else await compacted.find(position)
                run = await compacted.read(entry, _AHEAD_BYTES)
            except STORAGE_ERRORS:
                if self._current(position) is compacted:
                    raise
                continue  # another compaction has ended meanwhile, and has deleted this ledger
            if self._current(position) is not compacted:
                continue
            self._ahead, self._ahead_from, self._following = run.batches, position, run.following
            if not run.batches:
                position = self.log.offsets.next_position(compacted.horizon)
                break
        return await self.log.read(position, entries_max, bytes_max)


@dataclass(slots=True, eq=False)
class CompactedView(CompactedLog):
    """The same with the acknowledgments of one dispatcher, see `CursorView`."""

    _cursor: Cursor
    # Where the subscription was asked to begin, and the cursor's mark-delete then.
    _start: tuple[Position, Position] | None
    # The mark-delete after the last acknowledgment: the cursor's may be where the log was trimmed.
    _marked: Callable[[], Position]

    @property
    def state(self) -> "CompactedView":
        """Itself: what dispatch asks of a cursor's state."""
        return self

    def first_unacked(self) -> Position:
        """The first position to read; perhaps below all that the log has."""
        cursor, marked = self._cursor, self._marked()
        position = cursor.state.first_unacked()
        compacted = self._compacted()
        if self._start is not None and marked == self._start[1]:
            start = self._start[0]  # nothing is acknowledged since
        elif self._start is None and cursor.mark_delete < self.log.offsets.first_position():
            start = EARLIEST  # of an earlier load: nothing was acknowledged
        elif marked < cursor.mark_delete:
            start = (marked[0], marked[1] + 1)
        else:
            return position
        if compacted is None or start > compacted.horizon:
            return position
        return min(start, position)

    def acked_in(self, ledger_id: int, first: int, count: int) -> list[int] | None:
        state: AckState = self._cursor.state
        if self.log.offsets.entries(ledger_id) is None:
            return None  # trimmed: only the compacted ledger has it
        return state.acked_in(ledger_id, first, count)

    def batch_ack_set(self, position: Position) -> list[int] | None:
        return self._cursor.state.batch_ack_set(position)

    def ack(self, positions: Sequence[Position]) -> None:
        self._cursor.ack(positions)
