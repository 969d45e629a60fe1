"""``magnetar``: one command with sub-commands; each is imported only when it is called.

argparse instead of typer: docs/decisions/0002-argparse-and-lean-config.md.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, NoReturn

from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.client_options import add_consume, add_produce, add_read, add_verify
from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError
from magnetar.broker.cli.global_options import (
    ADMIN,
    CLIENTS,
    CONSOLE,
    PIPELINE,
    PROFILES,
    TOP,
    VERIFY,
    add_globals,
    add_watch,
    interval_s,
    misplaced,
)
from magnetar.broker.cli.node_options import (
    add_autorecovery,
    add_bookie,
    add_bookie_drain,
    add_broker,
    add_cluster,
    add_console,
    add_metadata,
    add_migrate,
    add_probe,
    add_standalone,
    add_zookeeper,
)
from magnetar.broker.cli.shell_options import JSON, add_bookie_shell
from magnetar.broker.cli.token_options import add_tokens

SHELLS = ("bash", "zsh", "fish")
_SERVERS = frozenset({"standalone", "broker", "bookie", "autorecovery", "zookeeper"})
_QUESTION = re.compile(r"-h$|--(help|check|status|enable|disable)\b")
_GLOBALS = {
    **dict.fromkeys(("produce", "consume", "read"), CLIENTS),
    "verify": VERIFY,
    "admin": ADMIN,
    "console": CONSOLE,
    "doctor": ADMIN,
    "top": TOP,
    "pipeline": PIPELINE,
    "profiles": PROFILES | {"json"},
    "bookie-shell": JSON,
}


_PROGRAM: Final = "magnetar"
_UNKNOWN_WORD: Final = re.compile(
    r"argument (COMMAND|WORD|GROUP): invalid choice: '(.*)' \(choose from (.*)\)"
)
_EXIT_CODES: Final = {"verify": 2}
"""Of a failure, where 1 says something else."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if (kind := os.environ.get("_MAGNETAR_COMPLETE")) and argv is None:
        from magnetar.broker.cli.completion_names import print_names

        return print_names(kind, arguments)
    if sys.stdout is None:  # closed by who started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 # to the end of the process
    is_server = argv is None and _is_server(arguments)
    if is_server:
        heed_signals()
    parser = build_parser(arguments)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    if (flag := misplaced(options, _GLOBALS.get(options.command, frozenset()))) is not None:
        parser.error(f"{flag} says nothing to {options.command}")
    if options.no_color:
        os.environ["NO_COLOR"] = "1"  # which libraries read, too
    try:
        if is_server:
            from magnetar.broker.cli.server_start import begin

            begin(options)
        code = _run(options)
        sys.stdout.flush()
        return code
    except (CliError, ClientAuthError) as error:
        if is_server:
            from magnetar.broker.cli.server_start import report

            report(error)
        else:
            _tell(error, options)
        return _EXIT_CODES.get(options.command, 1)
    except ModuleNotFoundError as error:
        if not _is_client():
            raise
        print(
            f"magnetar: {options.command}: {error}: magnetar-client has the client tools alone, "
            "the distribution magnetar has everything",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # the reader of our output has seen enough
        _drop_output()
        return 0
    except OSError as error:  # as when the disk of our output is full
        if is_server:
            raise
        _drop_output()
        print(f"magnetar: {error}", file=sys.stderr)
        return _EXIT_CODES.get(options.command, 1)
    except KeyboardInterrupt:
        return 130


def _drop_output() -> None:
    """What is buffered can't be written, also not when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: CliError | ClientAuthError, options: argparse.Namespace) -> None:
    """Show an error, and below it what the user can do."""
    from magnetar.broker.cli.output import colours_on, readable

    name = "\x1b[31mmagnetar:\x1b[0m" if colours_on(sys.stderr) else "magnetar:"
    print(f"{name} {readable(str(error), sys.stderr)}", file=sys.stderr)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RefusedError | UnreachableError):
        cause = cause.__cause__
    if cause is not None:
        from magnetar.broker.cli.advice import advice_on

        for line in advice_on(cause, options, _GLOBALS.get(options.command, frozenset())):
            print(line, file=sys.stderr)


def _is_client() -> bool:
    """Whether what is installed is the distribution magnetar-client (client/pyproject.toml)."""
    from importlib.util import find_spec

    return find_spec("magnetar.bookkeeper.bookie") is None


def heed_signals() -> None:
    """SIGTERM ends the process, with exit code 0, until an event loop takes the signal over.

    Linux drops a signal for process 1, as which a container runs us, unless there is a handler: one
    that comes while libraries are loaded would be lost, and the server run until it is killed.
    """
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(0))


def _is_server(arguments: Sequence[str]) -> bool:
    """Whether these begin a server, and not one question to it."""
    return arguments[:1] != [] and (
        arguments[0] in _SERVERS and not any(map(_QUESTION.match, arguments))
    )


class _Parser(argparse.ArgumentParser):
    """Its sub-commands are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """Of a word that there isn't, those like it are named instead of the eighty that there
        are.
        """
        if (found := _UNKNOWN_WORD.match(message)) is not None:
            from magnetar.broker.cli.admin_commands import GROUPS, groups_with
            from magnetar.broker.cli.names import like

            known = re.findall(r"[\w-]+", found[3])
            if found[1] == "COMMAND":
                if groups := groups_with(found[2]):
                    known = [f"{group} {found[2]}" for group in groups]
                else:
                    known += GROUPS.keys() - set(known)
            message = f"{like(found[1].lower(), found[2], '', known)}\n{self.prog} --help lists all"
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """A command itself refuses what it doesn't know: its usage is shown, and not that of all
        commands.
        """
        options, unknown = super().parse_known_args(args, namespace)
        if unknown and self.prog != _PROGRAM:
            from magnetar.broker.cli.names import like

            flag = unknown[0].partition("=")[0]
            if flag.startswith("--"):
                self.error(like("option", flag, "", [*self._option_string_actions]))
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def build_parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole command line; only the command that ``arguments`` name has its options.

    Args:
        arguments: what is to be parsed; None: fill in everything, for completion and reference.
    """
    parser: argparse.ArgumentParser = _Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} [OPTION ...] COMMAND ...",
        description="A Pulsar-compatible message broker, its tools and its admin.",
        epilog="Groups of admin may stand alone: magnetar topics list, magnetar tenants list.",
        allow_abbrev=False,
    )
    add_globals(parser)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", prog=_PROGRAM
    )
    called = None if arguments is None else _called(parser, arguments)

    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, (help, fill, _) in _COMMANDS.items():
        parsers[name] = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        if called in (None, name):
            fill(parsers[name])
    if called in (None, "admin"):
        from magnetar.broker.cli.admin_command import add_groups

        add_groups(parsers["admin"], arguments)
    if called in (None, "pipeline"):
        from magnetar.broker.cli.pipeline_command import add_jobs

        for job in add_jobs(parsers["pipeline"]):
            add_globals(job, PIPELINE, hidden=True)
            if job.prog.endswith(" backlog"):  # the one that only reads
                add_watch(job)
    if called is None or called not in {"", *_COMMANDS}:
        from magnetar.broker.cli.admin_command import add_short_forms

        add_short_forms(commands, called)
    return parser


def _called(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str:
    """The command, which is the first word that belongs to no option; "": there is none."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-"):
            return word
        action = parser._option_string_actions.get(word)
        if action is not None and action.nargs is None:
            next(words, None)
    return ""


def _add_profiles(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all of them; * is the one in use")
    add_globals(listing, frozenset(("json",)))
    add = actions.add_parser("add", help="add or replace one; the first one is in use at once")
    add.add_argument("name", metavar="NAME")
    add_globals(add, PROFILES)
    actions.add_parser("use", help="use one from now on").add_argument("name", metavar="NAME")
    actions.add_parser("remove", help="forget one").add_argument("name", metavar="NAME")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    add_globals(parser, ADMIN)
    add_watch(parser)


def _add_top(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--interval", type=interval_s, default=2.0, metavar="SECONDS", help="between rounds (2)")
    add("--filter", default="", metavar="TEXT", help="part of a name; backlog>0, consumers=0, ...")
    add("--read-only", action="store_true", help="no actions")
    add("--once", action="store_true", help="print the figures and end; with --json for programs")
    views = ("subscriptions", "topics", "brokers", "bookies", "connections")
    add(
        "--view",
        choices=views,
        default=views[0],
        metavar="LIST",
        help=f"of --once: {', '.join(views)}",
    )
    add_globals(parser, TOP)


def _add_shell(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")


def _add_nothing(_: argparse.ArgumentParser) -> None:
    """There are no options."""


_COMMANDS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], str]]] = {
    "standalone": (
        "run everything in one process",
        add_standalone,
        "standalone_command.run_standalone",
    ),
    "cluster": (
        "run ZooKeeper, bookies and brokers as processes of this machine",
        add_cluster,
        "cluster_command.run_cluster",
    ),
    "broker": ("run a broker of a cluster", add_broker, "standalone_command.run_broker"),
    "bookie": ("run a storage node of a cluster", add_bookie, "bookie_command.run_bookie"),
    "bookie-drain": (
        "send a bookie's writers away before it is stopped",
        add_bookie_drain,
        "drain_command.run_bookie_drain",
    ),
    "probe": (
        "get a page of a server's HTTP port, such as /readyz: 0 if it is 200",
        add_probe,
        "probe_command.run_probe",
    ),
    "zookeeper": (
        "run one Apache ZooKeeper server, or ask it how it is",
        add_zookeeper,
        "zookeeper_command.run_zookeeper",
    ),
    "metadata": (
        "metadata: recover a standalone's, convert a cluster's",
        add_metadata,
        "metadata_command.run_metadata",
    ),
    "migrate": (
        "give a Pulsar cluster's data to Magnetar's brokers, and back",
        add_migrate,
        "migrate_command.run_migrate",
    ),
    "autorecovery": (
        "find and repair what bookies of a cluster lost",
        add_autorecovery,
        "autorecovery_command.run_autorecovery",
    ),
    "bookie-shell": (
        "look at a cluster of bookies, repair it, format it",
        add_bookie_shell,
        "shell.shell_command.run_bookie_shell",
    ),
    "produce": ("send messages to a topic", add_produce, "produce_command.run_produce"),
    "consume": ("receive messages of a subscription", add_consume, "consume_command.run_consume"),
    "read": (
        "receive messages from one on, without a subscription",
        add_read,
        "consume_command.run_read",
    ),
    "verify": (
        "check that a cluster loses, doubles and reorders nothing: 0 if so, 1 if not",
        add_verify,
        "verify.verify_command.run_verify",
    ),
    "admin": (
        "tenants, namespaces, topics, brokers over HTTP",
        partial(add_globals, names=ADMIN),
        "admin_command.run_admin",
    ),
    "doctor": (
        "what is wrong with a cluster, the worst first, and what mends it",
        _add_doctor,
        "doctor_command.run_doctor",
    ),
    "console": (
        "the web console in front of a cluster of Magnetar or Apache Pulsar",
        add_console,
        "console_command.run_console",
    ),
    "top": (
        "what happens in a cluster now: backlogs, topics, brokers, bookies, connections",
        _add_top,
        "top.top_command.run_top",
    ),
    "pipeline": (
        "topics to files and back, backlog and load",
        partial(add_globals, names=PIPELINE),
        "pipeline_command.run_pipeline",
    ),
    "profiles": ("addresses of several clusters", _add_profiles, "profiles.run_profiles"),
    "tokens": (
        "keys, and tokens that are signed with them",
        add_tokens,
        "tokens_command.run_tokens",
    ),
    "completion": (
        "print a script that completes commands in a shell",
        _add_shell,
        "completion.run_completion",
    ),
    "version": ("print the version", _add_nothing, "version.run_version"),
}
"""Command -> what it is for, what adds its options, module and function that run it."""


def _run(options: argparse.Namespace) -> int:
    module, _, function = _COMMANDS[options.command][2].rpartition(".")
    run: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"magnetar.broker.cli.{module}"), function
    )
    if getattr(options, "watch", None) is None:
        return run(options)
    from magnetar.broker.cli.watch import watch

    return watch(options.watch, partial(run, options))


if __name__ == "__main__":
    sys.exit(main())
