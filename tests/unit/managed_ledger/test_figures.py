"""What a log counts for metrics."""

from magnetar.bookkeeper.metrics import LATENCY_LIMITS_MS, PeriodBuckets
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_form import HeadsInFront
from tests.unit.managed_ledger.cluster import Cluster, eventually


def test_buckets_hold_the_last_whole_period() -> None:
    buckets = PeriodBuckets((1, 10))
    for value, count in ((0.5, 1), (1, 2), (1.5, 4), (10, 8), (11, 16)):
        buckets.record(value, count)
    running = [3, 12, 16], 0.5 + 2 + 6 + 80 + 176
    assert buckets.period(100.0, 60.0) == running, "while there is no other"
    assert buckets.period(159.0, 60.0) == running
    assert buckets.period(160.0, 60.0) == running, "whole now"
    buckets.record(5)
    assert buckets.period(200.0, 60.0) == running
    assert buckets.period(220.0, 60.0) == ([0, 1, 0], 5)
    assert buckets.period(280.0, 60.0) == ([0, 0, 0], 0)


async def test_writes_and_switches(cluster: Cluster) -> None:
    factory = cluster.factory()
    log = await factory.open("t/n/persistent/x", ManagedLedgerConfig(form=HeadsInFront(0)))
    metrics = log.metrics
    assert [metrics.writes, metrics.switches, metrics.add_errors] == [None] * 3, "an idle log"
    done: list[int] = []

    def on_done(ledger_id: int, first: int, count: int, error: BaseException | None) -> None:
        done.append(count)

    for size in (1, 3, 5):
        log.append([b""] * size, [b"x"] * size, on_done)
    await eventually(lambda: sum(done) == 9)
    assert metrics.writes is not None
    counts, total_ms = metrics.writes.period(1.0, 60.0)
    assert (len(counts), sum(counts)) == (len(LATENCY_LIMITS_MS) + 1, 9), "entries, not batches"
    assert total_ms > 0
    assert metrics.switches is not None
    assert sum(metrics.switches.period(1.0, 60.0)[0]) == 1
    await log.close()
    log.append([b""] * 2, [b"x"] * 2, on_done)
    await eventually(lambda: sum(done) == 11)
    assert metrics.add_errors is not None
    assert metrics.add_errors.period(1.0, 60.0) == ([2], 2)
    await factory.close()
