"""A Prometheus page (text format 0.0.4) under construction. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["MetricsPage", "label"]


class MetricsPage:
    """Series by metric name, as the format wants them grouped."""

    def __init__(self, cluster: str) -> None:
        self._series: dict[str, list[str]] = {}
        self.base = label("cluster", cluster)
        """The label that every series has."""

    def add(self, name: str, labels: str, value: float, kind: str = "gauge") -> None:
        """One series.

        Args:
            labels: ``name="value"`` pairs with commas between them.
            kind: of the metric, by its first series; a counter's TYPE line lacks ``_total``.
        """
        lines = self._series.get(name)
        if lines is None:
            lines = self._series[name] = [f"# TYPE {name} {kind}"]
        lines.append(f"{name}{{{labels}}} {value}")

    def add_all(self, labels: str, values: Iterable[tuple[str, float]]) -> None:
        """Gauges of one thing, such as a topic."""
        series = self._series
        for name, value in values:
            lines = series.get(name)
            if lines is None:
                lines = series[name] = [f"# TYPE {name} gauge"]
            lines.append(f"{name}{{{labels}}} {value}")

    def add_summary(
        self,
        name: str,
        quantiles: Iterable[tuple[str, float]],
        count: int,
        total: float,
        labels: str = "",
    ) -> None:
        """A summary; quantiles without recent data are NaN."""
        labels = labels or self.base
        lines = self._series[name] = [f"# TYPE {name} summary"]
        for quantile, value in quantiles:
            text = "NaN" if math.isnan(value) else str(value)
            lines.append(f'{name}{{{labels},quantile="{quantile}"}} {text}')
        lines.append(f"{name}_count{{{labels}}} {count}")
        lines.append(f"{name}_sum{{{labels}}} {total}")

    def render(self) -> bytes:
        return b"".join("\n".join(lines).encode() + b"\n" for lines in self._series.values())


def label(name: str, value: str) -> str:
    """``name="value"`` with the format's escapes."""
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{value}"'
