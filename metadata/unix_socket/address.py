"""Unix sockets of any path: the system's addresses end at 107 bytes."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_ADDRESS_BYTES_MAX: Final = 100  # 107 on Linux, 103 elsewhere


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket that the system takes."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"  # on Linux; elsewhere it isn't found
    finally:
        os.close(folder)


def listening_socket(path: Path) -> socket.socket:
    """Takes the place of a socket that a dead process has left there. Raises OSError."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        with _short(path) as name:
            listener.bind(name)
        path.chmod(0o600)
    except BaseException:
        listener.close()
        raise
    return listener


async def connect_unix(path: Path, new_protocol: Callable[[], asyncio.Protocol]) -> None:
    """Raises OSError: nobody listens there."""
    loop = asyncio.get_running_loop()
    client = socket.socket(socket.AF_UNIX)
    try:
        client.setblocking(False)
        with _short(path) as name:
            await loop.sock_connect(client, name)
        await loop.create_unix_connection(new_protocol, sock=client)
    except BaseException:
        client.close()
        raise
