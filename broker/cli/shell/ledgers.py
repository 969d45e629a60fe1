"""Actions about ledgers."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.ledgers import ReadHandle
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.ledger_checker import CheckResult, LedgerChecker
from magnetar.bookkeeper.replication.registrations import read_registered
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.shell.cluster import ShellContext, ShellOutput


async def list_ledgers(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    async for found in cluster.ledgers.ranges():
        for ledger_id in found.ledger_ids:
            if not options.meta and options.bookie is None:
                out.say(str(ledger_id), ledger=ledger_id)
                continue
            node = await cluster.ledgers.read(ledger_id)
            if node is None:
                continue  # deleted since
            named = any(options.bookie in s.bookies for s in node.metadata.segments)
            if options.bookie is not None and not named:
                continue
            if options.meta:
                _tell(node.metadata, out)
            else:
                out.say(str(ledger_id), ledger=ledger_id)
    return 0


async def show_metadata(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    _tell(await _require(cluster, options.ledger), out)
    return 0


async def read_ledger(cluster: ShellContext, options: argparse.Namespace, out: ShellOutput) -> int:
    password = _password(options)
    await _require(cluster, options.ledger)
    reader = await cluster.client.open_ledger(options.ledger, password, recover=options.recover)
    view = ReadHandle(reader)
    last = view.last_confirmed if options.last is None else options.last
    if not 0 <= options.first <= last + 1 or last > view.last_confirmed:
        raise CliError(
            f"ledger {options.ledger} has entries 0 to {view.last_confirmed}, "
            f"not {options.first} to {last}"
        )
    async for entry_id, entry in view.entries(options.first):
        if entry_id > last:
            break
        text = f"{entry_id}\t{len(entry)} bytes"
        if options.bytes:
            out.say(f"{text}\t{entry!r}", entry=entry_id, bytes=len(entry), hex=entry.hex())
        else:
            out.say(text, entry=entry_id, bytes=len(entry))
    return 0


def _password(options: argparse.Namespace) -> bytes:
    """Without the end of its line; a ledger's password may be any other bytes."""
    if options.password is not None:
        return os.fsencode(options.password)
    if options.password_stdin:
        found = sys.stdin.buffer.read()
    elif options.password_file is not None:
        try:
            found = Path(options.password_file).read_bytes()
        except OSError as error:
            raise CliError(f"--password-file {options.password_file}: {error.strerror}") from error
    else:
        return os.environb.get(b"LEDGER_PASSWORD", b"")
    return found.removesuffix(b"\n").removesuffix(b"\r")


async def verify_ledger(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    metadata = await _require(cluster, options.ledger)
    registered = await read_registered(cluster.store)
    checker = LedgerChecker(cluster.bookies, cluster.rng, ReplicationConfig())
    members = {bookie for segment in metadata.segments for bookie in segment.bookies}
    findings = await checker.check(metadata, registered, every=members)
    for finding in findings:
        _tell_finding(finding, out)
    unchecked = "" if metadata.state is LedgerState.CLOSED else "; its last segment is still open"
    counts = Counter(finding.problem.value for finding in findings)
    summary = ", ".join(f"{count} x {what}" for what, count in counts.items()) or "all good"
    out.say(
        f"ledger {options.ledger}: {len(metadata.segments)} segments on {len(members)} bookies: "
        f"{summary}{unchecked}",
        ledger=options.ledger,
        findings=len(findings),
        closed=metadata.state is LedgerState.CLOSED,
    )
    return int(bool(findings))


def _tell_finding(finding: CheckResult, out: ShellOutput) -> None:
    out.say(
        str(finding),
        firstEntry=finding.fragment.first_entry,
        bookie=finding.bookie,
        problem=finding.problem.value,
        entries=[[first, end - 1] for first, end in finding.runs],
    )


async def delete_ledger(
    cluster: ShellContext, options: argparse.Namespace, out: ShellOutput
) -> int:
    metadata = await _require(cluster, options.ledger)
    if not options.force:
        whose = {name: value.decode(errors="replace") for name, value in _custom(metadata).items()}
        raise CliError(f"ledger {options.ledger} ({whose}) would be lost for ever; --force does it")
    await cluster.client.delete_ledger(options.ledger)
    out.say(f"ledger {options.ledger} is deleted", deleted=options.ledger)
    return 0


async def _require(cluster: ShellContext, ledger_id: int) -> LedgerMetadata:
    if not 0 <= ledger_id < 2**63:
        raise CliError(f"not a ledger id: {ledger_id}")
    metadata = await cluster.client.read_ledger_metadata(ledger_id)
    if metadata is None:
        raise CliError(f"ledger {ledger_id} doesn't exist")
    return metadata


def _custom(metadata: LedgerMetadata) -> dict[str, bytes]:
    return dict(metadata.custom_metadata)


def _tell(metadata: LedgerMetadata, out: ShellOutput) -> None:
    custom = {name: value.decode(errors="replace") for name, value in _custom(metadata).items()}
    segments = [{"firstEntry": s.first_entry, "bookies": s.bookies} for s in metadata.segments]
    quorums = f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"
    end = (
        f", last entry {metadata.last_entry}, {metadata.length} bytes"
        if metadata.state is LedgerState.CLOSED
        else ""
    )
    lines = [f"ledger {metadata.ledger_id}: {metadata.state.value}, {quorums}{end}"]
    lines += [f"  from {s.first_entry}: {', '.join(s.bookies)}" for s in metadata.segments]
    lines.append(f"  creator token: {metadata.creator_token}")
    lines += [f"  {name}: {value}" for name, value in custom.items()]
    out.say(
        "\n".join(lines),
        ledger=metadata.ledger_id,
        state=metadata.state.value,
        ensembleSize=metadata.ensemble_size,
        writeQuorum=metadata.write_quorum,
        ackQuorum=metadata.ack_quorum,
        lastEntry=metadata.last_entry,
        length=metadata.length,
        createdMs=metadata.created_ms,
        hasPassword=bool(metadata.password),
        creatorToken=metadata.creator_token,
        segments=segments,
        customMetadata=custom,
    )
