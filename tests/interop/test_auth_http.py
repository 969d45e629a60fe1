"""The same credentials over HTTP and WebSocket."""

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.interop.secured import WAIT_S, Namespace, Secured
from tests.web_socket import open_web_socket


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _access_token(secured: Secured) -> str:
    """As a program without our client gets one."""
    if not secured.material.has_openid:
        pytest.skip("the server has no OpenID provider")
    form = {
        "grant_type": "client_credentials",
        "client_id": "alice",
        "client_secret": "alice-password",
        "audience": "us",
    }
    answer = httpx.post(f"{secured.issuer.url}/token", data=form, timeout=WAIT_S)
    return str(answer.json()["access_token"])


HEADERS: dict[str, Callable[[Secured], dict[str, str]]] = {
    "token": lambda secured: {"Authorization": f"Bearer {secured.material.token('alice')}"},
    "password": lambda _: {"Authorization": _basic("alice", "alice-password")},
    "OAuth2": lambda secured: {"Authorization": f"Bearer {_access_token(secured)}"},
    "token and method": lambda secured: {
        "Authorization": f"Bearer {secured.material.token('alice')}",
        "X-Pulsar-Auth-Method-Name": "token",
    },
}
BODY = {"messages": [{"payload": "hello"}]}


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
def test_administration_and_rest(
    secured: Secured,
    namespace: Namespace,
    headers: Callable[[Secured], dict[str, str]],
    tls: bool,
) -> None:
    url, verify = (secured.admin_url_tls, secured.context()) if tls else (secured.admin_url, True)
    with httpx.Client(
        base_url=url, headers=headers(secured), verify=verify, timeout=WAIT_S
    ) as http:
        _works_as_alice(http, namespace)


def test_a_certificate(secured: Secured, namespace: Namespace) -> None:
    context = secured.context(secured.material.pair("alice"))
    with httpx.Client(base_url=secured.admin_url_tls, verify=context, timeout=WAIT_S) as http:
        _works_as_alice(http, namespace)


def _works_as_alice(http: httpx.Client, namespace: Namespace) -> None:
    topics = f"/admin/v2/persistent/{namespace.name}"
    stats, produce = f"{topics}/t/stats", f"/topics/persistent/{namespace.name}/t"
    namespace.secured.admin("PUT", f"/persistent/{namespace.name}/t")
    for method, path, body in (
        ("GET", topics, None),
        ("GET", stats, None),
        ("POST", produce, BODY),
    ):
        assert http.request(method, path, json=body).status_code in (401, 403), path
    namespace.grant("alice", "produce", "consume")
    assert http.get(topics).json() == [namespace.topic("t")]
    assert http.post(produce, json=BODY).status_code == 200
    assert http.get(stats).status_code == 200
    lookup = http.get(f"/lookup/v2/topic/persistent/{namespace.name}/t")
    assert lookup.json()["brokerUrl"] == namespace.secured.service_url
    assert lookup.json()["brokerUrlTls"] == namespace.secured.service_url_tls
    assert http.delete(f"{topics}/t?force=true").status_code in (401, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic nonsense"},
        {"Authorization": _basic("alice", "wrong")},
        {"Authorization": _basic("", "")},
        {"Authorization": "Digest x"},
        {"X-Pulsar-Auth-Method-Name": "token"},
        {"X-Original-Principal": "admin"},
    ],
    ids=str,
)
def test_wrong_credentials(secured: Secured, headers: dict[str, str]) -> None:
    with secured.http(None, **headers) as http:
        assert http.get("/admin/v2/clusters").status_code == 401
        assert http.get("/lookup/v2/topic/persistent/public/default/x").status_code == 401
        assert http.post("/topics/persistent/public/default/x", json=BODY).status_code == 401


def test_the_method_header_chooses_among_credentials(secured: Secured) -> None:
    token = secured.material.token("alice")
    for method, status in (("token", 200), ("basic", 401), ("nonsense", 401)):
        with secured.http(token, **{"X-Pulsar-Auth-Method-Name": method}) as http:
            assert http.get("/admin/v2/clusters").status_code == status, method


@pytest.mark.parametrize(
    ("role", "original", "status"),
    [
        ("proxy", "admin", 401),  # both need the right, and the proxy has none
        ("proxy", None, 401),
        ("proxy", "proxy", 401),
        ("alice", "admin", 401),
        ("admin", "alice", 401),
        ("admin", "admin", 200),
        ("admin", None, 200),
    ],
)
def test_original_principals(
    secured: Secured, role: str, original: str | None, status: int
) -> None:
    named = {} if original is None else {"X-Original-Principal": original}
    with secured.http(secured.material.token(role), **named) as http:
        assert http.get("/admin/v2/tenants").status_code == status


def test_roles_without_rights_may_not_administrate(secured: Secured, namespace: Namespace) -> None:
    """A word of each kind; scripts/compare_access.py asks all routes."""
    tenant = namespace.name.partition("/")[0]
    namespace.grant("both", "produce", "consume")
    seen = {
        role: [
            secured.ask(method, path, role=role).status_code
            for method, path in (
                ("GET", "/tenants"),
                ("GET", f"/tenants/{tenant}"),
                ("GET", f"/namespaces/{tenant}"),
                ("GET", f"/namespaces/{namespace.name}"),
                ("GET", f"/persistent/{namespace.name}"),
                ("PUT", f"/persistent/{namespace.name}/made-by-{role}"),
                ("GET", "/brokers/configuration"),
            )
        ]
        for role in ("ten", "both", "nobody")
    }
    assert seen == {
        "ten": [401, 200, 200, 200, 200, 204, 401],
        "both": [401, 401, 401, 403, 200, 403, 401],
        "nobody": [401, 401, 401, 403, 403, 403, 401],
    }


# --- WebSocket


def _socket(
    secured: Secured, path: str, *, tls: bool = False, query: str = "", **options: Any
) -> Any:
    base = secured.admin_url_tls if tls else secured.admin_url
    if tls:
        options.setdefault("ssl", secured.context())
    url = base.replace("http", "ws", 1) + "/ws/v2" + path + query
    return open_web_socket(url, open_timeout=WAIT_S, **options)


def _exchange(secured: Secured, namespace: Namespace, **options: Any) -> None:
    topic = f"persistent/{namespace.name}/t"
    with (
        _socket(secured, f"/consumer/{topic}/s", **options) as consumer,
        _socket(secured, f"/producer/{topic}", **options) as producer,
    ):
        producer.send(json.dumps({"payload": "eA=="}))
        assert json.loads(producer.recv(WAIT_S))["result"] == "ok"
        message = json.loads(consumer.recv(WAIT_S))
        assert message["payload"] == "eA=="
        consumer.send(json.dumps({"messageId": message["messageId"]}))


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
def test_sockets_by_header(
    secured: Secured,
    namespace: Namespace,
    headers: Callable[[Secured], dict[str, str]],
    tls: bool,
) -> None:
    namespace.grant("alice", "produce", "consume")
    _exchange(secured, namespace, tls=tls, additional_headers=headers(secured))


def test_sockets_by_token_in_the_address(secured: Secured, namespace: Namespace) -> None:
    namespace.grant("alice", "produce", "consume")
    for tls in (False, True):
        _exchange(secured, namespace, tls=tls, query=f"?token={secured.material.token('alice')}")


def test_sockets_by_certificate(secured: Secured, namespace: Namespace) -> None:
    namespace.grant("alice", "produce", "consume")
    context = secured.context(secured.material.pair("alice"))
    _exchange(secured, namespace, tls=True, ssl=context)


def _refusal(secured: Secured, path: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as refused, _socket(secured, path, **options):
        pass
    return refused.value.response.status_code


def test_sockets_are_refused_without_credentials_or_rights(
    secured: Secured, namespace: Namespace
) -> None:
    namespace.grant("prod", "produce")
    namespace.grant("cons", "consume")
    secured.admin("PUT", f"/persistent/{namespace.name}/t")
    topic = f"persistent/{namespace.name}/t"
    paths = {
        "producer": f"/producer/{topic}",
        "consumer": f"/consumer/{topic}/s",
        "reader": f"/reader/{topic}",
    }
    for path in paths.values():
        assert _refusal(secured, path) == 401
        assert _refusal(secured, path, query="?token=nonsense") == 401
        assert _refusal(secured, path, additional_headers={"Authorization": "Bearer x"}) == 401
    for role, allowed in (
        ("prod", {"producer"}),
        ("cons", {"consumer", "reader"}),
        ("nobody", set[str]()),
        ("ten", set(paths)),
    ):
        for kind, path in paths.items():
            query = f"?token={secured.material.token(role)}"
            if kind in allowed:
                with _socket(secured, path, query=query):
                    pass
            else:
                assert _refusal(secured, path, query=query) in (401, 403), (role, kind)
