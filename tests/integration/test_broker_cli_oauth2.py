"""The command line with tokens that it gets from an issuer (OAuth 2.0, client credentials)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import magnetar
from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.embedding import EmbeddedBroker
from tests.open_id_issuer import Issuer

PLUGIN = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        issuer.add_key("one")
        issuer.secrets = {"alice": "alice-secret"}
        yield issuer


def _params(issuer: Issuer, folder: Path, **changes: Any) -> str:
    key = folder / "alice.json"
    key.write_text(json.dumps({"client_id": "alice", "client_secret": "alice-secret"}))
    params = {"issuerUrl": issuer.url, "privateKey": f"file://{key}", "audience": "us"}
    return json.dumps({**params, **changes})


def _run(broker: EmbeddedBroker, folder: Path, *words: str, ok: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.broker.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "XDG_CONFIG_HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "MAGNETAR_SERVICE_URL": broker.service_url,
            "MAGNETAR_ADMIN_URL": broker.web_url,
        },
        check=False,
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout if ok else done.stderr


def test_commands_get_tokens_from_the_issuer(issuer: Issuer, tmp_path: Path) -> None:
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="openid",
        openIDAllowedTokenIssuers=issuer.url,
        openIDAllowedAudiences="us",
        openIDRequireIssuersUseHttps=False,
    ) as broker:
        access = ("--auth-plugin", PLUGIN, "--auth-params", _params(issuer, tmp_path))
        assert _run(broker, tmp_path, "admin", *access, "clusters", "list") == "standalone\n"
        _run(broker, tmp_path, "produce", "t", "-m", "hello", *access)
        told = _run(broker, tmp_path, "read", "t", "-m", "earliest", "-n", "1", *access)
        assert "hello" in told
        wrong = tmp_path / "wrong.json"
        wrong.write_text('{"client_id": "alice", "client_secret": "wrong-secret"}')
        params = _params(issuer, tmp_path, privateKey=str(wrong))
        access = ("--auth-plugin", "oauth2", "--auth-params", params)
        told = _run(broker, tmp_path, "admin", *access, "clusters", "list", ok=False)
        assert "HTTP 401 invalid_client" in told
        assert "wrong-secret" not in told


def test_a_token_is_kept_while_it_is_good(issuer: Issuer, tmp_path: Path) -> None:
    access = ClientAuth("oauth2", _params(issuer, tmp_path))
    assert access.method == "token"
    first = access.data()
    assert access.headers() == {"Authorization": f"Bearer {first.decode()}"}
    assert (access.data(), issuer.issued) == (first, 1)
    issuer.lifetime_s = 0
    other = ClientAuth("oauth2", _params(issuer, tmp_path, scope="x"))
    other.data()
    other.data()
    assert issuer.issued == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"issuerUrl": ""},
        {"issuerUrl": "file:///etc/hostname"},
        {"issuerUrl": "http://127.0.0.1:1"},
        {"privateKey": ""},
        {"privateKey": "/no/such/file"},
        {"privateKey": "data:application/json;base64,%"},
        {"privateKey": "data:,nothing"},
        {"type": "password"},
        {"trustCertsFilePath": "/no/such/file"},
    ],
    ids=str,
)
def test_bad_parameters(issuer: Issuer, tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(ClientAuthError):
        ClientAuth("oauth2", _params(issuer, tmp_path, **changes)).data()


def test_keys_may_be_data(issuer: Issuer, tmp_path: Path) -> None:
    key = 'data:application/json,{"client_id":"alice","client_secret":"alice-secret"}'
    assert ClientAuth("oauth2", _params(issuer, tmp_path, privateKey=key)).data()
