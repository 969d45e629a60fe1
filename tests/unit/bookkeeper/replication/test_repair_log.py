"""What a worker writes to the log: a line per repaired ledger, a line per reason to wait."""

import logging
import re

import pytest

from magnetar.bookkeeper.replication.replicator import RepairReport
from tests.unit.bookkeeper.replication.cluster import Cluster, is_replaced, until_async, virtual

_LOGGER = "magnetar.bookkeeper.replication.replication_worker"


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    return [text for text in texts if word in text]


def test_a_repaired_ledger_is_told_once_with_what_was_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(20)
            before = (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            lost, forgetful, _ = before
            del cluster.bookies[forgetful].ledgers[writer.ledger_id].entries[3]
            await cluster.lose(lost)
            await cluster.markers.mark(writer.ledger_id, [forgetful])
            worker = await cluster.add_worker()
            await cluster.until_repaired()
            await worker.close()
            after = (await cluster.metadata(writer.ledger_id)).segments[0].bookies
            (text,) = lines(caplog, "is repaired")
            found = re.fullmatch(
                r"ledger (\d+) is repaired: (.*); 21 entries, (\d+) bytes copied in \d+\.\d s", text
            )
            assert found is not None, text
            assert int(found[1]) == writer.ledger_id
            assert int(found[3]) == worker.metrics.bytes_copied > 21 * 100
            assert sorted(found[2].split("; ")) == sorted(
                [f"segment 0: {lost} to {after[0]}", f"segment 0: {forgetful} filled up"]
            )

    with caplog.at_level(logging.INFO, _LOGGER):
        virtual(scenario)


def test_a_ledger_that_waits_tells_each_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    """First its writer has time, then nobody is there to take its copies; each for many tries."""

    async def scenario() -> None:
        async with Cluster(3) as cluster:
            writer = await cluster.write(5, (3, 3, 2), close=False)
            lost = writer.metadata.segments[0].bookies[0]
            await cluster.lose(lost)
            worker = await cluster.add_worker()
            await until_async(lambda: _has_failed(worker, 10))
            waits = lines(caplog, f"ledger {writer.ledger_id} waits")
            assert len(waits) == len(set(waits)) == 2
            assert "its writer has 30 s" in waits[0]
            assert f"no bookie may take the place of {lost}" in waits[1]
            assert not lines(caplog, "is repaired")
            await cluster.add_bookie()
            await until_async(lambda: is_replaced(cluster, writer.ledger_id, lost))
            await cluster.until_repaired()
            await worker.close()
            (text,) = lines(caplog, "is repaired")
            assert ": closed by recovery; segment 0: " in text

    async def _has_failed(worker: object, times: int) -> bool:
        return bool(worker.metrics.failures >= times)  # type: ignore[attr-defined]

    with caplog.at_level(logging.INFO, _LOGGER):
        virtual(scenario)


def test_a_marker_without_anything_to_repair_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Cluster(4) as cluster:
            writer = await cluster.write(5)
            await cluster.markers.mark(writer.ledger_id, [writer.metadata.segments[0].bookies[0]])
            await cluster.add_worker()
            await cluster.until_repaired()

    with caplog.at_level(logging.INFO, _LOGGER):
        virtual(scenario)
    assert lines(caplog, "ledger") == []


def test_a_line_stays_short() -> None:
    report = RepairReport()
    for segment in range(1000):
        report.on_replaced(segment, "b1", "b2")
    text = report.text(7, 1.25)
    assert "segment 7: b1 to b2; and 992 more; 0 entries, 0 bytes copied in 1.2 s" in text
    assert len(text) < 400
