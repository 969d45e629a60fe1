"""The chart and a real control plane: what single values promise; pods are simulated.

Skipped where there is none: ``make test-chart KUBE=kube.sh``.
"""

import itertools

import pytest

from tests.charts.control_plane import ControlPlane, missing_tools, options, uids, until
from tests.charts.renderings import CHART, Object

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "it is there"),
]

RELEASE = "m"


def test_pods_are_told_their_zone_and_number(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace, *options("zones"))
    zones = {
        node["metadata"]["name"]: node["metadata"]["labels"]["topology.kubernetes.io/zone"]
        for node in plane.get("nodes")
    }
    bookies = plane.pods(namespace, "bookie")
    assert len(bookies) == 6
    for ordinal, pod in enumerate(bookies):
        labels = pod["metadata"]["labels"]
        # The downward API reads these two (MAGNETAR_ZONE, MAGNETAR_UPGRADE_DOMAIN).
        assert labels["topology.kubernetes.io/zone"] == zones[pod["spec"]["nodeName"]]
        assert labels["apps.kubernetes.io/pod-index"] == str(ordinal)
        paths = {
            variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"]
            for variable in pod["spec"]["containers"][0]["env"]
            if "valueFrom" in variable
        }
        assert paths["MAGNETAR_ZONE"] == "metadata.labels['topology.kubernetes.io/zone']"
        assert paths["MAGNETAR_UPGRADE_DOMAIN"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert len({pod["spec"]["nodeName"] for pod in bookies}) == 6, "one on each node"


def test_pods_are_on_different_nodes_or_not_at_all_where_asked(
    plane: ControlPlane, namespace: str
) -> None:
    """Soft by default: more bookies than nodes run. Hard by values: they don't."""
    count = f"bookkeeper.replicaCount={plane.nodes + 1}"
    plane.install(RELEASE, namespace, "--set", count)
    pods = plane.pods(namespace, "bookie")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == plane.nodes
    hard = "affinity.type=requiredDuringSchedulingIgnoredDuringExecution"
    words = ("--namespace", namespace, "--set", f"{count},{hard}")
    plane.helm("upgrade", RELEASE, str(CHART), *words)

    def is_stuck() -> bool:
        """One finds no node, whichever: two shared one. None below it has been touched."""
        now = plane.pods(namespace, "bookie")
        waiting = [
            ordinal
            for ordinal, pod in enumerate(now)
            for condition in pod["status"].get("conditions", ())
            if "anti-affinity" in condition.get("message", "")
        ]
        return len(waiting) == 1 and uids(now)[: waiting[0]] == uids(pods)[: waiting[0]]

    until("a bookie finds no node", is_stuck)


def test_upgrade_and_rollback_go_pod_by_pod(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace)
    before = {c: plane.pods(namespace, c) for c in ("zookeeper", "bookie", "broker")}
    old = plane.get("configmap", "m-magnetar-bookie", "--namespace", namespace)["data"]

    plane.upgrade(RELEASE, namespace)
    for component, pods in before.items():
        assert uids(plane.pods(namespace, component)) == uids(pods), "nothing changed"

    change = "bookkeeper.configData.flushInterval=10000"
    plane.upgrade(RELEASE, namespace, "--set-string", change)
    new = plane.pods(namespace, "bookie")
    assert not set(uids(new)) & set(uids(before["bookie"])), "its settings changed"
    assert uids(plane.pods(namespace, "broker")) == uids(before["broker"]), "not theirs"
    assert plane.get("configmap", "m-magnetar-bookie", "-n", namespace)["data"] == {
        **old,
        "flushInterval": "10000",
    }
    # The last ordinal first; each one only when the one before it was ready again.
    for low, high in itertools.pairwise(new):
        assert low["metadata"]["creationTimestamp"] >= _ready_at(high)

    plane.rollback(RELEASE, namespace, 1)
    assert plane.get("configmap", "m-magnetar-bookie", "-n", namespace)["data"] == old
    assert not set(uids(plane.pods(namespace, "bookie"))) & set(uids(new))


def _ready_at(pod: Object) -> str:
    [ready] = [c for c in pod["status"]["conditions"] if c["type"] == "Ready"]
    assert ready["status"] == "True"
    return str(ready["lastTransitionTime"])


def test_claims_outlive_scaling_and_upgrades_of_the_chart(
    plane: ControlPlane, namespace: str
) -> None:
    plane.install(RELEASE, namespace)
    plane.upgrade(RELEASE, namespace, "--set", "bookkeeper.replicaCount=5")
    assert len(plane.pods(namespace, "bookie")) == 5
    plane.upgrade(RELEASE, namespace, "--set", "bookkeeper.replicaCount=4")
    until("four bookies", lambda: len(plane.pods(namespace, "bookie")) == 4)
    claims = {n for n in plane.names("pvc", namespace) if n.startswith("ledgers-")}
    assert claims == {f"ledgers-m-magnetar-bookie-{ordinal}" for ordinal in range(5)}
    # Labels of everything change; a StatefulSet would refuse other claims or selectors.
    words = ("--set", "labels.team=messaging", "--set", "bookkeeper.replicaCount=4")
    plane.upgrade(RELEASE, namespace, *words)
    assert plane.pods(namespace, "bookie")[0]["metadata"]["labels"]["team"] == "messaging"


def test_brokers_scale_up_and_down(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace)
    first = uids(plane.pods(namespace, "broker"))
    assert len(first) == 2
    plane.upgrade(RELEASE, namespace, "--set", "broker.replicaCount=4")
    assert uids(plane.pods(namespace, "broker"))[:2] == first
    assert len(plane.pods(namespace, "broker")) == 4
    plane.kubectl("scale", "statefulset/m-magnetar-broker", "--replicas=3", "-n", namespace)
    until("three brokers", lambda: len(plane.pods(namespace, "broker")) == 3)
    plane.upgrade(RELEASE, namespace, "--set", "broker.replicaCount=2")
    until("two brokers", lambda: uids(plane.pods(namespace, "broker")) == first)


def test_who_asks_for_its_node_may_read_nodes_and_nothing_else(
    plane: ControlPlane, namespace: str
) -> None:
    plane.install(RELEASE, namespace, "--set", "topology.zoneFrom=node")
    accounts = {"m-magnetar-broker", "m-magnetar-bookie", "m-magnetar-recovery"}
    for account in plane.names("serviceaccounts", namespace):
        assert plane.may(account, namespace, "get", "nodes") is (account in accounts), account
        for words in [("list", "nodes"), ("watch", "nodes"), ("get", "secrets"), ("*", "*")]:
            assert not plane.may(account, namespace, *words), f"{account}: {words}"
    # As the pod does it, with a token like the one that is mounted in it.
    token = plane.kubectl("create", "token", "m-magnetar-bookie", "-n", namespace).strip()
    assert '"zone-2"' in plane.kubectl("get", "node", "node-2", "-o", "json", "--token", token)
    refused = plane.run(["kubectl", "get", "nodes", "--token", token])
    assert "Forbidden" in refused.stderr


def test_values_that_would_hurt_are_refused(plane: ControlPlane, namespace: str) -> None:
    words = ("--namespace", namespace)
    for setting, reason in [
        ("bookkeeper.replicaCount=1", "messages need 2 bookies"),
        ("broker.configData.managedLedgerDefaultAckQuorum=3", "ensemble size"),
        ("components.zookeeper=false", "userProvidedZookeepers"),
        ("topology.placement=zone-aware", "three copies"),
        ("auth.authorization.enabled=true", "roles must be proved"),
        ("broker.external.enabled=true", "broker.external.domain"),
        ("broker.replicas=3", "additional properties 'replicas' not allowed"),
    ]:
        option = "--set-string" if "configData" in setting else "--set"
        error = plane.helm_refuses("install", RELEASE, str(CHART), *words, option, setting)
        assert reason in error, error


def test_zookeeper_grows_by_one_server_at_a_time(plane: ControlPlane, namespace: str) -> None:
    """Larger steps have majorities before and after that share no server."""
    where = ("--namespace", namespace)
    plane.install("alone", namespace, *options("minimal"))
    words = (*where, *options("minimal"), "--set", "zookeeper.replicaCount=3")
    error = plane.helm_refuses("upgrade", "alone", str(CHART), *words)
    assert "can't grow from 1" in error

    def grown(servers: int) -> tuple[str, ...]:
        return ("--set", f"zookeeper.replicaCount={servers}")

    plane.install(RELEASE, namespace)
    error = plane.helm_refuses("upgrade", RELEASE, str(CHART), *where, *grown(5))
    assert "by one at a time, and is 3" in error
    plane.upgrade(RELEASE, namespace, *grown(4))
    assert _ready(plane, namespace) == 4
    plane.set_ready(namespace, "m-magnetar-zookeeper-3", False)
    until("a server is away", lambda: _ready(plane, namespace) == 3)
    error = plane.helm_refuses("upgrade", RELEASE, str(CHART), *where, *grown(5))
    assert "when all servers are ready" in error
    plane.set_ready(namespace, "m-magnetar-zookeeper-3", True)
    until("it is back", lambda: _ready(plane, namespace) == 4)
    plane.upgrade(RELEASE, namespace, *grown(5))
    assert _ready(plane, namespace) == 5


def _ready(plane: ControlPlane, namespace: str) -> int:
    servers = plane.get("statefulset", "m-magnetar-zookeeper", "-n", namespace)
    return int(servers["status"].get("readyReplicas", 0))


def test_two_releases_live_beside_each_other(plane: ControlPlane, namespace: str) -> None:
    for release in ("one", "two"):
        plane.install(release, namespace)

    def is_apart(release: str) -> bool:
        label = f"kubernetes.io/service-name={release}-magnetar-broker"
        slices = plane.get("endpointslices", "--namespace", namespace, "--selector", label)
        targets = {end["targetRef"]["name"] for each in slices for end in each["endpoints"] or ()}
        return targets == {f"{release}-magnetar-broker-{ordinal}" for ordinal in range(2)}

    until("clients of each get to its brokers", lambda: is_apart("one") and is_apart("two"))

    def pods(release: str) -> list[str]:
        label = f"app.kubernetes.io/instance={release}"
        return sorted(uids(plane.get("pods", "--namespace", namespace, "--selector", label)))

    assert len(pods("one")) == len(stay := pods("two")) == 9
    plane.uninstall("one", namespace)
    until("its pods are gone", lambda: not pods("one"))
    assert pods("two") == stay
