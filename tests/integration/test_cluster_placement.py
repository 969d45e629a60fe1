"""Whoever is asked, and by whatever call: bundles that nobody owns go where they are allowed to."""

import secrets
from collections.abc import Callable, Iterator

import httpx
import pytest
from websockets.sync.client import connect

from tests.cluster_process import ClusterProcess
from tests.waiting import wait_until

ADMIN = "/admin/v2"
WAIT_S = 90
NOWHERE = {"namespaceRegex": [], "primary": False}


def isolation(namespaces: str, primary: str, scope: str = "changed") -> dict[str, object]:
    """The policy that only one broker may serve some namespaces."""
    return {
        "namespaces": [namespaces],
        "primary": [primary],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "100"},
        },
        "unload_scope": scope,
    }


class Cluster:
    """Three brokers; a namespace that only the last of them may serve."""

    def __init__(self, process: ClusterProcess) -> None:
        self.names = [url.removeprefix("http://") for url in process.web_urls]
        self.brokers = [
            httpx.Client(base_url=url, timeout=WAIT_S, follow_redirects=True)
            for url in process.web_urls
        ]
        self.namespace = f"public/n-{secrets.token_hex(4)}"
        self.topics = f"{ADMIN}/persistent/{self.namespace}"
        self.path = f"{ADMIN}/namespaces/{self.namespace}"

    @property
    def bundle(self) -> str:
        """Of the stored topic."""
        path = f"/lookup/v2/topic/persistent/{self.namespace}/stored/bundle"
        return self.done("GET", path).text

    def done(self, method: str, path: str, body: object = None, broker: int = 0) -> httpx.Response:
        answer = self.brokers[broker].request(method, path, json=body)
        assert answer.status_code in (200, 204), f"{method} {path}: {answer.text}"
        return answer

    def everywhere(self, path: str) -> list[object]:
        return [broker.get(path).json() for broker in self.brokers]

    def owners(self) -> set[str]:
        """Brokers that own a bundle of the namespace, as they say themselves."""
        found = set()
        for name in self.names:
            path = f"{ADMIN}/brokers/standalone/{name}/ownedNamespaces"
            owned = self.done("GET", path).json()
            if any(each.startswith(f"{self.namespace}/") for each in owned):
                found.add(name)
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster") / "data"
    with ClusterProcess(folder, "--brokers", "3", "--bookies", "1") as process:
        cluster = Cluster(process)
        try:
            everybody = sorted(cluster.names)
            wait_until(
                lambda: all(each == everybody for each in cluster.everywhere(f"{ADMIN}/brokers")),
                "all brokers are listed",
                WAIT_S,
            )
            document = isolation(cluster.namespace, cluster.names[2])
            cluster.done(
                "POST", f"{ADMIN}/clusters/standalone/namespaceIsolationPolicies/p", document
            )
            cluster.done("PUT", cluster.path, {"bundles": {"numBundles": 4}})
            cluster.done("PUT", f"{cluster.topics}/stored")
            yield cluster
        finally:
            for broker in cluster.brokers:
                broker.close()


def rest(cluster: Cluster, topic: str, broker: int) -> None:
    path = f"/topics/persistent/{cluster.namespace}/{topic}"
    results = cluster.done("POST", path, {"messages": [{"payload": "x"}]}, broker).json()
    assert [each["errorCode"] for each in results["messagePublishResults"]] == [0]


def socket(cluster: Cluster, topic: str, broker: int) -> None:
    path = f"ws/v2/producer/persistent/{cluster.namespace}/{topic}"
    with connect(f"ws://{cluster.names[broker]}/{path}", open_timeout=WAIT_S):
        pass  # the producer is registered once the socket is open


def split(cluster: Cluster, topic: str, broker: int) -> None:
    cluster.done("PUT", f"{cluster.path}/{cluster.bundle}/split", None, broker)


def by_path(method: str, path: str, body: object = None) -> Callable[[Cluster, str, int], None]:
    """A call by its path: ``T`` and ``S`` are the paths of a new and of a stored topic, ``N`` that
    of the namespace, ``B`` of the stored topic's bundle, ``R`` what REST calls the topic.
    """

    def call(cluster: Cluster, topic: str, broker: int) -> None:
        words = {
            "T": f"{cluster.topics}/{topic}",
            "S": f"{cluster.topics}/stored",
            "N": cluster.path,
            "B": f"{cluster.path}/{cluster.bundle}",
            "R": f"/topics/persistent/{cluster.namespace}/stored",
        }
        cluster.done(method, words[path[0]] + path[1:], body, broker)

    return call


BY_CLIENTS = {
    "subscribe": by_path("PUT", "T/subscription/s"),
    "rest": rest,
    "rest-consume": by_path("GET", "R/subscription/s/messages?waitMs=1"),
    "socket": socket,
}
BY_OPERATORS = {
    "create": by_path("PUT", "T"),
    "stats": by_path("GET", "S/stats"),
    "internal-stats": by_path("GET", "S/internalStats"),
    "split": split,
    "clear-namespace": by_path("POST", "N/clearBacklog"),
    "clear-bundle": by_path("POST", "B/clearBacklog"),
}


@pytest.mark.slow
@pytest.mark.parametrize("creation", [True, False])
def test_isolation_holds_for_every_way_to_a_bundle(cluster: Cluster, creation: bool) -> None:
    """Also where clients may not make the topic, so that the leader refuses to look it up."""
    setting = f"{ADMIN}/brokers/configuration/allowAutoTopicCreation"
    cluster.done("POST", f"{setting}/{str(creation).lower()}")
    ways = BY_OPERATORS | (BY_CLIENTS if creation else {})
    for name, way in ways.items():
        for number in range(3):
            cluster.done("PUT", f"{cluster.path}/unload")
            wait_until(lambda: cluster.owners() == set(), "nobody owns anything", WAIT_S)
            way(cluster, f"t-{secrets.token_hex(4)}", number)
            assert cluster.owners() == {cluster.names[2]}, (name, number)


@pytest.mark.slow
def test_what_brokers_tell_of_isolation_and_what_a_changed_policy_moves(cluster: Cluster) -> None:
    policies = f"{ADMIN}/clusters/standalone/namespaceIsolationPolicies"
    known = {"namespaceRegex": [cluster.namespace], "policyName": "p", "primary": True}
    told = [
        {"brokerName": name, **(known if name == cluster.names[2] else NOWHERE)}
        for name in sorted(cluster.names)
    ]
    assert cluster.everywhere(f"{policies}/brokers") == [told] * 3
    one = f"{policies}/brokers/{cluster.names[2]}"
    assert cluster.everywhere(one) == [{"brokerName": cluster.names[2], **known}] * 3
    unreadable = isolation("public/(", cluster.names[0])
    assert cluster.brokers[0].post(f"{policies}/q", json=unreadable).status_code == 400

    for number, scope in ((0, "changed"), (1, "none"), (2, "all_matching")):
        before = cluster.owners()
        document = isolation(cluster.namespace, cluster.names[number], scope)
        cluster.done("POST", f"{policies}/p", document, number)
        assert cluster.everywhere(f"{policies}/p") == [document] * 3
        assert cluster.owners() == (before if scope == "none" else set())
        if scope == "none":
            cluster.done("PUT", f"{cluster.path}/unload")
        wait_until(lambda: cluster.owners() == set(), "nobody owns anything", WAIT_S)
        for broker in range(3):
            cluster.done("GET", f"{cluster.topics}/stored/stats", None, broker)
        assert cluster.owners() == {cluster.names[number]}
