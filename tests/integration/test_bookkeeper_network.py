"""Bookies over the network: the ledger protocol end to end, and what can go wrong."""

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.cookie import read_instance_id
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import BookieUnavailableError, LedgerFencedError
from magnetar.bookkeeper.proto import bookie_pb2 as pb
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, ServiceInfo
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import BOOKIE_ID_HEADER, INSTANCE_HEADER, SERVICE
from magnetar.bookkeeper.transport_grpc.remote_bookie import BookieAddress, RemoteBookieClient
from tests.certificates import Authority
from tests.integration.bookie_node import KEY, request
from tests.integration.bookkeeper_network import (
    TRANSPORT,
    Network,
    entries_server,
    eventually,
    read_all,
    write,
)

BOOKIES = 4


def bodies(count: int, size_max: int = 9000) -> list[bytes]:
    return [random.Random(n).randbytes(n * 7919 % size_max) for n in range(count)]


async def add(client: RemoteBookieClient, ledger_id: int, entry_id: int) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_done(_request: AddRequest, code: int) -> None:
        answer.set_result(code)

    client.add_entries(request(ledger_id, range(entry_id, entry_id + 1), lambda _: b"x", on_done))
    return await answer


@pytest.mark.parametrize("quorums", [LedgerConfig(3, 3, 2), LedgerConfig(4, 2, 2)])
async def test_what_was_written_is_read_by_others(network: Network, quorums: LedgerConfig) -> None:
    sent = bodies(300)
    ledger = await write(network.client, quorums, sent)
    await ledger.close()
    assert await read_all(network.client, ledger.ledger_id, recover=False) == sent


async def test_recovery_fences_the_writer_and_keeps_what_was_confirmed(network: Network) -> None:
    sent = bodies(100)
    ledger = await write(network.client, LedgerConfig(3, 3, 2), sent)
    assert await read_all(network.client, ledger.ledger_id, recover=True) == sent
    ledger.append([b"head"], [b"too late"])
    await eventually(lambda: ledger.error is not None)
    assert isinstance(ledger.error, LedgerFencedError)


async def test_a_bookie_that_goes_away_is_replaced(network: Network) -> None:
    sent = bodies(400)
    ledger = await network.client.create_ledger(LedgerConfig(3, 3, 3))
    lost = ledger.metadata.last_segment.bookies[1]
    for number, body in enumerate(sent):
        ledger.append([b"head"], [body])
        if number == 100:
            await eventually(lambda: ledger.last_confirmed > 50)
            await network.stop(lost)
        if number % 20 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: ledger.last_confirmed == len(sent) - 1 or ledger.error is not None)
    assert ledger.error is None, ledger.error
    assert len(ledger.metadata.segments) == 2
    assert lost not in ledger.metadata.last_segment.bookies
    await ledger.close()
    assert await read_all(network.client, ledger.ledger_id, recover=False) == sent


async def test_a_connection_that_is_cut_costs_a_bookie_and_no_entry(network: Network) -> None:
    ledger = await network.client.create_ledger(LedgerConfig(3, 3, 3))
    cut = network.remote(ledger.metadata.last_segment.bookies[1])
    ledger.append([b"head"], [b"first"])
    await eventually(lambda: cut._adds.is_connected)
    connection = cut._adds._connection.current
    assert connection is not None
    assert connection._transport is not None
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
    while await add(cut, 99, 0) != codes.OK:  # a new one, after its back-off
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_a_bookie_is_found_again_at_another_port(network: Network) -> None:
    client = network.remote("b0")
    assert await add(client, 1, 0) == codes.OK
    first_port = network.served["b0"].port
    await network.stop("b0")
    # Its stream has ended, or ends with this add: either way nothing is known of it.
    assert await add(client, 1, 1) == codes.UNAVAILABLE
    served = await network.start("b0")
    assert served.port != first_port
    deadline = asyncio.get_running_loop().time() + 30
    while await add(client, 1, 2) != codes.OK:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert (await client.read_entries(ReadRequest(1, 0, 1, 100))).code == codes.OK


async def test_nobody_goes_on_with_a_process_whose_name_another_has(
    network: Network, tmp_path: Path
) -> None:
    """It was cut off from the store and replaced, and still answers on its open connections."""
    client = network.connector.connect("b0")
    assert await add(client, 7, 0) == codes.OK
    other = Network(tmp_path / "other")
    await other.start("b0")
    server, entries = BookieServer("b0", TRANSPORT), entries_server(TRANSPORT)
    try:
        places = [("127.0.0.1", await each.listen("127.0.0.1", 0)) for each in (server, entries)]
        instance_id = await read_instance_id(network.store)
        server.serve(other.served["b0"].bookie, instance_id)
        entries.serve(other.served["b0"].bookie, instance_id)
        info = ServiceInfo("b0", "/zone/domain", places[0], rpc_address=places[1])
        await network.store.put(f"{AVAILABLE_PATH}/b0", info.encode())
        deadline = asyncio.get_running_loop().time() + 30.0
        found = [7]
        while found == [7]:  # the old one answers
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
            with contextlib.suppress(BookieUnavailableError):
                found = await client.list_ledgers(0, 10)
        await eventually_adds(client, codes.OK)
        assert await client.list_ledgers(0, 10) == [1]
        assert await other.served["b0"].bookie.list_ledgers(0, 10) == [1]
    finally:
        await server.close()
        await entries.close()
        await other.close()


async def test_control_calls_say_what_the_bookie_knows(network: Network) -> None:
    client = network.remote("b1")
    for entry_id in (0, 1, 5):
        assert await add(client, 7, entry_id) == codes.OK
    assert await add(client, 9, 0) == codes.OK
    assert await client.list_entries(7) == [(0, 2), (5, 6)]
    assert await client.list_entries(8) == []
    assert await client.list_ledgers(0, 10) == [7, 9]
    assert await client.list_ledgers(8, 10) == [9]
    assert await client.list_ledgers(0, 1) == [7]
    assert await client.write_lac(7, 1, master_key=KEY) == codes.OK
    assert await client.write_lac(7, 1, master_key=b"wrong") == codes.UNAUTHORIZED
    reply = await client.read_lac(7, fence=False)
    assert (reply.code, reply.explicit_lac) == (codes.OK, 1)
    assert (await client.read_lac(8, fence=False)).code == codes.NO_LEDGER
    assert (await client.read_entries(ReadRequest(7, 2, 1, 100))).code == codes.NO_ENTRY
    assert (await client.read_entries(ReadRequest(8, 0, 1, 100))).code == codes.NO_LEDGER
    assert (await client.read_entries(ReadRequest(7, -1, 1, 100))).code == codes.BAD_REQUEST
    fenced = await client.read_entries(ReadRequest(7, 0, 10, 1000, fence=True, master_key=KEY))
    assert len(fenced.packets) == 2
    assert await add(client, 7, 6) == codes.FENCED
    info = await client.info()
    assert (info.bookie_id, info.read_only) == ("b1", False)
    assert 0 < info.free_bytes < info.total_bytes


async def test_nobody_there_is_never_a_no(network: Network) -> None:
    """UNAVAILABLE proves nothing; "no such entry" would end a ledger too early."""
    client = network.remote("nobody")
    await _check_unavailable(client)


async def test_another_bookie_at_the_address_does_not_answer(network: Network) -> None:
    served = network.served["b0"]

    async def wrong_address(_bookie_id: str) -> BookieAddress:
        return BookieAddress("127.0.0.1", served.port, ("127.0.0.1", served.entries_port))

    client = RemoteBookieClient("b9", wrong_address, TRANSPORT)
    await _check_unavailable(client)
    await client.close()
    with pytest.raises(BookieUnavailableError, match="b9 is meant, this is b0"):
        await client_info(served.port, "b9")


async def test_a_bookie_of_another_cluster_does_not_answer(network: Network) -> None:
    served = network.served["b0"]

    async def other_cluster(_bookie_id: str) -> BookieAddress:
        entries = "127.0.0.1", served.entries_port
        return BookieAddress("127.0.0.1", served.port, entries, "another-cluster")

    client = RemoteBookieClient("b0", other_cluster, TRANSPORT)
    await _check_unavailable(client)
    await client.close()


async def client_info(port: int, bookie_id: str) -> None:
    async def address(_bookie_id: str) -> BookieAddress:
        return BookieAddress("127.0.0.1", port, ("127.0.0.1", port))

    client = RemoteBookieClient(bookie_id, address, TRANSPORT)
    try:
        await client.info()
    finally:
        await client.close()


async def _check_unavailable(client: RemoteBookieClient) -> None:
    assert await add(client, 1, 0) == codes.UNAVAILABLE
    assert (await client.read_entries(ReadRequest(1, 0, 1, 100))).code == codes.UNAVAILABLE
    assert (await client.read_lac(1, fence=True, master_key=KEY)).code == codes.UNAVAILABLE
    assert (await client.wait_lac(1, 0, 0.01)).code == codes.UNAVAILABLE
    assert await client.write_lac(1, 0, master_key=KEY) == codes.UNAVAILABLE
    for call in (client.list_entries(1), client.list_ledgers(0, 1), client.info()):
        with pytest.raises(BookieUnavailableError):
            await call


async def test_a_bookie_that_is_starting_or_has_ended_is_unavailable(network: Network) -> None:
    client = network.remote("b2")
    assert await add(client, 1, 0) == codes.OK
    await network.served["b2"].bookie.close()  # its port is still open
    assert await add(client, 1, 1) == codes.UNAVAILABLE
    assert (await client.read_entries(ReadRequest(1, 0, 1, 100))).code == codes.UNAVAILABLE
    with pytest.raises(BookieUnavailableError):
        await client.list_ledgers(0, 1)


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\0" * 26, b"\xff" * 100])
async def test_garbage_is_refused_with_the_reason(network: Network, garbage: bytes) -> None:
    good = network.remote("b0")
    assert await add(good, 1, 0) == codes.OK
    port = network.served["b0"].port
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in ("ReadLac", "WriteLac", "ListEntries"):
            method = channel.unary_stream(f"/{SERVICE}/{name}")
            reply = method(b"\xff" + garbage, metadata=((BOOKIE_ID_HEADER, b"b0"),))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await reply.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, name
    assert await add(good, 1, 1) == codes.OK, "others are not affected"


async def test_a_call_must_say_whom_it_means(network: Network) -> None:
    port = network.served["b0"].port
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        info = channel.unary_unary(f"/{SERVICE}/Info")
        with pytest.raises(grpc.aio.AioRpcError, match="is missing"):
            await info(b"")
        headers = ((BOOKIE_ID_HEADER, b"b0"), (INSTANCE_HEADER, "x"))
        with pytest.raises(grpc.aio.AioRpcError, match="cluster x is meant"):
            await info(b"", metadata=headers)
        reply = pb.InfoReply.FromString(await info(b"", metadata=headers[:1]))
        assert reply.bookie_id == "b0"


async def test_an_entry_that_changed_on_its_way_is_not_stored(network: Network) -> None:
    client = network.remote("b0")
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    broken = request(3, range(2), lambda _: b"body", lambda _, code: answer.set_result(code))
    broken.bodies[1] = b"bodY"
    client.add_entries(broken)
    assert await answer == codes.IO_ERROR
    assert (await client.read_entries(ReadRequest(3, 1, 1, 100))).code == codes.NO_ENTRY


async def test_small_bounds_slow_a_writer_down_but_never_stop_it(tmp_path: Path) -> None:
    """Windows, queues and read limits of a few KiB, entries above all of them."""
    transport = replace(TRANSPORT, connection_bytes_max=4096, read_bytes_max=1000)
    network = Network(tmp_path, transport)
    for number in range(3):
        await network.start(f"b{number}")
    await network.pool.start()
    sent = [random.Random(n).randbytes(300_000 if n % 10 == 0 else 50) for n in range(150)]
    ledger = await write(network.client, LedgerConfig(3, 3, 3), sent, batch=1)
    await ledger.close()
    reads = [read_all(network.client, ledger.ledger_id, recover=False) for _ in range(4)]
    assert await asyncio.gather(*reads) == [sent] * 4
    await network.close()


async def test_readers_still_reach_a_bookie_that_takes_no_writes(network: Network) -> None:
    client = network.remote("b3")
    assert await add(client, 1, 0) == codes.OK
    await network.stop("b3")
    served = await network.start("b3", disk_usage_max=0.0001, disk_usage_low=0.00005)
    assert served.bookie.read_only
    await eventually(lambda: "b3" not in network.pool.writable)
    deadline = asyncio.get_running_loop().time() + 30
    while (await client.read_entries(ReadRequest(1, 0, 1, 100))).code != codes.OK:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    assert (await client.info()).read_only
    await eventually_adds(client, codes.READ_ONLY)


async def eventually_adds(client: RemoteBookieClient, code: int) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    while (found := await add(client, 1, 1)) != code:
        assert found == codes.UNAVAILABLE
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_a_closed_client_answers_what_waits(network: Network) -> None:
    client = network.remote("b0")
    poll = asyncio.create_task(client.wait_lac(1, 0, 60.0))
    answers: list[int] = []
    for entry_id in range(3):
        client.add_entries(
            request(
                1,
                range(entry_id, entry_id + 1),
                lambda _: b"x",
                lambda _, code: answers.append(code),
            )
        )
    await client.close()
    assert (await poll).code == codes.UNAVAILABLE
    assert len(answers) == 3
    assert set(answers) <= {codes.OK, codes.UNAVAILABLE}
    assert await add(client, 1, 3) == codes.UNAVAILABLE


# ---- TLS


async def _written_and_read(network: Network) -> None:
    for number in range(2):
        await network.start(f"b{number}")
    await network.pool.start()
    sent = bodies(50)
    ledger = await write(network.client, LedgerConfig(2, 2, 2), sent)
    await ledger.close()
    assert await read_all(network.client, ledger.ledger_id, recover=False) == sent


async def test_ledgers_over_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.sign("bookie"), authority.sign("broker")
    trust = str(authority.certificate)
    network = Network(
        tmp_path,
        server_tls=TlsFiles(str(pair.certificate), str(pair.key), trust, True),
        client_tls=TlsFiles(str(own.certificate), str(own.key), trust),
    )
    await _written_and_read(network)
    port = network.served["b0"].port
    with pytest.raises(BookieUnavailableError):  # speaks no TLS
        await client_info(port, "b0")
    await network.close()


@pytest.mark.parametrize("flaw", ["no certificate", "stranger", "other host", "distrust"])
async def test_tls_refuses_whom_it_should(tmp_path: Path, flaw: str) -> None:
    authority, other_authority = Authority(tmp_path), Authority(tmp_path, "stranger")
    hosts = ("elsewhere.example",) if flaw == "other host" else ("127.0.0.1",)
    pair = authority.sign("bookie", hosts=hosts)
    own = (other_authority if flaw == "stranger" else authority).sign("broker")
    trust = str(authority.certificate)
    client_tls = TlsFiles(str(own.certificate), str(own.key), trust)
    if flaw == "no certificate":
        client_tls = TlsFiles(trust=trust)
    if flaw == "distrust":
        client_tls = replace(client_tls, trust=str(other_authority.certificate))
    network = Network(
        tmp_path,
        server_tls=TlsFiles(str(pair.certificate), str(pair.key), trust, True),
        client_tls=client_tls,
    )
    await network.start("b0")
    await _check_unavailable(network.remote("b0"))
    await network.close()


async def test_renewed_certificates_are_used_for_new_connections(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    pair = first.sign("bookie")
    trust = tmp_path / "trust.pem"
    trust.write_bytes(first.certificate.read_bytes())
    network = Network(
        tmp_path,
        server_tls=TlsFiles(str(pair.certificate), str(pair.key)),
        client_tls=TlsFiles(trust=str(trust)),
    )
    await network.start("b0")
    assert await add(network.remote("b0"), 1, 0) == codes.OK
    # Same file names: what the bookie shows from now on is signed by the second authority.
    second.sign("bookie")
    assert await add(network.remote("b0"), 1, 1) == codes.OK, "the old connection goes on"
    await network.connector.close()
    await _check_unavailable(network.remote("b0"))
    await network.connector.close()
    trust.write_bytes(second.certificate.read_bytes())
    assert await add(network.remote("b0"), 1, 2) == codes.OK
    await network.close()
