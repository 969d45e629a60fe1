"""How the HTTP port treats clients that are slow, greedy, or no HTTP clients at all."""

import gzip
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

SETTINGS = {
    "httpRequestHeaderTimeoutMillis": "2000",
    "httpServerIdleTimeout": "2000",
    "httpRequestBodyMinBytesPerSecond": "1000",
    "maxHttpServerConnections": "40",
    "httpMaxRequestSize": "100000",
    "corsAllowedOrigins": "https://console.example",
    "logFormat": "json",
}


@pytest.fixture
def client(server: StandaloneProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.admin_url, timeout=30) as http:
        yield http


class Raw:
    """A bare connection; ``answer`` reads until the server closes it."""

    def __init__(self, server: StandaloneProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.web_port), 30)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> "Raw":
        self.socket.sendall(data)
        return self

    def send_until_closed(self, data: bytes, pause_s: float = 0.0) -> None:
        """Repeat ``data`` until the server has had enough."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                self.socket.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                return
            time.sleep(pause_s)
        raise AssertionError("the connection is still open")

    def answer(self) -> bytes:
        return b"".join(iter(lambda: self.socket.recv(65_536), b""))

    def refusal(self) -> tuple[int, str]:
        """Status and reason of the one answer before the end."""
        text = self.answer()
        head, _, body = text.partition(b"\r\n\r\n")
        assert text.count(b"HTTP/1.1 ") == 1, text
        assert b"connection: close" in head.lower()
        return int(head.split(b" ")[1]), json.loads(body)["reason"]


def test_large_heads_are_refused(server: StandaloneProcess) -> None:
    for request, status in (
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET /metrics HTTP/1.1\r\n" + b"X-A: 1\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"GET /metrics HTTP/1.1\r\nX-A: " + b"a" * 200_000, 431),
        (b"GET /" + b"a" * 200_000, 414),
    ):
        with Raw(server) as raw:
            assert raw.send(request).refusal()[0] == status


def test_a_head_within_the_limit_passes(client: httpx.Client) -> None:
    headers = {f"X-{number}": "a" * 70 for number in range(80)}
    assert client.get("/ready", headers=headers).status_code == 200


def test_a_head_in_pieces_passes(server: StandaloneProcess) -> None:
    request = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with Raw(server) as raw:
        for number in range(len(request)):
            raw.send(request[number : number + 1])
        assert raw.answer().startswith(b"HTTP/1.1 200 ")


def test_a_head_that_never_ends_is_ended(server: StandaloneProcess) -> None:
    with Raw(server) as raw:
        began = time.monotonic()
        assert raw.send(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n").refusal()[0] == 408
        assert 1.0 < time.monotonic() - began < 20


def test_silence_and_empty_lines_are_no_requests(server: StandaloneProcess) -> None:
    with Raw(server) as silent, Raw(server) as empty:
        assert silent.answer() == b""
        empty.send_until_closed(b"\r\n", pause_s=0.05)


def test_empty_lines_do_not_keep_a_used_connection(server: StandaloneProcess) -> None:
    with Raw(server) as raw:
        raw.send(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.socket.recv(65_536).startswith(b"HTTP/1.1 200 ")
        raw.send_until_closed(b"\r\n", pause_s=0.05)


def test_a_body_that_trickles_is_ended(server: StandaloneProcess) -> None:
    head = b"POST /topics/persistent/public/default/slow HTTP/1.1\r\nContent-Length: 5000\r\n\r\n{"
    with Raw(server) as raw:
        assert raw.send(head).refusal() == (408, "The request's body did not arrive in time")
    with Raw(server) as raw:
        chunked = head.replace(b"Content-Length: 5000", b"Transfer-Encoding: chunked")
        status, _ = raw.send(chunked.removesuffix(b"{") + b"1;a=b\r\n{\r\n").refusal()
        assert status == 408
    assert "Traceback" not in server.log


def test_a_broken_body_is_answered_at_once(server: StandaloneProcess) -> None:
    with Raw(server) as raw:
        raw.send(b"POST /topics/persistent/public/default/slow HTTP/1.1\r\n")
        raw.send(b"Transfer-Encoding: chunked\r\n\r\nno number\r\n")
        began = time.monotonic()
        assert raw.refusal()[0] == 400
        assert time.monotonic() - began < 4, "before the time limits"


def test_trailers_are_bounded(server: StandaloneProcess) -> None:
    head = (
        b"POST /topics/persistent/public/default/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with Raw(server) as raw:
        trailers = b"".join(b"X-%d: %b\r\n" % (each, b"a" * 1000) for each in range(100))
        raw.send(head + b"2\r\n{}\r\n0\r\n" + trailers)
        assert raw.refusal()[0] == 431


def test_a_body_nobody_reads_does_not_run_for_ever(server: StandaloneProcess) -> None:
    with Raw(server) as raw:
        raw.send(b"POST /no/such/path HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
        raw.send_until_closed(b"x" * 65_536)


def test_large_bodies_are_refused(client: httpx.Client) -> None:
    path = "/topics/persistent/public/default/large"
    answer = client.post(path, content=b"x" * 100_001)
    assert (answer.status_code, "httpMaxRequestSize" in answer.text) == (400, True)
    answer = client.post(path, content=iter([b"x" * 60_000] * 2))
    assert (answer.status_code, "httpMaxRequestSize" in answer.text) == (400, True)


def test_a_crowd_is_refused_and_goes_away(server: StandaloneProcess, client: httpx.Client) -> None:
    def is_refused() -> bool:
        """Where the first ones are ended before the last ones come, these are let in."""
        crowd = [Raw(server) for _ in range(60)]
        try:
            first = [each.answer() for each in crowd]
        finally:
            for each in crowd:
                each.socket.close()
        refused = [answer for answer in first if answer.startswith(b"HTTP/1.1 503 ")]
        assert len(refused) <= 40
        assert all(b"retry-after: 1" in answer for answer in refused)
        return len(refused) >= 20

    wait_until(is_refused, "more than 40 at once are refused")
    assert client.get("/ready").status_code == 200


def test_cors_for_the_origins_of_the_setting(client: httpx.Client) -> None:
    asked = {"Origin": "https://console.example", "Access-Control-Request-Method": "PUT"}
    answer = client.options("/admin/v2/tenants/x", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://console.example"
    assert "PUT" in answer.headers["access-control-allow-methods"]
    other = client.get("/admin/v2/tenants", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    mine = client.get("/admin/v2/tenants", headers={"Origin": "https://console.example"})
    assert mine.headers["access-control-allow-origin"] == "https://console.example"


def test_without_a_setting_there_is_no_cors(admin_url: str) -> None:
    answer = httpx.get(
        f"{admin_url}/admin/v2/tenants", headers={"Origin": "https://a.example"}, timeout=30
    )
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_gzip_where_it_is_asked_for(server: StandaloneProcess, client: httpx.Client) -> None:
    for path in ("/metrics", "/openapi.json", "/admin/v2/brokers/configuration/runtime"):
        packed = client.get(path, headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip", path
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        if path != "/metrics":
            assert packed.json() == plain.json()
    with Raw(server) as raw:
        raw.send(
            b"GET /openapi.json HTTP/1.1\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        )
        assert json.loads(gzip.decompress(raw.answer().partition(b"\r\n\r\n")[2]))["openapi"]


def test_changes_are_audited_in_json(server: StandaloneProcess, client: httpx.Client) -> None:
    path = "/admin/v2/namespaces/public/audited"
    for request_id, status in (("audit-1", 204), ("audit-2", 409)):
        answer = client.put(path, headers={"X-Request-ID": request_id})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, request_id)
    client.get(path, headers={"X-Request-ID": "audit-3"})
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    audited = [
        line for line in lines if line["logger"] == "magnetar.broker.audit" and line["path"] == path
    ]
    assert [(line["request"], line["status"]) for line in audited] == [
        ("audit-1", 204),
        ("audit-2", 409),
    ]
    assert {(line["role"], line["method"]) for line in audited} == {("anonymous", "PUT")}
    assert re.fullmatch(r"127\.0\.0\.1:\d+", audited[0]["address"])


def test_bodies_share_a_budget_of_memory(tmp_path: Path) -> None:
    options = ("--set", "maxMessagePublishBufferSizeInMB=1")
    with (
        StandaloneProcess(tmp_path / "data", *options) as process,
        httpx.Client(base_url=process.admin_url, timeout=30) as http,
    ):
        path = "/topics/persistent/public/default/large"
        for _ in range(3):  # what a refused or answered request was charged comes back
            assert http.post(path, content=b"x" * 2_000_000).status_code == 503
            assert http.post(path, content=b"x" * 900_000).status_code == 415
            chunks = iter([b"x" * 100_000] * 12)
            answer = http.post(path, content=chunks)
            assert answer.status_code == 503
            assert "maxMessagePublishBufferSizeInMB" in answer.json()["reason"]


def test_a_rate_limit_answers_429(tmp_path: Path) -> None:
    limits = ("httpRequestsLimitEnabled=true", "httpRequestsMaxPerSecond=5")
    options = [text for limit in limits for text in ("--set", limit)]
    with (
        StandaloneProcess(tmp_path / "data", *options) as process,
        httpx.Client(base_url=process.admin_url, timeout=30) as http,
    ):
        answers = [http.get("/ready") for _ in range(200)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert answers[0].status_code == 200
        assert refused, "200 requests take less than 40 seconds"
        assert refused[0].headers["retry-after"] == "1"
        assert "httpRequestsMaxPerSecond" in refused[0].json()["reason"]
        deadline = time.monotonic() + 30
        while http.get("/ready").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.3)


def test_head_is_answered_as_get_without_the_body(client: httpx.Client) -> None:
    for path in ("/status.html", "/admin/v2/clusters", "/admin/v2/tenants/nobody"):
        asked, probed = client.get(path), client.head(path)
        assert (probed.status_code, probed.content) == (asked.status_code, b"")
        assert probed.headers.get("content-type") == asked.headers.get("content-type")
    # below /topics/ a GET takes messages
    taking = client.head("/topics/persistent/public/default/t/subscription/s/messages")
    assert taking.status_code == 405


def test_a_document_that_is_too_large_is_not_even_read(tmp_path: Path) -> None:
    """To parse one of small values holds up everybody, and is of no use: none can be stored."""
    values = {f"k{number}": "v" for number in range(400_000)}
    body = json.dumps(values | {"type": "STRING", "schema": "", "properties": {}}).encode()
    with (
        StandaloneProcess(tmp_path / "data") as process,
        httpx.Client(base_url=process.admin_url, timeout=60) as http,
    ):
        headers = {"content-type": "application/json"}
        http.put("/admin/v2/persistent/public/default/documents").raise_for_status()
        for method, path in (
            ("POST", "/admin/v2/schemas/public/default/documents/schema"),
            ("PUT", "/admin/v2/persistent/public/default/documents/properties"),
            ("PUT", "/admin/v2/tenants/large"),
        ):
            answer = http.request(method, path, content=body, headers=headers)
            assert answer.status_code == 413, (path, answer.text)
            assert answer.json()["reason"] == f"A body of {len(body)} bytes, 4194304 at most"


def test_a_client_cannot_say_that_it_is_another(client: httpx.Client) -> None:
    """Without webServiceTrustXForwardedFor; whatever the server below would believe."""
    path = "/admin/v2/namespaces/public/forwarded"
    assert client.put(path, headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 204
    (change,) = client.get("/admin/v2/audit", params={"path": path}).json()["changes"]
    assert change["address"].startswith("127.0.0.1:")
