"""De-duplication of one topic: what is stored and answered, across reloads and switches."""

from collections.abc import AsyncIterator

import pytest

from magnetar.broker.dispatch.explanation import Reason
from magnetar.broker.errors import PersistenceError
from magnetar.broker.producer.deduplication import DEDUPLICATION_CURSOR, Deduplication
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.errors import ManagedLedgerClosedError
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

NAME = TopicName.parse("persistent://public/default/t")
NOT_STORED = (2**64 - 1, 2**64 - 1)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker(
        broker_deduplication_enabled=True, broker_deduplication_entries_interval=10
    ).start()
    yield broker
    await broker.close()


async def topic_of(broker: Broker) -> PersistentTopic:
    topic = await broker.service.loader.load(NAME, create=True)
    assert isinstance(topic, PersistentTopic)
    return topic


async def connected(broker: Broker, name: str = "p", port: int = 5000) -> tuple[Client, int]:
    """A client with a producer of that name, and the last sequence id that it was told."""
    topic = await topic_of(broker)
    if "keeper" not in topic.subscriptions:  # or entries could be deleted once all is known of them
        await topic.create_subscription("keeper", EARLIEST)
    client = broker.client(port=port)
    await client.receive_one()
    answer, _ = await client.produce(producer_name=name)
    assert answer.type == pb.BaseCommand.PRODUCER_SUCCESS
    return client, answer.producer_success.last_sequence_id


async def reload(broker: Broker) -> PersistentTopic:
    await broker.service.loader.unload(str(NAME))
    return await topic_of(broker)


async def stored(broker: Broker) -> list[bytes]:
    ledger = (await topic_of(broker)).ledger
    found: list[bytes] = []
    position = EARLIEST
    while (batch := await ledger.read(position, 100, 1 << 20)) is not None:
        found += [bytes(parse_entry_body(body)[1]) for body in batch.bodies]
        position = (batch.ledger_id, batch.last + 1)
    return found


def sends(*ids: int) -> bytes:
    return b"".join(message(n, b"%d" % n) for n in ids)


async def test_what_is_sent_again_is_answered_and_not_stored(broker: Broker) -> None:
    client, last = await connected(broker)
    assert last == -1
    client.feed(sends(0, 1, 2))
    first = receipts(await client.receive(3))
    client.feed(sends(1, 2, 3, 2, 4))
    again = receipts(await client.receive(5))
    assert [id_ for id_, *_ in again] == [1, 2, 3, 2, 4], "in the order of the SENDs"
    assert [entry for _, *entry in again if tuple(entry) != NOT_STORED] == [
        [first[0][1], 3],
        [first[0][1], 4],
    ]
    assert await stored(broker) == [b"0", b"1", b"2", b"3", b"4"]
    assert client.connection.in_flight_bytes == broker.service.ledgers.append_budget.in_flight == 0


async def test_a_duplicate_s_receipt_waits_for_those_in_front_of_it(broker: Broker) -> None:
    client, _ = await connected(broker)
    client.feed(sends(0))
    await client.receive(1)
    release = broker.hold_storage()
    client.feed(sends(1))
    client.feed(sends(0))
    client.feed(sends(0, 2, 0))
    await client.expect_nothing()
    release()
    answers = receipts(await client.receive(5))
    assert [id_ for id_, *_ in answers] == [1, 0, 0, 2, 0]
    assert [entry == 2**64 - 1 for *_, entry in answers] == [False, True, True, False, True]


async def test_nobody_is_told_that_it_is_stored_while_it_may_get_lost(broker: Broker) -> None:
    client, _ = await connected(broker)
    release = broker.hold_storage()
    client.feed(sends(0))
    client.lose()
    other, last = await connected(broker, port=5001)
    assert last == -1
    other.feed(sends(0))
    error = (await other.receive_one()).send_error
    assert (error.sequence_id, error.error) == (0, pb.PersistenceError)
    release()
    await eventually(lambda: broker.service.topics[NAME.full].last_sequence_id("p") == 0)
    other.feed(sends(0, 1))
    assert [id_ for id_, *_ in receipts(await other.receive(2))] == [0, 1]
    assert await stored(broker) == [b"0", b"1"]


async def test_what_the_storage_lost_is_stored_when_it_comes_again(broker: Broker) -> None:
    client, _ = await connected(broker)
    client.feed(sends(0))
    await client.receive(1)
    broker.cluster.bookie.up = False
    client.feed(sends(0, 1))
    answers = await client.receive(2)
    assert answers[-1].type == pb.BaseCommand.CLOSE_PRODUCER
    broker.cluster.bookie.up = True
    topic = broker.service.topics.get(NAME.full)
    await eventually(lambda: topic is None or not topic.fenced or not broker.service.topics)
    client, last = await connected(broker, port=5001)
    assert last == 0
    client.feed(sends(0, 1))
    await client.receive(2)
    assert await stored(broker) == [b"0", b"1"]


@pytest.mark.parametrize("count", [3, 10, 25])
async def test_it_is_known_after_the_topic_moved(broker: Broker, count: int) -> None:
    client, _ = await connected(broker)
    client.feed(sends(*range(count)))
    await client.receive(count)
    topic = await reload(broker)
    assert topic.last_sequence_id("p") == count - 1
    client, last = await connected(broker, port=5001)
    assert last == count - 1
    client.feed(sends(*range(count + 1)))
    await client.receive(count + 1)
    assert await stored(broker) == [b"%d" % n for n in range(count + 1)]


@pytest.mark.parametrize("count", [3, 10, 25])
async def test_it_is_known_after_the_owner_died(broker: Broker, count: int) -> None:
    """Without the snapshot of a close: what was stored since the last one is read."""
    client, _ = await connected(broker)
    for n in range(count):
        client.feed(sends(n) if n % 2 else message(n, b"%d" % n, highest_sequence_id=n, highest=n))
        await client.receive(1)
    topic = await topic_of(broker)
    thief = await broker.cluster.factory().open(NAME.ml_name, topic.ledger.config)
    cursor = thief.cursors[DEDUPLICATION_CURSOR]
    behind = thief.offsets.entries_between(cursor.mark_delete, thief.last_confirmed)
    assert behind == count % 10, "a snapshot every ten entries"
    assert cursor.state.properties.get("p", -1) == count - behind - 1, "it fits its position"
    client.feed(sends(count))  # hears of the new owner
    await eventually(lambda: not broker.service.topics)
    await thief.close()
    topic = await topic_of(broker)
    assert topic.last_sequence_id("p") == count - 1
    client, _ = await connected(broker, port=5001)
    client.feed(sends(*range(count, count + 10 - behind)))
    await client.receive(10 - behind)
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    # Those that were read count, too: else owners that die early read more each time.
    await eventually(lambda: cursor.mark_delete == topic.ledger.last_confirmed)


@pytest.mark.parametrize("moves", [False, True])
async def test_the_end_of_a_batch_is_known_without_being_told(broker: Broker, moves: bool) -> None:
    client, _ = await connected(broker)
    client.feed(message(5, b"x" * 30, num_messages_in_batch=3))
    await client.receive(1)
    if moves:
        await reload(broker)
        client, last = await connected(broker, port=5001)
        assert last == 7
    client.feed(sends(7, 8))
    await client.receive(2)
    assert await stored(broker) == [b"x" * 30, b"8"]


async def test_switched_on_and_off_while_messages_come() -> None:
    broker = await Broker().start()
    resources = broker.service.resources
    client, _ = await connected(broker)
    client.feed(sends(0, 0))
    await client.receive(2)
    topic = await topic_of(broker)
    assert topic.stats()["deduplicationStatus"] == "Disabled"
    assert DEDUPLICATION_CURSOR not in topic.ledger.cursors

    await resources.update_policies(
        "public/default", lambda old: {**old, "deduplicationEnabled": True}
    )
    await eventually(lambda: topic.stats()["deduplicationStatus"] == "Enabled")
    client.feed(sends(0, 1, 1))
    await client.receive(3)
    assert await stored(broker) == [b"0", b"0", b"0", b"1"], "what came before isn't known"

    await resources.update_policies(
        "public/default", lambda old: {**old, "deduplicationEnabled": False}
    )
    await eventually(lambda: DEDUPLICATION_CURSOR not in topic.ledger.cursors)
    client.feed(sends(1))
    await client.receive(1)
    assert await stored(broker) == [b"0", b"0", b"0", b"1", b"1"]
    await broker.close()


async def test_switched_off_while_nobody_had_the_topic(broker: Broker) -> None:
    await topic_of(broker)
    await broker.service.loader.unload(str(NAME))
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "deduplicationEnabled": False}
    )
    topic = await topic_of(broker)
    assert DEDUPLICATION_CURSOR not in topic.ledger.cursors, "it would hold every entry back"
    assert topic.deduplication is None


async def test_what_can_t_be_switched_on_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await Broker().start()
    topic = await topic_of(broker)
    tries = 0

    async def fail(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        raise ManagedLedgerClosedError("no storage")

    with monkeypatch.context() as patch:
        patch.setattr(ManagedLedger, "open_cursor", fail)
        await broker.service.policies.update_namespace(
            "public/default", lambda old: {**old, "deduplicationEnabled": True}
        )
        await eventually(lambda: tries > 0)
    topic.sweep_deduplication(broker.cluster.now_ms)
    await eventually(lambda: topic.stats()["deduplicationStatus"] == "Enabled")
    await broker.close()


async def test_a_topic_isn_t_served_before_its_past_is_known(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = await connected(broker)
    client.feed(sends(0))
    await client.receive(1)
    await broker.service.loader.unload(str(NAME))

    async def fail(*_: object) -> None:
        raise ManagedLedgerClosedError("no storage")

    with monkeypatch.context() as patch:
        patch.setattr(Deduplication, "start", fail)
        with pytest.raises(PersistenceError, match="no storage"):
            await topic_of(broker)
    assert (await topic_of(broker)).last_sequence_id("p") == 0


async def test_system_topics_are_left_alone(broker: Broker) -> None:
    name = TopicName.parse("persistent://public/default/__change_events")
    topic = await broker.service.loader.load(name, create=True)
    assert isinstance(topic, PersistentTopic)
    assert topic.deduplication is None


async def test_a_timed_snapshot_lets_old_entries_go(broker: Broker) -> None:
    client, _ = await connected(broker)
    client.feed(sends(0, 1, 2))
    await client.receive(3)
    topic = await topic_of(broker)
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    topic.sweep_deduplication(broker.cluster.now_ms + 119_999)
    assert cursor.state.backlog == 3
    topic.sweep_deduplication(broker.cluster.now_ms + 120_000)
    await eventually(lambda: cursor.durable_mark_delete == topic.ledger.last_confirmed)
    assert cursor.state.properties == {"p": 2}
    client.lose()
    await eventually(lambda: not topic.producers)
    minutes = broker.service.config.broker_deduplication_producer_inactivity_timeout_minutes
    now_ms = broker.cluster.now_ms
    topic.sweep_deduplication(now_ms)
    topic.sweep_deduplication(now_ms + minutes * 60_000)
    assert topic.last_sequence_id("p") == 2
    topic.sweep_deduplication(now_ms + minutes * 60_000 + 1)
    assert topic.last_sequence_id("p") == -1


async def test_a_producer_that_begins_again_is_told_of_until_something_is_stored(
    broker: Broker,
) -> None:
    client, _ = await connected(broker)
    topic = await topic_of(broker)
    client.feed(sends(0, 1, 2))
    await client.receive(3)
    assert run_at_once(topic.explain_publishing()) is None
    for repeated in (0, 1):
        client.feed(sends(repeated))
        await client.receive(1)
    told = run_at_once(topic.explain_publishing())
    assert told is not None
    assert told.reason is Reason.DUPLICATES
    assert told.details == {"duplicates": 2, "lastSequenceId": 2}
    assert "Producer p sends, and nothing is stored: the last 2 entries were" in told.message
    subscription = topic.subscriptions["keeper"]
    assert isinstance(subscription, PersistentSubscription)
    subscription.clear_backlog()
    assert subscription.explain(told).message.startswith("Every message is acknowledged. Producer")
    broker.cluster.now_ms += 600_000
    assert run_at_once(topic.explain_publishing()) is None
    client.feed(sends(1))
    await client.receive(1)
    assert run_at_once(topic.explain_publishing()) is not None
    client.feed(sends(3))
    await client.receive(1)
    assert run_at_once(topic.explain_publishing()) is None
