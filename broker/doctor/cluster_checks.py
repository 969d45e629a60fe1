"""Checks of the brokers of a cluster among each other. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.doctor.findings import Finding, Severity

SKEW_MS: Final = 3_000
"""Clocks that differ by less are alike: dates of HTTP have whole seconds."""
SKEW_BAD_MS: Final = 60_000

OWN_TO_EACH: Final = frozenset(
    {
        *("advertisedAddress", "advertisedListeners", "internalListenerName", "bindAddress"),
        *("bindAddresses", "brokerServicePort", "brokerServicePortTls", "webServicePort"),
        *("webServicePortTls", "dataDir", "zone", "upgradeDomain", "rack", "statusFilePath"),
        *("logLevel", "logFormat", "fileSystemURI", "webServiceAllowedHosts"),
    }
)
"""Settings that each broker may have its own value of."""
_OWN_ENDINGS: Final = ("FilePath", "Mb", "MB", "Threads", "ThreadPoolSize", "CacheSize")
"""So may those of files and of the machine's size."""
MUST_AGREE: Final = frozenset(
    {
        *("clusterName", "authenticationEnabled", "authenticationProviders", "proxyRoles"),
        *("authorizationEnabled", "authorizationProvider", "superUserRoles", "maxMessageSize"),
        *("managedLedgerDefaultEnsembleSize", "managedLedgerDefaultWriteQuorum"),
        *("managedLedgerDefaultAckQuorum", "loadManagerClassName", "metadataStoreUrl"),
        *("loadBalancerEnabled", "brokerDeduplicationEnabled", "defaultNumberOfNamespaceBundles"),
        "transactionCoordinatorEnabled",
    }
)
"""What a client may do, or how safe its data are, would depend on who serves its topic."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock beside the one that looks.

    Attributes:
        ahead_ms: how much it shows more.
        error_ms: how far ``ahead_ms`` may be wrong, to both sides.
    """

    ahead_ms: int
    error_ms: int = 0

    @property
    def skew_ms(self) -> int:
        """What it differs at least."""
        return max(0, abs(self.ahead_ms) - self.error_ms)


def clock_between(asked_ms: int, shown_ms: int, answered_ms: int, unit_ms: int = 1) -> Clock:
    """From one question: when it was asked, what the other clock showed, when its answer came.

    Args:
        unit_ms: the other clock is told in whole units, rounded down.
    """
    middle_ms = (asked_ms + answered_ms) // 2
    error_ms = (answered_ms - asked_ms + unit_ms) // 2
    return Clock(shown_ms + unit_ms // 2 - middle_ms, error_ms)


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """A broker, as another one or a client sees it.

    Attributes:
        broker_id: ``host:port`` of its web address.
        silence: why it didn't answer; "": it did.
        version: "": not known.
        settings: key -> value; what is masked is left out.
    """

    broker_id: str
    silence: str = ""
    version: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    clock: Clock | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All brokers, and what is between them.

    Attributes:
        leader: its broker id; "": none is elected; None: not looked at.
        ownerless: bundles of brokers that aren't registered, by bundle.
    """

    brokers: Sequence[PeerFacts] = ()
    leader: str | None = None
    ownerless: Mapping[str, str] = field(default_factory=dict)
    watcher: str = "this broker"
    """Whose clock the others are compared with."""


def check_cluster(facts: ClusterFacts) -> Iterator[Finding]:
    yield from _check_silence(facts)
    yield from _check_leader(facts)
    yield from _check_owners(facts)
    clocks = {each.broker_id: each.clock for each in facts.brokers if each.clock is not None}
    yield from check_clocks(clocks, facts.watcher)
    yield from _check_versions(facts)
    yield from _check_settings(facts)


def _check_silence(facts: ClusterFacts) -> Iterator[Finding]:
    for broker in facts.brokers:
        if broker.silence:
            yield Finding(
                "broker-silent",
                Severity.CRITICAL,
                broker.broker_id,
                f"{broker.broker_id}: the broker is registered, but doesn't answer {facts.watcher}:"
                f" {broker.silence}",
                f"magnetar probe http://{broker.broker_id}/readyz",
            )


def _check_leader(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.leader == "":
        yield Finding(
            "leader-missing",
            Severity.CRITICAL,
            "cluster",
            "cluster: no broker is the leader, so bundles without a broker may get none; one is"
            " elected within a session timeout, if brokers reach the metadata store",
            "magnetar admin brokers leader-broker",
        )


def _check_owners(facts: ClusterFacts) -> Iterator[Finding]:
    for bundle, owner in facts.ownerless.items():
        yield Finding(
            "bundle-stuck",
            Severity.CRITICAL,
            bundle,
            f"{bundle}: the bundle belongs to {owner}, which isn't a broker of the cluster now: its"
            " topics can't be reached until that process ends or its session does",
            f"magnetar probe http://{owner}/readyz",
        )


def check_clocks(clocks: Mapping[str, Clock], watcher: str) -> Iterator[Finding]:
    """Args:
    clocks: by the name of their machine.
    watcher: whose clock they are compared with; it is the wrong one if the others, two at least,
        agree.
    """
    ahead_ms = [clock.ahead_ms for clock in clocks.values()]
    if len(ahead_ms) > 1 and max(ahead_ms) - min(ahead_ms) < SKEW_MS:
        nearest = min(clocks.values(), key=lambda clock: clock.skew_ms)
        clocks = {watcher: Clock(-nearest.ahead_ms, nearest.error_ms)}
        watcher = f"the {len(ahead_ms)} others, which agree"
    for name, clock in clocks.items():
        if (skew_ms := clock.skew_ms) < SKEW_MS:
            continue
        direction = "ahead of" if clock.ahead_ms > 0 else "behind"
        yield Finding(
            "clock-skew",
            Severity.CRITICAL if skew_ms >= SKEW_BAD_MS else Severity.WARNING,
            name,
            f"{name}: its clock is {_seconds(skew_ms)} {direction} that of {watcher}: delays,"
            " expiry, retention and the end of tokens go by the clock",
            "chronyc makestep",
        )


def _seconds(ms: int) -> str:
    if ms < 120_000:
        return f"{ms / 1000:.0f} s"
    return f"{ms // 60_000} min" if ms < 7_200_000 else f"{ms / 3_600_000:.0f} h"


def _check_versions(facts: ClusterFacts) -> Iterator[Finding]:
    brokers = grouped({each.broker_id: each.version for each in facts.brokers if each.version})
    if len(brokers) > 1:
        yield Finding(
            "versions-differ",
            Severity.NOTE,
            "brokers",
            f"brokers: their versions differ, as during an upgrade: {told(brokers)}",
            "magnetar admin brokers version",
        )


def _check_settings(facts: ClusterFacts) -> Iterator[Finding]:
    answered = [each for each in facts.brokers if each.settings]
    for key in sorted(set().union(*(each.settings for each in answered))):
        values = {each.broker_id: each.settings[key] for each in answered if key in each.settings}
        if len(groups := grouped(values)) < 2 or _is_own(key):
            continue
        yield Finding(
            "settings-differ",
            Severity.WARNING if key in MUST_AGREE else Severity.NOTE,
            key,
            f"{key}: brokers have different values: {told(groups)}",
            "magnetar admin brokers get-runtime-config",
        )


def _is_own(key: str) -> bool:
    return key not in MUST_AGREE and (key in OWN_TO_EACH or key.endswith(_OWN_ENDINGS))


def grouped(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Value -> the names that have it."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, value in sorted(values.items()):
        groups[value].append(name)
    return groups


def told(groups: Mapping[str, Sequence[str]]) -> str:
    """Which value is where, in words."""
    return "; ".join(
        f"{value or 'empty'} on {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}"
        for value, names in sorted(groups.items())
    )
