"""Requests that offer another protocol are served as HTTP/1.1; raw, as Java's client sends them."""

import json
import secrets
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest


def request(path: str, body: bytes) -> tuple[bytes, bytes]:
    head = (
        f"PUT {path} HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: localhost\r\n"
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def answer(connection: socket.socket) -> bytes:
    """An answer without a body."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        data = connection.recv(65536)
        assert data, received
        received += data
    return received


@pytest.mark.parametrize("parts", ["together", "apart"])
def test_a_body_behind_an_offer_of_http2_arrives(admin_url: str, parts: str) -> None:
    names = [f"public/default/offer-{secrets.token_hex(5)}" for _ in range(2)]
    at = urlsplit(admin_url)
    with socket.create_connection((at.hostname, at.port), timeout=30) as connection:
        for name in names:  # the second one: the connection stays in order
            head, body = request(f"/admin/v2/persistent/{name}/partitions", b"3")
            if parts == "together":
                connection.sendall(head + body)
            else:
                connection.sendall(head)
                time.sleep(0.05)
                connection.sendall(body)
            assert answer(connection).startswith(b"HTTP/1.1 204 ")
    for name in names:
        url = f"{admin_url}/admin/v2/persistent/{name}/partitions"
        assert json.loads(httpx.get(url, timeout=30).content)["partitions"] == 3
        assert httpx.delete(url, timeout=30).status_code == 204


@pytest.mark.parametrize("more", ["", "Upgrade: h2c\r\nConnection: Upgrade\r\n"])
def test_a_tunnel_is_refused(admin_url: str, more: str) -> None:
    at = urlsplit(admin_url)
    with socket.create_connection((at.hostname, at.port), timeout=30) as connection:
        head = f"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n{more}\r\n"
        connection.sendall(head.encode() + b"\x16\x03\x01")
        received = b""
        while data := connection.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 501 ")
    assert received.count(b"HTTP/1.1") == 1
    assert httpx.get(f"{admin_url}/admin/v2/brokers/health", timeout=30).text == "ok"
