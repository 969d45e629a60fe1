"""Random histories of a broker that keeps its promises are clean; one that breaks one is found."""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from magnetar.broker.verify.delivered import SubscriptionChecker, sought_place
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
    Position,
    ReaderHistory,
    Rule,
    Sent,
    Sought,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
)
from magnetar.broker.verify.read import check_reader
from tests.nightly import NIGHTLY

SEEDS: Final = range(2_000 if NIGHTLY else 200)
STEPS: Final = 120
BATCH: Final = 3
_ENDS: Final = [each for each in End if each is not End.FORGOTTEN]


class Broker:
    """One subscription of a full topic, and its consumers: what they are given and ask is noted.

    Entries are batches of three messages, published at times that are sorted by and large.
    """

    def __init__(self, kind: SubscriptionType, rng: random.Random) -> None:
        entries = range(rng.randint(3, 12))
        self.rng, self.kind = rng, kind
        self.log: list[Position] = [
            (1, entry, index) for entry in entries for index in range(BATCH)
        ]
        self.names: dict[Position, MessageName] = {
            at: ("p", nth) for nth, at in enumerate(self.log)
        }
        self.times = {entry: 100 * entry + rng.randint(0, 250) for entry in entries}
        self.events: list[Event] = []
        self.acked: set[Position] = set()
        self.held: dict[Position, int] = {}
        self.sessions: list[int] = []
        self.is_vague = True
        """Answers get lost, and seeks are by time: several outcomes are allowed."""
        self._ids = itertools.count(1)
        self._read_from = 0

    @property
    def is_shared(self) -> bool:
        return self.kind is SubscriptionType.SHARED

    def history(self) -> tuple[TopicHistory, SubscriptionHistory]:
        sent = {name: Sent(published_ms=self.times[at[1]]) for at, name in self.names.items()}
        subscription = SubscriptionHistory("s", self.kind, self.events)
        topic = TopicHistory("t", 0, sent, [], list(self.names.items()), [subscription])
        return topic, subscription

    # --- steps

    def attach(self) -> None:
        if len(self.sessions) < (3 if self.is_shared else 1):
            self.sessions.append(next(self._ids))
            self.events.append(Attached(self.sessions[-1]))
            self._read_from = 0

    def deliver(self) -> None:
        if self.sessions and (free := self._free()):
            at = free[0]
            self.held[at] = self.rng.choice(self.sessions)
            self._read_from = self.log.index(at) + 1
            self.events.append(Delivered(self.held[at], at, self.names[at]))

    def _free(self) -> list[Position]:
        first = 0 if self.is_shared else self._read_from
        return [at for at in self.log[first:] if at not in self.acked and at not in self.held]

    def acknowledge(self) -> None:
        if not self.held:
            return
        at = self.rng.choice(list(self.held))
        session, ack = self.held[at], next(self._ids)
        if not self.is_shared and self.rng.random() < 0.5:
            done = self.log[: self.log.index(at) + 1]
            self.events.append(AckAsked(session, ack, [at], cumulative=True))
        else:
            done = [at]
            self.events.append(AckAsked(session, ack, done, partial=True))
        if self._answers():
            self.events.append(AckConfirmed(session, ack))
        elif self.rng.random() < 0.5:
            for each in done:
                self.held.pop(each, None)
            return self.end(session)  # neither done nor answered
        self.acked.update(done)
        for each in done:
            self.held.pop(each, None)

    def _answers(self) -> bool:
        return not self.is_vague or self.rng.random() < 0.8

    def give_back(self) -> None:
        if self.is_shared and self.held:
            at = self.rng.choice(list(self.held))
            self.events.append(GivenBack(self.held.pop(at), [at]))

    def leave(self) -> None:
        if self.sessions:
            self.end(self.rng.choice(self.sessions))

    def end(self, session: int) -> None:
        self.sessions.remove(session)
        self.events.append(Ended(session, self.rng.choice(_ENDS)))
        self.held = {at: holder for at, holder in self.held.items() if holder != session}

    def seek(self) -> None:
        if not self.sessions:
            return
        asks = self.rng.choice(self.sessions)
        for session in list(self.sessions):
            self.end(session)
        entry = self.rng.choice(list(self.times))
        sure = self._answers()
        if by_time := self.is_vague and self.rng.random() < 0.5:
            times = [self.times[at[1]] for at in self.log]
            first, last = sought_place(times, self.times[entry])
            place = self.rng.randint(first, last)
            self.events.append(Sought(asks, None, self.times[entry], sure))
        else:
            place = self.log.index((1, entry, 0))
            self.events.append(Sought(asks, (1, entry), 0, sure))
        assert by_time or place % BATCH == 0
        if sure or self.rng.random() < 0.5:
            self.acked = set(self.log[:place])

    def run(self) -> None:
        steps: Sequence[Callable[[], None]] = (
            *(self.deliver,) * 6,
            *(self.acknowledge,) * 3,
            *(self.attach,) * 2,
            self.give_back,
            self.leave,
            self.seek,
        )
        for _ in range(STEPS):
            self.rng.choice(steps)()

    def finish(self) -> None:
        """A last consumer gets all that nobody acknowledged."""
        for session in list(self.sessions):
            self.end(session)
        self.attach()
        while self._free():
            self.deliver()

    def rules(self) -> set[Rule]:
        checker = SubscriptionChecker(*self.history())
        return {each.rule for each in checker.check(complete=True)}


KINDS = [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED]


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_that_keeps_its_promises_is_clean(kind: SubscriptionType) -> None:
    for seed in SEEDS:
        broker = Broker(kind, random.Random(seed))
        broker.run()
        broker.finish()
        assert broker.rules() == set(), f"seed {seed}"


def forget_an_acknowledgement(broker: Broker) -> set[Rule]:
    """What it is found by; nothing: the fault had no effect."""
    asked = {at for each in broker.events if isinstance(each, Delivered) for at in [each.position]}
    if not (forgotten := sorted(broker.acked & asked)):
        return set()
    broker.acked.remove(broker.rng.choice(forgotten))
    return {Rule.DELIVERED_AFTER_ACK, Rule.WRONG_PLACE}


def lose_a_message(broker: Broker) -> set[Rule]:
    came = {each.position for each in broker.events if isinstance(each, Delivered)}
    if not (lost := [at for at in broker.log if at not in came | broker.acked]):
        return set()
    broker.acked.add(broker.rng.choice(lost))
    return {Rule.NOT_DELIVERED, Rule.SKIPPED}


def seek_too_early(broker: Broker) -> set[Rule]:
    return _seek_wrong(broker, -1)


def seek_too_late(broker: Broker) -> set[Rule]:
    return _seek_wrong(broker, 1)


def _seek_wrong(broker: Broker, by: int) -> set[Rule]:
    broker.attach()
    entry = broker.rng.randrange(1, max(broker.times))
    asks = broker.sessions[0]
    for session in list(broker.sessions):
        broker.end(session)
    broker.events.append(Sought(asks, (1, entry)))
    broker.acked = set(broker.log[: broker.log.index((1, entry + by, 0))])
    return {Rule.WRONG_PLACE} if by < 0 else {Rule.NOT_DELIVERED, Rule.SKIPPED}


def deliver_twice(broker: Broker) -> set[Rule]:
    if not broker.held:
        return set()
    at = broker.rng.choice(list(broker.held))
    broker.events.append(Delivered(broker.held[at], at, broker.names[at]))
    return {Rule.DELIVERED_TWICE}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fault",
    [
        forget_an_acknowledgement,
        lose_a_message,
        seek_too_early,
        seek_too_late,
        deliver_twice,
    ],
)
def test_a_broken_promise_is_found(
    kind: SubscriptionType, fault: Callable[[Broker], set[Rule]]
) -> None:
    effects = 0
    for seed in SEEDS:
        broker = Broker(kind, random.Random(seed))
        broker.is_vague = False
        broker.run()
        wanted = fault(broker)
        broker.finish()
        if wanted:
            effects += 1
            assert wanted & broker.rules(), f"seed {seed}"
        else:
            assert broker.rules() == set(), f"seed {seed}"
    assert effects > len(SEEDS) / 4


def test_where_a_seek_by_time_ends_up() -> None:
    """Each place where an earlier message is followed by a later one, and no other."""
    rng = random.Random(5)
    for _ in SEEDS:
        times = [rng.randint(0, 9) for _ in range(rng.randint(0, 8))]
        at_ms = rng.randint(0, 10)
        early = [True, *(each < at_ms for each in times), False]
        places = [nth for nth in range(len(times) + 1) if early[nth] and not early[nth + 1]]
        assert sought_place(times, at_ms) == (places[0], places[-1])


# --- readers


def read(positions: Sequence[Position], start: Position) -> set[Rule]:
    broker = Broker(SubscriptionType.SHARED, random.Random(1))
    topic, _ = broker.history()
    reader = ReaderHistory("r", start, [(at, broker.names.get(at)) for at in positions])
    return {each.rule for each in check_reader(topic, reader)}


LOG = Broker(SubscriptionType.SHARED, random.Random(1)).log
START: Final = (1, 2)
READ = LOG[2 * BATCH :]


@pytest.mark.parametrize("count", [0, 1, len(READ)])
def test_a_reader_may_stop_anywhere(count: int) -> None:
    assert read(READ[:count], START) == set()


@pytest.mark.parametrize(
    ("positions", "rule"),
    [
        pytest.param(LOG[2 * BATCH - 1 :], Rule.WRONG_PLACE, id="begins too early"),
        pytest.param(READ[1:], Rule.SKIPPED, id="begins too late"),
        pytest.param(READ[:1] + READ[2:], Rule.SKIPPED, id="leaves one out"),
        pytest.param([READ[1], READ[0]], Rule.REORDERED, id="order"),
        pytest.param([READ[0], READ[0]], Rule.REORDERED, id="twice"),
        pytest.param([(9, 9, -1)], Rule.INVENTED, id="invented"),
    ],
)
def test_a_fault_of_a_reader_is_named(positions: list[Position], rule: Rule) -> None:
    assert rule in read(positions, START)


def test_what_a_reader_got_is_compared() -> None:
    topic, _ = Broker(SubscriptionType.SHARED, random.Random(1)).history()
    reader = ReaderHistory("r", START, [(READ[0], ("p", 0))])
    assert [each.rule for each in check_reader(topic, reader)] == [Rule.DAMAGED]
