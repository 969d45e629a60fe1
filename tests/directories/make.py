"""Makes the data directories of an older version: ``python -m tests.directories.make TREE``.

See README.md.
"""

import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pulsar

from tests.standalone_process import StandaloneProcess

HERE = Path(__file__).parent
COPIES = Path("/tmp/magnetar-copies-of-0991e35")  # a ledger's metadata name it
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "5",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "fileSystemURI": COPIES.as_uri(),
    "journalMaxSizeMB": "1",
}
OPTIONS = tuple(text for pair in SETTINGS.items() for text in ("--set", "=".join(pair)))
TENANT = "old"
NAMESPACE = f"{TENANT}/space"
YEAR_2100_MS = 4_102_444_800_000
POLICIES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "persistence": {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    },
    "messageTTL": 1_000_000,
    "maxProducersPerTopic": 77,
}
SCHEMAS = [
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "b", "type": "string", "default": "none"},
        ],
    },
]
PROPERTIES = {"owner": "somebody", "größe": "Ä" * 20}


def topic(name: str) -> str:
    return f"persistent://{NAMESPACE}/{name}"


def position_of(where: Any) -> str:
    return f"{where.ledger_id()}:{where.entry_id()}:{where.batch_index()}"


class Maker:
    """Fills topics; ``history`` is what must be found in them."""

    def __init__(self, process: StandaloneProcess) -> None:
        self._process = process
        self.stored: dict[str, list[list[str]]] = {}
        self.unacknowledged: dict[str, dict[str, list[str]]] = {}

    def fill(self) -> None:
        with httpx.Client(base_url=self._process.admin_url + "/admin/v2", timeout=60) as http:
            self._http = http
            self._client = pulsar.Client(self._process.service_url)
            self._make_namespace()
            self._make_holes()
            self._make_batch()
            self._make_deduplicated()
            self._make_schemas()
            self._make_delayed()
            self._make_partitioned()
            self._make_terminated()
            self._make_offloaded()
            self._client.close()

    def more(self) -> None:
        """What is in the journal only, once the process is killed."""
        self._client = pulsar.Client(self._process.service_url)
        self._send("log", range(23, 30))
        self._send("once", range(11, 14), producer_name="p1")
        self._client.close()
        for name, texts in (("log", range(23, 30)), ("once", range(11, 14))):
            for left in self.unacknowledged[topic(name)].values():
                left.extend(str(number) for number in texts)

    def _ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        answer = self._http.request(method, path, json=body)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer

    def _make_namespace(self) -> None:
        tenant = {"adminRoles": ["chief"], "allowedClusters": ["standalone"]}
        self._ask("PUT", f"/tenants/{TENANT}", tenant)
        self._ask("PUT", f"/namespaces/{NAMESPACE}")
        for name, value in POLICIES.items():
            self._ask("POST", f"/namespaces/{NAMESPACE}/{name}", value)

    def _send(self, name: str, numbers: range, **options: Any) -> None:
        producer = self._client.create_producer(topic(name), batching_enabled=False, **options)
        for number in numbers:
            where = producer.send(str(number).encode(), sequence_id=number)
            self._note(name, where, str(number))
        producer.close()

    def _note(self, name: str, where: Any, text: str) -> None:
        self.stored.setdefault(topic(name), []).append([position_of(where), text])

    def _acknowledge(self, name: str, subscription: str, numbers: set[int], **options: Any) -> None:
        consumer = self._client.subscribe(
            topic(name),
            subscription,
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            **options,
        )
        texts = [text for _, text in self.stored.get(topic(name), [])]
        for _ in texts:
            message = consumer.receive(30_000)
            if int(message.data()) in numbers:
                consumer.acknowledge(message)
        consumer.close()
        left = [text for text in texts if int(text) not in numbers]
        self.unacknowledged.setdefault(topic(name), {})[subscription] = left

    def _make_holes(self) -> None:
        path = f"/persistent/{NAMESPACE}/log"
        self._ask("PUT", path, PROPERTIES)
        self._send("log", range(1, 23))
        self._acknowledge("log", "all", set())
        self._acknowledge("log", "holes", {1, 2, 3, 5, 8, 13, 21})
        self._ask("PUT", f"{path}/subscription/holes/properties", PROPERTIES)

    def _make_batch(self) -> None:
        producer = self._client.create_producer(
            topic("batch"), batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for number in range(1, 11):
            text = str(number)
            producer.send_async(
                text.encode(), lambda _, where, text=text: self._note("batch", where, text)
            )
        producer.flush()
        producer.close()
        acknowledged = {2, 3, 7}
        self._acknowledge("batch", "some", acknowledged, batch_index_ack_enabled=True)

    def _make_deduplicated(self) -> None:
        self._ask("PUT", f"/persistent/{NAMESPACE}/once")
        self._ask("POST", f"/persistent/{NAMESPACE}/once/deduplicationEnabled", True)
        self._send("once", range(1, 11), producer_name="p1")
        self._send("once", range(1, 4), producer_name="p2")
        self._acknowledge("once", "all", set())

    def _make_schemas(self) -> None:
        for schema in SCHEMAS:
            body = {"type": "AVRO", "schema": json.dumps(schema), "properties": {"k": "v"}}
            self._ask("POST", f"/schemas/{NAMESPACE}/typed/schema", body)

    def _make_delayed(self) -> None:
        self._acknowledge("delayed", "later", set())
        producer = self._client.create_producer(topic("delayed"), batching_enabled=False)
        where = producer.send(b"1", deliver_at=YEAR_2100_MS)
        producer.close()
        self._note("delayed", where, "1")

    def _make_partitioned(self) -> None:
        self._ask("PUT", f"/persistent/{NAMESPACE}/parts/partitions", 3)
        for partition in range(3):
            name = f"parts-partition-{partition}"
            self._send(name, range(1, 4))
            self._acknowledge(name, "all", {2})

    def _make_terminated(self) -> None:
        self._send("ended", range(1, 4))
        self._acknowledge("ended", "all", {1})
        self._ask("POST", f"/persistent/{NAMESPACE}/ended/terminate")

    def _make_offloaded(self) -> None:
        path = f"/persistent/{NAMESPACE}/copied"
        self._send("copied", range(1, 12))
        self._acknowledge("copied", "all", set())
        policies = {
            "managedLedgerOffloadDriver": "filesystem",
            "managedLedgerOffloadDeletionLagInMillis": 0,
        }
        self._ask("POST", f"{path}/offloadPolicies", policies)
        ledgers = self._ask("GET", f"{path}/internalStats").json()["ledgers"]
        where = {"ledgerId": ledgers[-1]["ledgerId"], "entryId": 0, "partitionIndex": -1}
        self._ask("PUT", f"{path}/offload", where)
        _wait_until(lambda: self._ask("GET", f"{path}/offload").json()["status"] == "SUCCESS")
        _wait_until(lambda: self._is_only_copied(path))

    def _is_only_copied(self, path: str) -> bool:
        rows = self._ask("GET", f"{path}/internalStats?metadata=true").json()["ledgers"][:-1]
        return bool(rows) and all(row["offloaded"] and not row.get("metadata") for row in rows)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _store(data: Path, name: str, maker: Maker) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(data, "data")
        archive.add(COPIES, "copies")
    history = {"stored": maker.stored, "unacknowledged": maker.unacknowledged}
    (HERE / f"{name}.json").write_text(json.dumps(history, indent=1) + "\n")


def main() -> None:
    shutil.rmtree(COPIES, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        process = StandaloneProcess(data, *OPTIONS, tree=Path(sys.argv[1]))
        process.start()
        maker = Maker(process)
        try:
            maker.fill()
        except BaseException:
            print(process.log[-3000:])
            process.kill()
            raise
        assert process.stop() == 0
        _store(data, "stopped", maker)
        process.start()
        maker.more()
        process.kill()
        _store(data, "killed", maker)
    shutil.rmtree(COPIES)


if __name__ == "__main__":
    main()
