"""What is told of messages beside open transactions is what the model knows, for random schedules.

One topic in a broker, one subscription. Transactions send and acknowledge, and end in any order.
After each step every message is asked about, and the subscription.
"""

import asyncio
import random
from typing import Any

import pytest

from magnetar.broker.dispatch.explanation import STALLS, Explanation, Reason
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.consumer import EXCLUSIVE, SHARED, Consumer, SubscribeRequest
from magnetar.broker.subscription.message_explanation import explain_message
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.pending_acks import PendingAck
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.simulation.simulator import seeds
from tests.unit.broker.dispatch.builders import FakeSink, settle
from tests.unit.broker.doubles import Broker, message, receipts

SEEDS = seeds(3)
STEPS = 60
_STALLS = STALLS - {Reason.PENDING_ACK}


class TransactionsWorld:
    def __init__(self, seed: int, broker: Broker, sub_type: int) -> None:
        self.rng, self.broker, self.sub_type = random.Random(seed), broker, sub_type
        self.sent: dict[Position, TransactionId | None] = {}
        self.ended: dict[TransactionId, bool] = {}
        self.open: list[TransactionId] = []
        self.acking: dict[TransactionId, set[Position]] = {}
        self.acked = set[Position]()
        self.begun = 0
        self.consumer: tuple[Consumer, FakeSink] | None = None
        self.held = set[Position]()

    async def start(self) -> None:
        name = TopicName.parse("persistent://public/default/t")
        topic = await self.broker.service.loader.load(name, create=True)
        assert isinstance(topic, PersistentTopic)
        self.topic = topic
        subscription = await topic.create_subscription("s", EARLIEST)
        assert isinstance(subscription, PersistentSubscription)
        self.subscription = subscription
        self.client = self.broker.client()
        await self.client.receive_one()
        await self.client.produce()

    async def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.35:
            await self.send()
        elif draw < 0.5 and self.open:
            await self.end(self.open.pop(self.rng.randrange(len(self.open))))
        elif draw < 0.6:
            await self.join_or_leave()
        elif draw < 0.7 and self.consumer is not None:
            self.subscription.flow(self.consumer[0], self.rng.choice([1, 3, 30]))
        elif draw < 0.9 and self.held:
            await self.acknowledge(self.rng.choice(sorted(self.held)))
        elif self.acking:
            await self.end_acks(self.rng.choice(list(self.acking)))
        await settle(30)
        self.look()

    def begin(self) -> TransactionId:
        self.begun += 1
        return TransactionId(self.rng.randrange(2), self.begun)

    async def send(self) -> None:
        fields, transaction = dict[str, Any](), None
        if self.rng.random() < 0.6:
            if not self.open or self.rng.random() < 0.4:
                self.open.append(self.begin())
            transaction = self.rng.choice(self.open)
            fields = {"txnid_most_bits": transaction.most, "txnid_least_bits": transaction.least}
        self.client.feed(message(len(self.sent), b"x", **fields))
        ((_, ledger_id, entry_id),) = receipts(await self.client.receive(1))
        self.sent[(ledger_id, entry_id)] = transaction

    async def end(self, transaction: TransactionId) -> None:
        commit = self.rng.random() < 0.5
        await self.topic.end_transaction(transaction, -1, commit=commit)
        self.ended[transaction] = commit

    async def join_or_leave(self) -> None:
        if self.consumer is not None:
            self.subscription.remove_consumer(self.consumer[0])
            self.consumer = None
            self.held.clear()
        else:
            sink = FakeSink()
            request = SubscribeRequest(subscription="s", sub_type=self.sub_type)
            self.consumer = await self.topic.subscribe(request, sink), sink

    async def acknowledge(self, position: Position) -> None:
        assert self.consumer is not None
        self.held.remove(position)
        if self.rng.random() < 0.4:
            self.subscription.acknowledge(self.consumer[0], [position])
            self.acked.add(position)
            return
        names = list(self.acking)
        transaction = self.rng.choice(names) if names and self.rng.random() < 0.5 else self.begin()
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.subscription.acknowledge_in_transaction(
            self.consumer[0], transaction, [PendingAck(position)], done.set_result, cumulative=False
        )
        assert await done is None
        self.acking.setdefault(transaction, set()).add(position)

    async def end_acks(self, transaction: TransactionId) -> None:
        commit = self.rng.random() < 0.5
        await self.subscription.end_transaction(transaction, -1, commit=commit)
        positions = self.acking.pop(transaction)
        if commit:
            self.acked |= positions

    def look(self) -> None:
        if self.consumer is not None:
            _, sink = self.consumer
            self.held |= {*sink.got} - self.acked - self.pending()
            sink.got.clear()

    def pending(self) -> set[Position]:
        return set[Position]().union(*self.acking.values())

    def known(self, position: Position) -> set[Reason]:
        """What may be told of a message."""
        transaction = self.sent[position]
        if transaction in self.open:
            return {Reason.IN_OPEN_TRANSACTION}
        if transaction is not None and not self.ended[transaction]:
            return {Reason.ABORTED}
        if position > self.first_open():
            return {Reason.BEHIND_OPEN_TRANSACTION}
        if position in self.acked:
            return {Reason.ACKNOWLEDGED}
        if position in self.pending():
            return {Reason.PENDING_ACK}
        if position in self.held:
            return {Reason.PENDING}
        return {Reason.NO_CONSUMER if self.consumer is None else Reason.NO_PERMITS}

    def first_open(self) -> Position:
        of_open = (at for at, transaction in self.sent.items() if transaction in self.open)
        return min(of_open, default=(1 << 62, 0))

    async def check(self) -> None:
        for position in self.sent:
            found = await explain_message(self.subscription, position)
            assert found.reason in self.known(position), (position, found)
            self.check_named(position, found)
        reasons = [self.known(position) for position in self.sent]
        now = self.subscription.explain(None)
        if now.reason is Reason.BEHIND_OPEN_TRANSACTION:
            # Nothing in front of it waits for anything but acknowledgements.
            first = self.first_open()
            assert now.details["firstMessageId"] == f"{first[0]}:{first[1]}"
            before = [each for at, each in zip(self.sent, reasons, strict=True) if at < first]
            assert not {Reason.NO_CONSUMER, Reason.NO_PERMITS} & set().union(*before)
        elif now.reason in _STALLS:
            assert now.reason is (
                Reason.NO_CONSUMER if self.consumer is None else Reason.NO_PERMITS
            )
        else:
            assert not any(each & _STALLS for each in reasons), now

    def check_named(self, position: Position, found: Explanation) -> None:
        if found.reason in (Reason.IN_OPEN_TRANSACTION, Reason.ABORTED):
            assert found.details["transaction"] == str(self.sent[position])
        elif found.reason is Reason.BEHIND_OPEN_TRANSACTION:
            assert found.details["transaction"] == str(self.sent[self.first_open()])
        elif found.reason is Reason.PENDING_ACK:
            (holder,) = [each for each, positions in self.acking.items() if position in positions]
            assert found.details["transaction"] == str(holder)


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_told_is_what_happened(seed: int, sub_type: int) -> None:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    try:
        world = TransactionsWorld(seed, broker, sub_type)
        await world.start()
        for _ in range(STEPS):
            await world.step()
            await world.check()
    finally:
        await broker.close()
