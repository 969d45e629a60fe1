"""Topics that move or go while clients use them, with the official client."""

import secrets
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pulsar


def call(admin_url: str, method: str, path: str) -> int:
    url = urlsplit(admin_url)
    assert url.hostname is not None
    connection = HTTPConnection(url.hostname, url.port, timeout=30)
    try:
        connection.request(method, f"/admin/v2/{path}")
        return connection.getresponse().status
    finally:
        connection.close()


def test_unloads_in_mid_stream_lose_nothing_and_keep_the_order(
    client: pulsar.Client, admin_url: str
) -> None:
    local = f"unload-{secrets.token_hex(6)}"
    producer = client.create_producer(local, batching_enabled=False, block_if_queue_full=True)
    consumer = client.subscribe(local, "s")
    count, failures = 3_000, []
    done = threading.Semaphore(0)

    def sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)
        done.release()

    for number in range(count):
        producer.send_async(b"%d" % number, sent)
        if number in (700, 1_400, 2_100):
            path = f"persistent/public/default/{local}/unload"
            assert call(admin_url, "PUT", path) == 204
    for _ in range(count):
        assert done.acquire(timeout=30)
    assert failures == []
    seen: list[int] = []
    while len(set(seen)) < count:
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        seen.append(int(message.data()))
    # At least once: a repetition may come, but never a gap or a step back past what was confirmed.
    first_seen = list(dict.fromkeys(seen))
    assert first_seen == list(range(count))


def test_a_producer_survives_the_deletion_of_its_topic(
    client: pulsar.Client, admin_url: str
) -> None:
    local = f"delete-{secrets.token_hex(6)}"
    producer = client.create_producer(local)
    producer.send(b"before")
    path = f"persistent/public/default/{local}?force=true"
    assert call(admin_url, "DELETE", path) == 204
    producer.send(b"after")  # the topic is created again, as it was the first time
    reader = client.create_reader(local, pulsar.MessageId.earliest)
    assert reader.read_next(30_000).data() == b"after"
    assert not reader.has_message_available()
