"""Brokers of a real cluster are killed, paused and cut off while official clients use it.

``MAGNETAR_CHAOS_ROUNDS`` and ``MAGNETAR_CHAOS_SEED``: rounds of random kills (``make chaos``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil
import pulsar
import pytest

from tests.cluster_process import ClusterProcess, is_alive
from tests.cluster_traffic import TopicTraffic, first_occurrences, reset_gaps, start_traffic
from tests.integration.failure_tools import wait_until

TOPICS = [f"persistent://public/default/failover-{number}" for number in range(9)]
SESSION_MS = 4_000
WAIT_S = 120.0
ROUNDS = int(os.environ.get("MAGNETAR_CHAOS_ROUNDS", "0"))
SEED = int(os.environ.get("MAGNETAR_CHAOS_SEED", "1"))


def cluster_of(folder: Path, *options: str) -> ClusterProcess:
    session = f"metadataStoreSessionTimeoutMillis={SESSION_MS}"
    return ClusterProcess(folder / "cluster", "--brokers", "3", "--broker-set", session, *options)


def get(url: str) -> bytes | None:
    """None: no answer, or a refusal."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, urllib.error.URLError):
        return None


def owner_of(web_url: str, topic: str) -> str | None:
    """The web address of the broker that serves it, as one of them says."""
    found = get(f"{web_url}/lookup/v2/topic/{topic.replace('://', '/')}")
    return None if found is None else str(json.loads(found)["httpUrl"])


def owned_bundles(web_url: str) -> set[str] | None:
    address = web_url.removeprefix("http://")
    found = get(f"{web_url}/admin/v2/brokers/standalone/{address}/ownedNamespaces")
    return None if found is None else set(json.loads(found))


def leader_of(web_url: str) -> str | None:
    found = get(f"{web_url}/admin/v2/brokers/leaderBroker")
    return None if found is None else str(json.loads(found)["serviceUrl"])


def all_go_on(traffic: Sequence[TopicTraffic], what: str) -> None:
    """Everybody produces, and everybody's consumer gets what is new."""
    marks = [each.acknowledged + 20 for each in traffic]

    def done() -> bool:
        assert [each.failure for each in traffic] == [None] * len(traffic)
        return all(
            each.acknowledged > mark and each.received and each.received[-1] > mark - 20
            for each, mark in zip(traffic, marks, strict=True)
        )

    wait_until(done, f"messages go on after {what}", WAIT_S)


def stop_and_check(url: str, traffic: Sequence[TopicTraffic]) -> None:
    """No acknowledged message is lost, none is out of order, for consumer and reader."""
    for each in traffic:
        each.stop_sending()
    wait_until(
        lambda: all(each.consumed >= each.acknowledged for each in traffic),
        "everything acknowledged is consumed",
        WAIT_S,
    )
    for each in traffic:
        each.stop()
        assert each.failure is None
        assert first_occurrences(each.received) == list(range(each.consumed))
    client = pulsar.Client(
        url, operation_timeout_seconds=120, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    for each in traffic:
        reader = client.create_reader(each.topic, pulsar.MessageId.earliest)
        numbers = []
        while reader.has_message_available():
            numbers.append(int(reader.read_next(60_000).data()))
        assert first_occurrences(numbers)[: each.acknowledged] == list(range(each.acknowledged))
    client.close()


def move_away(source: str, target: str, traffic: Sequence[TopicTraffic]) -> None:
    """Give a broker's bundles to another one by hand, one after the other."""
    for bundle in sorted(owned_bundles(source) or ()):
        if not bundle.startswith("public/default/"):
            continue
        reset_gaps(traffic)
        destination = target.removeprefix("http://")
        request = urllib.request.Request(
            f"{source}/admin/v2/namespaces/{bundle}/unload?destinationBroker={destination}",
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert answer.status == 204
        assert bundle in (owned_bundles(target) or ())
        all_go_on(traffic, f"{bundle} was moved")
        print(f"moved: {max(each.longest_gap_s for each in traffic):.3f} s")


def broker_at(cluster: ClusterProcess, web_url: str) -> psutil.Process:
    return cluster.children()[f"broker-{cluster.web_urls.index(web_url) + 1}"]


@pytest.mark.slow
def test_bundles_of_a_killed_and_of_a_paused_broker_are_taken_over(tmp_path: Path) -> None:
    """F1, F2, F14: first the leader is killed, then another owner is paused beyond its session."""
    with cluster_of(tmp_path, "--no-restart") as cluster:
        traffic = start_traffic(cluster.service_url, TOPICS)
        all_go_on(traffic, "the start")
        urls = list(cluster.web_urls)
        owners = {owner_of(urls[0], topic) for topic in TOPICS}
        assert len(owners) > 1, "the leader gave all of it to one broker"
        leader = leader_of(urls[0])
        assert leader in urls

        follower = next(each for each in owners if each not in (None, leader))
        assert follower is not None
        move_away(follower, leader, traffic)

        reset_gaps(traffic)
        killed = broker_at(cluster, leader)
        killed.kill()
        killed.wait(WAIT_S)
        urls.remove(leader)
        all_go_on(traffic, "the kill of the leader")
        print("killed:", sorted(round(each.longest_gap_s, 2) for each in traffic))
        assert {owner_of(urls[0], topic) for topic in TOPICS} <= set(urls)
        wait_until(lambda: leader_of(urls[0]) in urls, "another one leads", WAIT_S)

        busy = max(urls, key=lambda url: len(owned_bundles(url) or ()))
        (last,) = set(urls) - {busy}
        paused, before = broker_at(cluster, busy), owned_bundles(busy)
        reset_gaps(traffic)
        os.kill(paused.pid, signal.SIGSTOP)
        try:
            # Whoever looks up gets the other one; its own clients notice by their keep-alive only.
            wait_until(
                lambda: {owner_of(last, topic) for topic in TOPICS} == {last},
                "the other one owns everything",
                WAIT_S,
            )
        finally:
            os.kill(paused.pid, signal.SIGCONT)
        # It wakes up: it serves nothing that another broker has, and says who serves it.
        taken = owned_bundles(last)
        assert before
        assert taken
        wait_until(
            lambda: (owned := owned_bundles(busy)) is not None and not owned & taken,
            "the paused broker has given up what it lost",
            WAIT_S,
        )
        assert {owner_of(busy, topic) for topic in TOPICS} == {last}
        all_go_on(traffic, "the paused one is back")
        print("paused:", sorted(round(each.longest_gap_s, 2) for each in traffic))
        stop_and_check(cluster.service_url, traffic)


@pytest.mark.slow
@pytest.mark.skipif(not ROUNDS, reason="minutes a round: make chaos")
def test_random_kills(tmp_path: Path) -> None:
    """Any process of the cluster, one after the other; what was killed is started again."""
    rng = random.Random(SEED)
    with cluster_of(tmp_path) as cluster:
        traffic = start_traffic(cluster.service_url, TOPICS)
        all_go_on(traffic, "the start")
        longest: dict[str, list[float]] = {}
        for number in range(ROUNDS):
            reset_gaps(traffic)
            children = cluster.children()
            name = rng.choice([each for each in sorted(children) if each != "autorecovery"])
            victim = children[name]
            if name.startswith("broker") and rng.random() < 0.5:
                what = f"round {number}: {name} is paused"
                os.kill(victim.pid, signal.SIGSTOP)
                try:
                    all_go_on(traffic, what)
                finally:
                    os.kill(victim.pid, signal.SIGCONT)
            else:
                what = f"round {number}: {name} is killed"
                readies = cluster.log.count(f"{name} ready at ")
                victim.kill()
                all_go_on(traffic, what)
                wait_until(
                    lambda name=name, readies=readies: (  # type: ignore[misc]
                        cluster.log.count(f"{name} ready at ") > readies
                    ),
                    f"{name} is back",
                    WAIT_S,
                )
                assert not is_alive(victim)
            all_go_on(traffic, f"{what}, and back")
            kind = f"{name.partition('-')[0]} {what.rpartition(' ')[2]}"
            longest.setdefault(kind, []).append(max(each.longest_gap_s for each in traffic))
        stop_and_check(cluster.service_url, traffic)
        for kind, gaps in sorted(longest.items()):
            print(f"{kind}: {len(gaps)} times, longest stall {max(gaps):.2f} s")
