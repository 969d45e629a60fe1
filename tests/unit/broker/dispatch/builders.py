"""A topic, a service and a sink for subscriptions under test: no socket, no disk."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from magnetar.broker.config import BrokerConfig
from magnetar.broker.dispatch.async_dispatcher import AsyncDispatcher
from magnetar.broker.dispatch.async_turn_queue import AsyncTurnQueue
from magnetar.broker.dispatch.unacked_budget import UnackedBudget
from magnetar.broker.dispatch.unsent_budget import UnsentBudget
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.topic_rate_limiters import TopicRateLimiters
from magnetar.broker.subscription.consumer import Consumer, SubscribeRequest
from magnetar.broker.subscription.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.backlog_check import BacklogCheck
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position
from tests.unit.broker.dispatch.doubles import MemoryCursor, MemoryLedger


class FakeService:
    def __init__(self, **settings: Any) -> None:
        self.config = BrokerConfig(**settings)
        self.now_ms = 1_800_000_000_000
        self.dispatch_throttle = self.transactions = None
        self.unacked_budget: UnackedBudget | None = None
        self.dispatch_turns = AsyncTurnQueue(asyncio.get_running_loop())
        self.unsent_budget = UnsentBudget()

    def stamped_ms(self, client_ms: int) -> int:
        return client_ms

    def clock(self) -> int:
        return self.now_ms


class FakeTopic:
    def __init__(self, service: FakeService, name: str) -> None:
        self.service = service
        self.name = TopicName.parse(name)
        self.persistent = self.name.is_persistent
        self.terminated = False
        self.new_owner = self.compacted = None
        self.subscriptions: dict[str, Any] = {}
        self.waiting: dict[AsyncDispatcher, None] = {}
        self.forgotten: list[str] = []
        self.rate_limits = TopicRateLimiters(cast("Any", self))
        self.backlog = BacklogCheck(cast("Any", self))

    @property
    def policies(self) -> EffectivePolicies:
        return EffectivePolicies({}, self.service.config)

    def check_consumer_count(self) -> None:
        """No topic here has a limit."""

    def forget_subscription(self, name: str) -> None:
        self.forgotten.append(name)
        self.subscriptions.pop(name, None)


class FakeSink:
    """Remembers what it is given, as positions."""

    def __init__(self, *, alive: bool = True) -> None:
        self.remote = "127.0.0.1:5"
        self.client_version = "test"
        self.writable = True
        self.unheard = ""
        self.alive = alive
        self.probes = 0
        self.got: list[Position] = []
        self.counts: dict[Position, int] = {}
        self.ack_sets: dict[Position, Sequence[int]] = {}
        self.deliveries = 0
        self.broken = False
        self.active: list[bool] = []
        self.ends = 0
        self.closed: list[Consumer] = []

    def deliver(
        self,
        consumer: Consumer,
        batch: EntryBatch,
        picks: Sequence[int] | None,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        self.deliveries += 1
        if self.broken:
            raise OSError("this sink is broken")
        chosen = range(len(batch.heads)) if picks is None else picks
        for nth, index in enumerate(chosen):
            position = (batch.ledger_id, batch.first + index)
            self.got.append(position)
            if redelivery_counts and redelivery_counts[nth]:
                self.counts[position] = redelivery_counts[nth]
            if ack_sets and index in ack_sets:
                self.ack_sets[position] = ack_sets[index]

    def notify_active(self, consumer: Consumer, is_active: bool) -> None:
        self.active.append(is_active)

    def notify_end_of_topic(self, consumer: Consumer) -> None:
        self.ends += 1

    def close_consumer(self, consumer: Consumer) -> None:
        self.closed.append(consumer)

    async def check_liveness(self) -> bool:
        self.probes += 1
        return self.alive


class Bench:
    """One persistent subscription over a memory ledger."""

    def __init__(
        self,
        ledger_sizes: Sequence[int] = (),
        *,
        durable: bool = True,
        topic: str = "persistent://public/default/t",
        **settings: Any,
    ) -> None:
        self.service = FakeService(**settings)
        self.topic = FakeTopic(self.service, topic)
        self.ledger = MemoryLedger(ledger_sizes)
        self.cursor = MemoryCursor(self.ledger)
        cursor, ledger = cast("Any", self.cursor), cast("Any", self.ledger)
        self.subscription = PersistentSubscription(
            cast("Any", self.topic), "s", cursor, ledger, durable=durable
        )
        self.topic.subscriptions["s"] = self.subscription

    async def consumer(
        self, sub_type: int, name: str = "c", *, permits: int = 0, alive: bool = True, **more: Any
    ) -> tuple[Consumer, FakeSink]:
        sink = FakeSink(alive=alive)
        request = SubscribeRequest(
            subscription="s",
            sub_type=sub_type,
            consumer_name=name,
            durable=self.subscription.durable,
            **more,
        )
        consumer = await self.subscription.add_consumer(request, sink)
        if permits:
            self.subscription.flow(consumer, permits)
        await settle()
        return consumer, sink


def non_persistent(**settings: Any) -> tuple[NonPersistentSubscription, FakeTopic]:
    topic = FakeTopic(FakeService(**settings), "non-persistent://public/default/t")
    return NonPersistentSubscription(cast("Any", topic), "s"), topic


async def settle(rounds: int = 12) -> None:
    """Let everything that is ready run."""
    for _ in range(rounds):
        await asyncio.sleep(0)
