"""The rules find what they are there for: each fault is planted in a rendering, and named."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.charts.policies import RULES, faults
from tests.charts.renderings import VALUES, Object

Plant = Callable[[dict[str, Object]], object]


def _objects() -> list[Object]:
    [rendering] = [each for each in VALUES if each.name == "zones"]
    return rendering.objects()


def _set(where: dict[str, Any], key: str, value: object) -> None:
    where[key] = value


def _pod(name: str) -> Callable[[dict[str, Object]], Any]:
    return lambda objects: objects[name]["spec"]["template"]["spec"]


def _box(name: str) -> Callable[[dict[str, Object]], Any]:
    return lambda objects: _pod(name)(objects)["containers"][0]


BROKER, BOOKIE = "StatefulSet/m-magnetar-broker", "StatefulSet/m-magnetar-bookie"
POLICY, SERVICE = "NetworkPolicy/m-magnetar-broker", "Service/m-magnetar-broker"
ROLE: Object = {
    "kind": "Role",
    "metadata": {"name": "r"},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
}
INGRESS: Object = {
    "kind": "Ingress",
    "metadata": {"name": "i"},
    "spec": {
        "rules": [
            {
                "http": {
                    "paths": [
                        {
                            "backend": {
                                "service": {"name": "m-magnetar-broker", "port": {"name": "x"}}
                            }
                        }
                    ]
                }
            }
        ]
    },
}
JOB: Object = {"kind": "Job", "metadata": {"name": "initialise"}}

PLANTS: list[tuple[str, Plant]] = [
    ("may run as root", lambda o: _set(_pod(BROKER)(o)["securityContext"], "runAsUser", 0)),
    ("may run as root", lambda o: _pod(BROKER)(o)["securityContext"].pop("runAsNonRoot")),
    ("no seccomp profile", lambda o: _pod(BROKER)(o)["securityContext"].pop("seccompProfile")),
    ("could not write", lambda o: _pod(BROKER)(o)["securityContext"].pop("fsGroup")),
    ("shares a namespace", lambda o: _set(_pod(BROKER)(o), "hostNetwork", True)),
    (
        "directory of its node",
        lambda o: _pod(BROKER)(o)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    ),
    ("may get more rights", lambda o: _set(_box(BROKER)(o)["securityContext"], "privileged", True)),
    (
        "change its image",
        lambda o: _box(BROKER)(o)["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    ("has capabilities", lambda o: _box(BROKER)(o)["securityContext"].pop("capabilities")),
    ("no limit of memory", lambda o: _box(BROKER)(o)["resources"]["limits"].pop("memory")),
    (
        "more memory than its limit",
        lambda o: _set(_box(BROKER)(o)["resources"]["requests"], "memory", "9Gi"),
    ),
    ("fill its node's disk", lambda o: _set(_pod(BROKER)(o)["volumes"][0], "emptyDir", {})),
    ("whatever that is", lambda o: _set(_box(BROKER)(o), "image", "magnetar:latest")),
    ("whatever that is", lambda o: _set(_box(BROKER)(o), "image", "host:5000/magnetar")),
    ("has no livenessProbe", lambda o: _box(BROKER)(o).pop("livenessProbe")),
    (
        "asks a port that it hasn't",
        lambda o: _set(_box(BROKER)(o)["readinessProbe"]["httpGet"], "port", "other"),
    ),
    (
        "while it waits for ZooKeeper",
        lambda o: _set(_box(BROKER)(o)["livenessProbe"]["httpGet"], "scheme", "HTTPS"),
    ),
    (
        "doesn't ask the server",
        lambda o: _set(_box(BROKER)(o), "livenessProbe", {"tcpSocket": {"port": "http"}}),
    ),
    (
        "killed when it isn't ready",
        lambda o: _set(_box(BROKER)(o), "livenessProbe", _box(BROKER)(o)["readinessProbe"]),
    ),
    ("is killed after 30 s", lambda o: _set(_pod(BROKER)(o), "terminationGracePeriodSeconds", 30)),
    ("is killed after 90 s", lambda o: _set(_pod(BOOKIE)(o), "terminationGracePeriodSeconds", 90)),
    ("before Services know", lambda o: _box(BROKER)(o).pop("lifecycle")),
    (
        "not updated pod by pod",
        lambda o: _set(o[BROKER]["spec"], "updateStrategy", {"type": "OnDelete"}),
    ),
    ("its pods have no names", lambda o: _set(o[BROKER]["spec"], "serviceName", "m")),
    (
        "labels of claims that may change",
        lambda o: _set(
            o[BOOKIE]["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"], "version", "1"
        ),
    ),
    ("Job initialise", lambda o: _set(o, "Job", JOB)),
    ("has init containers", lambda o: _set(_pod(BROKER)(o), "initContainers", [_box(BROKER)(o)])),
    ("a Service may set", lambda o: _pod(BROKER)(o).pop("enableServiceLinks")),
    ("needs POD_NAME before it", lambda o: _box(BROKER)(o)["env"].pop(0)),
    (
        "has POD_NAME twice",
        lambda o: _box(BROKER)(o)["env"].append({"name": "POD_NAME", "value": "x"}),
    ),
    ("arguments need OTHER", lambda o: _set(_box(BROKER)(o), "args", ["$(OTHER)"])),
    ("needs a shell", lambda o: _set(_box(BROKER)(o), "command", ["sh", "-c"])),
    ("r: * */*", lambda o: _set(o, "Role", ROLE)),
    ("isn't ours", lambda o: _set(_pod(BROKER)(o), "serviceAccountName", "default")),
    ("no use for it", lambda o: _set(_pod(BROKER)(o), "automountServiceAccountToken", True)),
    (
        "gives its token",
        lambda o: o["ServiceAccount/m-magnetar-broker"].pop("automountServiceAccountToken"),
    ),
    ("selects []", lambda o: _set(o[SERVICE]["spec"]["selector"], "other", "x")),
    (
        "PodDisruptionBudget m-magnetar-broker selects ['",
        lambda o: o["PodDisruptionBudget/m-magnetar-broker"]["spec"]["selector"]["matchLabels"].pop(
            "app.kubernetes.io/component"
        ),
    ),
    (
        "away from others' pods",
        lambda o: _set(
            _pod(BROKER)(o)["topologySpreadConstraints"][0], "labelSelector", {"matchLabels": {}}
        ),
    ),
    (
        "scales nothing",
        lambda o: _set(
            o["HorizontalPodAutoscaler/m-magnetar-broker"]["spec"]["scaleTargetRef"], "name", "x"
        ),
    ),
    ("no port", lambda o: _set(o[SERVICE]["spec"]["ports"][0], "port", 1)),
    ("leads to a port that isn't there", lambda o: _set(o, "Ingress/i", INGRESS)),
    ("opens", lambda o: o[POLICY]["spec"]["ingress"][0]["ports"].pop()),
    (
        "reads a port that isn't there",
        lambda o: _set(
            o["PodMonitor/m-magnetar-broker"]["spec"]["podMetricsEndpoints"][0], "port", "x"
        ),
    ),
    (
        "ServiceMonitor m-magnetar-broker finds 0",
        lambda o: o["Service/m-magnetar-broker-headless"]["metadata"]["labels"].pop(
            "magnetar/metrics"
        ),
    ),
    (
        "lets pods of all namespaces in",
        lambda o: o["NetworkPolicy/m-magnetar-bookie"]["spec"]["ingress"][0]["from"].append(
            {"namespaceSelector": {}}
        ),
    ),
    (
        "lets pods of all namespaces in",
        lambda o: o["NetworkPolicy/m-magnetar-zookeeper"]["spec"]["ingress"][0].pop("from"),
    ),
    ("takes settings of", lambda o: o.pop("ConfigMap/m-magnetar-broker")),
    ("which it hasn't", lambda o: _pod(BROKER)(o)["volumes"].pop(0)),
    ("doesn't mount it", lambda o: _box(BROKER)(o)["volumeMounts"].pop(0)),
    (
        "where nothing is mounted",
        lambda o: _box(BROKER)(o)["env"].append(
            {"name": "MAGNETAR_tlsKeyFilePath", "value": "/etc/magnetar/tls/tls.key"}
        ),
    ),
    ("no good name", lambda o: _set(o[SERVICE]["metadata"], "name", "m" * 64)),
    ("no good name", lambda o: _set(o[BROKER]["metadata"], "name", "m" * 53)),
    ("is in other", lambda o: _set(o[SERVICE]["metadata"], "namespace", "other")),
    (
        "has no label version",
        lambda o: o[BROKER]["metadata"]["labels"].pop("app.kubernetes.io/version"),
    ),
    (
        "is advertised as",
        lambda o: _set(
            next(v for v in _box(BROKER)(o)["env"] if v["name"].endswith("advertisedAddress")),
            "value",
            "$(POD_NAME).elsewhere.mq.svc",
        ),
    ),
    (
        "have no address",
        lambda o: o["Service/m-magnetar-bookie-headless"]["spec"].pop("publishNotReadyAddresses"),
    ),
    ("begins with", lambda o: _set(o[BROKER]["spec"], "replicas", 2)),
]


@pytest.mark.parametrize(("fault", "plant"), PLANTS, ids=[fault for fault, _ in PLANTS])
def test_a_fault_is_found(fault: str, plant: Plant) -> None:
    named = {f"{each['kind']}/{each['metadata']['name']}": each for each in _objects()}
    assert faults(list(named.values())) == []
    plant(named)
    found = faults(list(named.values()))
    assert any(fault in text for text in found), found


def test_each_rule_is_held_against_a_fault() -> None:
    """No rule is there that nothing above breaks."""
    broken = set()
    for _, plant in PLANTS:
        named = {f"{each['kind']}/{each['metadata']['name']}": each for each in _objects()}
        plant(named)
        broken |= {text.partition(":")[0] for text in faults(list(named.values()))}
    assert broken == {rule.__name__ for rule in RULES}
