"""Transfers in transactions in a cluster whose parts are moved and killed: no promise is broken.

Each round hurts one part of the transactions under way: the owner of coordinators, that of topics
and subscriptions, or a bookie. ``test_cluster_chaos.py`` kills without looking at them.
"""

import random
from pathlib import Path

import pytest

from tests.cluster_process import ClusterProcess
from tests.cluster_tools import (
    WAIT_S,
    broker_name,
    bundle_of,
    cluster_of,
    kill_child,
    move_bundle,
    owner_of,
)
from tests.nightly import NIGHTLY
from tests.raw_transactions import COORDINATORS, assigned
from tests.simulation import rotation
from tests.transfer_traffic import TransferClients
from tests.waiting import wait_until

_TOPICS = [f"persistent://public/default/transfers-{name}" for name in "abc"]
_ALL = "persistent://public/default/transfers-all"
_COORDINATOR_MOVED, _COORDINATOR_KILLED = "coordinator moved", "coordinator's owner killed"
_TOPIC_MOVED, _TOPIC_KILLED, _BOOKIE_KILLED = "topic moved", "topic's owner killed", "bookie killed"
_KINDS = (_COORDINATOR_MOVED, _TOPIC_KILLED, _BOOKIE_KILLED, _TOPIC_MOVED, _COORDINATOR_KILLED)
ROUNDS = 10 * len(_KINDS) if NIGHTLY else 2


class _Rounds:
    def __init__(
        self, cluster: ClusterProcess, clients: TransferClients, rng: random.Random
    ) -> None:
        self._cluster, self._clients, self._rng = cluster, clients, rng

    def run(self, kind: str) -> None:
        rng, cluster = self._rng, self._cluster
        self._go_on(rng.randint(1, 30))
        if kind == _BOOKIE_KILLED:
            names = [each for each in cluster.children() if each.startswith("bookie")]
            self._kill(rng.choice(sorted(names)))
            return
        topic = rng.choice([*_TOPICS, _ALL])
        if kind in (_COORDINATOR_MOVED, _COORDINATOR_KILLED):
            topic = assigned(rng.randrange(COORDINATORS))
        owner = self._owner(topic)
        if kind in (_COORDINATOR_KILLED, _TOPIC_KILLED):
            self._kill(broker_name(cluster, owner))
        else:
            target = rng.choice([each for each in cluster.web_urls if each != owner])
            move_bundle(bundle_of(owner, topic), owner, target)

    def _kill(self, name: str) -> None:
        kill_child(self._cluster, name, lambda: self._go_on(5))

    def _owner(self, topic: str) -> str:
        found: str | None = None

        def is_known() -> bool:
            nonlocal found
            found = owner_of(self._rng.choice(self._cluster.web_urls), topic)
            return found is not None

        wait_until(is_known, f"{topic} is served", WAIT_S)
        assert found is not None
        return found

    def _go_on(self, count: int) -> None:
        mark = self._clients.committed + count
        wait_until(
            lambda: self._clients.committed > mark,
            lambda: f"transfers go on: {self._clients.refusals.most_common(5)}",
        )


@pytest.mark.slow
def test_parts_of_a_transaction_are_moved_and_killed(tmp_path: Path) -> None:
    seed = rotation.turn()
    rng = random.Random(seed)
    kinds = [_KINDS[(seed * ROUNDS + number) % len(_KINDS)] for number in range(ROUNDS)]
    enabled = ("--broker-set", "transactionCoordinatorEnabled=true")
    with cluster_of(tmp_path, *enabled) as cluster:
        clients = TransferClients(lambda: cluster.web_urls, _TOPICS, _ALL, COORDINATORS, seed)
        clients.start()
        rounds = _Rounds(cluster, clients, rng)
        for number, kind in enumerate(kinds, 1):
            print(f"round {number} of {ROUNDS}, seed {seed}: {kind}", flush=True)
            rounds.run(kind)
        clients.stop()
        found = clients.found()
        print(f"{clients.committed} transfers, {clients.refusals.most_common(4)}")
        assert found == []
