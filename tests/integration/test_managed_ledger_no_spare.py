"""Three bookies, all of which every entry is sent to: one is killed, and nobody can take its place.

What clients see then is told in docs/guides/ledgers.md, "No bookie to spare".
"""

import asyncio
import time
from pathlib import Path

import pytest

from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.managed_ledger.cursor.cursor_store import NO_LEDGER
from magnetar.managed_ledger.stored_info import ROOT, read_stored
from magnetar.metadata.store import MetadataStore
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.cluster_tools import all_go_on, stop_and_check
from tests.cluster_traffic import TopicTraffic
from tests.raw_client import RawClient
from tests.waiting import wait_until

TOPICS = [f"persistent://public/default/no-spare-{number}" for number in range(2)]
SESSION = ("--set", "metadataStoreSessionTimeoutMillis=12000")
WAIT_S = 300
"""A producer that is refused comes back after pauses of up to a minute."""
ATTEMPTS = 10


def broker_of(folder: Path, url: str, delay_change: str) -> BrokerProcess:
    """Its ledgers are full after 20 entries, and those of its cursors after 30."""
    settings = {
        "managedLedgerDefaultEnsembleSize": "3",
        "managedLedgerDefaultWriteQuorum": "3",
        "managedLedgerDefaultAckQuorum": "2",
        "managedLedgerMaxEntriesPerLedger": "20",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
        "managedLedgerCursorMaxEntriesPerLedger": "30",
        "bookkeeper_delayEnsembleChange": delay_change,
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return BrokerProcess(folder / "broker", url, *SESSION, *options)


def refusal_of(service_url: str, topic: str) -> pb.CommandError | None:
    """What a new producer is told; None: it is let in."""
    with RawClient(service_url) as client:
        client.look_up(topic)
        answer = client.create_producer(topic)
        return answer if isinstance(answer, pb.CommandError) else None


def wait_until_refused(service_url: str, topic: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while (refusal := refusal_of(service_url, topic)) is None or "missing" not in refusal.message:
        assert time.monotonic() < deadline, refusal
        time.sleep(0.1)
    assert refusal.error == pb.PersistenceError
    assert refusal.message.endswith("3 bookies are asked for, 1 are missing"), refusal


async def ledger_ids(url: str) -> set[int]:
    async with connect_ledgers(url) as ledgers:
        return {ledger_id async for ledger_id in ledgers.ids()}


async def named_ledgers(store: MetadataStore) -> set[int]:
    """Those that a topic's list or a cursor's node names."""
    names = [""]
    for _ in range(4):  # tenant, namespace, domain, topic
        names = [f"{n}/{x}" for n in names for x in await store.children(f"{ROOT}{n}")]
    found = set[int]()
    for name in names:
        if (stored := await read_stored(store, name.removeprefix("/"))) is not None:
            found |= {x.ledger_id for x in stored.info.ledgers} | set(stored.info.doomed)
            found |= {x.node.ledger_id for x in stored.cursors.values()}
    return found - {NO_LEDGER}


async def unnamed_ledgers(url: str) -> set[int]:
    """What is left when deletions under way have had their time."""
    async with connect_ledgers(url) as ledgers:
        deadline = time.monotonic() + WAIT_S
        while True:
            there = {ledger_id async for ledger_id in ledgers.ids()}
            leaked = there - await named_ledgers(ledgers.store)
            if not leaked or time.monotonic() > deadline:
                return leaked
            await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("delay_change", ["false", "true"])
def test_producers_go_on_when_it_is_back(
    tmp_path: Path, url: str, bookies: list[BookieProcess], delay_change: str
) -> None:
    with broker_of(tmp_path, url, delay_change) as broker:
        traffic = [
            TopicTraffic(broker.service_url, topic, 1 + 49 * n, 0.02, 3 * WAIT_S)
            for n, topic in enumerate(TOPICS)
        ]
        for each in traffic:
            each.start()
        wait_until(lambda: all(each.consumed for each in traffic), "the start", WAIT_S)
        all_go_on(traffic, "the start")
        bookies[2].kill()
        for topic in TOPICS:
            wait_until_refused(broker.service_url, topic)

        # Every producer that comes back asks again, and none of it makes a ledger.
        before = asyncio.run(ledger_ids(url))
        for _ in range(ATTEMPTS):
            for topic in TOPICS:
                assert refusal_of(broker.service_url, topic) is not None
        made = asyncio.run(ledger_ids(url)) - before
        assert len(made) < ATTEMPTS // 2, "more than a few that were under way at the first look"

        bookies[2].start()
        marks = [each.acknowledged for each in traffic]
        wait_until(
            lambda: all(x.acknowledged > y for x, y in zip(traffic, marks, strict=True)),
            "everybody is let in again",
            WAIT_S,
        )
        all_go_on(traffic, "the bookie is back")
        stop_and_check(broker.service_url, traffic)
        assert not asyncio.run(unnamed_ledgers(url)), broker.log[-4000:]
