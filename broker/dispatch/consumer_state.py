"""What a dispatcher knows of a consumer."""

from __future__ import annotations

from magnetar.broker.dispatch.position_set import PositionSet


class ConsumerState:
    """Permits and pending entries of one consumer; written only by the dispatcher it belongs to."""

    __slots__ = (
        "blocked",
        "drained",
        "epoch",
        "name",
        "pending",
        "permits",
        "priority",
        "unacked",
        "waiting",
    )

    def __init__(self, name: str, priority: int = 0, epoch: int | None = None) -> None:
        self.name = name
        self.priority = priority  # 0 is the best
        self.epoch = epoch
        self.permits = 0  # in messages; negative after a batch larger than the rest
        self.unacked = 0  # messages in ``pending``
        self.blocked = False  # too many unacknowledged messages
        self.pending = PositionSet()  # sent and not acknowledged; empty for single-active types
        self.drained = 0  # Key_Shared: slots that it gave up to another consumer
        self.waiting = PositionSet()  # entries only this consumer may get, once it has permits

    @property
    def writable(self) -> bool:
        """False while the consumer's sink can't take more."""
        return True

    @property
    def available(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and not self.blocked and self.writable
