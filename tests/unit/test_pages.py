"""Pages for readers name files and headings that exist, and each page of the site has its place."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from magnetar.broker.cli.main import build_parser

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_ANCHOR = re.compile(r"\]\(([^)#:\s]*)#([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SHELL_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(
    r"[`\s]((?:[\w.-]+/)+[\w.-]+\.(?:py|md|sh|yaml|json|txt|toml|proto))(?=[`\s:,;)])"
)


@cache
def _pages() -> tuple[str, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(page for page in listed.stdout.split() if (ROOT / page).exists())


def _named(page: str, text: str) -> set[str]:
    """Links, and what looks like the path of a file below one of our folders."""
    links = {os.path.normpath(Path(page).parent / each) for each in _LINK.findall(text)}
    return links | {each for each in _PATH.findall(text) if (ROOT / each.split("/")[0]).is_dir()}


def test_what_pages_name_is_there() -> None:
    named = {(page, each) for page in _pages() for each in _named(page, (ROOT / page).read_text())}
    assert len(named) > 500
    assert sorted(each for each in named if not (ROOT / each[1]).exists()) == []


def _commands(page: str) -> Iterator[str]:
    """Of the page's blocks for a shell: what comes before a pipe, a redirection or a remark."""
    for block in _SHELL_BLOCK.findall((ROOT / page).read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            text = line.strip().removeprefix("$ ")
            if text.startswith("magnetar ") and "..." not in text:
                yield re.split(r"[;|>#&]", text)[0].strip()


def test_the_command_line_takes_what_pages_type() -> None:
    parser, refused = build_parser(), list[tuple[str, str]]()
    typed = [(page, command) for page in _pages() for command in _commands(page)]
    assert len(typed) > 50
    for page, command in typed:
        try:
            parser.parse_args(shlex.split(command)[1:])
        except SystemExit as error:
            if error.code:
                refused.append((page, command))
    assert refused == []


@cache
def _anchors(page: Path) -> frozenset[str]:
    """As browsers of repositories and MyST make them of headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return frozenset(found)


def test_links_to_headings_lead_to_one() -> None:
    wrong = [
        f"{page}: {target}#{anchor}"
        for page in _pages()
        for target, anchor in _ANCHOR.findall(_FENCE.sub("", (ROOT / page).read_text()))
        for file in [(ROOT / page).parent / target if target else ROOT / page]
        if file.suffix == ".md" and anchor not in _anchors(file)
    ]
    assert wrong == []


def _below(page: Path) -> Iterator[Path]:
    """The pages that lists of pages on this one name, and those below them."""
    for block in _TOCTREE.findall(page.read_text()):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                for found in sorted(page.parent.glob(f"{line.removesuffix('.md')}.md")):
                    yield found.resolve()
                    yield from _below(found.resolve())


def test_every_page_of_the_site_has_one_place() -> None:
    listed = [str(page.relative_to(ROOT)) for page in _below(DOCS / "index.md")]
    assert len(listed) == len(set(listed)), "a page is listed twice"
    there = {page for page in _pages() if page.startswith("docs/")} - {"docs/index.md"}
    assert there - set(listed) == set()


_CITATION = re.compile(r'(docs/spec/[\w-]+\.md)((?:,? *(?:and |to )?"[^"]+")*)')
_OLD_CITATION = re.compile(
    r"\btraps? \d|\b(wire-protocol|http-api|bundles-and-load|bookkeeper-wire)(\.md)? \d"
    r"|\bstorage\.md \d|\b(architecture|spec|specification),? (section )?\d"
)


def test_citations_of_the_specification_name_its_headings() -> None:
    """``docs/spec/storage.md, "Adds"``: the page has such a heading. Numbers say nothing."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.proto"], cwd=ROOT, capture_output=True, text=True
    )
    wrong, cited = [], 0
    for name in listed.stdout.split():
        if name.startswith("docs/decisions/") or (ROOT / name) == Path(__file__):
            continue
        text = re.sub(r"\s*\n\s*(?:#\s*)?", " ", (ROOT / name).read_text())
        wrong += [f"{name}: {found[0]}" for found in _OLD_CITATION.finditer(text)]
        for page, headings in _CITATION.findall(text):
            there = set(_HEADING.findall((ROOT / page).read_text()))
            named = re.findall('"([^"]+)"', headings)
            cited += len(named)
            wrong += [f"{name}: {page}, {each}" for each in named if each not in there]
    assert wrong == []
    assert cited > 30


@pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="no sphinx here: make docs installs it"
)
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "dummy", str(DOCS), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
