"""Somebody with few rights, or none, who knows HTTP and this broker well: what was tried by hand.

Each test is something that worked once, or that works elsewhere.
"""

import gzip
import itertools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

import magnetar
from magnetar.embedding import EmbeddedBroker

SECRET = bytes(range(60, 92))
LIMIT_S = 30.0
SESSIONS_MAX = 6
MINE, THEIRS = "/topics/persistent/t2/ns/mine", "/topics/persistent/t1/ns/secret"
WORD = "top-secret-payload"
UPGRADE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": "Bearer " + jwt.encode({"sub": role}, SECRET, "HS256")}


def line(role: str) -> str:
    return f"Authorization: {bearer(role)['Authorization']}\r\n"


class Calls:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.port = int(broker.web_url.rsplit(":", 1)[1])
        self._client = httpx.Client(base_url=broker.web_url, timeout=LIMIT_S)

    def __call__(self, role: str, method: str, path: str, body: Any = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else None
        headers = bearer(role)
        if content is not None:
            headers["Content-Type"] = "application/json"
            return self._client.request(method, path, headers=headers, content=content)
        return self._client.request(method, path, headers=headers, json=body)

    def raw(self, data: bytes) -> bytes:
        """What comes back until the broker closes, which it has to, in good time."""
        answer = b""
        client = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        with client, suppress(ConnectionError):
            client.sendall(data)
            while part := client.recv(1 << 16):
                answer += part
        return answer

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    key: Path = tmp_path_factory.mktemp("attacks") / "secret.key"
    key.write_bytes(SECRET)
    key.chmod(0o600)
    with magnetar.embedded(
        authenticationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey=f"file://{key}",
        authorizationEnabled=True,
        superUserRoles="admin",
        restConsumerSessionsMax=SESSIONS_MAX,
    ) as broker:
        calls = Calls(broker)
        for tenant, role in (("t1", "joe"), ("t2", "eve")):
            info = {"adminRoles": [f"ten-{tenant}"], "allowedClusters": ["standalone"]}
            base = f"/admin/v2/namespaces/{tenant}/ns"
            assert calls("admin", "PUT", f"/admin/v2/tenants/{tenant}", info).status_code == 204
            assert calls("admin", "PUT", base).status_code == 204
            words = ["produce", "consume"]
            assert calls("admin", "POST", f"{base}/permissions/{role}", words).status_code == 204
        for path in (MINE, THEIRS):
            admin = path.replace("/topics", "/admin/v2")
            assert calls("admin", "PUT", admin).status_code == 204
        sent = {"messages": [{"payload": WORD}] * 3}
        assert calls("admin", "POST", THEIRS, sent).status_code == 200
        yield calls
        calls.close()


# --- the same place by another name

_PLACES = (
    ("GET", "/admin/v2/tenants"),
    ("GET", "/admin/v2/persistent/t1/ns/secret/stats"),
    ("GET", "/admin/v2/persistent/t1/ns/secret/examinemessage?initialPosition=earliest"),
    ("GET", f"{THEIRS}/subscription/s/messages?waitMs=0&position=earliest"),
    ("GET", "/lookup/v2/topic/persistent/t1/ns/secret"),
    ("DELETE", "/admin/v2/persistent/t1/ns/secret"),
)


def _spellings(place: str) -> Iterator[str]:
    path, separator, query = place.partition("?")
    end = separator + query
    yield place
    for behind in ("/", "//", "/.", ";x=y", "%00", "%20", "%0d%0a", "\\", "/%2e%2e", "#x"):
        yield path + behind + end
    for before in ("/docs/..", "/docs/%2e%2e", "/metrics/..", "/metrics;", "/ready", "/", "/."):
        yield before + path + end
    for old, new in (
        *(("/", "//"), ("/", "\\"), ("/ns/", "/ns%2f"), ("t1/", "t1%2f")),
        *(("t1", "%741"), ("t1", "%25741"), ("t1", "T1"), ("t1", "t1%e2%80%8b"), ("t1", "t2;t1")),
        *(("t1", "t2/ns/../../t1"), ("t1", "t2%2f..%2ft1"), ("secret", "%73ecret")),
        *(("secret", "mine%2f..%2fsecret"), ("admin", "%61dmin"), ("admin", "Admin")),
        *(("persistent", "Persistent"), ("persistent", "persistent%3a%2f%2ft2%2fns%2fmine")),
    ):
        yield path.replace(old, new) + end
    yield "http://x" + place
    yield "http://127.0.0.1/docs/" + place


@pytest.mark.parametrize(
    "role", ["", "eve", "ADMIN", " admin", "admin ", "admin,eve", "*", "ten-t2"]
)
def test_no_spelling_of_a_path_opens_it(call: Calls, role: str) -> None:
    credentials = line(role) if role else ""
    for (method, place), verb in itertools.product(_PLACES, ("", "HEAD", "OPTIONS", "PUT")):
        for spelling in _spellings(place) if role in ("", "eve", "ten-t2") else (place,):
            override = f"X-HTTP-Method-Override: {method}\r\nX-Original-Principal: admin\r\n"
            for more in ("", override) if not verb else ("",):
                head = f"{verb or method} {spelling} HTTP/1.1\r\nHost: x\r\n{credentials}{more}"
                answer = call.raw(f"{head}Connection: close\r\n\r\n".encode())
                assert 400 <= int(answer.split(b" ", 2)[1]) < 500, (head, answer)
                assert WORD.encode() not in answer


# --- requests that two readers understand differently


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\nabcde",
        "Content-Length: +5\r\n\r\nabcde",
        "Content-Length: 5, 5\r\n\r\nabcde",
        "Content-Length: -1\r\n\r\nabcde",
        "Transfer-Encoding: chunked\r\n\r\n2;a=\n1\r\nab\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\nab\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nab\r\n0\r\n\r\n",
        "X: a\r\n X-Y: b\r\n\r\n",
        "X: a\rX-Y: b\r\n\r\n",
        "X: a\nX-Y: b\r\n\r\n",
        "X: a\0b\r\n\r\n",
    ],
)
def test_a_second_request_cannot_be_hidden_in_a_first(call: Calls, framing: str) -> None:
    hidden = f"GET /admin/v2/tenants HTTP/1.1\r\nHost: x\r\n{line('admin')}\r\n"
    first = f"POST {MINE} HTTP/1.1\r\nHost: x\r\n{line('eve')}{framing}"
    answer = call.raw((first + hidden).encode())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("credentials", ["", line("eve")])
@pytest.mark.parametrize(
    "body",
    [
        "Content-Length: 5\r\n\r\nhello",
        "Content-Length: 500\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_an_upgrade_with_a_body_is_answered(call: Calls, body: str, credentials: str) -> None:
    """Nobody did, nor did anything end the wait: a socket for ever, without a login."""
    head = (
        f"GET /ws/v2/producer/persistent/t2/ns/mine HTTP/1.1\r\nHost: x\r\n{credentials}{UPGRADE}"
    )
    assert call.raw((head + body).encode()).startswith(b"HTTP/1.1 400 ")


def test_an_upgrade_may_say_that_it_has_no_body(call: Calls) -> None:
    head = f"GET /ws/v2/producer/persistent/t1/ns/secret HTTP/1.1\r\nHost: x\r\n{line('eve')}"
    answer = call.raw(f"{head}{UPGRADE}Content-Length: 0\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")


# --- what is not one's own


def test_messages_of_other_topics_by_their_ids(call: Calls) -> None:
    path = "/admin/v2/persistent/{}/internalStats"
    theirs = call("admin", "GET", path.format("t1/ns/secret")).json()["ledgers"][-1]["ledgerId"]
    assert call("eve", "POST", MINE, {"messages": [{"payload": "own"}]}).status_code == 200
    mine = call("eve", "GET", path.format("t2/ns/mine")).json()["ledgers"][-1]["ledgerId"]
    entry = "/admin/v2/persistent/t2/ns/mine/ledger/{}/entry/0"
    assert call("eve", "GET", entry.format(mine)).text == "own"
    assert call("eve", "GET", entry.format(theirs)).status_code == 404
    here = "/admin/v2/persistent/t2/ns/mine/subscription/there"
    there = {"ledgerId": theirs, "entryId": 0, "partitionIndex": -1}
    assert call("eve", "PUT", here, there).status_code == 204
    assert call("eve", "POST", f"{here}/resetcursor", there).status_code == 204
    found = call("eve", "GET", f"{MINE}/subscription/there/messages?waitMs=0")
    assert WORD not in found.text
    tokens = {"messageIds": [f"{theirs}:0:-1", f"{theirs}:1:-1"]}
    for word in ("ack", "nack"):
        call("eve", "POST", f"{MINE}/subscription/there/{word}", tokens)
    assert WORD not in call("eve", "GET", f"{MINE}/subscription/there/messages?waitMs=0").text
    assert call("eve", "DELETE", f"{MINE}/subscription/there/session").status_code == 204


def test_all_subscriptions_are_also_those_that_are_closed_to_a_role(call: Calls) -> None:
    """Who was kept out of one could still empty it, with all others."""
    namespace, topic = "/admin/v2/namespaces/t1/ns", "/admin/v2/persistent/t1/ns/secret"
    start = {"ledgerId": -1, "entryId": -1}
    closed = f"{topic}/subscription/closed"
    assert call("admin", "PUT", closed, start).status_code == 204
    roles = f"{namespace}/permissions/subscription/closed"
    assert call("admin", "POST", roles, ["billing"]).status_code == 204
    bundle = "0x00000000_0x40000000"
    for path, status in (
        (f"{namespace}/clearBacklog", 403),
        (f"{namespace}/{bundle}/clearBacklog", 403),
        (f"{namespace}/clearBacklog/closed", 403),
        (f"{topic}/all_subscription/expireMessages/1", 401),
        (f"{closed}/skip_all", 401),
        (f"{topic}/subscription/%63losed/skip_all", 401),
        (f"{topic}/subscription/%2563losed/skip_all", 401),
    ):
        assert call("joe", "POST", path).status_code == status, path
    backlog = call("admin", "GET", f"{topic}/stats").json()["subscriptions"]["closed"]["msgBacklog"]
    assert backlog == 3
    assert call("ten-t1", "POST", f"{namespace}/clearBacklog").status_code == 204  # may everything
    assert call("admin", "POST", roles, ["joe", "billing"]).status_code == 204
    assert call("joe", "POST", f"{namespace}/clearBacklog").status_code == 204


# --- much for little


def _answered_while(call: Calls, body: bytes) -> httpx.Response:
    began = time.monotonic()
    answer = call("eve", "POST", MINE, body)
    assert time.monotonic() - began < LIMIT_S
    return answer


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"[]"] * 3_000_000) + b"]",
        b'{"messages":[' + b",".join([b"{}"] * 3_000_000) + b"]}",
        b'{"messages":[' + b"0," * 8_000_000 + b"0]}",
    ],
    ids=["arrays", "objects", "numbers"],
)
def test_small_values_in_large_bodies(call: Calls, body: bytes) -> None:
    """They took twenty times their bytes, and the loop for as long as that took to read."""
    assert _answered_while(call, body).status_code == 413


def test_one_call_brings_a_bounded_number_of_messages(call: Calls) -> None:
    """A body of 8 MB, a message every 15 bytes, kept all others waiting for five seconds."""
    body = {"messages": [{"payload": ""}] * 10_001}
    answer = call("eve", "POST", MINE, body)
    assert (answer.status_code, answer.json()["reason"].split()[0]) == (413, "10001")
    subscription = "/admin/v2/persistent/t2/ns/mine/subscription/s"
    assert call("eve", "PUT", subscription).status_code == 204
    tokens = {"messageIds": ["0:0:-1"] * 10_001}
    for word in ("ack", "nack"):
        path = f"{MINE}/subscription/s/{word}"
        assert call("eve", "POST", path, tokens).status_code == 413


@pytest.mark.parametrize(
    "message",
    [
        {"payload": "x", "key": "k" * 6_000_000},
        {"payload": "x", "properties": {"p": "v" * 6_000_000}},
        {"payload": "x", "replicationClusters": ["c" * 6_000_000]},
        {"payload": "x" * 5_000_000, "key": "k" * 300_000},
    ],
    ids=["key", "properties", "clusters", "together"],
)
def test_metadata_counts_as_part_of_a_message(call: Calls, message: dict[str, Any]) -> None:
    """Entries of any size were stored, far above what clients are told to expect."""
    good = {"payload": "x"}
    answer = call("eve", "POST", MINE, {"messages": [good, message, good]})
    results = answer.json()["messagePublishResults"]
    assert [each["errorCode"] for each in results] == [0, 2, 0]
    assert "limit" in results[1]["errorMsg"]


def test_a_producers_name_is_bounded(call: Calls) -> None:
    body = {"producerName": "p" * 5_000, "messages": [{"payload": "x"}]}
    assert call("eve", "POST", MINE, body).status_code == 412


def test_nothing_is_unpacked(call: Calls) -> None:
    bomb = gzip.compress(bytes(30_000_000))
    head = (
        f"POST {MINE} HTTP/1.1\r\nHost: x\r\n{line('eve')}Content-Type: application/json\r\n"
        f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\nConnection: close\r\n\r\n"
    )
    assert call.raw(head.encode() + bomb).startswith(b"HTTP/1.1 4")


def test_one_role_cannot_take_all_sessions(call: Calls) -> None:
    path = "/topics/persistent/{}/subscription/s{}/session"
    opened = [call("eve", "PUT", path.format("t2/ns/mine", number)) for number in range(5)]
    assert [each.status_code for each in opened] == [200, 200, 200, 429, 429]
    assert call("joe", "PUT", path.format("t1/ns/secret", 0)).status_code == 200
    for number in range(3):  # what is closed is free again
        assert call("eve", "DELETE", path.format("t2/ns/mine", number)).status_code == 204
    assert call("eve", "PUT", path.format("t2/ns/mine", 9)).status_code == 200
    assert call("eve", "DELETE", path.format("t2/ns/mine", 9)).status_code == 204
    assert call("joe", "DELETE", path.format("t1/ns/secret", 0)).status_code == 204


def test_deep_json_is_refused(call: Calls) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        body = opening * 100_000 + b"1" + closing * 100_000
        assert _answered_while(call, body).status_code == 400
    nested = '{"type":"array","items":' * 5_000 + '"int"' + "}" * 5_000
    schema = json.dumps({"type": "AVRO", "schema": nested, "properties": {}}).encode()
    answer = call("eve", "POST", "/admin/v2/schemas/t2/ns/mine/schema", schema)
    assert answer.status_code == 422
