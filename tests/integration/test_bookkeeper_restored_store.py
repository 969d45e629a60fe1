"""A broker, three bookies and a real ZooKeeper whose nodes go back to an older state."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pulsar

from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.official_client import open_client

SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")
ROOTS = ("/ledgers", "/managed-ledgers")
ALIVE = ("/ledgers/available", "/ledgers/cookies", "/ledgers/INSTANCEID")  # of bookies, not data


async def _walk(store: MetadataStore, path: str, found: dict[str, bytes]) -> None:
    if path in ALIVE:
        return
    node = await store.get(path)
    if node is not None:
        found[path] = node.value
        for name in await store.children(path):
            await _walk(store, f"{path}/{name}", found)


async def _read(url: str) -> dict[str, bytes]:
    store = await connect_store(url)
    found: dict[str, bytes] = {}
    try:
        for root in ROOTS:
            await _walk(store, root, found)
    finally:
        await store.close()
    return found


async def _restore(url: str, snapshot: dict[str, bytes]) -> None:
    now = await _read(url)
    store = await connect_store(url)
    try:
        for path in sorted(now.keys() - snapshot.keys(), reverse=True):
            await store.delete(path)
        for path, value in snapshot.items():
            if now.get(path) != value:
                await store.put(path, value)
    finally:
        await store.close()


def _connect(broker: BrokerProcess) -> pulsar.Client:
    return open_client(broker.service_url)


def _produce(broker: BrokerProcess, topic: str, count: int) -> None:
    with contextlib.closing(_connect(broker)) as client:
        client.subscribe(topic, "keep").close()
        producer = client.create_producer(topic, batching_enabled=False)
        for _ in range(count):
            producer.send(topic.encode())


def _consumed(broker: BrokerProcess, topic: str) -> dict[str, int]:
    """What a reader from the beginning is given."""
    with contextlib.closing(_connect(broker)) as client:
        reader, seen = client.create_reader(topic, pulsar.MessageId.earliest), Counter[str]()
        while reader.has_message_available():
            seen[reader.read_next(20_000).data().decode()] += 1
        return dict(seen)


def test_no_topic_is_given_another_ones_messages(
    tmp_path: Path, url: str, bookies: list[BookieProcess]
) -> None:
    """The counter of ids and the newest ledgers are gone; bookies have their entries."""
    with contextlib.ExitStack() as stack:
        with BrokerProcess(tmp_path / "broker", url, *SESSION) as broker:
            _produce(broker, "public/default/before", 50)
        snapshot = asyncio.run(_read(url))
        broker = stack.enter_context(BrokerProcess(tmp_path / "lost", url, *SESSION))
        _produce(broker, "public/default/lost", 60)
        broker.kill()
        asyncio.run(_restore(url, snapshot))
        for bookie in bookies[:2]:
            bookie.kill()
            bookie.start()
        broker = stack.enter_context(BrokerProcess(tmp_path / "after", url, *SESSION))
        _produce(broker, "public/default/after", 20)
        assert any("two ledgers share the id" in bookie.log for bookie in bookies)
        broker.kill()  # so that its ledgers are recovered
        broker = stack.enter_context(BrokerProcess(tmp_path / "last", url, *SESSION))
        for topic, expected in (("before", 50), ("after", 20), ("lost", 0)):
            name = f"public/default/{topic}"
            assert _consumed(broker, name) == ({name: expected} if expected else {})
