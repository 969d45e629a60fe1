"""The page of a topic that takes no messages, or no clients: it says so, as explain does."""

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import NoReturn

import httpx
import pytest

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.source import Source
from magnetar.broker.console.topic_view import PublishingRow, publishing_row
from magnetar.broker.dispatch.explanation import (
    STALL_MS,
    Explanation,
    no_consumer,
    producers_queued,
    publishable,
    quota_held,
    storage_failed,
    storing,
)
from magnetar.broker.dispatch.worst_reason import worst_of_subscriptions
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.doubles import Broker

TOPIC = "persistent/public/default/t"
NOW_MS = 1_800_000_000_000


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
        yield found


def banner(page: str) -> str:
    found = re.findall(r'aria-label="Producers"><ul><li>(.*?)</li>', page)
    return unescape(re.sub(r"<[^>]*>", "", found[0])) if found else ""


async def test_a_subscription_of_one_partition_alone_is_told(client: httpx.AsyncClient) -> None:
    assert (await client.put(f"/admin/v2/{TOPIC}/partitions", json=3)).is_success
    assert (await client.put(f"/admin/v2/{TOPIC}-partition-1/subscription/s")).is_success
    page = unescape((await client.get(f"/console/topic/{TOPIC}/subscriptions?open=s")).text)
    told = "The subscription isn't on partitions 0, 2: it gets nothing of what is published there."
    assert told in page
    assert page.count('class="sy w"') == 1
    assert (await client.put(f"/admin/v2/{TOPIC}/subscription/all")).is_success
    page = unescape((await client.get(f"/console/topic/{TOPIC}/subscriptions?open=all")).text)
    assert page.count(told) == page.count('class="sy w"') == 1  # of the other one, in its row


async def test_the_overview_says_that_it_lacks_topics_that_nobody_has_loaded(
    client: httpx.AsyncClient,
) -> None:
    """After a restart of a broker that is each topic: a backlog of 0 would be a false rest."""
    assert (await client.put(f"/admin/v2/{TOPIC}/subscription/s")).is_success
    page = unescape((await client.get("/console/")).text)
    assert "No subscription has a backlog." in page
    assert "that no broker has loaded" not in page
    assert (await client.put(f"/admin/v2/{TOPIC}/unload")).is_success
    page = unescape((await client.get("/console/")).text)
    assert "No subscription of a loaded topic has a backlog." in page
    assert "1 topic that no broker has loaded" in page


async def test_the_page_of_a_topic_tells_that_a_producer_was_refused(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    assert (await client.put(f"/admin/v2/{TOPIC}")).is_success
    publishing = f"/admin/v2/{TOPIC}/explain/publishing"
    assert (await client.get(publishing)).json()["reason"] == "noProducer"
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "encryption_required": True}
    )
    producer = broker.client(port=5000)
    await producer.receive_one()
    answer, _ = await producer.produce(producer_name="<erp>")
    assert answer.type == pb.BaseCommand.ERROR
    told = (await client.get(publishing)).json()
    assert told["reason"] == "producerRefused"
    for tab in ("", "/producers", "/subscriptions", "/policies"):
        page = (await client.get(f"/console/topic/{TOPIC}{tab}")).text
        assert banner(page) == f"{told['reason']}: {told['message']} {told['next']}", tab
        assert "<erp>" not in page
    await broker.service.policies.update_namespace(
        "public/default", lambda old: {**old, "encryption_required": False}
    )
    await producer.produce(producer_name="p")
    assert (await client.get(publishing)).json()["reason"] == "delivering"
    assert banner((await client.get(f"/console/topic/{TOPIC}")).text) == ""


async def test_a_subscription_that_a_finding_names_has_its_mark(
    client: httpx.AsyncClient, broker: Broker
) -> None:
    """Lists know figures only; the doctor asks dispatch."""
    assert (await client.put(f"/admin/v2/{TOPIC}/subscription/s")).is_success
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    assert (await client.post(f"/topics/{TOPIC}", json=body)).is_success
    consumer = broker.client(port=5000)
    await consumer.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = f"persistent://{TOPIC[11:]}", "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    consumer.send(command)
    assert (await consumer.receive_one()).type == pb.BaseCommand.SUCCESS

    broker.cluster.now_ms += 3_600_000

    async def mark(path: str) -> str:
        text = (await client.get(f"/console/{path}")).text
        (found,) = re.findall(
            r'<span class="sy (\w)"></span><a href="[^"]*\?open=s"><b>s</b>', text
        )
        return str(found)

    for path in ("", "subscriptions"):
        async with asyncio.timeout(60):  # a page doesn't wait long for findings
            while await mark(path) != "e":
                pass
    findings = (await client.get("/admin/v2/doctor")).json()["findings"]
    assert ("subscription-stuck", "critical") in [
        (each["check"], each["severity"]) for each in findings
    ]


async def test_publishing_of_partitions(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await client.put(f"/admin/v2/{TOPIC}/partitions", json=2)).is_success
    for partition in range(2):
        name = f"{TOPIC}-partition-{partition}"
        assert (await client.put(f"/admin/v2/{name}/subscription/s")).is_success
    found = (await client.get(f"/admin/v2/{TOPIC}/explain/publishing")).json()
    assert {each["reason"] for each in found.values()} == {"noProducer"}
    assert len(found) == 2
    assert (await client.post(f"/admin/v2/{TOPIC}-partition-1/terminate")).is_success

    async def refused(*_: object) -> NoReturn:
        raise AdminError(401, "may only look up")

    for is_refused in (False, True):
        if is_refused:
            monkeypatch.setattr(Source, "reasons", refused)
        for tab in ("", "/producers"):
            page = (await client.get(f"/console/topic/{TOPIC}{tab}")).text
            assert banner(page).startswith("terminated: Partition 1: The topic is terminated."), tab
        page = (await client.get(f"/console/topic/{TOPIC}/subscriptions?open=s")).text
        assert banner(page).startswith("terminated: Partition 1: The topic is terminated.")
        assert ("may only look up" in page) == is_refused


async def test_the_worst_of_partitions_is_what_their_answers_tell(
    client: httpx.AsyncClient,
) -> None:
    worst, force = f"/admin/v2/{TOPIC}/explain/worst", {"force": True}
    assert (await client.put(f"/admin/v2/{TOPIC}/partitions", json=3)).is_success
    for partition in range(3):
        name = f"{TOPIC}-partition-{partition}"
        assert (await client.delete(f"/admin/v2/{name}", params=force)).is_success
    assert (await client.get(worst)).json() == {"subscriptions": {}, "publishing": None}
    assert banner((await client.get(f"/console/topic/{TOPIC}")).text) == ""
    for partition in (1, 2):
        for name in ("s", "other"):
            path = f"/admin/v2/{TOPIC}-partition-{partition}/subscription/{name}"
            assert (await client.put(path)).is_success
    body = {"producerName": "p", "messages": [{"payload": "x"}]}
    assert (await client.post(f"/topics/{TOPIC}-partition-2", json=body)).is_success
    assert (await client.post(f"/admin/v2/{TOPIC}-partition-2/terminate")).is_success
    found = (await client.get(f"/admin/v2/{TOPIC}/explain")).json()
    assert [name[-1] for name in found] == ["1", "2"]
    publishing = (await client.get(f"/admin/v2/{TOPIC}/explain/publishing")).json()
    told = (await client.get(worst)).json()
    assert told["subscriptions"] == run_at_once(worst_of_subscriptions(found))
    assert told["subscriptions"]["s"]["message"].startswith("Partition 2: ")
    assert told["subscriptions"]["s"]["reason"] == "noConsumer"
    of_two = publishing[f"{TOPIC.replace('/', '://', 1)}-partition-2"]
    assert told["publishing"] == {**of_two, "message": f"Partition 2: {of_two['message']}"}
    single = (await client.get(f"/admin/v2/{TOPIC}-partition-2/explain/worst")).json()
    assert single["publishing"] == of_two
    assert single["subscriptions"] == found[f"{TOPIC.replace('/', '://', 1)}-partition-2"]
    row = run_at_once(publishing_row({"": told["publishing"]}))
    assert row == run_at_once(publishing_row(publishing))
    assert (await client.get(f"/admin/v2/{TOPIC}-none/explain/worst")).status_code == 404


def row(*found: Explanation) -> PublishingRow | None:
    if len(found) == 1:
        return run_at_once(publishing_row({"": found[0].as_json()}))
    named = {f"t-partition-{n}": each.as_json() for n, each in enumerate(found)}
    return run_at_once(publishing_row(named))


def test_what_is_told_of_producers_is_the_worst_that_lasts() -> None:
    assert row(publishable()) is None
    assert row(storing(10, STALL_MS - 1, 0, NOW_MS)) is None  # as any topic under load
    stuck = row(storing(10, STALL_MS, 0, NOW_MS))
    assert stuck is not None
    assert (stuck.kind, stuck.message[:8]) == ("e", "10 bytes")
    assert row(storing(0, 0, 2, NOW_MS)) is not None
    queued = producers_queued("boss", 2)
    held = quota_held("q", "s", 9, 8, is_held=True, consumers=1)
    found = row(queued, storing(10, 5, 0, NOW_MS), held, storage_failed(), held)
    assert found is not None
    assert (found.kind, found.message[:13]) == ("e", "Partition 3: ")


def test_a_partition_without_a_consumer_beside_others_with_some() -> None:
    idle, busy = no_consumer(1).as_json(), publishable().as_json()
    one = run_at_once(
        worst_of_subscriptions({"t-partition-0": {"s": busy}, "t-partition-1": {"s": idle}})
    )["s"]
    assert one["message"] == "Partition 1: No consumer is connected."
    assert "may not know this partition" in one["next"]
    all_idle = run_at_once(
        worst_of_subscriptions({"t-partition-0": {"s": idle}, "t-partition-1": {"s": idle}})
    )["s"]
    assert all_idle["next"] == idle["next"]
