"""One slow timer for everything that only needs a look now and then.

Keep-alive of all connections and rates of all topics; and it begins the rounds of
background_tasks.py. No timer per connection, topic or message. Rates are sampled each
``statsUpdateFrequencyInSecs``, and as often as there are points of the history while somebody looks
at lists of topics.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from magnetar.broker.index.history import POINT_MS
from magnetar.broker.service.memory import CollectionPlan, TrimPlan, collect_all, trim
from magnetar.metadata.loop_turns import LoopTurns, run_in_turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar.broker.index.broker_index import IndexTables
    from magnetar.broker.index.figure_recorder import Recording
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.topic import Topic

logger = logging.getLogger(__name__)

_SLICE: Final = 100
"""Connections looked at before others get their turn on the loop."""
_SHARE: Final = 100
"""For somebody who looks, samples take at most this part of the time."""


class PeriodicTasks:
    """The broker's housekeeping task."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        config = service.config
        self._interval_s = max(
            0.05,
            min(
                config.keep_alive_interval_seconds / 10,
                config.backlog_quota_check_interval_in_seconds / 2,
            ),
        )
        self._sample_ms = config.stats_update_frequency_in_secs * 1000
        self._sampled_ms = 0
        self._sample_took_ms = 0.0
        self._trims, self.collections = TrimPlan(), CollectionPlan()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._service.loop.create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        service = self._service
        sampled_ms = 0
        while True:
            await asyncio.sleep(self._interval_s)
            now_ms = service.wall_clock()
            try:
                await self._sweep_connections(now_ms)
                cpu_ms = int(time.process_time() * 1000)
                if self._trims.on_sweep(now_ms, service.ledgers.cache.size, cpu_ms):
                    await service.loop.run_in_executor(None, trim)
                self._collect()
                if now_ms >= sampled_ms + self._sample_pause_ms():
                    sampled_ms = now_ms
                    await self._sample(now_ms)
                service.background_tasks.on_sweep(service.clock())
            except Exception:  # the sweep outlives whatever one round met
                logger.exception("sweep failed")

    def is_growth(self) -> bool:
        """Whether most young objects are of new topics and connections (`CollectionPlan`)."""
        return self.collections.is_growth(sum(self._gone_and_alive()))

    def _collect(self) -> None:
        gone, alive = self._gone_and_alive()
        if self.collections.on_sweep(gone, alive, is_quiet=self._trims.is_quiet):
            collect_all()

    def _gone_and_alive(self) -> tuple[int, int]:
        """Topics and connections."""
        service = self._service
        gone = service.topics.unloaded_count + service.metrics.connections_closed
        return gone, len(service.topics) + len(service.connections)

    async def _sweep_connections(self, now_ms: int) -> None:
        for number, connection in enumerate(list(self._service.connections), 1):
            connection.on_sweep(now_ms)
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    def _sample_pause_ms(self) -> float:
        """From one sample to the next."""
        if not self._service.index.is_open:
            return self._sample_ms
        return min(self._sample_ms, max(POINT_MS, _SHARE * self._sample_took_ms))

    async def _sample(self, now_ms: int) -> None:
        service, turns = self._service, LoopTurns()
        recording, tables = service.figure_recorder.begin(now_ms), service.index.begin_walk()
        since_ms = self._sampled_ms
        for topic in service.topics.walk():
            if turns.is_over:
                await turns.next()
            if (mark := topic.quiet_mark()) is None:
                for _ in topic.sample_steps(now_ms, since_ms):
                    if turns.is_over:
                        await turns.next()
            elif tables is None or tables.is_current(topic):
                if recording is not None:
                    recording.add_quiet(topic, mark)
                continue
            for _ in _looks(topic, tables, recording):
                if turns.is_over:
                    await turns.next()
        self._sampled_ms = now_ms
        if recording is not None:
            await run_in_turns(recording.end())
        self._sample_took_ms = 1000 * turns.used_s
        if tables is not None:
            await tables.end_walk(turns.used_s)
            self._sample_took_ms = 1000 * tables.took_s


def _looks(topic: Topic, tables: IndexTables | None, recording: Recording | None) -> Iterable[None]:
    """Of those who are shown each topic, some subscriptions at a step."""
    if tables is not None:
        return tables.look(topic, recording)
    return () if recording is None else recording.look(topic)
