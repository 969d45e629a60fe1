"""What a dispatcher sees of a cursor whose entries may wait for the end of a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.broker.dispatch.interfaces import CursorView
from magnetar.broker.transaction.pending_ack_log import PendingAckLog
from magnetar.managed_ledger.position import Position


@dataclass(slots=True, eq=False)
class PendingAckView:
    """What is acknowledged in an open transaction counts as acknowledged here; see `CursorView`."""

    _cursor: CursorView
    _acks: PendingAckLog

    @property
    def state(self) -> "PendingAckView":
        """Itself: what dispatch asks of a cursor's state."""
        return self

    def acked_in(self, ledger_id: int, first: int, count: int) -> list[int] | None:
        acked = self._cursor.state.acked_in(ledger_id, first, count)
        withheld = self._acks.core.withheld_in(ledger_id, first, count)
        if not withheld:
            return acked
        return withheld if acked is None else sorted({*acked, *withheld})

    def batch_ack_set(self, position: Position) -> list[int] | None:
        return self._acks.core.batch_ack_set(position)

    def first_unacked(self) -> Position:
        return self._cursor.state.first_unacked()

    def ack(self, positions: Sequence[Position]) -> None:
        self._cursor.ack(positions)
