"""What transactions have to do with a message that a subscription doesn't deliver."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magnetar.broker.dispatch.explanation import STALL_MS, Explanation, Reason, duration
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.markers import transaction_of
from magnetar.broker.transaction.pending_acks import PendingAcks
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position, format_position

_UNKNOWN_END = "its client or its time-out does that"


@dataclass(frozen=True, slots=True)
class TransactionExplainer:
    """Asks the cores of a topic and of a subscription.

    Attributes:
        times_of: when a transaction began and when it times out, in ms; None: its coordinator
            isn't open at this broker, or has ended it.
        buffer: of the topic; None: it never had a transaction.
        acks: of the subscription; None: the same.
    """

    now_ms: int
    times_of: Callable[[TransactionId], tuple[int, int] | None]
    buffer: TopicTransactionBuffer | None
    acks: PendingAcks | None

    def of_message(self, metadata: MessageMetadata) -> Explanation | None:
        """Of a message of a transaction; None: that was committed, or isn't known any more."""
        if self.buffer is None or not metadata.HasField("txnid_least_bits"):
            return None
        transaction = transaction_of(metadata)
        if transaction in self.buffer.open:
            return self._open(
                transaction,
                Reason.IN_OPEN_TRANSACTION,
                f"It is a message of transaction {transaction}, which",
                "It is delivered once the transaction is committed, and never if it is aborted",
            )
        if self.buffer.is_aborted(transaction):
            return Explanation(
                Reason.ABORTED,
                f"It is a message of transaction {transaction}, which was aborted.",
                "It is never delivered.",
                details={"transaction": str(transaction)},
            )
        return None

    def behind(self, position: Position, offsets: LedgerOffsets) -> Explanation | None:
        """Of an entry behind the first message of an open transaction; else None."""
        if self.buffer is None or not self.buffer.open or position <= self.buffer.readable:
            return None
        transaction, (ledger_id, entry_id) = next(iter(self.buffer.open.items()))
        began = offsets.first_at_or_after((ledger_id, entry_id + 1)) or position
        return self._open(
            transaction,
            Reason.BEHIND_OPEN_TRANSACTION,
            f"Delivery ends at {format_position(began)}, the first message of transaction "
            f"{transaction}, which",
            "Delivery goes on when the transaction ends",
            firstMessageId=format_position(began),
        )

    def acknowledged(self, position: Position, batch_index: int = -1) -> Explanation | None:
        """Of an entry, or a message of a batch, that an open transaction has acknowledged."""
        if self.acks is None:
            return None
        if (transaction := self.acks.acknowledged_by(position, batch_index)) is None:
            return None
        return self._open(
            transaction,
            Reason.PENDING_ACK,
            f"It is acknowledged in transaction {transaction}, which",
            "It is acknowledged when the transaction is committed, and delivered again if it is "
            "aborted",
        )

    def _open(
        self, transaction: TransactionId, reason: Reason, text: str, next_: str, **details: Any
    ) -> Explanation:
        since_ms, until_ms, ends = None, None, _UNKNOWN_END
        if (times := self.times_of(transaction)) is not None:
            since_ms, until_ms = times
            left_ms = until_ms - self.now_ms
            ends = (
                f"at the latest it times out in {duration(left_ms)}"
                if left_ms > 0
                else f"it should have timed out {duration(-left_ms)} ago"
            )
        elif self.buffer is not None:
            since_ms = self.buffer.since_ms(transaction)
        if until_ms is not None:
            is_overdue = self.now_ms >= until_ms
        elif since_ms is not None:
            is_overdue = self.now_ms - since_ms >= STALL_MS
        else:  # an earlier load of the topic saw it; nobody knows how long it has acknowledged
            is_overdue = self.buffer is not None and transaction in self.buffer.open
        if is_overdue:
            details["overdue"] = True
        waits = f"has been open for {duration(self.now_ms - since_ms)}" if since_ms else "is open"
        return Explanation(
            reason,
            f"{text} {waits}.",
            f"{next_}: {ends}.",
            since_ms=since_ms,
            until_ms=until_ms,
            details={"transaction": str(transaction), **details},
        )
