"""`magnetar console` on its way to a cluster: each step is told, one that fails is named."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import jwt
import pytest

from magnetar.broker.cli.main import main
from tests.certificates import Authority
from tests.console_process import ConsoleProcess
from tests.free_port import free_port
from tests.standalone_process import StandaloneProcess

KEY = bytes(range(32))


def token_of(role: str) -> str:
    return f"token:{jwt.encode({'sub': role}, KEY, 'HS256')}"


@dataclass(frozen=True)
class Secured:
    """A broker that asks for tokens, and its address with TLS."""

    process: StandaloneProcess
    tls_url: str
    authority: Authority


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    pair, port = authority.sign("broker", file="broker"), free_port()
    (folder / "key").write_bytes(KEY)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{folder / 'key'}",
        "authorizationEnabled": "true",
        "superUserRoles": "admin",
        "webServicePortTls": str(port),
        "tlsCertificateFilePath": str(pair.certificate),
        "tlsKeyFilePath": str(pair.key),
    }
    options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    with StandaloneProcess(folder / "data", *options) as process:
        yield Secured(process, f"https://localhost:{port}", authority)


def steps(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if not line.startswith("console of")]


def test_the_step_that_fails_is_named(
    standalone: StandaloneProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    for url, done, failed, advice in (
        ("http://nowhere.invalid", [], "name: nowhere.invalid: ", "known to DNS here?"),
        (f"http://127.0.0.1:{free_port()}", ["name"], "TCP: ", "Nothing listens on port"),
        (
            standalone.admin_url.replace("http", "https"),
            ["name", "TCP"],
            "TLS: ",
            "speaks no TLS: --admin-url http://",
        ),
        (
            f"http://127.0.0.1:{standalone.port}",
            ["name", "TCP"],
            "has not answered",
            "speaks Pulsar's binary protocol",
        ),
    ):
        assert main(["console", "--admin-url", url]) == 1
        shown = capsys.readouterr()
        assert steps(shown.out) == done
        assert failed in shown.err
        assert advice in shown.err


def test_a_port_that_is_taken_is_named(
    standalone: StandaloneProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["console", "--admin-url", standalone.admin_url, "--port", port]) == 1
    shown = capsys.readouterr()
    assert f"--bind 127.0.0.1 --port {port}: Address already in use" in shown.err
    assert "/console/" not in shown.out, "nobody is sent there"


def test_the_way_to_a_broker_with_tls_and_tokens(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trust = ["--tls-trust-cert-path", str(secured.authority.certificate)]
    words = ["console", "--admin-url", secured.tls_url]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert steps(shown.out) == ["name", "TCP"]
    assert "certificate isn't trusted here: --tls-trust-cert-path" in shown.err
    for credentials, said in (
        ([], "No credentials were sent"),
        (["--auth-plugin", "token", "--auth-params", "token:x"], "sent and not accepted"),
    ):
        assert main([*words, *trust, *credentials]) == 1
        shown = capsys.readouterr()
        assert steps(shown.out) == ["name", "TCP", "TLS"]
        assert "login    HTTP 401" in shown.err
        assert said in shown.err
    for role, rights in (("admin", "may be read"), ("anna", "lacks superuser on the cluster")):
        access = ("--auth-plugin", "token", "--auth-params", token_of(role))
        with ConsoleProcess(tmp_path / role, secured.tls_url, *trust, *access) as console:
            said = console.log
            assert steps(said) == ["name", "TCP", "TLS", "login", "version", "rights"]
            assert f"as {role}" in said
            assert "localhost" in said
            assert rights in said
            assert httpx.get(console.url, timeout=60).status_code == 200
