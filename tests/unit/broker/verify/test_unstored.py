"""Non-persistent topics: histories of honest brokers pass, whatever is lost; faults are named."""

from collections.abc import Sequence

import pytest

from magnetar.broker.verify.history import (
    AckAsked,
    AckConfirmed,
    Attached,
    Delivered,
    End,
    Ended,
    Event,
    GivenBack,
    MessageName,
    Rule,
    Sent,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
)
from magnetar.broker.verify.plan import MARKER
from magnetar.broker.verify.verdict import TopicVerdict, check_topic

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
KEYS = ("a", "b")
"""Of even and odd numbers."""


def came(session: int, *numbers: int, producer: str = "p") -> list[Delivered]:
    return [Delivered(session, (0, 0, -1), (producer, number)) for number in numbers]


def verdict_of(kind: SubscriptionType, events: Sequence[Event]) -> TopicVerdict:
    """Two producers sent six messages each. At the end consumer 9 got a marker."""
    ended = {each.session for each in events if isinstance(each, Ended)}
    left = [each.session for each in events if isinstance(each, Attached)]
    ends = [Ended(session, End.CLOSED) for session in left if session not in ended]
    last: list[Event] = [Attached(9), *came(9, 1, producer=MARKER)]
    subscription = SubscriptionHistory("s", kind, [*events, *ends, *last])
    names: list[MessageName] = [(producer, n) for producer in "pq" for n in range(6)]
    sent = {name: Sent(KEYS[name[1] % 2]) for name in [*names, (MARKER, 0), (MARKER, 1)]}
    history = TopicHistory("t", is_stored=False, sent=sent, subscriptions=[subscription])
    return check_topic(history)


@pytest.mark.parametrize(
    ("kind", "events", "missed"),
    [
        pytest.param(EXCLUSIVE, [], 12, id="everything is lost"),
        pytest.param(
            EXCLUSIVE,
            [
                Attached(1),
                *came(1, 0, 1),
                *came(1, 0, producer="q"),
                *came(1, 2, 5),
                Ended(1, End.CUT),
            ],
            7,
            id="producers are mixed",
        ),
        pytest.param(
            EXCLUSIVE,
            [Attached(1), *came(1, 0), Attached(2), *came(2, 1), Ended(1, End.MOVED)],
            10,
            id="the broker's end comes late",
        ),
        pytest.param(
            SHARED,
            [Attached(1), Attached(2), *came(1, 0, 3), *came(2, 1, 2), *came(1, 4)],
            7,
            id="each consumer's are in order",
        ),
        pytest.param(
            KEY_SHARED,
            [Attached(1), Attached(2), *came(1, 0), *came(2, 1), Ended(1, End.CLOSED), *came(2, 2)],
            9,
            id="a key moves with its consumer's end",
        ),
        pytest.param(
            FAILOVER,
            [Attached(2), *came(2, 0), Attached(1), *came(1, 1), Ended(1, End.CUT), *came(2, 2)],
            9,
            id="another one is active",
        ),
        pytest.param(
            SHARED,
            [
                *(Attached(1), *came(1, 0), GivenBack(1, [(0, 0, -1)])),
                *(AckAsked(1, 1, [(0, 0, -1)]), AckConfirmed(1, 1), *came(1, 1)),
            ],
            10,
            id="acknowledgements mean nothing",
        ),
    ],
)
def test_a_lossy_history_is_clean(
    kind: SubscriptionType, events: Sequence[Event], missed: int
) -> None:
    verdict = verdict_of(kind, events)
    assert (verdict.violations, verdict.missed) == ([], missed)
    assert (verdict.sent, verdict.stored) == (14, 0)


@pytest.mark.parametrize(
    ("kind", "events", "rule"),
    [
        pytest.param(EXCLUSIVE, [Attached(1), *came(1, 1, 0)], Rule.REORDERED, id="order"),
        pytest.param(
            SHARED, [Attached(1), *came(1, 1, 0)], Rule.REORDERED, id="order at a shared consumer"
        ),
        pytest.param(
            FAILOVER,
            [Attached(1), *came(1, 1), Ended(1, End.CUT), Attached(2), *came(2, 0)],
            Rule.REORDERED,
            id="order over consumers",
        ),
        pytest.param(SHARED, [Attached(1), *came(1, 1, 1)], Rule.DELIVERED_TWICE, id="twice"),
        pytest.param(
            SHARED,
            [Attached(1), Attached(2), *came(1, 1), GivenBack(1, [(0, 0, -1)]), *came(2, 1)],
            Rule.DELIVERED_TWICE,
            id="given back, and to somebody else",
        ),
        pytest.param(SHARED, [Attached(1), *came(1, 6)], Rule.INVENTED, id="nobody sent it"),
        pytest.param(
            SHARED, [Attached(1), Delivered(1, (0, 0, -1), None)], Rule.DAMAGED, id="damaged"
        ),
        pytest.param(EXCLUSIVE, [Attached(1), Attached(2)], Rule.TWO_CONSUMERS, id="two"),
        pytest.param(
            KEY_SHARED,
            [Attached(1), Attached(2), *came(1, 0), *came(2, 2)],
            Rule.KEY_AT_TWO,
            id="a key at two",
        ),
        pytest.param(
            FAILOVER,
            [Attached(1), Attached(2), *came(1, 0), *came(2, 1)],
            Rule.INACTIVE_CONSUMER,
            id="two are active",
        ),
        pytest.param(SHARED, [Attached(1), Ended(1, End.FORGOTTEN)], Rule.NOT_TOLD, id="forgotten"),
    ],
)
def test_a_planted_fault_is_named(
    kind: SubscriptionType, events: Sequence[Event], rule: Rule
) -> None:
    assert [each.rule for each in verdict_of(kind, events).violations] == [rule]


def test_a_consumer_with_room_that_gets_nothing_at_the_end_is_told() -> None:
    subscription = SubscriptionHistory("s", SHARED, [Attached(1), *came(1, 0)])
    sent = {("p", 0): Sent(), (MARKER, 0): Sent()}
    history = TopicHistory("t", is_stored=False, sent=sent, subscriptions=[subscription])
    assert [each.rule for each in check_topic(history).violations] == [Rule.NOT_DELIVERED]


def test_the_story_tells_who_had_the_message() -> None:
    events: list[Event] = [Attached(1), Attached(2), *came(1, 0, 1), *came(2, 1)]
    (violation,) = verdict_of(SHARED, events).violations
    assert violation.story == [
        "p 1 was sent with key b",
        "event 3, session 1: received at 0 ms",
        "event 4, session 2: received at 0 ms",
    ]
