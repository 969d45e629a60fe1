"""Whether clients should be sent to this broker, and why not: ``/readyz``.

Not asked for liveness: a broker that lost ZooKeeper serves on what it has, and isn't helped by a
restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.loadbalance.registry import BROKERS_ROOT
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

_ANSWER_S_MAX: Final = 2.0
"""Probes wait no longer than some seconds."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why clients shouldn't be sent to a broker.

    Attributes:
        lacks_store: for want of the metadata store; topics that are open are served.
    """

    reason: str
    lacks_store: bool = False


class Readiness:
    """Asked by probes; keeps one look at the metadata store under way at most.

    Attributes:
        is_draining: it is told to stop, and gives its bundles away.
    """

    def __init__(self, service: BrokerService) -> None:
        self.is_draining = False
        self._service = service
        self._look: asyncio.Task[NotReady | None] | None = None

    async def trouble(self) -> NotReady | None:
        """None: it is ready."""
        if self.is_draining:
            return NotReady("draining: its topics go to other brokers")
        if not self._service.ready:
            return NotReady("starting or stopping")
        if self._look is None or self._look.done():
            self._look = self._service.loop.create_task(self._ask_store())
        # All probes share one read, also one that hangs.
        done, _ = await asyncio.wait((self._look,), timeout=_ANSWER_S_MAX)
        if not done:
            return NotReady("the metadata store doesn't answer", lacks_store=True)
        return self._look.result()

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()

    async def _ask_store(self) -> NotReady | None:
        service = self._service
        path = f"{BROKERS_ROOT}/{service.broker_id}"
        try:
            node = await service.store.get(path)
        except MetadataError as error:
            return NotReady(f"the metadata store: {error}", lacks_store=True)
        if service.sharing is not None and (node is None or not node.stat.created_by_self):
            return NotReady("not registered among the cluster's brokers")
        return None
