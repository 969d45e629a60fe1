"""Checks of the topics, subscriptions and bundles that brokers serve. Pure.

Facts are made from the statistics that the admin API shows, so they are the same of a broker of
Pulsar.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from magnetar.broker.dispatch.explanation import (
    STALL_MS,
    Explanation,
    Reason,
    counted,
    duration,
)
from magnetar.broker.doctor.findings import Finding, Severity
from magnetar.broker.protocol.topic_name import PARTITION_MARK
from magnetar.broker.topic.backlog_quota import AGE

SLOW_MS: Final = 600_000
"""So are those that acknowledge nothing for so long."""
INTERNAL_SUBSCRIPTIONS: Final = ("__compaction", "pulsar.repl.", "__system_reader")
"""How the names of those begin whose backlog no consumer reads: brokers do."""
_FAILS: Final = " The application fails on it; a dead letter topic takes it away."
_DISPATCH_RATES: Final = MappingProxyType(
    {"topic": "set-dispatch-rate", "subscription": "set-subscription-dispatch-rate"}
)
"""What sets them, by scope."""
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
        is_blocked: their number is at the limit of the subscription, or of each consumer.
        redelivery_rate: messages a second that are delivered again.
        moved_ms: when its mark-delete position moved last; 0: as for the others.
        counts_unacked: False: Exclusive or Failover, of which brokers don't.
        is_durable: False: of a reader, for which nothing is kept.
        permits: messages that consumers asked for and didn't get.
        delivered_ms, acked_ms: last time; 0: never, as far as this broker knows.
        connected_ms: since when the oldest of its consumers is there; None: there is none.
        explanation: of its dispatch, of the oldest message if others go on; None: only the
            statistics are known.
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
    redelivery_rate: float = 0.0
    moved_ms: int = 0
    is_durable: bool = True
    counts_unacked: bool = True
    explanation: Explanation | None = None

    @property
    def label(self) -> str:
        return f"{self.topic}, subscription {self.name}"


def receivers_of(stats: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The consumers of a SubscriptionStats that messages go to: of Failover the active one."""
    consumers: Sequence[Mapping[str, Any]] = stats.get("consumers") or ()
    active = stats.get("activeConsumerName") if stats.get("type") == "Failover" else None
    return [each for each in consumers if each.get("consumerName") == active] or consumers


def subscription_facts(topic: str, name: str, stats: Mapping[str, Any]) -> SubscriptionFacts | None:
    """Of a subscription's SubscriptionStats; None: no consumer has anything to get there."""
    if (backlog := _int(stats, "msgBacklog")) <= 0 or name.startswith(INTERNAL_SUBSCRIPTIONS):
        return None
    consumers = receivers_of(stats)
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
        is_blocked=bool(stats.get("blockedSubscriptionOnUnackedMsgs"))
        or (
            bool(consumers) and all(each.get("blockedConsumerOnUnackedMsgs") for each in consumers)
        ),
        permits=sum(max(0, _int(each, "availablePermits")) for each in consumers),
        delivered_ms=_int(stats, "lastConsumedTimestamp"),
        acked_ms=_int(stats, "lastAckedTimestamp"),
        connected_ms=min(connected, default=0) if consumers else None,
        is_durable=bool(stats.get("isDurable", True)),
        counts_unacked=stats.get("type") not in ("Exclusive", "Failover"),
        redelivery_rate=float(stats.get("msgRateRedeliver") or 0),
        moved_ms=_int(stats, "lastMarkDeleteAdvancedTimestamp"),
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
class RefusalFacts:
    """A client that a topic or a subscription didn't accept a short while ago.

    Attributes:
        subject: the topic, or as ``SubscriptionFacts.label``.
        sentence: who was refused, and why.
        is_served: others of its kind are connected there.
    """

    topic: str
    subject: str
    sentence: str
    at_ms: int
    is_served: bool


@dataclass(frozen=True, slots=True)
class TopicsFacts:
    """What one broker serves.

    Attributes:
        subscriptions: those with a backlog.
        idle: how many with a backlog and without consumers aren't among them.
        unlisted: topics and subscriptions with a fault that are in none of these.
        fenced: topics that lost their storage, by why.
        held: topics whose producers wait because of a backlog quota, and which one.
        publishing: topics whose producers wait for something else, and for what.
        refusals: clients that aren't accepted.
        partitions: those of ``idle`` that are partitions of topics whose other partitions have
            consumers of the same subscription.
        offloads: topics whose last offload failed, and when, ms since 1970.
        bundles: NamespaceBundleStats by name; those below all limits may be left out.
    """

    now_ms: int
    subscriptions: Sequence[SubscriptionFacts] = ()
    idle: int = 0
    unlisted: int = 0
    fenced: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, Explanation] = field(default_factory=dict)
    publishing: Mapping[str, Explanation] = field(default_factory=dict)
    refusals: Sequence[RefusalFacts] = ()
    partitions: Sequence[SubscriptionFacts] = ()
    offloads: Mapping[str, int] = field(default_factory=dict)
    bundles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


def check_topics(facts: TopicsFacts) -> Iterator[Finding]:
    for topic, why in facts.fenced.items():
        yield Finding(
            "topic-fenced",
            Severity.CRITICAL,
            topic,
            f"{topic}: the topic takes no messages: {why}",
            f"magnetar admin topics unload {shlex.quote(topic)}",
        )
    for topic, held in facts.held.items():
        yield Finding(
            "backlog-quota",
            Severity.CRITICAL,
            topic,
            f"{topic}: {held.message} {held.next}",
            _mending(topic, held)
            or f"magnetar admin topics explain-publishing {shlex.quote(topic)}",
        )
    for topic, waits_for in facts.publishing.items():
        yield from _check_publishing(topic, waits_for, facts.now_ms)
    yield from map(_refused, facts.refusals)
    yield from map(_partition_idle, facts.partitions)
    for topic, failed_ms in facts.offloads.items():
        yield Finding(
            "offload-failing",
            Severity.WARNING,
            topic,
            f"{topic}: the last offload of the topic failed, so its ledgers stay on bookies",
            f"magnetar admin topics offload-status {shlex.quote(topic)}",
            failed_ms,
        )
    idle = []
    for each in facts.subscriptions:
        if each.connected_ms is None:
            idle.append(each)
        elif (finding := _stall(each, facts.now_ms)) is not None:
            yield finding
    yield from _check_idle(idle, len(idle) + facts.idle)
    yield from check_bundles(facts.bundles, facts.settings)


def _check_publishing(topic: str, why: Explanation, now_ms: int) -> Iterator[Finding]:
    command = (
        _mending(topic, why) or f"magnetar admin topics explain-publishing {shlex.quote(topic)}"
    )
    if why.reason is Reason.PUBLISH_RATE_LIMITED:
        yield Finding(
            "publish-rate-limited",
            Severity.NOTE,
            topic,
            f"{topic}: {why.message} {why.next}",
            command,
        )
    elif why.reason is Reason.STORING and why.since_ms and now_ms - why.since_ms >= STALL_MS:
        yield Finding(
            "publish-stuck",
            Severity.CRITICAL,
            topic,
            f"{topic}: producers get no receipts. {why.message} {why.next}",
            command,
            why.since_ms,
        )


def _refused(each: RefusalFacts) -> Finding:
    subscription = each.subject.removeprefix(each.topic).removeprefix(", subscription ")
    topic = shlex.quote(each.topic)
    what = f" {topic} -s {shlex.quote(subscription)}" if subscription else ""
    return Finding(
        "client-refused",
        Severity.NOTE if each.is_served else Severity.WARNING,
        each.subject,
        f"{each.subject}: {each.sentence}",
        f"magnetar admin topics explain{what or f'-publishing {topic}'}",
        each.at_ms,
    )


def _partition_idle(each: SubscriptionFacts) -> Finding:
    return Finding(
        "partition-idle",
        Severity.WARNING,
        each.label,
        f"{each.label}: the partition has a backlog of {counted(each.backlog, 'entry')} and no"
        " consumer, while other partitions of the topic have some: restart the consumers, which may"
        " not know this partition or have lost it",
        f"magnetar admin topics stats {shlex.quote(each.topic)}",
    )


def _quiet_ms(each: SubscriptionFacts, *times_ms: int) -> int | None:
    """The last of these times; None: it has no consumers, or nothing is due."""
    if each.connected_ms is None or each.backlog <= each.delayed:
        return None
    return max(each.connected_ms, *times_ms)


def is_suspect(each: SubscriptionFacts, now_ms: int) -> bool:
    """Whether its dispatch must say more: nothing was delivered, or acknowledged, for long."""
    delivered_ms = _quiet_ms(each, each.delivered_ms)
    acked_ms = _quiet_ms(each, each.acked_ms)
    if delivered_ms is None or acked_ms is None:
        return False
    return now_ms - delivered_ms >= STALL_MS or now_ms - acked_ms >= SLOW_MS


def _stall(each: SubscriptionFacts, now_ms: int) -> Finding | None:
    """A subscription whose consumers wait; None: they get messages, or there are none for them."""
    since_ms = _quiet_ms(each, each.delivered_ms)
    if since_ms is None:
        return None
    why = _why(each) if now_ms - since_ms >= STALL_MS else None
    if why is None:
        return _unacknowledged(each, now_ms) or _held_up(each, now_ms)
    explained = each.explanation
    # A limit may be meant; so may a reader that stops reading, for which nothing is kept.
    limited = explained is not None and explained.reason is Reason.RATE_LIMITED
    return Finding(
        "subscription-stuck",
        Severity.CRITICAL if each.is_durable and not limited else Severity.WARNING,
        each.label,
        f"{each.label}: nothing is delivered, and {each.backlog} entries wait. {why}",
        _command(each),
        (explained.since_ms if explained is not None else 0) or since_ms,
    )


def _unacknowledged(each: SubscriptionFacts, now_ms: int) -> Finding | None:
    """A subscription whose consumers acknowledge nothing of what they have, or return it all."""
    acked_ms = _quiet_ms(each, each.acked_ms)
    if acked_ms is None or now_ms - acked_ms < SLOW_MS:
        return None
    if each.redelivery_rate > 0:
        return Finding(
            "subscription-slow",
            Severity.WARNING,
            each.label,
            f"{each.label}: messages are delivered again and again, and none is acknowledged: the"
            " application fails on them; a dead letter topic takes them away",
            _command(each),
            acked_ms,
        )
    # Without an explanation nobody knows which of the unacknowledged messages is how old.
    held_ms = _quiet_ms(each, each.acked_ms, each.delivered_ms)
    if each.explanation is not None and each.explanation.reason is Reason.PENDING:
        held_ms = each.explanation.since_ms or held_ms
    is_told = each.unacked > 0 or not (each.counts_unacked or each.explanation)
    if not is_told or held_ms is None or now_ms - held_ms < SLOW_MS:
        return None
    has = f"have {counted(each.unacked, 'message')}" if each.unacked else "ask for more"
    return Finding(
        "subscription-slow",
        Severity.WARNING,
        each.label,
        f"{each.label}: consumers {has} and acknowledge none;"
        f" {counted(each.backlog, 'entry')} not acknowledged{_of_oldest(each.explanation)}",
        _command(each),
        held_ms,
    )


def _of_oldest(found: Explanation | None) -> str:
    """What is told of the oldest message if it comes again and again."""
    if found is None or not found.details.get("redeliveryCount"):
        return ""
    return f". {found.message}{_FAILS}"


def is_held_up(each: SubscriptionFacts, now_ms: int) -> bool:
    """Whether its oldest message isn't acknowledged for long, whatever the others do."""
    moved_ms = _quiet_ms(each, each.moved_ms)
    return moved_ms is not None and now_ms - moved_ms >= SLOW_MS


def _held_up(each: SubscriptionFacts, now_ms: int) -> Finding | None:
    """A subscription whose oldest message stays, while later ones are acknowledged."""
    found, moved_ms = each.explanation, _quiet_ms(each, each.moved_ms)
    # Without an explanation it may be one that is delayed.
    if found is None or moved_ms is None or not is_held_up(each, now_ms):
        return None
    severity, why = Severity.WARNING, ""
    if found.reason is Reason.PENDING:
        if found.details.get("redeliveryCount"):
            why = _FAILS
        elif now_ms - (found.since_ms or 0) < SLOW_MS:
            return None
        else:
            severity = Severity.NOTE
    elif not found.is_stall:
        return None
    return Finding(
        "subscription-held-up",
        severity,
        each.label,
        f"{each.label}: the oldest message is not acknowledged for {duration(now_ms - moved_ms)},"
        f" whatever later ones are. {found.message}{why or f' {found.next}'}",
        _command(each),
        moved_ms,
    )


def _command(each: SubscriptionFacts) -> str:
    if each.explanation is None:
        return f"magnetar admin topics stats {shlex.quote(each.topic)}"
    return _mending(each.topic, each.explanation) or (
        f"magnetar admin topics explain {shlex.quote(each.topic)} -s {shlex.quote(each.name)}"
    )


def _mending(topic: str, why: Explanation) -> str:
    """What ends a stall that the broker's own limits make, without losing anything; "": it is in an
    application, or takes a decision.
    """
    base, _, number = topic.rpartition(PARTITION_MARK)
    # Policies are those of all partitions.
    of_all = shlex.quote(base if number.isdigit() else topic)
    details, scope = why.details, str(why.details.get("scope"))
    if why.reason is Reason.RATE_LIMITED and scope in _DISPATCH_RATES:
        rate = _DISPATCH_RATES[scope]
        return f"magnetar admin topicPolicies {rate} {of_all} -md -1 -bd -1"
    if why.reason is Reason.PUBLISH_RATE_LIMITED and scope == "topic":
        return f"magnetar admin topicPolicies set-publish-rate {of_all} -m -1 -b -1"
    if why.reason is Reason.QUOTA_HELD:
        option, unit = ("-lt", "s") if details["quota"] == AGE else ("-l", "")
        limit = 2 * max(details["used"], details["limit"])
        return (
            f"magnetar admin topicPolicies set-backlog-quota {of_all} -t {details['quota']}"
            f" {option} {limit}{unit} -p {details['policy']}"
        )
    return ""


def _why(each: SubscriptionFacts) -> str | None:
    """Why nothing is delivered; None: all was, as far as can be told."""
    if each.explanation is not None:
        found = each.explanation
        return f"{found.message} {found.next}" if found.is_stall else None
    if each.is_blocked:
        return (
            f"Its consumers have {each.unacked} messages that they didn't acknowledge, which is"
            " the limit."
        )
    if each.permits == 0:
        return "Its consumers don't ask for messages: look at what the application waits for."
    if each.unacked == 0 and each.counts_unacked:
        return f"Its consumers ask for {each.permits} messages: unload the topic if that lasts."
    return None


def _check_idle(idle: Sequence[SubscriptionFacts], count: int) -> Iterator[Finding]:
    if idle:
        worst = max(idle, key=lambda each: each.backlog)
        more = counted(count - 1, "other subscription")
        others = f"; {more} with a backlog {'has' if count == 2 else 'have'} none, too"
        yield Finding(
            "subscription-idle",
            Severity.NOTE,
            worst.label,
            f"{worst.label}: it has a backlog of {counted(worst.backlog, 'entry')} and no consumer"
            f"{others if count > 1 else ''}; messages are kept until somebody reads them",
            f"magnetar admin topics stats {shlex.quote(worst.topic)}",
        )


# --- bundles


def check_bundles(
    bundles: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Those above the limits at which a leader splits them."""
    for bundle, stats in bundles.items():
        if over := [*over_limits(stats, settings)]:
            namespace, _, hashes = bundle.rpartition("/")
            yield Finding(
                "bundle-hot",
                Severity.WARNING,
                bundle,
                f"{bundle}: the bundle is over the limits of one: {', '.join(over)}",
                f"magnetar admin namespaces split-bundle {namespace} --bundle {hashes}",
            )


def over_limits(stats: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[str]:
    """What of a bundle is above which limit."""
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
