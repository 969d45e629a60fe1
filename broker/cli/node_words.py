"""Words of the commands that run one node of a cluster."""

from __future__ import annotations

import argparse

__all__ = ["add_bookie", "add_broker"]


def add_bookie(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--metadata", metavar="URL", help="zk:HOST:PORT,.../CHROOT of the cluster")
    add("--data", metavar="DIR", help="journal, entry logs and index (default: data/bookie)")
    add("--port", type=int, help="of its service, 0 picks a free port (default: 3181)")
    add("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add("--id", metavar="NAME", help="its name for ever (default: advertised host:port)")
    _add_common(parser, "bookkeeper.conf")


def add_broker(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--metadata", metavar="URL", help="zk:HOST:PORT,.../CHROOT of the cluster")
    add("--port", type=int, help="binary protocol, 0 picks a free port (default: 6650)")
    add("--web-port", type=int, help="HTTP, 0 picks a free port (default: 8080)")
    add("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    _add_common(parser, "broker.conf")


def _add_common(parser: argparse.ArgumentParser, file: str) -> None:
    add = parser.add_argument
    add("--config", metavar="FILE", help=f"a {file}")
    add("--log-format", choices=("text", "json"), help="json: one object a line (default: text)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"one setting of {file}; may be repeated",
    )
