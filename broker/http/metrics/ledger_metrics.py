"""``pulsar_ml_*``: the managed ledgers of each namespace.

Their label ``namespace`` is ``tenant/namespace/persistent``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, SIZE_LIMITS
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label

if TYPE_CHECKING:
    from magnetar.bookkeeper.metrics import PeriodBuckets
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

_Buckets = tuple[Sequence[int], float]


class LedgerPeriod(NamedTuple):
    """Events of one log in the last whole period."""

    copies: int = 1
    """Bookies that hold each entry."""
    writes: _Buckets | None = None
    """Counts by write latency and their sum in ms; None: nothing was ever written."""
    switches: _Buckets | None = None
    add_errors: int = 0
    read_errors: int = 0
    read_misses: int = 0


NO_LEDGER: Final = LedgerPeriod()


def ledger_period(ledger: ManagedLedger, now_s: float, period_s: float) -> LedgerPeriod:
    metrics = ledger.metrics

    def buckets(found: PeriodBuckets | None) -> _Buckets | None:
        return None if found is None else found.period(now_s, period_s)

    def count(found: PeriodBuckets | None) -> int:
        return 0 if found is None else found.period(now_s, period_s)[0][0]

    return LedgerPeriod(
        ledger.config.write_quorum,
        buckets(metrics.writes),
        buckets(metrics.switches),
        count(metrics.add_errors),
        count(metrics.read_errors),
        count(metrics.read_misses),
    )


_NAMES: Final = (
    "pulsar_ml_AddEntryMessagesRate",
    "pulsar_ml_AddEntryBytesRate",
    "pulsar_ml_AddEntryWithReplicasBytesRate",
    "pulsar_ml_AddEntrySucceed",
    "pulsar_ml_AddEntryErrors",
    "pulsar_ml_ReadEntriesRate",
    "pulsar_ml_ReadEntriesBytesRate",
    "pulsar_ml_ReadEntriesErrors",
    "pulsar_ml_ReadEntriesOpsCacheMissesRate",
    "pulsar_ml_MarkDeleteRate",
    "pulsar_ml_NumberOfMessagesInBacklog",
    "pulsar_ml_StoredMessagesSize",
)


def _ranges(limits: Sequence[float]) -> tuple[str, ...]:
    """Pulsar's names of the quantiles of buckets."""
    bounds = [0.0, *map(float, limits)]
    return tuple(f"{low}_{high}" for low, high in pairwise(bounds))


_LATENCY_RANGES: Final = _ranges(LATENCY_LIMITS_MS)
_SIZE_RANGES: Final = _ranges(SIZE_LIMITS)
_LATENCY_COUNT: Final = len(_LATENCY_RANGES) + 1
_SIZE_COUNT: Final = len(_SIZE_RANGES) + 1


class LedgerSums:
    """The logs of one namespace together."""

    __slots__ = ("rates", "switches", "writes")

    def __init__(self) -> None:
        self.rates: list[float] = [0] * 9
        """Entries, bytes, bytes with copies, errors of adds; messages and bytes read, errors,
        misses of reads; acknowledgements."""
        self.writes: list[float] | None = None
        self.switches: list[float] = [0] * _LATENCY_COUNT

    def add(
        self,
        ledger: LedgerPeriod,
        entries: float,
        size: float,
        rate_out: float,
        throughput_out: float,
        ack_rate: float,
    ) -> None:
        values = (
            *(entries, size, size * ledger.copies, ledger.add_errors),
            *(rate_out, throughput_out, ledger.read_errors, ledger.read_misses, ack_rate),
        )
        self.rates = list(map(add, self.rates, values))
        if ledger.writes is not None:
            self.writes = list(map(add, self.writes or [0] * _LATENCY_COUNT, ledger.writes[0]))
        if ledger.switches is not None:
            self.switches = list(map(add, self.switches, ledger.switches[0]))


class _BucketTable:
    """One metric of buckets: a label for each, and a metric of its own for what is above."""

    def __init__(self, page: PrometheusPage, name: str, ranges: Sequence[str]) -> None:
        self._rows = page.table((name,))
        self._above = page.table((f"{name}_OVERFLOW",))
        self._ranges = ranges

    def add(self, labels: str, counts: Sequence[float]) -> None:
        *inside, above = counts
        for words, count in zip(self._ranges, inside, strict=True):
            self._rows.add(f'{labels},quantile="{words}"', (count,))
        self._above.add(labels, (above,))


class LedgerTables:
    """Collects the ``pulsar_ml_*`` series of one page."""

    def __init__(self, page: PrometheusPage) -> None:
        self._base = page.base
        self._rows = page.table(_NAMES)
        latencies = _LATENCY_RANGES
        self._adds = _BucketTable(page, "pulsar_ml_AddEntryLatencyBuckets", latencies)
        self._writes = _BucketTable(page, "pulsar_ml_LedgerAddEntryLatencyBuckets", latencies)
        self._switches = _BucketTable(page, "pulsar_ml_LedgerSwitchLatencyBuckets", latencies)
        self._sizes = _BucketTable(page, "pulsar_ml_EntrySizeBuckets", _SIZE_RANGES)

    def add(
        self,
        namespace: str,
        sums: LedgerSums,
        publish: Sequence[float] | None,
        backlog: float,
        stored_bytes: float,
    ) -> None:
        """Add the series of one namespace.

        Args:
            publish: sums of its topics' series of latencies and sizes, in the order of the series;
                None: nobody published, and there are no buckets.
        """
        labels = f"{self._base},{label('namespace', f'{namespace}/persistent')}"
        entries, size, copied, add_errors, *reads, acks = sums.rates
        added = 0.0 if publish is None else sum(publish[:_LATENCY_COUNT])
        self._rows.add(
            labels,
            (entries, size, copied, added, add_errors, *reads, acks, backlog, stored_bytes),
        )
        if publish is None:
            return
        self._adds.add(labels, publish[:_LATENCY_COUNT])
        self._writes.add(labels, sums.writes or [0] * _LATENCY_COUNT)
        self._switches.add(labels, sums.switches)
        sizes_from = 2 * (_LATENCY_COUNT + 2)  # behind two metrics with counts and sums
        self._sizes.add(labels, publish[sizes_from : sizes_from + _SIZE_COUNT])
