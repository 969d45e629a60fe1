"""``magnetar``: one command with sub-commands; each is imported only when it is called.

argparse instead of typer: docs/decisions/0002-argparse-and-lean-config.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from broker.cli.errors import CliError

__all__ = ["build_parser", "main"]

DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"
DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        return _run(options, parser)
    except CliError as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    match options.command:
        case "standalone":
            from broker.cli.standalone_command import run_standalone

            return run_standalone(options)
        case "produce":
            from broker.cli.message_commands import run_produce

            return run_produce(options)
        case "consume":
            from broker.cli.message_commands import run_consume

            return run_consume(options)
        case "admin":
            from broker.cli.admin_command import run_admin

            return run_admin(options)
        case "version":
            from broker.cli.version import product_version

            print(product_version())
            return 0
    parser.print_help()
    return 2


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="magnetar", description="A Pulsar-compatible message broker, its tools and its admin."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_standalone(commands.add_parser("standalone", help="run everything in one process"))
    _add_produce(commands.add_parser("produce", help="send messages to a topic"))
    _add_consume(commands.add_parser("consume", help="receive messages of a subscription"))
    from broker.cli.admin_words import add_admin

    add_admin(
        commands.add_parser("admin", help="tenants, namespaces, topics, brokers over HTTP"),
        DEFAULT_ADMIN_URL,
    )
    commands.add_parser("version", help="print the version")
    return parser


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


def _add_produce(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_url(parser)
    add("topic", metavar="TOPIC")
    add("-m", "--messages", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("-f", "--file", action="append", default=[], metavar="FILE", help="its bytes: one message")
    add("-s", "--separator", default=",", help="splits TEXT into messages; empty: never (,)")
    add("-n", "--num-produce", type=int, default=1, metavar="COUNT", help="times to send all (1)")
    add("-k", "--key", help="key of every message")
    add(
        "-p",
        "--properties",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="property of every message; may be repeated",
    )
    add("-r", "--rate", type=float, default=0.0, help="messages a second, 0: as fast as possible")


def _add_consume(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_url(parser)
    add("topic", metavar="TOPIC")
    add("-s", "--subscription-name", required=True, metavar="NAME")
    add("-n", "--num-messages", type=int, default=1, metavar="COUNT", help="0: forever (1)")
    add(
        "-t",
        "--subscription-type",
        default="Exclusive",
        choices=("Exclusive", "Shared", "Failover", "Key_Shared"),
    )
    add(
        "-p",
        "--subscription-position",
        type=lambda text: text.capitalize(),
        default="Latest",
        choices=("Latest", "Earliest"),
        metavar="latest|earliest",
        help="where a new subscription starts (latest)",
    )
    add("-q", "--queue-size", type=int, default=1000, help="messages fetched ahead (1000)")
    add("--hex", action="store_true", help="show contents in hexadecimal")
    add("--hide-content", action="store_true", help="show only the number of messages")
    add("--timeout", type=float, default=0.0, help="give up after so many seconds of silence")


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=DEFAULT_SERVICE_URL,
        help=f"service URL of the broker ({DEFAULT_SERVICE_URL})",
    )


if __name__ == "__main__":
    sys.exit(main())
