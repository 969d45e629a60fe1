"""The layer in front of all routes that says who asks."""

import base64
import json
from typing import Any

import pytest

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.authenticator import Authenticator
from magnetar.broker.auth.provider_chain import ProviderChain
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.http.middleware.authentication import (
    AuthenticationMiddleware,
    RequestAuthentication,
)


class _Fixed:
    """Accepts ``good`` of one method; certificates are their own text."""

    is_slow = False

    def __init__(self, method: str) -> None:
        self.method = method

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        if self.method == "tls":
            assert certificate is not None
            return Principal(certificate.decode())
        if data not in (b"good", b"proxy"):
            raise AuthenticationError("no")
        return Principal(f"{data.decode()}-{self.method}")


async def ask(
    methods: str = "token,basic,tls",
    *,
    path: bytes = b"/admin/v2/clusters",
    verb: str = "GET",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    certificate: bytes | None = None,
    query: bytes = b"",
    anonymous: str = "",
    metrics_too: bool = False,
    kind: str = "http",
    is_foreign: bool = False,
) -> tuple[Any, list[dict[str, Any]]]:
    """(what the application saw as state, None when it wasn't asked; what was sent)."""
    seen: list[Any] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append({key: scope["state"].get(key) for key in ("role", "original_role")})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads")

    chain = ProviderChain(
        [_Fixed(each) for each in methods.split(",")], anonymous, frozenset({"proxy-token"})
    )
    layer = AuthenticationMiddleware(app, RequestAuthentication(Authenticator(chain), metrics_too))
    pairs = headers.items() if isinstance(headers, dict) else headers or []
    state: dict[str, Any] = {} if certificate is None else {"client_certificate": certificate}
    if is_foreign:
        state["is_foreign"] = True
    scope = {
        "type": kind,
        "method": verb,
        "path": path.decode(),
        "raw_path": path,
        "query_string": query,
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs],
        "state": state,
        "client": ("10.0.0.1", 5),
    }
    await layer(scope, receive, send)
    return (seen[0] if seen else None), sent


def _basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ({"headers": {"Authorization": "Bearer good"}}, "good-token"),
        ({"headers": {"Authorization": "BEARER  good "}}, "good-token"),
        ({"headers": {"Authorization": _basic("good")}}, "good-basic"),
        ({"certificate": b"alice"}, "alice"),
        ({"certificate": b"alice", "headers": {"Authorization": "Bearer good"}}, "good-token"),
        (
            {
                "certificate": b"alice",
                "headers": {
                    "Authorization": "Bearer good",
                    "X-Pulsar-Auth-Method-Name": "tls",
                },
            },
            "alice",
        ),
        ({"kind": "websocket", "query": b"a=b&token=good"}, "good-token"),
        ({"methods": "tls,token", "certificate": b"bob"}, "bob"),
        ({"anonymous": "nobody"}, "nobody"),
    ],
)
async def test_who_asks(given: dict[str, Any], role: str) -> None:
    state, sent = await ask(**given)
    assert state == {"role": role, "original_role": None}
    assert sent == []


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"query": b"token=good"},  # in the address of a plain call
        {"kind": "websocket"},
        {"kind": "websocket", "query": b"token=bad"},
        {"headers": {"Authorization": "Bearer bad"}, "certificate": b"alice"},
        {"headers": {"Authorization": "Bearer bad"}, "anonymous": "nobody"},
        {"headers": {"Authorization": "Basic no base64"}},
        {"headers": {"Authorization": "Negotiate x"}, "anonymous": "nobody"},
        {"headers": {"X-Pulsar-Auth-Method-Name": "token"}, "certificate": b"alice"},
        {"headers": {"X-Pulsar-Auth-Method-Name": "none"}, "anonymous": "nobody"},
        {"headers": [("Authorization", "Bearer bad"), ("Authorization", "Bearer good")]},
        {"headers": {"Authorization": "Bearer good", "X-Original-Principal": "bob"}},
        {"headers": {"Authorization": "Bearer proxy"}},
        {"headers": {"Authorization": "Bearer proxy", "X-Original-Principal": "proxy-token"}},
    ],
)
async def test_who_does_not_get_in(given: dict[str, Any]) -> None:
    state, sent = await ask(**given)
    assert state is None
    assert sent[0]["status"] == 401
    challenges = [value for name, value in sent[0]["headers"] if name == b"www-authenticate"]
    assert challenges == [b'Bearer realm="magnetar"', b'Basic realm="magnetar"']
    reason = json.loads(sent[1]["body"])["reason"]
    assert "good" not in reason
    assert "bad" not in reason


async def test_a_proxy_speaks_for_somebody() -> None:
    headers = {"Authorization": "Bearer proxy", "X-Original-Principal": "bob"}
    state, _ = await ask(headers=headers)
    assert state == {"role": "proxy-token", "original_role": "bob"}


@pytest.mark.parametrize(
    ("path", "verb", "is_open"),
    [
        (b"/status.html", "GET", True),
        (b"/ready", "HEAD", True),
        (b"/metrics", "GET", True),
        (b"/metrics/", "GET", True),
        (b"/docs/assets/x.js", "GET", True),
        (b"/", "GET", True),
        (b"/metrics", "POST", False),
        (b"/docs", "DELETE", False),
        (b"/%6detrics", "GET", False),
        (b"/docsx", "GET", False),
        (b"/admin/v2/brokers/health", "GET", False),
        (b"/admin/v2/brokers/ready", "GET", False),
        (b"/metrics/../admin/v2/tenants", "GET", False),
        (b"/admin/v2/tenants?/docs/", "GET", False),
        (b"//docs/x", "GET", False),
    ],
)
async def test_what_is_open_to_all(path: bytes, verb: str, is_open: bool) -> None:
    state, _ = await ask(path=path, verb=verb)
    assert (state is not None) == is_open


async def test_metrics_can_be_closed() -> None:
    assert (await ask(path=b"/metrics", metrics_too=True))[0] is None
    assert (await ask(path=b"/status.html", metrics_too=True))[0] is not None


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_where_every_site_may_ask_its_pages_can_not_use_what_a_browser_shows_by_itself(
    kind: str,
) -> None:
    for headers, certificate in (({}, b"alice"), ({"Authorization": _basic("good")}, None)):
        state, sent = await ask(
            headers=headers, certificate=certificate, kind=kind, is_foreign=True
        )
        assert state is None
        assert sent[0]["status"] == 403
    on_purpose = {"Authorization": "Bearer good"}
    state, _ = await ask(headers=on_purpose, certificate=b"alice", kind=kind, is_foreign=True)
    assert state == {"role": "good-token", "original_role": None}
