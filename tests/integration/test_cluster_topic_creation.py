"""Topics that only an administrator may make, in a cluster, whichever broker is asked."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.cluster_process import ClusterProcess
from tests.cluster_tools import WAIT_S
from tests.waiting import wait_until

ADMIN = "/admin/v2"
PARTITIONS = 6


def make(client: httpx.Client, path: str, body: object) -> None:
    """As soon as there is a leader."""

    def is_made() -> bool:
        answer = client.put(f"{ADMIN}/persistent/{path}", json=body)
        # 503: nobody leads just now; 409: it was made by a call that was answered so.
        assert answer.status_code in (204, 409, 503), answer.text
        return answer.status_code != 503

    wait_until(is_made, f"{path} is made", WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("by_epoch", ["false", "true"])
def test_the_first_topic_of_a_bundle_is_made_wherever_it_is_asked(
    tmp_path: Path, by_epoch: str
) -> None:
    """Nobody owns the bundles, and no client could look the topics up yet: by who leads, and by who
    doesn't; the brokers that are chosen make them."""
    settings = ("allowAutoTopicCreation=false", f"loadBalancerLeaderEpochEnabled={by_epoch}")
    options = [word for setting in settings for word in ("--broker-set", setting)]
    folder = tmp_path / "data"
    with ClusterProcess(folder, "--brokers", "3", "--bookies", "1", *options) as process:
        clients = [
            httpx.Client(base_url=url, timeout=WAIT_S, follow_redirects=True)
            for url in process.web_urls
        ]
        names = sorted(url.removeprefix("http://") for url in process.web_urls)
        wait_until(
            lambda: all(each.get(f"{ADMIN}/brokers").json() == names for each in clients),
            "all brokers are listed",
            WAIT_S,
        )
        for number, client in enumerate(clients):
            namespace = f"public/made-at-{number}"
            body = {"bundles": {"numBundles": 8}}
            answer = client.put(f"{ADMIN}/namespaces/{namespace}", json=body)
            assert answer.status_code == 204, answer.text
            make(client, f"{namespace}/t", None)
            make(client, f"{namespace}/p/partitions", PARTITIONS)
            for name in ("t", *(f"p-partition-{index}" for index in range(PARTITIONS))):
                lookup = f"/lookup/v2/topic/persistent/{namespace}/{name}"
                found = [each.get(lookup) for each in clients]
                assert [each.status_code for each in found] == [200] * 3, found[0].text
                assert len({each.json()["httpUrl"] for each in found}) == 1
            topics = [each.get(f"{ADMIN}/persistent/{namespace}").json() for each in clients]
            assert [len(each) for each in topics] == [PARTITIONS + 1] * len(clients)
        for each in clients:
            each.close()
