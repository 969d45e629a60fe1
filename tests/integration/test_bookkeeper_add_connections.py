"""Adds that move from gRPC to a plain connection, over real sockets."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.remote_bookie import RemoteBookieClient
from magnetar.bookkeeper.transport_grpc.tls import TlsFiles
from tests.certificates import Authority
from tests.integration.bookkeeper_network import (
    TRANSPORT,
    Network,
    eventually,
    read_all,
    write,
)
from tests.integration.test_bookkeeper_network import add, bodies

BOOKIES = 4


def uses_add_connection(client: RemoteBookieClient) -> bool:
    return client._adds._connection is not None


async def test_a_ledger_is_written_in_order_while_its_streams_change_over(
    network: Network,
) -> None:
    """Entry by entry from the first moment: the streams are being opened, and then move."""
    ledger = await network.client.create_ledger(LedgerConfig(3, 3, 3))
    clients = [network.remote(each) for each in ledger.metadata.last_segment.bookies]
    sent: list[bytes] = []
    after, deadline = 0, asyncio.get_running_loop().time() + 60
    for number, body in enumerate(itertools.cycle(bodies(100, 3000))):
        ledger.append([b"head"], [body])
        sent.append(body)
        after += all(map(uses_add_connection, clients))
        if after == 200:
            break
        assert asyncio.get_running_loop().time() < deadline, "some stream stays with gRPC"
        if number % 3 == 0:
            await asyncio.sleep(0.001)
    await eventually(lambda: ledger.last_confirmed == len(sent) - 1 or ledger.error is not None)
    assert ledger.error is None, ledger.error
    assert len(ledger.metadata.segments) == 1
    await ledger.close()
    assert await read_all(network.client, ledger.ledger_id, recover=False) == sent


async def test_an_add_connection_that_is_cut_costs_a_bookie_and_no_entry(network: Network) -> None:
    ledger = await network.client.create_ledger(LedgerConfig(3, 3, 3))
    cut = network.remote(ledger.metadata.last_segment.bookies[1])
    ledger.append([b"head"], [b"first"])
    await eventually(lambda: uses_add_connection(cut))
    connection = cut._adds._connection
    assert connection is not None
    for number in range(200):
        ledger.append([b"head"], [b"%d" % number])
        if number == 100:
            connection._transport.abort()
        if number % 10 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: ledger.last_confirmed == 200 or ledger.error is not None)
    assert ledger.error is None, ledger.error
    await ledger.close()
    sent = [b"first", *(b"%d" % number for number in range(200))]
    assert await read_all(network.client, ledger.ledger_id, recover=False) == sent
    deadline = asyncio.get_running_loop().time() + 60
    while await add(cut, 99, 0) != codes.OK:  # a new stream, after its back-off
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await eventually(lambda: uses_add_connection(cut))


@pytest.mark.parametrize("who", ["bookie", "client"])
async def test_either_side_can_do_without(tmp_path: Path, who: str) -> None:
    network = Network(tmp_path, replace(TRANSPORT, add_connections=False))
    if who == "bookie":
        network.connector._config = TRANSPORT
    else:
        network.transport = TRANSPORT
    for number in range(2):
        await network.start(f"b{number}")
    await network.pool.start()
    sent = bodies(50)
    ledger = await write(network.client, LedgerConfig(2, 2, 2), sent, batch=1)
    assert not any(uses_add_connection(network.remote(each)) for each in ("b0", "b1"))
    await ledger.close()
    assert await read_all(network.client, ledger.ledger_id, recover=False) == sent
    await network.close()


async def test_nothing_that_is_encrypted_goes_over_an_add_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("bookie")
    network = Network(
        tmp_path,
        server_tls=TlsFiles(str(pair.certificate), str(pair.key)),
        client_tls=TlsFiles(trust=str(authority.certificate)),
    )
    served = await network.start("b0")
    assert served.server._add_connections is None
    client = network.remote("b0")
    for entry_id in range(20):
        assert await add(client, 1, entry_id) == codes.OK
    assert not uses_add_connection(client)
    await network.close()


async def test_a_port_that_nobody_reaches_leaves_adds_with_grpc(network: Network) -> None:
    """A firewall that knows one port of the bookie."""
    add_connections = network.served["b0"].server._add_connections
    assert add_connections is not None
    assert add_connections._server is not None
    add_connections._server.close()
    client = network.remote("b0")
    for entry_id in range(50):
        assert await add(client, 1, entry_id) == codes.OK
    assert not uses_add_connection(client)


async def test_no_add_connection_is_left_when_a_client_has_gone(network: Network) -> None:
    client = network.remote("b0")
    assert await add(client, 1, 0) == codes.OK
    await eventually(lambda: uses_add_connection(client))
    connection = client._adds._connection
    assert connection is not None
    await client.close()
    await eventually(lambda: connection._transport.is_closing())
    add_connections = network.served["b0"].server._add_connections
    assert add_connections is not None
    await eventually(lambda: not add_connections._offers and not add_connections._unauthenticated)


async def test_a_port_that_is_taken_is_told_at_the_start(network: Network) -> None:
    add_connections = network.served["b0"].server._add_connections
    assert add_connections is not None
    server = BookieServer("b9", replace(TRANSPORT, add_port=add_connections.port))
    with pytest.raises(OSError, match="in use"):
        await server.listen("127.0.0.1", 0)
    await server.close()
