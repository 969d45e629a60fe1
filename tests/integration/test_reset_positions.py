"""Positions in bodies, as Pulsar's clients write them; Magnetar, or Pulsar by the options."""

import secrets
from collections.abc import Iterator

import httpx
import pytest

from tests.official_client import open_client
from tests.waiting import wait_until


@pytest.fixture
def topic(admin: httpx.Client, service_url: str) -> Iterator[str]:
    """``b0``, ``b1`` and ``b2`` in a batch, then ``m``."""
    name = f"persistent/public/default/positions-{secrets.token_hex(4)}"
    client, full = open_client(service_url), name.replace("/", "://", 1)
    client.subscribe(full, "hold").close()  # else what is acknowledged could be trimmed
    batching = client.create_producer(
        full, batching_enabled=True, batching_max_publish_delay_ms=5_000
    )
    for value in (b"b0", b"b1", b"b2"):
        batching.send_async(value, lambda result, message_id: None)
    batching.flush()
    client.create_producer(full, batching_enabled=False).send(b"m")
    client.close()
    yield name
    admin.delete(f"/{name}?force=true")


def seen(service_url: str, topic: str) -> list[bytes]:
    """What a consumer of ``s`` gets, ``m`` being the last."""
    client = open_client(service_url)
    consumer = client.subscribe(topic.replace("/", "://", 1), "s")
    values = [consumer.receive(15_000).data()]
    while values[-1] != b"m":
        values.append(consumer.receive(15_000).data())
    client.close()
    return values


@pytest.mark.parametrize(
    ("index", "excluded", "first"),
    [
        *((-1, False, 0), (-1, True, 3), (0, False, 0), (0, True, 1), (1, False, 1), (1, True, 2)),
        *((2, False, 2), (2, True, 3), (3, False, 0), (64, True, 3)),
    ],
)
def test_a_reset_into_a_batch_begins_at_that_message_or_behind_it(
    admin: httpx.Client, service_url: str, topic: str, index: int, excluded: bool, first: int
) -> None:
    assert admin.put(f"/{topic}/subscription/s").is_success
    entries = admin.get(f"/{topic}/internalStats").json()["lastConfirmedEntry"]
    position = {"ledgerId": int(entries.split(":")[0]), "entryId": 0, "partitionIndex": -1}
    body = {**position, "batchIndex": index, "excluded": excluded}
    assert admin.post(f"/{topic}/subscription/s/resetcursor", json=body).is_success
    assert seen(service_url, topic) == [b"b0", b"b1", b"b2", b"m"][first:]


def test_positions_may_be_words(admin: httpx.Client, topic: str) -> None:
    def backlogs() -> dict[str, int]:
        subscriptions = admin.get(f"/{topic}/stats").json()["subscriptions"]
        return {name: of["msgBacklog"] for name, of in subscriptions.items() if name != "hold"}

    path = f"/{topic}/subscription"
    for name, word in (("first", "earliest"), ("end", "latest")):
        assert admin.put(f"{path}/{name}", json=word).is_success
    wait_until(lambda: backlogs() == {"first": 2, "end": 0}, "made there")
    assert admin.post(f"{path}/end/resetcursor", json="earliest").is_success
    assert admin.post(f"{path}/first/resetcursor", json="latest").is_success
    wait_until(lambda: backlogs() == {"first": 0, "end": 2}, "set there")
    for word, left in (("earliest", 4), ("latest", 0)):
        counted = admin.post(f"{path}/end/analyzeBacklog", json=word).json()
        assert counted["messages"] == left, word
    for other in ("EARLIEST", "1:1", 5, True):
        assert admin.put(f"{path}/s", json=other).status_code == 400, other
