"""The metrics page: figures of all loaded topics as Prometheus text.

Made in turns of half a millisecond: a broker with 10,000 topics shows half a
million series, and nobody else shall wait for them. A turn ends when its time is over, looked at
after every topic, every 32 subscriptions and every 128 lines. Slow questions to the
system, such as for the open files, run in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette

from magnetar.broker.http.metrics.bookie_metrics import add_bookie_metrics, bookie_disk
from magnetar.broker.http.metrics.broker_metrics import (
    CacheRates,
    add_broker_metrics,
    add_schemas,
    process_metrics,
)
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label
from magnetar.broker.http.metrics.topic_metrics import TopicMetrics
from magnetar.broker.http.metrics.transaction_metrics import add_coordinators
from magnetar.broker.service.broker_service import BrokerService
from magnetar.metadata.loop_turns import LoopTurns

if TYPE_CHECKING:
    from magnetar.broker.http.middleware.request_context import HttpMetrics

PIECE_BYTES: Final = 256 * 1024
"""A client gets so much at once: small enough to be copied and sent within a turn."""


def metrics_of(app: Starlette, service: BrokerService) -> AsyncIterator[bytes]:
    """As ``metrics_pieces``; ``app`` serves ``service``."""
    state = app.state
    return metrics_pieces(service, state.http_figures, state.cache_rates, version=state.version)


async def metrics_pieces(
    service: BrokerService,
    http: HttpMetrics,
    cache_rates: CacheRates,
    *,
    version: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[bytes]:
    """The page in pieces of about ``PIECE_BYTES``, the last one smaller.

    Args:
        version: of this product.
        clock: seconds, by which turns end.
    """
    page = PrometheusPage(service.cluster, service.process_name)
    topics = TopicMetrics(page, service)
    turns = LoopTurns(clock)
    for _ in topics.steps():
        if turns.is_over:
            await turns.next()
    for _ in add_schemas(page, service):
        if turns.is_over:
            await turns.next()
    add_coordinators(page, service)
    throttled = 0
    for connection in list(service.connections):
        throttled += connection.paused
        if turns.is_over:
            await turns.next()
    process = await asyncio.to_thread(process_metrics)
    await turns.next()
    add_broker_metrics(page, service, http, cache_rates, topics, process, throttled)
    if (bookie := service.bookie) is not None:
        disk = await asyncio.to_thread(bookie_disk, bookie)
        await turns.next()
        period_s = service.config.stats_update_frequency_in_secs
        add_bookie_metrics(page, bookie, disk, period_s)
    page.add("pulsar_version_info", f'{page.base},{label("version", version)},commit=""', 1)
    if service.other_metrics is not None:
        for other in await service.other_metrics():
            await asyncio.to_thread(page.add_page, other)
    ready: list[bytes] = []
    size = 0
    await turns.next()
    for piece in page.pieces():
        ready.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(ready)
            ready, size = [], 0
            await turns.next()
        elif turns.is_over:
            await turns.next()
    if ready:
        yield b"".join(ready)
