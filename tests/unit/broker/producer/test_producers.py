"""PRODUCER and CLOSE_PRODUCER: names, access modes, epochs, late endings."""

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.metadata.errors import MetadataWriteError
from tests.unit.broker.doubles import Broker, Client, message, receipts
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/t"
EXCLUSIVE, WAIT, FENCING = pb.Exclusive, pb.WaitForExclusive, pb.ExclusiveWithFencing


async def ready(broker: Broker, port: int = 5000, version: int = 21) -> Client:
    client = broker.client(port=port, version=version)
    await client.receive_one()
    return client


async def success(client: Client, **fields: object) -> pb.CommandProducerSuccess:
    answer, _ = await client.produce(**fields)  # type: ignore[arg-type] # test's duty
    assert answer.type == pb.BaseCommand.PRODUCER_SUCCESS, answer
    return answer.producer_success


async def failure(client: Client, **fields: object) -> int:
    answer, _ = await client.produce(**fields)  # type: ignore[arg-type] # test's duty
    assert answer.type == pb.BaseCommand.ERROR, answer
    assert answer.error.message
    return answer.error.error


async def test_names_are_generated_or_kept_and_nothing_is_claimed_about_the_past(
    broker: Broker,
) -> None:
    client = await ready(broker)
    one = await success(client, producer_id=1)
    two = await success(client, producer_id=2)
    own = await success(client, producer_id=3, producer_name="mine")
    assert one.producer_name.startswith("standalone-0-")
    assert one.producer_name != two.producer_name
    assert own.producer_name == "mine"
    assert (one.last_sequence_id, one.schema_version, one.producer_ready) == (-1, b"", True)
    assert not one.HasField("topic_epoch")


async def test_a_repeated_request_is_a_success_and_a_pending_one_is_not_ready(
    broker: Broker,
) -> None:
    client = await ready(broker)
    client.send(client.producer_command(), client.producer_command())
    answers = await client.receive(2)
    assert sorted(answer.type for answer in answers) == [
        pb.BaseCommand.ERROR,
        pb.BaseCommand.PRODUCER_SUCCESS,
    ]
    error = next(answer.error for answer in answers if answer.type == pb.BaseCommand.ERROR)
    assert (error.error, error.request_id) == (pb.ServiceNotReady, 2)
    name = next(a.producer_success for a in answers if a.HasField("producer_success")).producer_name
    assert (await success(client)).producer_name == name
    assert len(broker.service.topics[TOPIC].producers) == 1


async def test_faults_are_answered_with_their_codes(broker: Broker) -> None:
    client = await ready(broker)
    assert await failure(client, topic="a/b") == pb.InvalidTopicName
    assert await failure(client, topic="persistent://no/where/t") == pb.TopicNotFound
    command = client.producer_command()
    command.producer.schema.name, command.producer.schema.schema_data = "", b"{}"
    command.producer.schema.type = pb.Schema.Json
    client.send(command)
    assert (await client.receive_one()).error.error == pb.IncompatibleSchema
    assert not client.connection.producers


async def test_a_name_in_use_is_refused_while_its_client_answers(broker: Broker) -> None:
    one, two = await ready(broker), await ready(broker, 5001)
    await success(one, producer_name="same")
    assert await failure(one, producer_id=2, producer_name="same") == pb.ProducerBusy
    two.send(two.producer_command(producer_name="same"))
    assert (await one.receive_one()).type == pb.BaseCommand.PING
    await two.expect_nothing()
    one.feed(bytes.fromhex("000000090000000508139a0100"))
    assert (await two.receive_one()).error.error == pb.ProducerBusy
    assert not one.transport.closed


async def test_a_client_that_is_gone_gives_its_name_away(broker: Broker) -> None:
    broker.service.config = type(broker.service.config)(connection_liveness_check_timeout_millis=50)
    one, two = await ready(broker), await ready(broker, 5001)
    await success(one, producer_name="same")
    await success(two, producer_name="same")
    assert one.transport.closed
    assert broker.service.topics[TOPIC].producers["same"].sink is two.connection.sends


async def test_a_client_replaces_its_own_producer_with_a_larger_epoch(broker: Broker) -> None:
    client = await ready(broker)
    await success(client, producer_name="same", epoch=1)
    old = client.connection.producers.pop(1)  # the client lost it, the topic has not noticed
    assert await failure(client, producer_name="same", epoch=1) == pb.ProducerBusy
    await success(client, producer_name="same", epoch=2)
    assert broker.service.topics[TOPIC].producers["same"] is not old


async def test_an_exclusive_producer_keeps_everyone_out(broker: Broker) -> None:
    one, two = await ready(broker), await ready(broker, 5001)
    assert (await success(one, producer_access_mode=EXCLUSIVE)).topic_epoch == 0
    assert await failure(two) == pb.ProducerBusy
    assert await failure(two, producer_access_mode=EXCLUSIVE) == pb.ProducerFenced
    one.lose()
    reply = await success(two, producer_access_mode=EXCLUSIVE)
    assert reply.topic_epoch == 1
    two.lose()
    three = await ready(broker, 5002)
    stale = await failure(three, producer_access_mode=EXCLUSIVE, topic_epoch=0)
    assert stale == pb.ProducerFenced
    kept = await success(three, producer_access_mode=EXCLUSIVE, topic_epoch=1)
    assert kept.topic_epoch == 1


async def test_exclusive_needs_an_empty_topic(broker: Broker) -> None:
    one, two = await ready(broker), await ready(broker, 5001)
    await success(one)
    assert await failure(two, producer_access_mode=EXCLUSIVE) == pb.ProducerFenced


async def test_the_epoch_survives_an_unload(broker: Broker) -> None:
    client = await ready(broker)
    await success(client, producer_access_mode=EXCLUSIVE)
    await broker.service.loader.unload(str(broker.service.topics[TOPIC].name))
    await client.receive_one()
    assert (await success(client, producer_access_mode=EXCLUSIVE)).topic_epoch == 1


async def test_shared_ignores_an_epoch(broker: Broker) -> None:
    client = await ready(broker)
    await success(client, producer_access_mode=EXCLUSIVE, topic_epoch=7)
    request_id = client.close_producer()
    assert (await client.receive_one()).success.request_id == request_id
    assert not (await success(client, topic_epoch=0)).HasField("topic_epoch")


async def test_waiting_producers_are_promoted_in_order_with_a_second_answer(
    broker: Broker,
) -> None:
    one, two, three = [await ready(broker, 5000 + n) for n in range(3)]
    await success(one, producer_access_mode=WAIT)
    second = await success(two, producer_access_mode=WAIT)
    third = await success(three, producer_access_mode=WAIT)
    assert (second.producer_ready, third.producer_ready) == (False, False)
    assert not second.HasField("topic_epoch")
    two.feed(message(0))  # may not send yet
    await two.expect_nothing()
    one.lose()
    promoted = (await two.receive_one()).producer_success
    assert (promoted.request_id, promoted.producer_ready) == (second.request_id, True)
    assert promoted.topic_epoch == 1
    two.feed(message(0))
    assert receipts(await two.receive(1))[0][0] == 0
    await three.expect_nothing()
    two.lose()
    assert (await three.receive_one()).producer_success.topic_epoch == 2


async def test_fencing_closes_producers_and_fails_waiters(broker: Broker) -> None:
    one, two, three = [await ready(broker, 5000 + n) for n in range(3)]
    await success(one, producer_access_mode=EXCLUSIVE)
    waiting = await success(two, producer_access_mode=WAIT)
    reply = await success(three, producer_access_mode=FENCING)
    assert reply.topic_epoch == 1
    assert (await one.receive_one()).close_producer.producer_id == 1
    fenced = (await two.receive_one()).error
    assert (fenced.request_id, fenced.error) == (waiting.request_id, pb.ProducerFenced)
    assert not one.connection.producers
    assert not two.connection.producers
    assert list(broker.service.topics[TOPIC].producers) == [reply.producer_name]


async def test_closing_an_unknown_producer_succeeds(broker: Broker) -> None:
    client = await ready(broker)
    request_id = client.close_producer(99)
    assert (await client.receive_one()).success.request_id == request_id


async def test_a_creation_the_client_gave_up_is_undone(broker: Broker) -> None:
    client = await ready(broker)
    client.send(client.producer_command())
    request_id = client.close_producer()
    assert (await client.receive_one()).success.request_id == request_id
    await eventually(lambda: TOPIC in broker.service.topics)
    await client.expect_nothing()
    assert not broker.service.topics[TOPIC].producers
    await success(client)


async def test_a_creation_whose_connection_went_is_undone(broker: Broker) -> None:
    client = await ready(broker)
    client.send(client.producer_command())
    client.lose()
    other = await ready(broker, 5001)
    await success(other)
    assert len(broker.service.topics[TOPIC].producers) == 1


async def test_an_initial_subscription_is_created_at_the_beginning(broker: Broker) -> None:
    client = await ready(broker)
    await success(client, producer_id=1)
    client.feed(message(0) + message(1))
    await client.receive(2)
    await success(client, producer_id=2, initial_subscription_name="first")
    await success(client, producer_id=3, initial_subscription_name="first")
    await success(client, producer_id=4, initial_subscription_name="")
    topic = broker.service.topics[TOPIC]
    assert list(topic.subscriptions) == ["first"]
    cursor = topic.subscriptions["first"].cursor
    assert cursor is not None
    assert cursor.state.backlog == 2


async def test_limits_and_encryption_come_from_the_namespace(broker: Broker) -> None:
    client = await ready(broker)
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "max_producers_per_topic": 1}
    )
    await success(client, producer_id=1)
    assert await failure(client, producer_id=2) == pb.ProducerBusy
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "encryption_required": True}
    )
    gone = (await client.receive_one()).close_producer
    assert gone.producer_id == 1, "it doesn't encrypt"
    assert await failure(client, topic="e", producer_id=3) == pb.MetadataError
    await success(client, topic="e", producer_id=3, encrypted=True)
    client.feed(message(0, producer_id=3))
    error = (await client.receive_one()).send_error
    assert (error.producer_id, error.error) == (3, pb.MetadataError)


async def test_a_failing_metadata_store_is_an_error_not_a_lost_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await ready(broker)

    async def fail(name: object) -> bool:
        raise MetadataWriteError("/path", OSError("disk full"))

    monkeypatch.setattr(broker.service.resources, "is_stored", fail)
    assert await failure(client) == pb.MetadataError
    monkeypatch.setattr(broker.service.resources, "policies", fail)
    assert await failure(client) == pb.MetadataError
    monkeypatch.undo()
    await success(client)


async def test_a_client_too_old_for_close_producer_loses_its_connection(broker: Broker) -> None:
    client = await ready(broker, version=4)
    await success(client)
    await broker.service.loader.unload(str(broker.service.topics[TOPIC].name))
    assert client.transport.closed
    assert client.take() == []
