"""Everything in one pod: installed, replaced under load, and made a secured one with its data."""

import ssl
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import pulsar
import pytest

from tests.charts.control_plane import ControlPlane, until
from tests.charts.live.conditions import NEEDS_LIVE
from tests.charts.live.kubelet import Kubelet
from tests.charts.live.load import Load
from tests.charts.live.release import Release
from tests.charts.live.secrets import NAMESPACE, RELEASE, Secrets, commands_of
from tests.charts.renderings import CHART
from tests.official_client import open_client

pytestmark = NEEDS_LIVE

SECURED = CHART / "ci" / "standalone-secured-values.yaml"
HOST = f"{RELEASE}-magnetar-standalone.{NAMESPACE}.svc.cluster.local"
PLAIN, WITH_TLS = f"pulsar://{HOST}:6650", f"pulsar+ssl://{HOST}:6651"
TOPIC = "persistent://public/default/kept"


@pytest.fixture(scope="module")
def release(plane: ControlPlane, kubelet: Kubelet) -> Release:
    release = Release(plane, kubelet, RELEASE, NAMESPACE, {"standalone": 1, "toolset": 1})
    release.make_namespace()
    words = ("--set", "standalone.enabled=true,components.toolset=true")
    release.install(words=words)
    return release


def _use(client: pulsar.Client, text: str) -> None:
    """No attempt is repeated here: what the client asks for right after helm's end is there."""
    try:
        consumer = client.subscribe(TOPIC, text)
        client.create_producer(TOPIC).send(text.encode())
        assert consumer.receive(timeout_millis=60_000).data() == text.encode()
    finally:
        client.close()


def _all(client: pulsar.Client) -> list[str]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data().decode())
    client.close()
    return found


def test_install_ends_when_the_pod_is_ready(release: Release) -> None:
    _use(open_client(PLAIN), "first")
    release.tool("magnetar", "produce", TOPIC, "-m", "second")


def test_a_new_pod_has_the_data_of_the_old_one(release: Release) -> None:
    before = release.lives()
    with Load(PLAIN, "single-upgrade") as load:
        changed = "standalone.configData.managedLedgerCacheSizeMB=64"
        release.upgrade("--set-string", changed)
        until("the pod is ready", release.is_whole)
        load.wait_for_progress()
    name = f"{RELEASE}-magnetar-standalone-0"
    assert release.lives()[name][0] != before[name][0]
    assert _all(open_client(PLAIN)) == ["first", "second"]


@pytest.fixture(scope="module")
def secrets(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    """Under the names of ``SECURED``, with one key for those who make tokens and who check them."""
    secrets = Secrets(plane, tmp_path_factory.mktemp("secrets"))
    secrets.make_authority()
    loop, words = commands_of("TLS")[1], "zookeeper bookie recovery broker toolset"
    assert words in loop
    loop = loop.replace(words, "standalone toolset").replace("--from-file=ca.crt ", "")
    secrets.run(loop.replace("demo-tls-$component", "$component-certificate"))
    make = f"kubectl -n {NAMESPACE} create secret generic"
    secrets.run(
        f"""
        {make} company-ca --from-file=ca.crt
        magnetar tokens create-secret-key --output secret.key
        {make} key-of-tokens --from-file=SECRETKEY=secret.key
        magnetar tokens create --secret-key secret.key --subject admin > admin.token
        {make} tokens-admin --from-file=TOKEN=admin.token
        """
    )
    return secrets


def test_it_becomes_a_secured_one_with_its_data(release: Release, secrets: Secrets) -> None:
    words = ("--values", str(SECURED), "--set", "standalone.serviceMonitor.enabled=false")
    release.upgrade(*words)
    client = partial(open_client, WITH_TLS)
    options: dict[str, Any] = secrets.options("admin")
    _use(client(**options), "third")
    release.tool("magnetar", "produce", TOPIC, "-m", "fourth")
    assert _all(client(**options)) == ["first", "second", "third", "fourth"]
    nobody = client(**{**options, "authentication": None, "operation_timeout_seconds": 3})
    with pytest.raises(pulsar.Timeout):  # it tries to log in until then
        nobody.subscribe(TOPIC, "s")
    nobody.close()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"https://{HOST}:8443/admin", timeout=60, context=secrets.trust())
    assert caught.value.code == 401
    caught.value.close()
    for url in (f"http://{HOST}:8080/admin", f"https://{HOST}:6650"):
        with pytest.raises(urllib.error.URLError, match="Connection refused"):
            urllib.request.urlopen(url, timeout=60, context=ssl.create_default_context())
