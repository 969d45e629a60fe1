"""Credentials of the command line: their forms, and where they may go."""

import json
from pathlib import Path

import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.main import build_parser, main
from magnetar.broker.cli.profiles import DEFAULT, ClusterTarget, Profiles, resolve, target_of

JAVA = "org.apache.pulsar.client.impl.auth."
ONE = ClusterTarget("pulsar+ssl://one:6651", "https://one:8443", "token", "token:abc", "/ca.pem")


@pytest.mark.parametrize("plugin", ["token", JAVA + "AuthenticationToken"])
@pytest.mark.parametrize("params", ["token:abc", "abc", '{"token":"abc"}', "file:{}"])
def test_tokens_in_all_of_pulsars_forms(plugin: str, params: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    if params.startswith("file:"):
        params = f"file://{tmp_path / 'token'}"
    access = ClientAuth(plugin, params)
    assert (access.method, access.data()) == ("token", b"abc")
    assert access.headers() == {"Authorization": "Bearer abc"}


@pytest.mark.parametrize("params", ['{"userId":"u","password":"p:w"}', "u:p:w"])
def test_user_and_password(params: str) -> None:
    access = ClientAuth(JAVA + "AuthenticationBasic", params)
    assert (access.method, access.data()) == ("basic", b"u:p:w")
    assert access.headers() == {"Authorization": "Basic dTpwOnc="}


def test_bad_parameters_are_refused_without_being_repeated() -> None:
    for plugin, params in (
        ("token", ""),
        ("token", "file:///no/such/file"),
        ("token", "secret\r\nX-Other: 1"),
        ("token", "{secret"),
        ("basic", "secret"),
        ("basic", ":secret"),
        ("kerberos", "secret"),
    ):
        with pytest.raises(ClientAuthError) as caught:
            ClientAuth(plugin, params).headers()
        assert "secret" not in str(caught.value)
    for params in ("", "tlsCertFile:/a", "tlsCertFile:/no/a,tlsKeyFile:/no/b"):
        with pytest.raises(ClientAuthError):
            ClientAuth("tls", params).tls()
    with pytest.raises(ClientAuthError, match="TLS"):
        ClientAuth(trusted="/no/such/file").tls()
    assert "secret" not in repr(ClientAuth("token", "secret"))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    values = {"XDG_CONFIG_HOME": str(tmp_path)}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    Profiles.of_user(values).add("one", ONE)
    return values


def test_credentials_of_a_profile_go_to_its_own_addresses(environment: dict[str, str]) -> None:
    assert resolve(None, None, None, environment) == ONE
    for target in (
        resolve(None, "pulsar://elsewhere:1", None, environment),
        resolve(None, None, "http://elsewhere:1", environment),
        resolve(None, None, None, {**environment, "MAGNETAR_ADMIN_URL": "http://elsewhere:1"}),
    ):
        assert (target.auth_plugin, target.auth_params) == ("", "")
    named = resolve("one", "pulsar://elsewhere:1", None, environment)
    assert named.auth_params == "token:abc"


def test_variables_and_options_say_who(environment: dict[str, str]) -> None:
    variables = {
        **environment,
        "MAGNETAR_AUTH_PLUGIN": "basic",
        "MAGNETAR_AUTH_PARAMS": "u:p",
        "MAGNETAR_TLS_TRUST_CERT_PATH": "/other.pem",
    }
    target = resolve(None, "pulsar://elsewhere:1", None, variables)
    assert target.access == ClientAuth("basic", "u:p", "/other.pem")
    words = ["read", "t", "--auth-plugin", "tls", "--auth-params", "x", "--tls-allow-insecure"]
    target = target_of(build_parser(words).parse_args(words))
    assert target.access == ClientAuth("tls", "x", "/ca.pem", True)
    words = ["admin", "--auth-params", "x", "tenants", "list"]
    with pytest.raises(CliError, match="needs --auth-plugin"):
        target_of(build_parser(words).parse_args(words))


def test_profiles_keep_credentials_and_do_not_show_them(
    environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["profiles", "add", "two", "--auth-plugin", "token", "--auth-params", "token:xyz"]
    assert main(words) == 0
    assert Profiles.of_user(environment).get("two").auth_params == "token:xyz"
    assert main(["profiles", "list"]) == 0
    assert main(["profiles", "list", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "token" in shown
    assert "xyz" not in shown
    assert "abc" not in shown
    file = Path(environment["XDG_CONFIG_HOME"]) / "magnetar" / "profiles.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["profiles"]["two"] == {
        "service_url": DEFAULT.service_url,
        "admin_url": DEFAULT.admin_url,
        "auth_plugin": "token",
        "auth_params": "token:xyz",
    }
