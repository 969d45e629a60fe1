"""``docs/failures.md`` names tests: each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_test_named_in_the_page_exists() -> None:
    text = (ROOT / "docs" / "failures.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert missing == []
    assert len(named) > 40


def test_every_row_names_its_test() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "failures.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| fault")
    ]
    assert [row for row in rows if "::test_" not in row] == []
