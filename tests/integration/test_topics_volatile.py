"""Non-persistent topics by HTTP; Magnetar, or Pulsar by the options."""

import secrets
from collections.abc import Iterator

import httpx
import pulsar
import pytest


@pytest.fixture
def name() -> str:
    return f"public/default/volatile-{secrets.token_hex(5)}"


@pytest.fixture
def path(admin_url: str, name: str) -> Iterator[str]:
    url = f"{admin_url}/admin/v2/non-persistent/{name}"
    yield url
    httpx.delete(f"{url}?force=true", timeout=60)


def test_figures_of_a_topic_in_use(client: pulsar.Client, path: str, name: str) -> None:
    topic = f"non-persistent://{name}"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"x")
    assert consumer.receive(30_000).data() == b"x"
    stats = httpx.get(f"{path}/stats", timeout=60).json()
    assert stats["msgDropRate"] == 0
    assert stats["publishers"][0]["msgDropRate"] == 0
    metrics = stats["subscriptions"]["s"]
    assert metrics["msgDropRate"] == 0
    assert metrics["backlogSize"] in (-1, 0), "it wasn't asked for"
    assert len(metrics["consumers"]) == 1
    bare = httpx.get(
        f"{path}/stats?excludeConsumers=true&subscriptionBacklogSize=true", timeout=60
    ).json()
    assert bare["subscriptions"]["s"]["consumers"] == []
    assert bare["subscriptions"]["s"]["backlogSize"] == 0
    internal = httpx.get(f"{path}/internalStats", timeout=60).json()
    assert (internal["numberOfEntries"], list(internal["cursors"])) == (0, ["s"])
    assert internal["entriesAddedCounter"] == 1
    assert httpx.get(f"{path}/subscriptions", timeout=60).json() == ["s"]
    assert httpx.put(f"{path}/subscription/s/properties", json={"a": "b"}, timeout=60).is_success
    assert httpx.get(f"{path}/subscription/s/properties", timeout=60).json() == {"a": "b"}


def test_topics_of_a_bundle(client: pulsar.Client, admin_url: str, path: str, name: str) -> None:
    producer = client.create_producer(f"non-persistent://{name}")
    lookup = f"{admin_url}/lookup/v2/topic/non-persistent/{name}/bundle"
    bundle = httpx.get(lookup, timeout=60).text.strip('"').rsplit("/", 1)[-1]
    base = f"{admin_url}/admin/v2/non-persistent/public/default"
    assert f"non-persistent://{name}" in httpx.get(f"{base}/{bundle}", timeout=60).json()
    assert httpx.get(f"{base}/0x00000000_0x00000001", timeout=60).status_code == 412
    assert httpx.get(f"{base}/no-bundle", timeout=60).status_code == 412
    producer.close()


@pytest.mark.parametrize(
    ("method", "what", "status"),
    [
        ("PUT", "properties", 406),
        ("POST", "terminate", 406),
        ("DELETE", "truncate", 412),
        ("POST", "trim", 405),
        ("GET", "lastMessageId", 405),
        ("GET", "messageid/0", 405),
        ("GET", "examinemessage", 405),
        ("PUT", "subscription/s", 400),
        ("POST", "subscription/s/expireMessages/1", 405),
        ("POST", "all_subscription/expireMessages/1", 405),
        ("GET", "subscription/s/position/1", 405),
        ("GET", "subscription/s/replicatedSubscriptionStatus", 405),
    ],
)
def test_what_needs_stored_messages_is_refused(
    path: str, method: str, what: str, status: int
) -> None:
    assert httpx.put(path, timeout=60).is_success
    body = {"json": {"a": "b"}} if what == "properties" else {}
    assert httpx.request(method, f"{path}/{what}", timeout=60, **body).status_code == status  # type: ignore[arg-type] # a body or none


def test_an_unloaded_topic_without_clients_is_gone(path: str) -> None:
    assert httpx.put(path, timeout=60).is_success
    assert httpx.get(f"{path}/stats", timeout=60).is_success
    assert httpx.put(f"{path}/unload", timeout=60).is_success
    assert httpx.get(f"{path}/stats", timeout=60).status_code == 404
