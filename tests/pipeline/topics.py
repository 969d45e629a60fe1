"""What the tests of the source ask of brokers and of the official client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pulsar

from tests import official_client
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Of one broker."""

    service_url: str
    admin_url: str


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was acknowledged, and its id."""

    value: bytes
    key: str | None
    properties: dict[str, str] = field(default_factory=dict)
    ledger_id: int = -1
    entry_id: int = -1
    batch_index: int = -1
    partition: int = -1

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.partition, self.ledger_id, self.entry_id, self.batch_index


def admin(at: Addresses, method: str, path: str, body: object = None) -> Any:
    """The answer's JSON; None: it has none. Raises urllib.error.HTTPError."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{at.admin_url}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def topic_path(topic: str) -> str:
    return f"/admin/v2/persistent/public/default/{topic}"


def segments(at: Addresses, topic: str) -> Any:
    return admin(at, "GET", f"{topic_path(topic)}/segments")


def compact(at: Addresses, topic: str) -> None:
    path = f"{topic_path(topic)}/compaction"
    admin(at, "PUT", path)
    wait_until(lambda: admin(at, "GET", path)["status"] == "SUCCESS", "it is compacted", WAIT_S)


@contextmanager
def client_of(at: Addresses) -> Iterator[pulsar.Client]:
    with official_client.client_of(at.service_url, operation_timeout_seconds=int(WAIT_S)) as client:
        yield client


def send_all(
    client: pulsar.Client,
    topic: str,
    messages: Iterable[tuple[bytes, str | None, dict[str, str]]],
    **producer_options: Any,
) -> list[Sent]:
    """Each message is acknowledged before this returns."""
    options = {"batching_max_publish_delay_ms": 5, "block_if_queue_full": True, **producer_options}
    producer = client.create_producer(topic, send_timeout_millis=int(WAIT_S * 1000), **options)
    sent: list[Sent] = []
    failures: list[Any] = []

    def stored(message: Sent) -> Callable[[Any, Any], None]:
        def receipt(result: Any, place: Any) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)
                return
            sent.append(
                Sent(
                    *(message.value, message.key, message.properties),
                    *(place.ledger_id(), place.entry_id(), place.batch_index()),
                    place.partition(),
                )
            )

        return receipt

    for value, key, properties in messages:
        receipt = stored(Sent(value, key, properties))
        producer.send_async(value, receipt, partition_key=key, properties=properties)
    producer.flush()
    producer.close()
    assert failures == []
    return sorted(sent, key=lambda each: each.place)


def load_filtered(spark: SparkSession, at: Addresses, topic: str) -> DataFrame:
    """A table whose filters are obeyed."""
    from magnetar.pipeline.source import read_topics

    return read_topics(spark, adminUrl=at.admin_url, subscribe=topic)


def load(spark: SparkSession, at: Addresses, topic: str, **options: object) -> DataFrame:
    reader = spark.read.format("magnetar").option("adminUrl", at.admin_url)
    if "subscribePattern" not in options and "assign" not in options:
        options["subscribe"] = topic
    schema = options.pop("schema", None)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return (reader if schema is None else reader.schema(str(schema))).load()


def rows_of(frame: DataFrame) -> list[Sent]:
    """In the order of their ids."""
    columns = ("value", "key", "properties", "ledgerId", "entryId", "batchIndex", "partition")
    return sorted(
        (
            Sent(
                bytes(row.value),
                None if row.key is None else bytes(row.key).decode(),
                *(row.properties, row.ledgerId, row.entryId, row.batchIndex, row.partition),
            )
            for row in frame.select(*columns).collect()
        ),
        key=lambda each: each.place,
    )


def exists(at: Addresses, path: str) -> bool:
    try:
        admin(at, "GET", path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise
    return True
