"""How long clients stand still when their bundle is moved, its owner is killed, or paused.

``python -m benchmarks.failover --moves 50 --kills 20 --pauses 5``: a cluster of processes with its
own ZooKeeper; topics of one bundle, each with a producer and a consumer of the official client. A
stall is the longest time between two receipts of a topic, so each event gives one for every topic.
"""

import argparse
import os
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from magnetar.bundles.namespace_bundles import topic_hash
from tests.child_process import suspend
from tests.cluster_process import ClusterProcess
from tests.cluster_tools import (
    WAIT_S,
    all_go_on,
    broker_at,
    broker_name,
    cluster_of,
    owned_bundles,
    owner_of,
)
from tests.cluster_traffic import TopicTraffic, reset_gaps, start_traffic
from tests.waiting import wait_until

_BUNDLES = 32


def topics_of_one_bundle(count: int) -> list[str]:
    names = (f"persistent://public/default/moved-{number}" for number in range(100 * count))
    return [name for name in names if topic_hash(name) * _BUNDLES >> 32 == 0][:count]


class Bundle:
    """The one that all the topics are in."""

    def __init__(self, cluster: ClusterProcess, traffic: list[TopicTraffic]) -> None:
        self.cluster, self.traffic = cluster, traffic

    @property
    def topic(self) -> str:
        return self.traffic[0].topic

    def owner(self) -> str:
        found: list[str] = []

        def known() -> bool:
            owner = owner_of(self.cluster.web_urls[0], self.topic)
            found.extend([owner] if owner in self.cluster.web_urls else [])
            return bool(found)

        wait_until(known, "somebody owns it", WAIT_S)
        return found[0]

    def move(self) -> str:
        source = self.owner()
        target = next(url for url in self.cluster.web_urls if url != source)
        (name,) = [
            each for each in owned_bundles(source) or () if each.startswith("public/default/")
        ]
        destination = target.removeprefix("http://")
        request = urllib.request.Request(
            f"{source}/admin/v2/namespaces/{name}/unload?destinationBroker={destination}",
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=WAIT_S):
            return f"to {broker_name(self.cluster, target)}"

    def kill(self) -> str:
        owner = self.owner()
        name, process = broker_name(self.cluster, owner), broker_at(self.cluster, owner)
        before = self.cluster.log.count(f"{name} ready at ")
        process.kill()
        all_go_on(self.traffic, f"{name} was killed")
        wait_until(lambda: self.cluster.log.count(f"{name} ready at ") > before, name, WAIT_S)
        return f"of {name}"

    def pause(self) -> str:
        owner = self.owner()
        process = broker_at(self.cluster, owner)
        other = next(url for url in self.cluster.web_urls if url != owner)
        suspend(process.pid)
        try:
            wait_until(lambda: owner_of(other, self.topic) not in (None, owner), "taken", WAIT_S)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        return f"of {broker_name(self.cluster, owner)}"

    def stalls(self, kind: str, count: int) -> Iterator[float]:
        act = {"move": self.move, "kill": self.kill, "pause": self.pause}[kind]
        for number in range(1, count + 1):
            reset_gaps(self.traffic)
            who = act()
            all_go_on(self.traffic, f"{kind} {number}")
            found = [each.longest_gap_s for each in self.traffic]
            print(f"{kind} {number} {who}: {min(found):.3f} to {max(found):.3f} s", flush=True)
            yield from found


def row(what: str, stalls: list[float]) -> str:
    stalls = sorted(stalls)
    shares = [stalls[min(int(share * len(stalls)), len(stalls) - 1)] for share in (0.5, 0.9, 0.99)]
    metrics = " | ".join(f"{each * 1000:.0f}" for each in (*shares, stalls[-1]))
    return f"| {what} | {len(stalls)} | {metrics} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=50)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--topics", type=int, default=4)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder)) as cluster:
        traffic = start_traffic(cluster.service_url, topics_of_one_bundle(options.topics))
        all_go_on(traffic, "the start")
        bundle = Bundle(cluster, traffic)
        for kind, count in (
            ("move", options.moves),
            ("kill", options.kills),
            ("pause", options.pauses),
        ):
            if stalls := list(bundle.stalls(kind, count)):
                rows.append(row(f"{kind}, {count} times", stalls))
        for each in traffic:
            each.stop_sending()
        wait_until(lambda: all(each.drained for each in traffic), "the end", WAIT_S)
        for each in traffic:
            each.stop()
    print("\n| | stalls | p50 ms | p90 | p99 | longest |\n|---|---:|---:|---:|---:|---:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
