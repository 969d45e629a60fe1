"""The chart on a real control plane whose pods are real processes, used by the official client.

Run by ``make test-chart-live`` alone, in namespaces of its own; tests are in the order of a
cluster's life and go on with the same one.
"""

import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.charts.control_plane import ControlPlane, until
from tests.charts.live.conditions import NEEDS_LIVE
from tests.charts.live.kubelet import Kubelet
from tests.charts.live.load import Load
from tests.charts.live.release import PATIENCE, is_ready
from tests.charts.renderings import Object
from tests.cluster_tools import owner_of
from tests.official_client import open_client

pytestmark = NEEDS_LIVE

NAMESPACE = "live"
RELEASE = "m"
VALUES = str(Path(__file__).with_name("values.yaml"))
SERVICE_HOST = f"{RELEASE}-magnetar-broker.{NAMESPACE}.svc.cluster.local"
SERVICE, WEB = f"pulsar://{SERVICE_HOST}:6650", f"http://{SERVICE_HOST}:8080"
REPLICAS = {"zookeeper": 3, "bookie": 3, "broker": 2, "recovery": 1}
_SAMPLE_S = 0.1


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, kubelet: Kubelet) -> ControlPlane:
    """The chart, installed and ready."""
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": enforce}
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    plane.install(RELEASE, NAMESPACE, *PATIENCE, "--values", VALUES)
    return plane


def test_install_ends_when_servers_are_ready(cluster: ControlPlane) -> None:
    """No attempt is repeated here: what the client asks for right after helm's end is there."""
    client = open_client(SERVICE)
    try:
        topic = "persistent://public/default/first"
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        sent = [b"%d" % number for number in range(100)]
        for each in sent:
            producer.send(each)
        received = [consumer.receive(timeout_millis=60_000).data() for _ in sent]
        assert received == sent
    finally:
        client.close()


def test_each_server_is_in_the_zone_of_its_node(cluster: ControlPlane, kubelet: Kubelet) -> None:
    _check_zones(cluster, kubelet)


def _check_zones(plane: ControlPlane, kubelet: Kubelet) -> None:
    """As the tool in the toolset's pod shows what bookies have registered."""
    (toolset,) = plane.pods(NAMESPACE, "toolset")
    command = ["magnetar", "bookie-shell", "zones"]
    zones = kubelet.execute(toolset["metadata"]["uid"], command, 120.0)
    assert zones is not None
    print("\n" + zones)
    for pod in plane.pods(NAMESPACE, "bookie"):
        zone = pod["spec"]["nodeName"].replace("node", "zone")
        (line,) = [line for line in zones.splitlines() if zone in line]
        assert pod["metadata"]["name"] in line, zones


def _pods(plane: ControlPlane) -> dict[str, Object]:
    """Those of the servers, by name."""
    return {
        pod["metadata"]["name"]: pod
        for component in REPLICAS
        for pod in plane.pods(NAMESPACE, component)
    }


def _is_whole(plane: ControlPlane) -> bool:
    pods = _pods(plane).values()
    return len(pods) == sum(REPLICAS.values()) and all(map(is_ready, pods))


@contextmanager
def _fewest_ready(kubelet: Kubelet) -> Iterator[Callable[[], dict[str, int]]]:
    """How many pods of each component were ready at the worst moment."""
    fewest = dict(REPLICAS)
    end = threading.Event()

    def look() -> None:
        while not end.wait(_SAMPLE_S):
            labels = [
                pod["metadata"]["labels"].get("app.kubernetes.io/component")
                for pod in kubelet.pods()
                if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
            ]
            for component, least in fewest.items():
                fewest[component] = min(least, labels.count(component))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: dict(fewest)
    finally:
        end.set()
        thread.join()


def test_an_upgrade_replaces_every_pod_under_load(
    cluster: ControlPlane, kubelet: Kubelet, tmp_path: Path
) -> None:
    before = _pods(cluster)
    changed = {
        # From now on servers ask the API server for their node, with the rights of their account.
        "topology": {"zoneFrom": "node"},
        "zookeeper": {"configData": {"autopurge.snapRetainCount": "4"}},
        # Those that come, and not yet those that go, are read-only before they end.
        "bookkeeper": {"configData": {"journalMaxSizeMB": "32"}, "drain": {"enabled": True}},
        "autorecovery": {"configData": {"auditorPeriodicCheckInterval": "7200"}},
        "broker": {"configData": {"managedLedgerCacheSizeMB": "24"}},
    }
    values = tmp_path / "changed.yaml"
    values.write_text(yaml.safe_dump(changed), "utf-8")
    with Load(SERVICE, "upgrade") as load, _fewest_ready(kubelet) as fewest:
        words = ("--reuse-values", "--values", str(values))
        cluster.upgrade(RELEASE, NAMESPACE, *PATIENCE, *words)
        until("every pod is new and ready", lambda: _is_whole(cluster))
        load.wait_for_progress()
    after = _pods(cluster)
    _check_replaced(before, after)
    _check_fewest(fewest())
    assert _asking(after) == {"bookie", "broker"}
    _check_zones(cluster, kubelet)


def _check_replaced(before: dict[str, Object], after: dict[str, Object]) -> None:
    assert len(after) == len(before) == sum(REPLICAS.values())
    ids = [{pod["metadata"]["uid"] for pod in pods.values()} for pods in (before, after)]
    assert not ids[0] & ids[1], "a pod of before is there"


def _check_fewest(fewest: dict[str, int]) -> None:
    for component in ("zookeeper", "bookie", "broker"):
        assert fewest[component] >= REPLICAS[component] - 1, component


def _asking(pods: dict[str, Object]) -> set[str]:
    """Components that have what it takes to ask the API server."""
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods.values()
        if any("projected" in volume for volume in pod["spec"]["volumes"])
    } & {"bookie", "broker"}


def test_two_nodes_are_drained_under_load(cluster: ControlPlane, kubelet: Kubelet) -> None:
    """At once, so that only budgets keep two pods of a component from going together."""
    drained = kubelet.nodes[:2]
    with Load(SERVICE, "drain") as load, _fewest_ready(kubelet) as fewest:
        words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=540s")
        cluster.kubectl("drain", *drained, *words)
        until("all pods are ready elsewhere", lambda: _is_whole(cluster))
        nodes = {pod["spec"]["nodeName"] for pod in _pods(cluster).values()}
        assert nodes == set(kubelet.nodes[2:])
        cluster.kubectl("uncordon", *drained)
        load.wait_for_progress()
    _check_fewest(fewest())


@pytest.mark.parametrize("component", ["broker", "bookie", "zookeeper"])
def test_a_killed_server_is_started_anew(
    cluster: ControlPlane, kubelet: Kubelet, component: str
) -> None:
    with Load(SERVICE, f"kill-{component}") as load:
        name = {"broker": _owner(load.topics[0]), "zookeeper": _leader(cluster)}.get(
            component, f"{RELEASE}-magnetar-bookie-0"
        )
        before = _pods(cluster)[name]
        restarts = _restarts(before)
        (pid,) = kubelet.pids(before["metadata"]["uid"])
        os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            pod = _pods(cluster)[name]
            assert pod["metadata"]["uid"] == before["metadata"]["uid"]
            return _restarts(pod) > restarts and _is_whole(cluster)

        until("it is ready again, in the same pod", is_back)
        load.wait_for_progress()


def _restarts(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def _owner(topic: str) -> str:
    """The pod of the broker that serves it."""
    url = owner_of(WEB, topic)
    assert url is not None, topic
    return url.removeprefix("http://").partition(".")[0]


def _leader(plane: ControlPlane) -> str:
    """The pod of ZooKeeper's leader."""
    for pod in plane.pods(NAMESPACE, "zookeeper"):
        with socket.create_connection((pod["status"]["podIP"], 2181), 30) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as answer:
                if b"Mode: leader" in answer.read():
                    return str(pod["metadata"]["name"])
    raise AssertionError("no server of ZooKeeper leads")


def test_brokers_scale_out_and_in_under_load(cluster: ControlPlane) -> None:
    new = {f"{RELEASE}-magnetar-broker-{ordinal}" for ordinal in (2, 3)}
    with Load(SERVICE, "scale") as load:

        def owners() -> set[str]:
            return {_owner(topic) for topic in load.topics}

        _scale(cluster, 4)

        def is_used() -> bool:
            """Whoever gives bundles up here leaves it to placement who gets them."""
            url = f"{WEB}/admin/v2/namespaces/public/default/unload"
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=60).close()
            load.wait_for_progress()
            return bool(owners() & new)

        until("a new broker serves topics", is_used)
        _scale(cluster, 2)
        load.wait_for_progress()
        assert not owners() & new


def _scale(plane: ControlPlane, count: int) -> None:
    words = ("--reuse-values", "--set", f"broker.replicaCount={count}")
    plane.upgrade(RELEASE, NAMESPACE, *PATIENCE, *words)
    until("as many as asked for", lambda: len(_brokers(plane)) == count)
    assert all(map(is_ready, _brokers(plane)))


def _brokers(plane: ControlPlane) -> list[Object]:
    """Also those that end."""
    label = "app.kubernetes.io/component=broker"
    found: list[Object] = plane.get("pods", "-n", NAMESPACE, "--selector", label)
    return found


def test_a_rollback_replaces_every_pod_under_load(cluster: ControlPlane, kubelet: Kubelet) -> None:
    """To what was installed first, which is less than what runs: settings go, too."""
    before = _pods(cluster)
    assert all("preStop" in _container(pod).get("lifecycle", {}) for pod in _bookies(before))
    read = _LogReader(kubelet.logs, f"{NAMESPACE}.{RELEASE}-magnetar-broker-*")
    with Load(SERVICE, "rollback") as load, _fewest_ready(kubelet) as fewest:
        words = ("--namespace", NAMESPACE, "--wait", *PATIENCE)
        cluster.helm("rollback", RELEASE, "1", *words)
        until("every pod is new and ready", lambda: _is_whole(cluster))
        load.wait_for_progress()
    after = _pods(cluster)
    _check_replaced(before, after)
    _check_fewest(fewest())
    assert not _asking(after)
    assert not any("lifecycle" in _container(pod) for pod in _bookies(after))
    broken = [line for line in read.news() if "add stream ended" in line]
    assert broken == [], "a bookie ended with adds under way"


def _container(pod: Object) -> Object:
    found: Object = pod["spec"]["containers"][0]
    return found


def _bookies(pods: dict[str, Object]) -> list[Object]:
    found = [pod for name, pod in pods.items() if "-bookie-" in name]
    assert len(found) == REPLICAS["bookie"]
    return found


class _LogReader:
    """What is written to some files from now on."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._read = {path: path.stat().st_size for path in folder.glob(pattern)}

    def news(self) -> list[str]:
        lines = []
        for path in self._folder.glob(self._pattern):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines += file.read().decode(errors="replace").splitlines()
        return lines


_TAINT = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


def test_a_node_is_lost_under_load(cluster: ControlPlane, kubelet: Kubelet) -> None:
    """Without a word; and what ran there comes back when others have taken its place."""
    with Load(SERVICE, "lost") as load:
        owner = _owner(load.topics[0])
        lost = str(_pods(cluster)[owner]["spec"]["nodeName"])
        gone = kubelet.lose(lost)
        load.wait_for_progress()
        sets = [uid for uid, pod in gone.items() if _is_of_set(pod)]
        until("its pods are told to end", lambda: _are_ending(cluster, sets))
        load.wait_for_progress()
        # Nobody can say whether they live, so there is no other of their names.
        assert not _pods(cluster).keys() & {gone[uid]["metadata"]["name"] for uid in sets}
        cluster.kubectl("taint", "nodes", lost, _TAINT)
        until("all pods are ready elsewhere", lambda: _is_whole(cluster))
        assert lost not in {pod["spec"]["nodeName"] for pod in _pods(cluster).values()}
        load.wait_for_progress()
        # Not ZooKeeper's: nothing keeps two servers with one number apart.
        back = [uid for uid in sets if "-zookeeper-" not in gone[uid]["metadata"]["name"]]
        kubelet.join(back)
        until(
            "they have seen that they were replaced",
            lambda: all(_gave_up(kubelet, gone[uid]) for uid in back),
        )
        load.wait_for_progress()
        assert _is_whole(cluster)
        kubelet.find(lost)
        until("nothing of before is left", lambda: not any(map(kubelet.is_running, gone)))
        cluster.kubectl("taint", "nodes", lost, f"{_TAINT}-")
        assert _is_whole(cluster)
        load.wait_for_progress()


def _is_of_set(pod: Object) -> bool:
    (owner,) = pod["metadata"]["ownerReferences"]
    return bool(owner["kind"] == "StatefulSet")


def _are_ending(plane: ControlPlane, uids: list[str]) -> bool:
    pods = {pod["metadata"]["uid"]: pod for pod in plane.get("pods", "-n", NAMESPACE)}
    return all("deletionTimestamp" in pods[uid]["metadata"] for uid in uids)


def _gave_up(kubelet: Kubelet, pod: Object) -> bool:
    """A bookie ends; a broker lives on, and isn't one of the cluster's."""
    if "-bookie-" in pod["metadata"]["name"]:
        return kubelet.restarts(pod["metadata"]["uid"]) > 0
    try:
        urllib.request.urlopen(f"http://{pod['status']['podIP']}:8080/readyz", timeout=10).close()
    except urllib.error.HTTPError as error:
        return b"not registered" in error.read()
    except OSError:
        pass
    return False
