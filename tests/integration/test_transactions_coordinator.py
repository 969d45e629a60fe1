"""Commands to a coordinator of transactions, over the wire, and a broker that is killed."""

import json
from pathlib import Path
from urllib.request import urlopen

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import RawClient
from tests.raw_transactions import (
    acknowledge,
    add_partitions,
    add_subscription,
    assigned,
    begin,
    connect_to_coordinator,
    end,
    send,
)
from tests.standalone_process import StandaloneProcess


def _connected(url: str) -> RawClient:
    client = RawClient(url)
    client.look_up(assigned(0))
    assert not connect_to_coordinator(client).HasField("error")
    return client


def test_transactions_outlive_their_broker(tmp_path: Path) -> None:
    options = ("--set", "transactionCoordinatorEnabled=true")
    with StandaloneProcess(tmp_path / "data", *options) as broker:
        with _connected(broker.service_url) as client:
            assert [begin(client), begin(client)] == [(0, 0), (0, 1)]
            assert not end(client, (0, 0)).HasField("error")
            again = end(client, (0, 0))
            assert (again.error, again.txnid_least_bits) == (pb.TransactionNotFound, 0)
        broker.kill()
        broker.start()
        with _connected(broker.service_url) as client:
            assert begin(client) > (0, 1)  # no sequence is given twice, some are left out
            assert not end(client, (0, 1)).HasField("error")


def test_after_an_abort_an_exclusive_consumer_gets_all_again_in_order(tmp_path: Path) -> None:
    """As from Apache Pulsar 4.2.4: what wasn't acknowledged comes again, too."""
    options = ("--set", "transactionCoordinatorEnabled=true")
    topic = "persistent://public/default/ordered"
    with (
        StandaloneProcess(tmp_path / "data", *options) as broker,
        _connected(broker.service_url) as coordinator,
        RawClient(broker.service_url) as client,
    ):
        client.look_up(topic)
        client.create_producer(topic, 1)
        client.subscribe(topic, "s", consumer_id=1)
        for number in range(6):
            client.send_bytes(client.send_frame(number, b"%d" % number, 1))
            client.expect(pb.BaseCommand.SEND_RECEIPT)
        client.flow(4)
        ids = [client.receive_message()[0] for _ in range(4)]
        transaction = begin(coordinator)
        add_subscription(coordinator, transaction, topic, "s")
        for acknowledged in (1, 3):
            answer = acknowledge(client, transaction, ids[acknowledged], 1)
            assert not answer.HasField("error"), answer
        assert not end(coordinator, transaction, commit=False).HasField("error")
        client.flow(6)
        assert [client.receive_message()[1][-1:] for _ in range(6)] == [
            b"%d" % number for number in range(6)
        ]


def test_topics_are_told_in_the_words_of_the_client(tmp_path: Path) -> None:
    """As Apache Pulsar 4.2.4 does, and the Go client's own tests expect."""
    with (
        StandaloneProcess(
            tmp_path / "data", "--set", "transactionCoordinatorEnabled=true"
        ) as broker,
        _connected(broker.service_url) as coordinator,
        RawClient(broker.service_url) as client,
    ):
        client.look_up("short")
        client.create_producer("short", 1)
        client.subscribe("short", "s", consumer_id=1)
        client.flow(2)
        transaction = begin(coordinator)
        assert not add_partitions(coordinator, transaction, "short").HasField("error")
        assert not add_subscription(coordinator, transaction, "short", "s").HasField("error")
        refused = add_partitions(coordinator, transaction, "short", "://")
        assert refused.error == pb.InvalidTopicName
        assert send(client, transaction, 0, b"sent", 1).type == pb.BaseCommand.SEND_RECEIPT
        url = f"{broker.admin_url}/admin/v3/transactions/transactionMetadata/0/{transaction[1]}"
        with urlopen(url) as answer:
            told = json.load(answer)
        assert list(told["producedPartitions"]) == ["short"]
        assert "startPosition" in told["producedPartitions"]["short"]
        assert told["ackedPartitions"] == {"short": {"s": {}}}
        assert not end(coordinator, transaction).HasField("error")
        assert client.receive_message()[1].endswith(b"sent")
