"""When a broker says that clients should be sent to it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.service import readiness
from magnetar.broker.service.readiness import NotReady, Readiness
from magnetar.loadbalance.registry import BROKERS_ROOT
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import SessionLostError

PATH = f"{BROKERS_ROOT}/b:8080"


class Broker:
    """What ``Readiness`` asks; ``store`` is its session."""

    def __init__(self, *, shares: bool = True) -> None:
        base = EmbeddedMetadataStore.open(None)
        self.base, self.store = base, base.new_session()
        self.service = SimpleNamespace(
            ready=True,
            broker_id="b:8080",
            store=self.store,
            sharing=object() if shares else None,
            loop=asyncio.get_running_loop(),
        )
        self.readiness = Readiness(cast(Any, self.service))

    async def reason(self) -> str:
        trouble = await self.readiness.trouble()
        return "" if trouble is None else trouble.reason


async def test_a_broker_of_a_cluster_has_to_be_registered() -> None:
    broker = Broker()
    assert "not registered" in await broker.reason()
    await broker.base.put(PATH, b"{}", ephemeral=True)
    assert "not registered" in await broker.reason(), "another session's"
    await broker.base.delete(PATH)
    await broker.store.put(PATH, b"{}", ephemeral=True)
    assert await broker.reason() == ""


async def test_one_alone_needs_no_registration() -> None:
    assert await Broker(shares=False).reason() == ""


async def test_before_and_after_it_serves() -> None:
    broker = Broker(shares=False)
    broker.service.ready = False
    assert await broker.reason() == "starting or stopping"
    broker.service.ready = broker.readiness.is_draining = True
    assert "draining" in await broker.reason()


async def test_a_store_in_trouble_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()

    async def lost(_: str) -> None:
        raise SessionLostError("5")

    monkeypatch.setattr(broker.store, "get", lost)
    assert "session 5 is lost" in await broker.reason()
    trouble = await broker.readiness.trouble()
    assert trouble is not None
    assert trouble.lacks_store


async def test_a_store_that_hangs_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_ANSWER_S_MAX", 0.05)
    broker, asked, answers = Broker(shares=False), list[str](), asyncio.Event()

    async def hang(path: str) -> None:
        asked.append(path)
        await answers.wait()

    monkeypatch.setattr(broker.store, "get", hang)
    for _ in range(3):
        trouble = await broker.readiness.trouble()
        assert trouble == NotReady("the metadata store doesn't answer", lacks_store=True)
    assert len(asked) == 1
    answers.set()
    assert await broker.reason() == ""
    assert len(asked) == 1, "the answer that was waited for"
    assert await broker.reason() == ""
    assert len(asked) == 2, "and then a new one"
    broker.readiness.close()
