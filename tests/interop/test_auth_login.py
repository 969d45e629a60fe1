"""Who gets in with the official client, by every kind of credentials; and who doesn't."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.interop.conftest import RECEIVE_MS
from tests.interop.secured import Namespace, Secured
from tests.raw_client import RawClient

Login = Callable[[Secured, Path], pulsar.Authentication]
_PLUGINS = "org.apache.pulsar.client.impl.auth."


def _token_file(secured: Secured, folder: Path) -> str:
    file = folder / "alice.token"
    file.write_text(secured.material.token("alice"))
    return f"file://{file}"


def _certificate(secured: Secured, name: str = "alice") -> dict[str, str]:
    pair = secured.material.pair(name)
    return {"tlsCertFile": str(pair.certificate), "tlsKeyFile": str(pair.key)}


LOGINS: dict[str, Login] = {
    "token": lambda secured, _: secured.token("alice"),
    "token that expires": lambda secured, _: secured.token("alice", expires_after_s=3600),
    "token by callback": lambda secured, _: pulsar.AuthenticationToken(
        lambda: secured.material.token("alice")
    ),
    "token by parameters": lambda secured, _: pulsar.Authentication(
        "token", f"token:{secured.material.token('alice')}"
    ),
    "token in a file": lambda secured, folder: pulsar.Authentication(
        f"{_PLUGINS}AuthenticationToken", _token_file(secured, folder)
    ),
    "password": lambda secured, _: pulsar.AuthenticationBasic("alice", "alice-password"),
    "password and method": lambda secured, _: pulsar.AuthenticationBasic(
        "alice", "alice-password", "basic"
    ),
    "password by parameters": lambda secured, _: pulsar.AuthenticationBasic(
        auth_params_string='{"username": "alice", "password": "alice-password"}'
    ),
    "OAuth2": lambda secured, _: pulsar.AuthenticationOauth2(
        secured.material.client_credentials("alice")
    ),
}
TLS_LOGINS: dict[str, Login] = {
    "certificate": lambda secured, _: pulsar.AuthenticationTLS(*_certificate(secured).values()),
    "certificate by parameters": lambda secured, _: pulsar.Authentication(
        f"{_PLUGINS}AuthenticationTls",
        ",".join(f"{key}:{value}" for key, value in _certificate(secured).items()),
    ),
}


def _works_as_alice(client: pulsar.Client, namespace: Namespace) -> None:
    """Alice has both rights in the namespace, so what works is done in her name."""
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(namespace.topic("t"))
    namespace.grant("alice", "produce", "consume")
    consumer = client.subscribe(namespace.topic("t"), "s")
    producer = client.create_producer(namespace.topic("t"))
    producer.send(b"x")
    message = consumer.receive(RECEIVE_MS)
    consumer.acknowledge(message)
    assert message.data() == b"x"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("login", LOGINS.values(), ids=LOGINS.keys())
def test_logins(
    request: pytest.FixtureRequest,
    secured: Secured,
    namespace: Namespace,
    tmp_path: Path,
    login: Login,
    tls: bool,
) -> None:
    if login is LOGINS["OAuth2"]:
        request.getfixturevalue("needs_issuer")
    with secured.client(login(secured, tmp_path), tls=tls) as client:
        _works_as_alice(client, namespace)


@pytest.mark.parametrize("login", TLS_LOGINS.values(), ids=TLS_LOGINS.keys())
def test_logins_by_certificate(
    secured: Secured, namespace: Namespace, tmp_path: Path, login: Login
) -> None:
    with secured.client(login(secured, tmp_path), tls=True) as client:
        _works_as_alice(client, namespace)


def test_a_certificate_and_a_token_are_two_things(secured: Secured, namespace: Namespace) -> None:
    """The method that a client names counts: bob's certificate secures the connection only."""
    bob = secured.material.pair("bob")
    files: dict[str, Any] = {
        "tls_certificate_file_path": str(bob.certificate),
        "tls_private_key_file_path": str(bob.key),
    }
    with secured.client(secured.token("alice"), tls=True, **files) as client:
        _works_as_alice(client, namespace)


def test_lookups_by_http_and_https(secured: Secured, namespace: Namespace) -> None:
    """A client may be given the web address: it sends the same credentials there."""
    namespace.grant("alice", "produce", "consume")
    for url, tls in ((secured.admin_url, False), (secured.admin_url_tls, True)):
        for login in (LOGINS["token by callback"], LOGINS["password"], TLS_LOGINS["certificate"]):
            if login is TLS_LOGINS["certificate"] and not tls:
                continue
            with secured.client(login(secured, Path()), tls=tls, url=url) as client:
                assert len(client.get_topic_partitions(namespace.topic("t"))) == 1
                client.create_producer(namespace.topic("t")).send(b"x")
        forged_token = secured.token("alice", key=b"y" * 32)
        with (
            secured.client(forged_token, tls=tls, url=url, **KEPT_OUT) as client,
            pytest.raises(pulsar.PulsarException),
        ):
            client.create_producer(namespace.topic("t"))


# --- who is kept out


def _other_issuers_key(secured: Secured) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    claims = {"iss": secured.issuer.url, "aud": "us", "sub": "admin", "exp": int(time.time()) + 60}
    return jwt.encode(claims, key, "RS256", headers={"kid": "one"})


def _unsigned(secured: Secured) -> str:
    return jwt.encode({"sub": "admin"}, "", "none")


def _tampered(secured: Secured) -> str:
    """Alice's signature below the admin's name."""
    head, _, signature = secured.material.token("alice").split(".")
    return ".".join((head, secured.material.token("admin").split(".")[1], signature))


WRONG_TOKENS: dict[str, Callable[[Secured], str]] = {
    "nonsense": lambda _: "nonsense",
    "empty": lambda _: "",
    "expired": lambda secured: secured.material.token("admin", expires_after_s=-60),
    "not valid yet": lambda secured: secured.material.token("admin", nbf=int(time.time()) + 900),
    "other key": lambda secured: secured.material.token("admin", key=b"y" * 32),
    "unsigned": _unsigned,
    "tampered": _tampered,
    "issuer, expired": lambda secured: secured.issuer.token("one", exp=int(time.time()) - 60),
    "issuer, other audience": lambda secured: secured.issuer.token("one", aud="them"),
    "issuer, other key": _other_issuers_key,
    "other issuer": lambda secured: secured.issuer.token("one", iss="http://127.0.0.1:1"),
}


KEPT_OUT: dict[str, Any] = {
    "operation_timeout_seconds": 2
}  # the client tries logins again until then


def _is_kept_out(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/default/kept-out")


def _is_refused(secured: Secured, method: str, data: bytes) -> None:
    """What the client doesn't show: the answer, and the end of the connection."""
    with RawClient(secured.service_url, connect=False) as client:
        command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        command.connect.client_version = "test"
        command.connect.protocol_version = 21
        if method:
            command.connect.auth_method_name, command.connect.auth_data = method, data
        client.send(command)
        error = client.expect(pb.BaseCommand.ERROR)[0].error
        assert (error.error, error.message) == (pb.AuthenticationError, "Failed to authenticate")
        client.expect_closed()


@pytest.mark.parametrize("make", WRONG_TOKENS.values(), ids=WRONG_TOKENS.keys())
def test_wrong_tokens(secured: Secured, make: Callable[[Secured], str]) -> None:
    token = make(secured)
    with secured.client(pulsar.AuthenticationToken(lambda: token), **KEPT_OUT) as client:
        _is_kept_out(client)
    _is_refused(secured, "token", token.encode())
    with secured.http(token or "-") as http:
        assert http.get("/admin/v2/clusters").status_code == 401


def test_a_token_without_a_role_opens_nothing(secured: Secured) -> None:
    """Pulsar lets it in, as nobody; here it proves nothing."""
    token = jwt.encode({"x": "admin"}, secured.material.secret, "HS256")
    with secured.client(pulsar.AuthenticationToken(token), **KEPT_OUT) as client:
        _is_kept_out(client)
    if secured.is_magnetar:
        _is_refused(secured, "token", token.encode())


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "admin-password"), ("nobody", "alice-password"), ("alice", "")]
)
def test_wrong_passwords(secured: Secured, user: str, password: str) -> None:
    with secured.client(pulsar.AuthenticationBasic(user, password), **KEPT_OUT) as client:
        _is_kept_out(client)
    _is_refused(secured, "basic", f"{user}:{password}".encode())


def test_wrong_secrets_of_clients(secured: Secured) -> None:
    login = pulsar.AuthenticationOauth2(secured.material.client_credentials("alice", "wrong"))
    with secured.client(login, **KEPT_OUT) as client:
        _is_kept_out(client)


def test_no_credentials(secured: Secured) -> None:
    for tls in (False, True):
        with secured.client(None, tls=tls, **KEPT_OUT) as client:
            _is_kept_out(client)
    _is_refused(secured, "", b"")
    _is_refused(secured, "none", b"")


def test_an_unknown_method(secured: Secured) -> None:
    login = pulsar.AuthenticationBasic("alice", "alice-password", "unknown")
    with secured.client(login, **KEPT_OUT) as client:
        _is_kept_out(client)
    _is_refused(secured, "unknown", b"alice:alice-password")


def test_a_certificate_of_another_authority(secured: Secured) -> None:
    foreign = _certificate(secured, "foreign/alice").values()
    login = pulsar.AuthenticationTLS(*foreign)
    with secured.client(login, tls=True, **KEPT_OUT) as client:
        _is_kept_out(client)


def test_a_certificate_needs_tls(secured: Secured) -> None:
    login = pulsar.AuthenticationTLS(*_certificate(secured).values())
    with secured.client(login, **KEPT_OUT) as client:
        _is_kept_out(client)
    _is_refused(secured, "tls", b"")


# --- whom clients trust


def test_the_servers_authority_is_checked(secured: Secured, namespace: Namespace) -> None:
    foreign: dict[str, Any] = {"tls_trust_certs_file_path": str(secured.material.foreign_authority)}
    token = secured.token("admin")
    with secured.client(token, tls=True, **KEPT_OUT, **foreign) as client:
        _is_kept_out(client)
    foreign["tls_allow_insecure_connection"] = True
    with secured.client(token, tls=True, tls_validate_hostname=False, **foreign) as client:
        client.create_producer(namespace.topic("t")).send(b"x")


def test_the_servers_name_is_checked(secured: Secured, namespace: Namespace) -> None:
    """Its certificate is good for localhost alone."""
    wrong = secured.service_url_tls.replace("localhost", "127.0.0.1")
    assert wrong != secured.service_url_tls
    token = secured.token("admin")
    with secured.client(token, tls=True, url=wrong, **KEPT_OUT) as client:
        _is_kept_out(client)
    with secured.client(token, tls=True, url=wrong, tls_validate_hostname=False) as client:
        client.create_producer(namespace.topic("t")).send(b"x")


def test_plain_and_tls_are_not_mixed_up(secured: Secured) -> None:
    """Clients of the one kind at the other's port fail, and leave the port unharmed."""
    plain = secured.service_url_tls.replace("pulsar+ssl", "pulsar")
    tls = secured.service_url.replace("pulsar", "pulsar+ssl")
    token = secured.token("admin")
    for url, is_tls in ((plain, False), (tls, True)):
        with secured.client(token, tls=is_tls, url=url, **KEPT_OUT) as client:
            _is_kept_out(client)
    for is_tls in (False, True):
        with secured.client(token, tls=is_tls) as client:
            assert client.get_topic_partitions("persistent://public/default/there")
