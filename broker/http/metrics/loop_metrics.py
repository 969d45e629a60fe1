"""Series of the event loop's long turns, of brokers and bookies alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.bookkeeper.loop_stalls import CAUSES
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label

if TYPE_CHECKING:
    from magnetar.bookkeeper.loop_stalls import LoopStalls


def add_stalls(page: PrometheusPage, stalls: LoopStalls) -> None:
    for cause in CAUSES:
        labels = f"{page.base},{label('cause', cause)}"
        name = "magnetar_loop_stall_seconds"
        page.add(f"{name}_sum", labels, stalls.seconds[cause], "counter")
        page.add(f"{name}_count", labels, stalls.counts[cause], "counter")
        page.add(f"{name}_max", labels, stalls.longest_s[cause])
