"""``magnetar cluster`` with real processes: used, hurt, stopped, killed, started again."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.apache_bookies import needs_bookkeeper
from tests.child_process import suspend
from tests.cluster_process import MAGNETAR, ClusterProcess, is_alive
from tests.cluster_tools import move_bundle, owned_bundles
from tests.nightly import NIGHTLY
from tests.numbered_messages import TOPICS, Sender, check_all
from tests.official_client import client_of
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"zookeeper", "bookie-1", "bookie-2", "bookie-3", "autorecovery", "broker-1", "broker-2"}


def open_both(cluster: ClusterProcess) -> None:
    """Make both brokers owners: whom the leader knew or liked at first doesn't matter."""
    for index, topic in enumerate(TOPICS):
        with client_of(cluster.service_urls[index % 2]) as made:
            made.subscribe(topic, "keeper").close()  # nothing is trimmed
    owned = [owned_bundles(url) or set() for url in cluster.web_urls]
    if not all(owned):
        source, target = sorted(cluster.web_urls, key=lambda url: not owned_bundles(url))
        move_bundle(min(set.union(*owned)), source, target)
        owned = [owned_bundles(url) or set() for url in cluster.web_urls]
    assert all(owned), owned
    assert not owned[0] & owned[1]


def kill_and_go_on(cluster: ClusterProcess, name: str, sender: Sender) -> None:
    before = sender.total
    cluster.children()[name].kill()
    wait_until(lambda: cluster.log.count(f"{name} ready at ") == 2, f"{name} is back")
    wait_until(lambda: sender.total >= before + 80, "messages go on")


@pytest.mark.slow
def test_a_cluster_is_hurt_stopped_started_again_and_killed(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "cluster", "--brokers", "2", program=MAGNETAR)
    with cluster:
        assert set(cluster.children()) == NAMES
        open_both(cluster)
        # By the first broker alone: what the second one owns is found by redirects.
        sender = Sender(cluster.service_url)
        sender.start()
        wait_until(lambda: sender.total >= 80, "messages")
        kill_and_go_on(cluster, "bookie-1", sender)
        for number in (1, 2):  # two copies suffice until it is back: no ledger ended
            log = tmp_path / "cluster" / "logs" / f"broker-{number}.log"
            assert "nobody can replace" not in log.read_text()
        kill_and_go_on(cluster, "broker-2", sender)
        sender.stop()
        check_all(cluster.service_urls[0], sender.acknowledged)
        children = list(cluster.children().values())
        urls = cluster.service_urls
        assert cluster.stop() == 0
        assert [each for each in children if is_alive(each)] == []
        stopped = [line.split()[0] for line in cluster.log.splitlines() if " stopped" in line]
        assert stopped[-1] == "zookeeper"
        assert {*stopped[:2]} == {"broker-1", "broker-2"}
        assert stopped[2] == "autorecovery"

        cluster.start()  # on the same data
        assert cluster.service_urls == urls
        check_all(cluster.service_url, sender.acknowledged)
        children = list(cluster.children().values())
        cluster.kill()
        wait_until(lambda: not [each for each in children if is_alive(each)], "nobody outlives it")


@needs_bookkeeper
@pytest.mark.slow
def test_brokers_on_apaches_bookies(tmp_path: Path) -> None:
    """A bookie is killed and comes back; the cluster is stopped and started again."""
    options = ("--bookkeeper", "apache", "--brokers", "1")
    cluster = ClusterProcess(tmp_path / "cluster", *options, program=MAGNETAR)
    with cluster:
        assert set(cluster.children()) == NAMES - {"autorecovery", "broker-2"}
        for child in cluster.children().values():
            if child.name() == "java":
                listeners = child.net_connections("tcp")
                assert {each.laddr.ip for each in listeners} <= {"127.0.0.1", "::ffff:127.0.0.1"}
        sender = Sender(cluster.service_url)
        sender.start()
        wait_until(lambda: sender.total >= 80, "messages")
        kill_and_go_on(cluster, "bookie-1", sender)
        sender.stop()
        libraries = tmp_path / "cluster" / "tmp"
        left = set(libraries.iterdir())
        assert len(left) > 2, "of two bookies and of the one that was killed"
        assert "bookkeeper: zk+hierarchical://" in cluster.log
        if NIGHTLY:  # three more JVMs
            assert cluster.stop() == 0
            cluster.start()  # on the same data
            assert left.isdisjoint(libraries.iterdir())
        check_all(cluster.service_url, sender.acknowledged)


def test_jars_that_are_missing_are_told(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "cluster"), "--port", "0", "--bookkeeper", "apache")
    done = run_cluster(*data, MAGNETAR_BOOKKEEPER_JARS=str(tmp_path))
    assert done.returncode == 1
    assert f"no jars of Apache BookKeeper in {tmp_path}: `make bookkeeper-jars`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def run_cluster(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "magnetar.broker.cli.main", "cluster", *options],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "cluster"), "--port", "0")
    done = run_cluster(*data, PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    assert "needs Java 17 or newer, and there is no java" in done.stderr
    assert "--metadata" in done.stderr
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_362\"' >&2\n")
    old.chmod(0o755)
    done = run_cluster(*data, PATH=f"{tmp_path}:/bin", JAVA_HOME="")
    assert done.returncode == 1
    assert f"{old} is Java 8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told_and_nothing_starts(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = run_cluster(
            *("--data", str(tmp_path / "cluster"), "--brokers", "1", "--port", "0"),
            *("--web-port", str(port)),
        )
    assert done.returncode == 1
    assert f"port {port} (broker-1 web) is in use" in done.stderr
    assert "starting" not in done.stdout


def test_a_process_that_can_not_start_ends_all_of_it(tmp_path: Path) -> None:
    cluster = ClusterProcess(
        *(tmp_path / "cluster", "--bookies", "1", "--bookie-set", "journalMaxSizeMB=none"),
        program=MAGNETAR,
    )
    cluster.launch()
    said = cluster.refusal(cluster.take(), 0)
    assert "bookie-1 can't start" in said
    assert "journalMaxSizeMB" in said
    assert said.count("bookie-1 starting") == 3
    assert "zookeeper stopped" in said
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info)]


def test_a_second_signal_kills(tmp_path: Path) -> None:
    options = ("--bookies", "1", "--brokers", "1")
    cluster = ClusterProcess(tmp_path / "cluster", *options, program=MAGNETAR)
    with cluster:
        children = cluster.children()
        suspend(children["bookie-1"].pid)  # it can't end by itself
        process = cluster.take()
        process.send_signal(signal.SIGINT)
        wait_until(lambda: cluster.count("autorecovery stopped"), "stopping")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert [name for name, each in children.items() if is_alive(each)] == []
