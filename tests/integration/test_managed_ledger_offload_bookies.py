"""Ledgers of real bookies copied out with the words of the command line, and read back by the next
broker, which sees the same directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.broker.cli.main import main
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.cluster_tools import WAIT_S, get
from tests.waiting import wait_until

NAMESPACE = "public/copied"
TOPIC = f"persistent://{NAMESPACE}/t"
SESSION = ("--set", "metadataStoreSessionTimeoutMillis=12000")
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
COUNT = 105
BOOKIES = 2


@pytest.fixture
def brokers(
    tmp_path: Path, url: str, bookies: list[BookieProcess]
) -> Iterator[list[BrokerProcess]]:
    """Two, of which none runs."""
    settings = {**SETTINGS, "fileSystemURI": f"file://{tmp_path}/copies"}
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with contextlib.ExitStack() as stack:
        found = [BrokerProcess(tmp_path / f"broker-{n}", url, *SESSION, *options) for n in range(2)]
        for broker in found:
            stack.push(broker)
        yield found


def message(number: int) -> bytes:
    return b"%06d" % number + bytes([number % 251]) * (100 + number)


def fill(broker: BrokerProcess) -> None:
    client = pulsar.Client(broker.service_url)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(COUNT):
        producer.send(message(number))
    client.close()


def read(broker: BrokerProcess) -> None:
    """From the beginning, with the official client."""
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=120)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    for number in range(COUNT):
        assert reader.read_next(60_000).data() == message(number)
    assert not reader.has_message_available()
    client.close()


class Copies:
    """The topic's copies as operators look at them."""

    def __init__(self, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self._url, self._capsys = broker.admin_url, capsys

    def admin(self, line: str) -> str:
        assert main(["admin", "--admin-url", self._url, *line.split(" ")]) == 0, line
        return self._capsys.readouterr().out

    def rows(self) -> list[dict[str, object]]:
        answer = get(f"{self._url}/admin/v2/{TOPIC.replace('://', '/')}/internalStats")
        assert answer is not None
        found: list[dict[str, object]] = json.loads(answer)["ledgers"]
        return found

    def copied(self) -> list[object]:
        return [x["offloaded"] for x in self.rows()]


async def ledger_ids(url: str) -> set[int]:
    async with connect_ledgers(url) as ledgers:
        return {ledger_id async for ledger_id in ledgers.ids()}


@pytest.mark.slow
def test_copied_by_hand_then_by_policy_and_read_by_the_next_broker(
    url: str, brokers: list[BrokerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = brokers
    first.start()
    copies = Copies(first, capsys)
    copies.admin(f"namespaces create {NAMESPACE}")
    copies.admin(f"namespaces set-retention {NAMESPACE} -t -1 -s -1")
    copies.admin(f"namespaces set-offload-policies {NAMESPACE} -d filesystem -oae 1h")
    fill(first)
    wait_until(lambda: len(copies.rows()) == 6, "five ledgers are full", WAIT_S)

    sizes = [int(str(x["size"])) for x in copies.rows()]
    copies.admin(f"topics offload {TOPIC} -s {sizes[3] + sizes[4]}")
    assert "SUCCESS" in copies.admin(f"topics offload-status -w {TOPIC}")
    assert copies.copied() == [True, True, True, False, False, False]
    there = {int(str(x["ledgerId"])) for x in copies.rows()}
    assert there <= asyncio.run(ledger_ids(url)), "bookies keep theirs for the lag"

    copies.admin(f"namespaces set-offload-threshold {NAMESPACE} -s 0")
    wait_until(lambda: copies.copied() == [True] * 5 + [False], "the rest is copied", WAIT_S)
    copies.admin(f"namespaces set-offload-deletion-lag {NAMESPACE} -l 0s")
    last = int(str(copies.rows()[-1]["ledgerId"]))
    wait_until(
        lambda: there & asyncio.run(ledger_ids(url)) == {last}, "bookies forget theirs", WAIT_S
    )
    read(first)

    first.kill()
    second.start()
    read(second)
    assert Copies(second, capsys).copied()[:5] == [True] * 5
