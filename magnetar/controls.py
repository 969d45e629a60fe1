"""What a test does to a running broker; runs where the broker does, on its loop."""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.server.standalone import Standalone
from magnetar.broker.service.broker_service import BrokerService, wall_clock_ms
from magnetar.broker.service.virtual_clock import VirtualClock
from magnetar.fault_injection import FaultPlan, FaultRates, FaultyService, SlowFileSystem
from magnetar.host import ClockKind


class _FaultyStandalone(Standalone):
    """On a disk and with connections that make faults when they are told to."""

    faults: FaultyService

    def __init__(
        self,
        config: BrokerConfig,
        clock: VirtualClock | None,
        plan: FaultPlan,
        kill: Callable[[], None],
    ) -> None:
        super().__init__(config, lambda root: SlowFileSystem(root, plan), clock)
        self._plan, self._kill = plan, kill

    def _share_load(self, service: BrokerService) -> None:
        # Before it listens: the first client that comes is served with faults.
        super()._share_load(service)
        self.faults = FaultyService(service, self._plan, self._kill)


class ControlledBroker:
    """A standalone broker and what may be ordered of it. Construct it on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: ClockKind,
        ahead_ms: int,
        kill: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """
        Args:
            kill: ends the process at once; gets what the next one goes on from. None: it can't.
        """
        self._kill = kill
        self._clock = VirtualClock(wall_clock_ms, ahead_ms) if clock == "virtual" else None
        self._plan = FaultPlan()
        self.standalone: Final = _FaultyStandalone(config, self._clock, self._plan, self._kill_now)

    async def perform(self, order: str, arguments: list[Any]) -> Any:
        """One order of `EmbeddedBroker`, by the name of a method here."""
        return await getattr(self, order)(*arguments)

    async def advance_to(self, ahead_ms: int) -> None:
        """Until its clock is so far ahead. REQUIRES: its clock is virtual."""
        assert self._clock is not None
        await self._clock.advance(self.standalone.service, ahead_ms - self._clock.ahead_ms)

    async def set_faults(
        self,
        seed: int,
        slow_disk_ms: int,
        rates: dict[str, float],
        drawn: dict[str, int] | None = None,
    ) -> None:
        """Raises ValueError: no rates, or it can't be killed."""
        if rates.get("kill") and self._kill is None:
            raise ValueError('kill: a broker with mode="process" can be killed')
        self._plan.set(seed, FaultRates(**rates), slow_disk_ms / 1000, drawn)

    def _kill_now(self) -> None:
        assert self._kill is not None
        ahead_ms = 0 if self._clock is None else self._clock.ahead_ms
        self._kill({"ahead_ms": ahead_ms, "drawn": self._plan.drawn})

    async def unload(self, topic: str) -> None:
        await self.standalone.faults.unload(topic)

    async def fence(self, topic: str) -> None:
        await self.standalone.faults.fence(topic)
