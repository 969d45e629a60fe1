"""What operators wish by HTTP changes where a real cluster places bundles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster_process import ClusterProcess
from tests.waiting import wait_until

ADMIN = "/admin/v2"
WAIT_S = 120
CLUSTER = "standalone"
PLACEMENT = "loadBalancerLoadPlacementStrategy=LeastLongTermMessageRate"


class Cluster:
    """Three brokers; ``leader`` asks the one that places."""

    def __init__(self, process: ClusterProcess) -> None:
        self.urls = process.web_urls
        self.names = [url.removeprefix("http://") for url in self.urls]
        any_one = httpx.Client(base_url=self.urls[0], timeout=WAIT_S, follow_redirects=True)
        with any_one:
            wait_until(
                lambda: any_one.get(f"{ADMIN}/brokers").json() == sorted(self.names),
                "all brokers are listed",
                WAIT_S,
            )
            url = any_one.get(f"{ADMIN}/brokers/leaderBroker").json()["serviceUrl"]
        self.leader = httpx.Client(base_url=url, timeout=WAIT_S, follow_redirects=True)

    def done(self, method: str, path: str, body: object = None) -> httpx.Response:
        answer = self.leader.request(method, f"{ADMIN}/{path}", json=body)
        assert answer.status_code in (200, 204), f"{method} {path}: {answer.text}"
        return answer

    def namespace(self, name: str) -> None:
        self.done("PUT", f"namespaces/public/{name}", {"bundles": {"numBundles": 1}})

    def wait_for_reports(self) -> None:
        """Until the leader chooses among all brokers: it takes those first that have reported."""
        numbers, seen = itertools.count(), set()

        def all_are_chosen() -> bool:
            name = f"early{next(numbers)}"
            self.namespace(name)
            seen.add(self.placed(name))
            return seen == set(self.names)

        wait_until(all_are_chosen, "each broker is chosen for something", WAIT_S)

    def placed(self, name: str) -> str:
        """Look a topic up for the first time; the broker that has its namespace now."""
        answer = self.leader.get(f"/lookup/v2/topic/persistent/public/{name}/topic")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["httpUrl"]).removeprefix("http://")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("wishes") / "data"
    settings = (
        PLACEMENT,
        "failureDomainsEnabled=true",
        # On a busy machine all brokers would be overloaded, and no wish would count.
        "loadBalancerCPUResourceWeight=0",
    )
    options = [word for setting in settings for word in ("--broker-set", setting)]
    with ClusterProcess(folder, "--brokers", "3", "--bookies", "1", *options) as process:
        cluster = Cluster(process)
        try:
            cluster.wait_for_reports()
            yield cluster
        finally:
            cluster.leader.close()


@pytest.mark.slow
def test_a_group_s_namespaces_are_kept_apart(cluster: Cluster) -> None:
    """As many namespaces as brokers: each on one of its own, though chance or load says else."""
    for round_ in range(2):
        names = [f"apart{round_}-{number}" for number in range(3)]
        for name in names:
            cluster.namespace(name)
            cluster.done("POST", f"namespaces/public/{name}/antiAffinity", f"group{round_}")
        group = cluster.done(
            "GET", f"namespaces/{CLUSTER}/antiAffinity/group{round_}?tenant=public"
        )
        assert sorted(group.json()) == [f"public/{name}" for name in names]
        found = [cluster.placed(name) for name in names]
        assert set(found) == set(cluster.names), found


@pytest.mark.slow
def test_a_group_s_namespaces_go_to_different_failure_domains(cluster: Cluster) -> None:
    """Two domains: the third namespace shares one, and no two of the first two do."""
    first, second, third = cluster.names
    cluster.done("POST", f"clusters/{CLUSTER}/failureDomains/a", {"brokers": [first, second]})
    cluster.done("POST", f"clusters/{CLUSTER}/failureDomains/b", {"brokers": [third]})
    names = ["domain0", "domain1"]
    for name in names:
        cluster.namespace(name)
        cluster.done("POST", f"namespaces/public/{name}/antiAffinity", "by-domain")
    placed = [cluster.placed(name) for name in names]
    assert third in placed, placed
    assert len(set(placed)) == 2


@pytest.mark.slow
def test_a_quota_counts_as_load_where_its_bundle_is_placed(cluster: Cluster) -> None:
    """Nobody has seen traffic; an operator has said what one bundle will need.

    The last one here: a broker that is full by its quota isn't chosen for a group's sake.
    """
    cluster.namespace("heavy")
    quota = {
        "msgRateIn": 100_000.0,
        "msgRateOut": 100_000.0,
        "bandwidthIn": 1e8,
        "bandwidthOut": 1e8,
        "memory": 80.0,
        "dynamic": False,
    }
    cluster.done("POST", "resource-quotas/public/heavy/0x00000000_0xffffffff", quota)
    taken = cluster.placed("heavy")
    for number in range(30):
        cluster.namespace(f"light{number}")
        assert cluster.placed(f"light{number}") != taken
