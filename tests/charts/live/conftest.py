"""A control plane and its nodes, of each module anew: nothing is left of the pods of another."""

import os
from collections.abc import Iterator

import pytest

from tests.charts.control_plane import ControlPlane
from tests.charts.live.api import ApiServer
from tests.charts.live.kubelet import Kubelet
from tests.charts.live.names import resolver_configuration
from tests.charts.live.network import run

ZONES = 3


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
        names.write_text(resolver_configuration("default"), "utf-8")
        run("mount", "--bind", str(names), os.path.realpath("/etc/resolv.conf"))
        yield kubelet
