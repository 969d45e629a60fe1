"""Compacted ledgers that are offloaded: read from their copies, replaced and deleted with them."""

from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.interop.conftest import Admin
from tests.official_client import client_of
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

TOPIC = "persistent://public/default/prices"
OFFLOAD = {
    "managedLedgerOffloadDriver": "filesystem",
    "managedLedgerOffloadThresholdInBytes": 0,
    "managedLedgerOffloadDeletionLagInMillis": 0,
}


def _send(client: pulsar.Client, pairs: list[tuple[str, str]]) -> None:
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for key, value in pairs:
        producer.send(value.encode(), partition_key=key)
    producer.close()


def _view(client: pulsar.Client) -> list[tuple[str, str]]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(30_000)
        found.append((message.partition_key(), message.data().decode()))
    reader.close()
    return found


class Table:
    """The topic, by REST."""

    def __init__(self, server: StandaloneProcess) -> None:
        self.admin, self._data = Admin(server.admin_url), server.data
        self.path = self.admin.topic_path(TOPIC)

    def compact(self) -> None:
        assert self.admin.call("PUT", f"{self.path}/compaction")[0] == 204
        wait_until(lambda: self.admin.call("GET", f"{self.path}/compaction")[1] == _SUCCESS)

    @property
    def ledger(self) -> dict[str, Any]:
        answer = self.admin.call("GET", f"{self.path}/internalStats")[1]
        found: dict[str, Any] = answer["compactedLedger"]
        return found

    @property
    def row(self) -> dict[str, Any]:
        query = "?locations=true&compacted=true"
        found: dict[str, Any] = self.admin.call("GET", f"{self.path}/segments{query}")[1]
        row: dict[str, Any] = found["compacted"]
        return row

    def is_elsewhere_only(self) -> bool:
        row = self.row
        return "metadata" not in row and bool(row["copy"]["isOnly"])

    def copies(self) -> set[int]:
        """Ledgers with objects in the store."""
        files = (self._data / "offloaded").rglob("*.data")
        return {int(each.name.partition("-")[0]) for each in files}


_SUCCESS = {"status": "SUCCESS", "lastError": ""}


@pytest.mark.parametrize("by_hand", [False, True])
def test_offloaded_replaced_and_deleted(tmp_path: Path, by_hand: bool) -> None:
    with StandaloneProcess(tmp_path / "data") as server, client_of(server.service_url) as client:
        table = Table(server)
        policies = dict(OFFLOAD)
        if by_hand:
            del policies["managedLedgerOffloadThresholdInBytes"]
        _send(client, [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", "")])
        table.compact()
        assert table.ledger["offloaded"] is False
        assert table.admin.call("POST", f"{table.path}/offloadPolicies", policies)[0] == 204
        _send(client, [("d", "1")])
        table.compact()
        if by_hand:
            last = table.admin.call("GET", f"{table.path}/lastMessageId")[1]
            where = {"ledgerId": last["ledgerId"], "entryId": 0, "partitionIndex": -1}
            assert table.admin.call("PUT", f"{table.path}/offload", where)[0] == 204
        wait_until(table.is_elsewhere_only)
        first = table.ledger
        assert (first["offloaded"], first["entries"]) == (True, 3)
        assert table.copies() == {first["ledgerId"]}
        expected = [("b", "1"), ("a", "2"), ("d", "1")]
        assert _view(client) == expected, "from the copy"
        server.kill()
        server.start(same_ports=True)
        table = Table(server)
        assert _view(client) == expected, "by another owner"
        assert table.ledger == first
        _send(client, [("b", ""), ("e", "1")])
        table.compact()
        expected = [("a", "2"), ("d", "1"), ("e", "1")]
        assert _view(client) == expected
        if not by_hand:
            wait_until(table.is_elsewhere_only)
            wait_until(lambda: table.copies() == {table.ledger["ledgerId"]})
            assert table.ledger["ledgerId"] > first["ledgerId"]
            assert _view(client) == expected
        else:
            wait_until(lambda: table.copies() == set())
        assert table.admin.call("DELETE", f"{table.path}?force=true")[0] == 204
        wait_until(lambda: table.copies() == set())
