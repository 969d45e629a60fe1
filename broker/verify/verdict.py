"""Judges all that is known of a topic, and tells the story of each message that was wronged."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.verify.delivered import SubscriptionChecker
from magnetar.broker.verify.history import (
    AckAsked,
    AckConfirmed,
    Activated,
    Attached,
    Delivered,
    Ended,
    Event,
    GivenBack,
    MessageName,
    Position,
    Sought,
    TopicHistory,
    Violation,
    Waited,
)
from magnetar.broker.verify.read import check_reader
from magnetar.broker.verify.stored import check_stored
from magnetar.broker.verify.unstored import UnstoredChecker

STORIES_MAX: Final = 20
"""Of a topic: whoever has read as many knows enough."""
EARLY_MS_MAX: Final = 1_000
"""delayedDeliveryTickTimeMillis of Apache Pulsar, by which a broker that isn't strict is early."""


@dataclass(slots=True)
class TopicVerdict:
    """Of one topic or partition: what was broken, and how much was looked at.

    Attributes:
        repeated: stored again, as it may be where it was sent again.
        redelivered: delivered again, after it was given back or sought.
        read: by readers that were closed before the end.
        missed: how often a subscription of a non-persistent topic didn't get a message.
    """

    topic: str
    violations: list[Violation] = field(default_factory=list)
    sent: int = 0
    stored: int = 0
    repeated: int = 0
    delivered: int = 0
    redelivered: int = 0
    read: int = 0
    missed: int = 0


def check_topic(
    history: TopicHistory, early_ms_max: int = EARLY_MS_MAX, *, durable_at_moves: bool = True
) -> TopicVerdict:
    """See `SubscriptionChecker` for the arguments.

    REQUIRES: the history is complete: consumers have had time to get everything.
    """
    verdict = (
        _check_stored_topic(history, early_ms_max, durable_at_moves=durable_at_moves)
        if history.is_stored
        else _check_unstored(history)
    )
    for subscription in history.subscriptions:
        verdict.delivered += sum(isinstance(event, Delivered) for event in subscription.events)
    for violation in verdict.violations[:STORIES_MAX]:
        violation.story = list(story_of(history, violation))
    return verdict


def _check_stored_topic(
    history: TopicHistory, early_ms_max: int, *, durable_at_moves: bool
) -> TopicVerdict:
    stored = check_stored(history)
    verdict = TopicVerdict(
        history.topic,
        stored.violations,
        sent=len(history.sent),
        stored=len(history.stored),
        repeated=stored.repeated,
    )
    for subscription in history.subscriptions:
        checker = SubscriptionChecker(
            history,
            subscription,
            durable_acks=False,
            durable_parts=False,
            durable_at_moves=durable_at_moves,
            early_ms_max=early_ms_max,
        )
        verdict.violations += checker.check(complete=True)
        verdict.redelivered += checker.redelivered
    for reader in history.readers:
        verdict.violations += check_reader(history, reader)
        verdict.read += len(reader.read)
    return verdict


def _check_unstored(history: TopicHistory) -> TopicVerdict:
    verdict = TopicVerdict(history.topic, sent=len(history.sent))
    for subscription in history.subscriptions:
        checker = UnstoredChecker(history, subscription)
        checker.check()
        verdict.violations += checker.violations
        verdict.missed += checker.missed
    return verdict


def story_of(history: TopicHistory, violation: Violation) -> Iterator[str]:
    """What was sent and received of a violation's message, and of the consumers that it concerns,
    in order.
    """
    message, position = violation.message, violation.position
    if message is not None and (sent := history.sent.get(message)) is not None:
        due = f", to be delivered at {sent.due_ms} ms" if sent.due_ms else ""
        yield f"{_name(message)} was sent with key {sent.key or 'none'}{due}"
        for receipt, at in history.receipts:
            if receipt == message:
                yield f"its receipt said {at}" if at is not None else "its receipt: a duplicate"
        for at, stored in history.stored:
            if stored == message:
                yield f"it is stored at {at}"
    for subscription in history.subscriptions:
        if subscription.name != violation.subscription:
            continue
        if position is not None and history.is_stored:
            yield from _events(subscription.events, position)
        elif message is not None:
            yield from _deliveries(subscription.events, message)


def _events(events: list[Event], position: Position) -> Iterator[str]:
    sessions: set[int] = set()
    acks: dict[int, int] = {}
    for nth, event in enumerate(events):
        told: str | None = None
        match event:
            case Waited():
                if sessions:
                    yield f"event {nth}: nothing came for {event.seconds:.0f} s"
                continue
            case Delivered() if event.position == position:
                sessions.add(event.session)
                told = f"received at {event.at_ms} ms, redelivery count {event.redelivery_count}"
            case AckAsked() if position in event.positions or (
                event.cumulative and max(event.positions) >= position
            ):
                acks[event.ack] = event.session
                told = "acknowledged" + (f" up to {max(event.positions)}" * event.cumulative)
                told += " as a part of its batch" * event.partial
            case AckConfirmed() if event.ack in acks:
                told = "the acknowledgement was confirmed"
            case GivenBack() if position in event.positions:
                told = "negatively acknowledged"
            case Ended() if event.session in sessions:
                told = f"ended: {event.why}"
            case Activated() if sessions:
                told = "is active now" if event.active else "isn't active any more"
            case Sought():
                place = event.entry if event.entry is not None else f"{event.published_ms} ms"
                told = f"sought {place}" + ("" if event.sure else ", which may be done or not")
            case Attached() if sessions:
                told = "was let in"
        if told is not None:
            yield f"event {nth}, session {event.session}: {told}"


def _deliveries(events: list[Event], message: MessageName) -> Iterator[str]:
    """Where nothing is stored: to whom it came."""
    for nth, event in enumerate(events):
        if isinstance(event, Delivered) and event.message == message:
            yield f"event {nth}, session {event.session}: received at {event.at_ms} ms"


def _name(message: tuple[str, int]) -> str:
    return f"{message[0]} {message[1]}"
