"""Bookies are replaced one by one, Apache's by ours and ours by Apache's, under a broker in use.

The commands are those of ``docs/operate/roll-bookies.md``, in its order. Judged by
the history: nothing that was acknowledged is lost, and it is in order.
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.apache_bookies import (
    ApacheAutoRecovery,
    ApacheBookie,
    needs_bookkeeper,
    start_bookies,
)
from tests.autorecovery_process import AutoRecoveryProcess
from tests.bookie_process import BookieProcess, running_bookies
from tests.broker_process import BrokerProcess
from tests.child_process import ROOT, ChildProcess
from tests.cluster_tools import all_go_on, stop_and_check
from tests.cluster_traffic import TopicTraffic
from tests.free_port import free_port
from tests.integration.test_apache_layout import uri_of
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pulsar_broker import PulsarBroker, needs_pulsar
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = [
    needs_bookkeeper,
    pytest.mark.skipif(not NIGHTLY, reason="make nightly: minutes of JVMs that start"),
]
_PAGE = ROOT / "docs" / "operate" / "roll-bookies.md"
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SECONDS = 600.0
_BROKER = {
    **{f"managedLedgerDefault{each}": "3" for each in ("EnsembleSize", "WriteQuorum")},
    "managedLedgerDefaultAckQuorum": "2",
    # Each bookie has closed ledgers and an open one of each topic; how many shall not grow with the
    # time that this takes, as all are copied six times.
    "managedLedgerMaxEntriesPerLedger": "1000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
# Ledgers without writers are closed 30 s after their bookie is lost.
_GRACE_MS = 2_000
QUIET = "persistent://public/default/quiet"
TEXTS = [b"%d" % number for number in range(2500)]


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path / "zk") as server:
        yield server


class Page:
    """Runs the page's commands against a cluster of this machine."""

    def __init__(self, shell: ApacheBookie, zookeeper: ZooKeeperProcess, folder: Path) -> None:
        blocks = [textwrap.dedent(each) for each in _BLOCK.findall(_PAGE.read_text())]
        self.start, self.ours, self.theirs, self.look = blocks
        self._address = f"127.0.0.1:{zookeeper.port}"
        programs = folder / "programs"
        programs.mkdir()
        script = programs / "bookkeeper"
        java = shlex.join([*shell.java, "org.apache.bookkeeper.bookie.BookieShell"])
        script.write_text(f'#!/bin/sh\nshift\nexec {java} -conf {shell.folder}/bookie.conf "$@"\n')
        script.chmod(0o755)
        own = Path(sys.executable).parent
        self.environment = {"PATH": f"{programs}:{own}:{os.environ['PATH']}"}

    def words(self, block: str, **names: str) -> list[str]:
        text = block.replace("zookeeper:2181", self._address)
        for written, real in names.items():
            text = text.replace(
                {"old": "old:3181", "data": "/var/lib/magnetar/bookie"}[written], real
            )
        return ["bash", "-ec", text]

    def run(self, block: str, old: str) -> str:
        """What they print; each must succeed."""
        done = subprocess.run(
            self.words(block, old=old),
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout


class PageBookie(ChildProcess):
    """A bookie of ours, as the page starts it."""

    def __init__(self, page: Page, folder: Path) -> None:
        super().__init__(folder / "bookie.log")
        port = free_port()
        self.bookie_id = f"127.0.0.1:{port}"
        (said,) = page.start.splitlines()
        assert said.endswith(" --bind new --port 3181")
        own = said.replace("--bind new --port 3181", f"--bind 127.0.0.1 --port {port}")
        self._command = page.words(f"exec {own}", data=str(folder / "data"))
        self._environment = page.environment

    def start(self) -> None:
        self._process = self.popen(self._command, environment=self._environment)
        self.wait_for_line(re.compile(rf"^magnetar bookie: {self.bookie_id} at "), "bookie", 0)


Bookie = ApacheBookie | PageBookie


class Roll:
    """One cluster, whose bookies change while somebody uses its broker."""

    def __init__(self, page: Page, traffic: Sequence[TopicTraffic]) -> None:
        self.page, self.traffic = page, traffic

    def replace(self, old: Sequence[Bookie], new: Sequence[Bookie], decommission: str) -> None:
        """One by one."""
        for goes, comes in zip(old, new, strict=True):
            comes.start()
            all_go_on(self.traffic, f"{comes.bookie_id} has come")
            ChildProcess.stop(goes)  # in good order: its registration ends at once
            self.page.run(decommission, goes.bookie_id)
            self._look(goes, comes)
            all_go_on(self.traffic, f"{goes.bookie_id} has gone")

    def _look(self, goes: Bookie, comes: Bookie) -> None:
        said = self.page.run(self.page.look, goes.bookie_id)
        print(said)
        assert comes.bookie_id in said
        assert goes.bookie_id not in said
        assert "ledger" not in said, said


def broker_of(kind: str, zookeeper: ZooKeeperProcess, folder: Path) -> BrokerProcess | PulsarBroker:
    if kind == "pulsars":
        return PulsarBroker(folder, zookeeper.port, _BROKER)
    settings = {**_BROKER, "bookkeeperMetadataServiceUri": uri_of(zookeeper)}
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return BrokerProcess(folder / "broker", zookeeper.url("/magnetar"), *options)


class Cluster:
    """A broker, auto-recovery, and the page's commands; bookies of both kinds come and go."""

    def __init__(
        self, zookeeper: ZooKeeperProcess, folder: Path, broker: str, recovery: str, count: int
    ) -> None:
        """``count``: bookies that come of each kind at a time."""
        uri = uri_of(zookeeper)
        self.shell = ApacheBookie(folder / "shell", uri)  # it is never started
        self.page = Page(self.shell, zookeeper, folder)
        self.ours = [PageBookie(self.page, folder / f"ours-{n}") for n in range(count)]
        self.theirs = [ApacheBookie(folder / f"theirs-{n}", uri) for n in range(count)]
        self.recovery = recovery_of(recovery, self.shell, zookeeper, folder)
        self.broker = broker_of(broker, zookeeper, folder / "broker")

    def roll(self, first: Sequence[Bookie]) -> None:
        """These bookies, by ours, and those by Apache's, under traffic."""
        with self.recovery, self.broker as server:
            fill_quiet(server.service_url)
            traffic = [
                TopicTraffic(server.service_url, f"persistent://public/default/{n}", 50, 0.03)
                for n in range(2)
            ]
            for each in traffic:
                each.start()
            all_go_on(traffic, "the start")
            roll = Roll(self.page, traffic)
            roll.replace(first, self.ours, self.page.theirs)
            roll.replace(self.ours, self.theirs, self.page.ours)
            server.kill()  # so that nothing is in its cache
            server.start(same_ports=True) if isinstance(server, BrokerProcess) else server.start()
            all_go_on(traffic, "the broker's end")
            stop_and_check(server.service_url, traffic)
            check_quiet(server.service_url)


def stop_all(bookies: Sequence[Bookie]) -> None:
    for bookie in bookies:
        if bookie.is_running:
            bookie.stop()


@pytest.mark.parametrize("recovery", ["ours", "apaches"])
@pytest.mark.parametrize("broker", ["ours", pytest.param("pulsars", marks=needs_pulsar)])
def test_bookies_are_rolled_one_by_one_forth_and_back(
    zookeeper: ZooKeeperProcess, tmp_path: Path, broker: str, recovery: str
) -> None:
    """From a cluster of three of Apache's, with each kind of broker and of auto-recovery."""
    first = start_bookies(tmp_path / "first", zookeeper.port)
    cluster = Cluster(zookeeper, tmp_path, broker, recovery, len(first))
    try:
        if isinstance(cluster.broker, PulsarBroker):
            cluster.broker.set_up()
        cluster.roll(first)
    finally:
        stop_all([*first, *cluster.ours, *cluster.theirs])


def test_one_of_three_bookies_is_replaced_forth_and_back(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    """The same with two bookies of ours that stay."""
    cluster = Cluster(zookeeper, tmp_path, "ours", "ours", 1)
    first = ApacheBookie(tmp_path / "first", uri_of(zookeeper))
    stay = [BookieProcess(tmp_path / f"stays-{n}", zookeeper.url()) for n in range(2)]
    with running_bookies(stay):
        try:
            first.start()
            cluster.roll([first])
        finally:
            stop_all([first, *cluster.ours, *cluster.theirs])


def recovery_of(
    kind: str, bookie: ApacheBookie, zookeeper: ZooKeeperProcess, folder: Path
) -> ChildProcess:
    name, grace = "openLedgerRereplicationGracePeriod", str(_GRACE_MS)
    if kind == "apaches":
        return ApacheAutoRecovery(bookie, "recovery", {name: grace})
    return AutoRecoveryProcess(folder, "recovery", zookeeper.url(), "--set", f"{name}={grace}")


def fill_quiet(url: str) -> None:
    """A topic of three ledgers; nobody uses it from now on."""
    with client_of(url) as client:
        client.subscribe(QUIET, "s")
        producer = client.create_producer(QUIET, batching_enabled=False, block_if_queue_full=True)
        for text in TEXTS:
            producer.send_async(text, None)
        producer.flush()


def check_quiet(url: str) -> None:
    with client_of(url) as client:
        consumer = client.subscribe(QUIET, "s")
        assert [consumer.receive(60_000).data() for _ in TEXTS] == TEXTS
