"""The last changes over HTTP: own ones, those of other brokers, and who may see them."""

from typing import Any

import pytest

from magnetar.broker.http.server.app import create_app
from magnetar.bundles.lookup import BrokerLookup
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of

PATH = "/admin/v2/audit"


async def test_superusers_see_the_last_changes(authorized: Broker) -> None:
    app = create_app(authorized.service)
    async with client_of(app, "ten") as client:
        assert (await client.put("/admin/v2/namespaces/t1/a")).status_code == 403
        assert (await client.post("/admin/v2/namespaces/t1/ns/messageTTL", json=5)).is_success
        assert (await client.get(PATH)).status_code == 401
    for role in (None, "nobody", "prod"):
        async with client_of(app, role) as client:
            assert (await client.get(PATH)).status_code == 401
    async with client_of(app, "admin") as client:
        assert (await client.delete("/admin/v2/namespaces/t1/ns?force=x")).status_code == 204

        async def shown(**query: Any) -> list[tuple[str, str, int]]:
            answer = (await client.get(PATH, params=query)).json()
            assert answer["failed"] == {}
            assert list(answer["since"]) == [authorized.service.broker_id]
            assert {each["broker"] for each in answer["changes"]} <= set(answer["since"])
            return [(each["role"], each["path"], each["status"]) for each in answer["changes"]]

        deleted = ("admin", "/admin/v2/namespaces/t1/ns?force=x", 204)
        changed = ("ten", "/admin/v2/namespaces/t1/ns/messageTTL", 204)
        refused = ("ten", "/admin/v2/namespaces/t1/a", 403)
        assert await shown() == [deleted, changed, refused]
        assert await shown(role="ten", local="true") == [changed, refused]
        assert await shown(path="/ns") == [deleted, changed]
        assert await shown(limit=1) == [deleted]
        for limit in (0, 1001):
            assert (await client.get(PATH, params={"limit": limit})).status_code == 400


@pytest.mark.parametrize("trusts", [True, False])
async def test_behind_a_proxy_the_audit_has_what_it_tells(
    caplog: pytest.LogCaptureFixture, *, trusts: bool
) -> None:
    broker = await Broker(web_service_trust_x_forwarded_for=trusts).start()
    caplog.set_level("INFO", "magnetar.broker.audit")
    headers = [("X-Forwarded-For", "9" * 300), ("X-Forwarded-For", "1.2.3.4 status=200, 10.0.0.7")]
    async with client_of(create_app(broker.service), None) as client:
        await client.put("/admin/v2/namespaces/public/a", headers=headers)
        (change,) = (await client.get(PATH)).json()["changes"]
    told = ("9" * 300 + ", 1.2.3.4 status=200, 10.0.0.7")[-200:]
    assert change.get("forwardedFor") == (told if trusts else None)
    assert change["address"] == "127.0.0.1:123"
    (line,) = (each.getMessage() for each in caplog.records if each.name == "magnetar.broker.audit")
    assert line.endswith(f' forwarded_for="{told}"' if trusts else " address=127.0.0.1:123")
    await broker.close()


async def test_a_broker_without_an_answer_is_named(
    authorized: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    members, own = authorized.service.cluster_members, authorized.service.broker_id

    async def ids() -> list[str]:
        return [own, "127.0.0.1:1"]

    async def find(name: str) -> BrokerLookup:
        return BrokerLookup(None, None, "http://127.0.0.1:1", None)

    monkeypatch.setattr(members, "ids", ids)
    monkeypatch.setattr(members, "find", find)
    async with client_of(create_app(authorized.service), "admin") as client:
        await client.put("/admin/v2/namespaces/t1/a")
        answer = (await client.get(PATH)).json()
        assert [each["broker"] for each in answer["changes"]] == [own]
        assert list(answer["since"]) == [own]
        assert "Broker 127.0.0.1:1 can't be reached" in answer["failed"]["127.0.0.1:1"]
        assert (await client.get(f"{PATH}?local=true")).json()["failed"] == {}
