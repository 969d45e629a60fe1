"""The life of a release on a real control plane, over the matrix of values in ``ci``.

Skipped where there is none: ``make test-chart KUBE=kube.sh``.
"""

import json
import tarfile
from pathlib import Path

import pytest

from tests.charts.control_plane import ControlPlane, missing_tools, options, uids, until
from tests.charts.installed import Installed
from tests.charts.renderings import CHART, KUBERNETES, VALUES, Rendering

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "it is there"),
]

RELEASE = "m"
_COMPONENT = "app.kubernetes.io/component"
# Groups of values whose pods can be told where to run.
_PLACED = ("zookeeper", "bookkeeper", "autorecovery", "broker", "toolset", "standalone")
each_values = pytest.mark.parametrize("values", VALUES, ids=lambda each: each.name)


def test_lint(plane: ControlPlane) -> None:
    for each in VALUES:
        words = ("--strict", "--values", str(each.values_path))
        assert "0 chart(s) failed" in plane.helm("lint", str(CHART), *words)


def test_the_matrix_is_what_this_test_runs_over() -> None:
    """Values that are only comments would prove nothing."""
    sizes = [len(each.values_path.read_text("utf-8").splitlines()) for each in VALUES]
    assert len(sizes) >= 8
    assert sum(size <= 2 for size in sizes) == 1, "but one, each changes something"


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


@pytest.fixture(scope="session")
def package(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as one file, as it is given to others."""
    folder = tmp_path_factory.mktemp("package")
    plane.helm("package", str(CHART), "--destination", str(folder))
    [path] = folder.iterdir()
    return path


def test_a_package_has_all_that_is_rendered_and_no_tests(package: Path) -> None:
    with tarfile.open(package) as archive:
        members = {each.name.removeprefix("magnetar/"): each for each in archive.getmembers()}
    dashboards = {f"dashboards/{path.name}" for path in (CHART / "dashboards").iterdir()}
    assert dashboards
    assert {"Chart.yaml", "values.yaml", "values.schema.json", *dashboards} <= members.keys()
    # They are links in the tree: one that leads out of the package would be broken.
    assert all(each.isfile() and each.size for each in members.values())
    assert not [name for name in members if name.startswith("ci/")]


@each_values
def test_a_package_makes_the_same_objects(
    plane: ControlPlane, package: Path, values: Rendering
) -> None:
    words = ("--kube-version", KUBERNETES, "--values", str(values.values_path))
    rendered = plane.helm("template", RELEASE, str(CHART), *words)
    assert rendered.count("\nkind: ") >= 9
    assert plane.helm("template", RELEASE, str(package), *words) == rendered


def test_a_package_is_what_the_tree_is_in_a_cluster(
    plane: ControlPlane, namespace: str, package: Path
) -> None:
    """Of all values those with a dashboard."""
    plane.install(RELEASE, namespace, *options("zones"), chart=package)
    release = Installed(plane, namespace, RELEASE)
    found = plane.get("configmaps", "-n", namespace, "--selector", "grafana_dashboard=1")
    files = {path.name: path.read_text("utf-8") for path in (CHART / "dashboards").iterdir()}
    shown = {name: text for each in found for name, text in each["data"].items()}
    assert {name: json.loads(text) for name, text in shown.items()} == {
        name: json.loads(text) for name, text in files.items()
    }
    before, pods = release.objects(), release.pods()
    plane.upgrade(RELEASE, namespace, *options("zones"))
    assert release.objects() == before
    assert uids(release.pods()) == uids(pods)
    plane.uninstall(RELEASE, namespace)


@each_values
def test_a_release_lives_and_leaves_nothing(
    plane: ControlPlane, namespace: str, values: Rendering
) -> None:
    release = _Life(plane, namespace, options(values.name))
    plane.install(RELEASE, namespace, *release.options)
    release.check_ready()
    release.until_served()
    release.check_rights()
    release.check_budgets()
    release.check_upgrade_and_rollback()
    release.check_broken_upgrade()
    release.check_scaling()
    release.check_uninstall()


class _Life(Installed):
    """What must hold of a release with whatever values, in the order in which it is checked."""

    def __init__(self, plane: ControlPlane, namespace: str, options: tuple[str, ...]) -> None:
        super().__init__(plane, namespace, RELEASE)
        self.options = options

    def check_rights(self) -> None:
        """An account may what everybody may, and who has to ask for its zone may read nodes."""
        everybody = self.plane.rights("default", self.namespace)
        nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
        accounts = self.plane.names("serviceaccounts", self.namespace) - {"default"}
        assert accounts
        asking = {
            pod["spec"]["serviceAccountName"]
            for pod in self.pods()
            for variable in pod["spec"]["containers"][0].get("env", ())
            if variable["name"] == "MAGNETAR_NODE_NAME"
        }
        for pod in self.pods():
            tokens = [
                source
                for volume in pod["spec"]["volumes"]
                for source in volume.get("projected", {}).get("sources", ())
                if "serviceAccountToken" in source
            ]
            assert bool(tokens) is (pod["spec"]["serviceAccountName"] in asking)
        for account in accounts:
            more = self.plane.rights(account, self.namespace) - everybody
            expected = {json.dumps(nodes, sort_keys=True)} if account in asking else set()
            assert more == expected, account

    def check_budgets(self) -> None:
        """While one pod isn't ready no other one is taken away; when all are, one is."""
        for budget in self.plane.get("poddisruptionbudgets", "--namespace", self.namespace):
            name = budget["metadata"]["name"]
            pods = self.plane.pods(self.namespace, budget["metadata"]["labels"][_COMPONENT])
            first, last = pods[0]["metadata"]["name"], pods[-1]["metadata"]["name"]
            self._until_allowed(name, 1, len(pods))
            self.plane.set_ready(self.namespace, last, False)
            self._until_allowed(name, 0, len(pods) - 1)
            if first != last:
                assert "disruption budget" in self.plane.evict(self.namespace, first), name
            self.plane.set_ready(self.namespace, last, True)
            self._until_allowed(name, 1, len(pods))
            assert self.plane.evict(self.namespace, first) == "", name
        self.until_settled()

    def _until_allowed(self, budget: str, disruptions: int, healthy: int) -> None:
        def is_so() -> bool:
            budgets = self.plane.listed("policy/v1/poddisruptionbudgets", self.namespace)
            [status] = [each["status"] for each in budgets if each["metadata"]["name"] == budget]
            found = status.get("disruptionsAllowed"), status.get("currentHealthy")
            return found == (disruptions, healthy)

        until(f"{budget}: {healthy} healthy, {disruptions} may go", is_so)

    def check_upgrade_and_rollback(self) -> None:
        """No change touches no pod; one of all is one of all, and taken back as a whole."""
        before, pods = self.objects(), self.pods()
        self.plane.upgrade(RELEASE, self.namespace, *self.options)
        assert self.objects() == before
        assert uids(self.pods()) == uids(pods)

        was = self.plane.revision(RELEASE, self.namespace)
        words = (*self.options, "--set", "labels.round=two")
        self.plane.upgrade(RELEASE, self.namespace, *words)
        self.until_settled()
        assert not set(uids(self.pods())) & set(uids(pods))
        assert self._rounds() == {"two"}

        self.plane.rollback(RELEASE, self.namespace, was)
        assert self.objects() == before
        self.until_settled()
        assert self._rounds() == {None}

    def _rounds(self) -> set[str | None]:
        return {pod["metadata"]["labels"].get("round") for pod in self.pods()}

    def check_broken_upgrade(self) -> None:
        """One whose pods find no node stops at one of each set, and a rollback mends it."""
        before, pods = self.objects(), self.pods()
        was = self.plane.revision(RELEASE, self.namespace)
        nowhere = ",".join(f"{key}.nodeSelector.disks=none" for key in _PLACED)
        words = ("--namespace", self.namespace, *self.options, "--set", nowhere)
        self.plane.helm("upgrade", RELEASE, str(CHART), *words)
        until("a pod of each finds no node", lambda: len(self._stuck()) == len(self.workloads()))
        sets = self.sets()
        # The last ordinal is the first to go; a Deployment keeps what it has.
        gone = {f"{each['metadata']['name']}-{each['spec']['replicas'] - 1}" for each in sets}
        assert gone <= self._stuck()
        kept = {pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] not in gone}
        assert kept <= set(uids(self.pods()))

        self.plane.rollback(RELEASE, self.namespace, was)
        assert self.objects() == before
        self.until_settled()
        assert kept <= set(uids(self.pods()))

    def _stuck(self) -> set[str]:
        return {
            pod["metadata"]["name"]
            for pod in self.pods()
            for condition in pod["status"].get("conditions", ())
            if condition.get("reason") == "Unschedulable"
        }

    def check_scaling(self) -> None:
        """One bookie and one broker more, and less again: nobody else is touched, no data."""
        components = {"bookkeeper": "bookie", "broker": "broker"}
        if self.plane.names("horizontalpodautoscalers", self.namespace):
            del components["broker"]
        pods = self.pods()
        counts = {
            key: len(found)
            for key, component in components.items()
            if (found := self.plane.pods(self.namespace, component))
        }
        more = ",".join(f"{key}.replicaCount={count + 1}" for key, count in counts.items())
        if not more:  # one pod with everything in it
            return
        self.plane.upgrade(RELEASE, self.namespace, *self.options, "--set", more)
        self.until_settled()
        grown = self.pods()
        assert len(grown) == len(pods) + len(counts)
        assert set(uids(pods)) <= set(uids(grown))
        claims = self.plane.names("persistentvolumeclaims", self.namespace)
        # An upgrade with no values at all, as the default's are, would keep those of before.
        self.plane.upgrade(RELEASE, self.namespace, "--reset-values", *self.options)
        self.until_settled()
        assert uids(self.pods()) == uids(pods)
        assert self.plane.names("persistentvolumeclaims", self.namespace) == claims

    def check_uninstall(self) -> None:
        """Nothing is left but claims: helm waits for what it made, and what that made follows."""
        claims = self.plane.names("persistentvolumeclaims", self.namespace)
        self.plane.uninstall(RELEASE, self.namespace)
        words = ("api-resources", "--namespaced", "--verbs=list", "--output=name")
        kinds = set(self.plane.kubectl(*words).split()) - {"persistentvolumeclaims"}
        everything = (
            ",".join(sorted(kinds)),
            "--namespace",
            self.namespace,
            "--selector",
            self.label,
        )
        until("the garbage is collected", lambda: not self.plane.get(*everything))
        assert self.plane.names("persistentvolumeclaims", self.namespace) == claims
        assert not self.plane.names("secrets", self.namespace), "helm's own"
        of_cluster = self.plane.get("clusterroles,clusterrolebindings", "--selector", self.label)
        names = {each["metadata"]["name"] for each in of_cluster}
        assert not {name for name in names if name.startswith(f"{self.namespace}.")}
