"""``magnetar admin GROUP WORD``: one HTTP call, or a step of several, and its answer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.admin_commands import GROUPS, AdminCommand, Option, commands_of
from magnetar.broker.cli.argument_values import KINDS
from magnetar.broker.cli.errors import CliError, RefusedError
from magnetar.broker.cli.global_options import ADMIN, add_globals, add_watch
from magnetar.broker.cli.output import print_value
from magnetar.broker.cli.profiles import target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.request import AdminRequest, Arguments, request_of

if TYPE_CHECKING:
    from magnetar.broker.cli.admin_client import AdminClient, AdminResponse

_SHOWN = frozenset(("json",))
_METAVARS = {
    "topic": "TOPIC",
    "namespace": "TENANT/NAMESPACE",
}


class CommandRun:
    """One word while it runs; what steps get."""

    def __init__(self, arguments: Arguments, client: AdminClient, *, as_json: bool) -> None:
        self.arguments = arguments
        self.client = client
        self.as_json = as_json

    def at_topic(self, topic: str) -> CommandRun:
        """The same word for another topic."""
        positionals = {**self.arguments.positionals, "topic": topic}
        arguments = replace(self.arguments, positionals=positionals)
        return CommandRun(arguments, self.client, as_json=self.as_json)

    def request(self, path: str | None = None) -> AdminRequest:
        """The word's own request, or of another path template."""
        return request_of(self.arguments, path)

    def send(self, request: AdminRequest, content_type: str | None = None) -> Any:
        """The answer's value.

        Raises:
            CliError: refused; the text has the status and the server's reason.
        """
        answer = self.answer(request, content_type)
        answer.check()
        return answer.value()

    def answer(self, request: AdminRequest, content_type: str | None = None) -> AdminResponse:
        with progress(self.arguments.word.help, None):
            return self.client.call(
                request.method, request.target, request.body, content_type=content_type
            )

    def get(self, path: str, **query: Any) -> Any:
        """A further question, of a path template."""
        return self.send(AdminRequest("GET", self.request(path).path, query))

    def finish(self, request: AdminRequest, content_type: str | None = None) -> int:
        """Show what the server answers; the exit code.

        Raises:
            CliError: see ``send``.
        """
        answer = self.answer(request, content_type)
        answer.check()
        if answer.body or request.method == "GET":
            self.show(answer.value())
        return 0

    def show(self, value: Any) -> None:
        print_value(value, as_json=self.as_json)


def run_admin(options: argparse.Namespace) -> int:
    """Raises CliError: the call failed; the text holds the server's reason."""
    word = commands_of(options.group)[options.word]
    target = target_of(options)
    with target.admin_client(options.request_timeout) as client:
        runs = [
            CommandRun(arguments, client, as_json=options.json)
            for arguments in _arguments(word, options)
        ]
        return _run_one(runs[0]) if len(runs) == 1 else _run_many(runs)


def _run_one(run: CommandRun) -> int:
    """Raises CliError: it failed; of a name that isn't there, also which names are like it."""
    try:
        return _run_word(run)
    except RefusedError as error:
        if error.status != 404:
            raise
        from magnetar.broker.cli.names import ClusterNames, hint_on

        hint = hint_on(ClusterNames(run.client), run.arguments)
        raise RefusedError(f"{error}\n{hint}" if hint else str(error), error.status) from error


def _run_word(run: CommandRun) -> int:
    word = run.arguments.word
    if word.step:
        from magnetar.broker.cli import multi_call

        return multi_call.STEPS[word.step](run)
    request = run.request()
    return run.finish(_updated(run, request) if word.update else request)


def _run_many(runs: list[CommandRun]) -> int:
    """All of them, also when one fails; what failed is told at the end."""
    failed: list[str] = []
    word = runs[0].arguments.word
    with progress(word.help, len(runs)) as advance:
        for run in runs:
            try:
                _run_one(run)
            except (CliError, ClientAuthError) as error:
                name = run.arguments.positionals[word.positionals[-1]]
                failed.append(f"{name}: {error}")
            advance(1)
    if failed:
        raise CliError(f"{len(failed)} of {len(runs)} failed\n" + "\n".join(failed))
    return 0


def _updated(run: CommandRun, request: AdminRequest) -> AdminRequest:
    """With the fields that the user didn't give as they are."""
    now = run.send(AdminRequest("GET", request.path, {}))
    if not isinstance(now, dict):
        return request
    return AdminRequest(
        request.method, request.path, request.query, {**now, **(request.body or {})}
    )


def _arguments(word: AdminCommand, options: argparse.Namespace) -> list[Arguments]:
    """One for each of the things named last."""
    given: dict[str, Any] = {}
    for number, option in enumerate(word.options):
        value = getattr(options, f"option_{number}")
        if option.kind == "map" and value is not None:
            value = {key: text for part in value for key, text in part.items()}
        value = option.default if value is None else value
        if value is not None:
            given[option.to] = value
    names = {name.strip("[]"): getattr(options, name.strip("[]")) for name in word.positionals}
    names = {name: value for name, value in names.items() if value is not None}
    if not word.many:
        return [Arguments(word, names, given)]
    last = word.positionals[-1]
    return [Arguments(word, {**names, last: value}, given) for value in names[last]]


# --- parsers


def add_groups(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> None:
    """Every group, with the words of those that ``arguments`` name; None: of all."""
    groups = parser.add_subparsers(dest="group", metavar="GROUP", required=True, title="groups")
    for name, help in GROUPS.items():
        group = groups.add_parser(name, help=help, description=help, allow_abbrev=False)
        add_globals(group, ADMIN, hidden=True)
        if arguments is None or name in arguments:
            _add_words(group, name)


def add_short_forms(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], called: str | None
) -> None:
    """The group ``called`` as a command of its own; None: all, shown to completion."""
    for name in GROUPS if called is None else GROUPS.keys() & {called}:
        shown: dict[str, Any] = {"help": f"the same as admin {name}"} if called is None else {}
        group = commands.add_parser(name, description=GROUPS[name], allow_abbrev=False, **shown)
        add_globals(group, ADMIN, hidden=True)
        _add_words(group, name)
        group.set_defaults(command="admin", group=name)


def _add_words(parser: argparse.ArgumentParser, group: str) -> None:
    words = parser.add_subparsers(dest="word", metavar="WORD", required=True, title="words")
    for name, word in commands_of(group).items():
        command = words.add_parser(
            name,
            help=word.help,
            description=f"{word.help} ({word.method} {word.path})".replace("%", "%%"),
            allow_abbrev=False,
        )
        flags = [flag for option in word.options for flag in option.flags]
        add_globals(command, _SHOWN, taken=flags)
        add_globals(command, ADMIN - _SHOWN, taken=flags, hidden=True)
        if word.method == "GET":
            add_watch(command)
        _add_positionals(command, word)
        groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
        for number, option in enumerate(word.options):
            _add_option(command, groups, option, number)


def _add_positionals(command: argparse.ArgumentParser, word: AdminCommand) -> None:
    for position, name in enumerate(word.positionals):
        plain = name.strip("[]")
        last = position == len(word.positionals) - 1
        count = "?" if name != plain else "+" if word.many and last else None
        command.add_argument(plain, metavar=_METAVARS.get(plain, plain.upper()), nargs=count)


def _add_option(
    command: argparse.ArgumentParser,
    groups: dict[str, argparse._MutuallyExclusiveGroup],
    option: Option,
    number: int,
) -> None:
    where: argparse._ActionsContainer = command
    if option.group:
        if option.group not in groups:
            groups[option.group] = command.add_mutually_exclusive_group(required=option.required)
        where = groups[option.group]
    settings: dict[str, Any] = {"dest": f"option_{number}", "help": option.help}
    if not option.group:
        settings["required"] = option.required
    if option.kind in ("true", "false"):
        const = option.kind == "true" if option.const is None else option.const
        where.add_argument(*option.flags, action="store_const", const=const, **settings)
        return
    if option.choices:
        settings["choices"] = option.choices
        settings["metavar"] = "|".join(option.choices)
    else:
        settings["metavar"] = KINDS[option.kind][0]
    if option.kind == "list":
        settings["action"] = "extend"
    elif option.kind == "map":
        settings["action"] = "append"
    where.add_argument(*option.flags, type=KINDS[option.kind][1], **settings)
