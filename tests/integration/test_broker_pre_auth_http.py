"""Plain requests that the web port refuses before a connection exists: the same answers."""

import base64
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import magnetar
from magnetar.broker.auth.authenticator import Authenticator
from magnetar.broker.auth.provider_chain import ProviderChain
from magnetar.broker.http.middleware.authentication import RequestAuthentication
from magnetar.broker.http.middleware.request_context import HttpMetrics
from magnetar.broker.http.server import http_pre_auth as http_pre_auth
from magnetar.broker.http.server.fast_rejector import HEAD_BYTES_MAX, FastRejector
from magnetar.embedding import EmbeddedBroker

SECRET = bytes(range(7, 39))
GOOD = jwt.encode({"sub": "alice"}, SECRET, "HS256")
BAD = jwt.encode({"sub": "alice"}, bytes(32), "HS256")
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("pre_auth")
    (folder / "key").write_bytes(SECRET)
    (folder / "passwords").write_text("joe:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n")
    for name in ("key", "passwords"):
        (folder / name).chmod(0o600)
    with magnetar.embedded(
        authenticationEnabled="true",
        authenticationProviders="token,basic",
        tokenSecretKey=f"file://{folder / 'key'}",
        basicAuthConf=f"file://{folder / 'passwords'}",
    ) as made:
        yield made


def ask(broker: EmbeddedBroker, words: bytes) -> bytes:
    """All that comes back until the end of the connection, or of the first answer."""
    url = httpx.URL(broker.web_url)
    with socket.create_connection((url.host, url.port or 80), LIMIT_S) as client:
        client.sendall(words)
        received = b""
        has_body = not words.startswith(b"HEAD")
        while b"\r\n\r\n" not in received or (has_body and not _is_whole(received)):
            if not (data := client.recv(65536)):
                break
            received += data
    return received


def _is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])


def request(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def essence(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    varies = (b"x-request-id:", b"connection:")
    return status, sorted(line for line in lines if not line.startswith(varies)), body


def is_early(answer: bytes) -> bool:
    return b"connection: close" in answer


BASIC = "Authorization: Basic "
WRONG = {
    "nothing": (),
    "a token of another key": (f"Authorization: Bearer {BAD}",),
    "no token": ("Authorization: Bearer x",),
    "an empty token": ("Authorization: Bearer",),
    "an unknown scheme": ("Authorization: Digest x",),
    "a scheme alone": ("Authorization: Basic",),
    "not base64": (f"{BASIC}%%",),
    "no password": (BASIC + base64.b64encode(b"joe").decode(),),
    "a wrong password": (BASIC + base64.b64encode(b"joe:wrong").decode(),),
    "an unknown user": (BASIC + base64.b64encode(b"jim:secret").decode(),),
    "two of them": (f"Authorization: Bearer {BAD}", f"Authorization: Bearer {GOOD}"),
}


@pytest.mark.parametrize("path", ["/admin/v2/clusters", "/nowhere?x=1", "/ws/v2/x", "/metrics/x"])
@pytest.mark.parametrize("what", WRONG)
def test_the_answer_is_the_one_that_everybody_gets(
    broker: EmbeddedBroker, path: str, what: str
) -> None:
    early = ask(broker, request(path, *WRONG[what]))
    usual = ask(broker, request(path, "X-Unusual: 1", *WRONG[what]))
    assert early.startswith(b"HTTP/1.1 401 ")
    assert not is_early(usual)
    assert essence(early) == essence(usual)
    assert is_early(early)
    assert re.search(rb"x-request-id: [0-9a-f-]+", early)


@pytest.mark.parametrize(
    "words",
    [
        request("/admin/v2/clusters", f"Authorization: Bearer {GOOD}"),
        request("/admin/v2/clusters", BASIC + base64.b64encode(b"joe:secret").decode()),
        request("/metrics"),
        request("/status.html"),
        request("/docs/"),
    ],
)
def test_whoever_may_is_served(broker: EmbeddedBroker, words: bytes) -> None:
    answer = ask(broker, words)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not is_early(answer)


@pytest.mark.parametrize(
    "words",
    [
        request("/admin/v2/clusters", method="POST"),
        request("/admin/v2/clusters", method="HEAD"),
        request("/admin/v2/clusters", "Content-Length: 0"),
        request("/admin/v2/clusters#part"),
        request("/metrics#part"),  # the parser takes the part away, and that page is open
        request("/admin/v2/clusters", *["Accept: a"] * 120),
        request("/admin/v2/clusters", "Origin: http://elsewhere"),
        request("/admin/v2/clusters", "Connection: upgrade, x"),
        request("/admin/v2/clusters", "X-Original-Principal: a"),
        request("/admin/v2/clusters") + request("/admin/v2/clusters"),
        request("/admin/v2/clusters").replace(b"\r\n", b"\n"),
        request("/admin/v2/clusters").replace(b"HTTP/1.1", b"HTTP/1.0"),
        request("/admin/v2/clusters", "A" * 10 + ": " + "b" * HEAD_BYTES_MAX),
    ],
)
def test_what_is_not_plain_goes_the_usual_way(broker: EmbeddedBroker, words: bytes) -> None:
    answer = ask(broker, words)
    assert answer.startswith(b"HTTP/1.")
    status = answer.split(b"\r\n")[0]
    refused = (b" 401 ", b" 403 ")  # 403: a page of another site
    assert (
        b"x-request-id: " not in answer or any(map(status.__contains__, refused)) or b"#" in words
    )
    assert b" 200 " not in status or words.startswith(b"GET /metrics")
    assert early().answer(words, "10.0.0.1", 5) is None


def test_a_head_in_pieces_goes_the_usual_way(broker: EmbeddedBroker) -> None:
    words = request("/admin/v2/clusters")
    url = httpx.URL(broker.web_url)
    with socket.create_connection((url.host, url.port or 80), LIMIT_S) as client:
        client.sendall(words[:20])
        assert early().answer(words[:20], "10.0.0.1", 5) is None
        client.sendall(words[20:])
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_when_too_many_wait_for_checks_others_get_a_connection_meanwhile(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_pre_auth, "_DOUBTED_MAX", 0)
    (tmp_path / "passwords").write_text("joe:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n")
    (tmp_path / "passwords").chmod(0o600)
    with magnetar.embedded(
        authenticationEnabled="true",
        authenticationProviders="basic",
        basicAuthConf=f"file://{tmp_path / 'passwords'}",
    ) as full:
        answer = ask(full, request("/admin/v2/clusters", *WRONG["a wrong password"]))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert not is_early(answer)
    assert is_early(ask(broker, request("/admin/v2/clusters", *WRONG["a wrong password"])))


def test_each_refusal_has_a_number_of_its_own(broker: EmbeddedBroker) -> None:
    answers = [ask(broker, request("/admin/v2/clusters")) for _ in range(5)]
    assert all(map(is_early, answers))
    numbers = {found[1] for each in answers if (found := re.search(rb"x-request-id: (\S+)", each))}
    assert len(numbers) == 5


def test_who_is_not_logged_in_is_sent_from_the_console_to_its_login(
    broker: EmbeddedBroker,
) -> None:
    answer = ask(broker, request("/console/topics"))
    assert answer.startswith(b"HTTP/1.1 303 ")
    assert b"location: login?next=topics" in answer


def test_refusals_are_counted(broker: EmbeddedBroker) -> None:
    def count(name: str) -> float:
        text = httpx.get(f"{broker.web_url}/metrics", timeout=LIMIT_S).text
        found = re.findall(rf"^{name}.* ([0-9.e+]+)$", text, re.MULTILINE)
        return sum(map(float, found))

    before = count("pulsar_authentication_failures_total")
    for _ in range(3):
        assert is_early(ask(broker, request("/admin/v2/clusters")))
    assert count("pulsar_authentication_failures_total") == before + 3


def early() -> FastRejector:
    authenticator = Authenticator(ProviderChain([], "", frozenset()))
    return FastRejector(RequestAuthentication(authenticator), HttpMetrics())


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@example(request("/\x7f"))
@example(request("/a", "Authorization: \x00"))
@example(request("//[::1]:99999999/%"))
@settings(max_examples=300, deadline=None)
def test_any_words_are_answered_or_left_to_others(words: bytes) -> None:
    for each in (words, b"GET /" + words + b" HTTP/1.1\r\n\r\n", request("/a") + words):
        answer = early().answer(each, "10.0.0.1", 5)
        assert answer is None or isinstance(answer, bytes)
        assert answer is None or answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")


def test_nothing_that_was_shown_is_in_the_answer(tmp_path: Path) -> None:
    answer = early().answer(request("/secret-path", "Authorization: Bearer s3cret"), "10.0.0.1", 5)
    assert isinstance(answer, bytes)
    assert b"s3cret" not in answer
    assert b"secret-path" not in answer


def test_limiters_of_all_ports_and_password_checks_are_on_the_metrics_page(
    broker: EmbeddedBroker,
) -> None:
    url = httpx.URL(broker.web_url)
    with socket.create_connection((url.host, url.port or 80), LIMIT_S):
        deadline = time.monotonic() + LIMIT_S
        while not re.search(
            r'pulsar_unauthenticated_connections\{[^}]*listener="http"[^}]*\} 1\b',
            page := httpx.get(f"{broker.web_url}/metrics", timeout=LIMIT_S).text,
        ):
            assert time.monotonic() < deadline, page
            time.sleep(0.01)
    assert re.search(
        r'pulsar_unauthenticated_connections_closed_total\{[^}]*listener="http"[^}]*\} 0', page
    )
    assert re.search(r"pulsar_authentication_password_checks\{[^}]*\} 0", page)
