"""Copies of ledgers by a real process: filled, offloaded, killed in between, read by the client."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

SETTINGS = (
    *("--set", "managedLedgerMaxEntriesPerLedger=20"),
    *("--set", "managedLedgerMinLedgerRolloverTimeMinutes=0"),
)
NAMESPACE = "public/copies"
TOPIC = f"persistent://{NAMESPACE}/t"
PATH = f"/persistent/{NAMESPACE}/t"
FILESYSTEM = {"managedLedgerOffloadDriver": "filesystem"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path / "data", *SETTINGS) as process:
        yield process


def admin(server: StandaloneProcess) -> httpx.Client:
    return httpx.Client(base_url=server.admin_url + "/admin/v2", timeout=30)


def make(server: StandaloneProcess, policies: dict[str, Any]) -> None:
    """A namespace that keeps everything and copies as ``policies`` say."""
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    with admin(server) as http:
        assert http.put(f"/namespaces/{NAMESPACE}").status_code == 204
        assert http.post(f"/namespaces/{NAMESPACE}/retention", json=kept).status_code == 204
        if policies:
            answer = http.post(f"/namespaces/{NAMESPACE}/offloadPolicies", json=policies)
            assert answer.status_code == 204, answer.text


def message(number: int) -> bytes:
    return b"%06d" % number + bytes([number % 251]) * (100 + number % 700)


def fill(server: StandaloneProcess, first: int, end: int) -> None:
    client = pulsar.Client(server.service_url, operation_timeout_seconds=30)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(first, end):
        producer.send_async(message(number), lambda *_: None)
    producer.flush()
    client.close()


def read(server: StandaloneProcess, end: int) -> None:
    """From the beginning, with the official client."""
    client = pulsar.Client(server.service_url, operation_timeout_seconds=30)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    for number in range(end):
        assert reader.read_next(30_000).data() == message(number)
    assert not reader.has_message_available()
    client.close()


def ledgers(http: httpx.Client) -> list[dict[str, Any]]:
    answer = http.get(f"{PATH}/internalStats")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["ledgers"]
    return found


def all_forgotten(http: httpx.Client) -> bool:
    """Whether bookies have no ledger any more but the last."""
    rows = http.get(f"{PATH}/internalStats?metadata=true").json()["ledgers"][:-1]
    return all(x["offloaded"] and not x.get("metadata") for x in rows)


def status(http: httpx.Client) -> dict[str, Any]:
    answer = http.get(f"{PATH}/offload")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def files(server: StandaloneProcess) -> list[str]:
    root = server.data / "offloaded"
    return sorted(x.name for x in root.rglob("*") if x.is_file())


def test_by_hand(server: StandaloneProcess) -> None:
    make(server, {})
    fill(server, 0, 105)
    with admin(server) as http:
        wait_until(lambda: [x["entries"] for x in ledgers(http)] == [20] * 5 + [0])
        listed = ledgers(http)
        where = {"ledgerId": listed[3]["ledgerId"], "entryId": 0, "partitionIndex": -1}
        assert status(http)["status"] == "NOT_RUN"
        assert http.put(f"{PATH}/offload", json=where).status_code == 204
        wait_until(lambda: status(http)["status"] == "ERROR")  # as Pulsar without an offloader
        assert "no offload driver is set" in status(http)["lastError"]
        set_up = http.post(f"{PATH}/offloadPolicies", json=FILESYSTEM)
        assert set_up.status_code == 204
        assert http.put(f"{PATH}/offload").status_code == 400
        assert http.put(f"{PATH}/offload", json=where).status_code == 204
        wait_until(lambda: status(http)["status"] != "RUNNING")
        assert status(http) == {
            "status": "SUCCESS",
            "lastError": "",
            "firstUnoffloadedMessage": {
                **where,
                "batchSize": 0,
                "batchIndex": -1,
            },
        }
        assert [x["offloaded"] for x in ledgers(http)] == [True] * 3 + [False] * 3
        info = http.get(f"{PATH}/internal-info").json()["ledgers"]
        assert [x["isOffloaded"] for x in info] == [True] * 3 + [False] * 3
        stats = http.get(f"{PATH}/stats").json()
        assert stats["offloadedStorageSize"] == sum(x["size"] for x in listed[:3])
        assert stats["lastOffloadLedgerId"] == listed[2]["ledgerId"]
        assert stats["lastOffloadSuccessTimeStamp"] > 0
        metrics = httpx.get(server.admin_url + "/metrics", timeout=60).text
        assert f'/t"}} {stats["offloadedStorageSize"]}' in "\n".join(
            x for x in metrics.splitlines() if x.startswith("pulsar_storage_offloaded_size{")
        )
        assert re.search(r'pulsar_ledger_offloader_copies_total{.*driver="filesystem"} 3', metrics)
        uuids = [x["offloadedContextUuid"] for x in info[:3]]
        assert files(server) == sorted(
            f"{x['ledgerId']}-{uuid}.{kind}"
            for x, uuid in zip(info[:3], uuids, strict=True)
            for kind in ("data", "index")
        )
        read(server, 105)
        assert http.delete(f"{PATH}?force=true").status_code == 204
        wait_until(lambda: files(server) == [])


def test_killed_in_the_middle_again_and_again(server: StandaloneProcess) -> None:
    at_once = {
        **FILESYSTEM,
        "managedLedgerOffloadThresholdInBytes": 0,
        "managedLedgerOffloadDeletionLagInMillis": 0,
    }
    make(server, at_once)
    count = 0
    for _ in range(4):
        fill(server, count, count + 130)  # copies are made meanwhile
        count += 130
        server.kill()
        server.start()
        with admin(server) as http:
            http.get(f"{PATH}/stats")  # loads the topic: the new owner goes on
    with admin(server) as http:
        wait_until(lambda: all_forgotten(http))
        wait_until(lambda: len(files(server)) == 2 * len(ledgers(http)[:-1]))
        assert not any(".writing" in x for x in files(server))
    read(server, count)
    server.stop()
    server.start()
    read(server, count)


def test_a_damaged_copy_is_a_clear_error(server: StandaloneProcess) -> None:
    at_once = {
        **FILESYSTEM,
        "managedLedgerOffloadThresholdInBytes": 0,
        "managedLedgerOffloadDeletionLagInMillis": 0,
    }
    make(server, at_once)
    fill(server, 0, 50)
    with admin(server) as http:
        wait_until(lambda: len(ledgers(http)) == 3 and all_forgotten(http))
    server.stop()
    (data,) = (server.data / "offloaded").rglob(first_data(server))
    spoilt = bytearray(data.read_bytes())
    spoilt[200] ^= 1
    data.write_bytes(spoilt)
    server.start()
    client = pulsar.Client(server.service_url, operation_timeout_seconds=30)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    with pytest.raises(pulsar.Timeout):
        reader.read_next(3000)
    client.close()
    wait_until(lambda: f"{data.name}: entry 0 of ledger" in server.log)
    data.write_bytes(bytes(b ^ (1 if at == 200 else 0) for at, b in enumerate(spoilt)))
    read(server, 50)


def first_data(server: StandaloneProcess) -> str:
    return min(
        (x for x in files(server) if x.endswith(".data")), key=lambda x: int(x.split("-")[0])
    )


def test_policies_as_pulsar_answers(server: StandaloneProcess) -> None:
    make(server, {})
    path = f"/namespaces/{NAMESPACE}"
    with admin(server) as http:
        assert http.get(f"{path}/offloadThreshold").json() == -1
        assert http.put(f"{path}/offloadThreshold", json=100).status_code == 204
        assert http.put(f"{path}/offloadThresholdInSeconds", json=50).status_code == 204
        assert http.put(f"{path}/offloadDeletionLagMs", json=1000).status_code == 204
        found = http.get(f"{path}/offloadPolicies").json()
        assert found["managedLedgerOffloadThresholdInBytes"] == 100
        assert found["fileSystemDriver"] is False
        assert http.get(path).json()["offload_policies"] == found
        assert http.get(path).json()["offload_threshold"] == -1
        for body, reason in (
            ({"managedLedgerOffloadDriver": "nope"}, "The driver is not supported"),
            ({"managedLedgerOffloadDriver": "aws-s3"}, "The bucket must be specified"),
            ({**FILESYSTEM, "fileSystemURI": "file:///etc"}, "is not below"),
            (None, "The offloadPolicies must be specified for namespace offload."),
        ):
            answer = http.post(f"{path}/offloadPolicies", json=body)
            assert (answer.status_code, reason in answer.json()["reason"]) == (412, True)
        assert http.delete(f"{path}/removeOffloadPolicies").status_code == 204
        assert http.get(f"{path}/offloadPolicies").status_code == 204
        assert http.get(f"{path}/offloadThreshold").json() == -1
        assert http.get(f"{path}/scanOffloadedLedgers").status_code == 501
