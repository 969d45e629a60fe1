"""Credentials that expire while producers and consumers are at work."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.interop.conftest import RECEIVE_MS
from tests.interop.secured import Namespace, Secured
from tests.waiting import wait_until

LIFETIME_S = 3
RENEWALS = 2  # the second one rests on what the first has set up


def _connections(namespace: Namespace, topic: str) -> list[Any]:
    """Of the topic's producers and consumers: who they are and since when."""
    stats = namespace.stats(topic)
    members = list(stats["publishers"])
    for subscription in stats["subscriptions"].values():
        members += subscription["consumers"]
    return [(each["address"], each["connectedSince"]) for each in members]


def _works_on(
    client: pulsar.Client, namespace: Namespace, renewals: Callable[[], int], wanted: int
) -> None:
    """A producer and a consumer go on over the same connection until so many renewals later."""
    consumer = client.subscribe(namespace.topic("t"), "s")
    producer = client.create_producer(namespace.topic("t"))
    producer.send(b"first")
    message = consumer.receive(RECEIVE_MS)
    consumer.acknowledge(message)
    before, start = _connections(namespace, "t"), renewals()
    assert len(before) == 2
    number = 0

    def done() -> bool:
        nonlocal number
        number += 1
        producer.send(b"%d" % number)
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        assert message.data() == b"%d" % number
        return renewals() >= start + wanted

    wait_until(done)
    assert _connections(namespace, "t") == before


def _gone(namespace: Namespace, topic: str) -> None:
    wait_until(lambda: not _connections(namespace, topic))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_callback_supplies_new_tokens(secured: Secured, namespace: Namespace, tls: bool) -> None:
    supplied: list[str] = []

    def supply() -> str:
        supplied.append(secured.material.token("admin", expires_after_s=LIFETIME_S))
        return supplied[-1]

    with secured.client(pulsar.AuthenticationToken(supply), tls=tls) as client:
        _works_on(client, namespace, lambda: len(supplied), RENEWALS)


@pytest.mark.usefixtures("needs_issuer")
def test_an_issuer_supplies_new_tokens(secured: Secured, namespace: Namespace) -> None:
    login = pulsar.AuthenticationOauth2(secured.material.client_credentials("admin"))
    secured.issuer.lifetime_s = LIFETIME_S
    try:
        with secured.client(login) as client:
            _works_on(client, namespace, lambda: secured.issuer.issued, RENEWALS)
    finally:
        secured.issuer.lifetime_s = 3600


def test_a_file_is_read_again(secured: Secured, namespace: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "token"
    expires_s = 0.0

    def write() -> None:
        nonlocal expires_s
        expires_s = time.time() + LIFETIME_S
        file.write_text(secured.material.token("admin", expires_after_s=LIFETIME_S))

    periods = 0

    def renew() -> int:
        """What an agent beside the client would do: replaces the token shortly before its end."""
        nonlocal periods
        if time.time() > expires_s - LIFETIME_S / 2:
            write()
            periods += 1
        return periods

    write()
    login = pulsar.Authentication("token", f"file://{file}")
    with secured.client(login) as client:
        _works_on(client, namespace, renew, 3 * RENEWALS)


@contextmanager
def _producer_and_consumer(
    secured: Secured, namespace: Namespace, supply: Callable[[], str]
) -> Iterator[tuple[Any, Any]]:
    with secured.client(pulsar.AuthenticationToken(supply)) as client:
        consumer = client.subscribe(namespace.topic("t"), "s")
        producer = client.create_producer(namespace.topic("t"), send_timeout_millis=10_000)
        producer.send(b"first")
        message = consumer.receive(RECEIVE_MS)
        consumer.acknowledge(message)
        assert message.data() == b"first"
        yield producer, consumer


def test_who_has_no_new_token_is_disconnected(secured: Secured, namespace: Namespace) -> None:
    tokens: list[str] = []
    is_set_up = False

    def supply() -> str:
        """New ones until all is set up, then the last of them for ever."""
        if not is_set_up:
            tokens.append(secured.material.token("admin", expires_after_s=LIFETIME_S))
        return tokens[-1]

    with _producer_and_consumer(secured, namespace, supply) as (producer, consumer):
        is_set_up = True
        _gone(namespace, "t")
        with pytest.raises(pulsar.PulsarException):
            producer.send(b"late")
        with pytest.raises(pulsar.PulsarException):
            consumer.receive(500)


def test_who_comes_back_as_somebody_else_is_disconnected(
    secured: Secured, namespace: Namespace
) -> None:
    namespace.grant("alice", "produce", "consume")
    roles = ["alice"]

    def supply() -> str:
        return secured.material.token(roles[-1], expires_after_s=LIFETIME_S)

    with _producer_and_consumer(secured, namespace, supply):
        roles.append("mallory")  # authenticated, but without rights here
        _gone(namespace, "t")


def test_who_comes_back_with_more_rights_begins_anew(
    secured: Secured, namespace: Namespace
) -> None:
    """Another role isn't taken over a connection; the client connects again, and is served."""
    namespace.grant("alice", "produce", "consume")
    roles = ["alice"]

    def supply() -> str:
        return secured.material.token(roles[-1], expires_after_s=LIFETIME_S)

    with _producer_and_consumer(secured, namespace, supply) as (producer, consumer):
        before = _connections(namespace, "t")
        roles.append("admin")
        wait_until(lambda: set(_connections(namespace, "t")).isdisjoint(before))
        producer.send(b"second")
        assert consumer.receive(RECEIVE_MS).data() == b"second"


def test_a_token_without_end_is_never_asked_for_again(
    secured: Secured, namespace: Namespace
) -> None:
    supplied = 0

    def supply() -> str:
        nonlocal supplied
        supplied += 1
        return secured.material.token("admin")

    with _producer_and_consumer(secured, namespace, supply) as (producer, _):
        first = supplied
        until = time.monotonic() + 3  # more than two checks
        while time.monotonic() < until:
            producer.send(b"x")
        assert supplied == first
