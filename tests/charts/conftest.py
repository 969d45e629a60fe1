"""Fixtures of tests that need a control plane; what a cluster was like when one of them failed."""

import json
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.charts.control_plane import ControlPlane, LoadBalancers

NODES = 7  # one in each zone; one more than any file of values has bookies
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


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests: each has a namespace of its own in it."""
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A wait that ended in vain says little: nodes, pods and events say why."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    plane, namespace = arguments.get("plane"), arguments.get("namespace")
    if report.when == "call" and report.failed and isinstance(plane, ControlPlane) and namespace:
        report.sections.append(("cluster", plane.story(namespace)))
    return report
