"""State of bookies over HTTP: those that answer, those that don't, those that are gone."""

import asyncio
from typing import Any

import pytest

from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.client.bookie_states import bookie_states
from magnetar.bookkeeper.client.pool import BookiePool, UnreachableBookie
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.service_info import COOKIES_PATH, ServiceInfo
from magnetar.bookkeeper.transport import BookieStatus
from magnetar.broker.http.server.app import create_app
from magnetar.broker.service.bookie_cluster import BookieCluster
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of

PATH = "/admin/v2/bookies/state"


class _Answering(UnreachableBookie):
    def __init__(self, status: BookieStatus) -> None:
        super().__init__(status.bookie_id)
        self.status = status

    async def info(self) -> BookieStatus:
        return self.status


class _Silent(UnreachableBookie):
    async def info(self) -> BookieStatus:
        return await asyncio.Future()


def pool_of(*clients: BookieClient) -> BookiePool:
    pool = BookiePool()
    for client in clients:
        pool.add(client)
    return pool


async def shown(broker: Broker) -> dict[str, Any]:
    async with client_of(create_app(broker.service), "admin") as client:
        answer = await client.get(PATH)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_each_bookie_has_its_state(
    authorized: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(
        _Answering(BookieStatus("b0:1", False, 30, 100, 5, "1.2", 250, 1500)),
        UnreachableBookie("b1:1"),
    )
    pool.infos["b0:1"] = ServiceInfo("b0:1", "/default-zone/rack-1", ("10.0.0.1", 3181))
    monkeypatch.setattr(pool, "is_registered", lambda name: name in ("b0:1", "b1:1", "b2:1"))
    pool.use(_Answering(BookieStatus("b2:1", True, 1, 100)))
    await authorized.service.store.put(f"{COOKIES_PATH}/b2:1", b"")
    await authorized.service.store.put(f"{COOKIES_PATH}/b9:1", b"")
    monkeypatch.setattr(pool.health, "is_quarantined", lambda name: name == "b1:1")
    cluster = BookieCluster(pool, authorized.service.store)
    monkeypatch.setattr(authorized.service, "bookie_cluster", cluster)
    answer = await shown(authorized)
    first, silent, full, gone = (each for each in answer["bookies"] if each["bookieId"][0] == "b")
    assert first.pop("answerMs") >= 0
    assert first == {
        "bookieId": "b0:1",
        "state": "writable",
        "location": "/default-zone/rack-1",
        "address": "10.0.0.1:3181",
        "quarantined": False,
        "freeBytes": 30,
        "totalBytes": 100,
        "addLatencyMs": {"p50": 0.25, "p99": 1.5},
        "version": "1.2",
        "error": None,
    }
    assert (silent["state"], silent["quarantined"]) == ("writable", True)
    assert (silent["freeBytes"], silent["answerMs"]) == (None, None)
    assert silent["error"]
    assert (full["state"], full["freeBytes"], full["addLatencyMs"]) == ("readOnly", 1, None)
    assert (gone["bookieId"], gone["state"], gone["error"]) == ("b9:1", "absent", None)
    assert answer["repair"] is None


async def test_a_bookie_that_says_nothing_is_given_up(authorized: Broker) -> None:
    pool = pool_of(_Silent("b0:1"), _Answering(BookieStatus("b1:1", False, 3, 4)))
    now_ms = iter(range(100))
    silent, other = await bookie_states(
        pool, authorized.service.store, answer_s=0.0, clock_ms=lambda: next(now_ms)
    )
    assert (silent.status, silent.error) == (None, "no answer within 0 s")
    assert other.status is not None
    assert 0 <= other.asked_ms < other.answered_ms


async def test_ledgers_that_need_repair_are_counted(
    authorized: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = authorized.service
    cluster = BookieCluster(BookiePool(), service.store, has_auto_recovery=True)
    monkeypatch.setattr(service, "bookie_cluster", cluster)
    assert (await shown(authorized))["repair"] == {
        "enabled": True,
        "offReason": None,
        "offSince": None,
        "auditor": None,
        "ledgers": 0,
        "lostBookieRecoveryDelay": None,
    }
    markers = UnderReplicationStore(service.store, lambda: 1_700_000_000_000)
    for ledger_id in (3, 4, 1 << 40):
        await markers.mark(ledger_id, ["b0:1"])
    await markers.disable("new racks")
    await markers.set_lost_bookie_delay_s(90)
    repair = (await shown(authorized))["repair"]
    assert (repair["ledgers"], repair["enabled"], repair["offReason"]) == (3, False, "new racks")
    assert repair["offSince"] == 1_700_000_000_000
    assert repair["lostBookieRecoveryDelay"] == 90


async def test_only_superusers_see_them(authorized: Broker) -> None:
    for role, status in ((None, 401), ("nobody", 401), ("ten", 401), ("admin", 200)):
        async with client_of(create_app(authorized.service), role) as client:
            assert (await client.get(PATH)).status_code == status
