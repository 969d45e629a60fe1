"""The list of reasons is complete: each one is expected by a test."""

import re
from pathlib import Path

from magnetar.broker.dispatch.explanation import Reason

ROOT = Path(__file__).parents[4]

_PLANTED = {
    *(Reason.NOT_COMPACTED, Reason.COMPACTED_AWAY, Reason.PRODUCERS_QUEUED),
}
"""Reasons that no simulation makes; a test plants each."""


def test_each_reason_is_expected_somewhere() -> None:
    def named(folder: str) -> set[Reason]:
        texts = [
            each.read_text()
            for each in (ROOT / "tests" / folder).rglob("*.py")
            if each != Path(__file__)
        ]
        words = set(re.findall(r'Reason\.([A-Z_]+)|"(\w+)"', "\n".join(texts)))
        return {each for each in Reason if (each.name, "") in words or ("", each.value) in words}

    assert named("simulation") == set(Reason) - _PLANTED
    assert named("unit") | named("integration") >= _PLANTED
