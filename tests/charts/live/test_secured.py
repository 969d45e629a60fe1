"""A cluster with TLS on every port and tokens for everybody, whose Secrets are made and renewed by
the commands of docs/guides/kubernetes.md.

Tests are in the order of a cluster's life and go on with the same one.
"""

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pulsar
import pytest
import yaml
from cryptography import x509

from magnetar.bookkeeper.proto import bookie_pb2 as bookie
from magnetar.bookkeeper.transport_grpc.config import BOOKIE_ID_HEADER, SERVICE
from tests.certificates import Authority
from tests.charts.control_plane import ControlPlane, until
from tests.charts.live.conditions import NEEDS_LIVE
from tests.charts.live.kubelet import Kubelet
from tests.charts.live.load import Load
from tests.charts.live.release import Release
from tests.charts.live.secrets import NAMESPACE, RELEASE, Secrets
from tests.official_client import open_client

pytestmark = NEEDS_LIVE

FOLDER = Path(__file__).parent
VALUES = (FOLDER / "values.yaml", FOLDER / "secured.yaml")
REPLICAS = {"zookeeper": 3, "bookie": 3, "broker": 2, "recovery": 1, "toolset": 1}
SERVICE_HOST = f"{RELEASE}-magnetar-broker.{NAMESPACE}.svc.cluster.local"
SERVICE_URL, WEB = f"pulsar+ssl://{SERVICE_HOST}:6651", f"https://{SERVICE_HOST}:8443"
_ANSWER_S = 30.0


@pytest.fixture(scope="module")
def secrets(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(plane, tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def release(plane: ControlPlane, kubelet: Kubelet, secrets: Secrets) -> Release:
    """Installed, with nothing of a user's own in it."""
    release = Release(plane, kubelet, RELEASE, NAMESPACE, REPLICAS)
    release.make_namespace()
    secrets.make_authority()
    secrets.make_certificates()
    secrets.make_tokens()
    release.install(*VALUES)
    return release


def _client(secrets: Secrets, role: str, **options: Any) -> pulsar.Client:
    words: dict[str, Any] = {"operation_timeout_seconds": 60, **secrets.options(role), **options}
    return open_client(SERVICE_URL, **words)


def _ask(
    secrets: Secrets, path: str, token: str | None, method: str = "GET", body: object = None
) -> tuple[int, bytes]:
    """Status and body of an HTTPS call, wherever it is sent."""
    headers = {"Content-Type": "application/json"}
    headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    url = WEB + path
    while True:
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=secrets.trust()) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 307:
                return error.code, error.read()
            url = error.headers["Location"]
            error.close()


def test_install_ends_when_servers_are_ready(release: Release, secrets: Secrets) -> None:
    """No attempt is repeated here: what the client asks for right after helm's end is there."""
    client = _client(secrets, "admin")
    try:
        topic = "persistent://public/default/first"
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        sent = [b"%d" % number for number in range(100)]
        for each in sent:
            producer.send(each)
        assert [consumer.receive(timeout_millis=60_000).data() for _ in sent] == sent
    finally:
        client.close()
    status, clusters = _ask(secrets, "/admin/v2/clusters", secrets.token("admin"))
    assert (status, json.loads(clusters)) == (200, [f"{RELEASE}-magnetar"])


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory, plane: ControlPlane) -> str:
    """A token for ``admin`` whose key isn't the cluster's."""
    other = Secrets(plane, tmp_path_factory.mktemp("forger"))
    key, pair = "forged.der", "--output-private-key forged.der --output-public-key public.der"
    other.run(f"magnetar tokens create-key-pair {pair}")
    other.run(f"magnetar tokens create --private-key {key} --subject admin > admin.token")
    return other.token("admin")


def test_unauthenticated_clients_are_refused(
    release: Release, secrets: Secrets, forged: str
) -> None:
    """The official client tries to log in until its time is over."""
    topic = "persistent://public/default/first"
    wrong = pulsar.AuthenticationToken(forged)
    for credentials in (None, wrong):
        options = {"authentication": credentials, "operation_timeout_seconds": 3}
        client = _client(secrets, "admin", **options)
        with pytest.raises(pulsar.Timeout):
            client.create_producer(topic)
        client.close()
    for token in (None, forged, "no.such.token"):
        for path in ("/admin/v2/clusters", "/admin/v2/no-such-path"):
            assert _ask(secrets, path, token)[0] == 401, (token, path)


def test_who_trusts_another_authority_connects_to_nobody(
    release: Release, secrets: Secrets, tmp_path: Path
) -> None:
    other = Authority(tmp_path).certificate
    trust = {"tls_trust_certs_file_path": str(other), "operation_timeout_seconds": 3}
    client = _client(secrets, "admin", **trust)
    with pytest.raises(pulsar.PulsarException) as caught:
        client.create_producer("persistent://public/default/first")
    assert type(caught.value) in (pulsar.ConnectError, pulsar.Timeout)
    client.close()
    context = ssl.create_default_context(cafile=str(other))
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(WEB, timeout=60, context=context)


def test_a_role_may_do_what_it_was_granted(release: Release, secrets: Secrets) -> None:
    secrets.make_token("orders")
    client, topic = _client(secrets, "orders"), "persistent://public/default/orders"
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    path, own = "/admin/v2/namespaces/public/default/permissions/orders", "orders"
    assert _ask(secrets, path, secrets.token(own), "POST", ["produce"])[0] in (401, 403)
    status, said = _ask(secrets, path, secrets.token("admin"), "POST", ["produce"])
    assert status == 204, said
    client.create_producer(topic).send(b"granted")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")
    client.close()


def _is_closed(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _ANSWER_S).close()
    except ConnectionRefusedError:
        return True
    return False


def _addresses(release: Release) -> Iterator[tuple[str, str]]:
    for name, pod in release.pods().items():
        yield name, pod["status"]["podIP"]


def test_plain_ports_are_closed(release: Release) -> None:
    """All that the chart opens without TLS, but pages of bookies and auto-recovery."""
    for name, address in _addresses(release):
        for port in (2181, 6650, 8080, 3182):
            assert _is_closed(address, port), f"{name}:{port}"
    services = release.plane.get("services", "--namespace", NAMESPACE)
    open_ports = {port["name"] for each in services for port in each["spec"]["ports"]}
    assert open_ports == {
        *("client-tls", "follower", "leader-election"),
        *("bookie", "http", "https", "pulsarssl"),
    }


def _ask_bookie(
    release: Release, credentials: grpc.ChannelCredentials | None, token: str | None
) -> grpc.StatusCode:
    target = f"{release.host('bookie', 0)}:3181"
    metadata: list[tuple[str, str | bytes]] = [
        (BOOKIE_ID_HEADER, f"{RELEASE}-magnetar-bookie-0".encode())
    ]
    if token is not None:
        metadata.append(("authorization", f"Bearer {token}"))
    channel = (
        grpc.insecure_channel(target)
        if credentials is None
        else grpc.secure_channel(target, credentials)
    )
    with channel:
        call = channel.unary_unary(
            f"/{SERVICE}/Info",
            request_serializer=bookie.InfoRequest.SerializeToString,
            response_deserializer=bookie.InfoReply.FromString,
        )
        try:
            call(bookie.InfoRequest(), metadata=metadata, timeout=_ANSWER_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def _known(secrets: Secrets) -> grpc.ChannelCredentials:
    """A client of bookies, with the certificate of the toolset."""
    own = (secrets.folder / "tls.key").read_bytes(), (secrets.folder / "tls.crt").read_bytes()
    return grpc.ssl_channel_credentials(secrets.authority.read_bytes(), *own)


def test_bookies_want_a_certificate_and_the_token_of_their_role(
    release: Release, secrets: Secrets, forged: str
) -> None:
    ask, codes = partial(_ask_bookie, release), grpc.StatusCode
    good, known = secrets.token("bookkeeper"), _known(secrets)
    nobody = grpc.ssl_channel_credentials(secrets.authority.read_bytes())
    assert ask(known, good) is codes.OK
    assert ask(None, good) is codes.UNAVAILABLE
    assert ask(nobody, good) is codes.UNAVAILABLE
    assert ask(known, None) is codes.UNAUTHENTICATED
    assert ask(known, forged) is codes.UNAUTHENTICATED
    assert ask(known, secrets.token("admin")) is codes.PERMISSION_DENIED
    for component, path in (("bookie", "/api/v1/bookie/info"), ("recovery", "/api/v1/x")):
        address = next(ip for name, ip in _addresses(release) if component in name)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}:8000{path}", timeout=60)
        assert caught.value.code == 401
        caught.value.close()


def _zookeeper_says(release: Release, context: ssl.SSLContext | None) -> bytes:
    """Its answer to a word that everybody may say; b"": it doesn't listen."""
    host = release.host("zookeeper", 0)
    try:
        with socket.create_connection((host, 2281), _ANSWER_S) as plain:
            wrapped = plain if context is None else context.wrap_socket(plain, server_hostname=host)
            with wrapped:
                wrapped.sendall(b"srvr")
                return wrapped.recv(100)
    except (ssl.SSLError, ConnectionError):
        return b""


def test_zookeeper_wants_a_certificate(release: Release, secrets: Secrets) -> None:
    assert _zookeeper_says(release, secrets.mutual()).startswith(b"Zookeeper version")
    assert _zookeeper_says(release, secrets.trust()) == b""
    assert _zookeeper_says(release, None) == b""


def test_the_tools_have_their_credentials(release: Release, secrets: Secrets) -> None:
    topic = "persistent://public/default/tools"
    release.tool("magnetar", "produce", topic, "-m", "world")
    client = _client(secrets, "admin")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(60_000).data() == b"world"
    client.close()
    bookies = release.tool("magnetar", "bookie-shell", "listbookies")
    zones = release.tool("magnetar", "bookie-shell", "zones")
    release.tool("magnetar", "bookie-shell", "simpletest", "-e", "3", "-w", "2", "-a", "2")
    for ordinal in range(REPLICAS["bookie"]):
        assert f"{RELEASE}-magnetar-bookie-{ordinal}" in bookies
        assert f"{RELEASE}-magnetar-bookie-{ordinal}" in zones
    assert f"{RELEASE}-magnetar" in release.tool("magnetar", "admin", "clusters", "list")


def _certificates(release: Release, secrets: Secrets) -> dict[str, int]:
    """Serial numbers of what each port for TLS shows."""
    ports = {"broker": (6651, 8443), "bookie": (3181,), "zookeeper": (2281, 3888)}
    return {
        f"{component}-{ordinal}:{port}": _serial(release.host(component, ordinal), port, secrets)
        for component, numbers in ports.items()
        for ordinal in range(REPLICAS[component])
        for port in numbers
    }


def _serial(host: str, port: int, secrets: Secrets) -> int:
    context = secrets.mutual()
    context.set_alpn_protocols(["h2"])  # a bookie speaks nothing else
    with (
        socket.create_connection((host, port), _ANSWER_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def test_renewed_certificates_are_used_without_a_restart(
    release: Release, secrets: Secrets
) -> None:
    lives, before = release.lives(), _certificates(release, secrets)
    with Load(SERVICE_URL, "certificates", **secrets.options("admin")) as load:
        secrets.make_certificates()

        def are_new() -> bool:
            now = _certificates(release, secrets)
            return all(now[port] != serial for port, serial in before.items())

        until("all ports show new ones", are_new)
        load.wait_for_progress()
        release.tool("magnetar", "bookie-shell", "simpletest", "-e", "3", "-w", "2", "-a", "2")
    assert release.lives() == lives


def test_new_keys_and_tokens_are_used_without_a_restart(
    release: Release, secrets: Secrets, plane: ControlPlane, tmp_path: Path
) -> None:
    lives, old = release.lives(), {role: secrets.token(role) for role in ("admin", "bookkeeper")}
    renewed = Secrets(plane, tmp_path)
    with Load(SERVICE_URL, "tokens", **secrets.options("admin")) as load:
        renewed.make_tokens()
        for role in ("admin", "bookkeeper"):  # what clients show from now on
            (tmp_path / f"{role}.token").replace(secrets.folder / f"{role}.token")

        def is_changed() -> bool:
            shown = [_ask(secrets, "/admin/v2/clusters", old["admin"])[0] for _ in range(4)]
            return set(shown) == {401}

        until("brokers refuse tokens of the old key", is_changed)
        known = _known(secrets)
        assert _ask_bookie(release, known, secrets.token("bookkeeper")) is grpc.StatusCode.OK
        refused = grpc.StatusCode.UNAUTHENTICATED
        assert _ask_bookie(release, known, old["bookkeeper"]) is refused
        load.wait_for_progress()
        release.tool("magnetar", "produce", "persistent://public/default/tools", "-m", "again")
        release.tool("magnetar", "bookie-shell", "simpletest", "-e", "3", "-w", "2", "-a", "2")
    assert release.lives() == lives


def test_an_upgrade_replaces_every_pod_under_load(
    release: Release, secrets: Secrets, tmp_path: Path
) -> None:
    before = release.lives()
    changed = {
        "zookeeper": {"configData": {"autopurge.snapRetainCount": "4"}},
        "bookkeeper": {"configData": {"journalMaxSizeMB": "32"}},
        "autorecovery": {"configData": {"auditorPeriodicCheckInterval": "7200"}},
        "broker": {"configData": {"managedLedgerCacheSizeMB": "24"}},
    }
    values = tmp_path / "changed.yaml"
    values.write_text(yaml.safe_dump(changed), "utf-8")
    with Load(SERVICE_URL, "secured-upgrade", **secrets.options("admin")) as load:
        release.upgrade("--values", str(values))
        until("every pod is ready", release.is_whole)
        load.wait_for_progress()
    after = release.lives()
    servers = [name for name in before if "toolset" not in name]
    assert all(after.get(name, ("", 0))[0] != before[name][0] for name in servers)
