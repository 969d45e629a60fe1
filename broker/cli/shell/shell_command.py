"""``magnetar bookie-shell``: which action is meant, and the cluster it needs."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.shell import bookies, ledgers, local, repair
from magnetar.broker.cli.shell.cluster import ShellContext, ShellOutput, open_cluster
from magnetar.broker.cli.shell_options import LOCAL
from magnetar.broker.cli.standalone_command import load_config
from magnetar.broker.config import ConfigError
from magnetar.metadata.errors import MetadataError

_Action: TypeAlias = Callable[[ShellContext, argparse.Namespace, ShellOutput], Awaitable[int]]

_LOCAL: dict[str, Callable[[argparse.Namespace, ShellOutput], int]] = {
    "listfilesondisc": local.list_files,
    "bookieformat": local.format_bookie,
}
_ACTIONS: dict[str, _Action] = {
    "listbookies": bookies.list_bookies,
    "bookieinfo": bookies.book_info,
    "whatisinstanceid": bookies.instance,
    "simpletest": bookies.simple_test,
    "cookie": bookies.cookie,
    "metaformat": bookies.format_metadata,
    "listledgers": ledgers.list_ledgers,
    "ledgermetadata": ledgers.show_metadata,
    "readledger": ledgers.read_ledger,
    "verifyledger": ledgers.verify_ledger,
    "deleteledger": ledgers.delete_ledger,
    "autorecovery": repair.auto_recovery,
    "whoisauditor": repair.auditor,
    "zones": repair.zones,
    "listunderreplicated": repair.list_under_replicated,
    "lostbookierecoverydelay": repair.lost_bookie_delay,
    "triggeraudit": repair.trigger_audit,
    "recover": repair.recover,
    "decommissionbookie": repair.decommission_bookie,
}


def run_bookie_shell(options: argparse.Namespace) -> int:
    out = ShellOutput(options.json)
    try:
        if options.action in LOCAL:
            return _LOCAL[options.action](options, out)
        with progress(options.action, None):
            return asyncio.run(_run(options, out))
    except (BookkeeperError, ConfigError, MetadataError, OSError) as error:
        raise CliError(str(error)) from error


async def _run(options: argparse.Namespace, out: ShellOutput) -> int:
    async with open_cluster(load_config(options)) as cluster:
        return await _ACTIONS[options.action](cluster, options, out)
