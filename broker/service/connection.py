"""One client's TCP connection: frames in, commands out, back-pressure in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.protocol import pulsar_api_pb2 as pb
    from broker.service.broker_service import BrokerService

__all__ = ["Connection"]


class Connection(asyncio.BufferedProtocol):
    """The shell around the protocol; command handlers are functions in ``*_commands.py``.

    consumer_commands.py wraps it in its ConsumerSink and keeps its consumers in ``consumers``.
    """

    service: BrokerService
    client_version: str
    protocol_version: int
    features: pb.FeatureFlags
    remote: str
    closed: bool
    writable: bool
    """False while the socket's send buffer is above its high-water mark."""
    producers: dict[int, Any]
    consumers: dict[int, Any]
    on_writable: dict[object, Callable[[], None]]
    """Called when the connection becomes writable again; keyed so that owners can remove theirs."""
    on_closed: dict[object, Callable[[], None]]
    """Called once when the connection is gone."""

    def write(self, buffers: list[bytes | memoryview]) -> None:
        """Queue buffers in call order; all of a tick leave with one write."""
        raise NotImplementedError

    def send(self, command: pb.BaseCommand) -> None:
        """Queue a simple command; it is serialised before this returns."""
        raise NotImplementedError

    def reply_error(self, request_id: int, error: BrokerError | int, message: str = "") -> None:
        """Queue an ERROR command; ``error`` is an exception of the tree or a ServerError number."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """Drop the connection with no further word."""
        raise NotImplementedError

    async def check_liveness(self) -> bool:
        """PING; whether any byte came back in time (wire-protocol 4.19). Closes the dead one."""
        raise NotImplementedError

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task that the connection owns: cancelled when it closes, errors are reported."""
        raise NotImplementedError
