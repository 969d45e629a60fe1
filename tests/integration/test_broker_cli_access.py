"""The command line with credentials and TLS, against a broker that wants both."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import magnetar
from magnetar.embedding import EmbeddedBroker
from tests.certificates import Authority, Pair


@dataclass(frozen=True, slots=True)
class Guarded:
    broker: EmbeddedBroker
    authority: Authority
    alice: Pair
    folder: Path

    def run(self, *words: object, ok: bool = True, **variables: object) -> str:
        """What a command printed; it must succeed, or with ``ok=False`` fail."""
        environment = {"XDG_CONFIG_HOME": str(self.folder), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-m", "magnetar.broker.cli.main", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**environment, **{name: str(value) for name, value in variables.items()}},
            check=False,
        )
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done.stdout if ok else done.stderr


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    server = authority.sign("localhost")
    (folder / "secret.key").write_bytes(bytes(range(32)))
    with magnetar.embedded(
        brokerServicePort="",
        webServicePort="",
        brokerServicePortTls=0,
        webServicePortTls=0,
        tlsCertificateFilePath=server.certificate,
        tlsKeyFilePath=server.key,
        tlsTrustCertsFilePath=authority.certificate,
        authenticationEnabled=True,
        authenticationProviders="token,tls",
        tokenSecretKey=folder / "secret.key",
    ) as broker:
        yield Guarded(broker, authority, authority.sign("alice"), folder)


def _addresses(guarded: Guarded) -> list[str]:
    broker = guarded.broker
    return ["--url", broker.service_url_tls, "--admin-url", broker.web_url_tls]


def test_only_tls_is_served(guarded: Guarded) -> None:
    assert guarded.broker.service_url == guarded.broker.web_url == ""
    assert guarded.broker.service_url_tls.startswith("pulsar+ssl://localhost:")
    assert guarded.broker.web_url_tls.startswith("https://localhost:")


def test_a_token_in_a_profile_is_all_that_commands_need(guarded: Guarded) -> None:
    token = guarded.run(
        *("tokens", "create", "-sk", guarded.folder / "secret.key", "-s", "alice", "-e", "1h")
    )
    (guarded.folder / "token").write_text(token)
    guarded.run(
        *("profiles", "add", "guarded", *_addresses(guarded)),
        *("--auth-plugin", "token", "--auth-params", f"file://{guarded.folder / 'token'}"),
        *("--tls-trust-cert-path", guarded.authority.certificate),
    )
    assert guarded.run("admin", "clusters", "list") == "standalone\n"
    guarded.run("consume", "t", "-s", "s", "-n", "0", "--timeout", "0.2", ok=False)  # subscribed
    guarded.run("produce", "t", "-m", "hello")
    assert "hello" in guarded.run("consume", "t", "-s", "s", "-n", "1", "--timeout", "30")
    websocket = guarded.broker.web_url_tls.replace("https", "wss")
    assert "hello" not in guarded.run(
        *("read", "t", "-m", "earliest", "--url", websocket), ok=False
    )  # another address: the profile's token stays at home
    named = ("--profile", "guarded", "--url", websocket)
    assert "hello" in guarded.run("read", "t", "-m", "earliest", *named)


def test_a_certificate_by_options(guarded: Guarded) -> None:
    alice = guarded.alice
    access = (
        *("--auth-plugin", "org.apache.pulsar.client.impl.auth.AuthenticationTls"),
        *("--auth-params", f"tlsCertFile:{alice.certificate},tlsKeyFile:{alice.key}"),
        *("--tlsTrustCertsFilePath", guarded.authority.certificate),
    )
    broker = guarded.broker
    guarded.run("produce", "t2", "-m", "x", "--url", broker.service_url_tls, *access)
    answer = guarded.run("admin", "--admin-url", broker.web_url_tls, *access, "tenants", "list")
    assert "public" in answer


class NameProxy:
    """Forwards TLS connections unopened to where the name in their first message belongs."""

    def __init__(self, ports: dict[bytes, int]) -> None:
        self._ports = ports
        self.names: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar+ssl://127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listening]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> "NameProxy":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):  # its other side has closed it
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            first = client.recv(65536)
            name = next(name for name in self._ports if name in first)
            self.names.append(name)
            server = socket.create_connection(("127.0.0.1", self._ports[name]))
            server.sendall(first)
            self._sockets += (client, server)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # the other direction has ended first
            pass


def test_by_way_of_a_proxy_that_forwards_by_name(guarded: Guarded) -> None:
    alice = guarded.alice
    access = (
        *("--auth-plugin", "tls"),
        *("--auth-params", f"tlsCertFile:{alice.certificate},tlsKeyFile:{alice.key}"),
        *("--tls-trust-cert-path", guarded.authority.certificate),
    )
    port = int(guarded.broker.service_url_tls.rpartition(":")[2])
    with NameProxy({b"localhost": port}) as proxy:
        # Nobody listens at port 1: only the proxy knows the way.
        route = ("--url", "pulsar+ssl://localhost:1", "--proxy-url", proxy.url)
        guarded.run(*route, *access, "produce", "t3", "-m", "x", "--proxy-protocol", "SNI")
    assert proxy.names == [b"localhost", b"localhost"]  # the second one to the topic's owner
    said = guarded.run("produce", "t", "-m", "x", "--proxy-protocol", "SNI", *access, ok=False)
    assert "--proxy-protocol needs --proxy-url" in said
    plain = ("--url", "pulsar://localhost:1", "--proxy-url", "pulsar+ssl://localhost:2")
    said = guarded.run("produce", "t", "-m", "x", *plain, ok=False)
    assert "a proxy needs a URL with TLS" in said


def test_variables_instead_of_arguments_that_others_can_read(guarded: Guarded) -> None:
    token = guarded.run(
        *("tokens", "create", "-sk", guarded.folder / "secret.key", "-s", "bob")
    ).strip()
    answer = guarded.run(
        *("admin", "clusters", "list"),
        MAGNETAR_ADMIN_URL=guarded.broker.web_url_tls,
        MAGNETAR_AUTH_PLUGIN="token",
        MAGNETAR_AUTH_PARAMS=f"token:{token}",
        MAGNETAR_TLS_TRUST_CERT_PATH=guarded.authority.certificate,
    )
    assert answer == "standalone\n"


def test_refusals_tell_what_is_wrong(guarded: Guarded) -> None:
    url, admin_url = guarded.broker.service_url_tls, guarded.broker.web_url_tls
    trust = ("--tls-trust-cert-path", guarded.authority.certificate)
    unknown = guarded.run("produce", "t", "-m", "x", "--url", url, ok=False)
    assert "--tls-trust-cert-path FILE names the authority" in unknown
    nobody = guarded.run("produce", "t", "-m", "x", "--url", url, *trust, ok=False)
    assert "AuthenticationError: Failed to authenticate" in nobody
    nobody = guarded.run("admin", "--admin-url", admin_url, *trust, "clusters", "list", ok=False)
    assert "HTTP 401\nReason: Authentication required\nNo credentials were sent" in nobody
    other = url.replace("localhost", "127.0.0.1")  # in the certificate, too
    wrong = ("--auth-plugin", "token", "--auth-params", "secret-word")
    answer = guarded.run("produce", "t", "-m", "x", "--url", other, *trust, *wrong, ok=False)
    assert "Failed to authenticate" in answer
    assert "secret-word" not in answer
