"""What clients send, parsed: WebSocket parameters, REST messages, partitioned sums."""

from typing import Any

import pytest

from magnetar.broker.http.dependencies import form_decode
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.rest_produce import parse_messages
from magnetar.broker.http.topics.partitioned_stats import sum_topic_stats
from magnetar.broker.http.websocket.parameters import (
    ConsumerParameters,
    ProducerParameters,
    ReaderParameters,
)
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.metadata.loop_turns import run_at_once


def test_defaults_are_pulsars() -> None:
    consumer = ConsumerParameters.parse({})
    assert (consumer.queue_size, consumer.nack_delay_ms, consumer.pull) == (1000, 60_000, False)
    producer = ProducerParameters.parse({})
    assert (producer.pending_max, producer.send_timeout_ms, producer.batching) == (
        1000,
        30_000,
        False,
    )
    assert ReaderParameters.parse({}).start == "latest"


def test_the_queue_size_is_capped() -> None:
    assert ConsumerParameters.parse({"receiverQueueSize": "100000"}).queue_size == 1000


@pytest.mark.parametrize(
    "query",
    [
        {"receiverQueueSize": "-1"},
        {"receiverQueueSize": "x"},
        {"maxRedeliverCount": "0"},
        {"deadLetterTopic": "dead"},
        {"deadLetterTopic": ""},
        {"consumerName": ""},
        {"deadLetterTopic": "bad://", "maxRedeliverCount": "1"},
        {"negativeAckRedeliveryDelay": "-1"},
        {"subscriptionInitialPosition": "earliest"},
        {"ackTimeoutMillis": "999"},
        {"subscriptionType": "shared"},
        {"subscriptionMode": "x"},
        {"cryptoFailureAction": "x"},
        {"priorityLevel": "-1"},
    ],
)
def test_bad_consumer_parameters(query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        ConsumerParameters.parse(query)
    assert refused.value.status == 400
    assert next(iter(query)) in str(refused.value)


@pytest.mark.parametrize(
    "query",
    [
        {"sendTimeoutMillis": "-1"},
        {"maxPendingMessages": "0"},
        {"messageRoutingMode": "roundrobinpartition"},
        {"hashingScheme": "x"},
        {"compressionType": "lz4"},
        {"initialSequenceId": "x"},
        {"producerName": ""},
        {"encryptionKeys": "k1"},
        {"encryptionKeys": ""},
        {"batchingMaxMessages": "-1", "batchingEnabled": "true"},
        {"batchingMaxPublishDelay": "x", "batchingEnabled": "true"},
    ],
    ids=str,
)
def test_bad_producer_parameters(query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        ProducerParameters.parse(query)
    assert refused.value.status == 400
    assert next(iter(query)) in str(refused.value)


def test_batching_parameters_count_with_batching_only() -> None:
    query = {"batchingMaxMessages": "1", "batchingMaxPublishDelay": "x"}
    assert not ProducerParameters.parse(query).batching
    query = {"batchingEnabled": "true", "batchingMaxMessages": "7"}
    assert ProducerParameters.parse(query).batch_messages_max == 7
    query = {"batchingEnabled": "true", "batchingMaxMessages": "0"}
    assert ProducerParameters.parse(query).batch_messages_max > 1_000_000  # not limited by count


def test_what_pulsar_takes_is_taken() -> None:
    assert ConsumerParameters.parse({"receiverQueueSize": "0"}).queue_size == 1
    assert ConsumerParameters.parse({}).crypto_action == "FAIL"
    assert ReaderParameters.parse({"cryptoFailureAction": "CONSUME"}).crypto_action == "CONSUME"
    for compression in COMPRESSIONS:
        ProducerParameters.parse({"compressionType": compression})
    dead_letters = {"maxRedeliverCount": "2", "deadLetterTopic": "persistent://a/b/c"}
    assert ConsumerParameters.parse(dead_letters).redeliver_max == 2


def test_a_message_id_without_its_padding() -> None:
    start = ReaderParameters.parse({"messageId": "CAAQAQ"}).start
    assert start == ReaderParameters.parse({"messageId": "CAAQAQ=="}).start


def test_a_space_in_a_message_id_was_a_plus() -> None:
    with pytest.raises(ApiError):
        ReaderParameters.parse({"messageId": "no id"})


def test_messages_of_a_rest_call() -> None:
    name, (first, second) = parse_messages(
        {
            "producerName": "p",
            "messages": [
                {"payload": "x"},
                {"payload": "é", "key": "k", "eventTime": "5", "deliverAfterMs": 7, "new": 1},
            ],
        }
    )
    assert name == "p"
    assert (first.payload, first.sequence_id) == (b"x", -1)
    assert (second.payload, second.event_time_ms, second.deliver_after_ms) == (
        "é".encode(),
        5,
        7,
    )


@pytest.mark.parametrize(
    "body",
    [
        None,
        5,
        {"messages": None},
        {"messages": [None]},
        {"messages": [{"payload": "\ud800"}]},
        {"messages": [{"payload": "x", "deliverAt": 1.5}]},
        {"messages": [{"payload": "x", "sequenceId": 2**64}]},
        {"messages": [{"payload": "x", "replicationClusters": [1]}]},
        {"producerName": 1, "messages": [{"payload": "x"}]},
    ],
)
def test_bad_rest_calls(body: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse_messages(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("segment", "text"), [("a%2Fb", "a/b"), ("a+b", "a b"), ("%C3%A9", "é"), ("%ff", "\ufffd")]
)
def test_segments_are_decoded_by_form_rules(segment: str, text: str) -> None:
    assert form_decode(segment) == text


def test_partitions_are_summed() -> None:
    def part(rate: float, count: int, created: int) -> dict[str, Any]:
        return {
            "msgRateIn": rate,
            "msgThroughputIn": rate * 10,
            "msgInCounter": count,
            "topicCreationTimeStamp": created,
            "ownerBroker": "b",
            "publishers": [
                {"producerName": "p", "msgRateIn": rate, "supportsPartialProducer": True}
            ],
            "subscriptions": {
                "s": {"msgBacklog": count, "type": "Shared", "consumers": [{"consumerName": "c"}]}
            },
        }

    total = run_at_once(sum_topic_stats([part(1.0, 2, 5), part(3.0, 4, 9)]))
    assert (total["msgRateIn"], total["msgInCounter"], total["averageMsgSize"]) == (4.0, 6, 10.0)
    assert total["topicCreationTimeStamp"] == 5
    assert "ownerBroker" not in total
    assert len(total["publishers"]) == 1
    assert total["subscriptions"]["s"]["msgBacklog"] == 6
    assert len(total["subscriptions"]["s"]["consumers"]) == 1
    assert run_at_once(sum_topic_stats([]))["subscriptions"] == {}
