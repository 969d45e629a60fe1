"""Bundles are split by each algorithm, whichever broker of a cluster is asked, under traffic."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import httpx
import pytest

from magnetar.bundles.hash_ranges import topic_hash
from tests.cluster_process import ClusterProcess
from tests.cluster_tools import WAIT_S, all_go_on, get, owned_bundles, stop_and_check
from tests.cluster_traffic import TopicTraffic, start_traffic
from tests.waiting import wait_until

TOPICS = 5
WHOLE = (0, 0xFFFFFFFF)
RATE_MAX = 1
"""Messages a second of a bundle that may stay whole: less than any topic of these tests has."""

Cuts = Callable[[tuple[int, int], Sequence[int]], list[int]]
"""Where a range with topics of some hashes, sorted, is to be cut."""


def in_the_middle(range_: tuple[int, int], hashes: Sequence[int]) -> list[int]:
    return [sum(range_) // 2]


def between_the_middle_topics(range_: tuple[int, int], hashes: Sequence[int]) -> list[int]:
    before, after = hashes[len(hashes) // 2 - 1 : len(hashes) // 2 + 1]
    return [(before + after) // 2]


def at_thirds(range_: tuple[int, int], hashes: Sequence[int]) -> list[int]:
    lower, upper = range_
    return [lower + (upper - lower) * part // 3 for part in (1, 2)]


def between_all_topics(range_: tuple[int, int], hashes: Sequence[int]) -> list[int]:
    return [before + (after - before) // 2 + 1 for before, after in pairwise(hashes)]


class Namespace:
    """One bundle at first; asked of any broker, which may send the caller on."""

    def __init__(self, cluster: ClusterProcess, name: str) -> None:
        self.name = name
        self.urls = cluster.web_urls
        self.topics = [f"persistent://{name}/t-{number}" for number in range(TOPICS)]
        body = json.dumps({"bundles": {"numBundles": 1}}).encode()
        request = urllib.request.Request(
            f"{self.urls[0]}/admin/v2/namespaces/{name}",
            body,
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=WAIT_S):
            pass

    def boundaries(self, url: str) -> list[int]:
        found = get(f"{url}/admin/v2/namespaces/{self.name}/bundles")
        assert found is not None
        return [int(edge, 16) for edge in json.loads(found)["boundaries"]]

    def range_of_most_topics(self) -> tuple[tuple[int, int], list[int]]:
        """With the hashes in it."""
        hashes = sorted(map(topic_hash, self.topics))
        ranges = pairwise(self.boundaries(self.urls[0]))
        inside = {each: [h for h in hashes if each[0] <= h < each[1]] for each in ranges}
        most = max(inside, key=lambda each: len(inside[each]))
        return most, inside[most]

    def split(self, url: str, range_: tuple[int, int], query: str, positions: list[int]) -> None:
        path = f"/admin/v2/namespaces/{self.name}/0x{range_[0]:08x}_0x{range_[1]:08x}/split"

        def done() -> bool:
            answer = httpx.put(
                f"{url}{path}?{query}", json=positions, timeout=WAIT_S, follow_redirects=True
            )
            if answer.status_code == 503:  # it is just changing hands
                return False
            assert answer.status_code == 204, answer.text
            return True

        wait_until(done, "it is split", WAIT_S)

    def wait_for_rates(self) -> None:
        """A cut leaves out topics whose rates aren't known yet, and boundaries only come."""

        def known() -> bool:
            paths = [topic.replace("://", "/") for topic in self.topics]
            found = [get(f"{self.urls[0]}/admin/v2/{path}/stats") for path in paths]
            return all(
                each is not None and json.loads(each)["msgRateIn"] > RATE_MAX for each in found
            )

        wait_until(known, "each topic has a rate", WAIT_S)

    def wait_for_boundaries(self, wanted: list[int]) -> None:
        wait_until(
            lambda: all(self.boundaries(url) == wanted for url in self.urls),
            f"all brokers know {[hex(each) for each in wanted]}",
            WAIT_S,
        )

    def wait_for_owners(self) -> None:
        """Each bundle with topics has one, and those that aren't bundles any more have none."""
        edges = self.boundaries(self.urls[0])
        names = {f"{self.name}/0x{low:08x}_0x{high:08x}" for low, high in pairwise(edges)}
        used = {
            f"{self.name}/0x{low:08x}_0x{high:08x}"
            for low, high in pairwise(edges)
            if any(low <= topic_hash(topic) < high for topic in self.topics)
        }

        def known() -> bool:
            found = [owned_bundles(url) for url in self.urls]
            mine = [name for each in found for name in each or () if name.startswith(self.name)]
            return None not in found and used <= set(mine) <= names and len(mine) == len({*mine})

        wait_until(known, "each bundle has one owner", WAIT_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    settings = (
        f"loadBalancerNamespaceBundleMaxMsgRate={RATE_MAX}",
        "statsUpdateFrequencyInSecs=1",
        "loadBalancerAutoBundleSplitEnabled=false",  # what cuts here is the test alone
        "loadBalancerSheddingEnabled=false",
    )
    options = [word for setting in settings for word in ("--broker-set", setting)]
    folder = tmp_path_factory.mktemp("splits") / "data"
    with ClusterProcess(folder, "--brokers", "3", "--bookies", "1", *options) as process:
        yield process


def begin(cluster: ClusterProcess, name: str) -> tuple[Namespace, list[TopicTraffic]]:
    namespace = Namespace(cluster, name)
    traffic = start_traffic(cluster.service_url, namespace.topics)
    all_go_on(traffic, "the start")
    return namespace, traffic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "cuts"),
    [
        ("", in_the_middle),
        ("range_equally_divide", in_the_middle),
        ("topic_count_equally_divide", between_the_middle_topics),
        ("specified_positions_divide", at_thirds),
    ],
)
def test_a_bundle_is_split_wherever_it_is_asked(
    cluster: ClusterProcess, algorithm: str, cuts: Cuts
) -> None:
    """By one broker after the other, of which two don't own it; parts are unloaded in between."""
    namespace, traffic = begin(cluster, f"public/by-{algorithm or 'default'}".replace("_", "-"))
    for number, url in enumerate(namespace.urls):
        range_, hashes = namespace.range_of_most_topics()
        if len(hashes) < 2:
            break  # by count there is nothing left to cut
        points = cuts(range_, hashes)
        wanted = sorted({*namespace.boundaries(url), *points})
        query = f"unload={'true' if number == 1 else 'false'}"
        if algorithm:
            query += f"&splitAlgorithmName={algorithm}"
        positions = points if algorithm == "specified_positions_divide" else []
        namespace.split(url, range_, query, positions)
        namespace.wait_for_boundaries(wanted)
        all_go_on(traffic, f"a split asked of {url}")
        namespace.wait_for_owners()
    stop_and_check(cluster.service_url, traffic)


@pytest.mark.slow
def test_busy_topics_get_bundles_of_their_own(cluster: ClusterProcess) -> None:
    """By traffic: each topic has more than a bundle may have, so each is alone afterwards."""
    namespace, traffic = begin(cluster, "public/by-flow")
    query = "splitAlgorithmName=flow_or_qps_equally_divide"
    hashes = sorted(map(topic_hash, namespace.topics))
    wanted = [WHOLE[0], *between_all_topics(WHOLE, hashes), WHOLE[1]]

    def is_cut() -> bool:
        range_, inside = namespace.range_of_most_topics()
        if len(inside) > 1:
            namespace.split(namespace.urls[len(inside) % 3], range_, query, [])
        return namespace.boundaries(namespace.urls[0]) == wanted

    namespace.wait_for_rates()
    wait_until(is_cut, "each topic is alone", WAIT_S)
    namespace.wait_for_boundaries(wanted)
    all_go_on(traffic, "the splits")
    namespace.wait_for_owners()
    for url in namespace.urls:  # there is nothing left to cut
        range_, _ = namespace.range_of_most_topics()
        namespace.split(url, range_, query, [])
    namespace.wait_for_boundaries(wanted)
    stop_and_check(cluster.service_url, traffic)
