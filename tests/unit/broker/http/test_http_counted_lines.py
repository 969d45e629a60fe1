"""Garbage at the HTTP port is told in the log, once a second and reason however much there is."""

import asyncio
import logging

import pytest
import uvicorn
from uvicorn.server import ServerState

from magnetar.broker.http.server import rate_limited_log as rate_limited_log
from magnetar.broker.http.server.request_protocol import ConnectionLimits, protocol_with
from magnetar.broker.http.websocket.protocol import CorkedWebSocketProtocol
from magnetar.broker.listener.file_limit import AddressQuota, SocketQuota
from tests.unit.managed_ledger.cluster import eventually

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def app(scope: object, receive: object, send: object) -> None:
    await receive()  # type: ignore[operator] # ASGI
    await send({"type": "websocket.accept"})  # type: ignore[operator] # ASGI
    await receive()  # type: ignore[operator] # ASGI


async def say(port: int, *parts: bytes) -> None:
    """Send the parts, the next one after an answer, and read to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await reader.read(1024)
    while await reader.read(1024):
        pass
    writer.close()


async def test_connections_closed_for_garbage_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rate_limited_log, "_PERIOD_S", 3600.0)
    protocol = protocol_with(SocketQuota("HTTP", 100), AddressQuota(0), ConnectionLimits())
    config = uvicorn.Config(
        app,
        loop="none",
        http=protocol,
        ws=CorkedWebSocketProtocol,
        lifespan="off",
        log_config=None,
        ws_per_message_deflate=False,
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    for _ in range(3):
        await say(port, b"\x16\x03\x01 garbage\r\n\r\n")
    await say(port, UPGRADE, b"\xff\xff\xff\xff\xff\xff")
    lines = protocol.lines
    assert lines._counts == {
        "Invalid HTTP request received.": 3,
        "Not WebSocket, or over its limits": 1,
    }
    with caplog.at_level(logging.INFO, logger=rate_limited_log.__name__):
        for reason in list(lines._counts):
            lines._tell(reason)
    assert [
        each.getMessage() for each in caplog.records if each.name == rate_limited_log.__name__
    ] == [
        "http: connections closed in a second: 3: Invalid HTTP request received.",
        "http: connections closed in a second: 1: Not WebSocket, or over its limits",
    ]
    server.close()
    await server.wait_closed()


async def test_a_crowd_is_one_line_and_a_later_one_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rate_limited_log, "_PERIOD_S", 0.0)
    lines = rate_limited_log.RateLimitedLog()

    async def told(number: int) -> None:
        await eventually(lambda: len(caplog.records) == number)

    with caplog.at_level(logging.INFO, logger=rate_limited_log.__name__):
        for crowd in (1, 2):
            for _ in range(1000):
                lines.count("why")
            await told(crowd)
    assert all(each.getMessage().endswith("1000: why") for each in caplog.records)
