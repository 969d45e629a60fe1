"""A client that takes nothing any more, as a machine that lost power: its session ends."""

import base64
import json
import os
import socket

import httpx
import psutil
import pytest
from websockets.sync.client import connect

import magnetar
from magnetar.broker.http.websocket import channel, protocol
from tests.waiting import wait_until

WAIT_S = 30.0
TOPIC = "persistent/public/default/stuck"


def test_its_messages_go_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "CLOSE_S", 0.2)
    monkeypatch.setattr(protocol, "ABORT_S", 0.2)
    with (
        magnetar.embedded(mode="thread", webSocketSessionIdleTimeoutMillis=3000) as broker,
        socket.socket() as stuck,
    ):
        stats = f"{broker.web_url}/admin/v2/{TOPIC}/stats"
        host, port = broker.web_url.removeprefix("http://").split(":")
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(WAIT_S)
        stuck.connect((host, int(port)))
        path = f"/ws/v2/consumer/{TOPIC}/s?subscriptionType=Shared"
        stuck.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            .encode()
        )  # fmt: skip
        assert stuck.recv(12) == b"HTTP/1.1 101"

        def consumers() -> int:
            return len(httpx.get(stats, timeout=WAIT_S).json()["subscriptions"]["s"]["consumers"])

        assert consumers() == 1
        with connect(f"ws://{host}:{port}/ws/v2/producer/{TOPIC}", compression=None) as producer:
            payload = base64.b64encode(os.urandom(600_000)).decode()
            for _ in range(15):  # more than the sockets' buffers hold
                producer.send(json.dumps({"payload": payload}))
                assert json.loads(producer.recv(WAIT_S))["result"] == "ok"
        wait_until(lambda: consumers() == 0)
        own_port = stuck.getsockname()[1]

        def is_held() -> bool:
            held = psutil.Process().net_connections("tcp")
            return any(
                each.raddr and each.raddr[1] == own_port and each.laddr[1] == int(port)
                for each in held
            )

        wait_until(lambda: not is_held())
        url = f"ws://{host}:{port}{path}"
        with connect(url, compression=None, max_size=None) as other:
            message = json.loads(other.recv(WAIT_S))
            assert message["redeliveryCount"] >= 0
