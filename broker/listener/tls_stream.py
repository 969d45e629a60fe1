"""TLS between a socket's transport and a protocol, after the handshake.

Made for bulk: what one read of the socket brings is decrypted straight into the protocol's buffer
and handed over once; what a protocol writes in one go is encrypted in one go, in full records, and
leaves with one write. The buffer for encrypted bytes is shared by all connections of a loop.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

from magnetar.broker.listener.tls_handshakes import TlsHandshake

logger = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
"""Of one read of a socket, at most."""
_ENCRYPTED_BYTES: Final = 64 * 1024
"""At once: OpenSSL's buffer grows to this, and stays so for the life of the connection. With much
larger objects the C library takes pages from the kernel and gives them back each time, which costs
more than to encrypt them (measured: 256 KiB 1.19 CPU s/GB, 64 KiB 0.47).
"""
_RECORD_BYTES: Final = 16 * 1024
_CHUNK_BYTES: Final = 64 * 1024
"""Of decrypted bytes for protocols that want objects."""


class TlsStream(asyncio.BufferedProtocol, asyncio.Transport):
    """To the socket's transport it is the protocol, and to the protocol it is the transport."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: TlsHandshake,
        received: bytes,
        factory: Callable[[], asyncio.BaseProtocol],
        buffer: memoryview,
    ) -> None:
        """
        Args:
            handshake: it is done.
            received: what came behind it.
            factory: of the protocol above.
            buffer: for encrypted bytes, in use only while they are read.
        """
        asyncio.Transport.__init__(self)
        assert handshake.done
        assert handshake.tls is not None
        self._loop = loop
        self._tls = handshake.tls
        self._incoming, self._outgoing = handshake.incoming, handshake.outgoing
        self._received = received
        self._buffer = buffer
        self._factory = factory
        self._protocol: Any = None
        self._is_buffered = False
        self._lower: Any = None  # uvloop's transports are no subclasses of asyncio's
        self._paused = False  # by the protocol
        self._ended = False  # the peer says nothing more
        self._closing = False

    # --- the socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lower = transport
        self.set_protocol(self._factory())
        self._protocol.connection_made(self)
        if self._received:
            self._incoming.write(self._received)
            self._received = b""
        if self._incoming.pending and not self._closing:
            self._decrypt()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._protocol.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self._incoming.write(self._buffer[:nbytes])
        if self._paused:
            # uvloop's transports read after connection_made, although they were paused in it.
            self._lower.pause_reading()
        else:
            self._decrypt()

    def eof_received(self) -> bool | None:
        # Without TLS's own word for it. Whether something is missing shows in the protocol above.
        self._on_end()
        return None

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # --- reading

    def _decrypt(self) -> None:
        """Hand over all that can be decrypted, unless the protocol pauses."""
        incoming, tls = self._incoming, self._tls
        try:
            while incoming.pending or tls.pending():
                if self._closing or self._paused:
                    break
                if not (self._fill() if self._is_buffered else self._feed()):
                    break
        except ssl.SSLError as error:
            self._flush()  # an alert
            self._closing = True
            self._lower.close()
            logger.debug("TLS: connection closed: %s", error)
            return
        if self._outgoing.pending:
            self._flush()  # new keys, or tickets

    def _fill(self) -> bool:
        """One buffer of the protocol; whether there may be more."""
        protocol, read = self._protocol, self._tls.read
        buffer = protocol.get_buffer(-1)
        filled, size = 0, len(buffer)
        goes_on, ended = True, False
        incoming, pending = self._incoming, self._tls.pending
        try:
            while filled < size:
                count = cast("int", read(size - filled, buffer[filled:]))
                if not count:
                    ended = True
                    break
                filled += count
                if not incoming.pending and not pending():
                    break
        except ssl.SSLWantReadError:
            goes_on = False
        if filled:
            protocol.buffer_updated(filled)
        if ended:
            self._on_end()
        return goes_on and not ended

    def _feed(self) -> bool:
        """The same for protocols without buffers."""
        parts: list[bytes] = []
        goes_on = ended = False
        size = 0
        try:
            while size < READ_BYTES:
                data = self._tls.read(_CHUNK_BYTES)
                if not data:
                    ended = True
                    break
                parts.append(data)
                size += len(data)
                if not self._incoming.pending and not self._tls.pending():
                    break
            else:
                goes_on = True
        except ssl.SSLWantReadError:
            pass
        if parts:
            self._protocol.data_received(b"".join(parts))
        if ended:
            self._on_end()
        return goes_on and not ended

    def _on_end(self) -> None:
        """The peer says nothing more: neither do we."""
        if self._ended:
            return
        self._ended = True
        if not self._closing:
            self._protocol.eof_received()
            self.close()

    def _go_on(self) -> None:
        if not self._paused and not self._closing and not self._ended:
            self._decrypt()

    # --- the protocol's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._closing:
            return
        encrypt, outgoing = self._tls.write, self._outgoing
        parts: list[bytes] = []
        try:
            for data in _records(list_of_data):
                encrypt(data)
                if outgoing.pending >= _ENCRYPTED_BYTES:
                    parts.append(outgoing.read())
        except ssl.SSLError as error:  # the peer has ended the session with an alert
            logger.debug("TLS: connection aborted: %s", error)
            self.abort()
            return
        if outgoing.pending:
            parts.append(outgoing.read())
        if parts:
            self._lower.writelines(parts)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._lower.is_closing():
            self._lower.write(self._outgoing.read())

    def close(self) -> None:
        """What was written leaves first, then word that it was all."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()  # raises: the peer's word for it isn't waited for
        self._flush()
        self._lower.close()

    def abort(self) -> None:
        self._closing = True
        self._lower.abort()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._paused = True
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._lower.resume_reading()
        if self._incoming.pending or self._tls.pending():
            self._loop.call_soon(self._go_on)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        size: int = self._lower.get_write_buffer_size()
        return size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        limits: tuple[int, int] = self._lower.get_write_buffer_limits()
        return limits

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "ssl_object":
                return self._tls
            case "sslcontext":
                return self._tls.context
            case "peercert":
                return self._tls.getpeercert()
            case "cipher":
                return self._tls.cipher()
        return self._lower.get_extra_info(name, default)


def _records(buffers: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """The same bytes, small neighbours joined so that they share a record, large ones cut."""
    small: list[bytes | bytearray | memoryview] = []
    size = 0
    for data in buffers:
        length = len(data)
        if length < _RECORD_BYTES:
            small.append(data)
            size += length
            if size < _RECORD_BYTES:
                continue
            yield b"".join(small)
            small, size = [], 0
            continue
        if size:  # an empty record would be an error
            yield b"".join(small)
            small, size = [], 0
        if length <= _ENCRYPTED_BYTES:
            yield cast("bytes", data)  # OpenSSL takes any buffer
            continue
        view = memoryview(data)
        for start in range(0, length, _ENCRYPTED_BYTES):
            yield cast("bytes", view[start : start + _ENCRYPTED_BYTES])
    if size:
        yield b"".join(small)
