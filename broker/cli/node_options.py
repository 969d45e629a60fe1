"""Options of the commands that run one node of a cluster."""

import argparse

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.global_options import CONSOLE, add_globals


def add_bookie(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--metadata", metavar="URL", help="zk:HOST:PORT,.../CHROOT of the cluster")
    add("--data", metavar="DIR", help="journal, entry logs and index (default: data/bookie)")
    add("--port", type=int, help="of its service, 0 picks a free port (default: 3181)")
    add("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add("--id", metavar="NAME", help="its name for ever (default: advertised host:port)")
    _add_common(parser, "bookkeeper.conf")


def add_bookie_drain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    url = "http://127.0.0.1:8080"
    add("address", nargs="?", metavar="URL", default=url, help=f"of its HTTP port ({url})")
    add("--timeout", type=float, metavar="S", default=30.0, help="to wait, else exit with 1 (30)")
    add("--token", metavar="SOURCE", help="of a bookieAllowedRole: file:///PATH, or the token")
    add("--undo", action="store_true", help="let it take writers again")


def add_console(parser: argparse.ArgumentParser) -> None:
    add_globals(parser, CONSOLE)
    parser.epilog = "Everybody who reaches the console uses the credentials of this command."
    add = parser.add_argument
    add("--port", type=int, default=9090, help="(9090)")
    add("--bind", metavar="ADDRESS", default="127.0.0.1", help="(127.0.0.1)")
    add("--read-only", action="store_true", help="change nothing")
    add(
        "--messages",
        choices=("full", "metadata", "off"),
        default="full",
        help="what of messages is shown (full); metadata: no values",
    )
    add(
        "--masked-fields",
        metavar="NAME,...",
        default="",
        help="fields of values, at any depth, and properties whose values are shown as •••",
    )
    add(
        "--environment",
        metavar="NAME:COLOUR",
        default="",
        help="shown on every page: production:red, staging:yellow, test:green",
    )


def add_probe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    url = "http://127.0.0.1:8080/livez"
    add("address", nargs="?", metavar="URL", default=url, help=f"what to get (default: {url})")
    add("--timeout", type=float, metavar="S", default=5.0, help="for an answer (default: 5)")


def add_zookeeper(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The server is Apache ZooKeeper and needs Java; it is in the pipeline's extra."
    add = parser.add_argument
    add("--data", metavar="DIR", default="data/zookeeper", help="(default: data/zookeeper)")
    add("--client-port", type=int, default=2181, help="-1: ports of the settings only (2181)")
    add("--bind", metavar="ADDRESS", default="0.0.0.0", help="for clients (default: all)")
    add(
        "--server",
        action="append",
        default=[],
        metavar="ID=HOST:PORT:PORT",
        help="a member of the ensemble, also this one; repeated. Without: it is alone",
    )
    add("--id", type=int, help="of this member (default: number at the host name's end, plus 1)")
    add("--heap", metavar="SIZE", default="256m", help="of Java (default: 256m)")
    add(
        "--certificates",
        metavar="DIR",
        help="tls-combined.pem (key and certificate) and ca.crt, renewed ones too, for settings"
        " that switch TLS on",
    )
    add("--check", choices=("live", "ready"), help="only ask the server on --client-port")
    _add_common(parser, "zoo.cfg")


def add_metadata(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "While brokers and bookies are stopped."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    recover = actions.add_parser(
        "recover",
        help="a standalone's metadata when they are damaged: say what is lost, go on without it",
        epilog="Damaged files are kept beside the new ones.",
    )
    add = recover.add_argument
    add("--data", metavar="DIR", default="data", help="of the standalone (default: data)")
    add("--accept-data-loss", action="store_true", help="do it; without: nothing is changed")
    convert = actions.add_parser(
        "convert",
        help="a cluster's metadata of ledgers and bookies: into Apache BookKeeper's form",
        epilog="It can be cut short and begun again.",
    )
    add = convert.add_argument
    add("--metadata", metavar="URL", required=True, help="zk:HOST:PORT,.../CHROOT of the cluster")
    add("--metadata-config", metavar="FILE", help="TLS and login, as metadataStoreConfigPath")
    add("--dry-run", action="store_true", help="only say what there is to do, and what hinders it")


def add_migrate(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "While no broker of either kind runs. No ledger is copied."
    add = parser.add_argument
    add("action", choices=("in-place",), help="over the bookies that the cluster has")
    add(
        "--metadata",
        metavar="URL",
        required=True,
        help="metadataStoreUrl of Pulsar's brokers: zk:HOST:PORT,.../CHROOT",
    )
    add("--metadata-config", metavar="FILE", help="TLS and login of ZooKeeper")
    add("--back", action="store_true", help="from Magnetar's brokers to Pulsar's")
    add("--dry-run", action="store_true", help="only tell what is carried, and what isn't")
    add("--accept-data-loss", action="store_true", help="go on without what would be lost")


def add_autorecovery(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--metadata", metavar="URL", help="zk:HOST:PORT,.../CHROOT of the cluster")
    add("--id", metavar="NAME", help="of this candidate for auditor (default: host:pid)")
    _add_common(parser, "bookkeeper.conf")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--status", action="store_true", help="only print if automatic repair is on")
    only.add_argument("--enable", action="store_true", help="only switch it on, in the cluster")
    only.add_argument("--disable", metavar="REASON", help="only switch it off, in the cluster")


def add_standalone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="where everything is kept (default: data)")
    _add_addresses(parser)
    parser.add_argument(
        "--processes",
        metavar="N",
        default="1",
        help="brokers, each a process; auto: one for each core (default: 1)",
    )
    parser.add_argument("--process", default="", help=argparse.SUPPRESS)  # which one this is


def add_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metadata", metavar="URL", help="zk:HOST:PORT,.../CHROOT of the cluster")
    _add_addresses(parser)


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=int, help="binary protocol, 0 picks a free port (default: 6650)")
    add("--web-port", type=int, help="HTTP, 0 picks a free port (default: 8080)")
    add("--bind", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    _add_common(parser, "broker.conf")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Ctrl-C stops all of it in order, a second one kills. The next start on the same --data"
        " finds everything again. Logs are in DIR/logs. More: docs/guides/cluster.md."
    )
    add = parser.add_argument
    add("--brokers", type=int, metavar="N", default=3, help="how many (default: 3)")
    add("--bookies", type=int, metavar="N", help="how many (default: as before, at first 3)")
    add("--data", metavar="DIR", help="below which each has a folder (default: data/cluster)")
    add(
        "--port",
        type=int,
        help="of the first broker, the others follow; 0: all free (at first 6650)",
    )
    add("--web-port", type=int, help="HTTP of the first broker, the others follow (at first 8080)")
    add("--bookie-port", type=int, help="of the first bookie, the others follow (at first 3181)")
    add("--zookeeper-port", type=int, help="of the ZooKeeper (at first 2181)")
    add("--bind", metavar="ADDRESS", help="that all of them listen on (default: 127.0.0.1)")
    add("--metadata", metavar="URL", help="zk:HOST:PORT/CHROOT of a ZooKeeper that runs already")
    add(
        "--bookkeeper",
        choices=("magnetar", "apache"),
        help="whose bookies (default: as before, at first magnetar)",
    )
    add("--no-restart", action="store_true", help="a process that dies stays down")
    for kind in ("broker", "bookie"):
        add(
            f"--{kind}-set",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help=f"one setting of all {kind}s; may be repeated",
        )


def common_words(options: argparse.Namespace) -> list[str]:
    """The options of ``add_standalone`` that each process of one has."""
    words = [f"--set={text}" for text in options.set]
    for name in ("config", "data", "bind", "log_format"):
        if (value := getattr(options, name)) is not None:
            words += (f"--{name.replace('_', '-')}", value)
    return words


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


def given_settings(options: argparse.Namespace, **keys: str) -> dict[str, str]:
    """Settings by key: those of ``--set``, and above them of options that stand for one.

    Args:
        keys: option -> key.
    Raises:
        CliError: of ``--set`` one has no value.
    """
    settings: dict[str, str] = {}
    for text in options.set:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise CliError(f"--set {text}: KEY=VALUE is expected")
        settings[key] = value
    given = {key: getattr(options, name, None) for name, key in keys.items()}
    return settings | {key: str(value) for key, value in given.items() if value is not None}
