"""Checks of the bookies and of the replicas of ledgers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.doctor.broker_checks import CredentialFacts, check_credentials
from magnetar.broker.doctor.cluster_checks import Clock, check_clocks, grouped, told
from magnetar.broker.doctor.findings import Finding, Severity
from magnetar.broker.doctor.group_checks import GroupFacts, check_groups

DISK_FULL: Final = 0.95
"""Bookies become read-only there by default (diskUsageThreshold)."""
DISK_ALMOST_FULL: Final = 0.85
_NAMED_MAX: Final = 5
_SHELL: Final = "magnetar bookie-shell"
_STATE: Final = "magnetar admin bookies state"


@dataclass(frozen=True, slots=True)
class BookieFacts:
    """One bookie.

    Attributes:
        is_registered: in the metadata store now; else only its cookie is there.
        silence: why it didn't answer; "": it did, or wasn't asked.
        used: part of its disks that is in use; None: not known.
        free_bytes: of its disks; None: not known.
        is_failing: this broker has it in quarantine.
        data: what it knows of the state of its data (BookieClient.check_data); None: not known.
        clock: beside the broker's; None: not known.
        version: "": not known.
    """

    bookie_id: str
    is_registered: bool = True
    is_read_only: bool = False
    silence: str = ""
    used: float | None = None
    free_bytes: int | None = None
    is_failing: bool = False
    data: Mapping[str, Any] | None = None
    clock: Clock | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class RepairFacts:
    """Auto-recovery.

    Attributes:
        off_reason: why it is switched off; None: it is on.
        auditor: who audits; "": nobody.
        waiting: ledgers that are marked as under-replicated.
        without_replica: those of them whose marker names every bookie of a segment.
        oldest_ms: when the oldest of them was marked; None: there is none.
        reasons: why some of them still wait.
    """

    off_reason: str | None = None
    off_since_ms: int | None = None
    auditor: str = ""
    waiting: int = 0
    without_replica: Sequence[int] = ()
    oldest_ms: int | None = None
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """The bookies of a cluster.

    Attributes:
        ensemble: bookies that a new ledger needs (managedLedgerDefaultEnsembleSize); 0: unknown.
        write_quorum: replicas of an entry (managedLedgerDefaultWriteQuorum).
        repair: None: not looked at, or there is nothing to repair with.
        broker_version: of the broker that looks; "": not compared.
        credentials: what bookies and ZooKeeper show by TLS.
        now_ms: when, since 1970.
        groups: which of them ledgers are kept on.
        metadata: options of ``magnetar bookie-shell`` that name the cluster; "": there is no
            cluster, but one process with its bookie.
    """

    bookies: Sequence[BookieFacts] = ()
    ensemble: int = 0
    write_quorum: int = 0
    repair: RepairFacts | None = None
    metadata: str = "--metadata ZOOKEEPER"
    broker_version: str = ""
    credentials: Sequence[CredentialFacts] = ()
    now_ms: int = 0
    groups: GroupFacts = field(default_factory=GroupFacts)

    def shell(self, action: str) -> str:
        return f"{_SHELL} {self.metadata} {action}" if self.metadata else _STATE


def check_storage(facts: StorageFacts) -> Iterator[Finding]:
    yield from _check_writable(facts)
    yield from check_groups(facts.groups)
    yield from _check_versions(facts)
    clocks = {each.bookie_id: each.clock for each in facts.bookies if each.clock is not None}
    yield from check_clocks(clocks, "this broker")
    yield from check_credentials(facts.credentials, facts.now_ms)
    for bookie in facts.bookies:
        yield from _check_bookie(bookie, facts)
    if facts.repair is not None:
        yield from _check_repair(facts.repair, facts)


def _check_writable(facts: StorageFacts) -> Iterator[Finding]:
    writable = sum(each.is_registered and not each.is_read_only for each in facts.bookies)
    if facts.bookies and writable < facts.ensemble:
        yield Finding(
            "bookies-too-few",
            Severity.CRITICAL,
            "bookies",
            f"bookies: {writable} of {len(facts.bookies)} take new ledgers, and each new ledger"
            f" needs {facts.ensemble} (managedLedgerDefaultEnsembleSize): topics stop taking"
            " messages when their ledger ends",
            "magnetar bookie --config bookie.conf",
        )

    if facts.write_quorum == 1 < len(facts.bookies):
        yield Finding(
            "settings-at-odds",
            Severity.WARNING,
            "bookies",
            f"bookies: there are {len(facts.bookies)}, but managedLedgerDefaultWriteQuorum=1: each"
            " message is on one of them, and lost with it",
            "magnetar admin brokers get-runtime-config",
        )


def _check_versions(facts: StorageFacts) -> Iterator[Finding]:
    versions = grouped({each.bookie_id: each.version for each in facts.bookies if each.version})
    if len(versions) > 1:
        yield Finding(
            "versions-differ",
            Severity.NOTE,
            "bookies",
            f"bookies: their versions differ, as during an upgrade: {told(versions)}",
            facts.shell("listbookies"),
        )
    elif versions and facts.broker_version and facts.broker_version not in versions:
        yield Finding(
            "versions-differ",
            Severity.NOTE,
            "bookies",
            f"bookies: their version is {next(iter(versions))}, and this broker's"
            f" {facts.broker_version}, as during an upgrade",
            facts.shell("listbookies"),
        )


def _check_bookie(bookie: BookieFacts, facts: StorageFacts) -> Iterator[Finding]:
    name = bookie.bookie_id
    if not bookie.is_registered:
        yield Finding(
            "bookie-lost",
            Severity.WARNING,
            name,
            f"{name}: the bookie isn't there, and still belongs to the cluster: start it again, or"
            " take it out once its ledgers are copied from other bookies",
            facts.shell(f"decommissionbookie {name}"),
        )
        return
    if bookie.silence:
        yield Finding(
            "bookie-silent",
            Severity.WARNING,
            name,
            f"{name}: the bookie is registered, but doesn't answer this broker: {bookie.silence}",
            _STATE,
        )
    if bookie.is_failing:
        yield Finding(
            "bookie-failing",
            Severity.WARNING,
            name,
            f"{name}: requests to the bookie failed again and again, so it gets new ledgers only"
            " if others don't suffice (quarantine): look at its log, disk and network",
            _STATE,
        )
    yield from _check_data(bookie, facts)
    used = "" if bookie.used is None else f"; {bookie.used:.0%} of its disk is in use"
    if bookie.free_bytes is not None:
        used += (
            f", {bookie.free_bytes >> 20:,} MiB are free (it needs minUsableSize, and less in use"
            " than diskUsageThreshold)"
        )
    if bookie.is_read_only:
        yield Finding(
            "bookie-read-only",
            Severity.WARNING,
            name,
            f"{name}: the bookie takes no new entries{used}. Give it space, or add a bookie",
            _STATE,
        )
    elif bookie.used is not None and bookie.used >= DISK_ALMOST_FULL:
        is_full = bookie.used >= DISK_FULL
        yield Finding(
            "disk-full",
            Severity.CRITICAL if is_full else Severity.WARNING,
            name,
            f"{name}: {bookie.used:.0%} of the bookie's disk is in use; from {DISK_FULL:.0%} on"
            " it takes no new entries by default",
            _STATE,
        )


def _check_data(bookie: BookieFacts, facts: StorageFacts) -> Iterator[Finding]:
    name, data = bookie.bookie_id, bookie.data or {}
    if disputes := data.get("disputes"):
        yield Finding(
            "ledgers-in-dispute",
            Severity.CRITICAL,
            name,
            f"{name}: two ledgers have one id, as after a restore of old metadata; stop the brokers"
            f" now: {', '.join(map(str, disputes[:_NAMED_MAX]))}",
            facts.shell(f"ledgermetadata -l {disputes[0]}"),
        )
    if count := data.get("damagedEntries"):
        ledgers = sorted({each["ledger"] for each in data.get("damages", ())})
        yield Finding(
            "entries-damaged",
            Severity.WARNING if len(facts.bookies) > 1 else Severity.CRITICAL,
            name,
            f"{name}: {count} entries are damaged on the bookie's disk and not repaired yet"
            f" (ledgers {', '.join(map(str, ledgers[:_NAMED_MAX]))})",
            facts.shell(f"verifyledger -l {ledgers[0] if ledgers else 0}"),
        )
    if data.get("inLimbo"):
        yield Finding(
            "bookie-in-limbo",
            Severity.WARNING,
            name,
            f"{name}: the bookie came back without some of its data; until it has copied"
            f" {data.get('ledgersInLimbo', 0)} ledgers, it doesn't answer reads of them",
            _STATE,
        )


def _check_repair(repair: RepairFacts, facts: StorageFacts) -> Iterator[Finding]:
    if repair.off_reason is not None:
        yield Finding(
            "repair-off",
            Severity.WARNING,
            "auto-recovery",
            f"auto-recovery is switched off ({repair.off_reason or 'no reason given'}): what a"
            " bookie loses isn't copied",
            facts.shell("autorecovery --enable"),
            repair.off_since_ms,
        )
    if not repair.auditor:
        yield Finding(
            "auditor-missing",
            Severity.WARNING,
            "auto-recovery",
            "auto-recovery doesn't run: nobody would notice that a bookie is lost",
            "magnetar autorecovery --config autorecovery.conf",
        )
    if repair.without_replica:
        named = ", ".join(map(str, repair.without_replica[:_NAMED_MAX]))
        yield Finding(
            "ledgers-without-replica",
            Severity.CRITICAL,
            "ledgers",
            f"ledgers: all bookies of {len(repair.without_replica)} are away, and their entries"
            f" can't be read: {named}",
            facts.shell("listunderreplicated"),
            repair.oldest_ms,
        )
    if repair.waiting:
        why = f" ({'; '.join(repair.reasons[:_NAMED_MAX])})" if repair.reasons else ""
        yield Finding(
            "ledgers-under-replicated",
            Severity.WARNING,
            "ledgers",
            f"ledgers: {repair.waiting} have fewer replicas than they should{why}",
            facts.shell("listunderreplicated"),
            repair.oldest_ms,
        )
