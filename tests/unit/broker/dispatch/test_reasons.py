"""The list of reasons is complete: a simulation knows each one."""

import re
from pathlib import Path

from magnetar.broker.dispatch.explanation import Reason

ROOT = Path(__file__).parents[4]


def test_each_reason_is_known_by_a_simulation() -> None:
    texts = [each.read_text() for each in (ROOT / "tests" / "simulation").rglob("*.py")]
    names = set(re.findall(r"Reason\.([A-Z_]+)", "\n".join(texts)))
    assert names >= {each.name for each in Reason}
