"""Acknowledgements in transactions at a real subscription: cursor, consumers, unloads, deletions.

Names in brackets are scenarios that Apache Pulsar 4.2.4 was asked.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from magnetar.broker.errors import (
    InvalidTransactionStatusError,
    NotAllowedError,
    PersistenceError,
    ServiceNotReadyError,
    SubscriptionFencedError,
    TransactionConflictError,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription import transactional_acks
from magnetar.broker.subscription.consumer import (
    EXCLUSIVE,
    KEY_SHARED,
    SHARED,
    Consumer,
    SubscribeRequest,
)
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.deleted_logs import deleted_logs
from magnetar.broker.transaction.pending_ack_log import PULSARS_NAME, PendingAckLog
from magnetar.broker.transaction.pending_acks import PendingAck, PendingAcks
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.append_core import AppendDone
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.unit.broker.dispatch.builders import FakeSink, settle
from tests.unit.broker.doubles import Broker, Client, message
from tests.waiting import eventually

NAME = TopicName.parse("persistent://public/default/t")
LOG = "public/default/persistent/t%2Ds__transaction_pending_ack"
X, Y, Z = TransactionId(0, 1), TransactionId(0, 2), TransactionId(0, 3)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    yield broker
    await broker.close()


async def topic_of(broker: Broker) -> PersistentTopic:
    topic = await broker.service.loader.load(NAME, create=True)
    assert isinstance(topic, PersistentTopic)
    return topic


async def subscription_of(broker: Broker) -> PersistentSubscription:
    found = (await topic_of(broker)).subscriptions["s"]
    assert isinstance(found, PersistentSubscription)
    return found


async def filled(
    broker: Broker, messages: int = 5, batch: int = 0, name: str = "s"
) -> list[Position]:
    """Positions of a topic with a subscription: single messages, or one batch."""
    topic = await topic_of(broker)
    await topic.create_subscription(name, EARLIEST)
    client = broker.client()
    await client.receive_one()
    await client.produce()
    if batch:
        client.feed(message(0, b"m" * 10, num_messages_in_batch=batch))
        messages = 1
    else:
        client.feed(b"".join(message(n, b"m%d" % n) for n in range(messages)))
    await client.receive(messages)
    ledger_id = topic.ledger.last_confirmed[0]
    return [(ledger_id, n) for n in range(messages)]


async def consume(broker: Broker, sub_type: int = SHARED, **how: Any) -> tuple[Consumer, FakeSink]:
    sink, topic = FakeSink(), await topic_of(broker)
    request = SubscribeRequest(subscription="s", sub_type=sub_type, **how)
    consumer = await topic.subscribe(request, sink)
    consumer.subscription.flow(consumer, 100)
    await settle()
    return consumer, sink


async def ack(
    broker: Broker,
    transaction: TransactionId,
    *acks: Position | PendingAck,
    consumer: Consumer | None = None,
    cumulative: bool = False,
) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(error: BaseException | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    pending = [x if isinstance(x, PendingAck) else PendingAck(x) for x in acks]
    (await subscription_of(broker)).acknowledge_in_transaction(
        consumer, transaction, pending, answer, cumulative=cumulative
    )
    await done


async def end(broker: Broker, transaction: TransactionId, *, commit: bool, low: int = -1) -> None:
    """As a coordinator of this broker asks for it."""
    subscription = await subscription_of(broker)
    ended = asyncio.get_running_loop().create_future()
    if subscription.end_nowait(transaction, low, ended.set_result, commit=commit):
        if (error := await ended) is not None:
            raise error
    else:
        await subscription.end_transaction(transaction, low, commit=commit)
    await settle()


async def reload(broker: Broker) -> None:
    await broker.service.loader.unload(str(NAME))


def part(position: Position, *indexes: int, size: int = 4) -> PendingAck:
    left = (1 << size) - 1
    for index in indexes:
        left &= ~(1 << index)
    return PendingAck(position, left, size)


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_an_abort_sends_the_message_again_behind_the_newer_ones(
    broker: Broker, sub_type: int
) -> None:
    """[6, 27]"""
    positions = await filled(broker)
    consumer, sink = await consume(broker, sub_type)
    assert sink.got == positions
    await ack(broker, X, positions[0], consumer=consumer)
    assert consumer.unacked == 4
    consumer.subscription.redeliver(consumer, None)
    await settle()
    assert sink.got[5:] == positions[1:], "pending ones aren't sent on request [28]"
    await end(broker, X, commit=False)
    assert sink.got[9:] == positions[:1]
    assert sink.counts[positions[0]] == 1
    await ack(broker, Y, positions[0], consumer=consumer)
    await end(broker, Y, commit=False)
    assert sink.counts[positions[0]] == 2, "a dead letter policy counts them"


async def test_another_consumer_gets_nothing_that_is_pending(broker: Broker) -> None:
    """[7, 8]"""
    positions = await filled(broker)
    consumer, _ = await consume(broker)
    await ack(broker, X, *positions[:2], consumer=consumer)
    await ack(broker, Y, *positions[2:], consumer=consumer)
    consumer.subscription.remove_consumer(consumer)
    _, sink = await consume(broker)
    assert sink.got == []
    subscription = await subscription_of(broker)
    assert subscription.backlog == 5
    await end(broker, Y, commit=True)
    assert subscription.backlog == 2
    await end(broker, X, commit=False)
    assert sink.got == positions[:2]
    assert sink.counts == dict.fromkeys(positions[:2], 1)


async def test_an_exclusive_consumer_gets_all_again(broker: Broker) -> None:
    positions = await filled(broker, 3)
    consumer, sink = await consume(broker, EXCLUSIVE)
    await ack(broker, X, positions[1], consumer=consumer)
    await end(broker, X, commit=False)
    assert sink.got == positions * 2


async def test_cumulative_ones_beside_others(broker: Broker) -> None:
    """[9 to 13]"""
    positions = await filled(broker)
    consumer, sink = await consume(broker, EXCLUSIVE)
    await ack(broker, X, positions[2], consumer=consumer, cumulative=True)
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, positions[3], consumer=consumer, cumulative=True)
    await ack(broker, Y, positions[1], positions[4], consumer=consumer)
    subscription = await subscription_of(broker)
    subscription.acknowledge_cumulative(consumer, positions[3])
    for late in (positions[3], positions[1]):
        with pytest.raises(TransactionConflictError):
            await ack(broker, X, late, consumer=consumer, cumulative=True)
    await end(broker, X, commit=False)
    assert (sink.got, subscription.backlog) == (positions, 1)
    await end(broker, Y, commit=True)
    assert subscription.backlog == 0


async def test_a_load_forgets_a_cumulative_one_that_the_cursor_has_passed(broker: Broker) -> None:
    """As Pulsar's brokers do; until the load it stays. So it is with the load behind that, too."""
    positions = await filled(broker)
    await consume(broker, EXCLUSIVE)
    await ack(broker, X, positions[1], cumulative=True)
    (await subscription_of(broker)).acknowledge_cumulative(None, positions[2])
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, positions[3], cumulative=True)
    await reload(broker)
    await consume(broker, EXCLUSIVE)
    await ack(broker, Y, positions[3], cumulative=True)
    await reload(broker)
    await consume(broker, EXCLUSIVE)
    with pytest.raises(TransactionConflictError):
        await ack(broker, X, positions[4], cumulative=True)
    await end(broker, X, commit=True)
    await end(broker, Y, commit=True)
    assert (await subscription_of(broker)).cursor.mark_delete == positions[3]


async def _open_log_again(broker: Broker, position: Position) -> None:
    broker.ledgers.open_ledgers[LOG].fence(RuntimeError("for the test"))
    with pytest.raises(PersistenceError):
        await ack(broker, Z, position)
    transactions = (await subscription_of(broker)).transactions
    assert transactions is not None
    log = transactions.log
    await eventually(lambda: log.is_open)


async def test_a_log_that_is_opened_again_forgets_no_more_than_the_load_did(broker: Broker) -> None:
    """The next load has to find the same, and after a seek the cursor is in front again."""
    positions = await filled(broker)
    await consume(broker, EXCLUSIVE)
    await ack(broker, X, positions[1], cumulative=True)
    subscription = await subscription_of(broker)
    subscription.acknowledge_cumulative(None, positions[2])
    await subscription.cursor.flush()
    await _open_log_again(broker, positions[4])
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, positions[3], cumulative=True)
    await reload(broker)
    await consume(broker, EXCLUSIVE)
    await (await subscription_of(broker)).reset(positions[0])
    await ack(broker, Y, positions[1], cumulative=True)
    await _open_log_again(broker, positions[4])
    with pytest.raises(TransactionConflictError):
        await ack(broker, X, positions[3], cumulative=True)


async def test_a_commit_beside_a_cumulative_one_of_another_transaction(broker: Broker) -> None:
    """Pulsar's brokers lose it."""
    positions = await filled(broker)
    await consume(broker, EXCLUSIVE)
    await ack(broker, X, positions[1], cumulative=True)
    await ack(broker, Y, positions[4])
    await end(broker, Y, commit=True)
    subscription = await subscription_of(broker)
    assert subscription.cursor.state.is_acked(positions[4])
    await end(broker, X, commit=True)
    assert subscription.cursor.mark_delete == positions[1]
    assert subscription.backlog == 2


async def test_a_non_durable_subscription_keeps_them_as_long_as_itself(broker: Broker) -> None:
    """Pulsar's brokers answer the same, and keep a log that nobody deletes."""
    positions = await filled(broker, name="other")
    consumer, sink = await consume(broker, durable=False, start_position=EARLIEST)
    await ack(broker, X, positions[0], consumer=consumer)
    await ack(broker, Y, positions[1], consumer=consumer)
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, positions[0])
    await end(broker, Y, commit=False)
    assert sink.got == [*positions, positions[1]]
    await end(broker, X, commit=True)
    subscription = await subscription_of(broker)
    assert subscription.cursor.mark_delete == positions[0]
    with pytest.raises(InvalidTransactionStatusError):
        await ack(broker, X, positions[2])
    await ack(broker, Z, positions[2])
    consumer.subscription.remove_consumer(consumer)
    await settle()
    assert not await broker.ledgers.exists(LOG)
    assert not deleted_logs((await topic_of(broker)).ledger)
    await consume(broker, EXCLUSIVE, durable=False, start_position=EARLIEST)
    await ack(broker, X, positions[3], cumulative=True)
    await end(broker, Z, commit=True)
    await end(broker, X, commit=True)
    assert (await subscription_of(broker)).cursor.mark_delete == positions[3]


async def test_very_many_at_a_non_durable_subscription(broker: Broker) -> None:
    """They are cut and applied in slices as in a log."""
    positions = await filled(broker, 1_200, name="other")
    await consume(broker, durable=False, start_position=EARLIEST)
    for number, position in enumerate(positions):
        transaction = TransactionId(0, number // 400)
        await ack(broker, transaction, position)
    for least in (2, 0, 1):
        await end(broker, TransactionId(0, least), commit=least < 2)
    subscription = await subscription_of(broker)
    await eventually(lambda: subscription.cursor.mark_delete == positions[799])
    assert subscription.backlog == 400
    assert subscription.transactions is not None
    assert not subscription.transactions.log.core.is_cutting


async def test_conflicts(broker: Broker) -> None:
    """[15 to 18]"""
    positions = await filled(broker)
    consumer, sink = await consume(broker)
    await ack(broker, X, positions[0])
    for transaction in (X, Y):
        with pytest.raises(TransactionConflictError):
            await ack(broker, transaction, positions[1], positions[0])
    subscription = await subscription_of(broker)
    subscription.acknowledge(consumer, positions[:1])
    await end(broker, X, commit=False)
    assert sink.got == positions, "it was acknowledged plainly"
    with pytest.raises(TransactionConflictError):
        await ack(broker, Z, positions[0])
    await ack(broker, Z, positions[1])
    with pytest.raises(NotAllowedError):
        await ack(broker, Z, (positions[0][0], 5))
    with pytest.raises(NotAllowedError):
        await ack(broker, Z, positions[4], cumulative=True)


async def test_parts_of_a_batch(broker: Broker) -> None:
    """[19]"""
    [at] = await filled(broker, batch=4)
    consumer, sink = await consume(broker)
    await ack(broker, X, part(at, 0), consumer=consumer)
    await ack(broker, Y, part(at, 1), consumer=consumer)
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, part(at, 0), consumer=consumer)
    subscription = await subscription_of(broker)
    subscription.acknowledge_batch(consumer, at, [0b1011])
    await end(broker, X, commit=True)
    await end(broker, Y, commit=False)
    assert sink.got == [at, at]
    assert list(sink.ack_sets[at]) == [0b1010], "the second and the fourth"
    assert consumer.unacked == 2


async def test_what_was_pending_survives_an_unload(broker: Broker) -> None:
    """[30, 38]"""
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, positions[0])
    await ack(broker, Y, positions[1])
    await reload(broker)
    _, sink = await consume(broker)
    assert sink.got == positions[2:]
    await end(broker, Y, commit=False)
    await end(broker, X, commit=True)
    assert sink.got[3:] == positions[1:2]
    assert (await subscription_of(broker)).backlog == 4
    assert LOG in broker.ledgers.open_ledgers


async def test_a_log_with_the_name_that_pulsar_gives_it_stays(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = await filled(broker)
    with monkeypatch.context() as before:
        before.setattr(transactional_acks, "OWN_NAME", PULSARS_NAME)
        await ack(broker, X, positions[0])
    await reload(broker)
    await ack(broker, Y, positions[1])
    with pytest.raises(TransactionConflictError):
        await ack(broker, Y, positions[0])
    await end(broker, X, commit=True)
    await reload(broker)
    assert (await subscription_of(broker)).backlog == 4
    assert LOG.replace("%2D", "-") in broker.ledgers.open_ledgers
    assert not await broker.ledgers.exists(LOG)


async def test_no_two_subscriptions_have_the_same_log(broker: Broker) -> None:
    """As a-b of topic t and b of topic t-a have with Pulsar's names: the second one's first
    transaction deleted what the first one had pending."""
    logs = list[PendingAckLog]()
    for topic, name in (("t", "a-b"), ("t-a", "b"), ("t-a-b", "-"), ("t-a", "b%2D")):
        path = TopicName.parse(f"persistent://public/default/{topic}")
        loaded = await broker.service.loader.load(path, create=True)
        await loaded.create_subscription(name, EARLIEST)
        subscription = loaded.subscriptions[name]
        assert isinstance(subscription, PersistentSubscription)
        done = asyncio.get_running_loop().create_future()
        subscription.acknowledge_in_transaction(None, X, [], done.set_result)
        assert await done is None
        assert subscription.transactions is not None
        logs.append(subscription.transactions.log)
    assert len({log.name for log in logs}) == len(logs)
    assert all(log.is_open for log in logs)


async def test_a_transaction_whose_end_never_came(broker: Broker) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    _, sink = await consume(broker)
    await end(broker, Z, commit=True, low=2)
    assert sink.got == [*positions[1:], positions[0]]


async def test_what_comes_after_an_end_is_refused(broker: Broker) -> None:
    """Also if the transaction had acknowledged nothing, or was the subscription's first."""
    positions = await filled(broker)
    await end(broker, X, commit=False)
    await ack(broker, Z, positions[1])
    await end(broker, Z, commit=True)
    await end(broker, Y, commit=True, low=0)
    for transaction in (X, Y, Z, TransactionId(0, 0)):
        with pytest.raises(InvalidTransactionStatusError):
            await ack(broker, transaction, positions[0])
    _, sink = await consume(broker)
    assert sink.got == [positions[0], *positions[2:]]


async def test_open_ones_are_not_looked_through_at_an_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many."""
    looked = 0

    class Counted(dict[TransactionId, Any]):
        def __iter__(self) -> Iterator[TransactionId]:
            nonlocal looked
            looked += 1
            return super().__iter__()

    positions = await filled(broker)
    await ack(broker, Z, positions[0])
    transactions = (await subscription_of(broker)).transactions
    assert transactions is not None
    core = transactions.log.core
    monkeypatch.setattr(core, "_open", Counted(core._open))
    for least in range(10, 20):
        await end(broker, TransactionId(0, least), commit=True, low=2)
    await end(broker, TransactionId(0, 20), commit=True, low=1)
    await end(broker, Y, commit=True, low=2)
    assert core.is_pending(positions[0])
    await end(broker, Y, commit=True, low=3)
    assert not core.is_pending(positions[0])
    assert looked == 0


async def test_a_failed_append(broker: Broker) -> None:
    """Its answer is an error, and what the log says is what holds."""
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    await end(broker, Y, commit=True)
    _, sink = await consume(broker)
    before = broker.ledgers.open_ledgers[LOG]
    release = broker.hold_storage()
    lost = asyncio.ensure_future(ack(broker, X, positions[1]))
    await settle()
    before.fence(RuntimeError("for the test"))
    with pytest.raises(PersistenceError):
        await lost
    release()
    subscription = await subscription_of(broker)
    assert subscription.transactions is not None
    log = subscription.transactions.log
    await eventually(lambda: log.is_open)
    assert broker.ledgers.open_ledgers[LOG] is not before
    assert positions[0] in log.core.positions
    with pytest.raises(InvalidTransactionStatusError):
        await ack(broker, Y, positions[1])
    await end(broker, X, commit=True)
    assert subscription.cursor.state.is_acked(positions[0])
    assert positions[0] not in sink.got


async def test_a_reset_is_not_undone_by_a_replay(broker: Broker) -> None:
    positions = await filled(broker)
    await ack(broker, X, *positions)
    await end(broker, X, commit=True)
    subscription = await subscription_of(broker)
    await subscription.reset(positions[1])
    await reload(broker)
    assert (await subscription_of(broker)).backlog == 4


async def test_acknowledgements_and_ends_of_one_turn_share_an_append(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    appends, append = list[int](), ManagedLedger.append

    def counted(
        log: ManagedLedger, heads: list[bytes], bodies: list[Buffer], done: AppendDone
    ) -> None:
        if log.name == LOG:
            appends.append(len(bodies))
        append(log, heads, bodies, done)

    monkeypatch.setattr(ManagedLedger, "append", counted)
    await asyncio.gather(*(ack(broker, Y, position) for position in positions[1:4]))
    await asyncio.gather(end(broker, X, commit=True), end(broker, Y, commit=True))
    assert appends == [1, 2]  # one record of all that Y has acknowledged; two ends


async def test_an_acknowledgement_of_nothing_is_answered(broker: Broker) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    async with asyncio.timeout(60):
        await ack(broker, X)


async def subscribed(broker: Broker) -> Client:
    client = broker.client(port=5001)
    await client.receive_one()
    subscribe = pb.CommandSubscribe(
        topic=str(NAME),
        subscription="s",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=1,
    )
    client.send(pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE, subscribe=subscribe))
    assert (await client.receive_one()).type == pb.BaseCommand.SUCCESS
    return client


async def answer_of(
    client: Client, number: int, positions: Sequence[Position], batch_size: int = 0
) -> pb.CommandAckResponse:
    """To an ACK with the transaction X."""
    acknowledge = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
    for ledger_id, entry_id in positions:
        acknowledge.message_id.add(ledgerId=ledger_id, entryId=entry_id, batch_size=batch_size)
    acknowledge.request_id = number
    acknowledge.txnid_most_bits, acknowledge.txnid_least_bits = X
    client.send(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=acknowledge))
    return (await client.receive_one()).ackResponse


async def test_the_answer_to_a_client_has_the_transaction(broker: Broker) -> None:
    positions = await filled(broker)
    client = await subscribed(broker)
    for number, error in ((2, None), (3, pb.TransactionConflict)):
        reply = await answer_of(client, number, positions[:1])
        assert (reply.request_id, reply.txnid_most_bits, reply.txnid_least_bits) == (number, *X)
        assert (reply.error if reply.HasField("error") else None) == error
    twice = [positions[1], positions[2], positions[1]]
    assert not (await answer_of(client, 4, twice)).HasField("error")
    await end(broker, X, commit=True)
    assert (await subscription_of(broker)).backlog == 2


async def test_an_ack_of_many_ids_takes_several_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are acknowledged, or none: also if the last one is what can't be. One that is named twice
    counts once, as in Pulsar: a client may have received it twice.
    """
    positions = await filled(broker, 1000)
    sizes, acknowledge = list[int](), PendingAcks.acknowledge

    def counted(self: PendingAcks, transaction: TransactionId, acks: Sequence[PendingAck]) -> int:
        sizes.append(len(acks))
        return acknowledge(self, transaction, acks)

    monkeypatch.setattr(PendingAcks, "acknowledge", counted)
    client = await subscribed(broker)
    beyond = positions[0][0], 1000
    assert (await answer_of(client, 2, [*positions, beyond])).HasField("error")
    assert (await answer_of(client, 3, positions, 1 << 30)).HasField("error")
    assert not sizes
    assert not (await answer_of(client, 4, [*positions, positions[0]])).HasField("error")
    assert sizes == [200] * 5
    await end(broker, X, commit=True)
    assert (await subscription_of(broker)).backlog == 0
    assert (await answer_of(client, 5, positions)).error == pb.InvalidTxnStatus


@pytest.mark.parametrize("of", ["subscription", "topic"])
async def test_the_log_goes_with_its_subscription(broker: Broker, of: str) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    subscription = await subscription_of(broker)
    if of == "subscription":
        await subscription.delete()
    else:
        await subscription.topic.delete()
    assert not await broker.ledgers.exists(LOG)
    with pytest.raises(SubscriptionFencedError):
        await subscription.end_transaction(X, -1, commit=True)


async def test_one_without_transactions_has_no_log(broker: Broker) -> None:
    await filled(broker)
    await end(broker, X, commit=True)
    await reload(broker)
    assert (await subscription_of(broker)).transactions is None
    assert not await broker.ledgers.exists(LOG)


async def test_what_an_earlier_subscription_left_is_not_of_this_one(broker: Broker) -> None:
    positions = await filled(broker)
    await ack(broker, X, positions[0])
    topic = await topic_of(broker)
    await topic.ledger.delete_cursor("s")  # a broker that was killed, or Pulsar's
    await reload(broker)
    await (await topic_of(broker)).create_subscription("s", EARLIEST)
    await ack(broker, Y, positions[0])
    await end(broker, Y, commit=True)
    assert (await subscription_of(broker)).backlog == 4


async def half_ended(
    broker: Broker, positions: Sequence[Position], *, commit: bool
) -> "tuple[PersistentSubscription, asyncio.Future[Any]]":
    """X has acknowledged all of them, and its end is durable, but not applied as a whole."""
    subscription = await subscription_of(broker)
    await ack(broker, X, *positions)
    ended = asyncio.get_running_loop().create_future()
    assert subscription.end_nowait(X, -1, ended.set_result, commit=commit)
    assert subscription.transactions is not None
    core = subscription.transactions.log.core
    for _ in range(100):
        await asyncio.sleep(0)
        if 0 < len(core.positions) < len(positions):
            assert not ended.done()
            return subscription, ended
    raise AssertionError("it is applied at once, or never")


@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_of_many_takes_several_turns(broker: Broker, commit: bool) -> None:
    positions = await filled(broker, 1000)
    subscription, ended = await half_ended(broker, positions, commit=commit)
    assert subscription.transactions is not None
    core, left = subscription.transactions.log.core, [1000]
    again = asyncio.get_running_loop().create_future()
    assert subscription.end_nowait(X, -1, again.set_result, commit=commit)
    while not ended.done():
        assert not again.done()
        left.append(len(core.positions))
        await asyncio.sleep(0)
    assert again.result() is None
    assert max(x - y for x, y in pairwise(left)) <= 200
    assert core.positions == []
    assert subscription.backlog == (0 if commit else 1000)


async def test_an_exclusive_consumer_gets_all_again_once(broker: Broker) -> None:
    """However many slices the abort takes."""
    positions = await filled(broker, 1000)
    consumer, sink = await consume(broker, EXCLUSIVE)
    consumer.subscription.flow(consumer, 5000)
    await eventually(lambda: len(sink.got) == 1000)
    _, ended = await half_ended(broker, positions, commit=False)
    assert await ended is None
    await settle()
    assert sink.got == positions * 2


@pytest.mark.parametrize("commit", [True, False])
async def test_an_unload_between_slices(broker: Broker, commit: bool) -> None:
    positions = await filled(broker, 1000)
    _, ended = await half_ended(broker, positions, commit=commit)
    await reload(broker)
    assert isinstance(await ended, ServiceNotReadyError), "the coordinator asks again"
    subscription = await subscription_of(broker)
    assert subscription.backlog == (0 if commit else 1000)
    await end(broker, X, commit=commit)
    assert subscription.transactions is not None
    assert subscription.transactions.log.core.positions == []


async def test_a_failed_append_between_slices(broker: Broker) -> None:
    positions = await filled(broker, 1000)
    subscription, ended = await half_ended(broker, positions[1:], commit=True)
    broker.ledgers.open_ledgers[LOG].fence(RuntimeError("for the test"))
    with pytest.raises(PersistenceError):
        await ack(broker, Y, positions[0])
    assert isinstance(await ended, PersistenceError)
    await end(broker, X, commit=True)
    assert subscription.backlog == 1


async def test_a_reset_between_slices(broker: Broker) -> None:
    """All of the end is in front of it."""
    positions = await filled(broker, 1000)
    subscription, ended = await half_ended(broker, positions, commit=True)
    await subscription.reset(positions[1])
    assert ended.result() is None
    for _ in range(2):
        assert (await subscription_of(broker)).backlog == 999
        await reload(broker)


async def test_a_cleared_backlog_between_slices(broker: Broker) -> None:
    positions = await filled(broker, 1000)
    consumer, sink = await consume(broker)
    subscription, ended = await half_ended(broker, positions, commit=False)
    sent = len(sink.got)
    subscription.clear_backlog()
    assert await ended is None
    consumer.subscription.flow(consumer, 5000)
    await settle()
    assert subscription.backlog == 0
    assert len(sink.got) - sent <= 200, "of the slice in front of it"


@pytest.mark.parametrize("of", ["subscription", "topic"])
async def test_a_deletion_between_slices(broker: Broker, of: str) -> None:
    positions = await filled(broker, 1000)
    subscription, ended = await half_ended(broker, positions, commit=True)
    if of == "subscription":
        await subscription.delete()
    else:
        await subscription.topic.delete()
    assert isinstance(await ended, ServiceNotReadyError)
    assert not await broker.ledgers.exists(LOG)
