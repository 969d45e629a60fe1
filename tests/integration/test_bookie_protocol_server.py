"""A bookie of ours at the port of BookKeeper's protocol, asked byte by byte.

What a real bookie answers to the same requests is in docs/formats/bookkeeper-protocol.md.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.add_limits import AddLimits
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connection import ConnectionV3
from magnetar.bookkeeper.bookie_protocol.digest_client import DigestBookieClient
from magnetar.bookkeeper.bookie_protocol.digests import (
    CRC32C,
    NO_PACKET,
    Digest,
    DigestType,
    encode_lac,
    to_stored,
)
from magnetar.bookkeeper.bookie_protocol.login import SaslLogin
from magnetar.bookkeeper.bookie_protocol.login_server import SaslLoginPlugin
from magnetar.bookkeeper.bookie_protocol.protocol_client import ProtocolBookieClient
from magnetar.bookkeeper.bookie_protocol.server import ProtocolServer
from magnetar.bookkeeper.byte_semaphore import ByteSemaphore
from magnetar.bookkeeper.errors import LedgerError, UnauthorizedAccessError
from magnetar.bookkeeper.packet import Buffer, encode_head
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.tls import TlsFiles, client_context, server_context
from magnetar.bookkeeper.transport import AddRequest, ReadReply, ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.sasl.digest_md5 import SaslCredentials
from tests.certificates import Authority
from tests.integration.bookie_node import Node
from tests.waiting import eventually

KEY = bytes(range(20))
OTHER_KEY = bytes(20)
LIMIT = 5_253_120
EOK, ENOLEDGER, ENOENTRY, EBADREQ, EUA, EFENCED, EREADONLY = 0, 1, 2, 100, 102, 104, 105


@dataclass
class Served:
    bookie: Bookie
    server: ProtocolServer
    port: int
    clients: list["ClientV2"] = field(default_factory=list)

    async def connect(self) -> "ClientV2":
        client = ClientV2(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    @contextlib.asynccontextmanager
    async def v3(self) -> AsyncIterator[ConnectionV3]:
        connection = ConnectionV3(lambda _connection, _error: None, LIMIT)
        await asyncio.get_running_loop().create_connection(
            lambda: connection, "127.0.0.1", self.port
        )
        try:
            yield connection
        finally:
            connection.close()

    def client(
        self, digest: Digest = CRC32C, config: ProtocolConfig | None = None
    ) -> ProtocolBookieClient:
        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", self.port

        return ProtocolBookieClient(
            "b1", resolve, config or ProtocolConfig(), lambda _: digest, EncodedAdds()
        )


@dataclass
class ClientV2:
    """One frame out, one frame in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, frame: bytes) -> None:
        self.writer.write(frame)

    async def receive(self) -> bytes:
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(4)
            return head + await self.reader.readexactly(unpack_from(">I", head)[0])

    async def ask(self, frame: bytes) -> tuple[int, bytes]:
        """Code, and what is behind the ids."""
        self.send(frame)
        reply = await self.receive()
        return unpack_from(">i", reply, 8)[0], reply[28:]

    async def add(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes = b"x",
        *,
        key: bytes = KEY,
        flags: int = 0,
    ) -> int:
        packet = packet_of(ledger_id, entry_id, payload)
        head = pack(">II20s", 24 + len(packet), 0x02010000 | flags, key)
        return (await self.ask(head + packet))[0]

    async def read(
        self, ledger_id: int, entry_id: int, *, flags: int = 0, key: bytes = b""
    ) -> tuple[int, bytes]:
        return await self.ask(v2.encode_read(ledger_id, entry_id, flags=flags, master_key=key))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(60):
            return await self.reader.read(1) == b""


def packet_of(ledger_id: int, entry_id: int, payload: bytes = b"x", lac: int = -1) -> bytes:
    return encode_head(ledger_id, entry_id, lac, 9, payload, b"")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    store = EmbeddedMetadataStore.open(None)
    bookie = await Node(tmp_path, store).start()
    server = ProtocolServer(LIMIT, 1 << 20, AddLimits(1 << 24), ByteSemaphore(1 << 24))
    port = await server.listen("127.0.0.1", 0)
    server.serve(bookie, "cluster")
    served = Served(bookie, server, port)
    yield served
    for client in served.clients:
        client.writer.transport.abort()
    await server.close()
    await bookie.close()
    await store.close()


async def test_entries_of_version_2(served: Served) -> None:
    client = await served.connect()
    for entry_id in (0, 1, 2, 9, 5):  # gaps, and out of order
        assert await client.add(7, entry_id, b"%d" % entry_id) == EOK
    assert await client.read(7, 5) == (EOK, packet_of(7, 5, b"5"))
    assert await client.read(7, 3) == (ENOENTRY, b"")
    assert await client.read(8, 0) == (ENOLEDGER, b"")
    client.send(v2.encode_read(7, -1))
    reply = await client.receive()
    assert unpack_from(">iqq", reply, 8) == (EOK, 7, -1)  # as asked, or the client never finds it
    assert reply[28:] == packet_of(7, 9, b"9")
    assert await client.add(7, 10, key=OTHER_KEY) == EUA
    assert await client.add(7, 10, b"wrong digest") == EOK


async def test_fences(served: Served) -> None:
    client = await served.connect()
    assert await client.add(7, 0) == EOK
    assert (await client.read(7, -1, flags=1, key=OTHER_KEY))[0] == EUA
    assert await client.read(7, -1, flags=1, key=KEY) == (EOK, packet_of(7, 0))
    assert await client.add(7, 1) == EFENCED
    assert await client.add(7, 1, flags=6) == EOK
    # A ledger that the bookie never saw: the fence must hold all the same.
    assert await client.read(8, -1, flags=1, key=KEY) == (ENOENTRY, b"")
    assert await client.add(8, 0) == EFENCED
    assert await client.read(8, 0, flags=5, key=KEY) == (ENOENTRY, b"")
    client.send(pack(">IIqq", 20, 0x02020001, 8, 0))
    assert await client.is_closed()


async def test_a_read_only_bookie(served: Served) -> None:
    client = await served.connect()
    assert await client.add(7, 0) == EOK
    served.bookie.set_ordered_read_only(True)
    assert await client.add(7, 1) == EREADONLY
    assert await client.add(7, 1, flags=2) == EREADONLY
    assert await client.add(7, 1, flags=6) == EOK
    assert await client.add(7, 2, flags=4) == EOK
    assert (await client.read(7, 2))[0] == EOK
    async with served.v3() as v3:
        for priority, status in ((0, 505), (100, 0)):
            add = pb.AddRequest(ledgerId=7, entryId=3, masterKey=KEY, body=packet_of(7, 3))
            asked = pb.Request(addRequest=add)
            asked.header.priority = priority
            assert (await v3.call(asked, pb.ADD_ENTRY, 9)).status == status
        lac = pb.WriteLacRequest(ledgerId=7, lac=1, masterKey=KEY, body=encode_lac(CRC32C, 7, 1))
        response = await v3.call(pb.Request(writeLacRequest=lac), pb.WRITE_LAC, 9)
        assert response.status == response.writeLacResponse.status == 505


async def test_a_pipeline_is_answered_whole(served: Served) -> None:
    """Runs of adds and reads become one call of the bookie each."""
    client = await served.connect()
    heads = [packet_of(7, entry_id, b"%04d" % entry_id * 30) for entry_id in range(3000)]
    client.send(b"".join(v2.encode_adds(KEY, heads, [b""] * 3000, recovery=False)))
    added = [unpack_from(">iqq", await client.receive(), 8) for _ in heads]
    assert sorted(added) == [(EOK, 7, entry_id) for entry_id in range(3000)]
    client.send(b"".join(v2.encode_read(7, entry_id) for entry_id in range(3002)))
    found = {}
    for _ in range(3002):
        reply = await client.receive()
        found[unpack_from(">q", reply, 20)[0]] = unpack_from(">i", reply, 8)[0], reply[28:]
    assert found == {n: (EOK, head) for n, head in enumerate(heads)} | {
        3000: (ENOENTRY, b""),
        3001: (ENOENTRY, b""),
    }


async def test_one_entry_that_differs_refuses_no_neighbour(served: Served) -> None:
    client = await served.connect()
    assert await client.add(7, 2, b"old") == EOK
    heads = [packet_of(7, entry_id, b"new") for entry_id in range(5)]
    client.send(b"".join(v2.encode_adds(KEY, heads, [b""] * 5, recovery=False)))
    replies = [unpack_from(">iqq", await client.receive(), 8) for _ in heads]
    assert {entry_id: code for code, _, entry_id in replies} == {0: 0, 1: 0, 2: 101, 3: 0, 4: 0}
    assert (await client.read(7, 2))[1] == packet_of(7, 2, b"old")


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_packets_with_any_digest_come_back_as_they_were(
    served: Served, digest_type: DigestType
) -> None:
    digest = Digest.create(digest_type, b"pw")
    sent = [to_stored(digest, packet_of(7, n, b"%d" % n * 99), b"") for n in range(50)]
    client = await served.connect()
    client.send(b"".join(pack(">II20s", 24 + len(each), 0x02010000, KEY) + each for each in sent))
    for _ in sent:
        assert unpack_from(">i", await client.receive(), 8) == (EOK,)
    for _ in range(2):  # from memory, then from the entry log, where the bookie checks it
        client.send(v2.encode_batch_read(7, 0, 4711, 50, LIMIT))
        reply = await client.receive()
        assert unpack_from(">iqqq", reply, 8) == (EOK, 7, 0, 4711)
        assert reply[36:] == b"".join(pack(">I", len(each)) + each for each in sent)
        await served.bookie.flush()
    ours = served.client(digest)
    read = await ours.read_entries(ReadRequest(7, 0, 50, 1 << 20))
    assert [bytes(each) for each in read.packets] == [
        packet_of(7, n, b"%d" % n * 99) for n in range(50)
    ]
    await ours.close()


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_our_own_connection_and_the_protocol_show_the_same_entries(
    served: Served, digest_type: DigestType
) -> None:
    """Clients of ours write and read ledgers with any digest, whichever way they come."""
    digest = Digest.create(digest_type, b"pw")
    own = DigestBookieClient(served.bookie, lambda _: digest)
    heads = [packet_of(7, n, b"%d" % n * 50) for n in range(20)]
    done: asyncio.Future[AddRequest] = asyncio.get_running_loop().create_future()

    def on_done(request: AddRequest, code: int) -> None:
        assert code == codes.OK
        done.set_result(request)

    request = AddRequest(
        *(7, KEY, range(20), heads, [b""] * 20, sum(map(len, heads)), False, on_done)
    )
    own.add_entries(request)
    assert await done is request
    client = await served.connect()
    for n, head in enumerate(heads):
        assert await client.read(7, n) == (EOK, to_stored(digest, head, b""))
    read = await own.read_entries(ReadRequest(7, 0, 20, 1 << 20))
    assert [bytes(each) for each in read.packets] == heads
    prefixes = await own.read_heads(ReadRequest(7, 18, 2, head_bytes=4))
    assert (prefixes.heads, prefixes.sizes) == ([b"1818", b"1919"], [100, 100])
    assert (await own.read_lac(7, fence=False)).last_packet == heads[19]
    assert (await own.wait_lac(7, -2, 0)).next_packet is None
    if digest_type is not DigestType.CRC32C:
        # Nor may who reads take it for the answer of a bookie that has nothing.
        other = Digest.create(DigestType.HMAC, b"x")
        by_protocol = served.client(other)
        for wrong in (DigestBookieClient(served.bookie, lambda _: other), by_protocol):
            read = await wrong.read_entries(ReadRequest(7, 0, 2, 1 << 20))
            assert (read.code, read.packets) == (codes.OK, [NO_PACKET, NO_PACKET])
            last = await wrong.read_lac(7, fence=False)
            assert (last.code, last.last_packet) == (codes.OK, NO_PACKET)
        await by_protocol.close()


async def test_batch_reads(served: Served) -> None:
    client = await served.connect()
    for entry_id in (0, 1, 2, 4):
        assert await client.add(7, entry_id, b"x" * 100) == EOK

    async def ids(first: int, count_max: int, bytes_max: int) -> int:
        client.send(v2.encode_batch_read(7, first, 1, count_max, bytes_max))
        reply = await client.receive()
        assert len(reply) - 4 <= max(bytes_max, 36 + 140)
        return (len(reply) - 36) // 140 if not unpack_from(">i", reply, 8)[0] else -1

    assert await ids(0, 10, LIMIT) == 3  # the gap ends it
    assert await ids(0, 0, LIMIT) == 3
    assert await ids(0, 2, LIMIT) == 2
    assert await ids(0, 10, 1) == 1  # always the first one
    assert await ids(0, 10, 36 + 2 * 140) == 2
    assert await ids(0, 10, 36 + 2 * 140 - 1) == 1
    assert await ids(3, 10, LIMIT) == -1


async def test_who_has_no_authentication_is_told_so(served: Served) -> None:
    message = pb.AuthMessage(authPluginName="sasl", payload=b"hello").SerializeToString()
    client = await served.connect()
    client.send(pack(">II", 4 + len(message), 0x02030000) + message)
    reply = await client.receive()
    assert reply[4:8] == pack(">I", 0x02030000)
    assert pb.AuthMessage.FromString(reply[8:]).authPluginName == "AuthDisabledPlugin"
    async with served.v3() as v3:
        auth = pb.Request(authRequest=pb.AuthMessage(authPluginName="sasl", payload=b""))
        response = await v3.call(auth, pb.AUTH, 9)
        assert (response.status, response.authResponse.authPluginName) == (0, "AuthDisabledPlugin")


async def test_version_3(served: Served) -> None:
    async with served.v3() as v3:

        async def add(ledger_id: int, packet: bytes, **more: Any) -> pb.Response:
            request = pb.AddRequest(
                ledgerId=ledger_id, entryId=99, masterKey=KEY, body=packet, **more
            )
            return await v3.call(pb.Request(addRequest=request), pb.ADD_ENTRY, 9)

        async def read(ledger_id: int, entry_id: int, **more: Any) -> pb.Response:
            request = pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id, **more)
            return await v3.call(pb.Request(readRequest=request), pb.READ_ENTRY, 9)

        added = await add(7, packet_of(7, 13, lac=12))
        assert (added.status, added.addResponse.entryId) == (0, 99)  # as asked; stored as 13
        found = (await read(7, 13)).readResponse
        assert (found.status, found.body, found.maxLAC) == (0, packet_of(7, 13, lac=12), 12)
        last = (await read(7, -1)).readResponse
        assert (last.entryId, last.body) == (-1, packet_of(7, 13, lac=12))
        assert [(await read(*each)).status for each in ((7, 1), (8, 1))] == [403, 402]
        assert (await read(7, -1, flag=1)).status == 502  # a fence without a key
        fenced = await read(7, -1, flag=1, masterKey=KEY)
        assert (fenced.status, fenced.readResponse.HasField("maxLAC")) == (0, False)
        assert (await add(7, packet_of(7, 14))).status == 504
        assert (await add(7, packet_of(7, 14), flag=1)).status == 0
        assert (await add(9, b"short")).status == 404
        for operation in (3, 4, 12, 77):
            response = await v3.call(pb.Request(), operation, 9)  # type: ignore[arg-type]
            assert (response.status, response.header.operation) == (404, operation)
        tls = await v3.call(pb.Request(startTLSRequest=pb.StartTLSRequest()), pb.START_TLS, 9)
        assert tls.status == 404
        asked = pb.Request(getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3))
        info = (await v3.call(asked, pb.GET_BOOKIE_INFO, 9)).getBookieInfoResponse
        assert info.totalDiskCapacity >= info.freeDiskSpace > 0


async def test_explicit_lacs_and_long_polls(served: Served) -> None:
    async with served.v3() as v3:

        async def read_lac(ledger_id: int) -> pb.ReadLacResponse:
            asked = pb.Request(readLacRequest=pb.ReadLacRequest(ledgerId=ledger_id))
            return (await v3.call(asked, pb.READ_LAC, 9)).readLacResponse

        async def write_lac(ledger_id: int, lac: int, digest: Digest) -> int:
            asked = pb.WriteLacRequest(
                *(),
                ledgerId=ledger_id,
                lac=lac,
                masterKey=KEY,
                body=encode_lac(digest, ledger_id, lac),
            )
            response = await v3.call(pb.Request(writeLacRequest=asked), pb.WRITE_LAC, 9)
            return response.status

        async def poll(above: int, wait_ms: int) -> pb.ReadResponse:
            asked = pb.ReadRequest(
                ledgerId=7,
                entryId=-1,
                previousLAC=above,
                timeOut=wait_ms,
                flag=pb.ReadRequest.ENTRY_PIGGYBACK,
            )
            return (await v3.call(pb.Request(readRequest=asked), pb.READ_ENTRY, 30)).readResponse

        client = await served.connect()
        assert (await read_lac(7)).status == 403
        assert await client.add(7, 0) == EOK
        assert await client.add(7, 1) == EOK
        found = await read_lac(7)
        assert (found.lacBody, found.lastEntryBody) == (b"", packet_of(7, 1))
        nothing = await poll(-1, 100)
        assert (nothing.status, nothing.entryId, nothing.body, nothing.maxLAC) == (0, -1, b"", -1)
        waiting = asyncio.ensure_future(poll(-1, 20_000))
        await eventually(lambda: bool(served.bookie._lac_watch))
        assert await write_lac(7, 0, CRC32C) == 0
        told = await waiting
        assert (told.maxLAC, told.entryId, told.body) == (0, 0, packet_of(7, 0))
        assert (await read_lac(7)).lacBody == encode_lac(CRC32C, 7, 0)
        for ledger_id, digest_type in enumerate(DigestType, 8):
            digest = Digest.create(digest_type, b"pw")
            for lac in (5, 4):  # it never decreases
                assert await write_lac(ledger_id, lac, digest) == 0
            assert (await read_lac(ledger_id)).lacBody == encode_lac(digest, ledger_id, 5)
            # A list of entries is a promise, for which the LAC is written again.
            assert await client.add(ledger_id, 0) == EOK
            await served.bookie.list_entries(ledger_id)
            assert (await read_lac(ledger_id)).lacBody == encode_lac(digest, ledger_id, 5)


async def test_an_explicit_lac_of_our_client_has_no_wrong_digest(served: Served) -> None:
    digest = Digest.create(DigestType.HMAC, b"pw")
    stored = to_stored(digest, packet_of(7, 0), b"")
    client = await served.connect()
    head = pack(">II20s", 24 + len(stored), 0x02010000, KEY)
    assert (await client.ask(head + stored))[0] == EOK
    assert await served.bookie.write_lac(7, 0, master_key=KEY) == codes.OK
    async with served.v3() as v3:
        asked = pb.Request(readLacRequest=pb.ReadLacRequest(ledgerId=7))
        found = (await v3.call(asked, pb.READ_LAC, 9)).readLacResponse
        assert (found.lacBody, found.lastEntryBody) == (b"", stored)


async def test_our_client(served: Served) -> None:
    """Everything that ``ProtocolBookieClient`` asks a bookie."""
    client = served.client()
    loop = asyncio.get_running_loop()
    for deferred in (False, True):
        done: asyncio.Future[int] = loop.create_future()
        first = 100 * deferred
        heads = [packet_of(7, n, b"p" * (n * 100)) for n in range(first, first + 50)]
        client.add_entries(
            AddRequest(
                *(7, KEY, range(first, first + 50), heads, [b""] * 50, sum(map(len, heads)), False),
                lambda _, code, done=done: done.set_result(code),  # type: ignore[misc]
                deferred_sync=deferred,
            )
        )
        assert await done == codes.OK
    answered = []
    for entry_id in range(200):  # joined on their way, and each is answered
        head = packet_of(8, entry_id)
        single = range(entry_id, entry_id + 1)
        client.add_entries(
            AddRequest(
                *(8, KEY, single, [head], [b""], len(head), False),
                lambda request, code: answered.append((request.entry_ids[0], code)),
            )
        )
    assert client.pending_requests == 200
    await eventually(lambda: len(answered) == 200)
    assert sorted(answered) == [(entry_id, codes.OK) for entry_id in range(200)]
    assert client.pending_requests == 0
    assert len((await client.read_entries(ReadRequest(8, 0, 200, 1 << 20))).packets) == 200
    assert await client.force(7, 100, master_key=KEY) == codes.OK
    assert await client.list_entries(7) == [(0, 50), (100, 150)]
    assert (await client.info()).total_bytes > 0
    reply = await client.read_entries(ReadRequest(7, 0, 100, 1 << 20))
    assert len(reply.packets) == 50
    assert await client.write_lac(7, 149, master_key=KEY) == codes.OK
    assert (await client.read_lac(7, fence=False)).explicit_lac == 149
    fenced = await client.read_lac(7, fence=True, master_key=KEY)
    assert fenced.last_packet == packet_of(7, 149, b"p" * 14_900)
    await client.close()


async def test_garbage_hurts_nobody_else(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    good = await served.connect()
    assert await good.add(7, 0) == EOK
    garbage = (
        b"GET / HTTP/1.1\r\n\r\n",
        pack(">I", LIMIT - 3),
        pack(">II", 4, 0x02050000),
        pack(">I", 3) + b"\x0a\xff\xff",
        bytes(1000),
    )
    for piece in garbage * 2:
        bad = await served.connect()
        bad.send(piece)
        assert await bad.is_closed()
    # Frames that are too large, an unknown operation, and requests of a few bytes.
    assert sum("disconnected: " in line for line in caplog.messages) == 3, caplog.messages
    cut = await served.connect()
    cut.send(pack(">I", 1000) + b"\x02\x01")
    cut.writer.close()
    assert await good.add(7, 1) == EOK
    await eventually(lambda: len(served.server._connections) == 1)


def conversation() -> bytes:
    """Of both versions, version 3 first, as one connection may have them."""
    frames: list[Buffer] = []
    for operation, name, value in (
        (pb.AUTH, "authRequest", pb.AuthMessage(authPluginName="sasl", payload=b"x")),
        (pb.READ_ENTRY, "readRequest", pb.ReadRequest(ledgerId=7, entryId=0, masterKey=KEY)),
        (pb.WRITE_LAC, "writeLacRequest", pb.WriteLacRequest(ledgerId=8, lac=1, masterKey=KEY)),
        (pb.FORCE_LEDGER, "forceLedgerRequest", pb.ForceLedgerRequest(ledgerId=7)),
        (
            pb.ADD_ENTRY,
            "addRequest",
            pb.AddRequest(ledgerId=8, entryId=1, masterKey=KEY, body=packet_of(8, 1)),
        ),
    ):
        request = pb.Request()
        request.header.version, request.header.operation, request.header.txnId = 3, operation, 1
        getattr(request, name).CopyFrom(value)
        if name == "writeLacRequest":
            request.writeLacRequest.body = encode_lac(CRC32C, 8, 1)
        body = request.SerializeToString()
        frames.append(pack(">I", len(body)) + body)
    packets = [packet_of(8, entry_id, b"x" * 50) for entry_id in range(2, 6)]
    frames += v2.encode_adds(KEY, packets, [b""] * 4, recovery=False)
    frames += [v2.encode_read(8, entry_id) for entry_id in range(4)]
    frames.append(v2.encode_read(8, -1, flags=1, master_key=KEY))
    frames.append(v2.encode_batch_read(8, 0, 9, 100, LIMIT))
    return b"".join(frames)


async def test_mutated_conversations_hurt_nobody_else(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that changed, are missing or are too many: an answer, or the connection is closed."""
    good = await served.connect()
    assert await good.add(7, 0) == EOK
    whole, rng = conversation(), random.Random(42)
    for number in range(200):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            if rng.random() < 0.2:
                del data[at : at + rng.randint(1, 9)]
            elif rng.random() < 0.2:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            else:
                data[at] = rng.choice((0, 255, rng.randrange(256)))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(data[: rng.randrange(len(data))] if number % 5 == 0 else data)
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                while await reader.read(1 << 16):
                    pass
        writer.close()
        assert await good.add(9, number) == EOK
    await eventually(lambda: len(served.server._connections) == 1)
    await eventually(lambda: served.server.adds.pending_bytes == served.server.reads.used == 0)
    assert [each for each in caplog.records if each.exc_info] == []
    assert served.bookie.error is None


async def test_the_largest_frame(served: Served) -> None:
    client = await served.connect()
    payload = b"x" * (LIMIT - 4 - 24 - 36)
    assert await client.add(7, 0, payload) == EOK
    assert (await client.read(7, 0))[1] == packet_of(7, 0, payload)
    client.send(pack(">I", LIMIT - 3))
    assert await client.is_closed()


async def test_a_client_that_never_reads_holds_no_memory(served: Served) -> None:
    """It asks for far more than it reads; others go on, and it gets all in the end."""
    slow, other = await served.connect(), await served.connect()
    for entry_id in range(10):
        assert await other.add(7, entry_id, b"x" * 1_000_000) == EOK
    count = 300
    slow.send(b"".join(v2.encode_read(7, n % 10) for n in range(count)))
    for entry_id in range(10):
        assert (await other.read(7, entry_id))[0] == EOK
        assert served.server.reads.used <= 1 << 24
    for _ in range(count):
        assert len(await slow.receive()) == 1_000_064
    await eventually(lambda: served.server.reads.used == 0)


async def test_version_3_is_bounded_as_well(served: Served) -> None:
    """Nobody holds more entries for a client that doesn't read than it may have at a time."""
    client = await served.connect()
    for entry_id in range(3):
        assert await client.add(7, entry_id, b"x" * 4_000_000) == EOK
    count, in_memory, peak = 200, 0, 0
    read_entries = served.bookie.read_entries

    async def counted(request: ReadRequest) -> ReadReply:
        nonlocal in_memory, peak
        in_memory += 1
        peak = max(peak, in_memory)
        return await read_entries(request)

    served.bookie.read_entries = counted  # type: ignore[method-assign]
    for number in range(count):
        asked = pb.Request(readRequest=pb.ReadRequest(ledgerId=7, entryId=number % 3))
        asked.header.version, asked.header.operation = 3, pb.READ_ENTRY
        asked.header.txnId = number
        body = asked.SerializeToString()
        client = client if number else await served.connect()
        client.send(pack(">I", len(body)) + body)
    await eventually(lambda: peak > 0)
    other = await served.connect()
    for _ in range(20):  # others are served meanwhile, and nothing more is read for this one
        assert (await other.read(7, 0))[0] == EOK
    assert peak < 80
    for _ in range(count):
        assert len(await client.receive()) > 4_000_000
        in_memory -= 1


async def test_tls_begins_on_the_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server_pair, client_pair = authority.sign("bookie"), authority.sign("client")
    files = [
        TlsFiles(str(pair.certificate), str(pair.key), str(authority.certificate), required)
        for pair, required in ((server_pair, True), (client_pair, False))
    ]
    store = EmbeddedMetadataStore.open(None)
    bookie = await Node(tmp_path / "data", store).start()
    limits = AddLimits(1 << 24), ByteSemaphore(1 << 24)
    server = ProtocolServer(LIMIT, 1 << 20, *limits, tls=lambda: server_context(files[0]))
    served = Served(bookie, server, await server.listen("127.0.0.1", 0))
    server.serve(bookie, "cluster")
    try:
        good = served.client(config=ProtocolConfig(tls=lambda: client_context(files[1])))
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        head = packet_of(7, 0, b"x" * 500_000)
        good.add_entries(
            AddRequest(
                *(7, KEY, range(1), [head], [b""], len(head), False),
                lambda _, code: done.set_result(code),
            )
        )
        assert await done == codes.OK
        assert (await good.read_entries(ReadRequest(7, 0, 1))).packets == [head]  # version 2
        assert (await good.info()).total_bytes > 0  # version 3
        await good.close()
        plain = await served.connect()
        plain.send(v2.encode_read(7, 0))
        assert await plain.is_closed()
        async with served.v3() as v3:
            asked = pb.Request(getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3))
            assert (await v3.call(asked, pb.GET_BOOKIE_INFO, 9)).status == 502
        nobody = TlsFiles(trust=str(authority.certificate))
        without = served.client(config=ProtocolConfig(tls=lambda: client_context(nobody)))
        with pytest.raises(LedgerError):
            await without.info()
        await without.close()
    finally:
        for client in served.clients:
            client.writer.transport.abort()
        await server.close()
        await bookie.close()
        await store.close()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Served]:
    """It wants a login."""
    store = EmbeddedMetadataStore.open(None)
    bookie = await Node(tmp_path, store).start()
    users = {"bookkeeper": "pw", "outsider": "pw"}
    login = SaslLoginPlugin(lambda: users, "book.*")
    server = ProtocolServer(
        LIMIT, 1 << 20, AddLimits(1 << 24), ByteSemaphore(1 << 24), login=login, needs_login=True
    )
    served = Served(bookie, server, await server.listen("127.0.0.1", 0))
    server.serve(bookie, "cluster")
    yield served
    for client in served.clients:
        client.writer.transport.abort()
    await server.close()
    await bookie.close()
    await store.close()


async def add_one(client: ProtocolBookieClient, packet: bytes) -> int:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    client.add_entries(
        AddRequest(
            *(7, KEY, range(1), [packet], [b""], len(packet), False),
            lambda _, code: done.set_result(code),
        )
    )
    return await done


def logging_in(user: str, password: str) -> ProtocolConfig:
    return ProtocolConfig(login=SaslLogin(lambda: SaslCredentials(user, password)))


async def test_who_logs_in_uses_the_bookie(guarded: Served) -> None:
    """By versions 2 and 3; frames have any size from then on."""
    client = guarded.client(config=logging_in("bookkeeper", "pw"))
    packet = packet_of(7, 0, b"x" * 500_000)
    assert await add_one(client, packet) == codes.OK
    assert (await client.read_entries(ReadRequest(7, 0, 1))).packets == [packet]
    assert (await client.info()).total_bytes > 0
    assert guarded.server._unauthenticated == {}
    await client.close()


@pytest.mark.parametrize(
    ("user", "password"), [("bookkeeper", "wrong"), ("nobody", "pw"), ("outsider", "pw")]
)
async def test_who_may_not_log_in_is_refused(guarded: Served, user: str, password: str) -> None:
    client = guarded.client(config=logging_in(user, password))
    with pytest.raises(UnauthorizedAccessError, match=f"user '{user}'"):
        await client.info()
    assert await add_one(client, packet_of(7, 0)) == codes.UNAUTHORIZED
    await client.close()


async def test_who_doesnt_log_in_gets_eua_and_little_room(
    guarded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await guarded.connect()
    assert await client.add(7, 0) == EUA
    assert (await client.read(7, 0))[0] == EUA
    assert (await client.read(7, -1, flags=1, key=KEY))[0] == EUA
    client.send(v2.encode_batch_read(7, 0, 4711, 50, LIMIT))
    assert unpack_from(">iqqq", await client.receive(), 8) == (EUA, 7, 0, 4711)
    async with guarded.v3() as v3:
        asked = pb.Request(getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3))
        assert (await v3.call(asked, pb.GET_BOOKIE_INFO, 9)).status == 502
        other = pb.Request(authRequest=pb.AuthMessage(authPluginName="other", payload=b""))
        assert (await v3.call(other, pb.AUTH, 9)).status == 502
    client.send(pack(">I", 9000))
    assert await client.is_closed()
    # Whoever doesn't say who he is makes room for others, or is closed soon.
    clients = [await guarded.connect() for _ in range(65)]
    assert await clients[0].is_closed()
    assert await clients[-1].add(7, 0) == EUA
    monkeypatch.setattr("magnetar.bookkeeper.bookie_protocol.server._LOGIN_S", 0.01)
    assert await (await guarded.connect()).is_closed()


async def test_a_writer_that_is_too_fast_is_not_read(served: Served) -> None:
    client = await served.connect()
    packet = packet_of(7, 0, b"x" * 100_000)
    heads = [packet_of(7, n, b"x" * 100_000) for n in range(200)]
    frames = b"".join(v2.encode_adds(KEY, heads, [b""] * 200, recovery=False))
    client.send(frames)
    peak = 0
    for _ in range(200):
        reply = await client.receive()
        peak = max(peak, served.server.adds.pending_bytes)
        assert unpack_from(">i", reply, 8) == (EOK,)
    assert peak <= (1 << 20) + (1 << 19) + len(packet)  # a read of the socket more than the limit
    await eventually(lambda: served.server.adds.pending_bytes == 0)
