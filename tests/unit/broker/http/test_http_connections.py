"""Connections of a broker over HTTP: by page, without those that haven't said who they are."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from magnetar.broker.http.routes import broker_stats
from magnetar.broker.http.server.app import create_app
from magnetar.broker.listener.tcp_socket import transferred_bytes
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http.authorized import client_of

PATH = "/admin/v2/broker-stats/connections"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await Broker().start()
    yield broker
    await broker.close()


async def shown(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await client.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_connection_says_who_and_what(broker: Broker) -> None:
    peer = broker.client(port=4711)
    await peer.produce()
    peer.connection.role, peer.connection.original_role = "proxy", "joe"
    broker.client(port=4712, connect=False)
    async with client_of(create_app(broker.service), None) as client:
        assert await shown(client) == {
            "connections": [
                {
                    "address": "10.0.0.1:4711",
                    "listener": "pulsar",
                    "advertisedListener": None,
                    "role": "proxy",
                    "originalRole": "joe",
                    "clientVersion": "test",
                    "protocolVersion": 21,
                    "since": broker.cluster.now_ms,
                    "producers": 1,
                    "consumers": 0,
                    "bytesIn": None,
                    "bytesOut": None,
                }
            ],
            "count": 2,
            "next": None,
        }
        peer.lose()
        assert (await shown(client))["connections"] == []


async def test_pages_have_each_connection_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_stats, "_CONNECTIONS_SLICE", 3)
    peers = []
    for number in range(10):
        broker.cluster.now_ms += number % 2  # two of each moment
        peers.append(broker.client(port=9000 - number))
    wanted = sorted((each.connection.accepted_ms, each.connection.remote) for each in peers)
    async with client_of(create_app(broker.service), None) as client:
        found: list[tuple[int, str]] = []
        after = ""
        for number in range(3):
            page = await shown(client, limit=3, after=after)
            found += [(each["since"], each["address"]) for each in page["connections"]]
            assert (page["next"] is None) == (number == 2)
            after = page["next"]
            if number == 0:
                peers[-1].lose()  # one of a later page
        assert found == [each for each in wanted if each != wanted[-1]]
        assert len((await shown(client, limit=9))["connections"]) == 9
        for query in ({"after": "x/y"}, {"limit": 0}, {"limit": 1001}):
            assert (await client.get(PATH, params=query)).status_code == 400


async def test_only_superusers_see_them(authorized: Broker) -> None:
    for role, status in ((None, 401), ("nobody", 401), ("ten", 401), ("admin", 200)):
        async with client_of(create_app(authorized.service), role) as client:
            assert (await client.get(PATH)).status_code == status


async def test_bytes_are_those_of_the_system() -> None:
    made: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1000)
        writer.write(bytes(3000))
        await reader.readexactly(1)  # it comes with the acknowledgement of these
        made.put_nowait(writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(bytes(1000))
    await reader.readexactly(3000)
    writer.write(b"x")
    accepted = await made.get()
    expected = (1001, 3000) if hasattr(socket, "TCP_INFO") else (None, None)
    assert transferred_bytes(accepted.transport) == expected
    for each in (writer, accepted):
        each.close()
    server.close()
