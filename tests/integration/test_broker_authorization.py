"""Who may do what, on a broker with tokens: HTTP, WebSockets, REST sessions.

The official client: ``tests/interop/test_auth_rights.py``.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import jwt
import pulsar
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import magnetar
from magnetar.embedding import EmbeddedBroker
from magnetar.host import Addresses
from tests.official_client import open_client
from tests.waiting import wait_until

SECRET = bytes(range(60, 92))
Server = EmbeddedBroker | Addresses
WAIT_S = 30.0
GRANTS = {"prod": ["produce"], "cons": ["consume"], "both": ["produce", "consume"]}


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


@pytest.fixture(scope="module")
def broker(
    external_server: tuple[str, str] | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    if external_server is not None:
        yield Addresses(*external_server)
        return
    key: Path = tmp_path_factory.mktemp("auth") / "secret.key"
    key.write_bytes(SECRET)
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey=f"file://{key}",
        authorizationEnabled=True,
        superUserRoles="admin",
        proxyRoles="proxy",
    ) as broker:
        yield broker


def http(broker: Server, role: str, **headers: str) -> httpx.Client:
    headers["Authorization"] = f"Bearer {token(role)}"
    return httpx.Client(base_url=broker.web_url, headers=headers, timeout=WAIT_S)


def admin(broker: Server, method: str, path: str, body: Any = None) -> httpx.Response:
    with http(broker, "admin") as client:
        answer = client.request(method, f"/admin/v2{path}", json=body)
    assert answer.status_code < 300, (path, answer.text)
    return answer


@pytest.fixture
def namespace(broker: Server, request: pytest.FixtureRequest) -> str:
    """A fresh one with the usual grants, in a tenant whose admin is ``ten``."""
    tenant = "".join(each for each in request.node.name if each.isalnum())[:40]
    info = {"adminRoles": ["ten"], "allowedClusters": ["standalone"]}
    admin(broker, "PUT", f"/tenants/{tenant}", info)
    admin(broker, "PUT", f"/namespaces/{tenant}/ns")
    for role, actions in GRANTS.items():
        admin(broker, "POST", f"/namespaces/{tenant}/ns/permissions/{role}", actions)
    return f"{tenant}/ns"


@contextmanager
def client_of(broker: Server, role: str) -> Iterator[pulsar.Client]:
    client = open_client(
        broker.service_url,
        authentication=pulsar.AuthenticationToken(token(role)),
        operation_timeout_seconds=60,
    )
    yield client
    client.close()


# --- WebSockets


@pytest.fixture
def end() -> Iterator[ExitStack]:
    """What is left open is closed behind the test."""
    with ExitStack() as stack:
        yield stack


def socket_of(end: ExitStack, broker: Server, role: str, path: str) -> ClientConnection:
    url = broker.web_url.replace("http", "ws", 1) + "/ws/v2" + path
    headers = {"Authorization": f"Bearer {token(role)}"}
    return end.enter_context(connect(url, additional_headers=headers, open_timeout=WAIT_S))


def close_code(socket: ClientConnection) -> int | None:
    """Reads until the end."""
    with suppress(ConnectionClosed):
        while True:
            socket.recv(timeout=WAIT_S)
    return socket.protocol.close_code


def test_sockets_open_with_the_right_and_end_with_it(
    broker: Server, namespace: str, end: ExitStack
) -> None:
    base = f"persistent/{namespace}/t"
    for role, path in (
        ("cons", f"/producer/{base}"),
        ("prod", f"/consumer/{base}/s"),
        ("prod", f"/reader/{base}"),
        ("nobody", f"/reader/{base}"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            socket_of(end, broker, role, path)
        assert refused.value.response.status_code == 403
    producer = socket_of(end, broker, "prod", f"/producer/{base}")
    consumer = socket_of(end, broker, "cons", f"/consumer/{base}/s")
    reader = socket_of(end, broker, "cons", f"/reader/{base}")
    kept = socket_of(end, broker, "both", f"/consumer/{base}/kept")
    producer.send(json.dumps({"payload": "eA=="}))
    for socket in (consumer, reader, kept):
        assert json.loads(socket.recv(timeout=WAIT_S))["payload"] == "eA=="
    admin(broker, "DELETE", f"/namespaces/{namespace}/permissions/prod")
    admin(broker, "DELETE", f"/namespaces/{namespace}/permissions/cons")
    assert [close_code(each) for each in (producer, consumer, reader)] == [4006] * 3
    other = socket_of(end, broker, "both", f"/producer/{base}")
    other.send(json.dumps({"payload": "eQ=="}))
    assert json.loads(kept.recv(timeout=WAIT_S))["payload"] == "eQ=="
    kept.close()
    other.close()


def test_dead_letters_need_the_right_to_publish_them(
    broker: Server, namespace: str, end: ExitStack
) -> None:
    path = f"/consumer/persistent/{namespace}/t/s?maxRedeliverCount=1"
    for role, query in (
        ("cons", ""),
        ("cons", "&deadLetterTopic=persistent://public/default/x"),
        ("both", "&deadLetterTopic=persistent://public/default/x"),
    ):
        with pytest.raises(InvalidStatus) as refused:
            socket_of(end, broker, role, path + query)
        assert refused.value.response.status_code == 403
    socket_of(end, broker, "both", path).close()
    admin(broker, "POST", f"/persistent/{namespace}/t/permissions/cons", ["consume"])
    with client_of(broker, "both") as client:
        client.create_producer(f"persistent://{namespace}/t-s-DLQ").close()
    admin(broker, "POST", f"/persistent/{namespace}/t-s-DLQ/permissions/cons", ["produce"])
    socket_of(end, broker, "cons", path).close()


# --- REST


def test_rest_calls_and_open_streams(broker: Server, namespace: str) -> None:
    topic = f"/topics/persistent/{namespace}/t"
    body = {"messages": [{"payload": "hello"}]}
    with http(broker, "cons") as cons, http(broker, "prod") as prod:
        assert cons.post(topic, json=body).status_code == 401
        assert prod.post(topic, json=body).status_code == 200
        assert prod.get(f"{topic}/subscription/s/messages?waitMs=0").status_code == 401
        ended: list[Any] = []
        started = threading.Event()

        def stream() -> None:
            url = f"{topic}/subscription/s/stream?position=earliest&autoAck=true"
            with http(broker, "cons") as client, client.stream("GET", url) as answer:
                ended.append(answer.status_code)
                started.set()
                for _ in answer.iter_lines():
                    pass
            ended.append("over")

        def poll() -> None:
            url = f"{topic}/subscription/other/messages?waitMs=60000"
            with http(broker, "cons") as client:
                ended.append(client.get(url).status_code)

        threads = [threading.Thread(target=stream), threading.Thread(target=poll)]
        for thread in threads:
            thread.start()
        assert started.wait(WAIT_S)

        def subscriptions() -> set[str]:
            stats = admin(broker, "GET", f"/persistent/{namespace}/t/stats").json()
            return {name for name, each in stats["subscriptions"].items() if each["consumers"]}

        wait_until(lambda: subscriptions() == {"s", "other"})
        admin(broker, "DELETE", f"/namespaces/{namespace}/permissions/cons")
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert sorted(map(str, ended)) == ["200", "410", "over"]
        assert subscriptions() == set()
        assert cons.get(f"{topic}/subscription/s/messages?waitMs=0").status_code == 401


# --- administration


def test_a_tenants_admin_rules_the_tenant_and_nothing_else(broker: Server, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    with http(broker, "ten") as client:
        for method, path, status in (
            ("GET", f"/tenants/{tenant}", 200),
            ("GET", f"/namespaces/{tenant}", 200),
            ("PUT", f"/namespaces/{tenant}/more", 204),
            ("PUT", f"/persistent/{namespace}/made", 204),
            ("POST", f"/namespaces/{namespace}/retention", 204),
            ("GET", "/tenants", 401),
            ("PUT", "/tenants/other", 401),
            ("GET", "/namespaces/public/default", 403),
            ("PUT", "/namespaces/public/more", 401),
            ("GET", "/brokers/configuration/runtime", 401),
            ("PUT", f"/namespaces/{namespace}/unload", 401),
        ):
            body = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}
            answer = client.request(
                method, f"/admin/v2{path}", json=body if path.endswith("retention") else None
            )
            assert answer.status_code == status, (path, answer.text)


def test_secrets_are_not_shown(broker: Server) -> None:
    for path in ("/brokers/configuration/runtime", "/brokers/internal-configuration"):
        text = admin(broker, "GET", path).text
        assert "secret.key" not in text
        assert token("admin") not in text


def test_the_metrics_page_counts_refusals(broker: Server, namespace: str) -> None:
    def refused() -> float:
        with http(broker, "admin") as client:
            text = client.get("/metrics").text
        lines = [each for each in text.splitlines() if each.startswith("pulsar_authorization_")]
        return sum(float(each.rsplit(" ", 1)[1]) for each in lines)

    before = refused()
    with http(broker, "nobody") as client:
        assert client.get(f"/admin/v2/namespaces/{namespace}").status_code == 403
    assert refused() == before + 1


def test_who_asks(broker: Server, namespace: str) -> None:
    def whoami(**claims: Any) -> Any:
        credentials = jwt.encode(claims, SECRET, "HS256")
        headers = {"Authorization": f"Bearer {credentials}"}
        query = {"namespace": namespace}
        url = f"{broker.web_url}/admin/v2/whoami"
        return httpx.get(url, params=query, headers=headers, timeout=WAIT_S).json()

    until_s = int(time.time()) + 1000
    answer = whoami(sub="cons", exp=until_s)
    assert (answer["role"], answer["method"]) == ("cons", "token")
    assert answer["expiresAt"] == until_s * 1000
    assert "consume" in answer["rights"][namespace]["permissions"]
    assert whoami(sub="ten")["adminOf"] == _tenants(broker)
    assert httpx.get(f"{broker.web_url}/admin/v2/whoami").status_code == 401


def _tenants(broker: Server) -> list[str]:
    """Of all tests here, each with the admin ``ten``."""
    names = admin(broker, "GET", "/tenants").json()
    return [name for name in names if name.startswith("test")]
