"""``segments`` in a cluster: by the owner, with the bookies of each part of each ledger."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pulsar
import pytest

from tests.child_process import suspend
from tests.cluster_process import ClusterProcess
from tests.cluster_tools import WAIT_S
from tests.official_client import open_client
from tests.segment_reader import read_everything
from tests.waiting import wait_until

TOPIC = "persistent://public/default/t"
SEGMENTS = "/admin/v2/persistent/public/default/t/segments"
LEDGER_ENTRIES = 40
SILENCE_S = 10
"""After which a bookie counts as failed."""
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": str(LEDGER_ENTRIES),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "bookkeeperClientTimeoutInSeconds": str(SILENCE_S),
}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    words = [word for pair in SETTINGS.items() for word in ("--broker-set", "=".join(pair))]
    process = ClusterProcess(
        tmp_path_factory.mktemp("segments") / "data", "--brokers", "2", "--bookies", "4", *words
    )
    with process:
        yield process


@pytest.fixture
def brokers(cluster: ClusterProcess) -> Iterator[list[httpx.Client]]:
    """HTTP clients that go nowhere else."""
    clients = [httpx.Client(base_url=url, timeout=WAIT_S) for url in cluster.web_urls]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture
def producer(cluster: ClusterProcess) -> Iterator[pulsar.Producer]:
    """Behind a subscription that keeps everything."""
    client = open_client(cluster.service_url, operation_timeout_seconds=int(WAIT_S))
    client.subscribe(TOPIC, "keeps-all").close()
    yield client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=120_000)
    client.close()


class Writer:
    """Publishes numbers, and knows where each of them is."""

    def __init__(self, producer: pulsar.Producer) -> None:
        self._producer = producer
        self._numbers = itertools.count()
        self.sent: list[tuple[int, int, bytes]] = []

    def send(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            payload = b"%06d" % number * (1 + number % 30)
            receipt = self._producer.send(payload)
            self.sent.append((receipt.ledger_id(), receipt.entry_id(), payload))


def segments(brokers: list[httpx.Client], query: str = "") -> dict[str, Any]:
    """The owner's answer, who is found as any client would: by following redirects."""
    answer = brokers[0].get(SEGMENTS + query, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def read(answer: dict[str, Any]) -> list[tuple[int, int, bytes]]:
    return [(x.ledger_id, x.entry_id, x.payload) for x in read_everything(answer)]


def last_ensembles(answer: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer["ledgers"][-1]["metadata"]["ensembles"]
    return found


def test_ledgers_whose_bookies_changed_are_read_past_the_broker(
    cluster: ClusterProcess, brokers: list[httpx.Client], producer: pulsar.Producer
) -> None:
    writer = Writer(producer)
    writer.send(2 * LEDGER_ENTRIES + 10)
    answer = segments(brokers)
    assert [x["entries"] for x in answer["ledgers"]] == [LEDGER_ENTRIES, LEDGER_ENTRIES, 10]
    assert all(x["metadata"]["ensembleSize"] == 3 for x in answer["ledgers"])
    named = {
        bookie
        for row in answer["ledgers"]
        for part in row["metadata"]["ensembles"]
        for bookie in part["bookies"]
    }
    assert set(answer["bookies"]) == named
    assert len({(x["host"], x["port"]) for x in answer["bookies"].values()}) == len(named)
    assert answer["instanceId"]
    assert "bookieToken" not in answer
    assert read(answer) == writer.sent
    owner_answers_and_the_other_sends_there(brokers)

    # In the middle of a ledger one of its bookies stops answering; another one takes its place.
    lost = last_ensembles(answer)[-1]["bookies"][0]
    process = cluster.children()[lost]
    suspend(process.pid)
    try:
        go_on_without(lost, brokers, writer)
    finally:
        process.resume()
    process_is_back(process, lost, brokers)

    move_to_the_other(brokers)
    moved = segments(brokers)
    assert moved["lastConfirmed"] == position(writer)
    assert all(x["closedAt"] > 0 for x in moved["ledgers"])
    writer.send(5)
    later = segments(brokers, f"?fromLedger={moved['lastConfirmed']['ledgerId'] + 1}")
    assert [x["entries"] for x in later["ledgers"]] == [5]
    assert later["first"] == moved["first"]
    assert read(segments(brokers)) == writer.sent


def position(writer: Writer) -> dict[str, int]:
    ledger_id, entry_id, _ = writer.sent[-1]
    return {"ledgerId": ledger_id, "entryId": entry_id}


def owner_answers_and_the_other_sends_there(brokers: list[httpx.Client]) -> None:
    query = "?fromLedger=7&locations=false"
    answers = [each.get(SEGMENTS + query) for each in brokers]
    assert sorted(each.status_code for each in answers) == [200, 307]
    (other,) = (each for each in answers if each.status_code == 307)
    assert other.headers["Location"].split("/admin")[1] == f"{SEGMENTS}{query}"[len("/admin") :]


def go_on_without(lost: str, brokers: list[httpx.Client], writer: Writer) -> None:
    before, ensembles = len(writer.sent), len(last_ensembles(segments(brokers)))
    next_s = 0.0

    def is_replaced() -> bool:
        """What is silent is replaced by the first append after its time is over."""
        nonlocal next_s
        # Not more than the ledger has room for: its bookie is to be replaced.
        if time.monotonic() > next_s and len(writer.sent) - before < LEDGER_ENTRIES // 2:
            writer.send(1)
            next_s = time.monotonic() + SILENCE_S / 2
        return len(last_ensembles(segments(brokers))) > ensembles

    wait_until(is_replaced, "another bookie takes its place", WAIT_S)
    writer.send(LEDGER_ENTRIES)
    wait_until(lambda: lost not in segments(brokers)["bookies"], "it is known to be away", WAIT_S)
    answer = segments(brokers)
    assert answer["lastConfirmed"] == position(writer)
    (changed,) = (x for x in answer["ledgers"] if x["ledgerId"] == writer.sent[before][0])
    first, *_, last = changed["metadata"]["ensembles"]
    assert first["firstEntry"] == 0 < last["firstEntry"]
    assert lost not in last["bookies"]
    assert read(answer) == writer.sent


def process_is_back(process: psutil.Process, lost: str, brokers: list[httpx.Client]) -> None:
    assert process.is_running()

    def is_known() -> bool:
        """Unless its ledgers were copied to others meanwhile."""
        answer = segments(brokers)
        return f'"{lost}"' not in json.dumps(answer["ledgers"]) or lost in answer["bookies"]

    wait_until(is_known, "it is back", WAIT_S)


def move_to_the_other(brokers: list[httpx.Client]) -> None:
    """The bundle goes to whom it isn't at."""
    answers = [each.get(SEGMENTS + "?locations=false") for each in brokers]
    (other,) = (
        each for each, answer in zip(brokers, answers, strict=True) if answer.status_code == 307
    )
    host = str(other.base_url).removeprefix("http://").rstrip("/")
    bundle = brokers[0].get(f"/lookup/v2/topic/{TOPIC.replace('://', '/')}/bundle").text
    unload = f"/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker={host}"
    done = brokers[0].put(unload, follow_redirects=True)
    assert done.status_code == 204, done.text

    def is_there() -> bool:
        return other.get(SEGMENTS + "?locations=false&authoritative=false").status_code == 200

    wait_until(is_there, "the other broker serves it", WAIT_S)
