"""What a test does to a running broker; runs where the broker does, on its loop."""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.server.standalone import Standalone
from magnetar.broker.service.broker_service import wall_clock_ms
from magnetar.broker.service.virtual_clock import VirtualClock
from magnetar.host import ClockKind


class ControlledBroker:
    """A standalone broker and what may be ordered of it. Construct it on the loop."""

    def __init__(self, config: BrokerConfig, clock: ClockKind) -> None:
        self._clock = VirtualClock(wall_clock_ms) if clock == "virtual" else None
        self.standalone: Final = Standalone(config, virtual_clock=self._clock)

    async def perform(self, order: str, arguments: list[Any]) -> Any:
        """One order of `EmbeddedBroker`, by the name of a method here."""
        return await getattr(self, order)(*arguments)

    async def advance(self, span_ms: int) -> None:
        """REQUIRES: its clock is virtual."""
        assert self._clock is not None
        await self._clock.advance(self.standalone.service, span_ms)
