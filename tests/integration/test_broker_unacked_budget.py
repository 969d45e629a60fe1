"""``maxUnackedMessagesPerBroker`` with the official client."""

import json
import urllib.request
from typing import Any

import pulsar
from pulsar import ConsumerType

import magnetar
from magnetar.embedding import EmbeddedBroker
from tests.official_client import open_client
from tests.waiting import wait_until

DEADLINE_S = 30.0
BLOCKED = "blockedSubscriptionOnUnackedMsgs"


def subscription(broker: EmbeddedBroker, topic: str) -> dict[str, Any]:
    url = f"{broker.web_url}/admin/v2/persistent/public/default/{topic}/stats"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())["subscriptions"]["s"]
        return found


def test_a_broker_at_its_limit_feeds_those_who_acknowledge() -> None:
    with magnetar.embedded(
        maxUnackedMessagesPerBroker=100, maxUnackedMessagesPerSubscriptionOnBrokerBlocked=0.2
    ) as broker:
        client = open_client(broker.service_url)

        def subscribe(topic: str, sub_type: ConsumerType) -> pulsar.Consumer:
            return client.subscribe(topic, "s", consumer_type=sub_type, receiver_queue_size=500)

        try:
            silent = subscribe("silent", ConsumerType.Shared)
            diligent = subscribe("diligent", ConsumerType.KeyShared)
            producers = {
                topic: client.create_producer(topic, batching_enabled=False)
                for topic in ("silent", "diligent")
            }
            for _ in range(100):
                producers["silent"].send(b"x")
            held = [silent.receive(int(DEADLINE_S * 1000)) for _ in range(100)]
            assert subscription(broker, "silent")[BLOCKED]
            for topic in ("silent", "diligent"):
                for number in range(50):
                    producers[topic].send(b"%d" % number, partition_key="k")
            for _ in range(50):
                diligent.acknowledge(diligent.receive(int(DEADLINE_S * 1000)))
            stats = subscription(broker, "silent")
            assert (stats["unackedMessages"], stats["msgBacklog"]) == (100, 150)
            wait_until(lambda: not subscription(broker, "diligent")[BLOCKED])
            for message in held[:51]:
                silent.acknowledge(message)
            numbers = [silent.receive(int(DEADLINE_S * 1000)).data() for _ in range(50)]
            assert numbers == [b"%d" % number for number in range(50)]
        finally:
            client.close()
