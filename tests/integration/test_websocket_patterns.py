"""``/ws/v3/consumer/{subscription}?topicsPattern=``: topics by pattern, also those to come."""

import base64
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import magnetar
from magnetar.embedding import EmbeddedBroker
from tests.waiting import wait_until

WAIT_S = 30.0
SECRET = bytes(range(60, 92))


class Server:
    """One broker over HTTP, by one role or by nobody."""

    def __init__(self, web_url: str, namespace: str = "", role: str = "") -> None:
        self.namespace = namespace
        self._web_url = web_url
        self._headers = {}
        if role:
            token = jwt.encode({"sub": role}, SECRET, "HS256")
            self._headers["Authorization"] = f"Bearer {token}"

    def as_role(self, role: str) -> "Server":
        return Server(self._web_url, self.namespace, role)

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(
            method,
            f"{self._web_url}/admin/v2/{path}",
            json=body,
            headers=self._headers,
            timeout=WAIT_S,
        )
        assert answer.status_code < 300, (path, answer.text)
        return answer.json() if answer.content else None

    def open(self, path: str) -> ClientConnection:
        url = f"{self._web_url.replace('http', 'ws')}/ws/{path}"
        return connect(url, compression=None, open_timeout=WAIT_S, additional_headers=self._headers)

    def consumer(self, expression: str, subscription: str = "s", **query: str) -> ClientConnection:
        pattern = f"persistent://{self.namespace}/{expression}"
        params = httpx.QueryParams(
            {"topicsPattern": pattern, "subscriptionType": "Shared", **query}
        )
        return self.open(f"v3/consumer/{subscription}?{params}")

    def create(self, topic: str) -> None:
        self.admin("PUT", f"persistent/{self.namespace}/{topic}")

    def delete(self, topic: str) -> None:
        self.admin("DELETE", f"persistent/{self.namespace}/{topic}?force=true")

    def send(self, topic: str, *contents: str) -> None:
        with self.open(f"v2/producer/persistent/{self.namespace}/{topic}") as producer:
            for content in contents:
                producer.send(json.dumps({"payload": base64.b64encode(content.encode()).decode()}))
                assert json.loads(producer.recv(WAIT_S))["result"] == "ok"

    def backlog(self, topic: str, subscription: str = "s") -> int:
        stats = self.admin("GET", f"persistent/{self.namespace}/{topic}/stats")
        return int(stats["subscriptions"][subscription]["msgBacklog"])


@pytest.fixture
def server(admin_url: str) -> Iterator[Server]:
    server = Server(admin_url, f"public/pattern-{secrets.token_hex(5)}")
    server.admin("PUT", f"namespaces/{server.namespace}")
    yield server
    with httpx.Client(base_url=f"{admin_url}/admin/v2", timeout=WAIT_S) as http:
        http.delete(f"/namespaces/{server.namespace}?force=true")


def receive(consumer: ClientConnection, *, acknowledge: bool = True) -> str:
    message = json.loads(consumer.recv(WAIT_S))
    if acknowledge:
        consumer.send(json.dumps({"messageId": message["messageId"]}))
    return base64.b64decode(message["payload"]).decode()


def test_topics_that_are_there_and_topics_to_come(server: Server) -> None:
    server.create("a-old")
    server.create("b-old")
    server.admin("PUT", f"persistent/{server.namespace}/a-parts/partitions", 3)
    with server.consumer("a-.*", negativeAckRedeliveryDelay="0") as consumer:
        server.send("b-old", "never")
        server.send("a-old", "old")
        server.send("a-parts", "part")
        assert sorted(receive(consumer) for _ in range(2)) == ["old", "part"]
        # Sent before anybody can have seen the topic: nothing of it may be missed.
        server.send("a-new", "new 1", "new 2")
        server.send("b-new", "never")
        first = json.loads(consumer.recv(WAIT_S))
        consumer.send(json.dumps({"type": "negativeAcknowledge", "messageId": first["messageId"]}))
        assert sorted(receive(consumer) for _ in range(2)) == ["new 1", "new 2"]
        consumer.send(json.dumps({"type": "isEndOfTopic"}))
        assert json.loads(consumer.recv(WAIT_S)) == {"endOfTopic": False}
        wait_until(lambda: server.backlog("a-old") == server.backlog("a-new") == 0)
    stats = server.admin("GET", f"persistent/{server.namespace}/b-new/stats")
    assert stats["subscriptions"] == {}


def test_messages_tell_their_topics(
    server: Server, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's messages don't")
    server.create("a")
    with server.consumer(".*") as consumer:
        for topic in ("a", "b"):
            server.send(topic, "x")
            message = json.loads(consumer.recv(WAIT_S))
            assert message["topic"] == f"persistent://{server.namespace}/{topic}"


def test_a_topic_that_goes_and_comes_back(
    server: Server, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's session doesn't take it up again")
    server.create("stays")
    server.create("goes")
    with server.consumer(".*") as consumer:
        server.send("goes", "before")
        message = json.loads(consumer.recv(WAIT_S))
        server.delete("goes")
        # Its acknowledgement comes too late, and harms nobody.
        consumer.send(json.dumps({"messageId": message["messageId"]}))
        consumer.send(
            json.dumps({"type": "negativeAcknowledge", "messageId": message["messageId"]})
        )
        server.send("stays", "meanwhile")
        assert receive(consumer) == "meanwhile"
        server.create("goes")
        server.send("goes", "after")
        assert receive(consumer) == "after"


def test_a_topic_that_is_unloaded(server: Server) -> None:
    server.create("a")
    with server.consumer(".*") as consumer:
        server.send("a", "1", "2")
        assert receive(consumer) == "1"
        wait_until(lambda: server.backlog("a") == 1)
        server.admin("PUT", f"persistent/{server.namespace}/a/unload")
        server.send("a", "3")
        # What was on its way may come twice, nothing may be missing.
        seen = {receive(consumer)}
        while "3" not in seen:
            seen.add(receive(consumer))
        assert seen == {"2", "3"}
        wait_until(lambda: server.backlog("a") == 0)


def test_the_window_holds_for_all_topics_together(server: Server) -> None:
    for topic in ("a", "b", "c"):
        server.create(topic)
    with server.consumer(".*", receiverQueueSize="2") as consumer:
        for topic in ("a", "b", "c"):
            server.send(topic, "1", "2")
        for _ in range(2):
            receive(consumer, acknowledge=False)
        with pytest.raises(TimeoutError):
            consumer.recv(0.3)


def test_unsubscribing(server: Server) -> None:
    server.create("a")
    with server.consumer(".*") as consumer:
        consumer.send(json.dumps({"type": "unsubscribe"}))
        stats = f"persistent/{server.namespace}/a/stats"
        wait_until(lambda: server.admin("GET", stats)["subscriptions"] == {})


def test_dead_letters_do_not_come_round_again(
    server: Server, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's session finds its own dead letters")
    server.create("a")
    query = {"maxRedeliverCount": "1", "negativeAckRedeliveryDelay": "0"}
    with server.consumer(".*", **query) as consumer:
        server.send("a", "poison")
        for _ in range(2):
            message = json.loads(consumer.recv(WAIT_S))
            nack = {"type": "negativeAcknowledge", "messageId": message["messageId"]}
            consumer.send(json.dumps(nack))
        wait_until(lambda: server.backlog("a") == 0)
        server.send("a", "good")
        assert receive(consumer) == "good"
        stats = server.admin("GET", f"persistent/{server.namespace}/a-s-DLQ/stats")
        assert stats["subscriptions"] == {}


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "persistent://public/default/(",
        "persistent://public/default/(?=a)b",  # RE2 has no look-ahead
        "non-persistent://public/default/.*",
        "file://public/default/.*",
        "pub.*/default/a",
        "public/default/" + "a" * 2000,
        "a&topics=b",
    ],
)
def test_patterns_that_are_none(
    server: Server, pattern: str, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar answers 500 to most of these")
    query = pattern.replace("(", "%28").replace("?", "%3F")
    with (
        pytest.raises(InvalidStatus) as refused,
        server.open(f"v3/consumer/s?topicsPattern={query}"),
    ):
        pass
    assert refused.value.response.status_code == 400
    assert b"reason" in refused.value.response.body


def test_a_namespace_that_comes_later(
    admin_url: str, external_server: tuple[str, str] | None
) -> None:
    if external_server is not None:
        pytest.skip("Pulsar's session never sees it")
    server = Server(admin_url, f"public/pattern-{secrets.token_hex(5)}")
    with server.consumer(".*") as consumer:
        server.admin("PUT", f"namespaces/{server.namespace}")
        server.send("a", "x")
        assert receive(consumer) == "x"
    server.delete("a")
    server.admin("DELETE", f"namespaces/{server.namespace}")


# --- who may


@contextmanager
def _guarded(folder: Path) -> Iterator[EmbeddedBroker]:
    (folder / "secret.key").write_bytes(SECRET)
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey=f"file://{folder / 'secret.key'}",
        authorizationEnabled=True,
        superUserRoles="admin",
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with _guarded(tmp_path_factory.mktemp("auth")) as broker:
        yield Server(broker.web_url, "public/guarded", "admin")


@pytest.fixture
def admin(guarded: Server) -> Server:
    """In a namespace of its own; ``half`` may consume its topic ``a`` only, ``all`` everything."""
    admin = guarded.as_role("admin")
    admin.namespace = f"public/guarded-{secrets.token_hex(4)}"
    admin.admin("PUT", f"namespaces/{admin.namespace}")
    admin.admin("POST", f"namespaces/{admin.namespace}/permissions/all", ["consume"])
    for topic in ("a", "b"):
        admin.create(topic)
    admin.admin("POST", f"persistent/{admin.namespace}/a/permissions/half", ["consume"])
    return admin


def refusal(server: Server, expression: str, **query: str) -> int:
    with pytest.raises(InvalidStatus) as refused, server.consumer(expression, **query):
        pass
    return int(refused.value.response.status_code)


def test_each_topic_is_asked_about(admin: Server) -> None:
    with admin.as_role("all").consumer(".*") as consumer:
        admin.send("b", "x")
        assert receive(consumer) == "x"
    assert refusal(admin.as_role("half"), ".*") == 403
    assert refusal(admin.as_role("nobody"), "no-topic") == 403
    # Dead letters are published in the consumer's name.
    assert refusal(admin.as_role("all"), "a", maxRedeliverCount="1") == 403


def test_a_topic_to_come_that_is_not_for_this_role(admin: Server) -> None:
    # It may see all names, as it produces, and consume one topic.
    admin.admin("POST", f"namespaces/{admin.namespace}/permissions/half", ["produce"])
    half = admin.as_role("half")
    with half.consumer("a.*") as consumer:
        admin.send("a-forbidden", "not for half")
        admin.send("a", "mine")
        assert receive(consumer) == "mine"
        stats = admin.admin("GET", f"persistent/{admin.namespace}/a-forbidden/stats")
        assert stats["subscriptions"] == {}
        admin.delete("a-forbidden")
        admin.send("a", "more")
        assert receive(consumer) == "more"
    assert refusal(half, ".*") == 403  # b


def test_a_right_that_is_taken_away(admin: Server) -> None:
    with admin.as_role("all").consumer(".*") as consumer:
        admin.send("new", "x")
        assert receive(consumer) == "x"
        admin.admin("DELETE", f"namespaces/{admin.namespace}/permissions/all")
        with pytest.raises(ConnectionClosed):
            consumer.recv(WAIT_S)
        assert consumer.close_code == 4006
