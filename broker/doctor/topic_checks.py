"""Checks of the topics, subscriptions and bundles that brokers serve. Pure.

Facts are made from the statistics that the admin API shows, so they are the same of a broker of
Pulsar.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from magnetar.broker.dispatch.explanation import STALLS, Explanation, Reason
from magnetar.broker.doctor.findings import Finding, Severity

STALL_MS: Final = 60_000
"""Consumers that get nothing for so long, though there is a backlog, are told."""
SLOW_MS: Final = 600_000
"""So are those that acknowledge nothing for so long."""
_LIMITS: Final = (
    ("topics", "loadBalancerNamespaceBundleMaxTopics", 1, "topics"),
    ("sessions", "loadBalancerNamespaceBundleMaxSessions", 1, "producers and consumers"),
    ("messages", "loadBalancerNamespaceBundleMaxMsgRate", 1, "messages/s"),
    ("bytes", "loadBalancerNamespaceBundleMaxBandwidthMbytes", 1 << 20, "bytes/s"),
)
"""Figure of a bundle, the setting of its limit, the limit's unit, what it counts."""


@dataclass(frozen=True, slots=True)
class SubscriptionFacts:
    """A subscription with a backlog.

    Attributes:
        backlog: entries that aren't acknowledged, ``delayed`` of them not due yet.
        unacked: messages that consumers have and didn't acknowledge.
        is_blocked: their number is at the limit of the subscription.
        permits: messages that consumers asked for and didn't get.
        delivered_ms, acked_ms: last time; 0: never, as far as this broker knows.
        connected_ms: since when the oldest of its consumers is there; None: there is none.
        explanation: of its dispatch; None: only the statistics are known.
    """

    topic: str
    name: str
    backlog: int
    delayed: int = 0
    unacked: int = 0
    is_blocked: bool = False
    permits: int = 0
    delivered_ms: int = 0
    acked_ms: int = 0
    connected_ms: int | None = None
    explanation: Explanation | None = None

    @property
    def label(self) -> str:
        return f"{self.topic}, subscription {self.name}"


def subscription_facts(topic: str, name: str, stats: Mapping[str, Any]) -> SubscriptionFacts | None:
    """Of a subscription's SubscriptionStats; None: it has no backlog."""
    if (backlog := _int(stats, "msgBacklog")) <= 0:
        return None
    consumers: Sequence[Mapping[str, Any]] = stats.get("consumers") or ()
    connected = [
        ms for each in consumers if (ms := _iso_ms(each.get("connectedSince"))) is not None
    ]
    return SubscriptionFacts(
        topic,
        name,
        backlog,
        delayed=_int(stats, "msgDelayed"),
        unacked=_int(stats, "unackedMessages")
        or sum(_int(each, "unackedMessages") for each in consumers),
        is_blocked=bool(stats.get("blockedSubscriptionOnUnackedMsgs")),
        permits=sum(max(0, _int(each, "availablePermits")) for each in consumers),
        delivered_ms=_int(stats, "lastConsumedTimestamp"),
        acked_ms=_int(stats, "lastAckedTimestamp"),
        connected_ms=min(connected, default=0) if consumers else None,
    )


def _int(stats: Mapping[str, Any], name: str) -> int:
    value = stats.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _iso_ms(text: object) -> int | None:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class TopicsFacts:
    """What one broker serves.

    Attributes:
        subscriptions: those with a backlog.
        fenced: topics that lost their storage, by why.
        held: topics whose producers wait because of a backlog quota, by why.
        bundles: NamespaceBundleStats by name.
    """

    now_ms: int
    subscriptions: Sequence[SubscriptionFacts] = ()
    fenced: Mapping[str, str] | None = None
    held: Mapping[str, str] | None = None
    bundles: Mapping[str, Mapping[str, Any]] | None = None
    settings: Mapping[str, str] | None = None


def check_topics(facts: TopicsFacts) -> Iterator[Finding]:
    for topic, why in (facts.fenced or {}).items():
        yield Finding(
            "topic-fenced",
            Severity.CRITICAL,
            topic,
            f"{topic}: the topic takes no messages: {why}",
            f"magnetar admin topics unload {topic}",
        )
    for topic, why in (facts.held or {}).items():
        yield Finding(
            "backlog-quota",
            Severity.CRITICAL,
            topic,
            f"{topic}: {why}",
            f"magnetar admin topics stats {topic}",
        )
    idle = []
    for each in facts.subscriptions:
        if each.connected_ms is None:
            idle.append(each)
        elif (finding := _stall(each, facts.now_ms)) is not None:
            yield finding
    yield from _check_idle(idle)
    yield from check_bundles(facts.bundles or {}, facts.settings or {})


def waits_ms(each: SubscriptionFacts) -> int | None:
    """Since when its consumers may have got nothing; None: there are none, or nothing is due."""
    if each.connected_ms is None or each.backlog <= each.delayed:
        return None
    return max(each.delivered_ms, each.connected_ms)


def _stall(each: SubscriptionFacts, now_ms: int) -> Finding | None:
    """A subscription whose consumers wait; None: they get messages, or there are none for them."""
    since_ms = waits_ms(each)
    if since_ms is None or each.connected_ms is None or now_ms - since_ms < STALL_MS:
        return None
    if (why := _why(each)) is not None:
        limited = each.explanation is not None and each.explanation.reason is Reason.RATE_LIMITED
        return Finding(
            "subscription-stuck",
            Severity.WARNING if limited else Severity.CRITICAL,
            each.label,
            f"{each.label}: nothing is delivered, and {each.backlog} entries wait. {why}",
            _command(each),
            (each.explanation.since_ms if each.explanation else 0) or since_ms,
        )
    acked_ms = max(each.acked_ms, each.connected_ms)
    if each.unacked == 0 or now_ms - acked_ms < SLOW_MS:
        return None
    return Finding(
        "subscription-slow",
        Severity.WARNING,
        each.label,
        f"{each.label}: consumers have {each.unacked} messages and acknowledge none; {each.backlog}"
        " entries are unacknowledged",
        _command(each),
        acked_ms,
    )


def _command(each: SubscriptionFacts) -> str:
    if each.explanation is None:
        return f"magnetar admin topics stats {each.topic}"
    return f"magnetar admin topics explain {each.topic} -s {shlex.quote(each.name)}"


def _why(each: SubscriptionFacts) -> str | None:
    """Why nothing is delivered; None: all was, as far as can be told."""
    if each.explanation is not None:
        found = each.explanation
        return f"{found.message} {found.next}" if found.reason in STALLS else None
    if each.is_blocked:
        return (
            f"Its consumers have {each.unacked} messages that they didn't acknowledge, which is"
            " the limit."
        )
    if each.permits == 0:
        return "Its consumers don't ask for messages: look at what the application waits for."
    if each.unacked == 0:
        return f"Its consumers ask for {each.permits} messages: unload the topic if that lasts."
    return None


def _check_idle(idle: Sequence[SubscriptionFacts]) -> Iterator[Finding]:
    if idle:
        worst = max(idle, key=lambda each: each.backlog)
        many = f"{len(idle)} subscriptions have" if len(idle) > 1 else "the subscription has"
        most = "; the largest is" if len(idle) > 1 else ":"
        yield Finding(
            "subscription-idle",
            Severity.NOTE,
            worst.label,
            f"{worst.label}: {many} a backlog and no consumer{most} {worst.backlog} entries, which"
            " are kept until somebody reads them",
            f"magnetar admin topics stats {worst.topic}",
        )


# --- bundles


def check_bundles(
    bundles: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Those above the limits at which a leader splits them."""
    for bundle, stats in bundles.items():
        if over := [*_over(stats, settings)]:
            namespace, _, hashes = bundle.rpartition("/")
            yield Finding(
                "bundle-hot",
                Severity.WARNING,
                bundle,
                f"{bundle}: the bundle is over the limits of one: {', '.join(over)}",
                f"magnetar admin namespaces split-bundle {namespace} --bundle {hashes}",
            )


def _over(stats: Mapping[str, Any], settings: Mapping[str, str]) -> Iterable[str]:
    figures = {
        "topics": _int(stats, "topics"),
        "sessions": _int(stats, "producerCount") + _int(stats, "consumerCount"),
        "messages": _int(stats, "msgRateIn") + _int(stats, "msgRateOut"),
        "bytes": _int(stats, "msgThroughputIn") + _int(stats, "msgThroughputOut"),
    }
    if figures["topics"] < 2:
        return  # a bundle of one topic can't be split usefully
    for figure, key, unit, what in _LIMITS:
        try:
            limit = float(settings[key]) * unit
        except (KeyError, ValueError):
            continue
        if 0 < limit < figures[figure]:
            yield f"{figures[figure]:,} {what} ({key} {settings[key]})"
