"""What became of a message, as cursors in ``internalStats`` of Apache Pulsar tell it. Pure.

They don't have which messages of a batch are acknowledged, nor which consumer has what.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.console.snapshot import explanation_of
from magnetar.broker.dispatch.explanation import Explanation, Reason, acknowledged

Position = tuple[int, int]

_POSITION: Final = re.compile(r"(-?\d+):(-?\d+)", re.ASCII)
_SENT: Final = Explanation(
    Reason.PENDING,
    "It was read for delivery and isn't acknowledged.",
    "It is done when its consumer acknowledges it.",
)
_SENT_IN_PART: Final = Explanation(
    Reason.PENDING,
    "Its batch was read for delivery and isn't acknowledged as a whole.",
    "It is done when its consumers acknowledge all of the batch.",
)
_NOT_READ: Final = Explanation(
    Reason.DELIVERING,
    "It wasn't read for delivery yet.",
    "It is delivered after those before it.",
)


def position_of(message_id: str) -> Position:
    """Of ``ledger:entry``, whatever is behind it."""
    ledger_id, entry_id = message_id.split(":")[:2]
    return int(ledger_id), int(entry_id)


def delivery_of(
    cursor: Mapping[str, Any], stats: Mapping[str, Any], message_id: str
) -> Explanation:
    """
    Args:
        cursor: of ``internalStats``.
        stats: of the subscription.
        message_id: ``ledger:entry``, in a batch with its place there.
    """
    position = position_of(message_id)
    if _is_acknowledged(cursor, position):
        return acknowledged()
    if position < position_of(cursor["readPosition"]):
        return _SENT_IN_PART if message_id.count(":") > 1 else _SENT
    why = explanation_of(stats)
    return why if why is not None and why.is_stall else _NOT_READ


def _is_acknowledged(cursor: Mapping[str, Any], position: Position) -> bool:
    """Ranges are written as ``[(12:3..12:5],(12:8..12:9]]``: without the first, with the last."""
    if position <= position_of(cursor["markDeletePosition"]):
        return True
    found = _POSITION.findall(cursor.get("individuallyDeletedMessages") or "")
    places = [(int(ledger_id), int(entry_id)) for ledger_id, entry_id in found]
    return any(
        lower < position <= upper for lower, upper in zip(places[::2], places[1::2], strict=True)
    )
