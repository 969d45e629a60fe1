"""Completion scripts, made by shtab out of the complete parser."""

from __future__ import annotations

import argparse
import re

import shtab

from magnetar.broker.cli.admin_commands import GROUPS
from magnetar.broker.cli.main import build_parser

_MARK = "@@"
_ABOVE = frozenset(
    f"_shtab_magnetar{level}{list}" for level in ("", "_admin") for list in ("", "_commands")
)
"""Functions of zsh's script for the levels above the words."""


def run_completion(options: argparse.Namespace) -> int:
    print(_script(options.shell))
    return 0


def _script(shell: str) -> str:
    """For ``bash``, ``zsh`` or ``fish``."""
    parser = build_parser()
    if shell != "zsh":
        return str(shtab.complete(parser, shell))
    # For zsh, shtab offers the words of a group one level up too, where a word that is called
    # like a group (namespaces topics) takes its place. So words carry their group's name while
    # the script is made; one level up they can be told apart and go.
    for above in (parser, _subparsers(parser).choices["admin"]):
        _mark_words(above)
    return _without_marks(str(shtab.complete(parser, shell)))


def _mark_words(above: argparse.ArgumentParser) -> None:
    for group, words in _subparsers(above).choices.items():
        if group not in GROUPS:
            continue
        action = _subparsers(words)
        parsers = dict(action.choices)
        action.choices.clear()
        action.choices.update({f"{group}{_MARK}{word}": parsers[word] for word in parsers})
        for choice in action._choices_actions:
            choice.dest = f"{group}{_MARK}{choice.dest}"


def _subparsers(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))


def _without_marks(script: str) -> str:
    lines: list[str] = []
    function = ""
    for line in script.splitlines():
        if match := re.match(r"(\w+)\(\) \{", line):
            function = match[1]
        if not (function in _ABOVE and _MARK in line):
            lines.append(re.sub(rf"[\w-]+{_MARK}", "", line))
    return "\n".join(lines)
