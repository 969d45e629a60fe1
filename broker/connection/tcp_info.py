"""Bytes of a TCP connection, as the system counts them: to count here would cost each write."""

import asyncio
import socket
from struct import Struct, error
from typing import Final

_ACKED_RECEIVED: Final = Struct("=QQ")
_OFFSET: Final = 120
"""Of ``tcpi_bytes_acked``, with ``tcpi_bytes_received`` behind it (linux/tcp.h, since 4.1)."""


def transferred_bytes(transport: asyncio.BaseTransport) -> tuple[int | None, int | None]:
    """Received, and sent and taken by the peer's system; with TLS as it is on the wire.

    None: the system doesn't tell.
    """
    opened = transport.get_extra_info("socket")
    if opened is None or not hasattr(socket, "TCP_INFO"):
        return None, None
    size = _OFFSET + _ACKED_RECEIVED.size
    try:
        info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        sent, received = _ACKED_RECEIVED.unpack_from(info, _OFFSET)
    except (OSError, error):
        return None, None
    return received, sent
