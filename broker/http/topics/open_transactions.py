"""Pages of the transactions that haven't ended, the oldest first, of several coordinators. Pure.

The place behind a page names a transaction of each coordinator: ``0:39,3:7``. Each lists its own by
their numbers, so one that begins or ends meanwhile moves no other.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.broker.http.errors import ApiError
from magnetar.broker.transaction.async_coordinator import EndUnderWay
from magnetar.broker.transaction.coordinator import TransactionDescription

ALWAYS_MS: Final = 1 << 62
"""Later than any begin."""
Rows = Sequence[Mapping[str, Any]]


def places_of(text: str) -> dict[int, int]:
    """By coordinator: the last transaction that was listed. Raises ApiError 400."""
    found = dict[int, int]()
    for each in text.split(",") if text else ():
        most, _, least = each.partition(":")
        if not (_is_number(most) and _is_number(least)):
            raise ApiError(400, f"after={text} is no place in this list")
        found[int(most)] = int(least)
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def open_row(
    found: TransactionDescription, ends: Mapping[int, EndUnderWay]
) -> dict[str, str | int]:
    """One line of a page."""
    end = ends.get(found.transaction.least)
    return {
        "txnId": str(found.transaction),
        "status": found.status,
        "openTimestamp": found.start_ms,
        "timeoutAt": found.timeout_ms,
        **({"owner": found.owner} if found.owner else {}),
        "partitions": len(found.partitions),
        "subscriptions": len(found.subscriptions),
        "errors": 0 if end is None else len(end.errors),
    }


def open_page(
    found: Mapping[int, Rows], places: Mapping[int, int], limit: int
) -> dict[str, str | list[Mapping[str, Any]] | None]:
    """The oldest ones of all.

    Args:
        found: by coordinator at most ``limit`` behind its place, in their order.
    """
    listed = [
        [(row["openTimestamp"], number, row) for row in rows] for number, rows in found.items()
    ]
    taken = list(heapq.merge(*listed, key=lambda each: each[:2]))[:limit]
    is_last = sum(map(len, listed)) == len(taken) and all(len(each) < limit for each in listed)
    behind = dict(places)
    for _, number, row in taken:
        behind[number] = int(row["txnId"].strip("()").partition(",")[2])
    place = ",".join(f"{number}:{least}" for number, least in sorted(behind.items()))
    return {"transactions": [row for *_, row in taken], "next": None if is_last else place}
