"""The command of ``magnetar admin`` that sets or removes a policy, from their table; pure."""

import functools
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar.broker.cli.admin_commands import AdminCommand, Option, commands_of
from magnetar.broker.console.policy_form import EditablePolicy

_GROUPS: Final = {
    True: ("topicPolicies", "{topic}"),
    False: ("namespaces", "namespaces/{namespace}"),
}
_NUMBERS: Final[dict[str, Callable[[Any], str]]] = {
    "minutes-of-seconds": lambda value: f"{value}m" if value >= 0 else str(value),
    "megabytes": lambda value: f"{value}M" if value >= 0 else str(value),
    "millis": lambda value: str(value // 1000),
}
"""How an option's value is written, by its kind, where that isn't the value itself."""


def command_of(policy: EditablePolicy, name: str, *, is_topic: bool, value: Any = None) -> str:
    """One line for a shell; empty: no single command does the same.

    Args:
        name: of the topic or namespace.
        value: None: the policy is removed.
    """
    found = _commands(is_topic).get((policy.method if value is not None else "DELETE", policy.path))
    if found is None:
        return ""
    word, command = found
    given = {f"query:{key}": each for key, each in policy.query.items()}
    if policy.in_query and value is not None:
        given[f"query:{policy.path}"] = value
    elif isinstance(value, Mapping):
        given |= {f"field:{key}": each for key, each in value.items()}
    elif value is not None:
        given["body"] = value
    words: list[str] = []
    for to, each in given.items():
        if (option := _option(command, to, each)) is not None:
            words += option
        elif not _is_default(policy, to, each):
            return ""
    return shlex.join(["magnetar", "admin", _GROUPS[is_topic][0], word, name, *words])


@functools.cache
def _commands(is_topic: bool) -> Mapping[tuple[str, str], tuple[str, AdminCommand]]:
    """By method and last segment."""
    group, place = _GROUPS[is_topic]
    start = f"/admin/v2/{place}/"
    return {
        (command.method, command.path.removeprefix(start)): (word, command)
        for word, command in commands_of(group).items()
        # A command that sets has a value; one without removes by an empty body.
        if command.path.startswith(start)
        and not command.step
        and (command.options or command.method == "DELETE")
    }


def _is_default(policy: EditablePolicy, to: str, value: Any) -> bool:
    """Whether the call does the same without it."""
    schema = policy.schema.get("properties", {}).get(to.removeprefix("field:"), {})
    return "default" in schema and schema["default"] == value


def _option(command: AdminCommand, to: str, value: Any) -> list[str] | None:
    """None: there is no option for such a value."""
    for option in command.options:
        if option.to != to:
            continue
        if option.kind in ("true", "false"):
            sent = option.const if option.const is not None else option.kind == "true"
            if value == sent:
                return [option.flags[-1]]
        elif (text := _text(option, value)) is not None:
            return [option.flags[-1], text]
    # A flag that isn't given says false.
    flags = [option for option in command.options if option.to == to and option.kind == "true"]
    return [] if flags and value is False and to != "body" else None


def _text(option: Option, value: Any) -> str | None:
    if option.kind == "old-strategy" or (option.kind == "millis" and value % 1000):
        return None
    if isinstance(value, list):
        return ",".join(map(str, value))
    return _NUMBERS.get(option.kind, str)(value)
