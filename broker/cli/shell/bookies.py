"""Actions about bookies and the cluster as a whole."""

import argparse
import asyncio
import contextlib

from magnetar.bookkeeper.bookie.cookie import INSTANCE_ID_PATH, read_instance_id
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.layout.cookie_format import cookie_fields
from magnetar.bookkeeper.ledgers import Ledgers
from magnetar.bookkeeper.replication.decommission import ledgers_of
from magnetar.bookkeeper.replication.registrations import read_registered
from magnetar.bookkeeper.service_info import COOKIES_PATH
from magnetar.bookkeeper.transport import BookieStatus
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.shell.cluster import ShellContext, ShellOutput
from magnetar.metadata.errors import NotFoundError
from magnetar.metadata.paths import decode_name

_LEDGERS_ROOT = "/ledgers"


async def list_bookies(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    writable = cluster.bookies.writable
    for bookie in sorted(await read_registered(cluster.store)):
        read_only = bookie not in writable
        if (options.read_write and read_only) or (options.read_only and not read_only):
            continue
        info = cluster.bookies.infos.get(bookie)
        place = "" if info is None else info.network_location
        where = None if info is None else info.any_address
        address = None if where is None else "{}:{}".format(*where)
        out.say(
            f"{bookie}\t{'read-only' if read_only else 'writable'}\t{place}\t{address or '-'}",
            bookie=bookie,
            readOnly=read_only,
            networkLocation=place,
            address=address,
        )
    return 0


async def book_info(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    bookies = sorted(await read_registered(cluster.store))
    answers = await asyncio.gather(*(_info(cluster, bookie) for bookie in bookies))
    failed = False
    free = total = 0
    for bookie, answer in zip(bookies, answers, strict=True):
        if isinstance(answer, str):
            failed = True
            out.say(f"{bookie}\t{answer}", bookie=bookie, error=answer)
            continue
        free, total = free + answer.free_bytes, total + answer.total_bytes
        out.say(
            f"{bookie}\t{_usage(answer.free_bytes, answer.total_bytes)}"
            f"{', read-only' if answer.read_only else ''}",
            bookie=bookie,
            freeBytes=answer.free_bytes,
            totalBytes=answer.total_bytes,
            readOnly=answer.read_only,
        )
    out.say(f"all\t{_usage(free, total)}", freeBytes=free, totalBytes=total)
    return int(failed)


async def _info(cluster: ShellContext, bookie: str) -> BookieStatus | str:
    try:
        return await cluster.bookies.client(bookie).info()
    except BookkeeperError as error:
        return f"no answer: {error}"


def _usage(free: int, total: int) -> str:
    used = 100 * (total - free) / total if total else 0.0
    return f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB, {used:.0f} % used"


async def instance(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    found = await cluster.store.get(INSTANCE_ID_PATH)
    if found is None:
        raise CliError("the cluster has no instance id: no bookie was ever started in it")
    out.say(found.value.decode(), instanceId=found.value.decode())
    return 0


async def simple_test(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    quorum = options.write_quorum or options.ensemble
    ledgers = Ledgers(cluster.store, cluster.client)
    if options.entries < 1:
        raise CliError("--entries: at least one")
    try:
        ledger = await ledgers.create(options.ensemble, quorum, options.ack_quorum or quorum)
    except ValueError as error:
        raise CliError(str(error)) from error
    try:
        wanted = [b"entry %d of ledger %d" % (n, ledger.ledger_id) for n in range(options.entries)]
        await ledger.append_all(wanted)
        await ledger.close()
        view = await ledgers.open(ledger.ledger_id)
        found = [entry async for _, entry in view.entries()]
        metadata = await ledgers.metadata(ledger.ledger_id)
    finally:
        await ledgers.delete(ledger.ledger_id)
    if found != wanted:
        raise CliError(f"ledger {ledger.ledger_id}: what was read isn't what was written")
    assert metadata is not None
    bookies = list(metadata.segments[0].bookies)
    out.say(
        f"{options.entries} entries written to {', '.join(bookies)} and read back",
        entries=options.entries,
        bookies=bookies,
    )
    return 0


async def cookie(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    if options.cookie == "list":
        for name in await cluster.store.children(COOKIES_PATH):
            out.say(decode_name(name), bookie=decode_name(name))
        return 0
    path = cluster.ledgers.layout.cookie_path(options.bookie)
    found = await cluster.store.get(path)
    if found is None:
        raise CliError(f"bookie {options.bookie} has no cookie")
    if options.cookie == "get":
        fields = cookie_fields(found.value)
        out.say("\n".join(f"{name}: {value}" for name, value in fields.items()), **fields)
        return 0
    await _check_unused(cluster, options.bookie, force=options.force)
    await cluster.store.delete(path, found.stat.version)
    out.say(f"the cookie of {options.bookie} is deleted", deleted=options.bookie)
    return 0


async def _check_unused(cluster: ShellContext, bookie: str, *, force: bool) -> None:
    if bookie in await read_registered(cluster.store):
        raise CliError(f"bookie {bookie} is registered: stop it first")
    if force:
        return
    async for ledger_id in ledgers_of(cluster.ledgers, {bookie}):
        raise CliError(
            f"ledger {ledger_id} names {bookie}, maybe others, too: `decommissionbookie` copies "
            "what it held; --force forgets the bookie at once"
        )


async def format_metadata(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    bookies = sorted(await read_registered(cluster.store))
    if bookies:
        raise CliError(f"bookies are registered, stop them first: {', '.join(bookies)}")
    count = 0
    async for found in cluster.ledgers.ranges():
        count += len(found.ledger_ids)
    if not options.force:
        raise CliError(f"{count} ledgers would be lost for ever; --force does it")
    with contextlib.suppress(NotFoundError):
        await cluster.store.delete_recursive(_LEDGERS_ROOT)
    # A new name, so that directories of the old cluster are refused.
    name = await read_instance_id(cluster.store)
    out.say(f"{count} ledgers forgotten; the cluster is {name} now", ledgers=count, instanceId=name)
    return 0
