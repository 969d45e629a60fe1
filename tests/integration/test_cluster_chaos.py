"""Rounds of random kills and pauses in a cluster of processes, under official clients.

``MAGNETAR_CHAOS_ROUNDS`` and ``MAGNETAR_CHAOS_SEED``: how many, and which (``make chaos``). Judged
by the history: nothing acknowledged is lost, nothing is out of order, nothing is stored twice but
what was unacknowledged, and everybody goes on by themselves. Meanwhile somebody looks at pages of
the console, searches messages and asks for explanations: see ``cluster_visits.Visits``.
"""

import os
import random
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pytest

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
from tests.cluster_traffic import (
    CheckedTraffic,
    CompactedTraffic,
    DeduplicatedTraffic,
    DelayedTraffic,
    TopicTraffic,
    reset_gaps,
    start_traffic,
)
from tests.cluster_visits import Visits, check_nothing_moved
from tests.simulation import rotation
from tests.transfer_traffic import TransferTraffic
from tests.waiting import wait_until

TOPICS = [f"persistent://public/default/chaos-{number}" for number in range(9)]
ROUNDS = int(os.environ.get("MAGNETAR_CHAOS_ROUNDS", "3"))
TURN = rotation.turn()  # of this commit
SEED = int(os.environ.get("MAGNETAR_CHAOS_SEED", str(TURN)))

LEADER_KILLED, OWNER_KILLED, OWNER_PAUSED = "leader killed", "owner killed", "owner paused"
BOOKIE_KILLED, ZOOKEEPER_KILLED, UNLOADED = "bookie killed", "zookeeper killed", "bundles unloaded"
KINDS = (LEADER_KILLED, OWNER_KILLED, OWNER_PAUSED, BOOKIE_KILLED, ZOOKEEPER_KILLED, UNLOADED)


def kinds(rng: random.Random, rounds: int) -> Iterator[str]:
    """By chance, and none of them is left out for long.

    Few rounds take kinds in turn, from where the commit before ended: of two runs of three rounds
    each kind is in one.
    """
    if rounds < len(KINDS):
        yield from (KINDS[(TURN * rounds + n) % len(KINDS)] for n in range(rounds))
        return
    bag: list[str] = []
    for _ in range(rounds):
        if not bag:
            bag = rng.sample(KINDS, len(KINDS))
        yield bag.pop()


class Chaos:
    def __init__(
        self,
        cluster: ClusterProcess,
        traffic: Sequence[CheckedTraffic],
        visits: Visits,
        rng: random.Random,
    ) -> None:
        self.cluster, self.traffic, self.visits, self.rng = cluster, traffic, visits, rng
        self.stalls_s: dict[str, list[float]] = {}

    def round(self, number: int, kind: str) -> None:
        reset_gaps(self.traffic)
        what = f"round {number} of {ROUNDS}, seed {SEED}: {kind}"
        victim = self._hurt(kind, what)
        all_go_on(self.traffic, f"{what} {victim}")
        self.visits.all_answer(f"{what} {victim}")
        stall_s = max(each.longest_gap_s for each in self.traffic)
        self.stalls_s.setdefault(kind, []).append(stall_s)
        print(f"{what} {victim}, stall {stall_s:.2f} s", flush=True)

    def _hurt(self, kind: str, what: str) -> str:
        """Returns who was hurt, when it is back."""
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

    def print_table(self, repetitions: int) -> None:
        print("\n| | times | stall, p50 | longest |\n|---|---:|---:|---:|")
        for kind in KINDS:
            if stalls := self.stalls_s.get(kind):
                print(
                    f"| {kind} | {len(stalls)} | {median(stalls):.2f} s | {max(stalls):.2f} s |",
                    flush=True,
                )
        sent = sum(each.acknowledged for each in self.traffic)
        topics = [each for each in self.traffic if isinstance(each, TopicTraffic)]
        again = sum(len(each.received) - each.consumed for each in topics)
        print(f"{sent} messages, {repetitions} stored twice, {again} delivered again", flush=True)
        visits = self.visits
        print(f"answers {dict(visits.answers)}, longest {visits.longest_s:.1f} s", flush=True)


def start_features(cluster: ClusterProcess) -> list[CheckedTraffic]:
    """Whatever has a promise of its own to keep: see ``cluster_traffic.CheckedTraffic``."""
    namespace = f"{cluster.web_urls[0]}/admin/v2/namespaces/public/once"
    post(namespace, "PUT", b"{}")
    post(f"{namespace}/deduplication", "POST", b"true")
    table = f"{cluster.web_urls[0]}/admin/v2/namespaces/public/table"
    post(table, "PUT", b"{}")
    post(f"{table}/compactionThreshold", "PUT", b"2000")
    features: list[CheckedTraffic] = [
        DeduplicatedTraffic(cluster.service_url, "persistent://public/once/chaos", 50, 0.02),
        DelayedTraffic(cluster.service_url, "persistent://public/default/delayed", 50, 0.02),
        CompactedTraffic(cluster.service_url, "persistent://public/table/chaos", 50, 0.02),
        TransferTraffic(cluster.web_urls, SEED),
    ]
    for each in features:
        each.start()
    return features


def post(url: str, method: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 204


@pytest.mark.slow
def test_random_kills(tmp_path: Path) -> None:
    """Any process of the cluster, one after the other; what was killed is started again."""
    rng = random.Random(SEED)
    compactions = "brokerServiceCompactionMonitorIntervalInSeconds=2"
    transactions = "transactionCoordinatorEnabled=true"
    options = ("--broker-set", compactions, "--broker-set", transactions)
    with cluster_of(tmp_path, *options) as cluster:
        traffic = [*start_traffic(cluster.service_url, TOPICS), *start_features(cluster)]
        all_go_on(traffic, "the start")
        visits = Visits(cluster.web_urls, TOPICS, SEED)
        visits.start()
        chaos = Chaos(cluster, traffic, visits, rng)
        for number, kind in enumerate(kinds(rng, ROUNDS), 1):
            chaos.round(number, kind)
        visits.stop()
        check_nothing_moved(cluster.web_urls[0], TOPICS, {"keeper", "traffic"})
        chaos.print_table(stop_and_check(cluster.service_url, traffic))
