"""Checks of one broker by itself: readiness, load, settings, certificates and tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from magnetar.broker.doctor.findings import Finding, Severity

DAY_MS: Final = 86_400_000
ENDS_SOON_MS: Final = 30 * DAY_MS
ENDS_NOW_MS: Final = 3 * DAY_MS
_CPU_MAX: Final = 0.85
"""Pulsar's loadBalancerBrokerOverloadedThresholdPercentage."""
_USED_MAX: Final = 0.9
UNLOADING_S_MAX: Final = 10
"""A bundle is unloaded within a second or two; a broker gives up after a minute."""
UNLOADS_S: Final = 600
_UNLOADS_MAX: Final = 5
"""Of a bundle within ``UNLOADS_S``: a load balancer moves it once."""
OPEN_FILES: Final = "limit of open files"


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """A certificate or a token.

    Attributes:
        name: whose it is, and the setting that names it.
        is_token: else a certificate.
        ends_ms: milliseconds since 1970; None: never, or not known.
        problem: why it can't be read; "": it can.
        command: shows or renews it.
    """

    name: str
    is_token: bool = False
    ends_ms: int | None = None
    problem: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What one broker knows of itself.

    Attributes:
        not_ready: why clients shouldn't be sent to it; "": it is ready.
        usage: part of CPU, memory and ``OPEN_FILES`` in use, by name.
        without_effect: why settings that were given do nothing; "": there are none.
        unloading_s: bundles whose topics it is closing, and for how many seconds so far.
        unloads: how often it closed the topics of a bundle within the last ``UNLOADS_S``.
        lacks_store: it isn't ready for want of its metadata store.
    """

    broker_id: str
    now_ms: int
    not_ready: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    credentials: Sequence[CredentialFacts] = ()
    without_effect: str = ""
    unloading_s: Mapping[str, float] = field(default_factory=dict)
    unloads: Mapping[str, int] = field(default_factory=dict)
    lacks_store: bool = False


def check_broker(facts: BrokerFacts) -> Iterator[Finding]:
    name = facts.broker_id
    if facts.not_ready:
        why = facts.not_ready
        if facts.lacks_store:
            servers = facts.settings.get("metadataStoreUrl") or "metadataStoreUrl"
            why += f". It serves the topics that it has open, and opens none: look at {servers}"
        yield Finding(
            "broker-not-ready",
            Severity.CRITICAL,
            name,
            f"{name}: the broker isn't ready: {why}",
            f"magnetar probe http://{name}/readyz",
        )
    yield from check_credentials(facts.credentials, facts.now_ms)
    yield from _check_unloading(facts)
    yield from _check_moving(facts)
    yield from _check_usage(facts)
    yield from _check_settings(facts)


def _check_unloading(facts: BrokerFacts) -> Iterator[Finding]:
    for bundle, seconds in facts.unloading_s.items():
        if seconds >= UNLOADING_S_MAX:
            yield Finding(
                "bundle-stuck",
                Severity.WARNING,
                bundle,
                f"{bundle}: {facts.broker_id} has been unloading the bundle for {seconds:.0f} s."
                " Its topics can't be reached until they are closed, or until the broker gives up",
                f"magnetar probe http://{facts.broker_id}/readyz",
                facts.now_ms - int(seconds * 1000),
            )


def _check_moving(facts: BrokerFacts) -> Iterator[Finding]:
    for bundle, count in facts.unloads.items():
        if count >= _UNLOADS_MAX:
            yield Finding(
                "bundle-moving",
                Severity.WARNING,
                bundle,
                f"{bundle}: {facts.broker_id} has unloaded the bundle {count} times within"
                f" {UNLOADS_S // 60} minutes. Each time its clients connect again, and"
                " unacknowledged messages are delivered again. If nobody asks for it, look at the"
                " load balancer's settings",
                "magnetar admin access audit",
            )


def check_credentials(credentials: Sequence[CredentialFacts], now_ms: int) -> Iterator[Finding]:
    for each in credentials:
        check = "token-end" if each.is_token else "certificate-end"
        kind = "token" if each.is_token else "certificate"
        if each.problem:
            text = f"{each.name}: the {kind} can't be read: {each.problem}"
            yield Finding(check, Severity.WARNING, each.name, text, each.command)
        if each.ends_ms is None or (left_ms := each.ends_ms - now_ms) > ENDS_SOON_MS:
            continue
        day = datetime.fromtimestamp(each.ends_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if left_ms <= 0:
            text, severity = f"ended on {day}", Severity.CRITICAL
        else:
            text = f"ends on {day}, in {_left(left_ms)}"
            severity = Severity.WARNING if left_ms > ENDS_NOW_MS else Severity.CRITICAL
        yield Finding(
            check,
            severity,
            each.name,
            f"{each.name}: the {kind} {text}",
            each.command,
            each.ends_ms if left_ms <= 0 else None,
        )


def _left(ms: int) -> str:
    return f"{ms // DAY_MS} days" if ms >= 2 * DAY_MS else f"{ms // 3_600_000} h"


def _check_usage(facts: BrokerFacts) -> Iterator[Finding]:
    cpu_max = _part(facts.settings, "loadBalancerBrokerOverloadedThresholdPercentage", _CPU_MAX)
    for resource, of, limit, severity in (
        # Of a second: it may be over by now. Unless a container bounds the broker, other processes
        # of the machine count.
        ("cpu", "the cpu of the broker's machine or container", cpu_max, Severity.NOTE),
        ("memory", "the broker's memory", _USED_MAX, Severity.WARNING),
        (OPEN_FILES, f"the broker's {OPEN_FILES}", _USED_MAX, Severity.WARNING),
    ):
        if (used := facts.usage.get(resource, 0.0)) >= limit:
            yield Finding(
                "broker-overloaded",
                severity,
                facts.broker_id,
                f"{facts.broker_id}: {used:.0%} of {of} is in use",
                "magnetar admin broker-stats load-report",
            )


def _part(settings: Mapping[str, str], key: str, default: float) -> float:
    try:
        return int(settings[key]) / 100
    except (KeyError, ValueError):
        return default


def _check_settings(facts: BrokerFacts) -> Iterator[Finding]:
    texts = [*_contradictions(facts.settings)]
    if facts.without_effect:
        texts.append((Severity.CRITICAL, facts.without_effect))
    for severity, text in texts:
        yield Finding(
            "settings-at-odds",
            severity,
            facts.broker_id,
            f"{facts.broker_id}: {text}",
            "magnetar admin brokers get-runtime-config",
        )


def _contradictions(settings: Mapping[str, str]) -> Iterator[tuple[Severity, str]]:
    """Settings of which one takes away what the other one is set for."""

    def number(key: str) -> float:
        try:
            return float(settings[key])
        except (KeyError, ValueError):
            return 0

    def is_set(key: str, value: str = "true") -> bool:
        return settings.get(key, "").lower() == value

    if number("managedLedgerDefaultAckQuorum") == 1 < number("managedLedgerDefaultWriteQuorum"):
        yield (
            Severity.WARNING,
            "managedLedgerDefaultAckQuorum=1: a message is confirmed when one bookie has it, and"
            " lost when that bookie is lost before the others have it, too",
        )
    if is_set("authenticationEnabled") and is_set("authorizationEnabled", "false"):
        yield (
            Severity.NOTE,
            "authenticationEnabled=true with authorizationEnabled=false: every role may do"
            " everything",
        )
    of_all = number("maxUnackedMessagesPerSubscription")
    of_one = number("maxUnackedMessagesPerConsumer")
    if 0 < of_all < of_one:
        yield (
            Severity.WARNING,
            f"maxUnackedMessagesPerSubscription={of_all:.0f} is below"
            f" maxUnackedMessagesPerConsumer={of_one:.0f}: one consumer that doesn't acknowledge"
            " stops all the others",
        )
    if is_set("backlogQuotaCheckEnabled", "false") and (
        number("backlogQuotaDefaultLimitBytes") > 0 or number("backlogQuotaDefaultLimitSecond") > 0
    ):
        yield (
            Severity.WARNING,
            "backlogQuotaCheckEnabled=false: no quota of a backlog is enforced, and one is set",
        )
