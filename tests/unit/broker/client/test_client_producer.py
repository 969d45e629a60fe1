"""Receipts find the entries that they are for."""

from typing import Any, cast

import pytest

from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader
from magnetar.broker.protocol.messages import OutgoingMessage, SingleEncoder, encode_single
from magnetar.broker.protocol.topic_name import TopicName


class Connection:
    closed = False
    sent = b""

    def next_id(self) -> int:
        return 1

    def send(self, data: bytes) -> None:
        self.sent += data


def receipt(sequence_id: int, ledger_id: int, entry_id: int) -> pb.CommandSendReceipt:
    none = 2**64
    position = pb.MessageIdData(ledgerId=ledger_id % none, entryId=entry_id % none)
    return pb.CommandSendReceipt(producer_id=1, sequence_id=sequence_id, message_id=position)


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def producer(connection: Connection) -> ClientProducer:
    return ClientProducer(
        cast("AsyncClientConnection", connection), TopicName.parse("persistent://a/b/c")
    )


def test_a_duplicate_is_answered_before_what_was_sent_earlier(producer: ClientProducer) -> None:
    """As Apache Pulsar 4.2.4 does: the duplicate needn't be written."""
    answers: list[tuple[Any, ...]] = []
    entries = [encode_single("p", OutgoingMessage(b"x", id_), 0) for id_ in (7, 8, 5)]
    producer.publish(entries, lambda *answer: answers.append(answer))
    for answer in (receipt(5, -1, -1), receipt(7, 3, 0), receipt(8, 3, 1)):
        producer.on_command(answer, b"")
    assert answers == [(2, 1, -1, -1, None), (0, 1, 3, 0, None), (1, 1, 3, 1, None)]


def test_each_entry_of_shared_metadata_has_its_sequence_id(
    connection: Connection, producer: ClientProducer
) -> None:
    entries = SingleEncoder("p", 0).encode([OutgoingMessage(b"x", id_) for id_ in (7, 9)])
    assert entries[0][0] is entries[1][0]
    producer.publish(entries, lambda *_: None)
    sends = [command.send.sequence_id for command, _ in FrameReader().feed(connection.sent)]
    assert sends == [7, 9]
