"""A plain cluster becomes one with TLS and tokens under load: two upgrades for clients, and one for
the servers among themselves, which interrupts them."""

from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.charts.control_plane import ControlPlane, until
from tests.charts.live.conditions import NEEDS_LIVE
from tests.charts.live.kubelet import Kubelet
from tests.charts.live.load import Load
from tests.charts.live.release import Release
from tests.charts.live.secrets import NAMESPACE, RELEASE, Secrets, commands_of

pytestmark = NEEDS_LIVE

VALUES = Path(__file__).with_name("values.yaml")
REPLICAS = {"zookeeper": 3, "bookie": 3, "broker": 2, "recovery": 1, "toolset": 1}
HOST = f"{RELEASE}-magnetar-broker.{NAMESPACE}.svc.cluster.local"
PLAIN, WITH_TLS = f"pulsar://{HOST}:6650", f"pulsar+ssl://{HOST}:6651"
BOTH: Final = {
    "tls": {"enabled": True, "broker": {"enabled": True, "allowPlain": True}},
    "auth": {
        "authentication": {"enabled": True, "jwt": {"enabled": True}},
        "authorization": {"enabled": True},
    },
}
TLS_ONLY: Final = {"tls": {"broker": {"allowPlain": False}}}
INSIDE: Final = {
    "tls": {"bookie": {"enabled": True}, "zookeeper": {"enabled": True}},
    "auth": {"bookkeeper": {"enabled": True}},
}


@pytest.fixture(scope="module")
def secrets(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(plane, tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def release(plane: ControlPlane, kubelet: Kubelet, secrets: Secrets) -> Release:
    release = Release(plane, kubelet, RELEASE, NAMESPACE, REPLICAS)
    release.make_namespace()
    release.install(VALUES)
    return release


def _upgrade(release: Release, values: object, folder: Path) -> None:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), "utf-8")
    release.upgrade("--values", str(file))
    until("every pod is ready", release.is_whole)


def test_first_brokers_learn_tls_and_tokens(
    release: Release, secrets: Secrets, tmp_path: Path
) -> None:
    """Clients show tokens already, which nobody looks at before."""
    secrets.make_authority()
    secrets.make_certificates()
    secrets.make_tokens()
    token = {"authentication": secrets.options("admin")["authentication"]}
    with Load(PLAIN, "allow-plain", **token) as load:
        _upgrade(release, BOTH, tmp_path)
        load.wait_for_progress()


def test_then_plain_ports_are_closed(release: Release, secrets: Secrets, tmp_path: Path) -> None:
    with Load(WITH_TLS, "tls-only", **secrets.options("admin")) as load:
        _upgrade(release, TLS_ONLY, tmp_path)
        load.wait_for_progress()


def test_at_last_servers_want_certificates_and_tokens_of_each_other(
    release: Release, secrets: Secrets, tmp_path: Path
) -> None:
    """Old and new ones would not understand each other, so all end before."""
    with Load(WITH_TLS, "inside", **secrets.options("admin")) as load:
        secrets.run(commands_of("TLS and tokens in a running cluster")[0])
        _upgrade(release, INSIDE, tmp_path)
        load.wait_for_progress()
    release.tool("magnetar", "bookie-shell", "simpletest", "-e", "3", "-w", "2", "-a", "2")
