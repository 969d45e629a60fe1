"""``magnetar``: one command with sub-commands; each is imported only when it is called.

argparse instead of typer: docs/decisions/0002-argparse-and-lean-config.md.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence

from magnetar.broker.cli.admin_commands import GROUPS
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.global_options import (
    ADMIN,
    CLIENTS,
    PIPELINE,
    PROFILES,
    add_globals,
    misplaced,
)
from magnetar.broker.cli.node_options import (
    add_autorecovery,
    add_bookie,
    add_bookie_drain,
    add_broker,
    add_cluster,
    add_metadata,
    add_probe,
    add_zookeeper,
)
from magnetar.broker.cli.shell_options import JSON, add_bookie_shell
from magnetar.broker.cli.token_options import add_tokens

SHELLS = ("bash", "zsh", "fish")
_SERVERS = frozenset({"standalone", "broker", "bookie", "autorecovery", "zookeeper"})
_QUESTION = re.compile(r"-h$|--(help|check|status|enable|disable)\b")
_GLOBALS = {
    **dict.fromkeys(("produce", "consume", "read"), CLIENTS),
    "admin": ADMIN,
    "pipeline": PIPELINE,
    "profiles": PROFILES | {"json"},
    "bookie-shell": JSON,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
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
    try:
        if is_server:
            from magnetar.broker.cli.server_start import begin

            begin(options)
        return _COMMANDS[options.command](options)
    except CliError as error:
        if is_server:
            from magnetar.broker.cli.server_start import report

            report(error)
        else:
            print(f"magnetar: {error}", file=sys.stderr)
        return 1
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
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


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


def build_parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The whole command line; of ``admin`` and ``pipeline`` only what ``arguments`` name.

    Args:
        arguments: what is to be parsed; None: fill in everything, for completion and reference.
    """
    parser = argparse.ArgumentParser(
        prog="magnetar",
        description="A Pulsar-compatible message broker, its tools and its admin.",
        allow_abbrev=False,
    )
    add_globals(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def add(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help, allow_abbrev=False)

    _add_standalone(add("standalone", "run everything in one process"))
    add_cluster(add("cluster", "run ZooKeeper, bookies and brokers as processes of this machine"))
    add_broker(add("broker", "run a broker of a cluster"))
    add_bookie(add("bookie", "run a storage node of a cluster"))
    add_bookie_drain(add("bookie-drain", "send a bookie's writers away before it is stopped"))
    add_probe(add("probe", "get a page of a server's HTTP port, such as /readyz: 0 if it is 200"))
    add_zookeeper(add("zookeeper", "run one Apache ZooKeeper server, or ask it how it is"))
    add_metadata(add("metadata", "a standalone's metadata, when they are damaged"))
    add_autorecovery(add("autorecovery", "find and repair what bookies of a cluster lost"))
    add_bookie_shell(add("bookie-shell", "look at a cluster of bookies, repair it, format it"))
    _add_clients(add)
    _add_admin(add("admin", "tenants, namespaces, topics, brokers over HTTP"), arguments)
    _add_pipeline(add("pipeline", "topics to files and back, backlog and load"), arguments)
    _add_profiles(add("profiles", "addresses of several clusters"))
    add_tokens(add("tokens", "keys, and tokens that are signed with them"))
    completion = add("completion", "print a script that completes commands in a shell")
    completion.add_argument("shell", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    add("version", "print the version")
    return parser


def _add_admin(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> None:
    from magnetar.broker.cli.admin_command import add_group

    add_globals(parser, ADMIN)
    groups = parser.add_subparsers(dest="group", metavar="GROUP", required=True, title="groups")
    for name, (_, help) in GROUPS.items():
        group = groups.add_parser(name, help=help, description=help, allow_abbrev=False)
        add_globals(group, ADMIN, hidden=True)
        if arguments is None or name in arguments:
            add_group(group, name)


def _add_pipeline(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> None:
    add_globals(parser, PIPELINE)
    if arguments is None or "pipeline" in arguments:
        from magnetar.broker.cli.pipeline_command import add_jobs

        for job in add_jobs(parser):
            add_globals(job, PIPELINE, hidden=True)


def _add_profiles(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all of them; * is the one in use")
    add_globals(listing, frozenset(("json",)))
    add = actions.add_parser("add", help="add or replace one; the first one is in use at once")
    add.add_argument("name", metavar="NAME")
    add_globals(add, PROFILES)
    actions.add_parser("use", help="use one from now on").add_argument("name", metavar="NAME")
    actions.add_parser("remove", help="forget one").add_argument("name", metavar="NAME")


def _add_standalone(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", metavar="DIR", help="where everything is kept (default: data)")
    add("--port", type=int, help="binary protocol, 0 picks a free port (default: 6650)")
    add("--web-port", type=int, help="HTTP, 0 picks a free port (default: 8080)")
    add("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add("--config", metavar="FILE", help="a broker.conf")
    add("--log-format", choices=("text", "json"), help="json: one object a line (default: text)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting of broker.conf; may be repeated",
    )


def _add_clients(add: Callable[[str, str], argparse.ArgumentParser]) -> None:
    from magnetar.broker.cli.client_options import add_consume, add_produce, add_read

    for name, help, fill in (
        ("produce", "send messages to a topic", add_produce),
        ("consume", "receive messages of a subscription", add_consume),
        ("read", "receive messages from one on, without a subscription", add_read),
    ):
        parser = add(name, help)
        add_globals(parser, CLIENTS)
        fill(parser)


def _standalone(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.standalone_command import run_standalone

    return run_standalone(options)


def _broker(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.standalone_command import run_broker

    return run_broker(options)


def _cluster(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.cluster_command import run_cluster

    return run_cluster(options)


def _bookie(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.bookie_command import run_bookie

    return run_bookie(options)


def _bookie_drain(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.drain_command import run_bookie_drain

    return run_bookie_drain(options)


def _probe(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.probe_command import run_probe

    return run_probe(options)


def _zookeeper(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.zookeeper_command import run_zookeeper

    return run_zookeeper(options)


def _metadata(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.metadata_command import run_metadata

    return run_metadata(options)


def _bookie_shell(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.shell_command import run_bookie_shell

    return run_bookie_shell(options)


def _autorecovery(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.autorecovery_command import run_autorecovery

    return run_autorecovery(options)


def _produce(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.produce_command import run_produce

    return run_produce(options)


def _consume(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.consume_command import run_consume

    return run_consume(options)


def _read(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.consume_command import run_read

    return run_read(options)


def _admin(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.admin_command import run_admin

    return run_admin(options)


def _pipeline(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.pipeline_command import run_pipeline

    return run_pipeline(options)


def _profiles(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.profiles_command import run_profiles

    return run_profiles(options)


def _tokens(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.tokens_command import run_tokens

    return run_tokens(options)


def _completion(options: argparse.Namespace) -> int:
    from magnetar.broker.cli.completion import completion_script

    print(completion_script(options.shell))
    return 0


def _version(_: argparse.Namespace) -> int:
    from magnetar.broker.cli.version import product_version

    print(product_version())
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "standalone": _standalone,
    "cluster": _cluster,
    "broker": _broker,
    "bookie": _bookie,
    "bookie-drain": _bookie_drain,
    "probe": _probe,
    "zookeeper": _zookeeper,
    "metadata": _metadata,
    "autorecovery": _autorecovery,
    "bookie-shell": _bookie_shell,
    "produce": _produce,
    "consume": _consume,
    "read": _read,
    "admin": _admin,
    "pipeline": _pipeline,
    "profiles": _profiles,
    "tokens": _tokens,
    "completion": _completion,
    "version": _version,
}


if __name__ == "__main__":
    sys.exit(main())
