"""The chart and a real control plane: admission, roll-outs, budgets, rights; pods are simulated.

Skipped where there is none: ``make test-chart KUBE=kube.sh``.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.charts.control_plane import ControlPlane, LoadBalancers, missing_tools, until
from tests.charts.renderings import CHART, VALUES, Object, Rendering

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "it is there"),
]

NODES = 6  # one in each zone
RELEASE = "m"
# Definitions of kinds that others have invented, and where they are in those modules of Go.
DEFINITIONS = {
    "github.com/cert-manager/cert-manager@v1.21.2": (
        "deploy/crds",
        ("cert-manager.io_certificates.yaml", "cert-manager.io_issuers.yaml"),
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd",
        ("monitoring.coreos.com_podmonitors.yaml", "monitoring.coreos.com_servicemonitors.yaml"),
    ),
}
each_values = pytest.mark.parametrize("values", VALUES, ids=lambda each: each.name)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path_factory.mktemp("plane"), NODES)
    plane.up()
    try:
        _prepare(plane)
        with LoadBalancers(plane):
            yield plane
    finally:
        plane.down()


def _prepare(plane: ControlPlane) -> None:
    """What the matrix takes for granted: definitions, classes of volumes, labels of nodes."""
    if shutil.which("go") is None:
        pytest.skip(
            "the definitions of PodMonitor and Certificate are in modules of Go: install it"
        )
    for module, (folder, files) in DEFINITIONS.items():
        done = subprocess.run(
            ["go", "mod", "download", "-json", module],
            check=True,
            capture_output=True,
            timeout=600,
        )
        where = Path(json.loads(done.stdout)["Dir"]) / folder
        for file in files:
            plane.kubectl("apply", "--server-side", "-f", str(where / file))
    plane.kubectl("label", "nodes", "--all", "disks=fast")
    for definition in ("certificates.cert-manager.io", "podmonitors.monitoring.coreos.com"):
        plane.kubectl("wait", "--for=condition=Established", f"crd/{definition}", "--timeout=60s")


@pytest.fixture
def namespace(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """One of this test alone, in which nothing runs that isn't "restricted"."""
    name = "t" + "".join(c for c in request.node.name.lower() if c.isalnum())[-40:]
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.apply(
        [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": enforce}}]
    )
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


def _values(name: str) -> tuple[str, ...]:
    """Options of helm. Simulated volumes are of one class only, whatever the values say."""
    options = ("--values", str(CHART / "ci" / f"{name}-values.yaml"))
    if name != "zones":
        return options
    where = "bookkeeper.volumes.ledgers.multiVolumes"
    sets = ",".join(f"{where}[{index}].storageClassName=kwok-volume" for index in range(3))
    return (*options, "--set", sets)


def test_lint(plane: ControlPlane) -> None:
    for each in VALUES:
        words = ("--strict", "--values", str(each.values_path))
        assert "0 chart(s) failed" in plane.helm("lint", str(CHART), *words)


@each_values
def test_the_server_takes_each_object_strictly(
    plane: ControlPlane, namespace: str, values: Rendering
) -> None:
    words = ("--namespace", namespace, "--validate", "--values", str(values.values_path))
    text = plane.helm("template", RELEASE, str(CHART), *words)
    assert text.count("\nkind: ") >= 9
    plane.kubectl(
        *("apply", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-"),
        stdin=text,
    )


def test_strictness_is_real(plane: ControlPlane, namespace: str) -> None:
    text = plane.helm("template", RELEASE, str(CHART), "--namespace", namespace, "--validate")
    wrong = text.replace("podManagementPolicy:", "podManagementPolitics:", 1)
    assert wrong != text
    words = ["kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-"]
    done = plane.run(words, wrong)
    assert done.returncode != 0
    assert "podManagementPolitics" in done.stderr


@each_values
def test_it_is_installed_ready_and_gone_again(
    plane: ControlPlane, namespace: str, values: Rendering
) -> None:
    plane.install(RELEASE, namespace, *_values(values.name))
    workloads = [
        *plane.get("statefulsets", "--namespace", namespace),
        *plane.get("deployments", "--namespace", namespace),
    ]
    assert workloads
    for each in workloads:
        assert each["status"]["readyReplicas"] == each["spec"]["replicas"], each["metadata"]["name"]
    _services_lead_somewhere(plane, namespace)
    claims = plane.names("persistentvolumeclaims", namespace)
    plane.uninstall(RELEASE, namespace)
    left = {
        f"{each['kind']}/{each['metadata']['name']}"
        for each in plane.get(
            "all,configmaps,serviceaccounts,networkpolicies,poddisruptionbudgets,"
            "certificates,issuers,podmonitors,servicemonitors,horizontalpodautoscalers",
            "--namespace",
            namespace,
            "--selector",
            f"app.kubernetes.io/instance={RELEASE}",
        )
        if "deletionTimestamp" not in each["metadata"]
        and each["kind"] not in ("Pod", "ControllerRevision")
    }
    assert left == set()
    assert plane.names("persistentvolumeclaims", namespace) == claims, "data were deleted"
    roles = plane.get("clusterroles", "--selector", f"app.kubernetes.io/instance={RELEASE}")
    assert roles == []


def _services_lead_somewhere(plane: ControlPlane, namespace: str) -> None:
    def lost() -> set[str]:
        slices = plane.get("endpointslices", "--namespace", namespace)
        served = {
            each["metadata"]["labels"]["kubernetes.io/service-name"]
            for each in slices
            if each.get("endpoints") and each.get("ports")
        }
        wanted = plane.names("services", namespace)
        # One for each broker that there may be; no metrics are there to make more of them.
        unborn = {name for name in wanted if name.endswith(("-3-external", "-4-external"))}
        return wanted - served - unborn

    until("each Service has endpoints", lambda: not lost())


def test_pods_are_told_their_zone_and_number(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace, *_values("zones"))
    zones = {
        node["metadata"]["name"]: node["metadata"]["labels"]["topology.kubernetes.io/zone"]
        for node in plane.get("nodes")
    }
    bookies = plane.pods(namespace, "bookie")
    assert len(bookies) == NODES
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
    assert len({pod["spec"]["nodeName"] for pod in bookies}) == NODES, "one on each node"
    until(
        "the autoscaler makes as many brokers as there must be",
        lambda: len(plane.pods(namespace, "broker")) == 3,
    )
    _dashboard_is_the_file(plane, namespace)
    plane.uninstall(RELEASE, namespace)


def _dashboard_is_the_file(plane: ControlPlane, namespace: str) -> None:
    found = plane.get("configmaps", "-n", namespace, "--selector", "grafana_dashboard=1")
    files = {path.name: path.read_text("utf-8") for path in (CHART / "dashboards").iterdir()}
    shown = {name: text for each in found for name, text in each["data"].items()}
    assert {name: json.loads(text) for name, text in shown.items()} == {
        name: json.loads(text) for name, text in files.items()
    }


def test_pods_are_on_different_nodes_or_not_at_all_where_asked(
    plane: ControlPlane, namespace: str
) -> None:
    """Soft by default: more bookies than nodes run. Hard by values: they don't."""
    count = f"bookkeeper.replicaCount={NODES + 1}"
    plane.install(RELEASE, namespace, "--set", count)
    pods = plane.pods(namespace, "bookie")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == NODES
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
        return len(waiting) == 1 and _uids(now)[: waiting[0]] == _uids(pods)[: waiting[0]]

    until("a bookie finds no node", is_stuck)


def test_upgrade_and_rollback_go_pod_by_pod(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace)
    before = {c: plane.pods(namespace, c) for c in ("zookeeper", "bookie", "broker")}
    old = plane.get("configmap", "m-magnetar-bookie", "--namespace", namespace)["data"]

    plane.upgrade(RELEASE, namespace)
    for component, pods in before.items():
        assert _uids(plane.pods(namespace, component)) == _uids(pods), "nothing changed"

    change = "bookkeeper.configData.flushInterval=10000"
    plane.upgrade(RELEASE, namespace, "--set-string", change)
    new = plane.pods(namespace, "bookie")
    assert not set(_uids(new)) & set(_uids(before["bookie"])), "its settings changed"
    assert _uids(plane.pods(namespace, "broker")) == _uids(before["broker"]), "not theirs"
    assert plane.get("configmap", "m-magnetar-bookie", "-n", namespace)["data"] == {
        **old,
        "flushInterval": "10000",
    }
    # The last ordinal first; each one only when the one before it was ready again.
    for low, high in itertools.pairwise(new):
        assert low["metadata"]["creationTimestamp"] >= _ready_at(high)

    words = ("--namespace", namespace, "--wait", "--timeout", "5m")
    plane.helm("rollback", RELEASE, "1", *words)
    assert plane.get("configmap", "m-magnetar-bookie", "-n", namespace)["data"] == old
    assert not set(_uids(plane.pods(namespace, "bookie"))) & set(_uids(new))


def _uids(pods: list[Object]) -> list[str]:
    return [pod["metadata"]["uid"] for pod in pods]


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
    first = _uids(plane.pods(namespace, "broker"))
    assert len(first) == 2
    plane.upgrade(RELEASE, namespace, "--set", "broker.replicaCount=4")
    assert _uids(plane.pods(namespace, "broker"))[:2] == first
    assert len(plane.pods(namespace, "broker")) == 4
    plane.kubectl("scale", "statefulset/m-magnetar-broker", "--replicas=3", "-n", namespace)
    until("three brokers", lambda: len(plane.pods(namespace, "broker")) == 3)
    plane.upgrade(RELEASE, namespace, "--set", "broker.replicaCount=2")
    until("two brokers", lambda: _uids(plane.pods(namespace, "broker")) == first)


def test_autoscaling_begins_with_the_brokers_that_are_there(
    plane: ControlPlane, namespace: str
) -> None:
    plane.install(RELEASE, namespace, "--set", "broker.replicaCount=3")
    before = _uids(plane.pods(namespace, "broker"))
    scaled = ("--set", "broker.autoscaling.enabled=true,broker.autoscaling.maxReplicas=5")
    plane.upgrade(RELEASE, namespace, *scaled)
    assert _uids(plane.pods(namespace, "broker")) == before, "it fell to one for a moment"
    plane.kubectl("scale", "statefulset/m-magnetar-broker", "--replicas=4", "-n", namespace)
    until("a fourth", lambda: len(plane.pods(namespace, "broker")) == 4)
    change = ("--set-string", "broker.configData.brokerDeduplicationEnabled=true")
    plane.upgrade(RELEASE, namespace, *scaled, *change)
    assert len(plane.pods(namespace, "broker")) == 4, "an upgrade undid what the scaler did"


@pytest.mark.parametrize("component", ["zookeeper", "bookie", "broker"])
def test_a_budget_stops_the_second_eviction(
    plane: ControlPlane, namespace: str, component: str
) -> None:
    plane.install(RELEASE, namespace)
    pods = [pod["metadata"]["name"] for pod in plane.pods(namespace, component)]
    budget = f"m-magnetar-{component}"
    until(
        "the budget counts its pods",
        lambda: (
            plane.get("pdb", budget, "-n", namespace)["status"].get("expectedPods") == len(pods)
        ),
    )
    plane.kubectl("cordon", "--selector", "kubernetes.io/os=linux")
    try:
        assert plane.evict(namespace, pods[-1]) == ""
        until(
            "its successor has no node",
            lambda: (
                plane.pods(namespace, component)[-1]["status"]["phase"] == "Pending"
                and plane.get("pdb", budget, "-n", namespace)["status"]["disruptionsAllowed"] == 0
            ),
        )
        assert "disruption budget" in plane.evict(namespace, pods[0])
    finally:
        plane.kubectl("uncordon", "--selector", "kubernetes.io/os=linux")
    until(
        "the budget is whole again",
        lambda: plane.get("pdb", budget, "-n", namespace)["status"]["disruptionsAllowed"] == 1,
    )
    assert plane.evict(namespace, pods[0]) == ""


def test_accounts_have_no_rights(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace, "--set", "components.toolset=true")
    accounts = plane.names("serviceaccounts", namespace) - {"default"}
    assert len(accounts) == 5
    for account in accounts:
        for verb, resource in [
            ("get", "nodes"),
            ("get", "pods"),
            ("list", "secrets"),
            ("get", "configmaps"),
            ("create", "pods/exec"),
            ("*", "*"),
        ]:
            assert not plane.may(account, namespace, verb, resource), f"{account}: {verb}"
    for pod in plane.get("pods", "--namespace", namespace):
        projected = [v["name"] for v in pod["spec"]["volumes"] if "projected" in v]
        assert projected == [], "a token of the API"


def test_who_asks_for_its_node_may_read_nodes_and_nothing_else(
    plane: ControlPlane, namespace: str
) -> None:
    plane.install(RELEASE, namespace, "--set", "topology.zoneFrom=node")
    accounts = {"m-magnetar-broker", "m-magnetar-bookie", "m-magnetar-recovery"}
    for account in plane.names("serviceaccounts", namespace):
        assert plane.may(account, namespace, "get", "nodes") is (account in accounts), account
        for words in [("list", "nodes"), ("watch", "nodes"), ("get", "secrets"), ("*", "*")]:
            assert not plane.may(account, namespace, *words), f"{account}: {words}"
    pods = plane.pods(namespace, "broker")
    assert any("projected" in volume for volume in pods[0]["spec"]["volumes"]), "no token"


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
    options = ("--namespace", namespace)
    plane.install("alone", namespace, *_values("minimal"))
    words = (*options, *_values("minimal"), "--set", "zookeeper.replicaCount=3")
    error = plane.helm_refuses("upgrade", "alone", str(CHART), *words)
    assert "can't grow from 1" in error

    def grown(servers: int) -> tuple[str, ...]:
        return ("--set", f"zookeeper.replicaCount={servers}")

    plane.install(RELEASE, namespace)
    error = plane.helm_refuses("upgrade", RELEASE, str(CHART), *options, *grown(5))
    assert "by one at a time, and is 3" in error
    plane.upgrade(RELEASE, namespace, *grown(4))
    assert _ready(plane, namespace) == 4
    plane.kubectl("cordon", "--selector", "kubernetes.io/os=linux")
    try:
        plane.kubectl("delete", "pod", "m-magnetar-zookeeper-3", "-n", namespace, "--wait=false")
        until("a server is away", lambda: _ready(plane, namespace) < 4)
        error = plane.helm_refuses("upgrade", RELEASE, str(CHART), *options, *grown(5))
        assert "when all servers are ready" in error
    finally:
        plane.kubectl("uncordon", "--selector", "kubernetes.io/os=linux")
    until("it is back", lambda: _ready(plane, namespace) == 4)
    plane.upgrade(RELEASE, namespace, *grown(5))
    assert _ready(plane, namespace) == 5


def _ready(plane: ControlPlane, namespace: str) -> int:
    servers = plane.get("statefulset", "m-magnetar-zookeeper", "-n", namespace)
    return int(servers["status"].get("readyReplicas", 0))


def test_two_releases_live_beside_each_other(plane: ControlPlane, namespace: str) -> None:
    for release in ("one", "two"):
        plane.install(release, namespace)
    for release in ("one", "two"):
        label = f"app.kubernetes.io/instance={release}"
        pods = plane.get("pods", "--namespace", namespace, "--selector", label)
        slices = plane.get(
            *("endpointslices", "--namespace", namespace),
            *("--selector", f"kubernetes.io/service-name={release}-magnetar-broker"),
        )
        targets = {end["targetRef"]["name"] for each in slices for end in each["endpoints"]}
        assert targets == {f"{release}-magnetar-broker-{ordinal}" for ordinal in range(2)}
        assert len(pods) == 9
    plane.uninstall("one", namespace)
    assert len(plane.pods(namespace, "broker")) == 2


def test_the_matrix_is_what_this_test_runs_over() -> None:
    """Values that are only comments would prove nothing."""
    texts = [yaml.safe_load(each.values_path.read_text("utf-8")) for each in VALUES]
    assert sum(bool(each) for each in texts) == len(texts) - 1
