"""The leader of a real cluster moves and cuts bundles by itself while official clients use them."""

import json
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from zlib import crc32

import pytest

from tests.cluster_process import ClusterProcess
from tests.cluster_tools import (
    WAIT_S,
    all_go_on,
    broker_at,
    get,
    known_leader,
    leader_of,
    owned_bundles,
    owner_of,
    stop_and_check,
)
from tests.cluster_traffic import TopicTraffic, start_traffic
from tests.nightly import NIGHTLY
from tests.official_client import open_client
from tests.waiting import wait_until

NAMESPACE = "public/default"
BALANCED_S = 600.0
SETTINGS = {
    "metadataStoreSessionTimeoutMillis": 4000,
    "loadBalancerSheddingIntervalMinutes": 0.05,
    "loadBalancerSheddingGracePeriodMinutes": 0.05,
    "loadBalancerReportUpdateMinIntervalMillis": 500,
    "statsUpdateFrequencyInSecs": 2,
    # By messages: all brokers share one machine, so their CPUs say nothing.
    "loadBalancerLoadSheddingStrategy": "UniformLoadShedder",
    "maxUnloadPercentage": 0.5,
    "minUnloadMessage": 1,
    "minUnloadMessageThroughput": 1,
    "loadBalancerNamespaceBundleMaxTopics": 5,
}


def topics_of(range_name: str, prefix: str, count: int) -> list[str]:
    """Names whose hashes fall into a bundle."""
    lower, upper = (int(each, 16) for each in range_name.split("_"))
    found: list[str] = []
    number = 0
    while len(found) < count:
        name = f"persistent://{NAMESPACE}/{prefix}-{number}"
        if lower <= crc32(name.encode()) < upper:
            found.append(name)
        number += 1
    return found


def boundaries(web_url: str) -> list[str]:
    answer = get(f"{web_url}/admin/v2/namespaces/{NAMESPACE}/bundles")
    return [] if answer is None else list(json.loads(answer)["boundaries"])


def bundle_of(topic: str, edges: list[str]) -> str:
    value = crc32(topic.encode())
    number = max(at for at, edge in enumerate(edges[:-1]) if int(edge, 16) <= value)
    return f"{edges[number]}_{edges[number + 1]}"


def owners(urls: list[str], traffic: list[TopicTraffic]) -> set[str | None]:
    return {owner_of(urls[0], each.topic) for each in traffic}


def shed(web_url: str, enabled: bool) -> None:
    value = str(enabled).lower()
    ask(web_url, "POST", f"brokers/configuration/loadBalancerSheddingEnabled/{value}")


def ask(web_url: str, method: str, path: str) -> None:
    request = urllib.request.Request(f"{web_url}/admin/v2/{path}", method=method)
    urllib.request.urlopen(request, timeout=WAIT_S).close()


def gather(urls: list[str], traffic: list[TopicTraffic], edges: list[str]) -> None:
    """All traffic to one broker, not the leader, while nobody else moves anything."""
    shed(urls[0], False)
    target = next(url for url in urls if url != leader_of(urls[0]))
    destination = target.removeprefix("http://")

    def gathered() -> bool:
        for each in traffic:
            owner = owner_of(urls[0], each.topic)
            if owner in urls and owner != target:
                bundle = f"{NAMESPACE}/{bundle_of(each.topic, edges)}"
                path = f"namespaces/{bundle}/unload?destinationBroker={destination}"
                with suppress(urllib.error.HTTPError):  # it was on its way already
                    ask(str(owner), "PUT", path)
        return owners(urls, traffic) == {target}

    wait_until(gathered, "one broker has everything", WAIT_S)
    all_go_on(traffic, "all came to one broker")


@pytest.mark.slow
@pytest.mark.parametrize("by_epoch", ["false", "true"] if NIGHTLY else ["false"])
def test_the_leader_sheds_and_splits_and_so_does_the_next(tmp_path: Path, by_epoch: str) -> None:
    """Nothing acknowledged is lost, and each producer's order stays; in both modes of writing."""
    settings = SETTINGS | {"loadBalancerLeaderEpochEnabled": by_epoch}
    options = [
        each for name, value in settings.items() for each in ("--broker-set", f"{name}={value}")
    ]
    folder = tmp_path / "cluster"
    with (
        ClusterProcess(folder, "--brokers", "3", "--bookies", "1", "--no-restart", *options) as its,
        ExitStack() as opened,
    ):
        urls = list(its.web_urls)
        edges = boundaries(urls[0])
        ranges = [f"{edges[number]}_{edges[number + 1]}" for number in range(0, 12, 2)]
        traffic = start_traffic(its.service_url, [topics_of(each, "shed", 1)[0] for each in ranges])
        all_go_on(traffic, "the start")
        gather(urls, traffic, edges)
        shed(urls[0], True)
        # Not all brokers: one rests for a minute or two after each move, and whether the load is
        # even in the end, tests/simulation/test_balancer.py shows.
        wait_until(lambda: len(owners(urls, traffic)) > 1, "brokers share the load", BALANCED_S)
        all_go_on(traffic, "the leader has moved bundles")

        leader = known_leader(urls)
        killed = broker_at(its, leader)
        killed.kill()
        killed.wait(WAIT_S)
        urls.remove(leader)
        all_go_on(traffic, "the kill of the leader")
        wait_until(lambda: leader_of(urls[0]) in urls, "another one leads", WAIT_S)
        gather(urls, traffic, edges)
        shed(urls[0], True)
        wait_until(
            lambda: owners(urls, traffic) == set(urls),
            "the next leader shares the load",
            BALANCED_S,
        )

        client = open_client(its.service_url, operation_timeout_seconds=120)
        opened.callback(client.close)
        crowd = topics_of(ranges[0], "crowd", 8)
        for topic in crowd:  # too many for one bundle, beside one with traffic
            client.create_producer(topic)
        wait_until(
            lambda: len(boundaries(urls[0])) > len(edges), "the bundle is cut by itself", BALANCED_S
        )
        cut = boundaries(urls[0])
        assert set(edges) < set(cut), "boundaries only come"
        counts = [bundle_of(topic, cut) for topic in crowd]
        assert len(set(counts)) > 1
        all_go_on(traffic, "the split")
        wait_until(
            lambda: all(
                f"{NAMESPACE}/{ranges[0]}" not in (owned_bundles(url) or ()) for url in urls
            ),
            "nobody owns the bundle that was cut",
            WAIT_S,
        )
        stop_and_check(its.service_url, traffic)
