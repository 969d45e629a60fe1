"""Bundles that are split and unloaded while official clients produce and consume."""

import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pulsar
import pytest

from tests.official_client import client_of

COUNT = 4_000
PARTITIONS = 6


@pytest.fixture
def client(service_url: str, namespace: str) -> Iterator[pulsar.Client]:
    """Closed before the namespace is deleted: a connected one would make its topics again."""
    with client_of(service_url, operation_timeout_seconds=30) as client:
        yield client


@pytest.fixture
def namespace(admin: httpx.Client) -> Iterator[str]:
    """A namespace of one bundle, in a tenant of its own."""
    tenant = f"bundles-{secrets.token_hex(4)}"
    cluster = admin.get("/brokers/configuration/runtime").json()["clusterName"]
    assert admin.put(f"/tenants/{tenant}", json={"allowedClusters": [cluster]}).is_success
    name = f"{tenant}/ns"
    assert admin.put(f"/namespaces/{name}", json={"bundles": {"numBundles": 1}}).is_success
    yield name
    for base in admin.get(f"/persistent/{name}/partitioned").json():
        admin.delete(f"/persistent/{name}/{base.rpartition('/')[2]}/partitions?force=true")
    for topic in admin.get(f"/persistent/{name}").json():
        admin.delete(f"/persistent/{name}/{topic.rpartition('/')[2]}?force=true")
    assert admin.delete(f"/namespaces/{name}").status_code == 204
    assert admin.delete(f"/tenants/{tenant}").status_code == 204


def ranges(admin: httpx.Client, namespace: str) -> list[str]:
    edges = admin.get(f"/namespaces/{namespace}/bundles").json()["boundaries"]
    return [f"{low}_{high}" for low, high in pairwise(edges)]


def put(admin: httpx.Client, url: str, body: object = None) -> None:
    """Until it is done: Pulsar fails while it unloads a bundle; this broker must not."""
    deadline = time.monotonic() + 30
    while True:
        answer = admin.put(url, json=body) if body is not None else admin.put(url)
        if answer.status_code != 500 or "unloaded" not in answer.text:
            break
        assert "Stacktrace" in answer.text, "that is not Pulsar's"
        assert time.monotonic() < deadline, "it is unloaded for 30 s"
        time.sleep(0.05)
    assert answer.status_code == 204, answer.text


def disturb(admin: httpx.Client, namespace: str, step: int) -> None:
    """One split or unload after the other; each changes who owns what."""
    path = f"/namespaces/{namespace}"
    first = ranges(admin, namespace)[0]
    lower, upper = (int(edge, 16) for edge in first.split("_"))
    calls: list[tuple[str, list[int] | None]] = [
        (f"{path}/LARGEST/split?splitAlgorithmName=topic_count_equally_divide", None),
        (f"{path}/{first}/split?unload=true", None),
        (f"{path}/{first}/unload", None),
        (
            f"{path}/{first}/split?splitAlgorithmName=specified_positions_divide&unload=true",
            [lower + (upper - lower) // 3],
        ),
        (f"{path}/unload", None),
    ]
    put(admin, *calls[step])


def test_splits_and_unloads_lose_nothing_and_keep_the_order(
    client: pulsar.Client, admin: httpx.Client, namespace: str
) -> None:
    assert admin.put(f"/persistent/{namespace}/t/partitions", json=PARTITIONS).is_success
    topic = f"persistent://{namespace}/t"
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=60_000
    )
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover)
    failures: list[pulsar.Result] = []
    confirmed = threading.Semaphore(0)

    def sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)
        confirmed.release()

    for number in range(COUNT):
        producer.send_async(b"%d" % number, sent, partition_key=f"k{number % 20}")
        if number and number % 700 == 0:
            disturb(admin, namespace, number // 700 - 1)
    for _ in range(COUNT):
        assert confirmed.acquire(timeout=60)
    assert failures == []
    seen: dict[str, list[int]] = defaultdict(list)
    left = set(range(COUNT))
    while left:
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        seen[message.partition_key()].append(int(message.data()))
        left.discard(int(message.data()))
    for key, numbers in seen.items():
        # At least once: a repetition may come, but never a gap or a step back.
        assert list(dict.fromkeys(numbers)) == list(range(int(key[1:]), COUNT, 20))
    assert len(ranges(admin, namespace)) > 2


def test_a_split_without_unload_disconnects_nobody(
    client: pulsar.Client, admin: httpx.Client, admin_url: str, namespace: str
) -> None:
    topic = f"persistent://{namespace}/quiet"
    producer = client.create_producer(topic)
    producer.send(b"before")
    stats = f"/persistent/{namespace}/quiet/stats"
    since = admin.get(stats).json()["publishers"][0]["connectedSince"]
    created = admin.get(stats).json()["topicCreationTimeStamp"]
    (whole,) = ranges(admin, namespace)
    assert admin.put(f"/namespaces/{namespace}/{whole}/split").status_code == 204
    producer.send(b"after")
    after = admin.get(stats).json()
    assert after["publishers"][0]["connectedSince"] == since
    assert after["topicCreationTimeStamp"] == created
    lookup = f"{admin_url}/lookup/v2/topic/persistent/{namespace}/quiet/bundle"
    bundle = httpx.get(lookup, timeout=60).text
    halves = ranges(admin, namespace)
    assert bundle in halves
    assert len(halves) == 2
    owned = admin.get(f"/brokers/standalone/{owner(admin)}/ownedNamespaces").json()
    assert {f"{namespace}/{half}" for half in halves} <= owned.keys()
    assert f"{namespace}/{whole}" not in owned


def owner(admin: httpx.Client) -> str:
    return str(admin.get("/brokers").json()[0])


def test_by_topic_count_each_half_has_as_many(
    client: pulsar.Client, admin: httpx.Client, namespace: str
) -> None:
    for number in range(8):
        assert admin.put(f"/persistent/{namespace}/t{number}").status_code == 204
    (whole,) = ranges(admin, namespace)
    path = f"/namespaces/{namespace}/{whole}/split?splitAlgorithmName=topic_count_equally_divide"
    assert admin.put(path).status_code == 204
    counts = []
    for half in ranges(admin, namespace):
        answer = admin.get(f"/namespaces/{namespace}/{half}/topicHashPositions").json()
        low, high = (int(edge, 16) for edge in half.split("_"))
        assert all(low <= each <= high for each in answer["topicHashPositions"].values())
        counts.append(len(answer["topicHashPositions"]))
    # A system topic, which Pulsar makes here, counts as well.
    assert sum(counts) >= 8
    assert abs(counts[0] - counts[1]) <= 1


def test_a_bundle_with_topics_is_not_given_up(admin: httpx.Client, namespace: str) -> None:
    (whole,) = ranges(admin, namespace)
    assert admin.put(f"/persistent/{namespace}/t").status_code == 204
    refused = admin.delete(f"/namespaces/{namespace}/{whole}")
    assert (refused.status_code, refused.json()["reason"]) == (
        409,
        "Cannot delete non empty bundle",
    )
    assert len(admin.get(f"/persistent/{namespace}").json()) == 1


def test_an_empty_bundle_is_given_up_and_one_with_topics_by_force(
    admin: httpx.Client, namespace: str, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's system topics count, and by force it keeps the topics")
    (whole,) = ranges(admin, namespace)
    path = f"/namespaces/{namespace}/{whole}"
    assert admin.delete(path).status_code == 204, "nobody owns it"
    assert admin.put(f"/persistent/{namespace}/t").status_code == 204
    assert admin.delete(f"{path}?force=true").status_code == 204
    assert admin.get(f"/persistent/{namespace}").json() == []
    assert ranges(admin, namespace) == [whole], "ranges always cover all hashes"
    assert admin.put(f"/persistent/{namespace}/t").status_code == 204


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("0x00000000_0x80000000/split", 412, "Expected upper boundary"),
        ("HOT/split", 404, "Bundle range HOT not found"),
        ("0x00000000_0xffffffff/split?splitAlgorithmName=halves", 412, "Unsupported"),
        (
            "0x00000000_0xffffffff/split?splitAlgorithmName=specified_positions_divide",
            412,
            "must not be empty",
        ),
        ("xyz/unload", 412, "Invalid bundle range: xyz"),
        ("0x00000000_0xffffffff/unload?destinationBroker=nobody:1", 409, "destination"),
    ],
)
def test_refusals(
    admin: httpx.Client,
    namespace: str,
    path: str,
    status: int,
    text: str,
    external_server: tuple[str, str] | None,
) -> None:
    if path == "xyz/unload" and external_server is not None:
        pytest.skip("Pulsar fails with 500")
    answer = admin.put(f"/namespaces/{namespace}/{path}")
    assert answer.status_code == status
    assert text in answer.json()["reason"]
    assert len(ranges(admin, namespace)) == 1
