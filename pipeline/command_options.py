"""The arguments of ``magnetar pipeline``."""

import argparse
import re
from collections.abc import Callable
from typing import Final

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?")
_WHERE: Final = "earliest, latest, ledger:entry, a time (2026-11-23T08:00:00Z) or JSON by topic"


def add_words(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Fill in the jobs; returns their parsers."""
    actions = parser.add_subparsers(dest="action", metavar="JOB", required=True, title="jobs")

    def add(
        name: str, help: str, fill: Callable[[argparse.ArgumentParser], None]
    ) -> argparse.ArgumentParser:
        job = actions.add_parser(name, help=help, description=help, allow_abbrev=False)
        fill(job)
        return job

    return [
        add("export", "topics to Parquet; again: what is new since the last time", _add_export),
        add("replay", "an export, or other Parquet, to a topic", _add_replay),
        add("backlog", "what subscriptions still have to consume", _add_backlog),
        add("load", "hot bundles; with --keys the skew of a topic's keys", _add_load),
    ]


def _add_export(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("topics", metavar="TOPIC", nargs="*", help="topics, or single partitions")
    add("--pattern", metavar="REGEX", help="all topics that match, as tenant/namespace/.*")
    add("--to", metavar="FOLDER", required=True, help="local, or any URL that Spark can write to")
    _add_range(parser)
    add("--no-incremental", action="store_true", help="refuse a folder that holds an export")
    add("--columns", metavar="NAMES", help="of the source, with commas (all)")
    add(
        "--parquet-compression",
        metavar="NAME",
        default="zstd",
        help="zstd, snappy, gzip, none (zstd)",
    )
    add(
        "--run-bytes",
        metavar="SIZE",
        type=_size,
        default=8 * 1024**3,
        help="recorded at once: what a kill can cost (8G)",
    )
    add("--cursor", metavar="SUBSCRIPTION", help="moved along, so that brokers keep the rest")
    add("--allow-data-loss", action="store_true", help="go on where messages were trimmed")
    _add_spark(parser)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="of an export, or of other Parquet files")
    add("--to", metavar="TOPIC", required=True, help="which brokers must de-duplicate")
    add("--topic", metavar="TOPIC", help="which one of an export of several topics")
    add("--name", metavar="NAME", help="of this replay; another name sends all of it again")
    add("--rate", metavar="MESSAGES", type=float, default=0.0, help="a second, at most")
    add("--by-key", action="store_true", help="to the partitions of keys, not the original ones")
    add("--keep-delays", action="store_true", help="what is due later is delivered then")
    add("--order-by", metavar="COLUMNS", help="of other Parquet, with commas (message ids)")
    _add_spark(parser)


def _add_backlog(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "places",
        metavar="PLACE",
        nargs="*",
        help="tenant/namespace, a topic, or tenant/namespace/.* (public/default)",
    )
    add(
        "--sort",
        choices=("entries", "bytes", "oldest"),
        default="entries",
        help="what comes first: entries, bytes or oldest (entries)",
    )
    _add_report(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--keys", metavar="TOPIC", help="read its keys, in place of the brokers' statistics")
    add(
        "--sort",
        choices=("rate", "throughput", "messages", "storage", "backlog"),
        default="rate",
        help="of bundles: rate, throughput, messages, storage or backlog (rate)",
    )
    add("--top", metavar="N", type=_count, default=20, help="how many keys or bundles (20)")
    add("--consumers", metavar="N", type=_count, default=4, help="of a Key_Shared one (4)")
    add("--ranges", metavar="N", type=_count, default=64, help="of its slots, in the plot (64)")
    _add_range(parser)
    add("--allow-data-loss", action="store_true", help="go on where messages were trimmed")
    _add_report(parser)
    _add_spark(parser)


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="first", metavar="WHERE", help=f"{_WHERE} (earliest)")
    parser.add_argument("--until", dest="end", metavar="WHERE", help="the same (latest)")


def _add_report(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--parquet", metavar="FILE", help="write the table there, too")
    add("--plot", metavar="FILE", help="draw it: .svg, .png or .pdf")


def _add_spark(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cores", metavar="N", type=_count, help="of this machine (all)")
    add("--master", metavar="URL", help="of a Spark cluster, in place of this machine")
    for flag, what in (("--option", "of the source or sink"), ("--spark-conf", "of Spark")):
        add(
            flag,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"a setting {what}; may be repeated",
        )
    add("--spark-log", metavar="LEVEL", default="OFF", help="OFF, ERROR, WARN, INFO (OFF)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--progress", action="store_true", help="lines also where no terminal is")
    shown.add_argument("--no-progress", action="store_true", help="nothing on a terminal either")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number above 0, not {text!r}")
    return int(text)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"a size as 512M or 8G, not {text!r}")
    return int(found[1]) << (10 * " kmgt".index(found[2] or " "))
