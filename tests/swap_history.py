"""What clients have seen of a cluster whose brokers are exchanged, and what they must see again.

`History` sends, receives and acknowledges on one broker after another, of either kind. Each must
show what the ones before it have left: every message with its id, and to each subscription those
that it hasn't acknowledged, no others.
"""

import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import httpx
import pulsar
from pulsar import ConsumerType, InitialPosition

from tests.official_client import client_of

BATCH: Final = 10
_RECEIVE_MS: Final = 60_000
_NOTHING_MS: Final = 300
_FOR_EVER: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_KINDS: Final = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


class Order(pulsar.schema.Record):  # type: ignore[misc]  # it has no types
    number = pulsar.schema.Integer()


class Seen(NamedTuple):
    """A message, by a reader."""

    data: bytes
    entry: tuple[int, int]
    batch_index: int
    """In its batch; -1: it has none."""
    key: str
    properties: tuple[tuple[str, str], ...]
    published_ms: int


@dataclass
class Topic:
    """
    Attributes:
        partitions: 0: it isn't partitioned.
        seen: of each partition, in order.
    """

    namespace: str
    local: str
    partitions: int = 0
    batch: int = 1
    codec: str = "NONE"
    schema: bool = False
    sealed: bool = False
    delay: timedelta | None = None
    seen: dict[str, list[Seen]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"persistent://{self.namespace}/{self.local}"

    @property
    def leaves(self) -> list[str]:
        numbers = range(self.partitions)
        return [f"{self.name}-partition-{n}" for n in numbers] or [self.name]


@dataclass
class Subscription:
    """
    Attributes:
        acked: what it has acknowledged, by data; each message's data is its own.
    """

    topic: Topic
    name: str
    kind: ConsumerType
    cumulative: bool = False
    acked: set[bytes] = field(default_factory=set)


class History:
    """
    Args:
        count: messages that are sent to each topic in a round.
        keys: for messages that are encrypted.
    """

    def __init__(self, namespace: str, count: int, keys: pulsar.CryptoKeyReader) -> None:
        self.namespace, self.count, self._keys, self._round = namespace, count, keys, 0
        topic = partial(Topic, namespace)
        alone, batches = topic("alone"), topic("batches", batch=BATCH)
        parts = topic("parts", partitions=3, batch=BATCH, schema=True)
        named = topic("ein Thema+ü%2F%25")
        self.topics = [
            *(alone, batches, parts, named),
            *(topic(f"packed-{kind}", batch=BATCH, codec=kind) for kind in _KINDS),
            topic("sealed", batch=BATCH, sealed=True),
            topic("later", delay=timedelta(hours=1)),
        ]
        shared = ConsumerType.Shared
        self.subscriptions = [
            Subscription(alone, "one", ConsumerType.Exclusive, cumulative=True),
            Subscription(alone, "standby", ConsumerType.Failover, cumulative=True),
            Subscription(alone, "by key/ü", ConsumerType.KeyShared),
            *(Subscription(each, "shared", shared) for each in self.topics),
        ]

    def make(self, admin_url: str) -> None:
        """The namespace, the partitioned topics and the subscriptions, on a broker of Pulsar."""
        admin = f"{admin_url}/admin/v2"
        with httpx.Client(base_url=admin, timeout=60) as http:
            http.put(f"/namespaces/{self.namespace}", json={}).raise_for_status()
            http.post(f"/namespaces/{self.namespace}/retention", json=_FOR_EVER).raise_for_status()
            for topic in self.topics:
                if topic.partitions:
                    http.put(
                        f"/persistent/{self.namespace}/{topic.local}/partitions",
                        json=topic.partitions,
                    ).raise_for_status()

    def look(self, url: str, *, whole_batches: bool) -> None:
        """Everything is as it was left.

        Args:
            whole_batches: this broker delivers a batch again of which a part is acknowledged.
        """
        with client_of(url) as client:
            for topic in self.topics:
                if self._round:
                    assert read_all(client, topic, self._keys) == topic.seen, topic.local
            for each in self.subscriptions:
                self._receive(client, each, whole_batches=whole_batches, acknowledge=False)

    def work(self, url: str, *, whole_batches: bool) -> None:
        """Sends to every topic; every subscription acknowledges some of what it has."""
        with client_of(url) as client:
            for each in self.subscriptions:
                self._open(client, each).close()
            for topic in self.topics:
                self._send(client, topic)
                before, topic.seen = topic.seen, read_all(client, topic, self._keys)
                for leaf, seen in before.items():
                    assert topic.seen[leaf][: len(seen)] == seen, leaf
            self._round += 1
            for each in self.subscriptions:
                self._receive(client, each, whole_batches=whole_batches, acknowledge=True)

    def _send(self, client: pulsar.Client, topic: Topic) -> None:
        options: dict[str, Any] = {}
        if topic.schema:
            options["schema"] = pulsar.schema.AvroSchema(Order)
        if topic.sealed:
            options |= {"encryption_key": "key", "crypto_key_reader": self._keys}
        producer = client.create_producer(
            topic.name,
            batching_enabled=topic.batch > 1,
            batching_max_messages=max(topic.batch, 2),
            batching_max_publish_delay_ms=60_000,
            block_if_queue_full=True,
            compression_type=getattr(pulsar.CompressionType, topic.codec),
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
            **options,
        )
        results: list[pulsar.Result] = []
        first = self._round * self.count
        for number in range(first, first + self.count):
            producer.send_async(
                Order(number=number) if topic.schema else b"%s %d" % (topic.local.encode(), number),
                lambda result, _: results.append(result),
                properties={"number": str(number)},
                partition_key=f"key {number % 97}",
                deliver_after=topic.delay,
            )
        producer.flush()
        producer.close()
        assert results == [pulsar.Result.Ok] * self.count

    def _open(self, client: pulsar.Client, each: Subscription) -> pulsar.Consumer:
        return client.subscribe(
            each.topic.name,
            each.name,
            each.kind,
            initial_position=InitialPosition.Earliest,
            crypto_key_reader=self._keys,
            batch_index_ack_enabled=True,
        )

    def _receive(
        self,
        client: pulsar.Client,
        each: Subscription,
        *,
        whole_batches: bool,
        acknowledge: bool,
    ) -> None:
        wanted = left_of(each, whole_batches=whole_batches)
        consumer = self._open(client, each)
        found = [consumer.receive(_RECEIVE_MS) for _ in range(len(wanted))]
        where = f"{each.topic.local}, {each.name}"
        assert sorted(message.data() for message in found) == sorted(wanted), where
        try:
            more = consumer.receive(_NOTHING_MS)
        except pulsar.Timeout:
            pass
        else:
            raise AssertionError(f"{where}: {more.data()!r} again")
        if acknowledge:
            acknowledge_some(consumer, each, found)
        consumer.close()


def acknowledge_some(
    consumer: pulsar.Consumer, each: Subscription, found: list[pulsar.Message]
) -> None:
    """The first half, or those that a checksum chooses: two of three."""
    if each.cumulative:
        half = found[: len(found) // 2]
        if half:
            consumer.acknowledge_cumulative(half[-1])
        each.acked.update(message.data() for message in half)
        return
    for message in found:
        if zlib.crc32(message.data() + each.name.encode()) % 3:
            consumer.acknowledge(message)
            each.acked.add(message.data())


def left_of(each: Subscription, *, whole_batches: bool) -> list[bytes]:
    """What it has to get."""
    found = list[bytes]()
    if each.topic.delay is not None:
        return found
    for seen in each.topic.seen.values():
        open_entries = {message.entry for message in seen if message.data not in each.acked}
        found += [
            message.data
            for message in seen
            if message.data not in each.acked or (whole_batches and message.entry in open_entries)
        ]
    return found


def read_all(
    client: pulsar.Client, topic: Topic, keys: pulsar.CryptoKeyReader
) -> dict[str, list[Seen]]:
    """All messages of a topic, by its partitions."""
    return {leaf: list(_read(client, leaf, keys)) for leaf in topic.leaves}


def _read(client: pulsar.Client, leaf: str, keys: pulsar.CryptoKeyReader) -> Iterable[Seen]:
    with ExitStack() as stack:
        reader = client.create_reader(leaf, pulsar.MessageId.earliest, crypto_key_reader=keys)
        stack.callback(reader.close)
        while reader.has_message_available():
            each = reader.read_next(_RECEIVE_MS)
            place = each.message_id()
            yield Seen(
                each.data(),
                (place.ledger_id(), place.entry_id()),
                place.batch_index(),
                each.partition_key(),
                tuple(sorted(each.properties().items())),
                each.publish_timestamp(),
            )
