"""Tokens between brokers and bookies that are processes: set-up, renewal, mistakes."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pulsar
import pytest

from tests.bookie_process import BookieProcess, running_bookies
from tests.broker_process import BrokerProcess
from tests.official_client import open_client

SECRET = b"0123456789abcdef0123456789abcdef"
SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")
LIFE_S = 8.0
LIMIT_S = 30.0


def token(role: str, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, SECRET, "HS256")


def replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.chmod(0o600)
    draft.replace(path)


def options(**settings: str) -> tuple[str, ...]:
    return tuple(each for key, value in settings.items() for each in ("--set", f"{key}={value}"))


@pytest.fixture
def bookies(tmp_path: Path, url: str) -> Iterator[list[BookieProcess]]:
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "bookie.token").write_text(token("bookie"))
    settings = options(
        authenticationEnabled="true",
        authenticationProviders="token",
        tokenSecretKey=f"file://{tmp_path / 'key'}",
        bookieAllowedRoles="broker,bookie",
        bookkeeperClientAuthenticationPlugin="token",
        bookkeeperClientAuthenticationParameters=f"file://{tmp_path / 'bookie.token'}",
    )
    folders = [tmp_path / f"bookie-{number}" for number in range(3)]
    with running_bookies(BookieProcess(each, url, *SESSION, *settings) for each in folders) as all3:
        yield all3


def with_token(file: Path) -> tuple[str, ...]:
    return options(
        bookkeeperClientAuthenticationPlugin="token",
        bookkeeperClientAuthenticationParameters=f"file://{file}",
    )


def client_of(broker: BrokerProcess, patience_s: int = 60) -> pulsar.Client:
    return open_client(broker.service_url, operation_timeout_seconds=patience_s)


def test_a_broker_publishes_and_reads_while_its_token_is_renewed_again_and_again(
    tmp_path: Path, url: str, bookies: list[BookieProcess]
) -> None:
    file = tmp_path / "broker.token"
    replace(file, token("broker", exp=time.time() + LIFE_S))
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(LIFE_S / 8):
            replace(file, token("broker", exp=time.time() + LIFE_S))

    renewal = threading.Thread(target=renew)
    renewal.start()
    try:
        with BrokerProcess(tmp_path / "broker", url, *SESSION, *with_token(file)) as broker:
            client = client_of(broker)
            with contextlib.closing(client):
                consumer = client.subscribe("public/default/renewed", "reader")
                producer = client.create_producer("public/default/renewed")
                end, sent = time.monotonic() + 1.5 * LIFE_S, 0
                while time.monotonic() < end:
                    producer.send(b"%d" % sent)
                    sent += 1
                    stop.wait(0.01)  # as fast as it can would take both cores for its time
                for number in range(sent):
                    message = consumer.receive(60_000)
                    assert message.data() == b"%d" % number
                    consumer.acknowledge(message)
            said = broker.log
    finally:
        stop.set()
        renewal.join()
    assert "Failed to authenticate" not in said
    assert not [bookie for bookie in bookies if "refused:" in bookie.log]
    for secret in (token("bookie"), SECRET.decode(), token("broker").split(".")[0] + "."):
        assert not [text for text in (said, *(each.log for each in bookies)) if secret in text]


@pytest.mark.parametrize("shown", ["none", "another role"])
def test_a_broker_without_the_right_is_told_and_so_is_the_audit_log(
    tmp_path: Path, url: str, bookies: list[BookieProcess], shown: str
) -> None:
    file = tmp_path / "broker.token"
    replace(file, token("orders"))
    settings = with_token(file) if shown == "another role" else ()
    with BrokerProcess(tmp_path / "broker", url, *SESSION, *settings) as broker:
        client = client_of(broker, 10)
        with contextlib.closing(client):
            # Tried for as long as the client has patience: a ledger is made by the first message.
            results: list[pulsar.Result] = []
            producer = client.create_producer("public/default/refused")
            producer.send_async(b"x", lambda result, _: results.append(result))
            why = "This role may not use bookies" if settings else "Failed to authenticate"
            deadline = time.monotonic() + LIMIT_S
            while why not in broker.log:
                assert time.monotonic() < deadline, broker.log
                time.sleep(0.05)
            assert pulsar.Result.Ok not in results
    assert [bookie for bookie in bookies if "magnetar.bookkeeper.audit" in bookie.log]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"authenticationEnabled": "true"}, "authenticationProviders"),
        (
            {
                "authenticationEnabled": "true",
                "authenticationProviders": "token",
                "tokenSecretKey": "data:;base64," + "QUJD" * 16,
            },
            "bookieAllowedRoles is empty",
        ),
        (
            {"authenticationEnabled": "true", "authenticationProviders": "tls"},
            "tlsClientAuthentication=true",
        ),
        ({"bookkeeperClientAuthenticationPlugin": "kerberos"}, "only token"),
        (
            {
                "bookkeeperClientAuthenticationPlugin": "token",
                "bookkeeperClientAuthenticationParameters": "file:///nowhere",
            },
            "token for bookies",
        ),
    ],
)
def test_a_bookie_with_settings_that_make_no_sense_does_not_start(
    tmp_path: Path, url: str, settings: dict[str, str], text: str
) -> None:
    bookie = BookieProcess(tmp_path / "bookie", url, *options(**settings))
    assert text in bookie.refuse_to_start()


def test_a_broker_whose_token_is_missing_does_not_start(tmp_path: Path, url: str) -> None:
    broker = BrokerProcess(tmp_path / "broker", url, *with_token(tmp_path / "nowhere"))
    assert "bookkeeperClientAuthenticationParameters" in broker.refuse_to_start()
