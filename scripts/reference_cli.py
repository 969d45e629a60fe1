"""The reference part of docs/reference/cli.md, out of the parsers of the command line."""

import argparse
from collections.abc import Iterator

from magnetar.broker.cli.admin_commands import GROUPS, commands_of
from magnetar.broker.cli.main import build_parser

MARK = "<!-- written by scripts/reference_pages.py from the parsers -->\n"


def with_reference(page: str) -> str:
    """A page with what the parsers say now behind its mark: commands with their options, then every
    word of ``admin``."""
    return page.partition(MARK)[0] + MARK + "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    commands = _children(build_parser())
    for name, parser in commands.items():
        if name in GROUPS:  # a short form
            continue
        yield f"\n## magnetar {name}\n"
        yield f"{parser.description}.\n"
        actions = _children(parser)
        if name == "pipeline":
            yield from _options(parser)
            for action, job in actions.items():
                yield f"\n### pipeline {action}\n"
                text = job.description or ""
                yield f"{text[:1].upper()}{text[1:]}.\n"
                yield from _options(job)
        elif actions and name != "admin":
            yield from _actions(actions)
        else:
            yield from _options(parser)
    groups = _children(commands["admin"])
    for name, help in GROUPS.items():
        yield f"\n### admin {name}\n"
        yield f"{help[0].upper()}{help[1:]}.\n"
        yield "| word and arguments | what it does | call |"
        yield "|---|---|---|"
        parsers = _children(groups[name])
        for word, row in commands_of(name).items():
            usage = _cell(_usage(parsers[word]))
            yield f"| `{word}{usage}` | {_cell(row.help)} | `{row.method} {row.path}` |"


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield "| argument | what it is |"
    yield "|---|---|"
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        if action.help == argparse.SUPPRESS:
            continue
        yield f"| `{_cell(_names(action))}` | {_cell(action.help or '')} |"


def _actions(parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield "| action | arguments |"
    yield "|---|---|"
    for name, parser in parsers.items():
        yield f"| `{name}` | `{_cell(_usage(parser).strip())}` |"


def _usage(parser: argparse.ArgumentParser) -> str:
    parts = [
        _names(action, brackets=not action.required)
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
        and action.help != argparse.SUPPRESS
        and not {"--json", "--watch"}.intersection(action.option_strings)
    ]
    return "".join(f" {part}" for part in parts)


def _names(action: argparse.Action, *, brackets: bool = False) -> str:
    metavar = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return (
            f"[{metavar}]" if action.nargs == "?" else f"{metavar} ..." if action.nargs else metavar
        )
    names = "/".join(action.option_strings)
    text = names if action.nargs == 0 else f"{names} {metavar}"
    return f"[{text}]" if brackets else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%")
