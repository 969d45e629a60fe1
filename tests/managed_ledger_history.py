"""What the owners of a managed ledger were told, and whether the log agrees with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

Position: TypeAlias = tuple[int, int]


class OwnerHistory:
    """The lines of one `tests/managed_ledger_owner.py`, as far as they came."""

    def __init__(self, output: str) -> None:
        self.appended: dict[Position, int] = {}
        self.acked: dict[str, CursorAcks] = {}
        self.asked: dict[str, CursorAcks] = {}
        self.found: dict[str, CursorAcks] = {}
        self.is_open = self.is_fenced = False
        for line in output.splitlines():
            if line.startswith("{") and line.endswith("}"):
                self._add(json.loads(line))

    def _add(self, said: dict[str, Any]) -> None:
        if "appended" in said:
            ledger_id, first = said["appended"]
            for entry_id, number in enumerate(said["numbers"], first):
                assert (ledger_id, entry_id) not in self.appended, "one place, two entries"
                self.appended[ledger_id, entry_id] = number
        elif "found" in said:
            acks = self.found[said["found"]] = CursorAcks(_position(said["mark"]))
            for before, last in said["holes"]:
                assert before[0] == last[0]
                acks.each |= {(last[0], entry) for entry in range(before[1] + 1, last[1] + 1)}
        elif "acked" in said or "asked" in said:
            name = said.get("acked") or said["asked"]
            acks = (self.acked if "acked" in said else self.asked).setdefault(name, CursorAcks())
            if "upto" in said:
                acks.upto = max(acks.upto, _position(said["upto"]))
            acks.each |= {_position(each) for each in said.get("each", ())}
        self.is_open |= "open" in said
        self.is_fenced |= "fenced" in said


class CursorAcks:
    """What of a log is acknowledged: everything up to a position, and single entries."""

    def __init__(self, upto: Position = (-1, -1)) -> None:
        self.upto, self.each = upto, set[Position]()

    def __contains__(self, position: Position) -> bool:
        return position <= self.upto or position in self.each


def _position(pair: Iterable[int]) -> Position:
    ledger_id, entry_id = pair
    return ledger_id, entry_id


def check_found(
    found: dict[str, CursorAcks], earlier: list[OwnerHistory], entries: Iterable[Position]
) -> None:
    """A new owner found all that was durable, and nothing that nobody ever acknowledged.

    Args:
        entries: of the log, trimmed ones too.
    """
    for name, acks in found.items():
        for owner in earlier:
            if (durable := owner.acked.get(name)) is not None:
                assert acks.upto >= durable.upto, f"{name} rewound from {durable.upto}"
                lost = {each for each in durable.each if each not in acks}
                assert not lost, f"{name} lost {sorted(lost)}"
        asked = [owner.asked[name] for owner in earlier if name in owner.asked]
        invented = [
            each for each in entries if each in acks and not any(each in some for some in asked)
        ]
        assert not invented, f"{name} invented {invented}"


def check_log(
    stored: dict[Position, int], owners: list[OwnerHistory], found: dict[str, CursorAcks]
) -> None:
    """Everything that was confirmed is in its place once, unless all cursors had passed it.

    Args:
        stored: numbers by position, as read at the end, in order.
        found: the cursors at the end.
    """
    numbers = list(stored.values())
    assert len(set(numbers)) == len(numbers), "stored twice"
    for owner in range(1, len(owners) + 1):
        mine = [number for number in numbers if number // 1_000_000 == owner]
        assert mine == sorted(mine), f"owner {owner}'s entries changed their order"
    slowest = min(acks.upto for acks in found.values())
    for owner_history in owners:
        for position, number in owner_history.appended.items():
            if position in stored:
                assert stored[position] == number, f"{position} holds another entry"
            else:
                assert position <= slowest, f"{position} is lost: {number}"
