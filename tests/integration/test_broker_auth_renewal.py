"""Keys that change on disk while clients are connected: who stays, who is asked, who goes."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import jwt
import pulsar
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import magnetar
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.embedding import EmbeddedBroker
from tests.official_client import open_client
from tests.raw_client import RawClient
from tests.waiting import wait_until

OLD, NEW = bytes(range(32)), bytes(range(100, 132))
LIMIT_S = 30.0
TOPIC = "persistent://public/default/renewed"
STREAM = "/topics/persistent/public/default/silent/subscription/s/stream"
POLL = "/topics/persistent/public/default/silent/subscription/p/messages?waitMs=25000"
SOCKET = "/ws/v2/producer/persistent/public/default/renewed"


def token(key: bytes, seconds: float | None = None) -> str:
    claims: dict[str, Any] = {"sub": "alice"}
    if seconds is not None:
        claims["exp"] = time.time() + seconds
    return jwt.encode(claims, key, "HS256")


class Files:
    def __init__(self, folder: Path) -> None:
        self.key, self.passwords = folder / "secret.key", folder / "passwords"
        self.set_key(OLD)
        self.set_password("one")

    def set_key(self, content: bytes) -> None:
        _write(self.key, content)

    def set_password(self, word: str) -> None:
        digest = bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode()
        _write(self.passwords, f"alice:{digest}\n".encode())


def _write(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".draft")
    draft.write_bytes(content)
    draft.replace(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def broker(files: Files) -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token,basic",
        tokenSecretKey=f"file://{files.key}",
        basicAuthConf=f"file://{files.passwords}",
        authenticationRefreshCheckSeconds=2,
        tlsCertRefreshCheckDurationSec=1,
    ) as broker:
        yield broker


def _status(broker: EmbeddedBroker, credentials: str) -> int:
    headers = {"Authorization": credentials}
    answer = httpx.get(f"{broker.web_url}/admin/v2/clusters", headers=headers, timeout=LIMIT_S)
    return answer.status_code


def _bearer(key: bytes, seconds: float | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(key, seconds)}"}


def _raw(broker: EmbeddedBroker, value: str, *, refresh: bool = True) -> RawClient:
    client = RawClient(broker.service_url, connect=False)
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "test", 19
    command.connect.feature_flags.supports_auth_refresh = refresh
    command.connect.auth_method_name, command.connect.auth_data = "token", value.encode()
    client.send(command)
    client.expect(pb.BaseCommand.CONNECTED)
    return client


def _answer(client: RawClient, value: str) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
    command.authResponse.response.auth_method_name = "token"
    command.authResponse.response.auth_data = value.encode()
    client.send(command)


def test_a_revoked_key_ends_or_renews_what_it_let_in(broker: EmbeddedBroker, files: Files) -> None:
    silent, renewing, refused = (_raw(broker, token(OLD)) for _ in range(3))
    old_client = _raw(broker, token(OLD), refresh=False)
    assert _status(broker, f"Bearer {token(OLD)}") == 200
    files.set_key(NEW)
    for client in (silent, renewing, refused):
        challenge = client.expect(pb.BaseCommand.AUTH_CHALLENGE)[0].authChallenge
        assert challenge.challenge.auth_data == b"PulsarAuthRefresh"
    _answer(renewing, token(NEW))
    _answer(refused, token(OLD))
    old_client.expect_closed()
    assert _status(broker, f"Bearer {token(OLD)}") == 401
    assert _status(broker, f"Bearer {token(NEW)}") == 200
    refused.expect_closed()
    silent.expect_closed()  # in vain it was waited for
    renewing.send(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    renewing.expect(pb.BaseCommand.PONG)
    # The next change finds what it was renewed with, not what it came with.
    files.set_key(OLD)
    renewing.expect(pb.BaseCommand.AUTH_CHALLENGE)
    for client in (silent, renewing, refused, old_client):
        client.close()


def test_a_client_with_a_callback_works_on(broker: EmbeddedBroker, files: Files) -> None:
    key = [OLD]
    client = open_client(
        broker.service_url, authentication=pulsar.AuthenticationToken(lambda: token(key[0]))
    )
    producer = client.create_producer(TOPIC)
    producer.send(b"x")
    key[0] = NEW
    files.set_key(NEW)
    wait_until(lambda: _status(broker, f"Bearer {token(OLD)}") == 401)
    for _ in range(20):
        producer.send(b"y")
    client.close()


def test_passwords_are_noticed_and_a_broken_file_changes_nothing(
    broker: EmbeddedBroker, files: Files
) -> None:
    one, two = (httpx.BasicAuth("alice", word)._auth_header for word in ("one", "two"))
    with _raw(broker, token(OLD)) as client:
        _write(files.passwords, b"alice:plain text\n")
        files.set_key(NEW)
        time.sleep(3)  # nothing is to happen: several looks of the broker
        assert _status(broker, one) == 200
        assert _status(broker, f"Bearer {token(OLD)}") == 200
        files.set_password("two")
        wait_until(lambda: _status(broker, two) == 200)
        assert _status(broker, one) == 401
        client.expect(pb.BaseCommand.AUTH_CHALLENGE)  # only now for the key, too


def test_websockets_streams_and_polls_end_with_the_key(
    broker: EmbeddedBroker, files: Files
) -> None:
    url = broker.web_url.replace("http", "ws", 1) + SOCKET
    ends: dict[str, Any] = {}

    def poll() -> None:
        ends["poll"] = httpx.get(broker.web_url + POLL, headers=_bearer(OLD), timeout=60)

    def stream() -> None:
        with httpx.stream("GET", broker.web_url + STREAM, headers=_bearer(OLD), timeout=60) as got:
            ends["stream began"] = got.status_code
            ends["stream"] = got.read()

    threads = [threading.Thread(target=each) for each in (poll, stream)]
    with connect(url, additional_headers=_bearer(OLD)) as socket:
        for each in threads:
            each.start()
        wait_until(lambda: "stream began" in ends and _subscriptions(broker) == {"s", "p"})
        socket.send(json.dumps({"payload": ""}))
        assert json.loads(socket.recv(LIMIT_S))["result"] == "ok"
        files.set_key(NEW)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(LIMIT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4006
    for each in threads:
        each.join(LIMIT_S)
    assert ends["stream began"] == 200
    assert ends["poll"].status_code == 401
    assert ends["poll"].json() == {"reason": "Failed to authenticate"}
    assert "stream" in ends  # complete: no error of the protocol
    with pytest.raises(InvalidStatus):
        connect(url, additional_headers=_bearer(OLD))


def _subscriptions(broker: EmbeddedBroker) -> set[str]:
    path = "/admin/v2/persistent/public/default/silent/subscriptions"
    answer = httpx.get(broker.web_url + path, headers=_bearer(OLD), timeout=LIMIT_S)
    return set(answer.json()) if answer.status_code == 200 else set()


def test_websockets_and_streams_end_with_their_token(broker: EmbeddedBroker) -> None:
    """After the time that clients of the binary port have for renewing theirs."""
    url = broker.web_url.replace("http", "ws", 1) + SOCKET
    began = time.monotonic()
    with connect(url, additional_headers=_bearer(OLD, 4.0)) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(LIMIT_S)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
            4006,
            "Not authenticated any more",
        )
        assert time.monotonic() - began > 5.5
    with (
        httpx.Client(timeout=60) as http,
        http.stream("GET", broker.web_url + STREAM, headers=_bearer(OLD, 4.0)) as stream,
    ):
        assert stream.status_code == 200
        assert stream.read().strip() == b""
