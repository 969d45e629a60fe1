"""ZooKeeper servers that refuse, are silent, or answer: who is reached, and how soon."""

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from magnetar.metadata.store import SessionEvent
from magnetar.metadata.zookeeper.connection import Server, reach_one
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings
from magnetar.metadata.zookeeper.store import ZooKeeperStore
from tests.integration.metadata_proxy import Proxy
from tests.unit.metadata.event_log import EventLog
from tests.zookeeper_process import ZooKeeperProcess

_PATIENCE_S = 60.0  # of a server: far more than a test waits


@contextmanager
def listening() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


@contextmanager
def silent() -> Iterator[Server]:
    """As a machine that is gone: what is sent there is dropped, as its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield listener.getsockname()


@contextmanager
def refusing() -> Iterator[Server]:
    """Bound, so that nobody else listens there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()


async def test_nobody_waits_for_a_silent_server() -> None:
    failures: list[Server] = []
    with silent() as first, silent() as second, refusing() as third, listening() as last:
        servers = [first, second, third, last]
        async with asyncio.timeout(_PATIENCE_S / 2):
            found = await reach_one(servers, _PATIENCE_S, lambda server, _: failures.append(server))
        assert found is not None
        server, sock = found
        with sock:
            assert server == last
            assert sock.getpeername() == last
        assert failures == [third]
        assert servers == [first, second]  # may answer yet


async def test_each_failure_is_told_and_none_is_tried_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        if host == "no-such-host.invalid":  # a real resolver may take longer than the time given
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    failures: list[tuple[Server, type[Exception]]] = []
    with refusing() as first, silent() as second:
        servers = [first, second, ("no-such-host.invalid", 1)]
        found = await reach_one(
            servers, 1.0, lambda server, error: failures.append((server, type(error)))
        )
        assert found is None
        assert servers == []
        assert sorted(failures, key=str) == sorted(
            [
                (first, ConnectionRefusedError),
                (second, TimeoutError),
                (("no-such-host.invalid", 1), socket.gaierror),
            ],
            key=str,
        )


async def test_what_is_broken_off_leaves_nothing_behind() -> None:
    with silent() as server:
        dialing = asyncio.create_task(
            reach_one([server, server], _PATIENCE_S, lambda *_: pytest.fail("nothing failed"))
        )
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        dialing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialing
        assert asyncio.all_tasks() <= before - {dialing} | {asyncio.current_task()}


async def test_a_store_that_lost_its_server_finds_the_next_beside_silent_ones(
    zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent ones are asked first; a session of two minutes would wait for 13 s for each."""
    monkeypatch.setattr(random.Random, "shuffle", lambda _, servers: servers.sort(reverse=True))
    async with Proxy(zookeeper.port) as proxy:
        with silent() as first, silent() as second:
            names = [f"{host}:{port}" for host, port in (first, second)]
            url = ",".join([proxy.url("").removeprefix("zk:").partition("/")[0], *names])
            settings = ZooKeeperSettings.parse(f"zk:{url}/dialing", session_timeout_s=20.0)
            async with asyncio.timeout(_PATIENCE_S):
                store = await ZooKeeperStore.connect(settings)
                log = EventLog[SessionEvent]()
                store.on_session_event(log)
                proxy.cut()
                await log.until(lambda events: SessionEvent.RECONNECTED in events)
            assert SessionEvent.SESSION_LOST not in log.events
            await store.close()
