"""Who gets in: tokens, passwords, proxies and renewal, by hand.

The official client, the web port and WebSockets: ``tests/interop/test_auth_*.py``.
"""

import base64
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import bcrypt
import jwt
import pulsar
import pytest

import magnetar
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.embedding import EmbeddedBroker
from magnetar.errors import EmbeddedError
from magnetar.fresh_namespace import FreshNamespace
from magnetar.host import Addresses
from tests.certificates import Authority
from tests.official_client import open_client
from tests.open_id_issuer import Issuer
from tests.raw_client import RawClient

SECRET = bytes(range(100, 132))
Server = EmbeddedBroker | Addresses
TOPIC = "persistent://public/default/guarded"


def token(role: str, *, seconds: float | None = None, key: bytes = SECRET, **claims: Any) -> str:
    if seconds is not None:
        claims["exp"] = time.time() + seconds
    return jwt.encode({"sub": role, **claims}, key, "HS256")


@pytest.fixture(scope="module")
def broker(
    external_server: tuple[str, str] | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    if external_server is not None:
        yield Addresses(*external_server)
        return
    folder: Path = tmp_path_factory.mktemp("auth")
    (folder / "secret.key").write_bytes(SECRET)
    digest = bcrypt.hashpw(b"pass:word", bcrypt.gensalt(4)).decode()
    (folder / "passwords").write_text(f"alice:{digest}\n")
    java = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders=f"{java}Token,{java}Basic",
        tokenSecretKey=f"file://{folder / 'secret.key'}",
        basicAuthConf=f"file://{folder / 'passwords'}",
        proxyRoles="proxy",
        authenticationRefreshCheckSeconds=1,
    ) as broker:
        yield broker


def _client(broker: Server, authentication: Any, **options: Any) -> pulsar.Client:
    return open_client(
        broker.service_url,
        authentication=authentication,
        operation_timeout_seconds=options.pop("timeout_s", 30),
        **options,
    )


def _raw(broker: Server, **fields: Any) -> RawClient:
    client = RawClient(broker.service_url, connect=False)
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = fields.pop("version", 19)
    command.connect.feature_flags.supports_auth_refresh = fields.pop("refresh", True)
    for name, value in fields.items():
        setattr(command.connect, name, value)
    client.send(command)
    return client


def _by_token(value: str) -> dict[str, Any]:
    return {"auth_method_name": "token", "auth_data": value.encode()}


# --- the binary protocol, frame by frame


def _refusal(client: RawClient) -> tuple[int, str]:
    with client:
        error = client.expect(pb.BaseCommand.ERROR)[0].error
        assert error.request_id == 2**64 - 1
        client.expect_closed()
    return error.error, error.message


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"auth_method_name": "none"},
        {"auth_method_name": "token"},
        {"auth_method_name": "token", "auth_data": b"\xff\0"},
        {"auth_method_name": "tls"},
        {"auth_method_name": "basic", "auth_data": b"alice:wrong"},
        {"auth_method_name": "basic", "auth_data": b"nobody:pass:word"},
        {"auth_method": pb.AuthMethodYcaV1, "auth_data": b"x"},
        {"auth_method_name": "token", "auth_data": b"alice:pass:word"},
        _by_token(token("")),
        _by_token(token("a", nbf=time.time() + 86_400)),  # the suite may take long to come here
    ],
)
def test_refusals_are_all_alike(broker: Server, fields: dict[str, Any]) -> None:
    answer = _refusal(_raw(broker, **fields))
    assert answer == (pb.AuthenticationError, "Failed to authenticate")


def test_nothing_is_done_for_a_client_that_has_not_proved_who_it_is(
    broker: Server,
) -> None:
    client = RawClient(broker.service_url, connect=False)
    with client:
        lookup = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = TOPIC, 1
        client.send(lookup)
        assert client.expect_closed() == []
    # Also while a slow check is under way
    with _raw(broker, auth_method_name="basic", auth_data=b"alice:other") as waiting:
        waiting.send(lookup)
        answers = waiting.expect_closed()
        assert pb.BaseCommand.LOOKUP_RESPONSE not in {each.type for each in answers}
        assert pb.BaseCommand.CONNECTED not in {each.type for each in answers}


def test_an_unknown_client_cannot_make_the_broker_hold_large_frames(
    broker: Server,
) -> None:
    with RawClient(broker.service_url, connect=False) as client:
        client.send_bytes((1024 * 1024).to_bytes(4, "big") + b"\0\0\0\x10")
        client.expect_closed()


def test_only_proxies_speak_for_others(broker: Server) -> None:
    invalid = (pb.AuthorizationError, "Invalid roles.")
    for role, original in (("alice", "bob"), ("proxy", ""), ("proxy", "proxy")):
        assert (
            _refusal(_raw(broker, **_by_token(token(role)), original_principal=original)) == invalid
        )
    with _raw(broker, **_by_token(token("proxy")), original_principal="bob") as client:
        client.expect(pb.BaseCommand.CONNECTED)


def test_a_challenge_comes_when_credentials_expire_and_is_answered_by_the_same_role(
    broker: Server,
) -> None:
    def challenged() -> RawClient:
        client = _raw(broker, **_by_token(token("alice", seconds=1.5)))
        client.expect(pb.BaseCommand.CONNECTED)
        challenge = client.expect(pb.BaseCommand.AUTH_CHALLENGE)[0].authChallenge
        assert challenge.challenge.auth_method_name == "token"
        assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
        return client

    def answer(client: RawClient, value: str) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
        command.authResponse.response.auth_method_name = "token"
        command.authResponse.response.auth_data = value.encode()
        client.send(command)

    with challenged() as silent:
        assert silent.expect_closed() == []
    with challenged() as other:
        answer(other, token("bob"))
        assert other.expect_closed() == []
    with challenged() as wrong:
        answer(wrong, token("alice", seconds=-1))
        assert _refusal(wrong) == (pb.AuthenticationError, "Failed to authenticate")
    with challenged() as good:
        answer(good, token("alice", seconds=1.5))
        good.expect(pb.BaseCommand.AUTH_CHALLENGE)  # no CONNECTED in between
        answer(good, token("alice"))
        good.create_producer(TOPIC)
        answer(good, token("alice"))  # nobody asked
        good.expect_closed()


def test_expired_clients_that_cannot_renew_are_closed(broker: Server) -> None:
    with _raw(broker, **_by_token(token("alice", seconds=1.5)), refresh=False) as client:
        client.expect(pb.BaseCommand.CONNECTED)
        assert client.expect_closed() == []


def test_an_expired_proxy_that_passes_no_credentials_on_is_closed(broker: Server) -> None:
    fields = _by_token(token("proxy", seconds=1.5))
    with _raw(broker, **fields, original_principal="bob") as client:
        client.expect(pb.BaseCommand.CONNECTED)
        assert client.expect_closed() == []


# --- HTTP


def _get(broker: Server, path: str, **headers: str) -> tuple[int, Any, list[str]]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(broker.web_url + path, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), []
    except HTTPError as error:
        with error:
            challenges = error.headers.get_all("WWW-Authenticate") or []
            return error.code, json.loads(error.read()), challenges


def _basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_http_needs_credentials_before_anything_else(broker: Server) -> None:
    required = (
        401,
        {"reason": "Authentication required"},
        ['Bearer realm="magnetar"', 'Basic realm="magnetar"'],
    )
    good = "Bearer " + token("alice")
    for path in ("/admin/v2/clusters", "/nosuch", "/lookup/v2/topic/persistent/a/b/c"):
        assert _get(broker, path) == required
    for wrong in ("Bearer x", "Bearer", "Basic !", _basic("alice:no"), "Digest x", token("a")):
        assert _get(broker, "/admin/v2/clusters", Authorization=wrong) == required
    for right in (good, good.replace("Bearer", "bearer"), _basic("alice:pass:word")):
        assert _get(broker, "/admin/v2/clusters", Authorization=right)[0] == 200
    assert _get(broker, "/admin/v2/clusters?token=" + token("alice")) == required
    assert _get(broker, "/nosuch", Authorization=good)[0] == 404
    for path in ("/metrics", "/status.html", "/ready"):
        assert _get(broker, path)[0] == 200


# --- other settings


def test_clients_without_credentials_have_the_anonymous_role() -> None:
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey=base64.b64encode(SECRET).decode(),
        anonymousUserRole="nobody",
        authenticateMetricsEndpoint=True,
        authenticateOriginalAuthData=True,
        proxyRoles="proxy",
    ) as broker:
        with _raw(broker) as client:
            client.expect(pb.BaseCommand.CONNECTED)
        assert _refusal(_raw(broker, **_by_token("x")))[0] == pb.AuthenticationError
        assert _get(broker, "/metrics", Authorization="Bearer x")[0] == 401
        assert _get(broker, "/admin/v2/clusters")[0] == 200
        # A proxy has to pass on what proves its client
        fields = {**_by_token(token("proxy")), "original_principal": "bob"}
        assert _refusal(_raw(broker, **fields))[0] == pb.AuthenticationError
        fields["original_auth_method"] = "token"
        fields["original_auth_data"] = token("carol", key=b"y" * 32)
        assert _refusal(_raw(broker, **fields))[0] == pb.AuthenticationError
        fields["original_auth_data"] = token("carol")
        with _raw(broker, **fields) as client:
            client.expect(pb.BaseCommand.CONNECTED)


# --- OpenID Connect, with an issuer of our own


def test_tokens_of_an_issuer_are_checked_by_its_published_keys() -> None:
    with (
        Issuer() as issuer,
        magnetar.embedded(
            authenticationEnabled=True,
            authenticationProviders="token,openid",
            tokenSecretKey=base64.b64encode(SECRET).decode(),
            openIDAllowedTokenIssuers=issuer.url,
            openIDAllowedAudiences="us",
            openIDRequireIssuersUseHttps=False,
            openIDKeyIdCacheMissRefreshSeconds=1,
        ) as broker,
    ):
        issuer.add_key("one")

        def status(value: str) -> int:
            return _get(broker, "/admin/v2/clusters", Authorization=f"Bearer {value}")[0]

        first = issuer.token("one")
        assert status(first) == 200
        assert status(token("alice")) == 200  # the other provider of the same method
        assert status(issuer.token("one", aud="them")) == 401
        assert status(issuer.token("one", iss="http://127.0.0.1:1")) == 401
        with _raw(broker, **_by_token(issuer.token("one"))) as client:
            client.expect(pb.BaseCommand.CONNECTED)
        assert issuer.asked == 1
        issuer.add_key("two")
        rotated = issuer.token("two")
        deadline = time.monotonic() + 30
        while status(rotated) != 200:  # misses fetch once a second at most
            assert time.monotonic() < deadline
        assert issuer.asked >= 2


def test_tests_of_others_get_tokens_and_namespaces() -> None:
    key = base64.b64encode(SECRET).decode()
    settings: dict[str, Any] = {"authenticationEnabled": True, "authenticationProviders": "token"}
    with (
        magnetar.embedded(**settings, tokenSecretKey=f"data:;base64,{key}") as broker,
        FreshNamespace(broker) as fresh,
    ):
        client = _client(broker, pulsar.AuthenticationToken(broker.token("alice", 60)))
        client.create_producer(fresh.topic()).send(b"x")
        client.close()
        for bad in (broker.token("alice", -1), "x" + broker.token("alice")):
            assert _get(broker, "/admin/v2/clusters", Authorization=f"Bearer {bad}")[0] == 401
    with pytest.raises(EmbeddedError, match="tokenSecretKey"):
        magnetar.embedded().token("alice")


def test_tests_of_others_work_over_tls_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("somebody", hosts=["broker.example"])
    with (
        magnetar.embedded(
            brokerServicePort="",
            webServicePort="",
            brokerServicePortTls=0,
            webServicePortTls=0,
            tlsCertificateFilePath=server.certificate,
            tlsKeyFilePath=server.key,
            authenticationEnabled=True,
            authenticationProviders="token",
            tokenSecretKey=base64.b64encode(SECRET).decode(),
        ) as broker,
        FreshNamespace(broker) as fresh,
    ):
        assert fresh.service_url == broker.service_url_tls
        client = open_client(
            fresh.service_url,
            authentication=pulsar.AuthenticationToken(broker.token("alice")),
            tls_trust_certs_file_path=str(authority.certificate),
        )
        client.create_producer(fresh.topic(partitions=2)).send(b"x")
        client.close()


def test_tests_of_others_need_a_key_to_log_in(tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n")
    with (
        magnetar.embedded(
            authenticationEnabled=True,
            authenticationProviders="basic",
            basicAuthConf=f"file://{tmp_path / 'passwords'}",
        ) as broker,
        pytest.raises(EmbeddedError, match="tokenSecretKey"),
        FreshNamespace(broker),
    ):
        pass
