"""Figures of several runs, as Apache Pulsar 4.2.4 counts them."""

import pytest

from magnetar.broker.compaction.compaction_figures import CompactionFigures


def test_the_last_run_and_all_of_them() -> None:
    figures = CompactionFigures()
    figures.ended(1000, 0.132, 25)
    figures.ended(2000, 0.131, 30)
    figures.ended(3000, 0.1, None)
    assert figures.stats() == {
        "lastCompactionRemovedEventCount": 30,
        "lastCompactionSucceedTimestamp": 2000,
        "lastCompactionFailedTimestamp": 3000,
        "lastCompactionDurationTimeInMills": 100,
    }
    assert figures.metrics(0, 60)[:4] == (55, 2, 1, 363)


def test_reads_and_writes_of_a_period() -> None:
    figures = CompactionFigures()
    figures.read(600)
    figures.read(600)
    figures.wrote(3, 120, 0.004)
    figures.wrote(1, 60, 2)
    # Bytes a second; up to 5 ms are three, above a second is one; four entries, and µs of them.
    expected = (20, 3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1, 4, 2_012_000)
    assert figures.metrics(100, 60)[4:] == pytest.approx(expected)
    figures.read(1200)
    assert figures.metrics(160, 60)[4] == 40, "the period that ends"
    assert figures.metrics(220, 60)[4:] == (0,) * 14, "there was nothing in this one"
