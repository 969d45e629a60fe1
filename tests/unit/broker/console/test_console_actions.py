"""What the console changes: shown first, done as the visitor, refused to forms that aren't ours."""

import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from magnetar.broker.console.actions import SUBSCRIPTION_ACTIONS, TOPIC_ACTIONS
from magnetar.broker.http.server.app import create_app
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import authorized_broker, client_of

TOPIC = "persistent/public/default/orders"
PAGE = f"/console/topic/{TOPIC}"


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        await fill(found)
        yield found


async def fill(client: httpx.AsyncClient, topic: str = TOPIC) -> None:
    assert (await client.put(f"/admin/v2/{topic}")).is_success
    assert (await client.put(f"/admin/v2/{topic}/subscription/billing")).is_success
    body = {"producerName": "p", "messages": [{"payload": each} for each in "abc"]}
    assert (await client.post(f"/topics/{topic}", json=body)).is_success


def token_in(page: httpx.Response) -> str:
    assert page.status_code == 200, page.text
    (found,) = re.findall(r'name="token" value="(\w+)"', page.text)
    return str(found)


async def backlog(client: httpx.AsyncClient) -> int | None:
    stats = (await client.get(f"/admin/v2/{TOPIC}/stats")).json()
    found = stats["subscriptions"].get("billing")
    return None if found is None else found["msgBacklog"]


async def test_a_step_says_what_it_loses_and_what_does_the_same(client: httpx.AsyncClient) -> None:
    page = unescape((await client.get(f"{PAGE}/do/skip?subscription=billing")).text)
    assert "3 messages of billing are skipped." in page
    command = "magnetar topics clear-backlog persistent://public/default/orders -s billing"
    assert command in page
    assert await backlog(client) == 3


async def test_some_messages_are_skipped(client: httpx.AsyncClient) -> None:
    path = f"{PAGE}/do/skip-some?subscription=billing"
    page = await client.get(path)
    assert "topics skip persistent://public/default/orders -s billing -n 1" in page.text
    assert "billing, which has 3 messages unread." in page.text
    token = token_in(page)
    for wrong in ("all", "-1"):
        refused = await client.post(path, data={"token": token, "value": wrong})
        assert refused.status_code == 400
        assert "a number of messages" in refused.text
    assert (await client.post(path, data={"token": token, "value": "2"})).status_code == 303
    assert await backlog(client) == 1


async def test_skip_and_reset(client: httpx.AsyncClient) -> None:
    path = f"{PAGE}/do/skip?subscription=billing"
    token = token_in(await client.get(path))
    done = await client.post(path, data={"token": token})
    assert done.status_code == 303
    assert httpx.URL(f"http://localhost{path}").join(done.headers["location"]).path == (
        f"{PAGE}/subscriptions"
    )
    assert await backlog(client) == 0
    path = f"{PAGE}/do/reset?subscription=billing"
    for wrong in ("yesterday", "2w", "-5"):
        refused = await client.post(path, data={"token": token, "value": wrong})
        assert refused.status_code == 400
        assert "a time is a number" in refused.text
    assert (await client.post(path, data={"token": token, "value": "19000d"})).status_code == 303
    assert await backlog(client) == 3
    (change, *_) = (await client.get("/admin/v2/audit")).json()["changes"]
    assert "/subscription/billing/resetcursor/" in change["path"]
    assert change["status"] == 204


async def test_where_the_cluster_is_marked_red_more_steps_are_confirmed_by_a_name() -> None:
    broker = await Broker(web_console_environment="production:red").start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await fill(client)
        path = f"{PAGE}/do/skip?subscription=billing"
        token = token_in(await client.get(path))
        refused = await client.post(path, data={"token": token})
        assert refused.status_code == 400
        assert "type the name to confirm: billing" in refused.text
        assert await backlog(client) == 3
        done = await client.post(path, data={"token": token, "name": "billing"})
        assert done.status_code == 303
        assert await backlog(client) == 0
        page = (await client.get(f"{PAGE}/do/subscribe")).text
        assert "Type the name to confirm" not in page, "it loses nothing"
    await broker.close()


async def test_what_is_lost_for_good_is_confirmed_by_its_name(client: httpx.AsyncClient) -> None:
    path = f"{PAGE}/do/unsubscribe?subscription=billing"
    token = token_in(await client.get(path))
    for name in ("", "Billing"):
        refused = await client.post(path, data={"token": token, "name": name})
        assert refused.status_code == 400
        assert "type the name" in refused.text
    assert await backlog(client) == 3
    assert (await client.post(path, data={"token": token, "name": "billing"})).is_redirect
    assert await backlog(client) is None
    path = f"{PAGE}/do/delete"
    done = await client.post(path, data={"token": token, "name": "orders"})
    assert httpx.URL(f"http://localhost{path}").join(done.headers["location"]).path == (
        "/console/topics"
    )
    assert (await client.get(f"/admin/v2/{TOPIC}/stats")).status_code == 404


async def test_every_step_has_a_page(client: httpx.AsyncClient) -> None:
    for action in SUBSCRIPTION_ACTIONS:
        page = await client.get(f"{PAGE}/do/{action.key}?subscription=billing")
        assert action.title in page.text
        assert token_in(page)
    for action in TOPIC_ACTIONS:
        assert token_in(await client.get(f"{PAGE}/do/{action.key}"))
    assert (await client.get(f"{PAGE}/do/skip")).status_code == 404
    assert (await client.post("/console/topic/persistent/a/do/x")).status_code == 404
    assert (await client.get(f"{PAGE}/do/skip?subscription=x")).status_code == 404


async def test_a_form_that_is_not_ours_does_nothing(client: httpx.AsyncClient) -> None:
    path = f"{PAGE}/do/skip?subscription=billing"
    token = token_in(await client.get(path))
    for data in ({}, {"token": ""}, {"token": token[:-1] + "x"}):
        assert (await client.post(path, data=data)).status_code == 403
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    answer = await client.post(path, data={"token": token}, headers=foreign)
    assert answer.status_code == 403
    assert await backlog(client) == 3


async def test_a_console_that_is_read_only() -> None:
    broker = await Broker(web_console_read_only=True).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await fill(client)
        page = (await client.get(f"{PAGE}/subscriptions?open=billing")).text
        assert "/do/" not in page
        assert "read-only" in page
        path = f"{PAGE}/do/skip?subscription=billing"
        assert (await client.post(path, data={"token": "x"})).status_code == 403
        assert await backlog(client) == 3
    await broker.close()


async def test_a_step_is_the_visitors_own() -> None:
    """What REST refuses to a role, the console refuses too; nobody's form is good for another."""
    topic = "persistent/t1/ns/orders"
    path = f"/console/topic/{topic}/do/unload"
    async with authorized_broker() as broker:
        app = create_app(broker.service)
        async with client_of(app, "admin") as client:
            await fill(client, topic)
            token = token_in(await client.get(path))
        async with client_of(app, "ten") as client:
            assert (await client.post(path, data={"token": token})).status_code == 403
            own = token_in(await client.get(path))
            assert (await client.post(path, data={"token": own})).status_code == 303
        async with client_of(app, "prod") as client:
            answer = await client.post(path, data={"token": "x"})
            assert answer.status_code in (401, 403)


async def test_a_compaction_and_its_state(client: httpx.AsyncClient) -> None:
    storage = unescape((await client.get(f"{PAGE}/storage")).text)
    assert storage.count("none since the topic was loaded") == 2
    path = f"{PAGE}/do/compact"
    page = await client.get(path)
    assert "magnetar topics compact persistent://public/default/orders" in page.text
    done = await client.post(path, data={"token": token_in(page)})
    assert httpx.URL(f"http://localhost{path}").join(done.headers["location"]).path == (
        f"{PAGE}/storage"
    )
    status = (await client.get(f"/admin/v2/{TOPIC}/compaction")).json()
    assert status["status"] in ("RUNNING", "SUCCESS")


async def test_a_backlog_is_analyzed_in_place(client: httpx.AsyncClient) -> None:
    path = f"{PAGE}/do/analyze?subscription=billing"
    assert 'do/analyze?subscription=billing">Analyze backlog' in (
        (await client.get(f"{PAGE}/subscriptions?open=billing")).text
    )
    answer = await client.post(path, data={"token": token_in(await client.get(path))})
    assert answer.status_code == 200
    assert re.findall(r"<dt>(Messages|Entries)</dt><dd>(\d+)</dd>", answer.text) == [
        ("Messages", "3"),
        ("Entries", "3"),
    ]
    assert await backlog(client) == 3


async def test_a_backlog_of_a_partition(client: httpx.AsyncClient) -> None:
    wide = "persistent/public/default/wide"
    assert (await client.put(f"/admin/v2/{wide}/partitions", json=2)).is_success
    assert (await client.put(f"/admin/v2/{wide}/subscription/billing")).is_success
    path = f"/console/topic/{wide}/do/analyze?subscription=billing"
    token = token_in(await client.get(path))
    for partition, status in (("", 400), ("2", 400), ("1", 200)):
        fields = {"token": token, "value.partition": partition}
        assert (await client.post(path, data=fields)).status_code == status
    storage = (await client.get(f"/console/topic/{wide}/storage")).text
    assert "a state for each partition" in storage


async def test_a_subscription_moves_to_the_place_of_another(client: httpx.AsyncClient) -> None:
    path = f"{PAGE}/do/move?subscription=billing"
    assert "no other subscription" in (await client.get(path)).text
    at = f"/admin/v2/{TOPIC}/subscription/audit"
    earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    assert (await client.put(at, json=earliest)).is_success
    assert (await client.post(f"{at}/skip/2")).is_success
    page = await client.get(path)
    fields = {"token": token_in(page), "value.other": "audit"}
    assert (await client.post(path, data={**fields, "value.other": "none"})).status_code == 400
    assert (await client.post(path, data=fields)).status_code == 303
    assert await backlog(client) == 1
    assert (await client.post(f"/admin/v2/{TOPIC}/subscription/billing/skip_all")).is_success
    started = f"/admin/v2/{TOPIC}/subscription/first"
    assert (await client.put(started, json=earliest)).is_success
    assert (await client.post(path, data={**fields, "value.other": "first"})).status_code == 303
    assert await backlog(client) == 3


async def test_a_subscription_moves_within_a_partition(client: httpx.AsyncClient) -> None:
    wide = "persistent/public/default/wide"
    assert (await client.put(f"/admin/v2/{wide}/partitions", json=2)).is_success
    for name in ("billing", "audit"):
        assert (await client.put(f"/admin/v2/{wide}/subscription/{name}")).is_success
    body = {"producerName": "p", "messages": [{"payload": each} for each in "abc"]}
    assert (await client.post(f"/topics/{wide}-partition-1", json=body)).is_success
    one = f"/admin/v2/{wide}-partition-1"
    assert (await client.post(f"{one}/subscription/audit/skip/2")).is_success
    path = f"/console/topic/{wide}/do/move?subscription=billing"
    fields = {"token": token_in(await client.get(path)), "value.other": "audit"}
    assert (await client.post(path, data=fields)).status_code == 400
    assert (await client.post(path, data={**fields, "value.partition": "1"})).status_code == 303
    stats = (await client.get(f"{one}/stats")).json()
    assert stats["subscriptions"]["billing"]["msgBacklog"] == 1
