"""Pages for readers name files of this repository that exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_PATH = re.compile(
    r"[`\s]((?:[\w.-]+/)+[\w.-]+\.(?:py|md|sh|yaml|json|txt|toml|proto))(?=[`\s:,;)])"
)


def _named(page: str, text: str) -> set[str]:
    """Links, and what looks like the path of a file below one of our folders."""
    links = {os.path.normpath(Path(page).parent / each) for each in _LINK.findall(text)}
    return links | {each for each in _PATH.findall(text) if (ROOT / each.split("/")[0]).is_dir()}


def test_what_pages_name_is_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = {
        (page, each)
        for page in listed.stdout.split()
        for each in _named(page, (ROOT / page).read_text())
    }
    assert len(named) > 500
    assert sorted(each for each in named if not (ROOT / each[1]).exists()) == []
