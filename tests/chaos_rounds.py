"""Rounds of random faults under official clients: which, how long each holds them up, a table.

``MAGNETAR_CHAOS_ROUNDS`` and ``MAGNETAR_CHAOS_SEED``: how many, and which (``make chaos``).
"""

import os
import random
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from statistics import median
from typing import ClassVar, Final

from tests.cluster_tools import WAIT_S, all_go_on
from tests.cluster_traffic import (
    PAUSE_S,
    CheckedTraffic,
    CompactedTraffic,
    DeduplicatedTraffic,
    DelayedTraffic,
    TopicTraffic,
    reset_gaps,
)
from tests.cluster_visits import Visits
from tests.simulation import rotation
from tests.transfer_traffic import TransferTraffic

TOPICS: Final = [f"persistent://public/default/chaos-{number}" for number in range(9)]
ROUNDS: Final = int(os.environ.get("MAGNETAR_CHAOS_ROUNDS", "2"))
TURN: Final = rotation.turn()  # of this commit
SEED: Final = int(os.environ.get("MAGNETAR_CHAOS_SEED", str(TURN)))


class ChaosRounds(ABC):
    """Hurts servers, a round after the other, and waits until everybody has gone on."""

    kinds: ClassVar[Sequence[str]]

    def __init__(
        self, traffic: Sequence[CheckedTraffic], visits: Visits, rng: random.Random
    ) -> None:
        self.traffic, self.visits, self.rng = traffic, visits, rng
        self.stalls_s: dict[str, list[float]] = {}

    @abstractmethod
    def hurt(self, kind: str, what: str) -> str:
        """Returns who was hurt, when it is back."""

    def run(self) -> None:
        for number, kind in enumerate(self._chosen(), 1):
            self._round(number, kind)

    def _chosen(self) -> Iterator[str]:
        """By chance, and none of them is left out for long.

        Few rounds take kinds in turn, from where the commit before ended: of three runs of two
        rounds each kind is in one.
        """
        kinds = self.kinds
        if len(kinds) > ROUNDS:
            yield from (kinds[(TURN * ROUNDS + n) % len(kinds)] for n in range(ROUNDS))
            return
        bag: list[str] = []
        for _ in range(ROUNDS):
            if not bag:
                bag = self.rng.sample(kinds, len(kinds))
            yield bag.pop()

    def _round(self, number: int, kind: str) -> None:
        reset_gaps(self.traffic)
        what = f"round {number} of {ROUNDS}, seed {SEED}: {kind}"
        victim = self.hurt(kind, what)
        all_go_on(self.traffic, f"{what} {victim}")
        self.visits.all_answer(f"{what} {victim}")
        stall_s = max(each.longest_gap_s for each in self.traffic)
        self.stalls_s.setdefault(kind, []).append(stall_s)
        print(f"{what} {victim}, stall {stall_s:.2f} s", flush=True)

    def print_table(self, repetitions: int) -> None:
        print("\n| | times | stall, p50 | longest |\n|---|---:|---:|---:|")
        for kind in self.kinds:
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


def start_features(service_url: str, web_urls: Sequence[str]) -> list[CheckedTraffic]:
    """Whatever has a promise of its own to keep: see ``cluster_traffic.CheckedTraffic``."""
    namespace = f"{web_urls[0]}/admin/v2/namespaces/public/once"
    post(namespace, "PUT", b"{}")
    post(f"{namespace}/deduplication", "POST", b"true")
    table = f"{web_urls[0]}/admin/v2/namespaces/public/table"
    post(table, "PUT", b"{}")
    post(f"{table}/compactionThreshold", "PUT", b"2000")
    features: list[CheckedTraffic] = [
        DeduplicatedTraffic(service_url, "persistent://public/once/chaos", 50, PAUSE_S),
        DelayedTraffic(service_url, "persistent://public/default/delayed", 50, PAUSE_S),
        CompactedTraffic(service_url, "persistent://public/table/chaos", 50, PAUSE_S),
        TransferTraffic(web_urls, SEED),
    ]
    for each in features:
        each.start()
    return features


def post(url: str, method: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        assert answer.status == 204
