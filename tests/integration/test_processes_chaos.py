"""Rounds of kills and pauses of ``magnetar standalone --processes 3``, under official clients.

Judged as a cluster is (``test_cluster_chaos.py``): by the history, and by what the console and the
calls behind it answer. ``make chaos`` and ``make nightly``.
"""

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from magnetar.broker.local_cluster.cluster_folder import port_is_free
from tests.chaos_rounds import SEED, TOPICS, ChaosRounds, post, start_features
from tests.child_process import suspend
from tests.cluster_process import is_alive
from tests.cluster_tools import (
    WAIT_S,
    all_go_on,
    owned_bundles,
    owner_of,
    stop_and_check,
)
from tests.cluster_traffic import CheckedTraffic, start_traffic
from tests.cluster_visits import Visits, check_nothing_moved
from tests.nightly import NIGHTLY
from tests.several_processes import SeveralProcesses
from tests.waiting import wait_until

BROKER_KILLED, BROKER_PAUSED = "broker killed", "broker paused"
STORAGE_KILLED, STORAGE_PAUSED = "storage killed", "storage paused"
ALL_KILLED, PARENT_KILLED = "brokers and storage killed", "parent killed"
UNLOADED = "bundles unloaded"
_PAUSE_S = (0.5, 10.0)
"""Of the storage: the brokers' sessions go on for 6 s without a word from them."""


class ProcessChaos(ChaosRounds):
    kinds = (
        *(BROKER_KILLED, BROKER_PAUSED, STORAGE_KILLED, STORAGE_PAUSED),
        *(ALL_KILLED, PARENT_KILLED, UNLOADED),
    )

    def __init__(
        self,
        processes: SeveralProcesses,
        traffic: Sequence[CheckedTraffic],
        visits: Visits,
        rng: random.Random,
    ) -> None:
        super().__init__(traffic, visits, rng)
        self.processes = processes
        self.web_urls = processes.web_urls

    def hurt(self, kind: str, what: str) -> str:
        brokers = sorted({*self.processes.children()} - {"storage"})
        victim = self.rng.choice(brokers)
        if kind == BROKER_KILLED:
            self.processes.kill_child(victim)
        elif kind == BROKER_PAUSED:
            self._pause_broker(victim, what)
        elif kind == STORAGE_KILLED:
            victim = "storage"
            self.processes.kill_child(victim)
        elif kind == STORAGE_PAUSED:
            victim = f"for {self._pause_storage():.1f} s"
        elif kind == ALL_KILLED:
            victim = ""
            self._kill_all()
        elif kind == PARENT_KILLED:
            victim = ""
            self._kill_parent()
        else:
            url = f"{self.rng.choice(self.web_urls)}/admin/v2/namespaces/public/default/unload"
            post(url, "PUT", b"")
        return victim

    def _pause_broker(self, name: str, what: str) -> None:
        """Beyond its session: it wakes up when all that it had has other owners."""
        process = self.processes.children()[name]
        url = self.web_urls[int(name.removeprefix("broker-")) - 1]
        others = [each for each in self.web_urls if each != url]
        with self.visits.stopped(url):
            suspend(process.pid)
            try:
                wait_until(
                    lambda: {owner_of(others[0], topic) for topic in TOPICS} <= set(others),
                    f"the others own everything: {what}",
                    WAIT_S,
                )
            finally:
                os.kill(process.pid, signal.SIGCONT)
        wait_until(self._agree, "it has given up what it lost", WAIT_S)

    def _agree(self) -> bool:
        """Nobody believes to own what another one owns."""
        found = [owned_bundles(each) for each in self.web_urls]
        owned = [each for each in found if each is not None]
        return len(owned) == len(found) and sum(map(len, owned)) == len(set().union(*owned))

    def _pause_storage(self) -> float:
        process = self.processes.children()["storage"]
        seconds = self.rng.uniform(*_PAUSE_S)
        suspend(process.pid)
        time.sleep(seconds)  # the fault itself
        os.kill(process.pid, signal.SIGCONT)
        return seconds

    def _kill_all(self) -> None:
        children = self.processes.children()
        before = {name: self.processes.times_ready(name) for name in children}
        for name in self.rng.sample(sorted(children), len(children)):
            children[name].kill()
        for name, times in before.items():
            wait_until(
                lambda name=name, times=times: self.processes.times_ready(name) > times,  # type: ignore[misc]
                f"{name} is back",
                WAIT_S,
            )

    def _kill_parent(self) -> None:
        """All end with it; the same command is given again."""
        children = self.processes.children().values()
        self.processes.kill()
        wait_until(lambda: not any(map(is_alive, children)), "nobody outlives it", WAIT_S)
        # A dead process keeps its sockets until its last thread is back from the disk.
        first = (self.processes.port, self.processes.web_port)
        ports = [port + 100 * number for port in first for number in range(len(self.web_urls))]
        wait_until(
            lambda: all(port_is_free("127.0.0.1", each) for each in ports), "ports are free", WAIT_S
        )
        self.processes.start(same_ports=True)


@pytest.mark.skipif(
    not NIGHTLY and "MAGNETAR_CHAOS_ROUNDS" not in os.environ, reason="make chaos, make nightly"
)
def test_random_kills_of_processes(tmp_path: Path) -> None:
    settings = (
        "brokerServiceCompactionMonitorIntervalInSeconds=2",
        "transactionCoordinatorEnabled=true",
        "loadBalancerCPUResourceWeight=0",  # all brokers are on one machine
    )
    options = ("--processes", "3", *(word for each in settings for word in ("--set", each)))
    with SeveralProcesses(tmp_path / "data", *options) as processes:
        url, web_urls = processes.service_url, processes.web_urls
        traffic = [*start_traffic(url, TOPICS), *start_features(url, web_urls)]
        all_go_on(traffic, "the start")
        visits = Visits(web_urls, TOPICS, SEED)
        visits.start()
        chaos = ProcessChaos(processes, traffic, visits, random.Random(SEED))
        chaos.run()
        visits.stop()
        check_nothing_moved(web_urls[0], TOPICS, {"keeper", "traffic"})
        chaos.print_table(stop_and_check(url, traffic))
