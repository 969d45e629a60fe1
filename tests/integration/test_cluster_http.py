"""HTTP with three brokers: whichever is asked, the answer is the same; and a broker that dies."""

import base64
import itertools
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pulsar
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.child_process import suspend, unread_connections
from tests.cluster_process import ClusterProcess
from tests.official_client import open_client
from tests.waiting import wait_until

PARTITIONS = 12
MESSAGES = 36
ADMIN = "/admin/v2"
TOPICS = f"{ADMIN}/persistent/public/default"
NAMESPACE = f"{ADMIN}/namespaces/public/default"
WAIT_S = 90


class Cluster:
    """Three brokers and an HTTP client of each, which goes where it is sent."""

    def __init__(self, process: ClusterProcess) -> None:
        self.process = process
        self.brokers = [
            httpx.Client(base_url=url, timeout=WAIT_S, follow_redirects=True)
            for url in process.web_urls
        ]
        self.names = [url.removeprefix("http://") for url in process.web_urls]
        self._turn = itertools.cycle(self.brokers)

    def any(self) -> httpx.Client:
        """Another one each time."""
        return next(self._turn)

    def done(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self.any().request(method, path, **options)
        assert answer.status_code in (200, 204), f"{method} {path}: {answer.text}"
        return answer

    def owners(self, topic: str) -> list[str]:
        """Web addresses of the brokers of the partitions; "": nobody's just now."""
        found = []
        for number in range(PARTITIONS):
            path = f"/lookup/v2/topic/persistent/public/default/{topic}-partition-{number}"
            answer = self.any().get(path)
            url = answer.json()["httpUrl"] if answer.status_code == 200 else ""
            found.append(url.removeprefix("http://"))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    process = ClusterProcess(
        tmp_path_factory.mktemp("cluster") / "data",
        *("--brokers", "3", "--bookies", "1"),
        # A paused broker is to stay the owner of its bundles.
        *("--broker-set", "metadataStoreSessionTimeoutMillis=60000"),
        # Nor is a killed one to lose them at once.
        *("--broker-set", "brokerPeerFailureDetectionEnabled=false"),
    )
    with process:
        cluster = Cluster(process)
        try:
            everybody = sorted(cluster.names)
            wait_until(
                lambda: all(b.get(f"{ADMIN}/brokers").json() == everybody for b in cluster.brokers),
                "all brokers are listed",
                WAIT_S,
            )
            yield cluster
        finally:
            for broker in cluster.brokers:
                broker.close()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[pulsar.Client]:
    made = open_client(cluster.process.service_url, operation_timeout_seconds=WAIT_S)
    yield made
    made.close()


def spread_out(cluster: Cluster, topic: str) -> list[str]:
    """Bundles of the partitions go to all three brokers; the owners."""

    def is_spread() -> bool:
        owners = cluster.owners(topic)
        if set(owners) == set(cluster.names):
            return True
        most = max(cluster.names, key=owners.count)
        missing = next(name for name in cluster.names if name not in owners)
        number = owners.index(most)
        full = f"persistent/public/default/{topic}-partition-{number}"
        bundle = cluster.any().get(f"/lookup/v2/topic/{full}/bundle").text
        cluster.any().put(f"{NAMESPACE}/{bundle}/unload")
        # Who says that it was chosen takes what nobody owns.
        cluster.brokers[cluster.names.index(missing)].get(
            f"/lookup/v2/topic/{full}?authoritative=true"
        )
        return False

    wait_until(is_spread, "every broker has partitions", WAIT_S)
    return cluster.owners(topic)


def new_topic(cluster: Cluster, client: pulsar.Client) -> str:
    """A partitioned topic with brokers everywhere, two subscriptions and messages."""
    topic = f"t-{secrets.token_hex(4)}"
    cluster.done("PUT", f"{TOPICS}/{topic}/partitions", json=PARTITIONS)
    spread_out(cluster, topic)
    for subscription in ("one", "two"):
        cluster.done("PUT", f"{TOPICS}/{topic}/subscription/{subscription}")
    publish(client, topic)
    return topic


def publish(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(
        topic,
        batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    for number in range(MESSAGES):
        producer.send(b"%d" % number)
    producer.close()


@pytest.fixture
def topic(cluster: Cluster, client: pulsar.Client) -> str:
    return new_topic(cluster, client)


def backlogs(cluster: Cluster, topic: str) -> dict[str, int]:
    """By subscription, as all three brokers say it."""
    answers = told_backlogs(cluster, topic)
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def told_backlogs(cluster: Cluster, topic: str) -> list[dict[str, int]]:
    """As each broker says it; while acknowledgements come they differ."""
    answers = []
    for broker in cluster.brokers:
        answer = broker.get(f"{TOPICS}/{topic}/partitioned-stats")
        assert answer.status_code == 200, answer.text
        subscriptions = answer.json()["subscriptions"]
        answers.append({name: stats["msgBacklog"] for name, stats in subscriptions.items()})
    return answers


def _stats(answer: Any) -> Any:
    """What doesn't change while nobody publishes."""
    parts = {name: _stats(part) for name, part in answer.get("partitions", {}).items()}
    fields = ("msgInCounter", "bytesInCounter", "storageSize")
    return {
        **{field: answer[field] for field in fields},
        "subscriptions": {n: s["msgBacklog"] for n, s in answer["subscriptions"].items()},
        "partitions": parts,
    }


def _internal(answer: Any) -> Any:
    return {name: part["numberOfEntries"] for name, part in answer["partitions"].items()}


def _as_it_is(answer: Any) -> Any:
    return sorted(answer) if isinstance(answer, list) else answer


QUESTIONS: list[tuple[str, Callable[[Any], Any]]] = [
    (f"{ADMIN}/brokers", _as_it_is),
    (f"{ADMIN}/brokers/standalone", _as_it_is),
    (f"{ADMIN}/brokers/leaderBroker", _as_it_is),
    (f"{ADMIN}/clusters", _as_it_is),
    (f"{NAMESPACE}/bundles", _as_it_is),
    (f"{NAMESPACE}/topics", _as_it_is),
    (f"{NAMESPACE}/topics?mode=ALL", _as_it_is),
    (TOPICS, _as_it_is),
    (f"{TOPICS}/partitioned", _as_it_is),
    (f"{ADMIN}/non-persistent/public/default", _as_it_is),
    (f"{ADMIN}/non-persistent/public/default/volatile/partitions", _as_it_is),
    (f"{TOPICS}/TOPIC/partitions", _as_it_is),
    (f"{TOPICS}/TOPIC/subscriptions", _as_it_is),
    (f"{TOPICS}/TOPIC/partitioned-stats", _stats),
    (f"{TOPICS}/TOPIC/partitioned-internalStats", _internal),
    (f"{TOPICS}/TOPIC/partitioned-internalStats?firstPartition=1&partitionsMax=1", _internal),
    (f"{TOPICS}/TOPIC/internal-info", _as_it_is),
    (f"{TOPICS}/TOPIC/properties", _as_it_is),
    (f"{TOPICS}/TOPIC/permissions", _as_it_is),
    (f"{TOPICS}/TOPIC/subscription/one/properties", _as_it_is),
    (f"{TOPICS}/TOPIC/subscription/one/replicatedSubscriptionStatus", _as_it_is),
    (f"{TOPICS}/TOPIC/explain", _as_it_is),
    (f"{TOPICS}/TOPIC/subscription/one/explain", _as_it_is),
    *(
        (path.replace("N", str(number)), view)
        for number in range(PARTITIONS)
        for path, view in (
            ("/lookup/v2/topic/persistent/public/default/TOPIC-partition-N", _as_it_is),
            (f"{TOPICS}/TOPIC-partition-{number}/stats", _stats),
            (f"{TOPICS}/TOPIC-partition-{number}/lastMessageId", _as_it_is),
            (f"{TOPICS}/TOPIC-partition-{number}/subscriptions", _as_it_is),
            (f"{TOPICS}/TOPIC/subscription/one/explain?messageId=999999999:0:N", _as_it_is),
        )
    ),
]


@pytest.mark.slow
def test_every_broker_gives_the_same_answers(
    cluster: Cluster, client: pulsar.Client, topic: str
) -> None:
    volatile = client.create_producer("non-persistent://public/default/volatile")
    cluster.done("PUT", f"{TOPICS}/{topic}/subscription/one/properties", json={"team": "a"})
    for path, view in QUESTIONS:
        answers = []
        for broker in cluster.brokers:
            answer = broker.get(path.replace("TOPIC", topic))
            assert answer.status_code == 200, f"{answer.url}: {answer.text}"
            answers.append(view(answer.json()))
        assert answers[0] == answers[1] == answers[2], path
    stats = cluster.done("GET", f"{TOPICS}/{topic}/partitioned-stats").json()
    assert stats["msgInCounter"] == MESSAGES
    assert len(stats["partitions"]) == PARTITIONS
    listed = cluster.done("GET", f"{ADMIN}/non-persistent/public/default").json()
    assert "non-persistent://public/default/volatile" in listed
    volatile.close()
    owned: dict[str, str] = {}
    for name in cluster.names:
        path = f"{ADMIN}/brokers/standalone/{name}/ownedNamespaces"
        answers = [broker.get(path).json() for broker in cluster.brokers]
        assert answers[0] == answers[1] == answers[2]
        for bundle in answers[0]:
            assert owned.setdefault(bundle, name) == name
    assert set(owned.values()) == set(cluster.names)
    missing = cluster.any().get(f"{ADMIN}/brokers/standalone/127.0.0.1:1/ownedNamespaces")
    assert missing.status_code == 404
    for broker in cluster.brokers:
        assert broker.get(f"{ADMIN}/brokers/health").text == "ok"


@pytest.mark.slow
def test_calls_over_partitions_reach_all_of_them(cluster: Cluster, topic: str) -> None:
    path = f"{TOPICS}/{topic}"
    assert backlogs(cluster, topic) == {"one": MESSAGES, "two": MESSAGES}
    cluster.done("POST", f"{path}/subscription/one/skip_all")
    assert backlogs(cluster, topic) == {"one": 0, "two": MESSAGES}
    cluster.done("POST", f"{path}/subscription/one/resetcursor/0")
    assert backlogs(cluster, topic) == {"one": MESSAGES, "two": MESSAGES}
    cluster.done("PUT", f"{path}/unload")
    assert backlogs(cluster, topic) == {"one": MESSAGES, "two": MESSAGES}
    again = cluster.any().put(f"{path}/subscription/two")
    assert (again.status_code, again.json()["reason"]) == (
        409,
        "Subscription already exists for topic",
    )
    none = cluster.any().post(f"{path}/subscription/none/skip_all")
    assert none.status_code == 404
    assert "none" in none.json()["reason"]
    cluster.done("DELETE", f"{path}/subscription/one")
    assert backlogs(cluster, topic) == {"two": MESSAGES}
    cluster.done("POST", f"{path}/partitions", json=PARTITIONS + 3)
    for broker in cluster.brokers:  # new partitions have the subscriptions of the old ones
        for number in range(PARTITIONS, PARTITIONS + 3):
            found = broker.get(f"{path}-partition-{number}/subscriptions")
            assert found.json() == ["two"], found.text
    ended = cluster.done("POST", f"{path}/terminate/partitions").json()
    assert set(ended) == {str(number) for number in range(PARTITIONS + 3)}
    assert all(id_["partitionIndex"] == int(number) for number, id_ in ended.items())
    cluster.done("DELETE", f"{path}/truncate")
    assert backlogs(cluster, topic) == {"two": 0}
    cluster.done("DELETE", f"{path}/partitions")
    for broker in cluster.brokers:
        assert not [name for name in broker.get(TOPICS).json() if topic in name]


@pytest.mark.slow
def test_every_broker_lists_the_topics_of_all(cluster: Cluster, topic: str) -> None:
    owners = cluster.owners(topic)
    asked = f"{ADMIN}/topics-index?q={topic}-partition-&limit=5"
    expected = [f"persistent://public/default/{topic}-partition-{n}" for n in range(PARTITIONS)]
    for broker in cluster.brokers:

        def rows(broker: httpx.Client = broker) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            after = ""
            while True:
                answer = broker.get(f"{asked}{after}").json()
                assert answer["silentBrokers"] == {}
                found += answer["topics"]
                if answer["next"] is None:
                    return found
                after = f"&after={quote(answer['next'])}"

        wait_until(lambda: all(row["broker"] for row in rows()), "all are loaded", WAIT_S)
        assert [row["topic"] for row in rows()] == sorted(expected)
        assert {row["topic"]: row["broker"] for row in rows()} == dict(
            zip(expected, owners, strict=True)
        )
    sums = cluster.any().get(f"{ADMIN}/namespaces-index").json()["namespaces"]
    total = cluster.any().get(f"{ADMIN}/topics-index").json()["total"]
    assert sum(each["topicCount"] for each in sums.values()) == total


def test_a_topic_in_use_is_not_deleted_in_part(
    cluster: Cluster, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "one")
    for broker in cluster.brokers:
        refused = broker.delete(f"{TOPICS}/{topic}/partitions")
        assert (refused.status_code, refused.json()["reason"]) == (
            412,
            "Topic has active producers/subscriptions",
        )
    assert backlogs(cluster, topic)["two"] == MESSAGES, "nothing was deleted"
    consumer.close()
    cluster.done("DELETE", f"{TOPICS}/{topic}/partitions")


@pytest.mark.slow
def test_calls_over_a_namespace(cluster: Cluster, client: pulsar.Client, topic: str) -> None:
    cluster.done("POST", f"{NAMESPACE}/clearBacklog/one")
    assert backlogs(cluster, topic) == {"one": 0, "two": MESSAGES}
    consumer = client.subscribe(topic, "two")
    refused = cluster.any().post(f"{NAMESPACE}/unsubscribe/two")
    assert refused.status_code == 412, refused.text
    assert backlogs(cluster, topic).keys() == {"one", "two"}
    consumer.close()
    cluster.done("POST", f"{NAMESPACE}/unsubscribe/two")
    assert backlogs(cluster, topic) == {"one": 0}
    publish(client, topic)
    cluster.done("POST", f"{NAMESPACE}/clearBacklog")
    assert backlogs(cluster, topic) == {"one": 0}

    before = {bundle for name in cluster.names for bundle in owned(cluster, name)}
    assert any(bundle.startswith("public/default/") for bundle in before)
    cluster.done("PUT", f"{NAMESPACE}/unload")
    left = [bundle for name in cluster.names for bundle in owned(cluster, name)]
    assert [bundle for bundle in left if bundle.startswith("public/default/")] == []
    assert backlogs(cluster, topic) == {"one": 0}, "and it is served again"


def owned(cluster: Cluster, name: str) -> list[str]:
    path = f"{ADMIN}/brokers/standalone/{name}/ownedNamespaces"
    return list(cluster.done("GET", path).json())


def rest_messages(texts: list[str]) -> dict[str, Any]:
    return {"messages": [{"payload": text, "key": text} for text in texts]}


@pytest.mark.slow
def test_rest_publishes_and_consumes_at_every_broker(cluster: Cluster, topic: str) -> None:
    cluster.done("POST", f"{NAMESPACE}/clearBacklog")
    path = f"/topics/persistent/public/default/{topic}"
    sent = []
    for number, broker in enumerate(cluster.brokers):
        texts = [f"{number}-{index}" for index in range(20)]
        answer = broker.post(path, json=rest_messages(texts))
        assert answer.status_code == 200, answer.text
        results = answer.json()["messagePublishResults"]
        assert [result["errorCode"] for result in results] == [0] * 20, results
        sent += texts
    assert backlogs(cluster, topic) == {"one": 60, "two": 60}
    session = f"{path}/subscription/one"
    names = set()
    received: list[str] = []
    tokens: list[str] = []
    while len(received) < len(sent):  # each call at another broker
        answer = cluster.any().get(f"{session}/messages", params={"consumer": "c", "max": 7})
        assert answer.status_code == 200, answer.text
        names.add(answer.json()["session"])
        received += [message["payload"] for message in answer.json()["messages"]]
        tokens += [message["token"] for message in answer.json()["messages"]]
    assert len(names) == 1, "one session, whoever is asked"
    assert sorted(received) == sorted(sent)
    for start in range(0, len(tokens), 20):
        some = tokens[start : start + 20]
        done = cluster.done("POST", f"{session}/ack?consumer=c", json={"tokens": some})
        assert done.json()["acknowledged"] == len(some)
    assert backlogs(cluster, topic) == {"one": 0, "two": 60}
    cluster.done("DELETE", f"{session}/session?consumer=c")
    gone = cluster.any().delete(f"{session}/session?consumer=c")
    assert gone.status_code == 404


def test_the_console_of_every_broker_follows_and_exports(cluster: Cluster, topic: str) -> None:
    """Whichever broker has the partition."""
    owners = cluster.owners(topic)
    page = f"/console/topic/persistent/public/default/{topic}/messages"
    for owner in cluster.names:
        number = owners.index(owner)
        path = f"/topics/persistent/public/default/{topic}/partitions/{number}"
        for broker in cluster.brokers:
            url = f"{page}/follow?partition={number}"
            with broker.stream("GET", url) as answer:
                assert answer.status_code == 200, answer.read()
                lines = answer.iter_lines()
                assert json.loads(next(lines))["found"] == 0
                text = secrets.token_hex(4)
                cluster.done("POST", path, json=rest_messages([text]))
                assert json.loads(next(lines))["payload"] == text
            whole = broker.get(f"{page}.ndjson?position=earliest&partition={number}")
            assert text in whole.text
            refused = broker.get(f"{url}&filter=%3D")
            assert refused.status_code == 400, refused.text


def socket_of(cluster: Cluster, number: int, path: str) -> ClientConnection:
    url = f"ws://{cluster.names[number]}/ws/v2/{path}"
    return connect(url, open_timeout=WAIT_S, compression=None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["partitioned", "single"])
def test_sockets_are_served_at_every_broker(
    cluster: Cluster, client: pulsar.Client, topic: str, kind: str
) -> None:
    local = topic if kind == "partitioned" else f"{topic}-partition-0"
    name = f"persistent/public/default/{local}"
    cluster.done("POST", f"{NAMESPACE}/clearBacklog")
    for number in range(3):
        with (
            socket_of(cluster, number, f"producer/{name}") as producer,
            socket_of(cluster, (number + 1) % 3, f"consumer/{name}/one") as consumer,
        ):
            sent = set()
            for index in range(20):
                payload = base64.b64encode(f"{number}-{index}".encode()).decode()
                producer.send(json.dumps({"payload": payload, "context": str(index)}))
                receipt = json.loads(producer.recv(WAIT_S))
                assert (receipt["result"], receipt["context"]) == ("ok", str(index))
                sent.add(payload)
            received: set[str] = set()
            while received != sent:
                message = json.loads(consumer.recv(WAIT_S))
                received.add(message["payload"])
                assert received <= sent
                consumer.send(json.dumps({"messageId": message["messageId"]}))
        wait_until(
            lambda: all(told["one"] == 0 for told in told_backlogs(cluster, topic)),
            "acknowledged",
            WAIT_S,
        )
    with pytest.raises(InvalidStatus) as raised:
        socket_of(cluster, 0, f"consumer/{name}/a?subscriptionType=Nonsense")
    assert raised.value.response.status_code == 400


@pytest.mark.slow
def test_an_exclusive_subscription_is_one_over_all_brokers(cluster: Cluster, topic: str) -> None:
    name = f"persistent/public/default/{topic}-partition-0"
    path = f"consumer/{name}/one?subscriptionType=Exclusive"
    with socket_of(cluster, 0, path):
        for number in range(3):
            with pytest.raises(InvalidStatus) as raised:
                socket_of(cluster, number, path)
            assert raised.value.response.status_code == 409


@pytest.mark.slow
def test_bundles_are_split_and_unloaded_by_their_owner(cluster: Cluster, topic: str) -> None:
    for number, owner in enumerate(cluster.owners(topic)):
        full = f"persistent/public/default/{topic}-partition-{number}"
        bundle = cluster.done("GET", f"/lookup/v2/topic/{full}/bundle").text
        other_broker = cluster.brokers[(cluster.names.index(owner) + 1) % 3]
        at_owner = f"http://{owner}{NAMESPACE}/{bundle}/split"
        redirect = other_broker.put(f"{NAMESPACE}/{bundle}/split", follow_redirects=False)
        assert (redirect.status_code, redirect.headers["location"]) == (307, at_owner)
        count = cluster.done("GET", f"{NAMESPACE}/bundles").json()["numBundles"]
        assert other_broker.put(f"{NAMESPACE}/{bundle}/split").status_code == 204
        assert cluster.done("GET", f"{NAMESPACE}/bundles").json()["numBundles"] == count + 1
        part = cluster.done("GET", f"/lookup/v2/topic/{full}/bundle").text
        assert part != bundle
        unload = f"{NAMESPACE}/{part}/unload?destinationBroker"
        assert other_broker.put(f"{unload}=127.0.0.1:1").status_code == 409
        new_owner = next(name for name in cluster.names if name != owner)
        given = other_broker.put(f"{unload}={new_owner}")
        assert given.status_code == 204, given.text
        assert cluster.owners(topic)[number] == new_owner
        if number == 2:
            break
    cluster.done("PUT", f"{NAMESPACE}/LARGEST/split")
    assert backlogs(cluster, topic) == {"one": MESSAGES, "two": MESSAGES}


@pytest.mark.slow
def test_a_namespace_with_topics_everywhere_is_deleted(cluster: Cluster) -> None:
    name = f"n-{secrets.token_hex(4)}"
    namespace, topics = f"{ADMIN}/namespaces/public/{name}", f"{ADMIN}/persistent/public/{name}"
    cluster.done("PUT", namespace)
    cluster.done("PUT", f"{topics}/p/partitions", json=4)
    for number, broker in enumerate(cluster.brokers):
        assert broker.put(f"{topics}/t-{number}").status_code == 204
    assert cluster.any().delete(namespace).status_code == 409
    for number in range(3):
        cluster.done("DELETE", f"{topics}/t-{number}")
    cluster.done("DELETE", f"{topics}/p/partitions?force=true")
    cluster.done("DELETE", namespace)
    for broker in cluster.brokers:
        assert broker.get(namespace).status_code == 404
    left = [bundle for broker in cluster.names for bundle in owned(cluster, broker)]
    assert [bundle for bundle in left if bundle.startswith(f"public/{name}/")] == []


@pytest.mark.slow
def test_a_broker_that_dies_is_named_and_nothing_is_half_told(cluster: Cluster, topic: str) -> None:
    """Last in this module: one broker is killed."""
    victim = cluster.owners(topic)[0]
    index = cluster.names.index(victim)
    asked = cluster.brokers[(index + 1) % 3]
    process = cluster.process.children()[f"broker-{index + 1}"]
    suspend(process.pid)  # so that the calls are under way when it dies
    answers: dict[str, httpx.Response] = {}

    def ask(name: str, method: str, path: str) -> None:
        answers[name] = asked.request(method, path)

    calls = {
        "read": ("GET", f"{TOPICS}/{topic}/partitioned-stats"),
        "write": ("POST", f"{TOPICS}/{topic}/subscription/one/skip_all"),
    }
    threads = [threading.Thread(target=ask, args=(name, *call)) for name, call in calls.items()]
    for thread in threads:
        thread.start()
    port = int(victim.rpartition(":")[2])
    wait_until(lambda: unread_connections(port) >= 2, "the victim is being asked", WAIT_S)
    process.kill()
    for thread in threads:
        thread.join(WAIT_S)
    for name, answer in answers.items():
        assert answer.status_code == 503, (name, answer.text)
        reason = answer.json()["reason"]
        assert f"Broker {victim} " in reason
        assert "has not answered" in reason or "can't be reached" in reason
        assert f"of {PARTITIONS} partitions" in reason
        assert f"{topic}-partition-" in reason
    assert answers.keys() == calls.keys()
    found = asked.get(f"{ADMIN}/topics-index")
    assert found.status_code == 200
    assert list(found.json()["silentBrokers"]) == [victim]
