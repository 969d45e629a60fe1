"""Each row once, whatever dies: a task, or the whole application with ``kill -9``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import httpx
import psutil
import pulsar
import pytest

from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pipeline.conftest import ROOT, spark_environment
from tests.pipeline.sink_job import PADDING, stored, stream
from tests.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

WAIT_S: Final = 400.0
WAIT_MS: Final = 60_000
GUARANTEES: Final = ("effectively-once", "at-least-once")
FILES: Final = 4
LINES: Final = 600


class Target:
    """A topic that drops repeated messages, and a sink's options for it."""

    def __init__(
        self, broker: StandaloneProcess, client: pulsar.Client, name: str, partitions: int = 0
    ) -> None:
        self._client = client
        self.topic = f"persistent://public/default/{name}"
        self.partitions = partitions
        self.admin = f"{broker.admin_url}/admin/v2/{self.topic.replace('://', '/')}"
        self._put("/partitions" if partitions else "", str(partitions) if partitions else "")
        # An empty topic without anybody would go after a minute, and its policy with it.
        self._put("/subscription/keeper", "")
        self._put("/deduplicationEnabled", "true", method="POST")
        self.options: dict[str, Any] = {
            "serviceUrl": broker.service_url,
            "adminUrl": broker.admin_url,
            "topic": self.topic,
            "batchingMaxMessages": 20,
        }

    def _put(self, path: str, body: str, method: str = "PUT") -> None:
        headers = {"Content-Type": "application/json"}
        url = self.admin + path
        answer = httpx.request(method, url, content=body, headers=headers, timeout=60)
        assert answer.is_success, answer.text

    @property
    def stats(self) -> str:
        return f"{self.admin}/partitioned-stats" if self.partitions else f"{self.admin}/stats"

    def count(self) -> int:
        """How many messages the topic was ever sent, stored or dropped for being there already."""
        return stored(self.stats)

    def values(self) -> list[str]:
        found = []
        for place in self._client.get_topic_partitions(self.topic):
            reader = self._client.create_reader(place, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(WAIT_MS)
                found.append(message.data().decode().removesuffix(PADDING))
            reader.close()
        return found


class Application:
    """One Spark application at a time; a context manager that leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    @property
    def log(self) -> str:
        return (self.folder / "application.log").read_text(errors="replace")

    def start(self, module: str = "tests.pipeline.sink_job", **arguments: object) -> None:
        text = json.dumps(arguments)
        with (self.folder / "application.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, text],
                cwd=ROOT,
                env=spark_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait while it runs."""
        assert self._process is not None
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert self._process.poll() is None, f"it ended:\n{self.log[-5000:]}"
            assert time.monotonic() < deadline, f"too late:\n{self.log[-5000:]}"
            time.sleep(0.1)

    def wait_for_end(self) -> None:
        assert self._process is not None
        assert self._process.wait(WAIT_S) == 0, self.log[-5000:]

    def kill(self, *, with_workers: bool = False) -> None:
        """The driver and Spark itself at once; Spark's workers notice, sooner or later."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        below = driver.children(recursive=True)
        for each in [driver, *(each for each in below if with_workers or each.name() == "java")]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            driver = psutil.Process(self._process.pid)
            for each in [*driver.children(recursive=True), driver]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def client(standalone: StandaloneProcess) -> Iterator[pulsar.Client]:
    with client_of(standalone.service_url) as made:
        yield made


@dataclass(frozen=True)
class FirstLife:
    """The first application: tasks that are tried again, then a stream until it is killed. One for
    both, as a JVM takes ten seconds of a processor.
    """

    application: Application
    retried: dict[str, Target]
    """By delivery guarantee."""
    target: Target
    """Of the stream."""
    stream: dict[str, Any]
    """What it is told."""


@pytest.fixture(scope="module")
def first_life(
    standalone: StandaloneProcess, client: pulsar.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FirstLife]:
    """When its retried tasks are done."""
    folder = tmp_path_factory.mktemp("restarts")
    retried = {name: Target(standalone, client, f"{name}-{time.time_ns()}") for name in GUARANTEES}
    target = Target(standalone, client, f"killed-{time.time_ns()}", partitions=3)
    names = ("files", "hold", "hold_commit", "checkpoint")
    told = {"options": target.options, **{name: str(folder / name) for name in names}}
    _write_files(folder / "files")
    (folder / ("hold_commit" if NIGHTLY else "hold")).touch()
    jobs = [
        {
            "options": {**each.options, "deliveryGuarantee": name},
            "stats": each.stats,
            "failed": str(folder / name),
        }
        for name, each in retried.items()
    ]
    with Application(folder) as application:
        application.start(jobs=jobs, done=str(folder / "done"), stream=told)
        application.wait_until((folder / "done").exists)
        missing = [name for name in GUARANTEES if not (folder / name).exists()]
        assert not missing, "none of the tasks failed"
        yield FirstLife(application, retried, target, told)


def _write_files(files: Path) -> None:
    files.mkdir()
    for number in range(FILES):
        path = files / f"{number}.txt"
        path.write_text("".join(f"{line}{PADDING}\n" for line in _lines(number)))
        # Files are taken in the order of their times.
        seconds = 1_700_000_000 + number
        os.utime(path, (seconds, seconds))


def _lines(number: int) -> list[str]:
    """Of one file; the last one has the line at which a held task stops."""
    lines = [f"{number}-{line:04}" for line in range(LINES)]
    if number == FILES - 1:
        lines[LINES * 2 // 3] = "stop"
    return lines


def test_a_task_that_is_tried_again_repeats_and_loses_nothing(first_life: FirstLife) -> None:
    found = first_life.retried["effectively-once"].values()
    assert Counter(map(int, found)) == Counter(range(3000))


def test_without_de_duplication_the_same_task_does_repeat(first_life: FirstLife) -> None:
    """So the test above would notice."""
    found = Counter(map(int, first_life.retried["at-least-once"].values()))
    assert set(found) == set(range(3000))
    assert max(found.values()) == 2


def _die_before_the_first_commit(life: FirstLife, hold: Path, commits: Path) -> None:
    """The first batch is sent as a whole, and its commit never comes; a second life begins."""
    life.application.wait_until(lambda: life.target.count() >= 2 * LINES)
    life.application.kill()
    assert not (commits / "0").exists()
    Path(life.stream["hold_commit"]).unlink()
    hold.touch()
    life.application.start(stream=life.stream)


def test_a_stream_killed_in_mid_batch_and_before_its_commit(
    spark: SparkSession, first_life: FirstLife
) -> None:
    """The kill before a commit takes a JVM more: `make nightly`."""
    application, target, told = first_life.application, first_life.target, first_life.stream
    hold, commits = Path(told["hold"]), Path(told["checkpoint"]) / "commits"
    if NIGHTLY:
        _die_before_the_first_commit(first_life, hold, commits)

    # The second batch is sent in part.
    application.wait_until(lambda: (commits / "0").exists() and len(target.values()) >= 3 * LINES)
    application.kill()
    partly = len(target.values())
    assert 3 * LINES <= partly < FILES * LINES
    assert not (commits / "1").exists()
    hold.unlink()

    stream(spark, told)  # the rest
    assert (commits / "1").exists()
    expected = [line for number in range(FILES) for line in _lines(number)]
    assert Counter(target.values()) == Counter(expected)
