"""Seeded schedules against whole subscriptions: what is told of one fits what its clients got.

When everything has settled, an entry that no client has is explained by a stall; without one the
subscription says that nothing is left to deliver, or what is delayed. It never says that it
delivers while it doesn't.
"""

import random
from typing import Any, cast

import pytest

from magnetar.broker.dispatch.explanation import STALLS, Explanation, Reason
from magnetar.broker.policies.effective import Rate
from magnetar.broker.protocol.entry_header import FLAG_KEY, parse_header
from magnetar.broker.rate_limits.rate_limiter import RateLimiter
from magnetar.broker.subscription.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Consumer
from magnetar.broker.subscription.message_explanation import explain_message
from magnetar.broker.subscription.subscription import SINGLE_ACTIVE
from magnetar.managed_ledger.position import Position
from tests.manual_clock import ManualLoop
from tests.simulation.simulator import seeds
from tests.unit.broker.dispatch.builders import Bench, FakeSink, settle
from tests.unit.broker.dispatch.doubles import head

SEEDS = seeds(3)
STEPS = 120
_DAY_MS = 86_400_000


class SubscriptionWorld:
    """One subscription, and what each of its clients has."""

    def __init__(self, seed: int, sub_type: int) -> None:
        self.rng = random.Random(seed)
        self.sub_type = sub_type
        self.bench = Bench(
            max_unacked_messages_per_consumer=self.rng.choice([0, 20]),
            max_unacked_messages_per_subscription=self.rng.choice([0, 45]),
            active_consumer_failover_delay_time_millis=0,
        )
        self.loop = ManualLoop()
        if self.rng.random() < 0.4:
            limiter = RateLimiter(Rate(self.rng.choice([5, 50]), 0), cast("Any", self.loop))
            self.bench.topic.rate_limits.dispatch = limiter
            self.bench.subscription.policies_changed()
        self.sinks: dict[Consumer, FakeSink] = {}
        self.seen: dict[Consumer, int] = {}  # deliveries that were looked at
        self.holder: dict[Position, Consumer] = {}
        self.active: Consumer | None = None
        self.names = 0

    async def step(self) -> None:
        rng, kind = self.rng, self.rng.random()
        consumers = list(self.sinks)
        subscription = self.bench.subscription
        if kind < 0.25:
            self.append()
        elif not consumers or kind < 0.33:
            await self.join()
        elif kind < 0.38:
            self.leave(rng.choice(consumers))
        elif kind < 0.6:
            subscription.flow(rng.choice(consumers), rng.choice([1, 5, 60]))
        elif kind < 0.78:
            self.acknowledge(rng.choice(consumers))
        elif kind < 0.86:
            self.redeliver(rng.choice(consumers))
        elif kind < 0.94:
            sink = self.sinks[rng.choice(consumers)]
            sink.writable = not sink.writable
        else:
            self.loop.advance(rng.choice([100, 2_000]))
        subscription.wake()
        await settle(8)
        self.look()

    def append(self) -> None:
        for _ in range(self.rng.randint(1, 15)):
            kind = self.rng.random()
            if kind < 0.1:
                later_ms = self.bench.service.now_ms + _DAY_MS
                self.bench.ledger.append(head(deliver_at_ms=later_ms))
            else:
                messages = 3 if kind < 0.2 else 1
                self.bench.ledger.append(
                    head(messages, key=self.rng.randrange(9) * 7_919 + 1, flags=FLAG_KEY)
                )

    async def join(self) -> None:
        if self.sub_type == EXCLUSIVE and self.sinks:
            return
        self.names += 1
        name = f"c{self.rng.randrange(1_000)}-{self.names}"
        consumer, sink = await self.bench.consumer(self.sub_type, name)
        self.sinks[consumer], self.seen[consumer] = sink, 0

    def leave(self, consumer: Consumer) -> None:
        self.look()
        self.bench.subscription.remove_consumer(consumer)
        del self.sinks[consumer], self.seen[consumer]
        self.holder = {at: one for at, one in self.holder.items() if one is not consumer}

    def acknowledge(self, consumer: Consumer) -> None:
        mine = [at for at, one in self.holder.items() if one is consumer]
        if mine:
            chosen = self.rng.sample(mine, self.rng.randint(1, len(mine)))
            self.bench.subscription.acknowledge(consumer, chosen)
            for position in chosen:
                self.holder.pop(position)

    def redeliver(self, consumer: Consumer) -> None:
        mine = [at for at, one in self.holder.items() if one is consumer]
        self.bench.subscription.redeliver(consumer, None)
        for position in mine:
            del self.holder[position]

    def look(self) -> None:
        """Who has got what; a new active consumer gets everything again."""
        core = cast("Any", self.bench.subscription)._core
        if self.sub_type in SINGLE_ACTIVE and (core is None or core.active is not self.active):
            self.holder.clear()
            self.active = None if core is None else core.active
        for consumer, sink in self.sinks.items():
            for position in sink.got[self.seen[consumer] :]:
                if position not in self.bench.cursor.acked:
                    self.holder[position] = consumer
            self.seen[consumer] = len(sink.got)

    def undelivered(self) -> list[Position]:
        ledger, now_ms = self.bench.ledger, self.bench.service.now_ms
        return [
            (ledger_id, entry_id)
            for ledger_id, entry_id in ledger.positions()
            if (ledger_id, entry_id) not in self.bench.cursor.acked
            and (ledger_id, entry_id) not in self.holder
            and (
                self.sub_type in SINGLE_ACTIVE
                or not self.sinks
                or parse_header(ledger.ledgers[ledger_id][entry_id][0]).deliver_at_ms <= now_ms
            )
        ]

    async def check(self) -> None:
        found, undelivered = self.bench.subscription.explain(None), self.undelivered()
        if undelivered:
            assert found.reason in STALLS, found
            for position in (undelivered[0], undelivered[-1]):
                one = await explain_message(self.bench.subscription, position)
                assert one.reason in STALLS, (position, one)
        elif found.reason in STALLS:  # that its next entry is delayed is known when it is read
            assert self.bench.cursor.backlog > len(self.holder), found
        else:
            assert found.reason in {Reason.PENDING, Reason.DELAYED, Reason.CAUGHT_UP}, found
        self.check_named(found)

    def check_named(self, found: Explanation) -> None:
        """The consumer that it depends on is one, and in that state."""
        if found.consumer is None:
            return
        (consumer,) = [each for each in self.sinks if each.name == found.consumer]
        if found.reason is Reason.NO_PERMITS:
            assert consumer.permits <= 0
        elif found.reason is Reason.CONNECTION_FULL:
            assert not self.sinks[consumer].writable


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_told_fits_what_clients_got(seed: int, sub_type: int) -> None:
    world = SubscriptionWorld(seed, sub_type)
    for _ in range(STEPS):
        await world.step()
        await world.check()
