"""Pages about faults name tests: each of them exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = ("failures.md", "cluster-faults.md")
FOLDER = ROOT / "docs" / "internals"


@pytest.mark.parametrize("page", PAGES)
def test_every_test_named_in_the_page_exists(page: str) -> None:
    text = (FOLDER / page).read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    missing = [
        f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert missing == []
    assert len(named) > 40


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_its_test(page: str) -> None:
    rows = [
        line
        for line in (FOLDER / page).read_text().splitlines()
        if line.startswith("| ") and not line.startswith(("| fault", "| rule"))
    ]
    assert [row for row in rows if "::test_" not in row] == []
