"""What admin calls cost: `python -m benchmarks.micro.http_admin [SERVICE_URL ADMIN_URL]`.

Topic statistics one call after the other on one connection; then the list of 10,000 topics while a
producer sends, whose latency is told with and without the listing. Without URLs a fresh Magnetar
process is measured; with them any server, Apache Pulsar for one, whose answers it leaves as they
were: its topics are in a tenant of their own, which is deleted at the end. TOPICS=1000 in the
environment makes it shorter (with 10,000 topics Pulsar takes minutes to create and delete them).
"""

import contextlib
import http.client
import json
import os
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pulsar

import magnetar

TOPICS = int(os.environ.get("TOPICS", "10000"))
STATS_CALLS = 2000
LIST_CALLS = 10
SEND_S = 10
_PER_PARTITIONED = 1000


class Admin:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, f"/admin/v2/{path}", data, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return text

    def time(self, path: str, calls: int) -> list[float]:
        """Milliseconds of each call, sorted."""
        took = []
        for _ in range(calls):
            begin = time.perf_counter()
            self.ask("GET", path)
            took.append((time.perf_counter() - begin) * 1000)
        return sorted(took)


def p99_of(took: list[float]) -> float:
    """Of sorted figures."""
    return took[min(len(took) - 1, len(took) * 99 // 100)]


def show(what: str, took: list[float], unit: str = "ms") -> None:
    p50, p99 = statistics.median(took), p99_of(took)
    print(f"{what:42} p50 {p50:8.3f} {unit}  p99 {p99:8.3f}  max {took[-1]:8.3f}")


def measure_stats(client: pulsar.Client, admin: Admin, namespace: str) -> None:
    admin.ask("PUT", f"persistent/{namespace}/bare")
    admin.time(f"persistent/{namespace}/bare/stats", 200)
    show("stats, nobody connected", admin.time(f"persistent/{namespace}/bare/stats", STATS_CALLS))
    topic = f"persistent://{namespace}/busy"
    consumers = [
        client.subscribe(topic, f"{kind}-{number}", consumer_type=kind)
        for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)
        for number in range(2)
    ]
    producer = client.create_producer(topic)
    for number in range(100):
        producer.send(b"x" * 100, partition_key=str(number))
    path = f"persistent/{namespace}/busy/stats"
    show("stats, 1 producer, 4 subscriptions", admin.time(path, STATS_CALLS))
    show("internalStats", admin.time(f"persistent/{namespace}/busy/internalStats", STATS_CALLS))
    for consumer in consumers:
        consumer.close()
    producer.close()


@contextlib.contextmanager
def sending(client: pulsar.Client, topic: str, took: list[float]) -> Iterator[None]:
    """Sends one message after the other meanwhile; adds milliseconds of each."""
    producer = client.create_producer(topic, batching_enabled=False)
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            begin = time.perf_counter()
            producer.send(b"x" * 1024)
            took.append((time.perf_counter() - begin) * 1000)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.close()
        took.sort()


def measure_lists(client: pulsar.Client, admin: Admin, namespace: str) -> None:
    begin = time.perf_counter()
    for first in range(0, TOPICS, _PER_PARTITIONED):
        count = min(_PER_PARTITIONED, TOPICS - first)
        admin.ask("PUT", f"persistent/{namespace}/many-{first}/partitions", count)
    print(f"{TOPICS} topics created in {time.perf_counter() - begin:.1f} s")
    path = f"persistent/{namespace}"
    assert len(json.loads(admin.ask("GET", path))) >= TOPICS
    show(f"list of {TOPICS} topics", admin.time(path, LIST_CALLS))
    show("the same by namespaces", admin.time(f"namespaces/{namespace}/topics", LIST_CALLS))
    quiet: list[float] = []
    busy: list[float] = []
    topic = f"persistent://{namespace}/sent"
    listed: list[float] = []
    for _ in range(SEND_S):  # in turns, as other work on the machine comes and goes
        for took in (quiet, busy):
            with sending(client, topic, took):
                for _ in range(4):
                    time.sleep(0.25)
                    if took is busy:
                        listed += admin.time(path, 1)
    listed.sort()
    show("list while a producer sends", listed)
    show(f"send, quiet ({len(quiet)} messages)", quiet)
    show(f"send, 4 lists a second ({len(busy)} messages)", busy)
    print(
        f"{'p99 of sends beside lists, of quiet ones':42} {p99_of(busy) / p99_of(quiet):.2f} times"
    )


def measure(service_url: str, admin_url: str) -> None:
    admin = Admin(admin_url)
    tenant = f"bench-{secrets.token_hex(3)}"
    namespace = f"{tenant}/ns"
    admin.ask("PUT", f"tenants/{tenant}", {"allowedClusters": ["standalone"]})
    admin.ask("PUT", f"namespaces/{namespace}")
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        measure_stats(client, admin, namespace)
        measure_lists(client, admin, namespace)
    finally:
        client.close()
        clean_up(admin, namespace)


def clean_up(admin: Admin, namespace: str) -> None:
    for topic in json.loads(admin.ask("GET", f"persistent/{namespace}/partitioned")):
        admin.ask("DELETE", f"{topic.replace('://', '/')}/partitions?force=true")
    for topic in json.loads(admin.ask("GET", f"persistent/{namespace}")):
        admin.ask("DELETE", f"{topic.replace('://', '/')}?force=true")
    admin.ask("DELETE", f"namespaces/{namespace}")
    admin.ask("DELETE", f"tenants/{namespace.partition('/')[0]}")


def main() -> None:
    if len(sys.argv) == 3:
        measure(sys.argv[1], sys.argv[2])
        return
    with magnetar.embedded(mode="process") as broker:
        measure(broker.service_url, broker.web_url)


if __name__ == "__main__":
    main()
