"""Upgrades to other values: what the API server takes, and what the chart refuses before it.

Skipped where there is no control plane: ``make test-chart KUBE=kube.sh``.
"""

import json

import pytest

from tests.charts.control_plane import ControlPlane, missing_tools, options, uids, until
from tests.charts.installed import Installed
from tests.charts.renderings import CHART, KUBERNETES, objects_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "it is there"),
]

RELEASE = "m"
_TLS = "tls.enabled=true,certs.internal_issuer.enabled=true"
_TOKENS = "auth.authentication.enabled=true,auth.authentication.jwt.enabled=true"
# From these values one upgrade after the other to those, and back at once by a rollback.
WAYS: dict[str, tuple[str, list[str]]] = {
    "clients get TLS, then tokens": (
        "default",
        [
            f"{_TLS},tls.broker.enabled=true,tls.broker.allowPlain=true",
            f"{_TLS},tls.broker.enabled=true",
            f"{_TLS},tls.broker.enabled=true,{_TOKENS}",
            f"{_TLS},tls.broker.enabled=true,{_TOKENS},auth.authorization.enabled=true",
        ],
    ),
    "bookies get TLS and tokens": (
        "default",
        [
            f"{_TLS},tls.bookie.enabled=true",
            f"{_TLS},tls.bookie.enabled=true,{_TOKENS},auth.bookkeeper.enabled=true",
        ],
    ),
    "clients come from outside": (
        "default",
        [
            "broker.service.type=NodePort",
            "broker.service.type=LoadBalancer,broker.external.enabled=true,"
            "broker.external.domain=example.com",
            "broker.external.enabled=true,broker.external.domain=example.com,"
            "broker.external.type=NodePort",
        ],
    ),
    "parts come and go": (
        "default",
        [
            "components.toolset=true,components.autorecovery=false,topology.zoneFrom=node,"
            "networkPolicy.enabled=false,broker.pdb.usePolicy=false",
            "components.toolset=true,rbac.enabled=false,dashboards.enabled=true,"
            "bookkeeper.podMonitor.enabled=true,bookkeeper.drain.enabled=true,"
            "networkPolicy.monitoring[0].podSelector.matchLabels.app=prometheus",
            "bookkeeper.ports.bookie=3281,broker.ports.pulsar=6750,zookeeper.ports.client=2191",
        ],
    ),
    "one pod gets TLS and tokens": (
        "standalone",
        [
            f"{_TLS},tls.standalone.enabled=true,tls.standalone.allowPlain=true",
            # It has source ranges of a load balancer, still.
            f"{_TLS},tls.standalone.enabled=true,{_TOKENS},standalone.service.type=ClusterIP",
        ],
    ),
}
# Of a release with values: settings, what the chart says, and whether the API server refuses, too.
REFUSED: dict[str, list[tuple[str, str, bool]]] = {
    "default": [
        ("volumes.persistence=false", "bookkeeper.volumes", True),
        ("bookkeeper.volumes.ledgers.size=20Gi", "[journal 2Gi, ledgers 20Gi]", True),
        ("bookkeeper.volumes.journal.storageClassName=fast", "[journal 2Gi fast, ledgers", True),
        ("bookkeeper.volumes.ledgers.useMultiVolumes=true", "[journal 2Gi, ledgers0", True),
        ("bookkeeper.volumes.useSingleCommonVolume=true", "to [common 12Gi]", True),
        ("zookeeper.volumes.data.size=1Gi", "StatefulSet m-magnetar-zookeeper", True),
        ("bookkeeper.podManagementPolicy=OrderedReady", "--cascade=orphan", True),
        (f"{_TLS},tls.zookeeper.enabled=true", "tls.zookeeper can't be switched", False),
        ("standalone.enabled=true", "standalone.enabled can't change", False),
        ("fullnameOverride=other", "m-magnetar-bookie has stored would stay behind", False),
        ("nameOverride=other", "m-magnetar-bookie has stored would stay behind", False),
    ],
    "storage": [
        ("nameOverride=other", "nameOverride can't change", True),
        ("fullnameOverride=other", "store-bookie has stored would stay behind", False),
    ],
    "standalone": [
        ("standalone.enabled=false", "standalone.enabled can't change", False),
        ("standalone.volumes.data.size=20Gi", "from [data 10Gi] to [data 20Gi]", True),
        ("standalone.volumes.persistence=false", "from [data 10Gi] to []", True),
    ],
}


@pytest.mark.parametrize("way", WAYS)
def test_values_change_step_by_step_and_back_at_once(
    plane: ControlPlane, namespace: str, way: str
) -> None:
    values, steps = WAYS[way]
    plane.install(RELEASE, namespace, *options(values))
    release = Installed(plane, namespace, RELEASE)
    before = last = release.objects()
    for step in steps:
        plane.upgrade(RELEASE, namespace, *options(values), "--set", step)
        release.until_settled()
        release.until_served()
        assert release.objects() != last, step
        last = release.objects()
    plane.rollback(RELEASE, namespace, 1)
    release.until_settled()
    release.until_served()
    assert release.objects() == before


@pytest.mark.parametrize("values", REFUSED)
def test_what_could_never_work_is_refused_before_anything_changes(
    plane: ControlPlane, namespace: str, values: str
) -> None:
    """By the chart, in the words of its values; Kubernetes would do it in the middle, or not."""
    plane.install(RELEASE, namespace, *options(values))
    release = Installed(plane, namespace, RELEASE)
    before = release.objects()
    where = ("--namespace", namespace)
    for settings, reason, is_forbidden in REFUSED[values]:
        words = (RELEASE, str(CHART), *where, *options(values), "--set", settings)
        assert reason in (error := plane.helm_refuses("upgrade", *words)), error
        # Nothing is looked up here, so that the chart takes it.
        text = plane.helm("template", "--kube-version", KUBERNETES, *words)
        names = {each["metadata"]["name"] for each in release.sets()}
        sets = [each for each in objects_of(text) if each["kind"] == "StatefulSet"]
        items = [each for each in sets if each["metadata"]["name"] in names]
        wanted = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        done = plane.run(["kubectl", "replace", "--dry-run=server", "-f", "-"], wanted)
        forbidden = "updates to statefulset spec for fields other than"
        assert (forbidden in done.stderr) is is_forbidden, f"{settings}: {done.stderr}"
    assert plane.revision(RELEASE, namespace) == 1
    assert release.objects() == before


def test_volumes_grow_as_the_manual_says(plane: ControlPlane, namespace: str) -> None:
    plane.install(RELEASE, namespace)
    release = Installed(plane, namespace, RELEASE)
    pods = uids(release.pods())
    # The same in other words is no change.
    plane.upgrade(RELEASE, namespace, "--set", "bookkeeper.volumes.ledgers.size=10240Mi")
    assert uids(release.pods()) == pods
    larger = ("--set", "bookkeeper.volumes.ledgers.size=20Gi")
    words = ("statefulset", "m-magnetar-bookie", "--namespace", namespace, "--cascade=orphan")
    plane.kubectl("delete", *words)
    plane.upgrade(RELEASE, namespace, *larger)
    release.until_settled()
    assert uids(release.pods()) == pods
    plane.upgrade(RELEASE, namespace, *larger, "--set", "bookkeeper.replicaCount=4")
    release.until_settled()
    claim = plane.get("pvc", "ledgers-m-magnetar-bookie-3", "--namespace", namespace)
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"


def test_claims_go_with_their_release_where_that_was_asked_for(
    plane: ControlPlane, namespace: str
) -> None:
    plane.install(RELEASE, namespace)
    claims = plane.names("pvc", namespace)
    assert len(claims) == 3 + 3 * 2
    plane.upgrade(RELEASE, namespace, "--set", "volumes.retention.whenDeleted=Delete")
    plane.uninstall(RELEASE, namespace)
    until("claims are gone", lambda: not plane.names("pvc", namespace))


def test_autoscaling_begins_with_the_brokers_that_are_there(
    plane: ControlPlane, namespace: str
) -> None:
    plane.install(RELEASE, namespace, "--set", "broker.replicaCount=3")
    before = uids(plane.pods(namespace, "broker"))
    scaled = ("--set", "broker.autoscaling.enabled=true,broker.autoscaling.maxReplicas=5")
    plane.upgrade(RELEASE, namespace, *scaled)
    assert uids(plane.pods(namespace, "broker")) == before, "it fell to one for a moment"
    plane.kubectl("scale", "statefulset/m-magnetar-broker", "--replicas=4", "-n", namespace)
    until("a fourth", lambda: len(plane.pods(namespace, "broker")) == 4)
    change = ("--set-string", "broker.configData.brokerDeduplicationEnabled=true")
    plane.upgrade(RELEASE, namespace, *scaled, *change)
    assert len(plane.pods(namespace, "broker")) == 4, "an upgrade undid what the scaler did"
    plane.upgrade(RELEASE, namespace, "--set", "broker.replicaCount=3")
    until("as many as before", lambda: len(plane.pods(namespace, "broker")) == 3)
    assert not plane.names("horizontalpodautoscalers", namespace)


def test_with_autoscaling_there_are_never_fewer_brokers_than_its_least(
    plane: ControlPlane, namespace: str
) -> None:
    """Neither at the begin nor after a rollback: without a number there would be one."""
    scaled = ("--set", "broker.autoscaling.enabled=true,broker.autoscaling.minReplicas=3")
    plane.install(RELEASE, namespace, *scaled)
    brokers = plane.pods(namespace, "broker")
    assert len(brokers) == 3
    plane.upgrade(RELEASE, namespace, *scaled, "--set", "components.toolset=true")
    plane.rollback(RELEASE, namespace, 1)
    assert uids(plane.pods(namespace, "broker")) == uids(brokers)
