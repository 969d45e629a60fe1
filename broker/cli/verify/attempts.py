"""Trying again what a cluster refuses for a while: a topic that moves, a name still in use."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from magnetar.broker.cli.errors import CliError
from magnetar.broker.errors import AuthenticationError, AuthorizationError, BrokerError

T = TypeVar("T")
_PAUSE_S: Final = 0.1
_FOREVER: Final = (AuthenticationError, AuthorizationError)


class NoProgressError(CliError):
    """The cluster lets us do nothing for too long: there is nothing to judge."""


async def retried(what: str, work: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """The result of ``work``, called again while the cluster refuses it.

    Raises:
        NoProgressError: for too long, or since we haven't the rights.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return await work()
        except (BrokerError, CliError) as error:
            if isinstance(error, _FOREVER) or time.monotonic() > deadline_s:
                raise NoProgressError(f"{what}: {error}") from error
        await asyncio.sleep(_PAUSE_S)
