"""The TCP socket of a connection: its bytes, as the system counts them (to count here would cost
each write), and how much the system holds of what is sent.
"""

import asyncio
import contextlib
import socket
from struct import Struct, error
from typing import Final

_ACKED_RECEIVED: Final = Struct("=QQ")
KERNEL_UNSENT_FIRST_BYTES: Final = 16 * 1024
"""For a client that has not been seen to read; for each time that it read what waited, twice."""
KERNEL_UNSENT_BYTES_MAX: Final = 512 * 1024
"""More makes nothing faster."""
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


def limit_kernel_buffer(transport: asyncio.BaseTransport, unsent_bytes: int) -> None:
    """The system takes ``unsent_bytes`` beyond what is on its way, instead of up to 4 MiB.

    Not SO_SNDBUF, which would limit what is on its way too: TCP_NOTSENT_LOWAT (tcp(7)).
    """
    opened = transport.get_extra_info("socket")
    if opened is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):  # no TCP socket
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)


def grow_kernel_buffer(transport: asyncio.BaseTransport, unsent_bytes: int) -> int:
    """The client has read what waited: the system takes twice as much, which is answered."""
    if unsent_bytes >= KERNEL_UNSENT_BYTES_MAX:
        return unsent_bytes
    limit_kernel_buffer(transport, 2 * unsent_bytes)
    return 2 * unsent_bytes
