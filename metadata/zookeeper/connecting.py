"""Which of several servers can be reached: a machine that is gone doesn't refuse, it is silent, so
nobody waits for one before the next is asked, too."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

HEAD_START_S = 0.25
"""Before the next server is asked, too: more than an answer takes, less than anybody notices."""

Server = tuple[str, int]


async def reach_one(
    servers: list[Server], timeout_s: float, on_failure: Callable[[Server, Exception], None]
) -> tuple[Server, socket.socket] | None:
    """The first one that is reached; earlier ones are asked earlier.

    Args:
        servers: those that failed, and the one that is reached, are taken out.
        timeout_s: for each of them.
    Returns:
        None: ``servers`` is empty.
    """
    asking: dict[asyncio.Task[socket.socket], Server] = {}
    unasked = list(servers)
    try:
        while asking or unasked:
            if unasked:
                server = unasked.pop(0)
                asking[asyncio.create_task(_reach(server, timeout_s))] = server
            done, _ = await asyncio.wait(
                asking,
                timeout=HEAD_START_S if unasked else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in sorted(done, key=lambda each: each.exception() is not None):
                error = task.exception()
                server = asking[task]
                servers.remove(server)
                del asking[task]
                if error is None:
                    return server, task.result()
                if not isinstance(error, Exception):
                    raise error
                on_failure(server, error)
        return None
    finally:
        for task in asking:
            task.cancel()
        for each in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(each, socket.socket):
                each.close()


async def _reach(server: Server, timeout_s: float) -> socket.socket:
    """Raises: OSError: at none of its addresses. TimeoutError: one is silent."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    async with asyncio.timeout(timeout_s):
        for family, kind, protocol, _, address in await loop.getaddrinfo(
            *server, type=socket.SOCK_STREAM
        ):
            try:
                return await _connect(socket.socket(family, kind, protocol), address)
            except OSError as error:
                failure = error
    raise failure or OSError("the name has no address")


async def _connect(sock: socket.socket, address: Any) -> socket.socket:
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
