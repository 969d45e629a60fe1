"""Commands and settings on pages, and series on pages for operators, exist."""

import argparse
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from magnetar.broker.cli.main import build_parser

ROOT = Path(__file__).parent.parent.parent
NAMED = [p for p in (ROOT / "docs").rglob("*.md") if "decisions" not in p.parts]
PAGES = sorted(str(p.relative_to(ROOT)) for p in [*NAMED, ROOT / "README.md"])
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|`|-- )magnetar ([a-z-]+(?= |`|$)(?:[^\n|#;&`\\]|\\\n)*)", re.MULTILINE)
SERIES = re.compile(r"\b(?:pulsar|bookie|auditor|replication)_\w+")

# Words of clients and of Spark, and those that code puts together.
OTHERS = {
    *("connectionTimeout", "endingOffsetsByTimestamp", "explicitLacInterval", "foreachBatch"),
    *("newTransaction", "setKeepAliveIntervalInSeconds"),
}


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def unknown_words(command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Words and options of a command line that its parsers don't know."""
    options = set(parser._option_string_actions)
    for word in command.replace("\\\n", " ").split():
        children = _children(parser)
        if word in children:
            parser = children[word]
            options |= set(parser._option_string_actions)
        elif word.startswith("--"):
            if word.partition("=")[0] not in options:
                yield word
        elif children and re.fullmatch(r"[a-z][a-z-]+", word):
            yield word


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_exist(page: str) -> None:
    text = "\n".join(CODE.findall((ROOT / page).read_text()))
    found = {m[1]: list(unknown_words(m[1], _parser())) for m in COMMAND.finditer(text)}
    assert {command: words for command, words in found.items() if words} == {}


@cache
def _parser() -> argparse.ArgumentParser:
    return build_parser()


@cache
def _source() -> str:
    """Code and tests: a name that code puts together stands in a test."""
    git = ["git", "ls-files", "*.py"]
    names = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return "\n".join((ROOT / name).read_text() for name in names.split())


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/operate/")])
def test_series_of_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text().partition("\n## What Pulsar shows and this page doesn't")[0]
    names = set(SERIES.findall("\n".join(CODE.findall(text))))
    missing = [n for n in names if re.sub(r"_(count|sum|bucket|total)$", "", n) not in _source()]
    assert sorted(missing) == []


@pytest.mark.parametrize("page", PAGES)
def test_settings_of_a_page_exist(page: str) -> None:
    names = set(re.findall(r"`([a-z]+[A-Z]\w+)`", (ROOT / page).read_text()))
    missing = [n for n in names - OTHERS if n not in _source() and n not in _lists()]
    assert sorted(missing) == []


@cache
def _lists() -> str:
    """The settings page (another test holds it against the code), Pulsar's words, the chart."""
    found = [ROOT / "docs" / "reference" / "settings.md", *(ROOT / "scripts").glob("*.txt")]
    found += (ROOT / "charts").rglob("*.yaml")
    return "\n".join(path.read_text() for path in found)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("admin topics create t", []),
        ("admin topic create t", ["topic", "create"]),
        ("admin topics make t", ["make"]),
        ("admin topics create-subscription t --name s", ["--name"]),
    ],
)
def test_a_wrong_command_is_found(command: str, words: list[str]) -> None:
    assert list(unknown_words(command, _parser())) == words
