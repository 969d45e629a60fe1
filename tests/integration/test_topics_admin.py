"""Topics by HTTP: properties, permissions, figures, ends; Magnetar, or Pulsar by the options."""

import http.client
import itertools
import json
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pulsar
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.official_client import open_client
from tests.raw_client import RawClient
from tests.waiting import wait_until

EARLIEST = {"ledgerId": -1, "entryId": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


@pytest.fixture
def namespace(admin: httpx.Client) -> Iterator[str]:
    tenant = f"ta{secrets.token_hex(4)}"
    assert admin.put(f"/tenants/{tenant}", json={"allowedClusters": ["standalone"]}).is_success
    assert admin.put(f"/namespaces/{tenant}/ns").is_success
    yield f"{tenant}/ns"
    for domain in ("persistent", "non-persistent"):
        base = f"/{domain}/{tenant}/ns"
        for topic in admin.get(f"{base}/partitioned").json():
            admin.delete(f"{base}/{topic.rsplit('/', 1)[1]}/partitions?force=true")
        for topic in admin.get(base).json():
            admin.delete(f"{base}/{topic.rsplit('/', 1)[1]}?force=true")
    assert admin.delete(f"/namespaces/{tenant}/ns").is_success
    assert admin.delete(f"/tenants/{tenant}").is_success


@pytest.fixture
def client(service_url: str, namespace: str) -> Iterator[pulsar.Client]:
    """Asks for ``namespace`` so that it is closed before: its consumers would make topics anew."""
    client = open_client(service_url)
    yield client
    client.close()


def send(client: pulsar.Client, topic: str, count: int, first: int = 0) -> list[pulsar.MessageId]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(first, first + count)]
    producer.close()
    return ids


def backlogs(admin: httpx.Client, path: str) -> dict[str, int]:
    subscriptions = admin.get(f"{path}/stats").json()["subscriptions"]
    return {name: metrics["msgBacklog"] for name, metrics in subscriptions.items()}


def test_properties_are_merged_kept_and_removed(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path, json={"k": "v"}).is_success
    assert admin.put(f"{path}/properties", json={"a": "1", "b": "2"}).is_success
    assert admin.put(f"{path}/properties", json={"b": "3"}).is_success
    assert admin.get(f"{path}/properties").json() == {"k": "v", "a": "1", "b": "3"}
    assert admin.delete(f"{path}/properties", params={"key": "a"}).is_success
    assert admin.delete(f"{path}/properties", params={"key": "not there"}).is_success
    assert admin.put(f"{path}/unload").is_success
    assert admin.get(f"{path}/properties").json() == {"k": "v", "b": "3"}
    # An exclusive producer's epoch lives beside them and must survive.
    producer = client.create_producer(
        f"persistent://{namespace}/t", access_mode=pulsar.ProducerAccessMode.Exclusive
    )
    assert admin.put(f"{path}/properties", json={"c": "4"}).is_success
    producer.close()
    assert admin.get(f"{path}/properties").json()["c"] == "4"
    assert admin.get(f"/persistent/{namespace}/no/properties").status_code == 404
    assert admin.get(f"/non-persistent/{namespace}/n/properties").status_code == 406


def test_properties_of_a_partitioned_topic_are_its_own(admin: httpx.Client, namespace: str) -> None:
    path = f"/persistent/{namespace}/p"
    kind = "application/vnd.partitioned-topic-metadata+json"
    body = json.dumps({"partitions": 2, "properties": {"k": "v"}})
    made = admin.put(f"{path}/partitions", content=body, headers={"Content-Type": kind})
    assert made.is_success
    assert admin.put(f"{path}/properties", json={"a": "b"}).is_success
    assert admin.get(f"{path}/properties").json() == {"k": "v", "a": "b"}
    assert admin.get(f"{path}/partitions").json()["properties"] == {"k": "v", "a": "b"}
    assert admin.get(f"{path}-partition-0/properties").json() == {}
    assert admin.post(f"{path}/partitions", json=3).is_success
    assert admin.get(f"{path}/properties").json() == {"k": "v", "a": "b"}


def test_replicated_subscriptions_are_kept_and_shown(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path, name = f"/persistent/{namespace}/t", f"persistent://{namespace}/t"
    assert admin.put(f"{path}/partitions", json=1).is_success
    urls = {each: f"{path}/subscription/{each}" for each in ("rest", "client", "later", "plain")}
    assert admin.put(f"{urls['rest']}?replicated=true", json=EARLIEST).status_code == 204
    client.subscribe(name, "client", replicate_subscription_state_enabled=True).close()
    for each in ("later", "plain"):
        client.subscribe(name, each).close()
    client.subscribe(name, "later", replicate_subscription_state_enabled=True).close()
    assert admin.put(f"{urls['client']}/properties", json={"a": "b"}).is_success
    assert admin.put(f"{path}/unload").is_success
    client.subscribe(name, "client").close()  # no wish is not a wish for none
    part = f"{name}-partition-0"
    for each, url in urls.items():
        status = admin.get(f"{url}/replicatedSubscriptionStatus")
        assert (status.status_code, status.json()) == (200, {part: each != "plain"})
    assert admin.post(f"{path}/partitions", json=2).is_success  # takes them over
    second = admin.get(f"{path}-partition-1/stats").json()["subscriptions"]
    assert {each: row["isReplicated"] for each, row in second.items()} == {
        each: each != "plain" for each in urls
    }
    shown = admin.get(f"{path}-partition-0/stats").json()["subscriptions"]["client"]
    assert shown["isReplicated"] is shown["replicated"] is True
    assert shown["subscriptionProperties"] == {"a": "b"}
    assert admin.get(f"{urls['client']}/properties").json() == {"a": "b"}
    inside = admin.get(f"{path}-partition-0/internalStats").json()["cursors"]
    assert inside["client"]["properties"] == {"pulsar.replicated.subscription": 1}
    assert inside["plain"]["properties"] == {}
    for each, wanted in (("client", False), ("plain", True)):
        set_to = admin.post(f"{urls[each]}/replicatedSubscriptionStatus", json=wanted)
        assert set_to.status_code == 204
        status = admin.get(f"{urls[each]}/replicatedSubscriptionStatus").json()
        assert status == {part: wanted, f"{name}-partition-1": wanted}
    missing = f"{path}/subscription/missing/replicatedSubscriptionStatus"
    assert admin.post(missing, json=True).status_code == 404


def test_subscription_properties_are_replaced(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    url = f"{path}/subscription/s"
    assert admin.put(url, json={**EARLIEST, "properties": {"x": "y"}}).is_success
    assert admin.get(f"{url}/properties").json() == {"x": "y"}
    assert admin.put(f"{url}/properties", json={"q": "1"}).is_success
    assert admin.put(f"{path}/unload").is_success
    assert admin.get(f"{url}/properties").json() == {"q": "1"}
    metrics = admin.get(f"{path}/stats").json()["subscriptions"]["s"]
    assert metrics["subscriptionProperties"] == {"q": "1"}
    send(client, f"persistent://{namespace}/t", 2)
    assert backlogs(admin, path) == {"s": 2}
    assert admin.get(f"{url}/properties").json() == {"q": "1"}


def test_truncate_leaves_nothing_and_the_topic_goes_on(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    consumers = [
        client.subscribe(topic, name, consumer_type=kind, receiver_queue_size=1)
        for name, kind in (
            ("exclusive", pulsar.ConsumerType.Exclusive),
            ("shared", pulsar.ConsumerType.Shared),
            ("keyed", pulsar.ConsumerType.KeyShared),
        )
    ]
    assert admin.put(f"{path}/subscription/idle").is_success
    send(client, topic, 20)
    for consumer in consumers:
        consumer.receive(30_000)  # held, not acknowledged
    wait_until(
        lambda: admin.delete(f"{path}/truncate").is_success, "Pulsar's fails beside other calls"
    )
    assert set(backlogs(admin, path).values()) == {0}
    send(client, topic, 1, first=100)
    for consumer in consumers:
        received = b""
        while received != b"100":  # what was on its way comes first
            message = consumer.receive(30_000)
            received = message.data()
            consumer.acknowledge(message)
    assert admin.delete(f"/non-persistent/{namespace}/n/truncate").status_code == 412
    assert admin.delete(f"/persistent/{namespace}/no/truncate").status_code == 404


@pytest.mark.parametrize("skipped", [3, 4])
def test_trim_deletes_what_is_consumed(
    admin: httpx.Client,
    client: pulsar.Client,
    namespace: str,
    skipped: int,
    external_server: tuple[str, str] | None,
) -> None:
    if skipped == 3 and external_server is not None:
        pytest.skip("Pulsar keeps a ledger until something behind it is acknowledged")
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    assert admin.put(f"{path}/subscription/s").is_success
    send(client, topic, 3)
    assert admin.put(f"{path}/unload").is_success  # closes the ledger
    send(client, topic, 2)
    assert admin.post(f"{path}/trim").is_success
    assert admin.get(f"{path}/internalStats").json()["numberOfEntries"] == 5, "all is unread"
    assert admin.post(f"{path}/subscription/s/skip/{skipped}").is_success

    def is_trimmed() -> bool:
        assert admin.post(f"{path}/trim").is_success
        return bool(admin.get(f"{path}/internalStats").json()["numberOfEntries"] == 2)

    wait_until(is_trimmed, "not trimmed")
    assert backlogs(admin, path) == {"s": 5 - skipped}


def test_skipping_counts_what_is_unacknowledged_and_keeps_consumers(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    send(client, topic, 6)
    messages = [consumer.receive(30_000) for _ in range(6)]
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[2])
    wait_until(lambda: backlogs(admin, path) == {"s": 4}, "acknowledgements are counted")
    assert admin.post(f"{path}/subscription/s/skip/2").is_success
    assert admin.get(f"{path}/subscription/s/position/1").content == b"4"
    assert len(admin.get(f"{path}/stats").json()["subscriptions"]["s"]["consumers"]) == 1
    assert admin.post(f"{path}/subscription/s/skip_all").is_success
    assert backlogs(admin, path) == {"s": 0}
    send(client, topic, 1, first=9)
    assert consumer.receive(30_000).data() == b"9"
    assert admin.post(f"{path}/subscription/s/skip/1000").is_success, "more than there are"
    assert backlogs(admin, path) == {"s": 0}


def test_expiry_by_id_and_by_age(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    for name in ("a", "b"):
        assert admin.put(f"{path}/subscription/{name}").is_success
    url = f"{path}/subscription/a/expireMessages"
    assert admin.post(f"{url}/10").status_code == 409, "nothing there"
    ids = send(client, topic, 5)
    where = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    other = admin.post(url, json={**where, "partitionIndex": 1})
    assert other.status_code == 412
    assert "partition index of passed in message position" in other.json()["reason"]
    assert admin.post(url, json=where).is_success
    wait_until(lambda: backlogs(admin, path) == {"a": 3, "b": 5}, "up to the id, inclusive")
    assert admin.post(url, json=LATEST).status_code == 409
    assert admin.post(f"{url}/1000").is_success, "begun, though nothing is old enough"
    assert backlogs(admin, path) == {"a": 3, "b": 5}
    begun = []

    def expired() -> bool:  # a message must be older than 0 seconds
        begun.append(admin.post(f"{url}/0").is_success)
        return backlogs(admin, path)["a"] == 0

    wait_until(expired, "expiry")
    assert any(begun)
    assert admin.post(f"{url}/0").status_code == 409
    metrics = admin.get(f"{path}/stats").json()["subscriptions"]
    assert metrics["a"]["totalMsgExpired"] == 5
    assert metrics["b"]["totalMsgExpired"] == 0
    missing = admin.post(f"{path}/subscription/no/expireMessages/1")
    assert missing.status_code == 404


def test_young_messages_of_a_connected_consumer_are_left_alone(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    consumer = client.subscribe(topic, "s")
    send(client, topic, 3)
    assert admin.post(f"{path}/subscription/s/expireMessages/1000").status_code == 409
    assert admin.post(f"{path}/all_subscription/expireMessages/1000").status_code == 409
    assert consumer.receive(30_000).data() == b"0"


def test_backlogs_are_analyzed(admin: httpx.Client, client: pulsar.Client, namespace: str) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    url = f"{path}/subscription/s/analyzeBacklog"
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    for number in range(4):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()  # one entry of four messages
    ids = send(client, topic, 3, first=4)
    answer = admin.post(url).json()
    assert (answer["entries"], answer["messages"]) == (4, 7)
    assert not answer["aborted"]
    assert answer["lastMessageId"] == f"{ids[2].ledger_id()}:{ids[2].entry_id()}"
    by_data = {}
    for _ in range(7):
        message = consumer.receive(30_000)
        by_data[message.data()] = message
    consumer.acknowledge(by_data[b"4"])
    wait_until(lambda: admin.post(url).json()["entries"] == 3, "acknowledged entries don't count")
    where = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id()}
    answer = admin.post(url, json=where).json()
    assert (answer["entries"], answer["firstMessageId"]) == (1, answer["lastMessageId"])


def test_the_size_of_a_backlog(admin: httpx.Client, client: pulsar.Client, namespace: str) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    assert admin.put(f"{path}/subscription/s").is_success
    ids = send(client, topic, 4)
    whole = admin.put(f"{path}/backlogSize", json=EARLIEST).json()
    assert whole == admin.get(f"{path}/stats").json()["storageSize"] > 0
    where = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    assert admin.put(f"{path}/backlogSize", json=where).json() == whole // 2
    where = {"ledgerId": ids[3].ledger_id(), "entryId": ids[3].entry_id()}
    assert admin.put(f"{path}/backlogSize", json=where).json() == 0


def test_internal_info_needs_no_loaded_topic(admin: httpx.Client, namespace: str) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path, json={"k": "v"}).is_success
    assert admin.put(f"{path}/subscription/s").is_success
    assert admin.put(f"{path}/unload").is_success
    info = admin.get(f"{path}/internal-info").json()
    assert info["properties"] == {"k": "v"}
    assert set(info["cursors"]) == {"s"}
    assert info["creationDate"] <= info["modificationDate"]
    assert admin.put(f"/persistent/{namespace}/p/partitions", json=2).is_success
    parts = admin.get(f"/persistent/{namespace}/p/internal-info").json()["partitions"]
    assert set(parts) == {f"persistent://{namespace}/p-partition-{index}" for index in (0, 1)}


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(("topic", "statuses"), [("no", (404,)), ("%2e", (404, 412))])
@pytest.mark.parametrize("what", ["stats", "internalStats", "properties", "internal-info"])
def test_names_that_no_topic_has(
    admin_url: str, namespace: str, topic: str, statuses: tuple[int, ...], what: str
) -> None:
    url = urlsplit(admin_url)  # httpx would take the dot for a directory
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
    connection.request("GET", f"/admin/v2/persistent/{namespace}/{topic}/{what}")
    answer = connection.getresponse()
    assert answer.status in statuses
    assert json.loads(answer.read())["reason"]
    connection.close()


def test_statistics_obey_their_switches(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    consumer = client.subscribe(topic, "s")
    assert admin.put(f"{path}/subscription/idle", json=LATEST).is_success
    producer = client.create_producer(topic)
    producer.send(b"x")
    full = admin.get(f"{path}/stats").json()
    assert [len(full["publishers"]), len(full["subscriptions"]["s"]["consumers"])] == [1, 1]
    assert full["subscriptions"]["idle"]["backlogSize"] > 0
    bare = admin.get(
        f"{path}/stats",
        params={
            "excludePublishers": "true",
            "excludeConsumers": "true",
            "subscriptionBacklogSize": "false",
            "getEarliestTimeInBacklog": "true",
        },
    ).json()
    assert [bare["publishers"], bare["subscriptions"]["s"]["consumers"]] == [[], []]
    idle = bare["subscriptions"]["idle"]
    assert idle["backlogSize"] == -1
    assert idle["earliestMsgPublishTimeInBacklog"] > 1_600_000_000_000
    assert bare["earliestMsgPublishTimeInBacklogs"] > 1_600_000_000_000
    consumer.close()
    producer.close()


def test_unloading_takes_all_partitions_along(admin: httpx.Client, namespace: str) -> None:
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/partitions", json=2).is_success
    assert admin.put(f"{path}/unload").is_success
    assert admin.put(f"{path}/unload").is_success, "nothing loaded is no error"
    assert admin.get(f"{path}/partitioned-stats").json()["metadata"]["partitions"] == 2


def test_names_of_topics_come_by_page(
    admin: httpx.Client, namespace: str, external_server: object
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar knows no pages")
    names = [f"persistent://{namespace}/{name}" for name in ("a", "b", "c%20d", "e")]
    for name in reversed(names):
        assert admin.put(name.replace("://", "/")).is_success

    def page(**query: str | int) -> list[str]:
        answer = admin.get(f"/persistent/{namespace}", params=query)
        assert answer.is_success, answer.text
        found: list[str] = answer.json()
        return found

    everything = page()
    assert len(everything) == len(names)
    assert page(limit=2) == everything[:2]
    assert page(limit=2, after=everything[1]) == everything[2:]
    assert page(limit=2, after=everything[-1]) == []
    assert page(after=f"persistent://{namespace}/aa") == everything[1:]  # deleted meanwhile
    assert page(limit=10**9) == everything
    for limit in ("0", "-1", "many"):
        answer = admin.get(f"/persistent/{namespace}", params={"limit": limit})
        assert answer.status_code in (400, 422)
        assert "limit" in answer.json()["reason"]


def test_a_deleted_partition_comes_back(admin: httpx.Client, namespace: str) -> None:
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/partitions", json=3).is_success
    assert admin.delete(f"{path}-partition-1").is_success
    for what in ("stats", "internalStats", "subscriptions"):  # none of them brings it back
        assert admin.get(f"{path}-partition-1/{what}").status_code == 404
    assert admin.get(f"{path}/partitioned-stats").is_success
    names = [f"persistent://{namespace}/p-partition-{index}" for index in range(3)]
    assert sorted(admin.get(f"/persistent/{namespace}").json()) == [names[0], names[2]]
    assert admin.post(f"{path}/createMissedPartitions").is_success
    assert sorted(admin.get(f"/persistent/{namespace}").json()) == names
    assert admin.post(f"/persistent/{namespace}/no/createMissedPartitions").status_code == 404


def test_new_partitions_have_the_durable_subscriptions(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/partitions", json=2).is_success
    for name in ("one", "two"):
        assert admin.put(f"{path}/subscription/{name}").is_success
    reader = client.create_reader(
        f"persistent://{namespace}/p-partition-0", pulsar.MessageId.earliest
    )
    assert admin.post(f"{path}/partitions", json=4).is_success
    for index in range(4):
        send(client, f"persistent://{namespace}/p-partition-{index}", 1)
    for index in (2, 3):
        assert backlogs(admin, f"{path}-partition-{index}") == {"one": 1, "two": 1}
    reader.close()


def test_subscriptions_of_partitions_conflict_and_fail_only_all_together(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/partitions", json=2).is_success
    assert admin.put(f"{path}-partition-0/subscription/s").is_success
    assert admin.put(f"{path}/subscription/s").is_success, "one partition had it"
    assert admin.put(f"{path}/subscription/s").status_code == 409, "both had it"
    assert admin.post(f"{path}/subscription/s/resetcursor/0").is_success
    assert admin.get(f"{path}/subscriptions").json() == ["s"]
    assert admin.delete(f"{path}/subscription/s").is_success
    assert admin.post(f"{path}/subscription/s/resetcursor/0").status_code == 404
    assert admin.delete(f"{path}/subscription/s").status_code == 404


def test_a_subscription_creates_what_its_client_would(admin: httpx.Client, namespace: str) -> None:
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    url = f"/namespaces/{namespace}/autoTopicCreation"
    assert admin.post(url, json=rule).is_success
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/subscription/s").is_success
    assert admin.get(f"{path}/partitions").json()["partitions"] == 2
    assert admin.get(f"{path}-partition-1/subscriptions").json() == ["s"]
    assert admin.post(url, json={"allowAutoTopicCreation": False}).is_success
    wait_until(  # the policy reaches Pulsar's caches later
        lambda: admin.put(f"{path}{secrets.token_hex(2)}/subscription/s").status_code in (404, 412),
        "the topic was created",
    )


def test_topics_in_use_are_deleted_by_force_only(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/t"
    consumer = client.subscribe(f"persistent://{namespace}/t", "s")
    assert admin.delete(path).status_code == 412
    assert admin.delete(f"{path}/subscription/s").status_code == 412
    assert admin.delete(f"{path}/subscription/s?force=true").is_success
    consumer.close()
    producer = client.create_producer(f"persistent://{namespace}/t")
    assert admin.delete(path).status_code == 412
    producer.close()
    assert admin.delete(f"{path}?force=true").is_success
    assert admin.get(f"{path}/stats").status_code == 404


def test_a_namespace_is_cleared_and_unsubscribed(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    names = [f"t{number}" for number in range(3)]
    for name in names:
        assert admin.put(f"/persistent/{namespace}/{name}").is_success
        for subscription in ("s", "other"):
            url = f"/persistent/{namespace}/{name}/subscription/{subscription}"
            assert admin.put(url).is_success
        send(client, f"persistent://{namespace}/{name}", 2)

    def everywhere() -> list[dict[str, int]]:
        return [backlogs(admin, f"/persistent/{namespace}/{name}") for name in names]

    assert admin.post(f"/namespaces/{namespace}/clearBacklog/s").is_success
    assert everywhere() == [{"s": 0, "other": 2}] * 3
    bundles = admin.get(f"/namespaces/{namespace}/bundles").json()["boundaries"]
    for low, high in itertools.pairwise(bundles):
        assert admin.post(f"/namespaces/{namespace}/{low}_{high}/clearBacklog").is_success
    assert everywhere() == [{"s": 0, "other": 0}] * 3
    consumer = client.subscribe(f"persistent://{namespace}/t1", "other")
    assert admin.post(f"/namespaces/{namespace}/unsubscribe/other").status_code == 412
    consumer.close()
    assert admin.post(f"/namespaces/{namespace}/unsubscribe/other").is_success
    assert everywhere() == [{"s": 0}] * 3
    for low, high in itertools.pairwise(bundles):
        assert admin.post(f"/namespaces/{namespace}/{low}_{high}/unsubscribe/s").is_success
    assert everywhere() == [{}] * 3


def test_partitions_are_terminated_together(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/partitions", json=2).is_success
    ids = send(client, f"persistent://{namespace}/p-partition-1", 2)
    assert admin.post(f"{path}/terminate").status_code == 405
    last = admin.post(f"{path}/terminate/partitions").json()
    assert set(last) == {"0", "1"}
    assert (last["1"]["ledgerId"], last["1"]["entryId"]) == (
        ids[1].ledger_id(),
        ids[1].entry_id(),
    )
    with pytest.raises(Exception, match="TopicTerminated"):
        client.create_producer(f"persistent://{namespace}/p-partition-1")
    plain = admin.post(f"/persistent/{namespace}/no/terminate/partitions")
    assert plain.status_code == 405


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_partition_that_lacks_a_subscription_is_told_of_and_the_others_are_changed(
    admin: httpx.Client, client: pulsar.Client, namespace: str, lacking: int
) -> None:
    path, having = f"/persistent/{namespace}/p", f"p-partition-{1 - lacking}"
    assert admin.put(f"{path}/partitions", json=2).is_success
    # Another subscription holds what is acknowledged: else a ledger could be deleted meanwhile.
    for name in ("s", "keep"):
        assert admin.put(f"/persistent/{namespace}/{having}/subscription/{name}").is_success
    send(client, f"persistent://{namespace}/{having}", 3)
    part = f"/persistent/{namespace}/{having}"
    assert admin.post(f"{part}/subscription/s/skip_all").is_success
    reset = admin.post(f"{path}/subscription/s/resetcursor/0")
    assert reset.status_code == 404
    assert (
        f"Subscription s not found for topic persistent://{namespace}/p" in reset.json()["reason"]
    )
    wait_until(lambda: backlogs(admin, part)["s"] == 3, "reset all the same")
    deleted = admin.delete(f"{path}/subscription/s")
    assert (deleted.status_code, deleted.json()["reason"]) == (404, "Subscription not found")
    wait_until(
        lambda: admin.get(f"{path}/subscriptions").json() == ["keep"], "deleted all the same"
    )


def test_names_of_partitions_that_are_not_are_not_looked_up(
    admin: httpx.Client, admin_url: str, namespace: str
) -> None:
    assert admin.put(f"/persistent/{namespace}/p/partitions", json=2).is_success
    lookup = f"{admin_url}/lookup/v2/topic/persistent/{namespace}"
    for name, status in (("p-partition-1", 200), ("p-partition-2", 404), ("q-partition-2", 200)):
        assert httpx.get(f"{lookup}/{name}", timeout=60).status_code == status
    last = admin.get(f"/persistent/{namespace}/p/lastMessageId")
    assert last.status_code == 404


def test_bodies_say_that_they_are_json(admin: httpx.Client, namespace: str) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    text = {"Content-Type": "text/plain"}
    json_utf8 = {"Content-Type": "application/json; charset=utf-8"}
    sent = (
        ("PUT", f"{path}/properties", b'{"a": "b"}', True),
        ("POST", f"{path}/retention", b'{"retentionTimeInMinutes": 1}', True),
        ("POST", f"{path}/maxProducers", b"5", False),
        ("PUT", f"/persistent/{namespace}/p/partitions", b"2", False),
        ("POST", f"/tenants/{namespace.partition('/')[0]}", b"{}", True),
    )
    for method, url, body, is_object in sent:
        for headers in (form, {}, *([text] if is_object else [])):
            assert admin.request(method, url, content=body, headers=headers).status_code == 415
    assert admin.get(f"{path}/properties").json() == {}
    assert admin.post(f"{path}/maxProducers", content=b"5", headers=text).status_code == 204
    assert admin.put(f"{path}/properties", content=b'{"a": "b"}', headers=json_utf8).is_success


# --- where this broker does more, or other things, than Pulsar (docs/reference/http-differences.md)


@pytest.fixture
def ours(external_server: tuple[str, str] | None) -> None:
    if external_server is not None:
        pytest.skip("differs from Pulsar on purpose")


def test_internal_statistics_say_whether_a_cursor_waits(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    topic, path = f"persistent://{namespace}/t", f"/persistent/{namespace}/t"
    consumer = client.subscribe(topic, "s", receiver_queue_size=3)

    def is_waiting(waiting: bool) -> bool:
        metrics = admin.get(f"{path}/internalStats").json()
        cursor = metrics["cursors"]["s"]
        assert cursor["subscriptionHavePendingReplayRead"] is False
        return (
            metrics["waitingCursorsCount"],
            cursor["waitingReadOp"],
            cursor["pendingReadOps"],
            cursor["subscriptionHavePendingRead"],
        ) == (int(waiting), waiting, 0, waiting)

    wait_until(lambda: is_waiting(True), "three messages could be taken")
    send(client, topic, 5)
    wait_until(lambda: is_waiting(False), "its queue is full")
    for _ in range(5):
        consumer.acknowledge(consumer.receive(30_000))
    wait_until(lambda: is_waiting(True), "all is read")
    consumer.close()
    wait_until(lambda: is_waiting(False), "nobody is there")


@pytest.mark.usefixtures("ours")
def test_truncate_frees_storage_at_once(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    assert admin.put(f"/persistent/{namespace}/p/partitions", json=2).is_success
    for index in (0, 1):
        send(client, f"persistent://{namespace}/p-partition-{index}", 3)
    assert admin.delete(f"/persistent/{namespace}/p/truncate").is_success
    for index in (0, 1):
        path = f"/persistent/{namespace}/p-partition-{index}"
        metrics = admin.get(f"{path}/internalStats").json()
        assert (metrics["numberOfEntries"], metrics["totalSize"]) == (0, 0)
        send(client, f"persistent://{namespace}/p-partition-{index}", 1)
        assert admin.get(f"{path}/internalStats").json()["numberOfEntries"] == 1


@pytest.mark.usefixtures("ours")
def test_permissions_are_stored_for_a_topic_and_its_partitions(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/p"
    assert admin.put(f"{path}/partitions", json=2).is_success
    assert admin.post(f"{path}/permissions/a%2Fb", json=["produce", "consume"]).is_success
    for name in (path, f"{path}-partition-1"):
        assert admin.get(f"{name}/permissions").json() == {"a/b": ["produce", "consume"]}
    assert admin.post(f"{path}/permissions/a%2Fb", json=["consume"]).is_success
    assert admin.get(f"{path}/permissions").json() == {"a/b": ["consume"]}
    assert admin.post(f"{path}/permissions/joe", json=["fly"]).status_code == 400
    assert admin.post(f"{path}/permissions/joe").status_code == 400
    assert admin.delete(f"{path}/permissions/joe").status_code == 412
    assert admin.delete(f"{path}/permissions/a%2Fb").is_success
    assert admin.get(f"{path}-partition-1/permissions").json() == {}
    assert admin.post(f"/persistent/{namespace}/no/permissions/joe", json=[]).status_code == 404


@pytest.mark.usefixtures("ours")
def test_several_topics_are_granted_and_revoked_in_one_call(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}"
    assert admin.put(f"{path}/p/partitions", json=2).is_success
    assert admin.put(f"{path}/t").is_success
    p, t = f"persistent://{namespace}/p", f"persistent://{namespace}/t"
    grant, revoke = "/namespaces/grantPermissionsOnTopics", "/namespaces/revokePermissionsOnTopics"
    joe = {"topic": p, "role": "joe", "actions": ["produce"]}
    jim = {"topic": t, "role": "jim", "actions": ["consume"]}
    for refused, status in (
        ([joe, {**jim, "topic": f"persistent://{namespace}x/t"}], 400),
        ([joe, {**jim, "topic": f"persistent://{namespace}/no"}], 404),
        ([joe, {**jim, "actions": ["fly"]}], 400),
        ([joe, {**jim, "topic": "no/topic"}], 412),
        ([], 400),
        (None, 400),
    ):
        assert admin.post(grant, json=refused).status_code == status
        assert admin.get(f"{path}/p/permissions").json() == {}, "all of it or nothing"
    assert admin.post(grant, json=[joe, jim]).status_code == 204
    assert admin.get(f"{path}/p-partition-1/permissions").json() == {"joe": ["produce"]}
    assert admin.get(f"{path}/t/permissions").json() == {"jim": ["consume"]}
    assert admin.post(revoke, json=[joe, {**jim, "role": "no"}]).status_code == 412
    assert admin.get(f"{path}/p/permissions").json() == {"joe": ["produce"]}, "nothing was revoked"
    assert admin.post(revoke, json=[joe, jim]).status_code == 204
    for name in ("p", "p-partition-0", "t"):
        assert admin.get(f"{path}/{name}/permissions").json() == {}


@pytest.mark.usefixtures("ours")
def test_a_new_topic_does_not_inherit_grants(admin: httpx.Client, namespace: str) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    assert admin.post(f"{path}/permissions/joe", json=["produce"]).is_success
    assert admin.delete(path).is_success
    assert admin.put(path).is_success
    assert admin.get(f"{path}/permissions").json() == {}


@pytest.mark.usefixtures("ours")
def test_a_partitioned_topic_in_use_stays_whole(
    admin: httpx.Client, service_url: str, namespace: str
) -> None:
    path, topic = f"/persistent/{namespace}/p", f"persistent://{namespace}/p-partition-2"
    assert admin.put(f"{path}/partitions", json=3).is_success
    # One that doesn't come back when it is sent away: that would make the topic anew.
    with RawClient(service_url) as consumer:
        consumer.look_up(topic)
        assert isinstance(consumer.subscribe(topic, "s"), pb.CommandSuccess)
        assert admin.delete(f"{path}/partitions").status_code == 412
        assert len(admin.get(f"/persistent/{namespace}").json()) == 3
        assert admin.delete(f"{path}/partitions?force=true").is_success
        assert admin.get(f"/persistent/{namespace}").json() == []


@pytest.mark.usefixtures("ours")
def test_what_does_not_exist_is_refused(admin: httpx.Client, namespace: str) -> None:
    topic = f"/persistent/{namespace}/t"
    assert admin.put(topic).is_success
    assert admin.put(f"{topic}/subscription/s").is_success
    refused = admin.put(f"{topic}/shadowTopics", json=["persistent://public/default/shadow"])
    assert refused.status_code == 501
    assert "not supported" in refused.json()["reason"]
    assert admin.get(f"{topic}/compaction").json()["status"] == "NOT_RUN"
    assert admin.get(f"{topic}/offload").json()["status"] == "NOT_RUN"
    assert admin.get(f"{topic}/subscriptions").json() == ["s"]


@pytest.mark.usefixtures("ours")
def test_properties_are_bounded_and_some_are_the_brokers(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    large = {str(number): "x" * 1000 for number in range(50)}
    assert admin.put(f"{path}/properties", json=large).is_success
    more = {f"more{number}": "x" * 1000 for number in range(50)}
    assert admin.put(f"{path}/properties", json=more).status_code == 412, "together too large"
    assert admin.get(f"{path}/properties").json() == large
    epoch = {"pulsar.topic.epoch": "7"}
    assert admin.put(f"{path}/properties", json=epoch).status_code == 412
    assert admin.put(f"{path}/subscription/s", json={"properties": {"x": "y" * 70_000}}).is_error
    assert admin.get(f"{path}/subscriptions").json() == []


@pytest.mark.usefixtures("ours")
def test_offline_figures_are_told_of_loaded_topics_too(
    admin: httpx.Client, client: pulsar.Client, namespace: str
) -> None:
    path = f"/persistent/{namespace}/t"
    assert admin.put(path).is_success
    assert admin.put(f"{path}/subscription/s").is_success
    send(client, f"persistent://{namespace}/t", 3)
    metrics = admin.get(f"{path}/backlog").json()
    assert (metrics["totalMessages"], metrics["messageBacklog"]) == (3, 3)
    assert metrics["topicName"] == f"{namespace}/persistent/t"
    assert metrics["cursorDetails"]["s"]["cursorBacklog"] == 3
    assert metrics["storageSize"] > 0
