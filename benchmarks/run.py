"""Short loads against a fresh standalone process with the official Python client; one line each.

    make bench [SECONDS_PER_LOAD=10]
    python benchmarks/run.py --url pulsar://host:port        a server that is already running

For comparisons with other brokers use the comparison loads described in benchmarks/README.md: this
program needs nothing but the test extra, and its client is slower than the broker.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pulsar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.standalone_process import StandaloneProcess

WINDOW = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="service URL of a running server; default: start our own")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each load")
    options = parser.parse_args()
    with _server(options.url) as (url, pid):
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for name, size, batching in (
            ("batched-1k", 1024, True),
            ("unbatched-100", 100, False),
            ("unbatched-1k", 1024, False),
            ("unbatched-128k", 131_072, False),
        ):
            _print(name, produce(client, size, batching, options.seconds), pid)
        _print("sync-1k", synchronous(client, 1024, options.seconds), pid)
        _print("in-and-out-1k", in_and_out(client, 1024, options.seconds), pid)
        client.close()
    return 0


@contextmanager
def _server(url: str | None) -> Iterator[tuple[str, int | None]]:
    if url is not None:
        yield url, None
        return
    with (
        tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder,
        StandaloneProcess(Path(folder) / "data") as process,
    ):
        yield process.service_url, process.pid


def _print(name: str, row: dict[str, float], pid: int | None) -> None:
    if pid is not None:
        row["broker_rss_mb"] = psutil.Process(pid).memory_info().rss / 1e6
    print(name, json.dumps({key: round(value, 3) for key, value in row.items()}), flush=True)


def _topic() -> str:
    return f"persistent://public/default/bench-{uuid.uuid4().hex[:8]}"


def _producer(client: pulsar.Client, topic: str, batching: bool) -> pulsar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=batching,
        batching_max_publish_delay_ms=1,
        batching_max_messages=1000,
        max_pending_messages=WINDOW * (5 if batching else 1),
        block_if_queue_full=True,
    )


def produce(client: pulsar.Client, size: int, batching: bool, seconds: float) -> dict[str, float]:
    producer = _producer(client, _topic(), batching)
    payload, sent = b"x" * size, 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(100):
            producer.send_async(payload, None)
        sent += 100
    producer.flush()
    elapsed = time.perf_counter() - start
    producer.close()
    return {
        "messages": sent,
        "msg_per_s": sent / elapsed,
        "MB_per_s": sent * size / elapsed / 1e6,
    }


def synchronous(client: pulsar.Client, size: int, seconds: float) -> dict[str, float]:
    producer = _producer(client, _topic(), False)
    latencies = sorted(latencies_s(producer, seconds, size))
    producer.close()
    return {
        "messages": len(latencies),
        "msg_per_s": len(latencies) / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
    }


def latencies_s(producer: pulsar.Producer, seconds: float, size: int = 1024) -> list[float]:
    """Of messages that wait for their receipt, one after the other."""
    payload, found = b"x" * size, list[float]()
    end_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        producer.send(payload)
        found.append(time.perf_counter() - began_s)
    return found


def in_and_out(client: pulsar.Client, size: int, seconds: float) -> dict[str, float]:
    topic = _topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=1000)
    producer = _producer(client, topic, True)
    payload, sent, done = b"x" * size, 0, threading.Event()
    received = 0

    def consume() -> None:
        nonlocal received
        while not done.is_set() or received < sent:
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            received += 1

    thread = threading.Thread(target=consume)
    thread.start()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        producer.send_async(payload, None)
        sent += 1
    producer.flush()
    done.set()
    thread.join()
    elapsed = time.perf_counter() - start
    consumer.close()
    producer.close()
    return {"messages": sent, "msg_per_s": sent / elapsed, "lost": sent - received}


if __name__ == "__main__":
    sys.exit(main())
