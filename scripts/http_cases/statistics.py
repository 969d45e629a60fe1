"""Statistics value by value, after clients did the same on both servers.

Start both with ``managedLedgerMaxEntriesPerLedger=10 managedLedgerMinLedgerRolloverTimeMinutes=0``.
Needs the ``pulsar-client`` package. `view` is what is compared: every number, text and place of
an answer, but for ledger ids (which become their order), times, rates and sizes (which become
their kind), and `EXPLAINED`.
"""

import http.client
import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import pulsar

from http_cases import NS, Case, Step, T

EXPLAINED: Final = {
    "ownerBroker": "another server",
    "oldestBacklogMessageAgeSeconds": "known at once, not at the next check",
    "oldestBacklogMessageSubscriptionName": "the same",
    "nonContiguousDeletedMessagesRangesSerializedSize": "another encoding",
    "delayedMessageIndexSizeInBytes": "another index",
    "cursorLedgerLastEntry": "other records",
    "version": "other writes of the node",
    "msgChunkPublished": "Pulsar's stays false",
    "blockedAttempts": "depends on when it tried again",
    "waitingCursorsCount": "Pulsar parks a cursor ten milliseconds later",
    "lastLedgerCreatedTimestamp": "a ledger begins with its first entry",
    "metadata": "names of bookies",
    "underReplicated": "marked by auto-recovery, not by who is registered",
    "schemaLedgers": "schemas are not in ledgers",
    "lastConsumedTimestamp": "kept when the consumer has left",
    "lastAckedTimestamp": "the same",
}
_SIZES = {"storageSize", "totalSize", "currentLedgerSize", "size", "backlogSize"}
_LEDGERS = "known: a ledger or cursor ledger begins with its first entry"
_REWOUND = "known: without consumers the next to be read is the first unacknowledged entry"
_FLAGS = "getPreciseBacklog=true&getEarliestTimeInBacklog=true&subscriptionBacklogSize=true"
_BARE = "excludePublishers=true&excludeConsumers=true&subscriptionBacklogSize=false"
_WAIT_S = 60.0


def view(value: Any) -> Any:
    """What of an answer must be the same on both servers."""
    order: dict[str, int] = {}

    def ledger(number: str) -> str:
        return "-1" if number == "-1" else f"L{order.setdefault(number, len(order))}"

    def of(value: Any, field: str) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if k not in EXPLAINED}
            if kept.get("type") == "None":  # absent here: before the first consumer
                del kept["type"]
            if kept.get("entryId") == -1:  # before the first ledger, or at its start
                return "start"
            return {k: of(kept[k], k) for k in sorted(kept)}
        if isinstance(value, list):
            return [of(each, field) for each in value]
        if isinstance(value, bool):
            return value
        if field in ("ledgerId", "cursorLedger", "cursorsLedgerId"):
            return ledger(str(value))
        if isinstance(value, float):
            return "rate"
        if isinstance(value, int):
            kind = "bytes" if field in _SIZES else "time" if 1.7e12 < value < 1e15 else value
            return kind if value > 0 else value
        text = str(value)
        if re.match(r"\d{4}-\d\d-\d\dT", text):
            return "never" if text.startswith("1970") else "date"
        if field == "address":
            return text.rpartition(":")[0]
        text = re.sub(r"^-?\d+:-1$", "start", text)
        return re.sub(r"(-?\d+):(?=-?\d)", lambda found: ledger(found[1]) + ":", text)

    return of(value, "")


class _Server:
    """Clients of one server; open until `close`."""

    def __init__(self, url: str, tenant: str) -> None:
        self.url, self.tenant = url, tenant
        found = self.ask(f"/lookup/v2/topic/persistent/{tenant}/ns/t")
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self.client = pulsar.Client(found["brokerUrl"], logger=quiet)
        self.open: list[Any] = []

    def ask(self, path: str) -> Any:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def until(self, topic: str, condition: Callable[[Any], bool]) -> None:
        """Waits for statistics of a topic."""
        deadline = time.monotonic() + _WAIT_S
        path = f"/admin/v2/persistent/{self.tenant}/ns/{topic}/stats"
        while not condition(self.ask(path)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.url} {topic}")
            time.sleep(0.1)

    def name(self, topic: str, domain: str = "persistent") -> str:
        return f"{domain}://{self.tenant}/ns/{topic}"

    def producer(self, topic: str, **more: Any) -> Any:
        more = {"batching_enabled": False, "producer_name": f"{topic}-producer", **more}
        self.open.append(self.client.create_producer(self.name(topic), **more))
        return self.open[-1]

    def consumer(self, topic: str, subscription: str, name: str, kind: Any, **more: Any) -> Any:
        more = {"initial_position": pulsar.InitialPosition.Earliest, **more}
        self.open.append(
            self.client.subscribe(self.name(topic), subscription, kind, consumer_name=name, **more)
        )
        return self.open[-1]

    def close(self) -> None:
        self.client.close()


_servers: dict[str, _Server] = {}


def _kinds(server: _Server) -> None:
    """Topic t: a subscription of each type, 25 messages in three ledgers, holes."""
    kinds = pulsar.ConsumerType
    exclusive = server.consumer("t", "ex", "ex1", kinds.Exclusive, properties={"c": "d"})
    for name in ("1", "2"):
        server.consumer("t", "sh", f"sh{name}", kinds.Shared, receiver_queue_size=5)
        server.consumer("t", "fo", f"fo{name}", kinds.Failover)
        server.consumer("t", "ks", f"ks{name}", kinds.KeyShared)
    producer = server.producer("t", properties={"a": "b"})
    for number in range(25):
        producer.send(b"x" * 100, partition_key=f"k{number % 7}")
    messages = [exclusive.receive(30_000) for _ in range(25)]
    for number in [*range(7), 8, 10, 11, 20]:
        exclusive.acknowledge(messages[number])
    out = {"ex": 25, "sh": 10, "fo": 25, "ks": 25}
    server.until(
        "t",
        lambda stats: (
            stats["subscriptions"]["ex"]["msgBacklog"] == 14
            and all(stats["subscriptions"][k]["msgOutCounter"] == n for k, n in out.items())
        ),
    )


def _batches(server: _Server) -> None:
    consumer = server.consumer(
        "b", "s", "b1", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    producer = server.producer(
        "b", batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000
    )
    for _ in range(40):
        producer.send_async(b"y" * 50, lambda *_: None)
    producer.flush()
    messages = [consumer.receive(30_000) for _ in range(40)]
    for number in [*range(10), 12, 13, 25, *range(30, 40)]:
        consumer.acknowledge(messages[number])
    server.until("b", lambda stats: stats["subscriptions"]["s"]["unackedMessages"] == 17)


def _delays(server: _Server) -> None:
    consumer = server.consumer("d", "s", "d1", pulsar.ConsumerType.Shared)
    producer = server.producer("d")
    for _ in range(3):
        producer.send(b"later", deliver_after=timedelta(hours=1))
    producer.send(b"now")
    consumer.receive(30_000)
    server.until("d", lambda stats: stats["subscriptions"]["s"]["msgDelayed"] == 3)


def _draining(server: _Server) -> None:
    """Topic k: keys that moved to a second consumer wait for the first one's acknowledgements."""
    first = server.consumer("k", "ks", "k1", pulsar.ConsumerType.KeyShared)
    producer = server.producer("k")
    for number in range(40):
        producer.send(b"x", partition_key=f"k{number % 10}")
    for _ in range(40):
        first.receive(30_000)
    server.consumer("k", "ks", "k2", pulsar.ConsumerType.KeyShared)
    for number in range(10):
        producer.send(b"x", partition_key=f"k{number}")
    server.until(
        "k",
        lambda stats: (
            stats["subscriptions"]["ks"]["msgInReplay"] > 0
            and stats["subscriptions"]["ks"]["msgInReplay"]
            + stats["subscriptions"]["ks"]["msgOutCounter"]
            == 50
        ),
    )


def _partitions(server: _Server) -> None:
    kind = pulsar.ConsumerType.Shared
    consumer = server.consumer("p", "s", "p1", kind)
    producer = server.producer("p")
    for _ in range(30):
        producer.send(b"w" * 10)
    for _ in range(30):
        consumer.acknowledge(consumer.receive(30_000))
    for part in ("p-partition-0", "p-partition-1"):
        server.until(part, lambda stats: stats["subscriptions"]["s"]["msgBacklog"] == 0)


def _begin(url: str, tenant: str) -> None:
    server = _servers[url] = _Server(url, tenant)
    for act in (_kinds, _batches, _delays, _draining, _partitions):
        act(server)


def _end(url: str, tenant: str) -> None:
    _servers.pop(url).close()
    # Consumers that were connected are gone when this returns; their statistics a moment later.
    probe = _Server(url, tenant)
    for topic in ("t", "b", "d", "k"):
        probe.until(
            topic,
            lambda stats: not any(each["consumers"] for each in stats["subscriptions"].values()),
        )
    probe.close()


def _metrics(topics: list[str], note: str, internal: str) -> list[Case]:
    cases: list[Case] = []
    for topic in topics:
        cases += [("GET", f"{topic}/stats?{flags}", None, note) for flags in (_FLAGS, _BARE)]
        cases.append(("GET", f"{topic}/internalStats?metadata=true", None, internal))
    return cases


def requests(tenant: str) -> list[Case]:
    a = f"/admin/v2/persistent/{tenant}/ns"
    plain = [f"{a}/{name}" for name in ("t", "b", "d", "k")]
    unloaded: list[Case] = [("PUT", f"{topic}/unload", None, "") for topic in plain]
    return [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", f"{NS}/{tenant}/ns", None, ""),
        ("PUT", f"{a}/p/partitions", 2, ""),
        ("CLIENTS", "publish, consume, acknowledge", Step(_begin), ""),
        *_metrics(plain, "", ""),
        ("GET", f"{a}/p/partitioned-stats?{_FLAGS}", None, "known: names and times of the parts"),
        ("GET", f"{a}/p/partitioned-internalStats", None, ""),
        ("CLIENTS", "leave", Step(_end), ""),
        *_metrics(plain[:2], "", _REWOUND),
        *_metrics(plain[2:3], "known: only a dispatcher knows what is delayed", _REWOUND),
        *_metrics(plain[3:], "", _REWOUND),
        ("POST", f"{a}/t/subscription/fo/skip/3", None, ""),
        ("POST", f"{a}/t/subscription/ks/skip_all", None, ""),
        *unloaded,
        *_metrics(plain, "", _LEDGERS),
        *[("GET", f"{topic}/internal-info", None, _LEDGERS) for topic in plain],
        *[("DELETE", f"{topic}?force=true", None, "") for topic in plain],
        ("DELETE", f"{a}/p/partitions?force=true", None, ""),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]
