"""Words of ``magnetar bookie-shell``; names are those of BookKeeper's shell, and its flags work."""

import argparse
from collections.abc import Callable
from typing import Final

from magnetar.broker.cli.global_options import add_globals, add_watch

#: The only global flag that means something here: answers as JSON, a line each.
JSON: Final = frozenset(("json",))

#: Those that look at the directories of a bookie that doesn't run, and need no cluster.
LOCAL = frozenset(("listfilesondisc", "bookieformat"))

#: Those that `--watch` makes sense for.
_READS: Final = frozenset(
    (
        *("listbookies", "bookieinfo", "listledgers", "ledgermetadata"),
        *("whoisauditor", "zones", "listunderreplicated"),
    )
)

_Add = Callable[[str, str], argparse.ArgumentParser]


def add_bookie_shell(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--metadata",
        metavar="URL",
        help="zk:HOST:PORT,.../CHROOT of the cluster, or zk+hierarchical://.../ledgers",
    )
    add("--config", metavar="FILE", help="a broker.conf: where the cluster is, TLS, login")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting of broker.conf; may be repeated",
    )
    add_globals(parser, JSON)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")

    def action(name: str, help: str) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=help, description=help, allow_abbrev=False)
        if name in _READS:
            add_watch(parser)
        return parser

    _add_bookies(action)
    _add_ledgers(action)
    _add_repair(action)
    _add_local(action)


def _add_bookies(action: _Add) -> None:
    add = action("listbookies", "bookies that are registered").add_argument
    add("-rw", "--read-write", action="store_true", help="only those that accept writes")
    add("-ro", "--read-only", action="store_true", help="only those that don't")
    action("bookieinfo", "disk usage of each bookie")
    action("whatisinstanceid", "the cluster's name for itself")
    add = action("simpletest", "write a ledger, read it back, delete it").add_argument
    add("-e", "-ensemble", "--ensemble", type=int, default=3, metavar="E", help="(default: 3)")
    add("-w", "-writeQuorum", "--write-quorum", type=int, metavar="QW", help="(default: E)")
    add("-a", "-ackQuorum", "--ack-quorum", type=int, metavar="QA", help="(default: QW)")
    add("-n", "-numEntries", "--entries", type=int, default=1000, metavar="N")
    cookie = action("cookie", "which directory is whose").add_subparsers(
        dest="cookie", metavar="WHAT", required=True
    )
    cookie.add_parser("list", help="bookies that have one")
    cookie.add_parser("get", help="one bookie's").add_argument("bookie", metavar="BOOKIE")
    delete = cookie.add_parser("delete", help="forget a bookie that is gone for good")
    delete.add_argument("bookie", metavar="BOOKIE")
    _add_force(delete, "although ledgers still name it")
    parser = action("metaformat", "delete all ledgers, cookies and markers: the data are lost")
    _add_force(parser, "don't ask")


def _add_ledgers(action: _Add) -> None:
    add = action("listledgers", "ids of all ledgers").add_argument
    add("-m", "-meta", "--metadata", dest="meta", action="store_true", help="with their metadata")
    add("-b", "-bookieid", "--bookie", metavar="BOOKIE", help="only those that name it")
    _add_ledger(action("ledgermetadata", "what the cluster knows of a ledger"))
    parser = action("readledger", "entries of a ledger")
    _add_ledger(parser)
    add = parser.add_argument
    add("-fe", "-firstentryid", "--first", type=int, default=0, metavar="ENTRY")
    add("-le", "-lastentryid", "--last", type=int, metavar="ENTRY", help="(default: the last one)")
    add("-m", "-msg", "--bytes", action="store_true", help="show the entries' bytes")
    add("-r", "-force-recovery", "--recover", action="store_true", help="fence and close it first")
    _add_password(parser)
    parser = action("verifyledger", "read every replica of every entry; exit code 1: not all good")
    _add_ledger(parser)
    parser = action("deleteledger", "delete a ledger for ever")
    _add_ledger(parser)
    _add_force(parser, "don't ask")


def _add_repair(action: _Add) -> None:
    add = action("autorecovery", "automatic repair: on, off, how it is").add_argument
    add("-e", "-enable", "--enable", action="store_true", help="on; also releases zones held back")
    add("-d", "-disable", "--disable", metavar="REASON", nargs="?", const="by hand", help="off")
    add("-s", "-status", "--status", action="store_true", help="how it is (default)")
    action("whoisauditor", "who audits the cluster now")
    action("zones", "availability zones and whether repair of them is held back")
    add = action("listunderreplicated", "ledgers that wait for repair, and why").add_argument
    add("-b", "-missingreplica", "--bookie", metavar="BOOKIE", help="only those that miss it")
    add = action("lostbookierecoverydelay", "seconds from a loss to repair").add_argument
    add("-g", "-get", "--get", action="store_true", help="tell it (default)")
    add("-s", "-set", "--set-seconds", type=float, metavar="SECONDS", help="for all auditors")
    action("triggeraudit", "look for lost bookies now")
    parser = action("recover", "copy what bookies hold to others, here and now")
    parser.add_argument("bookies", metavar="BOOKIE,...", help="running ones, too")
    add = parser.add_argument
    add("-l", "-ledgerid", "--ledger", type=int, metavar="ID", help="only this ledger")
    add("-d", "-dryrun", "--dry-run", action="store_true", help="only tell what would be done")
    add("-o", "--open-ledgers", action="store_true", help="close ledgers that write to them, too")
    parser = action("decommissionbookie", "wait until a stopped bookie's data are elsewhere")
    parser.add_argument("bookie", metavar="BOOKIE")


def _add_local(action: _Add) -> None:
    _add_directories(action("listfilesondisc", "files of a bookie on this machine, by kind"))
    parser = action("bookieformat", "empty the directories of a stopped bookie: its data are lost")
    _add_directories(parser)
    _add_force(parser, "don't ask")


def _add_ledger(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-l", "-ledgerid", "--ledger", type=int, required=True, metavar="ID", help="which ledger"
    )


def _add_password(parser: argparse.ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    add(
        *("-p", "--password"),
        help="of the ledger; everybody on this machine sees it in the list of processes: better one"
        " of the next two, or the variable LEDGER_PASSWORD",
    )
    add("--password-file", metavar="FILE", help="read it from a file")
    add("--password-stdin", action="store_true", help="read it from standard input")


def _add_force(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("-f", "-force", "--force", action="store_true", help=help)


def _add_directories(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", metavar="DIR,...", help="ledger directories, as it runs with them"
    )
    parser.add_argument("--journal", metavar="DIR", help="journal directory, if it has its own")
