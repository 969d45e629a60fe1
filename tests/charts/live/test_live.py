"""The chart on a real control plane whose pods are real processes, used by the official client.

Run by ``make test-chart-live`` alone, in namespaces of its own; tests are in the order of a
cluster's life and go on with the same one.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest
import yaml

from tests.charts.control_plane import ControlPlane, missing_tools, until
from tests.charts.live.api import ApiServer
from tests.charts.live.kubelet import Kubelet
from tests.charts.live.load import QUIET, Load
from tests.charts.live.names import resolver_configuration
from tests.charts.live.network import run
from tests.charts.renderings import Object
from tests.cluster_tools import owner_of

_TOOLS = ("ip", "unshare", "nsenter", "setpriv", "chroot", "mount", "java")


def _missing() -> str:
    """Why nothing can run here; "": it can."""
    is_asked = os.environ.get("MAGNETAR_LIVE") == "1"
    if is_asked and os.geteuid() != 0:
        return "only root makes namespaces"
    if not is_asked or os.getpid() != 1:  # outside of namespaces it would change this machine's
        return "pods as real processes: make test-chart-live KUBE=kube.sh (docs/kubernetes.md)"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"missing: {', '.join(absent)}" if absent else missing_tools()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_missing()), reason=_missing() or "it is there"),
]

ZONES = 3
NAMESPACE = "live"
RELEASE = "m"
VALUES = str(Path(__file__).with_name("values.yaml"))
DOOR = f"{RELEASE}-magnetar-broker.{NAMESPACE}.svc.cluster.local"
SERVICE, WEB = f"pulsar://{DOOR}:6650", f"http://{DOOR}:8080"
REPLICAS = {"zookeeper": 3, "bookie": 3, "broker": 2, "recovery": 1}
_PATIENCE = ("--timeout", "9m")
_SAMPLE_S = 0.1


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    run("ip", "link", "set", "lo", "up")
    plane = ControlPlane(tmp_path_factory.mktemp("plane"), 0)
    plane.up()
    try:
        yield plane
    finally:
        plane.down()


@pytest.fixture(scope="module")
def kubelet(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    folder = tmp_path_factory.mktemp("kubelet")
    with Kubelet(ApiServer(plane.config), ZONES, folder) as kubelet:
        # The clients of these tests ask the cluster's DNS, too.
        names = folder / "resolv.conf"
        names.write_text(resolver_configuration(NAMESPACE), "utf-8")
        run("mount", "--bind", str(names), os.path.realpath("/etc/resolv.conf"))
        yield kubelet


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, kubelet: Kubelet) -> ControlPlane:
    """The chart, installed and ready."""
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": enforce}
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    plane.install(RELEASE, NAMESPACE, *_PATIENCE, "--values", VALUES)
    return plane


def test_install_ends_when_servers_are_ready(cluster: ControlPlane) -> None:
    """No attempt is repeated here: what the client asks for right after helm's end is there."""
    client = pulsar.Client(SERVICE, logger=QUIET)
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


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _pods(plane: ControlPlane) -> dict[str, Object]:
    """Those of the servers, by name."""
    return {
        pod["metadata"]["name"]: pod
        for component in REPLICAS
        for pod in plane.pods(NAMESPACE, component)
    }


def _is_whole(plane: ControlPlane) -> bool:
    pods = _pods(plane).values()
    return len(pods) == sum(REPLICAS.values()) and all(map(_is_ready, pods))


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
                if _is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
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
        "bookkeeper": {"configData": {"journalMaxSizeMB": "32"}},
        "autorecovery": {"configData": {"auditorPeriodicCheckInterval": "7200"}},
        "broker": {"configData": {"managedLedgerCacheSizeMB": "24"}},
    }
    values = tmp_path / "changed.yaml"
    values.write_text(yaml.safe_dump(changed), "utf-8")
    with Load(SERVICE, "upgrade") as load, _fewest_ready(kubelet) as fewest:
        words = ("--reuse-values", "--values", str(values))
        cluster.upgrade(RELEASE, NAMESPACE, *_PATIENCE, *words)
        until("every pod is new and ready", lambda: _is_whole(cluster))
        load.wait_for_progress()
    after = _pods(cluster)
    assert len(after) == len(before) == sum(REPLICAS.values())
    ids = [{pod["metadata"]["uid"] for pod in pods.values()} for pods in (before, after)]
    assert not ids[0] & ids[1], "a pod of before is there"
    for component in ("zookeeper", "bookie", "broker"):
        assert fewest()[component] >= REPLICAS[component] - 1, component
    assert all(any("projected" in v for v in pod["spec"]["volumes"]) for pod in _tokens(after))
    _check_zones(cluster, kubelet)


def _tokens(pods: dict[str, Object]) -> list[Object]:
    """Those of them that may ask the API server."""
    found = [pod for name, pod in pods.items() if "-bookie-" in name or "-broker-" in name]
    assert len(found) == REPLICAS["bookie"] + REPLICAS["broker"]
    return found


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
    for component in ("zookeeper", "bookie", "broker"):
        assert fewest()[component] >= REPLICAS[component] - 1, component


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
    plane.upgrade(RELEASE, NAMESPACE, *_PATIENCE, *words)
    until("as many as asked for", lambda: len(_brokers(plane)) == count)
    assert all(map(_is_ready, _brokers(plane)))


def _brokers(plane: ControlPlane) -> list[Object]:
    """Also those that end."""
    label = "app.kubernetes.io/component=broker"
    found: list[Object] = plane.get("pods", "-n", NAMESPACE, "--selector", label)
    return found
