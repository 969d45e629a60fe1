"""What operators wish by HTTP changes where a real cluster places bundles."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.cluster_process import ClusterProcess
from tests.integration.failure_tools import wait_until

ADMIN = "/admin/v2"
WAIT_S = 120
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

    def placed(self, name: str) -> str:
        """Look a topic up for the first time; the broker that has its namespace now."""
        answer = self.leader.get(f"/lookup/v2/topic/persistent/public/{name}/topic")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["httpUrl"]).removeprefix("http://")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("wishes") / "data"
    options = ("--broker-set", PLACEMENT)
    with ClusterProcess(folder, "--brokers", "3", "--bookies", "1", *options) as process:
        cluster = Cluster(process)
        try:
            yield cluster
        finally:
            cluster.leader.close()


@pytest.mark.slow
def test_a_quota_counts_as_load_where_its_bundle_is_placed(cluster: Cluster) -> None:
    """Nobody has seen traffic; an operator has said what one bundle will need."""
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
    for number in range(9):
        cluster.namespace(f"light{number}")
    placed = [cluster.placed(f"light{number}") for number in range(9)]
    assert taken not in placed
    assert len(set(placed)) == 2
