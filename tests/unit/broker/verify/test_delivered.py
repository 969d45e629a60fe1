"""Consumers' histories: honest ones pass, and each planted fault is named."""

from collections.abc import Sequence

import pytest

from magnetar.broker.verify.delivered import SubscriptionChecker
from magnetar.broker.verify.history import (
    AckAsked,
    AckConfirmed,
    Activated,
    Attached,
    Delivered,
    End,
    Ended,
    Event,
    GivenBack,
    Rule,
    Sent,
    Sought,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
    Violation,
    Waited,
)
from tests.history import Session, session_violations
from tests.raw_client import Position
from tests.unit.broker.verify.test_stored import LOG

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
POSITIONS = list(LOG)


# --- sessions of cumulative acknowledgements


def session(first: int, end: int, asked: int = -1, confirmed: int = -1) -> Session:
    """Who saw the log's messages from ``first`` to before ``end``; -1: acknowledged nothing."""
    made = Session()
    for at in POSITIONS[first:end]:
        made.deliver(at, LOG[at])
    if confirmed >= 0:
        made.ask(POSITIONS[confirmed], 1)
    if asked >= 0:
        made.ask(POSITIONS[asked], 2)
    if confirmed >= 0:
        made.confirm(1)
    return made


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param([], id="nobody"),
        pytest.param([session(0, 10)], id="one"),
        pytest.param([session(0, 0), session(0, 3)], id="one that got nothing"),
        pytest.param([session(0, 6, 4, 4), session(5, 8, 7, 7), session(8, 10)], id="exact"),
        pytest.param([session(0, 6, 4, 1), session(2, 8)], id="the answer came, the write didn't"),
        pytest.param([session(0, 6, 4, 1), session(5, 8)], id="the write came, the answer didn't"),
        pytest.param([session(0, 6, 4, 1), session(3, 8)], id="in between"),
        pytest.param([session(0, 6, 4, 1), session(2, 4), session(5, 6)], id="stored later"),
    ],
)
def test_honest_consumers_pass(sessions: list[Session]) -> None:
    assert session_violations(LOG, sessions) == []


HOLE = session(0, 8)
del HOLE.events[5]
AGAIN = session(0, 4)
AGAIN.events.append(AGAIN.events[2])
SWAPPED = session(0, 4)
SWAPPED.events[2:4] = reversed(SWAPPED.events[2:4])
CHANGED = Session()
CHANGED.deliver((4, 0), 5)
UNKNOWN = Session()
UNKNOWN.deliver((4, 9), 5)


@pytest.mark.parametrize(
    ("sessions", "rule"),
    [
        pytest.param([session(1, 4)], Rule.SKIPPED, id="the first message is skipped"),
        pytest.param([session(0, 6, 4, 4), session(6, 8)], Rule.SKIPPED, id="one is skipped"),
        pytest.param(
            [session(0, 10, 4, 4), session(9, 10)], Rule.SKIPPED, id="seen, never acknowledged"
        ),
        pytest.param(
            [session(0, 8, 6, 1), session(2, 3), session(8, 9)], Rule.SKIPPED, id="skipped later"
        ),
        pytest.param(
            [session(0, 6, 4, 4), session(4, 8)], Rule.DELIVERED_AFTER_ACK, id="acknowledged"
        ),
        pytest.param(
            [session(0, 6, 4, 4), session(5, 6), session(2, 3)],
            Rule.DELIVERED_AFTER_ACK,
            id="acknowledged long ago",
        ),
        pytest.param([HOLE], Rule.SKIPPED, id="a gap on one connection"),
        pytest.param([AGAIN], Rule.DELIVERED_TWICE, id="twice on one connection"),
        pytest.param([SWAPPED], Rule.REORDERED, id="out of order"),
        pytest.param([CHANGED], Rule.DAMAGED, id="other content"),
        pytest.param([UNKNOWN], Rule.INVENTED, id="nothing was stored there"),
    ],
)
def test_a_fault_of_sessions_is_named(sessions: list[Session], rule: Rule) -> None:
    assert rule in {each.rule for each in session_violations(LOG, sessions)}


# --- all types of subscriptions

TOPIC = TopicHistory(
    "t",
    sent={("p", n): Sent("ab"[n % 2], due_ms=5_000 if n == 9 else 0) for n in range(10)},
    stored=[((1, n), ("p", n)) for n in range(10)],
)


def at(*numbers: int) -> list[Position]:
    return [(1, n) for n in numbers]


def gets(session: int, *numbers: int, at_ms: int = 9_000) -> list[Event]:
    return [Delivered(session, (1, n), ("p", n), at_ms) for n in numbers]


def acks(session: int, *numbers: int, confirmed: bool = True) -> list[Event]:
    asked: list[Event] = [AckAsked(session, 100 + n, at(n)) for n in numbers]
    return asked + [AckConfirmed(session, 100 + n) for n in numbers if confirmed]


def violations(
    kind: SubscriptionType,
    *events: Event | list[Event],
    complete: bool = False,
    durable_acks: bool = True,
    durable_at_moves: bool = True,
) -> list[Violation]:
    flat = [e for each in events for e in (each if isinstance(each, list) else [each])]
    return SubscriptionChecker(
        TOPIC,
        SubscriptionHistory("s", kind, flat),
        durable_acks=durable_acks,
        durable_at_moves=durable_at_moves,
        early_ms_max=1_000,
    ).check(complete=complete)


def rules(found: list[Violation]) -> set[Rule]:
    return {each.rule for each in found}


ALL = range(10)
TWO: list[Event] = [Attached(1), Attached(2)]
ONE_ACTIVE: list[Event] = [*TWO, Activated(1, True), Activated(2, False)]


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        pytest.param(EXCLUSIVE, [Attached(1), *gets(1, *ALL), *acks(1, *ALL)], id="exclusive"),
        pytest.param(
            EXCLUSIVE,
            [
                Attached(1),
                *gets(1, 0, 1, 2, 3),
                *acks(1, 1),
                GivenBack(1, at(2)),
                *gets(1, 0, 2, *range(3, 10)),
                *acks(1, 0, *range(2, 10)),
            ],
            id="exclusive, begun again",
        ),
        pytest.param(
            FAILOVER,
            [
                *ONE_ACTIVE,
                *gets(1, 0, 1, 2),
                *acks(1, 0, 2),
                Ended(1, End.CLOSED),
                Activated(2, True),
                *gets(2, 1, *range(3, 10)),
                *acks(2, 1, *range(3, 10)),
            ],
            id="failover, the active one leaves",
        ),
        pytest.param(
            FAILOVER,
            [
                *ONE_ACTIVE,
                *gets(1, 0, 1),
                *acks(1, 0, 1, confirmed=False),
                Activated(2, True),
                Activated(1, False),
                *gets(2, *ALL),
                AckConfirmed(1, 100),
                *acks(2, *ALL),
            ],
            id="failover, acknowledged too late",
        ),
        pytest.param(
            FAILOVER,
            [
                *ONE_ACTIVE,
                *gets(1, 0, 1),
                *acks(1, 1),
                Activated(1, True),
                *gets(1, 0, *range(2, 10)),
                *acks(1, 0, *range(2, 10)),
            ],
            id="failover, another one was chosen for a moment",
        ),
        pytest.param(
            SHARED,
            [
                *TWO,
                *gets(2, 1, 3, 0),
                *gets(1, 2, *range(4, 10)),
                *acks(1, 2, *range(4, 10)),
                *acks(2, 1, 3),
                GivenBack(2, at(0)),
                *gets(1, 0),
                *acks(1, 0),
            ],
            id="shared",
        ),
        pytest.param(
            SHARED,
            [*TWO, *gets(1, *ALL), Ended(1, End.CUT), *gets(2, *ALL), *acks(2, *ALL)],
            id="shared, one leaves",
        ),
        pytest.param(
            SHARED,
            [*TWO, *gets(1, *ALL), *gets(2, *ALL), *acks(2, *ALL), Ended(1, End.LOST)],
            id="shared, a loss that is noticed late",
        ),
        pytest.param(
            KEY_SHARED,
            [
                *TWO,
                *gets(1, 0, 2, 9, 4),
                *acks(1, 0, 2, 4, 9),
                *gets(2, 1, 3, 5, 7),
                *gets(2, 6, 8),
                *acks(2, 1, 3, 5, 6, 7, 8),
            ],
            id="key shared",
        ),
    ],
)
def test_an_honest_subscription_passes(kind: SubscriptionType, events: list[Event]) -> None:
    assert violations(kind, events, complete=True) == []


FAULTS: list[tuple[SubscriptionType, Sequence[Event | list[Event]], Rule]] = [
    (SHARED, [TWO, gets(1, *range(9))], Rule.NOT_DELIVERED),
    (SHARED, [TWO, gets(1, *ALL), GivenBack(1, at(3))], Rule.NOT_REDELIVERED),
    (  # also where an unload gives it back at last
        SHARED,
        [
            *(TWO, gets(1, *ALL), GivenBack(1, at(3)), Waited(60)),
            *(Ended(1, End.CLOSED), Ended(2, End.CLOSED), Attached(3), gets(3, 3)),
        ],
        Rule.NOT_REDELIVERED,
    ),
    (SHARED, [TWO, gets(1, 0), gets(2, 0)], Rule.DELIVERED_TWICE),
    (SHARED, [TWO, gets(1, 0, 1), GivenBack(1, at(0)), gets(2, 1)], Rule.DELIVERED_TWICE),
    (SHARED, [TWO, gets(1, 0), acks(1, 0), gets(2, 0)], Rule.DELIVERED_AFTER_ACK),
    (
        SHARED,
        [TWO, gets(1, 0), acks(1, 0), Ended(1, End.CLOSED), gets(2, 0)],
        Rule.DELIVERED_AFTER_ACK,
    ),
    (SHARED, [TWO, gets(1, 9, at_ms=3_999)], Rule.EARLY),
    (KEY_SHARED, [TWO, gets(1, 0), gets(2, 2)], Rule.KEY_AT_TWO),
    (KEY_SHARED, [TWO, gets(1, 2), acks(1, 2), gets(2, 0)], Rule.REORDERED),
    (
        SHARED,
        [TWO, gets(1, *ALL), Ended(1, End.MOVED), Sought(1, POSITIONS[2]), gets(2, 1)],
        Rule.WRONG_PLACE,
    ),
    (  # as Apache Pulsar 4.2.4 with transactions leaves them out
        SHARED,
        [
            *(TWO, gets(1, *ALL), AckAsked(1, 1, at(2, 3), partial=True), AckConfirmed(1, 1)),
            *(Ended(1, End.MOVED), Ended(2, End.MOVED), Sought(1, (1, 0))),
            *(Attached(3), gets(3, *(nth for nth in ALL if nth not in {2, 3}))),
        ],
        Rule.NOT_DELIVERED,
    ),
    (EXCLUSIVE, TWO, Rule.TWO_CONSUMERS),
    (SHARED, [TWO, Ended(1, End.FORGOTTEN)], Rule.NOT_TOLD),
    (EXCLUSIVE, [Attached(1), gets(1, 0, 2)], Rule.SKIPPED),
    (EXCLUSIVE, [Attached(1), gets(1, 0, 1, 0)], Rule.REORDERED),
    (FAILOVER, [ONE_ACTIVE, gets(2, 0)], Rule.INACTIVE_CONSUMER),
    (
        FAILOVER,
        [ONE_ACTIVE, gets(1, 0), acks(1, 0), Activated(2, True), gets(2, 0)],
        Rule.DELIVERED_AFTER_ACK,
    ),
]


@pytest.mark.parametrize(("kind", "events", "rule"), FAULTS)
def test_a_planted_fault_is_named(kind: SubscriptionType, events: list[Event], rule: Rule) -> None:
    assert rule in rules(violations(kind, *events, complete=rule.startswith("not-")))


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([gets(2, 3)], id="it came again"),
        pytest.param([acks(1, 3, confirmed=False)], id="it was acknowledged all the same"),
        pytest.param([Ended(1, End.CUT), Ended(2, End.CUT)], id="nobody was there"),
        pytest.param([Sought(1, (1, 5))], id="a seek passed it"),
    ],
)
def test_what_was_given_back_need_not_come_again(between: list[Event | list[Event]]) -> None:
    events = TWO, gets(1, *ALL), GivenBack(1, at(3)), *between, Waited(60)
    assert violations(SHARED, *events) == []


def test_each_rule_has_a_planted_fault() -> None:
    """Those about stored messages are in ``test_stored``, of transactions in ``test_transfers``."""
    named = {rule for *_, rule in FAULTS}
    about_stored = {Rule.LOST, Rule.MOVED, Rule.DUPLICATED, Rule.INVENTED, Rule.DAMAGED}
    assert named | about_stored | {Rule.TRANSACTION} == set(Rule)


@pytest.mark.parametrize("kind", [EXCLUSIVE, KEY_SHARED])
def test_what_a_forgotten_consumer_had_may_come_to_another(kind: SubscriptionType) -> None:
    """It was over when it received something last, so nothing else is told."""
    events = [Attached(1), *gets(1, 0, 1), Attached(2), *gets(2, *ALL), Ended(1, End.FORGOTTEN)]
    assert rules(violations(kind, *events, complete=True)) == {Rule.NOT_TOLD}


def test_a_delayed_message_may_be_early_by_a_tick() -> None:
    assert violations(SHARED, TWO, gets(1, 9, at_ms=4_000)) == []
    assert violations(EXCLUSIVE, Attached(1), gets(1, *ALL, at_ms=0)) == []


@pytest.mark.parametrize("durable", [True, False])
def test_acknowledgements_may_be_undone_by_a_crash_where_they_are_not_durable(
    durable: bool,
) -> None:
    lost = Ended(1, End.LOST)
    found = rules(
        violations(SHARED, TWO, gets(1, 0), acks(1, 0), lost, gets(2, 0), durable_acks=durable)
    )
    assert found == ({Rule.DELIVERED_AFTER_ACK} if durable else set())
    moved = Ended(1, End.MOVED)
    found = rules(
        violations(SHARED, TWO, gets(1, 0), acks(1, 0), moved, gets(2, 0), durable_acks=durable)
    )
    assert found == {Rule.DELIVERED_AFTER_ACK}


@pytest.mark.parametrize(
    ("end", "durable", "found"),
    [
        (End.MOVED, True, [Rule.DELIVERED_AFTER_ACK]),
        (End.MOVED, False, []),
        (End.CLOSED, False, [Rule.DELIVERED_AFTER_ACK]),
    ],
)
def test_a_part_of_a_batch_may_be_forgotten_when_the_topic_moves(
    end: End, durable: bool, found: list[Rule]
) -> None:
    log = [(4, 0, index) for index in range(3)]
    events: list[Event] = [*TWO]
    events += [Delivered(1, position, ("sender", nth)) for nth, position in enumerate(log)]
    events += [AckAsked(1, 1, [(4, 0, 0)], partial=True), AckConfirmed(1, 1), Ended(1, end)]
    events.append(Delivered(2, (4, 0, 0), ("sender", 0)))
    history = SubscriptionHistory("s", SHARED, events)
    topic = TopicHistory("t", stored=[(at, ("sender", nth)) for nth, at in enumerate(log)])
    checker = SubscriptionChecker(topic, history, durable_parts=durable)
    assert [each.rule for each in checker.check(complete=False)] == found


def test_a_part_is_durable_with_the_rest_of_its_batch() -> None:
    log = [(4, 0, index) for index in range(2)]
    events: list[Event] = [*TWO]
    events += [Delivered(1, position, ("sender", nth)) for nth, position in enumerate(log)]
    events += [AckAsked(1, 1, [(4, 0, 0)], partial=True), AckConfirmed(1, 1)]
    events += [AckAsked(1, 2, [(4, 0, 1)]), AckConfirmed(1, 2), Ended(1, End.MOVED)]
    events.append(Delivered(2, (4, 0, 0), ("sender", 0)))
    history = SubscriptionHistory("s", SHARED, events)
    topic = TopicHistory("t", stored=[(at, ("sender", nth)) for nth, at in enumerate(log)])
    checker = SubscriptionChecker(topic, history, durable_parts=False)
    assert [each.rule for each in checker.check(complete=False)] == [Rule.DELIVERED_AFTER_ACK]


@pytest.mark.parametrize("end", [End.MOVED, End.CUT])
def test_acknowledgements_may_be_undone_where_the_topic_moved(end: End) -> None:
    """Also where nobody was there to be told. A seek isn't undone."""
    events: list[Event] = [Attached(1), *gets(1, 0), *acks(1, 0), Ended(1, end)]
    events += [Attached(2), *gets(2, 0)]
    assert rules(violations(SHARED, events)) == {Rule.DELIVERED_AFTER_ACK}
    assert violations(SHARED, events, durable_at_moves=False) == []
    passed: list[Event] = [Attached(1), *gets(1, *ALL), Ended(1, End.MOVED), Sought(1, (1, 2))]
    passed += [Attached(2), *gets(2, 0)]
    assert rules(violations(SHARED, passed, durable_at_moves=False)) == {Rule.WRONG_PLACE}


def test_acknowledgements_hold_while_the_topic_stays() -> None:
    events: list[Event] = [*TWO, *gets(1, 0), *acks(1, 0), Ended(1, End.CLOSED), *gets(2, 0)]
    found = violations(SHARED, events, durable_at_moves=False)
    assert rules(found) == {Rule.DELIVERED_AFTER_ACK}
