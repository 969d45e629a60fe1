"""Why a subscription delivers nothing now, or what became of one message: a reason and a sentence.

Cores and shells answer with these; whoever shows them needs no knowledge of dispatch. A later
feature adds a `Reason` and a function that makes its `Explanation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from magnetar.broker.dispatch.interfaces import ConsumerState
    from magnetar.broker.policies.effective import Rate
    from magnetar.managed_ledger.position import Position

_CONSUMERS_MAX: Final = 100
"""Consumers that an explanation lists."""
_YEAR_MS: Final = 366 * 86_400_000


class Reason(StrEnum):
    """Stable names; values are added, never changed."""

    ACKNOWLEDGED = "acknowledged"
    PENDING = "pending"
    INCOMPLETE = "incomplete"
    DELAYED = "delayed"
    FILTERED = "filtered"
    TRIMMED = "trimmed"
    NOT_FOUND = "notFound"
    PAST_END = "pastEnd"
    CAUGHT_UP = "caughtUp"
    NO_PRODUCER = "noProducer"
    PRODUCER_REFUSED = "producerRefused"
    PRODUCERS_QUEUED = "producersQueued"
    DUPLICATES = "duplicates"
    TERMINATED = "terminated"
    QUOTA_HELD = "quotaHeld"
    PUBLISH_RATE_LIMITED = "publishRateLimited"
    STORING = "storing"
    STORAGE_FAILED = "storageFailed"
    DELIVERING = "delivering"
    NO_CONSUMER = "noConsumer"
    CONSUMER_REFUSED = "consumerRefused"
    NO_PERMITS = "noPermits"
    CONNECTION_FULL = "connectionFull"
    CONSUMER_UNACKED_LIMIT = "consumerUnackedLimit"
    SUBSCRIPTION_UNACKED_LIMIT = "subscriptionUnackedLimit"
    BROKER_UNACKED_LIMIT = "brokerUnackedLimit"
    DRAINING_HASH = "drainingHash"
    HASH_WITHOUT_CONSUMER = "hashWithoutConsumer"
    LOOK_AHEAD_LIMIT = "lookAheadLimit"
    DELAYED_INDEX_LIMIT = "delayedIndexLimit"
    FAILOVER_DELAY = "failoverDelay"
    RATE_LIMITED = "rateLimited"
    READING = "reading"
    READ_FAILED = "readFailed"
    NOT_COMPACTED = "notCompacted"
    COMPACTED_AWAY = "compactedAway"
    IN_OPEN_TRANSACTION = "inOpenTransaction"
    BEHIND_OPEN_TRANSACTION = "behindOpenTransaction"
    ABORTED = "aborted"
    PENDING_ACK = "pendingAck"
    RESETTING = "resetting"
    CLOSING = "closing"


STALLS: Final = frozenset(Reason) - {
    *(Reason.ACKNOWLEDGED, Reason.FILTERED, Reason.TRIMMED, Reason.NOT_FOUND, Reason.PAST_END),
    *(Reason.CAUGHT_UP, Reason.NO_PRODUCER, Reason.PRODUCERS_QUEUED),
    *(Reason.DUPLICATES, Reason.TERMINATED, Reason.DELIVERING),
    *(Reason.PENDING, Reason.DELAYED, Reason.STORING),
    *(Reason.NOT_COMPACTED, Reason.COMPACTED_AWAY, Reason.ABORTED),
}
"""Something keeps messages from being delivered that could be; but see `is_stall`."""
_UNTIL_OVERDUE: Final = frozenset(
    (Reason.IN_OPEN_TRANSACTION, Reason.BEHIND_OPEN_TRANSACTION, Reason.PENDING_ACK)
)
STALL_MS: Final = 60_000
"""Consumers that get nothing for so long, though there is a backlog, are told by the doctor and by
metrics."""


def is_stall(reason: str, details: Mapping[str, Any]) -> bool:
    """Whether something keeps messages from being delivered that could be.

    To wait for a transaction is none before its time-out, which ``overdue`` in the details tells.
    """
    return reason in STALLS and (reason not in _UNTIL_OVERDUE or "overdue" in details)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One reason, in words and as fields."""

    reason: Reason
    message: str
    """One sentence."""
    next: str
    """What happens next, or what an operator can do."""
    consumer: str | None = None
    """Name of the consumer that it depends on."""
    since_ms: int | None = None
    """Since when at the latest, as far as it is known."""
    until_ms: int | None = None
    """Until when, where that is known."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the answer."""

    @property
    def is_stall(self) -> bool:
        return is_stall(self.reason, self.details)

    def as_json(self) -> dict[str, Any]:
        """The answer of the admin API; what isn't known is left out."""
        known = {
            "consumer": self.consumer,
            "sinceTimestamp": self.since_ms or None,
            "untilTimestamp": self.until_ms,
        }
        return {
            "reason": self.reason.value,
            "message": self.message,
            "next": self.next,
            **{name: value for name, value in known.items() if value is not None},
            **self.details,
        }


def counted(count: int, noun: str) -> str:
    """``1 message``, ``50,000 messages``."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def duration(ms: int) -> str:
    """The two largest units of a time: ``450 ms``, ``12 s``, ``2 h 5 min``, ``3 d``."""
    if ms < 1000:
        return f"{max(ms, 0)} ms"
    seconds, found = ms // 1000, list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or found:
            found.append(f"{count:,} {unit}" if count else "")
    return " ".join(found[:2]).strip()


def _rate(rate: Rate) -> str:
    """``100 messages a second or 1,024 bytes a second``."""
    period = " a second" if rate.period_s == 1 else f" in {duration(rate.period_s * 1000)}"
    limits = [(rate.messages, "message"), (rate.bytes, "byte")]
    above = " above the publish rate" if rate.relative_to_publish else ""
    return " or ".join(counted(each, noun) + period for each, noun in limits if each > 0) + above


# --- of one message


def acknowledged() -> Explanation:
    return Explanation(
        Reason.ACKNOWLEDGED,
        "The subscription has acknowledged the message: a consumer, an expiry or a command did, or "
        "the subscription was created behind it.",
        "It is not delivered again unless the subscription is reset to it or before it.",
    )


def duplicate() -> Explanation:
    """Of the message id -1:-1, which a producer is told then."""
    return Explanation(
        Reason.NOT_FOUND,
        "Nothing was stored under this id: deduplication took the message for a duplicate.",
        "The message that it repeats is delivered. A producer with the name of another one goes on "
        "with its sequence ids (brokerDeduplicationEnabled).",
    )


def pending(
    consumer: ConsumerState, now_ms: int, *, since_ms: int, redeliveries: int, messages: int | None
) -> Explanation:
    """Args:
    since_ms: when it was sent, at the latest; 0: unknown.
    messages: of the entry, that are unacknowledged; None: unknown.
    """
    waits = f" for at least {duration(now_ms - since_ms)}" if 0 < since_ms < now_ms else ""
    known = {} if messages is None else {"unackedMessages": messages}
    if consumer.unacked:
        known["consumerUnackedMessages"] = consumer.unacked
    what, those = ("it", "it") if (messages or 1) == 1 else (f"{messages:,} messages of it", "them")
    again = f" It was delivered {counted(redeliveries, 'time')} before." if redeliveries else ""
    if (messages or 1) > 1:
        again += (
            " Clients acknowledge a batch when they have all of it, unless batch index "
            "acknowledgment is on: one message of it may be all that is missing."
        )
    if consumer.unacked > (messages or 1):
        again += f" In all it has {consumer.unacked:,} messages unacknowledged."
    return Explanation(
        Reason.PENDING,
        f"Consumer {consumer.label} has {what} and has not acknowledged {those}{waits}.{again}"
        + _unheard(consumer),
        "It is done when the consumer acknowledges it. It is delivered again when the consumer "
        "disconnects, or its client asks for that: when its acknowledgment time-out "
        "ends, or after a negative acknowledgment when the delay of that is over.",
        consumer.name,
        since_ms,
        details={"redeliveryCount": redeliveries, **known},
    )


def _due(due_ms: int, now_ms: int) -> str:
    wait_ms = due_ms - now_ms
    return (
        f"Its producer asked for a later delivery: it is due in {duration(wait_ms)}."
        + " Was its time meant in another unit than ms?" * (wait_ms > _YEAR_MS)
    )


def delayed(due_ms: int, now_ms: int) -> Explanation:
    """``due_ms``: when it is delivered at the earliest."""
    return Explanation(
        Reason.DELAYED,
        _due(due_ms, now_ms),
        "It is delivered to a consumer with permits when it is due. An Exclusive or Failover "
        "subscription would get it at once.",
        until_ms=due_ms,
    )


def delayed_too(found: Explanation, due_ms: int, now_ms: int) -> Explanation:
    """``found``: that no consumer is connected."""
    return replace(
        found,
        message=f"{found.message} {_due(due_ms, now_ms)}",
        next=f"{found.next} Shared and Key_Shared subscriptions get it when it is due.",
        until_ms=due_ms,
    )


def filtered() -> Explanation:
    return Explanation(
        Reason.FILTERED,
        "It is a marker of the broker, which no consumer is sent.",
        "The broker acknowledges it itself when it reaches it.",
    )


def trimmed(position: Position) -> Explanation:
    return Explanation(
        Reason.TRIMMED,
        f"Ledger {position[0]} is not part of the topic: it was deleted by trimming, or never was.",
        "It cannot be delivered any more. Retention policies keep messages that are acknowledged.",
    )


def not_found(position: Position, count: int, *, in_batch: bool = False) -> Explanation:
    """``count``: entries of its ledger, or messages of its entry."""
    place = f"{position[0]}:{position[1]}" if in_batch else f"ledger {position[0]}"
    has = counted(count, "message" if in_batch else "entry")
    return Explanation(
        Reason.NOT_FOUND,
        f"There is no such message: {place} has {has}.",
        "Numbers begin with 0. Compare the message id with internal-stats of the topic.",
    )


def past_end(last: Position, unknown: int | None = None) -> Explanation:
    """Args:
    last: position of the topic's last entry; entry -1: there is none.
    unknown: its ledger, if the topic has nothing in it.
    """
    other = f" If it was, it is of another topic: this one has nothing in ledger {unknown}."
    return Explanation(
        Reason.PAST_END,
        "It is past the end of the topic: nothing is stored there yet."
        + (f" The last message is {last[0]}:{last[1]}." if last[1] >= 0 else ""),
        "It is delivered after it is published." + ("" if unknown is None else other),
        details={"lastMessageId": f"{last[0]}:{last[1]}"},
    )


# --- of a subscription with nothing to deliver


def all_sent(
    oldest: Position, cause: Explanation, publishing: Explanation | None = None
) -> Explanation:
    """Args:
    cause: what became of the oldest entry without an acknowledgment.
    publishing: why nothing new is published; None: it is up to producers.
    """
    known = {} if publishing is None else {"publishing": publishing.reason.value}
    return replace(
        cause,
        message="Every message was sent or is delayed. The oldest one without an acknowledgment is "
        f"{oldest[0]}:{oldest[1]}. {cause.message}"
        + ("" if publishing is None else f" Of new ones: {publishing.message}"),
        details={**cause.details, "messageId": f"{oldest[0]}:{oldest[1]}", **known},
    )


def caught_up(since_ms: int, publishing: Explanation | None = None) -> Explanation:
    """``publishing``: as for ``all_sent``."""
    text = "Every message is acknowledged."
    if publishing is not None:
        return replace(publishing, message=f"{text} {publishing.message}")
    return Explanation(
        Reason.CAUGHT_UP,
        text,
        "The next message that is published is delivered.",
        since_ms=since_ms,
    )


def publishable() -> Explanation:
    return Explanation(
        Reason.DELIVERING,
        "Nothing keeps producers from publishing.",
        "The next message that is published is stored.",
    )


def no_producer() -> Explanation:
    return Explanation(
        Reason.NO_PRODUCER,
        "No producer is connected.",
        "The next message that is published is delivered.",
    )


def producers_queued(owner: str, waiting: int) -> Explanation:
    """Args:
    owner: name of the producer with exclusive access; "": it is about to change.
    waiting: producers that wait for exclusive access.
    """
    whose = f"Producer {owner}" if owner else "Another producer"
    return Explanation(
        Reason.PRODUCERS_QUEUED,
        f"{whose} has exclusive access to the topic and publishes nothing: "
        f"{counted(waiting, 'producer')} {'waits' if waiting == 1 else 'wait'} for it to leave.",
        "The next one goes on when that one closes or its connection ends: look at its "
        "application.",
        details={"waitingProducers": waiting},
    )


def terminated() -> Explanation:
    return Explanation(
        Reason.TERMINATED,
        "The topic is terminated.",
        "Nothing more is delivered; the consumers were told that the topic has ended.",
    )


def quota_held(
    kind: str, subscription: str, used: int, limit: int, *, is_held: bool, consumers: int
) -> Explanation:
    """Args:
    kind: of the quota, by Pulsar's name.
    subscription: with the largest backlog; ``consumers``: that it has.
    used, limit: bytes, or seconds of the oldest message's age.
    is_held: producers wait; else they are refused.
    """
    waits = "Producers wait" if is_held else "Producers are refused"
    by_age = kind == "message_age"
    now, most = (duration(n * 1000) if by_age else counted(n, "byte") for n in (used, limit))
    unread = "" if consumers else ", which has no consumer,"
    return Explanation(
        Reason.QUOTA_HELD,
        f"{waits}: the backlog of subscription {subscription}{unread} is {now}{' old' * by_age}, "
        f"the backlog quota {kind} is {most}.",
        "Producers come back when that backlog is consumed, skipped or expired, its subscription "
        "is deleted if nobody needs it (topics unsubscribe), or the quota is raised (topicPolicies "
        "set-backlog-quota).",
        details={
            "quota": kind,
            "subscription": subscription,
            "used": used,
            "limit": limit,
            "policy": "producer_request_hold" if is_held else "producer_exception",
        },
    )


def publish_rate_limited(scope: str, rate: Rate, waiting: int, wait_ms: int) -> Explanation:
    """Args:
    scope: whose publish rate it is: topic or broker.
    waiting: producers of the topic that wait.
    wait_ms: until the first of the line goes on.
    """
    return Explanation(
        Reason.PUBLISH_RATE_LIMITED,
        f"The publish rate of the {scope}, {_rate(rate)}, is used up for now: "
        f"{counted(waiting, 'producer')} {'waits' if waiting == 1 else 'wait'}.",
        f"Publishing goes on in {duration(wait_ms)} at the earliest, in turn with others under the "
        "same limit; or raise the rate.",
        details={"scope": scope, "waitingProducers": waiting},
    )


def storing(size: int, waited_ms: int, missing: int, now_ms: int, of: str = "") -> Explanation:
    """Args:
    size: bytes that were published and aren't confirmed by storage.
    waited_ms: since the first of them was written; 0: it wasn't yet, there is no open ledger.
    missing: how many more must take new ledgers before one can be opened.
    of: which bookies, " of those of group ssd"; "": of all.
    """
    since = f" for {duration(waited_ms)}" if waited_ms else ""
    waits = f"{counted(size, 'byte')} of published messages wait{since}"
    why = "storage has not confirmed them"
    if missing:
        waits = waits if size else "Nothing can be published now"
        why = f"a new ledger needs {counted(missing, 'more writable bookie')}{of}"
    return Explanation(
        Reason.STORING,
        f"{waits}: {why}.",
        "A message is delivered when it is stored. If this lasts, look at the bookies.",
        since_ms=now_ms - waited_ms if waited_ms else None,
        details={"pendingBytes": size, "missingBookies": missing}
        | ({"overdue": True} if waited_ms >= STALL_MS else {}),
    )


def storage_failed() -> Explanation:
    return Explanation(
        Reason.STORAGE_FAILED,
        "The topic takes no messages: its storage failed.",
        "The broker closes the topic and loads it anew; producers come back by themselves. If this "
        "lasts, look at the bookies.",
    )


def delivering(entries: int | None) -> Explanation:
    """``entries``: that are sent before this one; None: it is about the subscription."""
    if entries is None:
        text = "Nothing holds it back: messages are being delivered."
    elif entries:
        verb = "is" if entries == 1 else "are"
        text = f"Nothing holds it back: {counted(entries, 'entry')} {verb} sent before it."
    else:
        text = "Nothing holds it back: it is next."
    return Explanation(
        Reason.DELIVERING,
        text,
        "It is delivered as fast as consumers ask for messages.",
        details={} if entries is None else {"entriesBefore": entries},
    )


def passing_on() -> Explanation:
    return Explanation(
        Reason.DELIVERING,
        "Nothing is stored: each message is passed on when it is published.",
        "A message that no consumer can take at once is dropped.",
    )


# --- what stops a dispatcher


def no_consumer(since_ms: int, *, stored: bool = True) -> Explanation:
    """``since_ms``: the last one left, or the topic was loaded."""
    return Explanation(
        Reason.NO_CONSUMER,
        "No consumer is connected.",
        "Delivery starts when one subscribes."
        if stored
        else "Messages are dropped until one subscribes: a non-persistent topic keeps nothing.",
        since_ms=since_ms,
    )


def _stall_of(consumer: ConsumerState) -> Reason | None:
    if consumer.blocked:
        return Reason.CONSUMER_UNACKED_LIMIT
    if consumer.permits <= 0:
        return Reason.NO_PERMITS
    return None if consumer.writable else Reason.CONNECTION_FULL


def _unheard(consumer: ConsumerState) -> str:
    """What the consumer's connection waits for, as a further sentence; "": for nothing."""
    if not (why := consumer.unheard):
        return ""
    return (
        " The broker does not read its connection now, nor what it asks for and acknowledges on "
        f"it: {why}."
    )


def single_active_stall(
    active: ConsumerState, others: int, *, failover: bool
) -> Explanation | None:
    """What keeps entries from the one consumer that gets them all; None: nothing.

    Args:
        others: consumers that would take its place.
    """
    found = consumer_stall(active, 0)
    if found is None:
        return None
    if failover:
        return with_standby(found, "It", others)
    more = "An Exclusive subscription admits no other consumer meanwhile."
    return replace(found, message=f"{found.message} {more}")


def with_standby(found: Explanation, active: str, others: int) -> Explanation:
    """Of a Failover subscription: who gets its messages, and how many wait for it to leave."""
    told = f" {active} is the active one: {counted(others, 'other consumer')} "
    told += "gets" if others == 1 else "get"
    return replace(
        found,
        message=found.message + (f"{told} nothing until it leaves." if others else ""),
        details={**found.details, "standbyConsumers": others},
    )


def consumer_stall(
    consumer: ConsumerState, unacked_max: int, who: str = "it"
) -> Explanation | None:
    """What keeps entries from one consumer; None: nothing, it can take some."""
    reason, label, permits = _stall_of(consumer), consumer.label, consumer.permits
    since_ms = consumer.idle_since_ms
    figures = {"availablePermits": permits, "unackedMessages": consumer.unacked}
    held = _unheard(consumer)
    never = "asked for no message since it connected"
    asked = "asked for no more messages" if consumer.last_consumed_ms else never
    if reason is Reason.CONSUMER_UNACKED_LIMIT:
        more = " and has no permits" if permits <= 0 else ""
        return Explanation(
            Reason.CONSUMER_UNACKED_LIMIT,
            f"Consumer {label} has {counted(consumer.unacked, 'unacknowledged message')}, the "
            f"limit is {unacked_max:,}{more}.{held}",
            f"Delivery goes on when {who} has {unacked_max // 2:,} or fewer: let it acknowledge, "
            "restart its application if that is stuck (its messages are delivered again), or raise "
            "maxUnackedMessagesPerConsumer (topicPolicies set-max-unacked-messages-per-consumer).",
            consumer.name,
            since_ms,
            details={**figures, "limit": unacked_max},
        )
    if reason is Reason.NO_PERMITS:
        return Explanation(
            Reason.NO_PERMITS,
            f"Consumer {label} has no permits: its client has {asked}.{held}",
            f"Delivery goes on when {who} asks for more, which a client does as its application "
            "takes messages: look at what the application waits for, or restart it.",
            consumer.name,
            since_ms,
            details=figures,
        )
    if reason is Reason.CONNECTION_FULL:
        return Explanation(
            Reason.CONNECTION_FULL,
            f"The connection of consumer {label} is full: its client reads more slowly than it is "
            "sent.",
            f"Delivery goes on when {who} has read: look at its network and its processor.",
            consumer.name,
            since_ms,
            details=figures,
        )
    return None


_STALL_WORDS: Final = {
    Reason.CONSUMER_UNACKED_LIMIT: "too many unacknowledged messages",
    Reason.NO_PERMITS: "no permits",
    Reason.CONNECTION_FULL: "a full connection",
}


def consumers_stall(consumers: Sequence[ConsumerState], unacked_max: int) -> Explanation | None:
    """What keeps entries from all of these consumers; None: one can take some."""
    found: list[Reason] = []
    for consumer in consumers:
        if (reason := _stall_of(consumer)) is None:
            return None
        found.append(reason)
    if len(found) <= 1:
        return consumer_stall(consumers[0], unacked_max) if found else None
    counts = {reason: found.count(reason) for reason in _STALL_WORDS}
    main = max(counts, key=lambda reason: counts[reason])
    example = consumer_stall(consumers[found.index(main)], unacked_max, "one of them")
    assert example is not None
    parts = [f"{n:,} with {_STALL_WORDS[reason]}" for reason, n in counts.items() if n]
    return Explanation(
        main,
        f"None of {len(found):,} consumers can take a message: {', '.join(parts)}.",
        example.next,
        since_ms=max(consumer.idle_since_ms for consumer in consumers),
        details={
            "consumers": [
                {
                    "consumer": consumer.name,
                    "reason": reason.value,
                    "availablePermits": consumer.permits,
                    "unackedMessages": consumer.unacked,
                }
                for consumer, reason in zip(consumers[:_CONSUMERS_MAX], found, strict=False)
            ]
        },
    )


def subscription_unacked_limit(unacked: int, limit: int) -> Explanation:
    return Explanation(
        Reason.SUBSCRIPTION_UNACKED_LIMIT,
        f"The subscription's consumers have {counted(unacked, 'unacknowledged message')}, the "
        f"limit is {limit:,}.",
        f"Delivery goes on when they have {(limit - 1) // 2:,} or fewer: let them acknowledge, or "
        "raise maxUnackedMessagesPerSubscription (topicPolicies "
        "set-max-unacked-messages-per-subscription).",
        details={"unackedMessages": unacked, "limit": limit},
    )


def broker_unacked_limit(unacked: int, share: int, total: int, limit: int) -> Explanation:
    """Args:
    share: above which a subscription waits.
    total, limit: of all subscriptions of the broker.
    """
    return Explanation(
        Reason.BROKER_UNACKED_LIMIT,
        f"The broker's subscriptions have {counted(total, 'unacknowledged message')} since the "
        f"limit of {limit:,} was reached, and this one has {unacked:,}, above its share of "
        f"{share:,}.",
        f"Delivery goes on when this one has {share // 2:,} or fewer, or the broker "
        f"{(limit - 1) // 2:,} or fewer: let consumers acknowledge, or raise "
        "maxUnackedMessagesPerBroker.",
        details={"unackedMessages": unacked, "limit": limit, "brokerUnackedMessages": total},
    )


def draining_hash(
    slot: int, former: ConsumerState, entries: int, owner: ConsumerState | None
) -> Explanation:
    """``entries``: of this hash, pending at its former owner."""
    whose = "another consumer" if owner is None else f"consumer {owner.label}"
    return Explanation(
        Reason.DRAINING_HASH,
        f"Key hash {slot} moves to {whose}, and consumer {former.label} has still "
        f"{counted(entries, 'unacknowledged entry')} of it.",
        "It is delivered when that one has acknowledged those, or disconnects.",
        former.name,
        former.last_consumed_ms,
        details={
            "hash": slot,
            "unackedEntries": entries,
            **({} if owner is None else {"nextConsumer": owner.name}),
        },
    )


def hash_without_consumer(slot: int) -> Explanation:
    return Explanation(
        Reason.HASH_WITHOUT_CONSUMER,
        f"No connected consumer has key hash {slot} in its ranges (sticky Key_Shared).",
        "It is delivered when a consumer with that hash subscribes.",
        details={"hash": slot},
    )


def behind_in_hash(slot: int, cause: Explanation) -> Explanation:
    """An entry set aside with its key hash: it waits for what the hash waits for."""
    return replace(
        cause,
        message=f"Key hash {slot} waits: {cause.message}",
        details={**cause.details, "hash": slot},
    )


def look_ahead_limit(count: int, first: Explanation) -> Explanation:
    """``first``: why the lowest of the entries that are set aside can't be sent."""
    return Explanation(
        Reason.LOOK_AHEAD_LIMIT,
        f"{counted(count, 'entry')} of keys whose consumers can take nothing are set aside, and no "
        f"further ones are read. The first: {first.message}",
        first.next,
        first.consumer,
        first.since_ms,
        details={**first.details, "setAside": count, "firstReason": first.reason.value},
    )


def delayed_index_limit(used: int, limit: int, due_ms: int | None) -> Explanation:
    return Explanation(
        Reason.DELAYED_INDEX_LIMIT,
        f"Delayed messages fill the memory that they may take ({used:,} bytes of {limit:,}), and "
        "nothing behind them is read.",
        "Delivery goes on when some of them are due or acknowledged, or "
        "delayedDeliveryMaxIndexSizeInBytes is raised.",
        until_ms=due_ms,
        details={"limit": limit},
    )


def failover_delay(consumer: ConsumerState, until_ms: int | None, now_ms: int) -> Explanation:
    wait = "" if until_ms is None else f" in {duration(until_ms - now_ms)}"
    return Explanation(
        Reason.FAILOVER_DELAY,
        f"Consumer {consumer.label} becomes the active one{wait}: the former one has that long to "
        "acknowledge.",
        "Then delivery goes on by itself (activeConsumerFailoverDelayTimeMillis).",
        consumer.name,
        until_ms=until_ms,
    )


# --- what stops the shell


def rate_limited(scope: str, rate: Rate, until_ms: int, wait_ms: int) -> Explanation:
    """``scope``: whose dispatch rate it is: Subscription, Topic or Broker."""
    return Explanation(
        Reason.RATE_LIMITED,
        f"The dispatch rate of the {scope.lower()}, {_rate(rate)}, is used up for now.",
        f"Delivery goes on in {duration(wait_ms)} at the earliest, in turn with others under the "
        "same limit; or raise the rate.",
        until_ms=until_ms,
        details={"scope": scope.lower()},
    )


def reading(position: Position) -> Explanation:
    return Explanation(
        Reason.READING,
        f"The broker reads from storage, at {position[0]}:{position[1]}.",
        "What is read is delivered at once. If this lasts, look at the bookies.",
        details={"readPosition": f"{position[0]}:{position[1]}"},
    )


def read_failed(error: str, until_ms: int, wait_ms: int) -> Explanation:
    return Explanation(
        Reason.READ_FAILED,
        f"Reading from storage failed: {error}",
        f"The broker tries again in {duration(wait_ms)}. Look at the bookies.",
        until_ms=until_ms,
    )


def unreadable(error: str) -> Explanation:
    """Of one message, whether or not a consumer could take it."""
    return Explanation(
        Reason.READ_FAILED,
        f"It cannot be read from storage: {error}",
        "It is delivered when a bookie that has it answers. Look at the bookies, and at what "
        "magnetar doctor says of them.",
    )


def not_compacted(entries: int, *, is_running: bool) -> Explanation:
    """Of the subscription ``__compaction``."""
    held = "1 entry is" if entries == 1 else f"{entries:,} entries are"
    if is_running:
        next_ = "The compaction that is under way takes those that were there when it began."
    else:
        next_ = "The next compaction takes them: by hand, or at compactionThreshold."
    return Explanation(Reason.NOT_COMPACTED, f"{held} behind the last compaction.", next_)


def resetting() -> Explanation:
    return Explanation(
        Reason.RESETTING,
        "The subscription is being moved to another position.",
        "Consumers are admitted again when that is stored.",
    )


def closing() -> Explanation:
    return Explanation(
        Reason.CLOSING,
        "The subscription is being closed or deleted.",
        "If its topic moves, consumers go on at the broker that serves it then.",
    )
