"""Ends the session of another process, over a connection of its own.

ZooKeeper lets whoever has a session's id and password resume it on a new connection, and close it
there. What its holder sends afterwards is refused.
"""

import asyncio
import random

from magnetar.metadata.errors import StoreUnreachableError
from magnetar.metadata.zookeeper.session import DropConnection, SessionCore
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings

_READ_BYTES = 4096
_ATTEMPT_MAX_S = 5.0
_ROUNDS, _PAUSE_S = 6, 0.02
"""Whoever ends it at the same moment gets our connections closed until its end is committed."""


async def end_session(settings: ZooKeeperSettings, session_id: int, password: bytes) -> None:
    """Asks one server after the other, more than once, until the session is over.

    Raises:
        StoreUnreachableError: none of them has said so.
    """
    if session_id >= 1 << 63:
        session_id -= 1 << 64  # on the wire it has a sign
    core = SessionCore.of_condemned(settings.session_timeout_s, session_id, password)
    failure: object = "no server has answered"
    for number in range(_ROUNDS):
        await asyncio.sleep(number * _PAUSE_S)
        for host, port in random.sample(settings.servers, len(settings.servers)):
            try:
                async with asyncio.timeout(_ATTEMPT_MAX_S):
                    failure = await _attempt(core, settings, host, port)
            except Exception as error:  # whatever it is, the next server may do better
                failure = f"{host}:{port}: {error or 'no answer'}"
                core.connection_lost(asyncio.get_running_loop().time())
            if core.is_expired:
                return
    raise StoreUnreachableError(str(settings), failure)


async def _attempt(core: SessionCore, settings: ZooKeeperSettings, host: str, port: int) -> str:
    """Why the connection ended."""
    loop = asyncio.get_running_loop()
    tls = settings.tls
    reader, writer = await asyncio.open_connection(
        host,
        port,
        ssl=None if tls is None else tls.context(),
        server_hostname=None if tls is None else host,
    )
    try:
        core.connection_made(loop.time(), _ATTEMPT_MAX_S)
        while True:
            writer.writelines(core.take_output(loop.time()))
            if not (data := await reader.read(_READ_BYTES)):
                core.connection_lost(loop.time())
                return f"{host}:{port}: the server closed the connection"
            core.data_received(data, loop.time())
            for effect in core.take_effects():
                if type(effect) is DropConnection:
                    return f"{host}:{port}: {effect.reason}"
    finally:
        writer.close()
