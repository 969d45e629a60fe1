"""Tells the store, and so the leader, of this broker's load: when it has changed enough."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.model import BrokerLoad, Weights, report_due
from magnetar.loadbalance.registry import BrokerRegistry
from magnetar.metadata.errors import MetadataError, ValueTooLargeError

logger = logging.getLogger(__name__)

_FEWER: Final = (2_000, 1_000, 300)
"""Bundles whose figures are told when all don't fit: about 250 bytes each, in 1,000,000."""


class LoadReporter:
    """Looks every ``loadBalancerReportUpdateMinIntervalMillis`` while it runs."""

    def __init__(
        self,
        registry: BrokerRegistry,
        config: Callable[[], BalancerConfig],
        measure: Callable[[], Awaitable[BrokerLoad]],
    ) -> None:
        """
        Args:
            config: the settings of now.
            measure: this broker's load of now.
        """
        self._registry, self._config, self._measure = registry, config, measure
        self._last: BrokerLoad | None = None
        self._reported_s = 0.0
        self._forced = asyncio.Event()

    def report_soon(self) -> None:
        """Report regardless of thresholds: bundles were split, or a drain begins."""
        self._forced.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            forced = self._forced.is_set()
            self._forced.clear()
            try:
                await self.look(forced=forced)
            except MetadataError as error:
                logger.info("no load report: %s", error)
            except Exception:
                logger.exception("no load report")
            interval_s = self._config().load_balancer_report_update_min_interval_millis / 1000
            try:
                async with asyncio.timeout(max(interval_s, 0.1)):
                    await self._forced.wait()
            except TimeoutError:
                pass

    async def look(self, *, forced: bool = False) -> bool:
        """Measure, and write it if it is due; whether it was written.

        Raises:
            MetadataError: the store didn't take it; it stays due.
        """
        config, loop = self._config(), asyncio.get_running_loop()
        load = await self._measure()
        now_s = loop.time()
        due = report_due(self._last, now_s - self._reported_s, load, config, Weights.of(config))
        if not due and not forced:
            return False
        if not await self._publish(load):
            return False
        self._last, self._reported_s = load, now_s
        return True

    async def _publish(self, load: BrokerLoad) -> bool:
        try:
            return await self._registry.publish(load)
        except ValueTooLargeError as error:
            logger.warning("the load report tells of the busiest bundles only: %s", error)
        busiest = sorted(load.stats.items(), key=lambda item: -item[1].throughput)
        for count in _FEWER:
            try:
                return await self._registry.publish(replace(load, stats=dict(busiest[:count])))
            except ValueTooLargeError:
                continue
        return await self._registry.publish(replace(load, stats={}, bundles=load.bundles[:10_000]))
