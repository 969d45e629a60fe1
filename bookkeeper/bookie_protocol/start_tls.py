"""A connection to a bookie with TLS: asked for in the clear, in version 3, then begun on it."""

import asyncio
import ssl
from typing import Final, cast

from google.protobuf.message import DecodeError

from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH
from magnetar.bookkeeper.bookie_protocol.result_codes import EOK
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb

_ANSWER_BYTES_MAX: Final = 1024


async def connect_tls(
    protocol: asyncio.Protocol, context: ssl.SSLContext, host: str, port: int
) -> None:
    """Connect ``protocol`` over TLS; the bookie's certificate must name the host.

    Raises:
        OSError: no connection, no TLS there, or no certificate that can be trusted.
    """
    loop = asyncio.get_running_loop()
    _, asking = await loop.create_connection(_Asking, host, port)
    try:
        await asking.allowed
        transport = await loop.start_tls(asking.transport, protocol, context, server_hostname=host)
    except BaseException:
        asking.transport.abort()
        raise
    assert transport is not None
    protocol.connection_made(transport)


class _Asking(asyncio.Protocol):
    """Sends START_TLS; ``allowed`` is done once the answer is there."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.allowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        request = pb.Request(startTLSRequest=pb.StartTLSRequest())
        request.header.version, request.header.operation = 3, pb.START_TLS
        request.header.txnId = 1
        body = request.SerializeToString()
        self.transport.write(LENGTH.pack(len(body)) + body)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) < LENGTH.size or self.allowed.done():
            return
        (size,) = LENGTH.unpack_from(self._data)
        if size > _ANSWER_BYTES_MAX:
            self._refuse(f"an answer of {size} bytes to START_TLS")
        elif len(self._data) >= LENGTH.size + size:
            self._read(self._data[LENGTH.size :])

    def _read(self, body: bytes) -> None:
        try:
            response = pb.Response.FromString(body)
        except DecodeError:
            self._refuse("no answer to START_TLS")
            return
        if response.status != EOK.v3 or response.header.operation != pb.START_TLS:
            self._refuse(f"it has no TLS (code {response.status})")
        else:
            self.allowed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.allowed.done():
            self._refuse("it closed the connection instead of an answer to START_TLS")

    def _refuse(self, reason: str) -> None:
        self.allowed.set_exception(ConnectionError(reason))
