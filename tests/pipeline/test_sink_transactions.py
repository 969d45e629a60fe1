"""The exactly-once sink: two topics get a batch as a whole, whatever fails or dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pulsar
import pytest

from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pipeline.test_sink_restarts import Application
from tests.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

WAIT_MS: Final = 60_000
ROWS: Final = 200


class Targets:
    """Two topics, one with partitions, and the sink's options for them."""

    def __init__(self, broker: StandaloneProcess) -> None:
        self._broker, name = broker, f"persistent://public/default/exactly-{time.time_ns()}"
        self.names = [f"{name}-a", f"{name}-b"]
        self.options: dict[str, str] = {
            "serviceUrl": broker.service_url,
            "adminUrl": broker.admin_url,
            "deliveryGuarantee": "exactly-once",
            "commitTopic": f"{name}-commits",
            "batchingMaxMessages": "20",
        }
        for topic in self.names:
            path = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}"
            if topic.endswith("a"):
                assert httpx.put(f"{path}/partitions", json=3, timeout=60).is_success
            assert httpx.put(f"{path}/subscription/keeper", timeout=60).is_success

    def values(self) -> list[list[str]]:
        with client_of(self._broker.service_url) as client:
            return [self._values(client, topic) for topic in self.names]

    def _values(self, client: pulsar.Client, topic: str) -> list[str]:
        found = []
        for place in client.get_topic_partitions(topic):
            reader = client.create_reader(place, pulsar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(WAIT_MS).data().decode())
        return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    data = tmp_path_factory.mktemp("transactions") / "data"
    with StandaloneProcess(data, "--set", "transactionCoordinatorEnabled=true") as process:
        yield process


def write(rows: DataFrame, options: dict[str, str], **more: Any) -> None:
    rows.write.format("magnetar").mode("append").options(**options | more).save()


def rows_of(spark: SparkSession, targets: Targets, fails_at: int = -1) -> DataFrame:
    first, second = targets.names
    return spark.range(0, ROWS, 1, 2).selectExpr(
        f"if(id = {fails_at}, raise_error('meant to fail'), string(id)) as value",
        f"if(id % 2 = 0, '{first}', '{second}') as topic",
        "string(id % 7) as key",
    )


def test_a_job_counts_as_a_whole_in_both_topics_or_not_at_all(
    spark: SparkSession, broker: StandaloneProcess
) -> None:
    targets = Targets(broker)
    with pytest.raises(Exception, match="meant to fail"):
        write(rows_of(spark, targets, ROWS - 1), targets.options, producerName="job")
    assert targets.values() == [[], []]
    write(rows_of(spark, targets), targets.options, producerName="job")
    expected = [[str(n) for n in range(start, ROWS, 2)] for start in (0, 1)]
    assert [sorted(each, key=int) for each in targets.values()] == expected
    # The same name and batch: it is decided.
    write(rows_of(spark, targets), targets.options, producerName="job")
    assert [sorted(each, key=int) for each in targets.values()] == expected
    with pytest.raises(Exception, match=r"column topic.*|option commitTopic is needed"):
        write(rows_of(spark, targets), targets.options, commitTopic="")


def test_a_cluster_without_transactions_is_told(
    spark: SparkSession, standalone: StandaloneProcess
) -> None:
    targets = Targets(standalone)
    with pytest.raises(Exception, match="Transactions are not enabled"):
        write(rows_of(spark, targets), targets.options)


STEPS: Final = (3, 4, 6)
"""In front of these the driver is killed: it has decided nothing; decided; committed all, and not
noted that.
"""


@pytest.mark.skipif(not NIGHTLY, reason="a JVM for each kill: make nightly")
def test_a_driver_that_is_killed_at_each_step_of_its_commit(
    broker: StandaloneProcess, tmp_path: Path
) -> None:
    targets, files = Targets(broker), tmp_path / "files"
    files.mkdir()
    for number in range(len(STEPS)):
        path = files / f"{number}.txt"
        path.write_text("".join(f"{number * ROWS + line}\n" for line in range(ROWS)))
        os.utime(path, (1_700_000_000 + number,) * 2)
    told: dict[str, Any] = {
        "module": "tests.pipeline.commit_job",
        "options": targets.options,
        "files": str(files),
        "checkpoint": str(tmp_path / "checkpoint"),
        "topics": targets.names,
    }
    commits = tmp_path / "checkpoint" / "commits"
    with Application(tmp_path) as application:
        for batch, step in enumerate(STEPS):
            held = tmp_path / f"held-{batch}"
            application.start(**told, batch=batch, step=step, held=str(held))
            application.wait_until(held.exists)
            application.kill(with_workers=True)
            assert not (commits / str(batch)).exists()
        application.start(**told, batch=-1, step=0, held="")
        application.wait_until((commits / str(len(STEPS) - 1)).exists)
        application.wait_for_end()
    found = [int(value.split()[0]) for topic in targets.values() for value in topic]
    assert sorted(found) == list(range(ROWS * len(STEPS)))
    pairs = {
        (int(value.split()[0]) // ROWS, value.split()[1])
        for topic in targets.values()
        for value in topic
    }
    assert len(pairs) == len(STEPS), "rows of two attempts at a batch"
