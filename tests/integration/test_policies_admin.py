"""Policies over HTTP against a real server, and what connected clients of it feel."""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pulsar
import pytest

from magnetar.broker.policies.table import POLICIES, Policy, PolicyRoute
from tests.standalone_process import StandaloneProcess

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def admin(standalone: StandaloneProcess | None) -> Iterator[httpx.Client]:
    if standalone is None:
        pytest.skip("statuses of unset and refused policies are our own")
    with httpx.Client(base_url=standalone.admin_url + "/admin/v2", timeout=30) as client:
        yield client


@pytest.fixture
def space(admin: httpx.Client) -> Iterator[str]:
    """A fresh namespace with the topic "t" and the partitioned topic "p"."""
    name = f"public/n{secrets.token_hex(4)}"
    assert admin.put(f"/namespaces/{name}").status_code == 204
    assert admin.put(f"/persistent/{name}/t").status_code == 204
    assert admin.put(f"/persistent/{name}/p/partitions", json=2).status_code == 204
    yield name
    admin.delete(f"/persistent/{name}/p/partitions?force=true")
    for full in admin.get(f"/persistent/{name}").json():
        admin.delete(f"/persistent/{name}/{full.rsplit('/', 1)[1]}?force=true")
    assert admin.delete(f"/namespaces/{name}").status_code == 204


@pytest.fixture
def impatient(service_url: str) -> Iterator[pulsar.Client]:
    """For what is to be refused: the client asks again until its time is over."""
    client = pulsar.Client(service_url, operation_timeout_seconds=2)
    yield client
    client.close()


def reason(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["reason"]


def levels(policy: Policy) -> list[tuple[str, PolicyRoute]]:
    found = [("namespaces/{}", policy.namespace), ("persistent/{}/t", policy.topic)]
    return [(base, at) for base, at in found if at is not None]


def test_every_policy_is_set_read_and_unset(admin: httpx.Client, space: str) -> None:
    for policy in POLICIES:
        for base, at in levels(policy):
            path = f"/{base.format(space)}/{at.path}"
            if at.bodiless:
                answer = admin.request(at.method, path)
            elif at.in_query:
                answer = admin.request(at.method, path, params={at.path: policy.example})
            else:
                answer = admin.request(at.method, path, json=policy.example)
            value: Any = policy.example
            if answer.status_code != 204:
                assert answer.status_code in (400, 412), (path, answer.text)
                assert policy.off is not None or policy.field == "entryFilters", path
                value = at.unset
            got = admin.get(path)
            unset = value is None
            assert got.status_code == (204 if unset else 200), (path, got.text)
            if not unset:
                assert got.json() == value, path
            if at.removable:
                assert admin.delete(path).status_code == 204, path
                got = admin.get(path)
                assert got.status_code == (204 if at.unset is None else 200), path
                if at.unset is not None:
                    assert got.json() == at.unset


def test_a_namespace_is_created_with_its_policies(admin: httpx.Client, space: str) -> None:
    path = f"/namespaces/{space}x"
    body = {
        "message_ttl_in_seconds": 60,
        "retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": 10},
        "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 7}},
        "backlog_quota_map": {"message_age": {"limitTime": 9, "policy": "producer_exception"}},
        "properties": {"team": "billing"},
        "replication_clusters": ["standalone"],
        "deduplicationEnabled": None,
    }
    refused = {"resource_group_name": "group"}
    assert admin.put(path, json=refused).status_code == 412
    assert admin.get(path).status_code == 404, "a refused request has no effect"
    assert admin.put(path, json=body).status_code == 204
    assert admin.get(f"{path}/messageTTL").json() == 60
    assert admin.get(f"{path}/publishRate").json()["publishThrottlingRateInMsg"] == 7
    assert admin.get(f"{path}/properties").json() == {"team": "billing"}
    assert admin.get(f"{path}/backlogQuotaMap").json()["message_age"]["limitTime"] == 9
    assert admin.delete(path).status_code == 204


def test_what_holds_in_the_end(admin: httpx.Client, space: str) -> None:
    topic = f"/persistent/{space}/t/maxConsumers"
    assert admin.get(topic).status_code == 204
    assert admin.get(f"{topic}?applied=true").json() == 0
    admin.post(f"/namespaces/{space}/maxConsumersPerTopic", json=5)
    assert admin.get(f"{topic}?applied=true").json() == 5
    admin.post(f"{topic}?isGlobal=true", json=6)
    assert admin.get(f"{topic}?applied=true").json() == 6
    admin.post(topic, json=7)
    assert admin.get(f"{topic}?applied=true").json() == 7
    assert admin.get(f"{topic}?isGlobal=true").json() == 6


def test_quotas_and_retention_agree(admin: httpx.Client, space: str) -> None:
    quota = {"limitSize": 10 << 20, "limitTime": -1, "policy": "producer_exception"}
    keeps = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    for base in (f"/namespaces/{space}", f"/persistent/{space}/t"):
        assert admin.post(f"{base}/backlogQuota", json=quota).status_code == 204
        status, text = reason(admin.post(f"{base}/retention", json=keeps))
        assert status == 412
        assert "Retention Quota must exceed" in text
        assert admin.get(f"{base}/retention").status_code == 204
        assert admin.delete(f"{base}/backlogQuota").status_code == 204
        assert admin.get(f"{base}/backlogQuotaMap").json() == {}
        assert admin.post(f"{base}/retention", json=keeps).status_code == 204
        status, text = reason(admin.post(f"{base}/backlogQuota", json=quota))
        assert status == 412
        assert "Backlog Quota exceeds" in text
        assert admin.delete(f"{base}/retention").status_code == 204


def test_policies_of_topics_that_are_not_there(admin: httpx.Client, space: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        body = 5 if method == "POST" else None
        path = f"/persistent/{space}/nope/maxProducers"
        answer = admin.request(method, path, json=body)
        assert reason(answer) == (404, f"Topic persistent://{space}/nope not found")
        path = f"/persistent/{space}/p-partition-0/maxProducers"
        assert reason(admin.request(method, path, json=body)) == (
            412,
            "Not allowed to set/get topic policy for a partition",
        )
        path = f"/namespaces/{space}x/maxProducersPerTopic"
        assert reason(admin.request(method, path, json=body)) == (404, "Namespace does not exist")
    assert admin.post(f"/persistent/{space}/p/maxProducers", json=5).status_code == 204
    assert admin.get(f"/persistent/{space}/p/maxProducers").json() == 5


def test_only_json_is_taken(admin: httpx.Client, space: str) -> None:
    path = f"/namespaces/{space}/messageTTL"
    plain = {"Content-Type": "text/plain"}
    assert admin.post(path, content="5", headers=plain).status_code == 415
    assert admin.post(path, content="5 6", headers=JSON).status_code == 400
    assert admin.post(path).status_code == 400
    assert admin.get(path).status_code == 204


def test_documents_are_bounded(admin: httpx.Client, space: str) -> None:
    base = f"/namespaces/{space}/permissions/subscription"
    many = [f"role-{number:08}" for number in range(50_000)]
    assert admin.post(f"{base}/a", json=many).status_code == 204
    status, text = reason(admin.post(f"{base}/b", json=many))
    assert status == 412
    assert "can't be stored; at most 1000000 are" in text
    assert admin.post(f"{base}/c", json=["x" * 1000] * 2000).status_code == 413
    assert list(admin.get(base).json()) == ["a"]
    # Documents of the cluster, too: whatever the store refuses for its size is one answer.
    brokers = [f"{number:04}".ljust(1000, "x") for number in range(1010)]
    domain = "/clusters/standalone/failureDomains/large"
    status, text = reason(admin.post(domain, json={"brokers": brokers}))
    assert (status, "at most 1000000" in text) == (412, True)
    assert admin.get(domain).status_code == 404


def test_permissions_properties_and_clusters(admin: httpx.Client, space: str) -> None:
    base = f"/namespaces/{space}"
    assert admin.post(f"{base}/permissions/a%2Fb", json=["produce"]).status_code == 204
    assert admin.post(f"{base}/permissions/subscription/s", json=["r", "q"]).status_code == 204
    assert admin.get(f"{base}/permissions").json() == {"a/b": ["produce"]}
    assert admin.delete(f"{base}/permissions/s/r").status_code == 204
    assert admin.get(f"{base}/permissions/subscription").json() == {"s": ["q"]}
    assert admin.delete(f"{base}/permissions/a%2Fb").status_code == 204
    assert admin.get(f"{base}/permissions").json() == {}
    assert admin.put(f"{base}/property/a%20b/1%2F2").status_code == 204
    assert admin.put(f"{base}/properties", json={"x": "y"}).status_code == 204
    assert admin.get(f"{base}/properties").json() == {"a b": "1/2", "x": "y"}
    assert admin.get(f"{base}/property/a%20b").text == "1/2"
    assert admin.delete(f"{base}/property/x").text == "y"
    assert admin.delete(f"{base}/properties").status_code == 204
    assert admin.get(f"{base}/property/x").status_code == 204
    assert admin.post(f"{base}/replication", json=["standalone"]).status_code == 204
    assert reason(admin.post(f"{base}/replication", json=["nope"]))[0] == 403
    assert reason(admin.post(f"{base}/replication", json=[]))[0] == 412


def test_groups_that_don_t_exist(admin: httpx.Client, space: str) -> None:
    base = f"/namespaces/{space}"
    assert reason(admin.post(f"{base}/resourcegroup/g")) == (412, "ResourceGroup does not exist")


def test_an_anti_affinity_group_is_set_and_taken_away(admin: httpx.Client, space: str) -> None:
    path = f"/namespaces/{space}/antiAffinity"
    tenant = space.partition("/")[0]
    assert admin.get(path).status_code == 204
    assert admin.post(path, json="group one").status_code == 204
    assert admin.get(path).text == "group one"
    assert admin.post(path, content=b"group2").status_code == 204, "as Java's client sends it"
    assert admin.get(path).text == "group2"
    listed = f"/namespaces/standalone/antiAffinity/{{}}?tenant={tenant}"
    assert admin.get(listed.format("group2")).json() == [space]
    assert admin.get(listed.format("group%20one")).json() == []
    bundles = admin.get(f"/namespaces/{space}/bundles").json()
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 204
    assert admin.get(f"/namespaces/{space}/bundles").json() == bundles
    for wrong in (b"", b'""', b"null", b"[1]", b'"open', b"\xff"):
        assert admin.post(path, content=wrong).status_code in (400, 412), wrong
    assert admin.get(path).status_code == 204


def test_unused_subscriptions_expire_as_topic_and_namespace_say(
    admin: httpx.Client, space: str
) -> None:
    topic, name = f"/persistent/{space}/t", "subscriptionExpirationTime"
    in_the_end = f"{topic}/{name}?applied=true"
    assert admin.get(f"{topic}/{name}").status_code == 204
    assert admin.post(f"/namespaces/{space}/{name}", json=7).status_code == 204
    assert admin.get(in_the_end).json() == 7
    assert admin.post(f"{topic}/{name}?{name}=5").status_code == 204
    assert (admin.get(f"{topic}/{name}").json(), admin.get(in_the_end).json()) == (5, 5)
    low = reason(admin.post(f"{topic}/{name}?{name}=-1"))
    assert low == (412, "Invalid value for subscription expiration time")
    assert reason(admin.post(f"{topic}/{name}?{name}=x"))[0] == 400
    assert admin.delete(f"{topic}/{name}").status_code == 204
    assert admin.get(in_the_end).json() == 7


def test_all_policies_of_a_topic_are_removed_by_one_call(admin: httpx.Client, space: str) -> None:
    topic = f"/persistent/{space}/t"
    assert admin.post(f"{topic}/messageTTL?messageTTL=10").status_code == 204
    assert admin.post(f"{topic}/maxConsumers?isGlobal=true", json=5).status_code == 204
    for _ in range(2):
        assert admin.delete(f"{topic}/policies").status_code == 204
        assert admin.get(f"{topic}/messageTTL").status_code == 204
        assert admin.get(f"{topic}/maxConsumers?isGlobal=true").status_code == 204
    assert admin.delete(f"/persistent/{space}/none/policies").status_code == 404


# --- what connected clients feel


def test_limits_hold_for_those_that_come(
    admin: httpx.Client, space: str, client: pulsar.Client, impatient: pulsar.Client
) -> None:
    topic = f"persistent://{space}/t"
    first = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    assert admin.post(f"/persistent/{space}/t/maxConsumers", json=1).status_code == 204
    assert admin.post(f"/namespaces/{space}/maxProducersPerTopic", json=1).status_code == 204
    with pytest.raises(pulsar.PulsarException):
        impatient.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.PulsarException):
        impatient.create_producer(topic)
    producer.send(b"still here")
    assert first.receive(30_000).data() == b"still here"
    assert admin.delete(f"/persistent/{space}/t/maxConsumers").status_code == 204
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared)


def test_types_and_creation_of_subscriptions(
    admin: httpx.Client, space: str, client: pulsar.Client, impatient: pulsar.Client
) -> None:
    topic, path = f"persistent://{space}/t", f"/persistent/{space}/t"
    admin.post(f"/namespaces/{space}/subscriptionTypesEnabled", json=["Shared"])
    with pytest.raises(pulsar.PulsarException):
        impatient.subscribe(topic, "s", pulsar.ConsumerType.Exclusive)
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    admin.post(f"{path}/subscriptionTypesEnabled", json=["Exclusive"])
    client.subscribe(topic, "e", pulsar.ConsumerType.Exclusive)
    never = {"allowAutoSubscriptionCreation": False}
    assert admin.post(f"{path}/autoSubscriptionCreation", json=never).status_code == 204
    with pytest.raises(pulsar.PulsarException):
        impatient.subscribe(topic, "new", pulsar.ConsumerType.Exclusive)
    assert sorted(admin.get(f"{path}/subscriptions").json()) == ["e", "s"]


def test_topics_come_as_the_namespace_says(
    admin: httpx.Client, space: str, client: pulsar.Client, impatient: pulsar.Client
) -> None:
    path = f"/namespaces/{space}/autoTopicCreation"
    parts = {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    }
    assert admin.post(path, json=parts).status_code == 204
    client.create_producer(f"persistent://{space}/new").send(b"x")
    made = admin.get(f"/persistent/{space}/new/partitions").json()
    assert made["partitions"] == 3
    url = f"{str(admin.base_url).replace('/admin/v2/', '')}/topics/persistent/{space}/http"
    assert httpx.post(url, json={"messages": [{"payload": "x"}]}, timeout=30).status_code == 200
    assert admin.get(f"/persistent/{space}/http/partitions").json()["partitions"] == 3
    assert admin.post(path, json={"allowAutoTopicCreation": False}).status_code == 204
    with pytest.raises(pulsar.PulsarException):
        impatient.create_producer(f"persistent://{space}/never")
    for name in ("new", "http"):
        gone = admin.delete(f"/persistent/{space}/{name}/partitions?force=true")
        assert gone.status_code == 204


def test_a_topic_s_own_maximum_message_size(
    admin: httpx.Client, space: str, client: pulsar.Client
) -> None:
    # The C++ client sends what was refused for ever: that it is refused, a unit test shows.
    producer = client.create_producer(f"persistent://{space}/t", batching_enabled=False)
    producer.send(b"x" * 2000)
    assert admin.post(f"/persistent/{space}/t/maxMessageSize", json=1000).status_code == 204
    producer.send(b"x" * 500)
    url = f"{str(admin.base_url).replace('/admin/v2/', '')}/topics/persistent/{space}/t"
    messages = [{"payload": "x" * size} for size in (10, 2000, 20)]
    results = httpx.post(url, json={"messages": messages}, timeout=30).json()
    codes = [result["errorCode"] for result in results["messagePublishResults"]]
    assert [each == 0 for each in codes] == [True, False, True]


def test_policies_outlive_the_process(fresh_standalone: StandaloneProcess) -> None:
    base = fresh_standalone.admin_url + "/admin/v2"
    assert httpx.put(f"{base}/persistent/public/default/t", timeout=60).status_code == 204
    url = f"{base}/persistent/public/default/t/maxConsumers"
    assert httpx.post(url, json=4, timeout=60).status_code == 204
    assert (
        httpx.post(f"{base}/namespaces/public/default/messageTTL", json=9, timeout=60).status_code
        == 204
    )
    fresh_standalone.kill()
    fresh_standalone.start()
    base = fresh_standalone.admin_url + "/admin/v2"
    assert httpx.get(f"{base}/persistent/public/default/t/maxConsumers", timeout=60).json() == 4
    assert (
        httpx.get(f"{base}/persistent/public/default/t/messageTTL?applied=true", timeout=60).json()
        == 9
    )
