"""Rounds of random kills and pauses in a cluster of processes, under official clients.

Judged by the history: nothing acknowledged is lost, nothing is out of order, nothing is stored
twice but what was unacknowledged, and everybody goes on by themselves. Meanwhile somebody looks at
pages of the console, searches messages and asks for explanations: see ``cluster_visits.Visits``.
How many rounds, and which: ``chaos_rounds``.
"""

import os
import random
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos_rounds import SEED, TOPICS, ChaosRounds, start_features
from tests.child_process import suspend
from tests.cluster_process import ClusterProcess
from tests.cluster_tools import (
    WAIT_S,
    all_go_on,
    broker_at,
    broker_name,
    cluster_of,
    kill_child,
    leader_of,
    owned_bundles,
    owner_of,
    stop_and_check,
)
from tests.cluster_traffic import CheckedTraffic, start_traffic
from tests.cluster_visits import Visits, check_nothing_moved
from tests.waiting import wait_until

LEADER_KILLED, OWNER_KILLED, OWNER_PAUSED = "leader killed", "owner killed", "owner paused"
BOOKIE_KILLED, ZOOKEEPER_KILLED, UNLOADED = "bookie killed", "zookeeper killed", "bundles unloaded"
KINDS = (LEADER_KILLED, OWNER_KILLED, OWNER_PAUSED, BOOKIE_KILLED, ZOOKEEPER_KILLED, UNLOADED)


class ClusterChaos(ChaosRounds):
    kinds = KINDS

    def __init__(
        self,
        cluster: ClusterProcess,
        traffic: Sequence[CheckedTraffic],
        visits: Visits,
        rng: random.Random,
    ) -> None:
        super().__init__(traffic, visits, rng)
        self.cluster = cluster

    def hurt(self, kind: str, what: str) -> str:
        if kind in (LEADER_KILLED, OWNER_KILLED):
            url = self._leader() if kind == LEADER_KILLED else self._owner()
            victim = broker_name(self.cluster, url)
        elif kind == OWNER_PAUSED:
            return self._pause(self._owner())
        elif kind == UNLOADED:
            return self._unload()
        elif kind == BOOKIE_KILLED:
            names = [each for each in self.cluster.children() if each.startswith("bookie")]
            victim = self.rng.choice(sorted(names))
        else:
            victim = "zookeeper"
        self._kill(victim, f"{what} {victim}")
        return victim

    def _kill(self, name: str, what: str) -> None:
        # Nobody goes on without ZooKeeper.
        others: Sequence[CheckedTraffic] = () if name == "zookeeper" else self.traffic
        kill_child(self.cluster, name, lambda: all_go_on(others, what))

    def _pause(self, url: str) -> str:
        """Beyond its session: it wakes up when all that it had has other owners."""
        process = broker_at(self.cluster, url)
        before = owned_bundles(url)
        others = [each for each in self.cluster.web_urls if each != url]
        with self.visits.stopped(url):
            suspend(process.pid)
            try:
                wait_until(
                    lambda: {owner_of(others[0], topic) for topic in TOPICS} <= set(others),
                    "the others own everything",
                    WAIT_S,
                )
            finally:
                os.kill(process.pid, signal.SIGCONT)
        assert before
        wait_until(lambda: self._agree(url), "it has given up what it lost", WAIT_S)
        return broker_name(self.cluster, url)

    def _agree(self, url: str) -> bool:
        """Nobody believes to own what another one owns."""
        owned = [owned_bundles(each) for each in self.cluster.web_urls]
        return None not in owned and sum(map(len, owned)) == len(set().union(*owned))  # type: ignore[arg-type]

    def _unload(self) -> str:
        """All bundles of the namespace, which go to brokers by chance: killed ones get some."""
        url = self.rng.choice(self.cluster.web_urls)
        request = urllib.request.Request(
            f"{url}/admin/v2/namespaces/public/default/unload", method="PUT"
        )

        answers: list[str] = []

        def done() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                    return bool(answer.status == 204)
            except urllib.error.HTTPError as error:
                answers.append(f"{error.code} {error.read().decode()}")
                if error.code != 503:  # ZooKeeper has just come back
                    raise
                return False

        wait_until(done, lambda: f"everything is unloaded: {answers[-3:]}", WAIT_S)
        return f"asked of {broker_name(self.cluster, url)}"

    def _leader(self) -> str:
        found: list[str] = []

        def elected() -> bool:
            leader = leader_of(self.rng.choice(self.cluster.web_urls))
            if leader in self.cluster.web_urls:
                found.append(str(leader))
            return bool(found)

        wait_until(elected, "there is a leader", WAIT_S)
        return found[0]

    def _owner(self) -> str:
        """One that serves some of the topics."""
        owners: set[str] = set()

        def known() -> bool:
            found = {owner_of(self.cluster.web_urls[0], topic) for topic in TOPICS}
            owners.update(each for each in found if each is not None)
            return None not in found

        wait_until(known, "all topics are served", WAIT_S)
        return self.rng.choice(sorted(owners))


@pytest.mark.slow
def test_random_kills(tmp_path: Path) -> None:
    """Any process of the cluster, one after the other; what was killed is started again."""
    rng = random.Random(SEED)
    compactions = "brokerServiceCompactionMonitorIntervalInSeconds=5"
    transactions = "transactionCoordinatorEnabled=true"
    options = ("--broker-set", compactions, "--broker-set", transactions)
    with cluster_of(tmp_path, *options) as cluster:
        traffic = [
            *start_traffic(cluster.service_url, TOPICS),
            *start_features(cluster.service_url, cluster.web_urls),
        ]
        try:
            all_go_on(traffic, "the start")
            visits = Visits(cluster.web_urls, TOPICS, SEED)
            visits.start()
            chaos = ClusterChaos(cluster, traffic, visits, rng)
            chaos.run()
            visits.stop()
            check_nothing_moved(cluster.web_urls[0], TOPICS, {"keeper", "traffic"})
            chaos.print_table(stop_and_check(cluster.service_url, traffic))
        finally:
            for each in traffic:
                each.stop_sending()
