"""Policies over HTTP, in process: settings of the broker, documents of others, lost races."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from magnetar.broker.http.server.app import create_app
from magnetar.broker.policies.table import POLICIES
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.doubles import Broker

NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"


def client_of(broker: Broker) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(broker.service))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker().start()
    await broker.service.directory.create(TopicName.parse("t"))
    yield broker
    await broker.close()


async def test_topics_have_no_own_policies_where_they_are_switched_off() -> None:
    broker = await Broker(topic_level_policies_enabled=False).start()
    await broker.service.directory.create(TopicName.parse("t"))
    async with client_of(broker) as client:
        for method, name in (
            ("GET", "retention"),
            ("POST", "maxProducers"),
            ("DELETE", "messageTTL"),
            ("GET", "backlogQuotaMap"),
            ("GET", "replication"),
        ):
            answer = await client.request(method, f"{TOPIC}/{name}", json=5)
            # Tools compare the text.
            assert answer.status_code == 405
            assert "Topic level policies is disabled" in answer.json()["reason"]
    await broker.close()


async def test_the_broker_s_settings_hold_in_the_end() -> None:
    broker = await Broker(
        max_consumers_per_topic=3,
        default_retention_time_in_minutes=7,
        schema_compatibility_strategy="BACKWARD",
        backlog_quota_default_limit_bytes=99,
    ).start()
    await broker.service.directory.create(TopicName.parse("t"))
    async with client_of(broker) as client:

        async def applied(name: str) -> object:
            return (await client.get(f"{TOPIC}/{name}?applied=true")).json()

        assert await applied("maxConsumers") == 3
        assert await applied("retention") == {"retentionTimeInMinutes": 7, "retentionSizeInMB": 0}
        assert await applied("schemaCompatibilityStrategy") == "BACKWARD"
        quotas = await applied("backlogQuotaMap")
        assert isinstance(quotas, dict)
        assert quotas["destination_storage"]["limitSize"] == 99
        legacy = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy"
        assert (await client.put(legacy, json="Full")).status_code == 204
        assert await applied("schemaCompatibilityStrategy") == "FULL"
    await broker.close()


async def test_documents_that_others_damaged_are_served_and_repaired(broker: Broker) -> None:
    """Another tool wrote nonsense: it is shown as it is, holds nothing up, and can be unset."""
    store = broker.service.store
    path = "/admin/policies/public/default"
    found = await store.get(path)
    assert found is not None
    damage = {
        "message_ttl_in_seconds": "soon",
        "retention_policies": [],
        "backlog_quota_map": {"destination_storage": {"limitSize": "x"}},
        "publishMaxMessageRate": 7,
        "auth_policies": None,
        "properties": None,
    }
    await store.put(path, orjson.dumps({**orjson.loads(found.value), **damage}))
    async with client_of(broker) as client:
        assert (await client.get(f"{NAMESPACE}/messageTTL")).json() == "soon"
        assert (await client.get(f"{TOPIC}/messageTTL?applied=true")).status_code == 200
        rate = {"publishThrottlingRateInMsg": 5}
        assert (await client.post(f"{NAMESPACE}/publishRate", json=rate)).status_code == 204
        keeps = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
        assert (await client.post(f"{NAMESPACE}/retention", json=keeps)).status_code == 204
        assert (await client.get(f"{NAMESPACE}/permissions")).json() == {}
        assert (await client.get(f"{NAMESPACE}/properties")).json() == {}
        grant = f"{NAMESPACE}/permissions/r"
        assert (await client.post(grant, json=["produce"])).status_code == 204
        assert (await client.put(f"{NAMESPACE}/property/a/b")).status_code == 204
        assert (await client.delete(f"{NAMESPACE}/messageTTL")).status_code == 204
        assert (await client.get(f"{NAMESPACE}/messageTTL")).status_code == 204


async def test_a_namespace_too_large_to_be_stored_is_refused(broker: Broker) -> None:
    roles = {f"role-{number:020}": ["produce"] for number in range(25_500)}
    body = {"auth_policies": {"namespace_auth": roles}}
    async with client_of(broker) as client:
        path = "/admin/v2/namespaces/public/large"
        answer = await client.put(path, json=body)
        assert answer.status_code == 412, answer.text
        assert (await client.get(path)).status_code == 404


async def test_a_namespace_has_a_limited_number_of_bundles(broker: Broker) -> None:
    limit = {"reason": "A namespace has at most 65536 bundles"}
    most = [f"0x{number << 16:08x}" for number in range(1 << 16)] + ["0xffffffff"]
    more = {"bundles": {"boundaries": ["0x00000000", "0x00000001", *most[1:]]}}
    async with client_of(broker) as client:
        path = "/admin/v2/namespaces/public/cut"
        answer = await client.put(path, json=more)
        assert (answer.status_code, answer.json()) == (412, limit)
        answer = await client.put(path, json={"bundles": {"boundaries": most}})
        assert answer.status_code == 204, answer.text
        answer = await client.put(f"{path}/0x00000000_0x00010000/split")
        assert (answer.status_code, answer.json()) == (412, limit)
        assert (await client.get(f"{path}/bundles")).json()["numBundles"] == 1 << 16


async def test_nobody_s_change_is_lost(broker: Broker) -> None:
    """Read, change, write, by many at once."""
    async with client_of(broker) as client:

        async def change(number: int) -> None:
            grant = f"{NAMESPACE}/permissions/role-{number}"
            assert (await client.post(grant, json=["consume"])).status_code == 204
            own = f"{TOPIC}/s{number}/dispatchRate"
            rate = {"dispatchThrottlingRateInMsg": number}
            assert (await client.post(own, json=rate)).status_code == 204

        await asyncio.gather(*(change(number) for number in range(1, 21)))
        assert len((await client.get(f"{NAMESPACE}/permissions")).json()) == 20
    topic = broker.service.topics["persistent://public/default/t"]
    rates = [topic.policies.subscription_dispatch_rate(f"s{n}").messages for n in range(1, 21)]
    assert rates == list(range(1, 21))


async def test_own_policies_of_a_volatile_topic(broker: Broker) -> None:
    name = TopicName.parse("non-persistent://public/default/v")
    await broker.service.loader.load(name, create=True)
    async with client_of(broker) as client:
        path = "/admin/v2/non-persistent/public/default/v/maxProducers"
        assert (await client.post(path, json=2)).status_code == 204
        assert (await client.get(path)).json() == 2
        topic = broker.service.topics[name.full]
        assert topic.policies.max_producers == 2
        assert (await client.get(f"{TOPIC}/maxProducers")).status_code == 204


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({}, {}),
        ({"bookkeeperAffinityGroupPrimary": " a , b "},) * 2,
        ({"bookkeeperAffinityGroupPrimary": "", "bookkeeperAffinityGroupSecondary": ""},) * 2,
        ({"bookkeeperAffinityGroupPrimary": None, "x": 1}, {}),
        ({"bookkeeperAffinityGroupPrimary": 7}, {"bookkeeperAffinityGroupPrimary": "7"}),
        (None, None),
    ],
)
async def test_groups_of_bookies_are_answered_as_by_pulsar(
    broker: Broker, body: object, answer: object
) -> None:
    namespace = "/admin/v2/namespaces/public/new"
    path = f"{namespace}/persistence/bookieAffinity"
    async with client_of(broker) as client:
        assert (await client.put(namespace)).status_code == 204
        never = await client.get(path)
        assert never.status_code == 404
        assert never.json() == {"reason": "Namespace local-policies does not exist"}
        assert (await client.post(path, json=body)).status_code == 204
        found = await client.get(path)
        assert found.status_code == 200
        assert (found.json() if found.content else None) == answer
        assert (await client.delete(path)).status_code == 204
        found = await client.get(path)
        assert (found.status_code, found.content) == (200, b"")
        wrong: object
        for wrong in ("a", [], {"bookkeeperAffinityGroupPrimary": ["a"]}):
            assert (await client.post(path, json=wrong)).status_code == 400
        absent = path.replace("new", "none")
        for method in ("GET", "POST", "DELETE"):
            found = await client.request(method, absent, json={})
            assert (found.status_code, found.json()) == (404, {"reason": "Namespace not found"})


async def test_all_policies_in_one_answer(broker: Broker) -> None:
    async with client_of(broker) as client:
        assert (await client.post(f"{NAMESPACE}/messageTTL", json=60)).status_code == 204
        assert (await client.post(f"{TOPIC}/maxConsumers", json=5)).status_code == 204
        own = {"maxConsumers": {"value": 5, "source": "topic"}}
        assert (await client.get(f"{TOPIC}/policies")).json() == own
        found = (await client.get(f"{TOPIC}/policies?applied=true")).json()
        assert found["maxConsumers"] == own["maxConsumers"]
        assert found["messageTTL"] == {"value": 60, "source": "namespace"}
        assert found["maxProducers"] == {"value": 0, "source": "broker"}
        # Each is what its own path says that holds.
        for policy in POLICIES:
            if policy.topic is not None and policy.topic.applied:
                path = policy.topic.path
                answer = await client.get(f"{TOPIC}/{path}?applied=true")
                single = answer.json() if answer.content else None
                assert found[path]["value"] == single, path
        found = (await client.get(f"{NAMESPACE}/policies")).json()
        assert found["messageTTL"] == {"value": 60, "source": "namespace"}
        assert {each["source"] for each in found.values()} == {"namespace"}
        assert (await client.get(f"{NAMESPACE}x/policies")).status_code == 404
        assert (await client.get(f"{TOPIC}x/policies")).status_code == 404
        assert (await client.get(f"{TOPIC}-partition-0/policies")).status_code == 412
