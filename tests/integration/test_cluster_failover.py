"""Brokers of a real cluster are killed and paused while official clients use it."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.child_process import suspend
from tests.cluster_tools import (
    WAIT_S,
    all_go_on,
    broker_at,
    cluster_of,
    known_leader,
    leader_of,
    move_bundle,
    owned_bundles,
    owner_of,
    stop_and_check,
)
from tests.cluster_traffic import TopicTraffic, reset_gaps, start_traffic
from tests.waiting import wait_until

TOPICS = [f"persistent://public/default/failover-{number}" for number in range(9)]


def move_away(source: str, target: str, traffic: Sequence[TopicTraffic]) -> None:
    """Give a broker's bundles to another one by hand, one after the other."""
    for bundle in sorted(owned_bundles(source) or ()):
        if not bundle.startswith("public/default/"):
            continue
        reset_gaps(traffic)
        move_bundle(bundle, source, target)
        all_go_on(traffic, f"{bundle} was moved")
        print(f"moved: {max(each.longest_gap_s for each in traffic):.3f} s")


@pytest.mark.slow
def test_bundles_of_a_killed_and_of_a_paused_broker_are_taken_over(tmp_path: Path) -> None:
    """F1, F2, F14: first the leader is killed, then another owner is paused beyond its session."""
    with cluster_of(tmp_path, "--no-restart") as cluster:
        traffic = start_traffic(cluster.service_url, TOPICS)
        all_go_on(traffic, "the start")
        urls = list(cluster.web_urls)
        owners = {owner_of(urls[0], topic) for topic in TOPICS}
        assert len(owners) > 1, "the leader gave all of it to one broker"
        leader = known_leader(urls)

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
        suspend(paused.pid)
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
