"""Completion scripts, made by shtab out of the complete parser."""

from __future__ import annotations

import argparse
import re

import shtab

from magnetar.broker.cli.main import build_parser

_MARK = "@@"


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
    _mark_words(parser)
    return _without_marks(str(shtab.complete(parser, shell)))


def _mark_words(parser: argparse.ArgumentParser) -> None:
    for group, words in _subparsers(_subparsers(parser).choices["admin"]).choices.items():
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
        up = function in ("_shtab_magnetar_admin", "_shtab_magnetar_admin_commands")
        if not (up and _MARK in line):
            lines.append(re.sub(rf"[\w-]+{_MARK}", "", line))
    return "\n".join(lines)
