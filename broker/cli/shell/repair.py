"""Actions about repair: switches, markers, and the removal of bookies."""

import argparse
import contextlib
import time
from collections import defaultdict
from functools import partial

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.replication.auditor_elector import read_auditor
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.decommission import decommission, recover_bookies, without
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker
from magnetar.bookkeeper.replication.ledger_repair import LedgerRepair
from magnetar.bookkeeper.replication.metrics import ReplicationMetrics
from magnetar.bookkeeper.replication.registrations import read_registered, read_start
from magnetar.bookkeeper.replication.replicator import ReplicationThrottle, Replicator
from magnetar.bookkeeper.replication.under_replication import (
    UnderReplicationStore,
)
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.shell.cluster import ShellContext, ShellOutput, clock_ms


async def auto_recovery(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    if options.enable and options.disable is not None:
        raise CliError("--enable or --disable, not both")
    return await turn_switch(cluster.markers, options, out)


async def turn_switch(
    markers: UnderReplicationStore, options: argparse.Namespace, out: ShellOutput
) -> int:
    """Automatic repair on or off if ``options`` say so; then how it is."""
    if options.enable:
        await markers.enable()
    elif options.disable is not None:
        await markers.disable(options.disable)
    switch = await markers.disabled()
    if switch is None:
        out.say("automatic repair is on", enabled=True)
    else:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(switch.since_ms / 1000))
        out.say(
            f"automatic repair is off since {since}: {switch.reason}",
            enabled=False,
            sinceMs=switch.since_ms,
            reason=switch.reason,
        )
    return 0


async def auditor(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    name = await read_auditor(cluster.store, cluster.ledgers.layout)
    if name is None:
        raise CliError("nobody audits the cluster: is `magnetar autorecovery` running?")
    out.say(name, auditor=name)
    return 0


async def zones(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    members: dict[str, list[str]] = defaultdict(list)
    registered = await read_registered(cluster.store)
    for bookie in sorted(registered):
        info = cluster.bookies.infos.get(bookie)
        place = "" if info is None else info.network_location
        members[place.strip("/").partition("/")[0] or "?"].append(bookie)
    phases = await ZoneStore(cluster.store).read()
    for zone in sorted({*members, *phases}):
        phase = phases[zone].value if zone in phases else "up"
        out.say(
            f"{zone}\t{phase}\t{len(members[zone])} registered: {', '.join(members[zone])}",
            zone=zone,
            phase=phase,
            bookies=members[zone],
        )
    return 0


async def list_under_replicated(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    async for ids in cluster.markers.ledger_ids():
        for ledger_id in ids:
            marker = await cluster.markers.read(ledger_id)
            if marker is None or (options.bookie and options.bookie not in marker.bookies):
                continue
            age_s = (clock_ms() - marker.created_ms) // 1000
            bookies = sorted(marker.bookies)
            out.say(
                f"{ledger_id}\t{', '.join(bookies)}\t{age_s} s\t"
                f"{marker.reason or 'waits for a worker'}",
                ledger=ledger_id,
                bookies=bookies,
                ageSeconds=age_s,
                reason=marker.reason,
            )
    return 0


async def lost_bookie_delay(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    if options.set_seconds is not None:
        try:
            await cluster.markers.set_lost_bookie_delay_s(options.set_seconds)
        except ValueError as error:
            raise CliError(str(error)) from error
    delay_s = await cluster.markers.lost_bookie_delay_s()
    text = "not set: the auditor's own setting holds" if delay_s is None else f"{delay_s:g} s"
    out.say(text, seconds=delay_s)
    return 0


async def trigger_audit(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    delay_s = await cluster.markers.lost_bookie_delay_s()
    # Setting the delay, also to what it is, is what auditors take as the order to look.
    await cluster.markers.set_lost_bookie_delay_s(0.0 if delay_s is None else delay_s)
    out.say("the auditor was told to look for lost bookies", triggered=True)
    return 0


async def recover(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    bookies = frozenset(filter(None, options.bookies.split(",")))
    if not bookies:
        raise CliError("which bookies?")
    registered = without(bookies, partial(read_registered, cluster.store))
    config = ReplicationConfig()
    metrics = ReplicationMetrics()
    repair = LedgerRepair(
        cluster.markers,
        cluster.ledgers,
        cluster.bookies,
        cluster.placement,
        LedgerChecker(cluster.bookies, cluster.rng, config),
        Replicator(
            cluster.ledgers,
            cluster.bookies,
            cluster.placement,
            ReplicationThrottle(config.bytes_per_s),
            config,
            metrics,
            partial(read_start, cluster.store),
        ),
        rng=cluster.rng,
        config=config,
        client_config=ClientConfig(),
        metrics=metrics,
        registered=registered,
        is_stopped=lambda: False,
    )
    left = count = 0
    async with contextlib.aclosing(
        recover_bookies(
            bookies,
            repair,
            open_ledgers=options.open_ledgers,
            dry_run=options.dry_run,
            ledger_ids=None if options.ledger is None else [options.ledger],
        )
    ) as states:
        async for state in states:
            count, left = state.done, left + bool(state.problem)
            out.say(
                f"{state.done}/{state.ledgers} ledger {state.ledger_id}: {state.problem or 'done'}",
                ledger=state.ledger_id,
                done=state.done,
                ledgers=state.ledgers,
                problem=state.problem,
            )
    out.say(f"{count - left} of {count} ledgers done, {left} left", ledgers=count, left=left)
    return int(left > 0 and not options.dry_run)


async def decommission_bookie(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    states = decommission(options.bookie, cluster.store, cluster.ledgers, cluster.markers)
    try:
        async with contextlib.aclosing(states):
            async for state in states:
                text = f"{state.ledgers_left} of {state.ledgers} ledgers left"
                waiting = {str(ledger_id): why for ledger_id, why in state.waiting.items()}
                shown = list(waiting.items())[:10]
                lines = [text, *(f"  ledger {ledger_id}: {why}" for ledger_id, why in shown)]
                if state.done:
                    lines = [f"{options.bookie} holds nothing any more; its cookie is deleted"]
                out.say(
                    "\n".join(lines),
                    ledgers=state.ledgers,
                    left=state.ledgers_left,
                    waiting=waiting,
                    done=state.done,
                )
    except BookkeeperError as error:
        raise CliError(str(error)) from error
    return 0
