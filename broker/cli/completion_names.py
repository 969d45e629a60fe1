"""Names that a broker knows, for the word at the cursor: asked by the scripts of ``completion``.

A shell runs the command as it is typed so far with VARIABLE set to the kind of name. Nothing is
kept; without an answer in a second, or any at all, there are no names, and nothing is said.
"""

import argparse
import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.names import ClusterNames
from magnetar.broker.cli.profiles import target_of
from magnetar.broker.cli.request import topic_parts

VARIABLE: Final = "_MAGNETAR_COMPLETE"
_ANSWER_S_MAX: Final = 1.0
_SEPARATOR: Final = "://"
_PARTITION: Final = "-partition-"
_OF_DESTINATION: Final = {
    "topic": "topic",
    "topics": "topic",
    "namespace": "namespace",
    "tenant": "tenant",
    "subscription": "subscription",
}
_OF_FLAG: Final = {"--subscription": "subscription", "--subscription-name": "subscription"}


def kind_of(action: argparse.Action) -> str | None:
    """Which names an argument takes; None: none that a broker knows."""
    if not action.option_strings:
        return _OF_DESTINATION.get(action.dest)
    return next((_OF_FLAG[flag] for flag in action.option_strings if flag in _OF_FLAG), None)


def print_names(kind: str, words: Sequence[str]) -> int:
    """Print the names that the last word may become, a line each; the exit code."""
    *before, text = words or [""]
    names: list[str] = []
    silent = io.StringIO()
    with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(silent):
        given = given_in(build_parser(before), before)
        # A broker named by --url need not belong to the address of HTTP that would be asked.
        if given.get("url") is None or given.get("admin_url") is not None:
            target = target_of(argparse.Namespace(**given))
            with target.admin_client(_ANSWER_S_MAX) as client:
                names = names_for(kind, text, given, ClusterNames(client))
    for name in names:
        print(name)
    return 0


def given_in(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """What the words of an unfinished command give: arguments by their destinations."""
    given: dict[str, Any] = {
        action.dest: action.default
        for action in parser._actions
        if action.default is not argparse.SUPPRESS
    }
    places = _positionals(parser)
    rest = iter(words)
    for word in rest:
        flag, is_joined, value = word.partition("=")
        if word.startswith("-"):
            action = parser._option_string_actions.get(flag)
            if action is None:
                continue
            if action.nargs == 0:
                given[action.dest] = action.const
            else:
                given[action.dest] = value if is_joined else next(rest, None)
        elif places:
            place = places[0]
            if isinstance(place, argparse._SubParsersAction):
                parser = place.choices[word]
                places = _positionals(parser)
                continue
            given.setdefault(place.dest, word)
            if place.nargs is None:
                places = places[1:]
    return given


def _positionals(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def names_for(kind: str, text: str, given: Mapping[str, Any], names: ClusterNames) -> list[str]:
    """Names that begin with a text; those that end with ``/`` go on.

    Args:
        given: what the command says so far: the topic of a subscription.
    """
    match kind:
        case "tenant":
            found = names.tenants()
        case "namespace":
            found = _namespaces(text, names)
        case "topic":
            found = _topics(text, names)
        case _:
            found = names.subscriptions(*topic_parts(given["topic"]))
    return sorted(name for name in found if name.startswith(text))


def _namespaces(text: str, names: ClusterNames) -> list[str]:
    tenant, separator, _ = text.partition("/")
    if not separator:
        return [f"{name}/" for name in names.tenants() if name.startswith(text)]
    return [f"{tenant}/{name}" for name in names.namespaces(tenant)]


def _topics(text: str, names: ClusterNames) -> list[str]:
    """As the user began to write them: with the domain or not, in full or in public/default."""
    domain, separator, rest = text.rpartition(_SEPARATOR)
    start, domain = domain + separator, domain or "persistent"
    parts = rest.split("/", 2)
    if len(parts) == 3:
        tenant, namespace, local = parts
        found = names.topics(domain, tenant, namespace, partitions=_PARTITION in local)
        return [f"{start}{tenant}/{namespace}/{name}" for name in found]
    above = [f"{start}{name}" for name in _namespaces(rest, names)]
    if len(parts) == 2:
        return [f"{name}/" for name in above]
    if start:
        return above
    with contextlib.suppress(CliError):
        above += names.topics(domain, "public", "default", partitions=_PARTITION in rest)
    return above
