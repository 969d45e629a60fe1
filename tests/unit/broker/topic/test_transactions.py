"""Transactions of one topic: what consumers see, across loads, failures and late entries."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.broker.dispatch.explanation import STALL_MS, duration
from magnetar.broker.errors import BrokerError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction import buffer as buffer_module
from magnetar.broker.transaction import buffer_recovery
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.buffer_recovery import TRANSACTIONS_PROPERTY
from magnetar.broker.transaction.stored_ends import ENDS_PROPERTY
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger import append_path
from magnetar.managed_ledger.append_core import AppendDone
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.broker.topic.test_deduplication import connected, reload, topic_of
from tests.unit.broker.topic.test_undecided_appends import cut_off
from tests.unit.managed_ledger.cluster import eventually

SHARED, EXCLUSIVE = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive
ENDED = "has been ended"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    yield broker
    await broker.close()


def sent(number: int, least: int | None = None, key: str = "k") -> bytes:
    """A SEND, in a transaction of coordinator 0 or not."""
    if least is None:
        return message(number, b"%d" % number, partition_key=key)
    return message(
        number, b"%d" % number, partition_key=key, txnid_most_bits=0, txnid_least_bits=least
    )


async def store(client: Client, *frames: bytes) -> None:
    client.feed(b"".join(frames))
    receipts(await client.receive(len(frames)))


class Consumer:
    """One consumer, on a connection of its own."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.client = broker.client(port=port)
        self.seen: list[int] = []
        self._bodies = list[bytes]()

    async def subscribe(
        self, kind: "pb.CommandSubscribe.SubType.ValueType" = SHARED, compacted_as: str = ""
    ) -> "Consumer":
        await self.client.receive_one()
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.CopyFrom(
            pb.CommandSubscribe(
                topic="t",
                subscription=compacted_as or f"s{kind}",
                subType=kind,
                consumer_id=1,
                request_id=1,
                initialPosition=pb.CommandSubscribe.Earliest,
                read_compacted=bool(compacted_as),
            )
        )
        self.client.send(command)
        assert (await self.client.receive_one()).type == pb.BaseCommand.SUCCESS
        flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 1000
        self.client.send(flow)
        return self

    def take(self) -> list[int]:
        """Numbers of all messages that came."""
        written = bytes(self.client.transport.written[self.client._seen :])
        self.client._seen += len(written)
        for command, body in self.client._reader.feed(written):
            if command.type == pb.BaseCommand.MESSAGE:
                self.seen.append(int(bytes(parse_entry_body(body)[1])))
        return self.seen

    async def sees(self, *numbers: int) -> None:
        """These and no others, now."""
        await eventually(lambda: len(self.take()) >= len(numbers))
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.take() == list(numbers)


def subscription_of(topic: PersistentTopic, name: str) -> PersistentSubscription:
    subscription = topic.subscriptions[name]
    assert isinstance(subscription, PersistentSubscription)
    return subscription


def backlog(topic: PersistentTopic, name: str) -> int:
    return subscription_of(topic, name).cursor.state.backlog


async def end(topic: PersistentTopic, least: int, *, commit: bool, low: int = -1) -> None:
    """As a coordinator of this broker asks for it."""
    transaction, ended = TransactionId(0, least), asyncio.get_running_loop().create_future()
    found = topic.participant(None)
    if found is not None and found.end_nowait(transaction, low, ended.set_result, commit=commit):
        if (error := await ended) is not None:
            raise error
    else:
        await topic.end_transaction(transaction, low, commit=commit)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE, pb.CommandSubscribe.Key_Shared])
async def test_messages_appear_with_the_commit_and_in_the_order_of_the_log(
    broker: Broker, kind: "pb.CommandSubscribe.SubType.ValueType"
) -> None:
    consumer = await Consumer(broker, 6000).subscribe(kind)
    client, _ = await connected(broker)
    await store(client, sent(0), sent(1, 7), sent(2), sent(3, 8), sent(4, 7))
    await consumer.sees(0)
    topic = await topic_of(broker)
    assert run_at_once(topic.storage_stats())["ongoingTxnCount"] == 2
    await end(topic, 8, commit=True)
    await consumer.sees(0)
    await end(topic, 7, commit=True)
    await consumer.sees(0, 1, 2, 3, 4)
    await store(client, sent(5, 9), sent(6))
    await end(topic, 9, commit=False)
    await consumer.sees(0, 1, 2, 3, 4, 6)
    stats = run_at_once(topic.storage_stats())
    counts = [stats[f"{what}TxnCount"] for what in ("ongoing", "committed", "aborted")]
    assert counts == [0, 2, 1]


async def test_a_consumer_that_comes_later_sees_no_aborted_message(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0, 1), sent(1, 2), sent(2), sent(3, 1))
    topic = await topic_of(broker)
    await end(topic, 1, commit=False)
    late = await Consumer(broker, 6000).subscribe()
    await late.sees()
    await end(topic, 2, commit=True)
    await late.sees(1, 2)
    # What isn't delivered is acknowledged all the same: two messages and two ends.
    await eventually(lambda: backlog(topic, f"s{SHARED}") == 2)


@pytest.mark.parametrize("entries", [2, 5_000])
async def test_a_load_knows_what_was_open_and_what_was_aborted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """With snapshots every few entries, and with the one of the unload alone."""
    monkeypatch.setattr(buffer_module, "SNAPSHOT_ENTRIES", entries)
    monkeypatch.setattr(buffer_module, "SEALED_COUNT", 3)
    client, _ = await connected(broker)
    await store(client, sent(0))
    for least in range(10):
        await store(client, sent(10 + least, least), sent(20 + least))
        if least % 3:
            await end(await topic_of(broker), least, commit=least % 3 == 1)
    topic = await reload(broker)
    assert topic.transactions is not None
    assert list(topic.transactions.buffer.open) == [TransactionId(0, x) for x in (0, 3, 6, 9)]
    consumer = await Consumer(broker, 6000).subscribe()
    await consumer.sees(0)
    for least in (0, 3, 6, 9):
        await end(topic, least, commit=least != 6)
    plain = [x for least in range(10) for x in (10 + least, 20 + least)]
    left = [x for x in plain if x not in (12, 15, 16, 18)]
    await consumer.sees(0, *left)
    await reload(broker)
    again = await Consumer(broker, 6001).subscribe(EXCLUSIVE)
    await again.sees(0, *left)


async def test_sealed_markers_of_earlier_releases_are_restored_in_parts(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold 10,000 aborted transactions, which took one turn of 5 to 9 ms."""
    monkeypatch.setattr(buffer_module, "SEALED_COUNT", 5)
    monkeypatch.setattr(buffer_recovery, "SEALED_COUNT", 2)
    client, _ = await connected(broker)
    for least in range(6):
        await store(client, sent(least, least))
        await end(await topic_of(broker), least, commit=False)
    sizes, restore = list[int](), TopicTransactionBuffer.restore_sealed

    def counted(self: TopicTransactionBuffer, position: Position, marker: Any) -> None:
        sizes.append(len(marker.abortedLedger))
        restore(self, position, marker)

    monkeypatch.setattr(TopicTransactionBuffer, "restore_sealed", counted)
    topic = await reload(broker)
    assert sizes == [2, 2, 1]
    assert topic.transactions is not None
    assert topic.transactions.buffer.aborted_total == 6
    await (await Consumer(broker, 6000).subscribe()).sees()
    assert len(topic.transactions.buffer.snapshot().sealedLedger) == 1


async def is_refused(client: Client, frame: bytes) -> None:
    client.feed(frame)
    answer = await client.receive_one()
    assert answer.type == pb.BaseCommand.SEND_ERROR
    assert answer.send_error.error == pb.NotAllowedError
    assert ENDED in answer.send_error.message


async def test_an_entry_of_an_ended_transaction_is_refused(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0, 1), sent(1, 2))
    topic = await topic_of(broker)
    await end(topic, 1, commit=True)
    await end(topic, 2, commit=False, low=5)
    for number, least in ((2, 1), (3, 2), (4, 5)):
        await is_refused(client, sent(number, least))
    await store(client, sent(5, 6))


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
async def test_what_comes_after_an_end_without_messages_is_refused(
    broker: Broker, *, is_first: bool, is_loaded: bool
) -> None:
    """Also if the topic never had a transaction before."""
    client, _ = await connected(broker)
    topic = await topic_of(broker)
    if not is_first:
        await store(client, sent(0, 1))
        await end(topic, 1, commit=True)
    await end(topic, 2, commit=False)
    if is_loaded:
        topic = await reload(broker)
        client, _ = await connected(broker, port=5001)
    await is_refused(client, sent(1, 2))
    await store(client, sent(2))
    assert topic.transactions is not None
    assert topic.transactions.buffer.readable == topic.ledger.last_confirmed


async def test_an_end_is_stored_once(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0, 1))
    topic = await topic_of(broker)
    await end(topic, 1, commit=True)
    entries = topic.ledger.offsets.entry_count
    assert entries == 2
    await end(topic, 1, commit=True)
    assert topic.ledger.offsets.entry_count == entries
    for _ in range(2):
        await end(topic, 3, commit=True)  # it has nothing of this one
    assert topic.ledger.offsets.entry_count == entries + 1


async def test_ends_of_one_turn_share_an_append(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = await connected(broker)
    await store(client, *(sent(least, least) for least in range(10)))
    topic, appends, append = await topic_of(broker), list[int](), PersistentTopic.append_markers

    def counted(
        topic: PersistentTopic, heads: list[bytes], bodies: list[Buffer], on_done: AppendDone
    ) -> None:
        appends.append(len(heads))
        append(topic, heads, bodies, on_done)

    monkeypatch.setattr(PersistentTopic, "append_markers", counted)
    consumer = await Consumer(broker, 6000).subscribe()
    asked = [end(topic, least, commit=least % 2 == 0) for least in range(10)]
    again = [topic.end_transaction(TransactionId(0, 3), -1, commit=False) for _ in range(2)]
    await asyncio.gather(*asked, *again)
    assert appends == [10]
    await consumer.sees(0, 2, 4, 6, 8)


async def test_an_end_is_known_also_where_its_marker_has_to_be_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0, 1))
    topic = await topic_of(broker)
    consumer = await Consumer(broker, 6000).subscribe()
    monkeypatch.setattr(ManagedLedger, "read_nowait", lambda *_: None)  # the cache is empty
    await end(topic, 1, commit=True)
    assert topic.transactions is not None
    assert not topic.transactions.buffer.open
    await is_refused(client, sent(1, 1))
    await consumer.sees(0)


async def test_what_came_late_is_aborted_with_the_low_watermark(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0, 1))
    topic = await topic_of(broker)
    await end(topic, 1, commit=True)
    topic = await reload(broker)  # which forgets what was committed
    client, _ = await connected(broker, port=5001)
    await store(client, sent(1, 1), sent(2), sent(3, 2))
    consumer = await Consumer(broker, 6000).subscribe()
    await consumer.sees(0)
    await end(topic, 2, commit=True, low=1)
    await consumer.sees(0, 2, 3)


async def test_without_a_transaction_there_is_nothing(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0))
    topic = await topic_of(broker)
    assert topic.transactions is None
    assert topic.ledger.properties == {}
    assert run_at_once(topic.storage_stats())["storageSize"] > 0


async def test_the_first_one_waits_until_it_is_stored_that_there_are_some(broker: Broker) -> None:
    """And what the same producer sends behind it waits, too."""
    client, _ = await connected(broker)
    topic = await topic_of(broker)
    consumer = await Consumer(broker, 6000).subscribe()
    client.feed(sent(0) + sent(1, 1) + sent(2))
    client.feed(sent(3))
    assert TRANSACTIONS_PROPERTY not in topic.ledger.properties
    assert [number for number, *_ in receipts(await client.receive(4))] == [0, 1, 2, 3]
    assert TRANSACTIONS_PROPERTY in topic.ledger.properties
    assert topic.properties == {}, "it isn't the user's"
    await end(topic, 1, commit=True)
    await consumer.sees(0, 1, 2, 3)


async def test_expiry_and_a_cleared_backlog_end_where_reading_ends(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0), sent(1, 1), sent(2))
    topic = await topic_of(broker)
    subscription = subscription_of(topic, "keeper")
    subscription.clear_backlog()
    assert backlog(topic, "keeper") == 2
    await subscription.expire_before(2**60)
    assert backlog(topic, "keeper") == 2
    await end(topic, 1, commit=True)
    await subscription.expire_before(2**60)
    assert backlog(topic, "keeper") == 0


@pytest.mark.parametrize("checksum", [True, False])
async def test_a_transaction_that_only_the_command_names(broker: Broker, *, checksum: bool) -> None:
    """Of the Go client, whose producers may send outside of one, too."""
    await topic_of(broker)
    client = broker.client(port=5000)
    await client.receive_one()
    client.connection.client_version = "Pulsar-Go-v0.19.0"
    await client.produce(producer_name="p")
    consumer = await Consumer(broker, 6000).subscribe()
    frames = [
        message(n, b"%d" % n, checksum=checksum, in_command=least, partition_key="k")
        for n, least in enumerate((None, 1, 2, None))
    ]
    await store(client, *frames)
    await consumer.sees(0)
    topic = await reload(broker)
    consumer = await Consumer(broker, 6001).subscribe(EXCLUSIVE)
    await consumer.sees(0)
    await end(topic, 1, commit=False)
    await end(topic, 2, commit=True)
    await consumer.sees(0, 2, 3)


async def test_without_the_setting_transactions_are_refused() -> None:
    broker = await Broker().start()
    client, _ = await connected(broker)
    client.feed(sent(0, 1))
    answer = await client.receive_one()
    assert answer.send_error.error == pb.NotAllowedError
    await broker.close()


async def test_an_end_fails_while_the_topic_is_fenced(broker: Broker) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0, 1))
    topic = await topic_of(broker)
    topic.fenced = True
    with pytest.raises(BrokerError):
        await end(topic, 1, commit=True)
    topic.fenced = False
    await end(topic, 1, commit=True)
    assert (await topic_of(broker)).ledger.offsets.entry_count == 2


@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_entry_without_a_receipt_counts_if_it_is_stored(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    """No receipt told of it; the buffer finds it in the log, as a load of the topic would."""
    monkeypatch.setattr(append_path, "END_RETRY_S", 0.001)
    client, _ = await connected(broker)
    await store(client, sent(0), sent(1, 1))
    topic = await topic_of(broker)
    heal = cut_off(broker, is_stored=is_stored)
    client.feed(sent(2, 2))
    assert (await client.receive_one()).type == pb.BaseCommand.CLOSE_PRODUCER
    heal()
    await eventually(lambda: not topic.fenced)
    client, _ = await connected(broker, port=5001)
    await store(client, sent(3))
    assert topic.transactions is not None
    opened = list(topic.transactions.buffer.open)
    assert opened == [TransactionId(0, least) for least in ((1, 2) if is_stored else (1,))]
    consumer = await Consumer(broker, 6000).subscribe()
    await end(topic, 1, commit=True)
    await end(topic, 2, commit=False)
    await consumer.sees(0, 1, 3)


async def test_an_end_is_asked_for_again_when_its_append_failed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_path, "END_RETRY_S", 0.001)
    client, _ = await connected(broker)
    await store(client, sent(0, 1), sent(1))
    topic = await topic_of(broker)
    consumer = await Consumer(broker, 6000).subscribe()
    heal = cut_off(broker, is_stored=False)
    with pytest.raises(BrokerError):
        await end(topic, 1, commit=True)
    await consumer.sees()
    heal()
    await eventually(lambda: not topic.fenced)
    await end(topic, 1, commit=True)
    await consumer.sees(0, 1)


async def test_a_compaction_ends_before_what_is_open_and_leaves_out_what_was_aborted(
    broker: Broker,
) -> None:
    client, _ = await connected(broker)
    keys = [("a", None), ("b", 1), ("a", 2), ("b", None), ("b", 3), ("b", 2), ("a", None)]
    keyed = [sent(number, least, key=key) for number, (key, least) in enumerate(keys)]
    await store(client, *keyed)
    topic = await topic_of(broker)
    await end(topic, 1, commit=True)
    await end(topic, 2, commit=False)
    await compacted(topic)
    assert topic.compacted is not None
    assert topic.compacted.horizon[1] == 3, "transaction 3 is open"
    consumer = await Consumer(broker, 6000).subscribe(EXCLUSIVE, "one")
    await consumer.sees(0, 3)
    await end(topic, 3, commit=True)
    await consumer.sees(0, 3, 4, 6)
    await compacted(topic)
    again = await Consumer(broker, 6001).subscribe(EXCLUSIVE, "other")
    await again.sees(4, 6)


async def compacted(topic: PersistentTopic) -> None:
    topic.compact()
    assert topic.compaction is not None
    run = topic.compaction._run
    assert run is not None
    await run
    assert (topic.compaction.status, topic.compaction.last_error) == ("SUCCESS", "")


async def test_explain_says_when_the_transaction_times_out_that_others_wait_for(
    broker: Broker,
) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0), sent(1, 0), sent(2))
    topic = await topic_of(broker)
    await topic.create_subscription("s", EARLIEST)
    subscription = subscription_of(topic, "s")
    subscription.acknowledge(None, [(topic.ledger.last_confirmed[0], 0)])
    began = f"{topic.ledger.last_confirmed[0]}:1"
    found = subscription.explain(None)
    assert found.as_json() == {
        "reason": "behindOpenTransaction",
        "message": f"Delivery ends at {began}, the first message of transaction (0,0), which has"
        f" been open for {duration(broker.service.clock() - 1_700_000_000_000)}.",
        "next": "Delivery goes on when the transaction ends: its client or its time-out does that.",
        "sinceTimestamp": 1_700_000_000_000,
        "transaction": "(0,0)",
        "firstMessageId": began,
    }
    assert not found.is_stall
    broker.cluster.now_ms += STALL_MS  # nobody knows its time-out
    assert subscription.explain(None).is_stall
    coordinators = broker.service.transactions
    assert coordinators is not None
    await coordinators.connect(0)
    coordinators.get(0).core.new(print, broker.service.clock(), 90_000)
    found = subscription.explain(None)
    assert found.since_ms is not None
    assert found.until_ms == found.since_ms + 90_000
    assert "at the latest it times out in 1 min" in found.next
    assert not found.is_stall
    broker.cluster.now_ms += 100_000
    found = subscription.explain(None)
    assert "it should have timed out 10 s ago" in found.next
    assert found.is_stall


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_transaction_ends_on_a_terminated_topic(broker: Broker, *, is_loaded: bool) -> None:
    client, _ = await connected(broker)
    await store(client, sent(0), sent(1, 1), sent(2, 2), sent(3), sent(4, 3), sent(5))
    topic = await topic_of(broker)
    last = await topic.terminate()
    consumer = await Consumer(broker, 6000).subscribe()
    await consumer.sees(0)
    for commit in (True, False):  # the first end counts
        await end(topic, 1, commit=commit)
    await end(topic, 2, commit=False)
    await consumer.sees(0, 1, 3)
    if is_loaded:
        topic = await reload(broker)
        consumer = await Consumer(broker, 6001).subscribe(EXCLUSIVE)
        await consumer.sees(0, 1, 3)
    await end(topic, 2, commit=False)
    await end(topic, 3, commit=True)
    await end(topic, 4, commit=True)  # it has nothing of this one, and never will
    assert "0:4" not in topic.ledger.properties[ENDS_PROPERTY]
    await consumer.sees(0, 1, 3, 4, 5)
    assert topic.ledger.last_confirmed == last
    assert topic.properties == {}, "ends are not the user's"


async def test_a_load_after_a_swap_from_pulsar(broker: Broker) -> None:
    """A snapshot is all there is behind the log that was taken over."""
    client, _ = await connected(broker)
    await store(client, sent(0), sent(1, 1))
    await end(await topic_of(broker), 1, commit=False)
    topic = await topic_of(broker)
    await topic.ledger.update_properties(lambda _: {TRANSACTIONS_PROPERTY: "-1:-1"})
    topic = await reload(broker)
    assert topic.transactions is not None
    assert list(topic.transactions.buffer.aborted) == [TransactionId(0, 1)]
    await (await Consumer(broker, 6000).subscribe()).sees(0)
