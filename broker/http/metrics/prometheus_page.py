"""A Prometheus page (text format 0.0.4) under construction. Pure.

The broker's own series, which are few, are added one by one. Series of topics and subscriptions go
into tables: one label set and one row of values for each of them. The page is read as an iterator
of small pieces, made on demand: the whole page is never in memory, and the reader may do something
else between two pieces.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from struct import pack
from typing import Final, TypeAlias

from magnetar.bookkeeper.metrics import Durations

BLOCK_ROWS: Final = 128
"""Lines of a piece at most: some 20 microseconds of work, 20 KiB."""

_Column: TypeAlias = "tuple[list[str], Iterable[float]]"


class SeriesTable:
    """Series of many things that have the same metrics, kept by column in blocks of rows.

    Numbers are packed, since a collection of garbage would walk the tuples of 100,000 topics.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._labels: list[str] = []
        self._rows: list[tuple[float, ...]] = []
        self._blocks: list[tuple[list[str], list[bytes]]] = []
        self._left = len(self.names)  # columns that nobody has taken

    def add(self, labels: str, values: tuple[float, ...]) -> None:
        """One thing.

        Args:
            labels: ``name="value"`` pairs with commas between them.
            values: one for each of ``names``.
        """
        assert len(values) == len(self.names)
        self._labels.append(labels)
        self._rows.append(values)
        if len(self._rows) == BLOCK_ROWS:
            self._seal()

    def _seal(self) -> None:
        if self._rows:
            form = f"{len(self._rows)}d"
            columns = [pack(form, *values) for values in zip(*self._rows, strict=True)]
            self._blocks.append((self._labels, columns))
            self._labels, self._rows = [], []

    def take_column(self, index: int) -> Iterator[_Column]:
        """The labels and values of one metric, block by block; they are gone afterwards.

        The last column takes the labels along: all of them at once would hold the loop for 10 ms.
        """
        self._seal()
        self._left -= 1
        for number, (labels, columns) in enumerate(self._blocks):
            values, columns[index] = memoryview(columns[index]).cast("d"), b""
            if not self._left:
                self._blocks[number] = [], []
            yield labels, values


class _Metric:
    """All series of one name: they stand together on the page."""

    __slots__ = ("columns", "kind", "lines")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.lines: list[str] = []
        self.columns: list[tuple[SeriesTable, int]] = []


class PrometheusPage:
    """Series by metric name, as the format wants them grouped."""

    def __init__(self, cluster: str, process: str = "") -> None:
        """``process``: which of several processes whose series share a page; "": it is alone."""
        self._metrics: dict[str, _Metric] = {}
        self.base = label("cluster", cluster)
        if process:
            self.base += "," + label("process", process)
        """The label that every series has."""

    def _metric(self, name: str, kind: str = "gauge") -> _Metric:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = _Metric(kind)
        return metric

    def add(self, name: str, labels: str, value: float, kind: str = "gauge") -> None:
        """One series.

        Args:
            labels: ``name="value"`` pairs with commas between them.
            kind: of the metric, by its first series.
        """
        self._metric(name, kind).lines.append(f"{name}{{{labels}}} {value}")

    def add_page(self, page: bytes) -> None:
        """All series of a page that another process has made as this class makes them."""
        metric = _Metric("untyped")
        for line in page.decode().splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                metric = self._metric(name, kind)
            else:
                metric.lines.append(line)

    def table(self, names: Sequence[str]) -> SeriesTable:
        """A new table of gauges; a metric may be in several, and have single series as well."""
        table = SeriesTable(names)
        for index, name in enumerate(names):
            self._metric(name).columns.append((table, index))
        return table

    def add_summary(
        self,
        name: str,
        quantiles: Iterable[tuple[str, float]],
        count: int,
        total: float,
        labels: str = "",
    ) -> None:
        """A summary; quantiles without recent data are NaN. Several differ by their labels."""
        labels = labels or self.base
        lines = self._metric(name, "summary").lines
        for quantile, value in quantiles:
            text = "NaN" if math.isnan(value) else str(value)
            lines.append(f'{name}{{{labels},quantile="{quantile}"}} {text}')
        lines.append(f"{name}_count{{{labels}}} {count}")
        lines.append(f"{name}_sum{{{labels}}} {total}")

    def add_durations(
        self,
        name: str,
        durations: Durations,
        wanted: Sequence[str],
        now_s: float,
        period_s: float,
        labels: str = "",
    ) -> None:
        """A summary of ``durations``; its quantiles ``wanted`` are of the last period."""
        values = durations.quantiles([float(each) for each in wanted], now_s, period_s)
        pairs = zip(wanted, values, strict=True)
        self.add_summary(name, pairs, durations.count, durations.sum_ms, labels)

    def add_histogram(
        self,
        name: str,
        limits: Iterable[float],
        counts: Iterable[int],
        total: float,
        labels: str = "",
    ) -> None:
        """A histogram; ``counts`` are those of each bucket alone, the last one above all limits."""
        labels = labels or self.base
        lines = self._metric(name, "histogram").lines
        bounds = [*(str(float(limit)) for limit in limits), "+Inf"]
        count = 0
        for bound, inside in zip(bounds, counts, strict=True):
            count += inside
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {count}')
        lines.append(f"{name}_count{{{labels}}} {count}")
        lines.append(f"{name}_sum{{{labels}}} {total}")

    def pieces(self) -> Iterator[bytes]:
        """The page, at most ``BLOCK_ROWS`` series at a time; it is taken apart meanwhile."""
        metrics, self._metrics = self._metrics, {}
        pending: list[str] = []  # of metrics with few series, which share a piece
        while metrics:
            name = next(iter(metrics))
            metric = metrics.pop(name)
            head = f"# TYPE {name} {metric.kind}"
            for lines in _blocks(name, metric):
                if head:
                    lines.insert(0, head)
                    head = ""
                if pending and len(pending) + len(lines) > BLOCK_ROWS:
                    yield _encode(pending)
                    pending = []
                pending += lines
        if pending:
            yield _encode(pending)


def _blocks(name: str, metric: _Metric) -> Iterator[list[str]]:
    lines = metric.lines
    for start in range(0, len(lines), BLOCK_ROWS):
        yield lines[start : start + BLOCK_ROWS]
    for table, index in metric.columns:
        for labels, values in table.take_column(index):
            yield [f"{name}{{{each}}} {value}" for each, value in zip(labels, values, strict=True)]


def _encode(lines: list[str]) -> bytes:
    lines.append("")  # for the last line's end
    return "\n".join(lines).encode()


def label(name: str, value: str) -> str:
    """``name="value"`` with the format's escapes."""
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{value}"'
