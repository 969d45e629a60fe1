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
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pulsar
import pytest

from tests.pipeline.conftest import ROOT, spark_environment
from tests.pipeline.sink_job import PADDING, stored
from tests.standalone_process import StandaloneProcess

pytestmark = pytest.mark.slow

WAIT_S: Final = 400.0
WAIT_MS: Final = 60_000
FILES: Final = 4
LINES: Final = 600


class Application:
    """One Spark application at a time, and what all of them write to."""

    def __init__(self, broker: StandaloneProcess, folder: Path, partitions: int) -> None:
        self.folder = folder
        self.client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self.topic = f"persistent://public/default/{folder.name}"
        self.partitions = partitions
        self.admin = f"{broker.admin_url}/admin/v2/{self.topic.replace('://', '/')}"
        self._put("/partitions" if partitions else "", str(partitions) if partitions else "")
        self._put("/deduplicationEnabled", "true", method="POST")
        self.options: dict[str, Any] = {
            "serviceUrl": broker.service_url,
            "adminUrl": broker.admin_url,
            "topic": self.topic,
            "batchingMaxMessages": 20,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _put(self, path: str, body: str, method: str = "PUT") -> None:
        headers = {"Content-Type": "application/json"}
        url = self.admin + path
        answer = httpx.request(method, url, content=body, headers=headers, timeout=60)
        assert answer.is_success, answer.text

    @property
    def stats(self) -> str:
        return f"{self.admin}/partitioned-stats" if self.partitions else f"{self.admin}/stats"

    @property
    def log(self) -> str:
        return (self.folder / "application.log").read_text(errors="replace")

    def start(self, kind: str, **arguments: str) -> None:
        text = json.dumps({"kind": kind, "options": self.options, "stats": self.stats, **arguments})
        with (self.folder / "application.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.sink_job", text],
                cwd=ROOT,
                env=spark_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def finish(self) -> None:
        """Wait for its end, which must be a good one."""
        assert self._process is not None
        assert self._process.wait(WAIT_S) == 0, self.log[-5000:]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait while it runs."""
        assert self._process is not None
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert self._process.poll() is None, f"it ended:\n{self.log[-5000:]}"
            assert time.monotonic() < deadline, f"too late:\n{self.log[-5000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """The driver and Spark itself at once; Spark's workers notice, sooner or later."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        below = driver.children(recursive=True)
        for each in [driver, *(child for child in below if child.name() == "java")]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()

    def close(self) -> None:
        self.client.close()
        if self._process is not None and self._process.poll() is None:
            driver = psutil.Process(self._process.pid)
            for each in [*driver.children(recursive=True), driver]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.wait()

    def count(self) -> int:
        """How many messages the topic was ever sent, stored or dropped for being there already."""
        return stored(self.stats)

    def values(self) -> list[str]:
        found = []
        for place in self.client.get_topic_partitions(self.topic):
            reader = self.client.create_reader(place, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(WAIT_MS)
                found.append(message.data().decode().removesuffix(PADDING))
            reader.close()
        return found


@pytest.fixture
def application(
    request: pytest.FixtureRequest, standalone: StandaloneProcess, tmp_path: Path
) -> Iterator[Application]:
    folder = tmp_path / f"restarts-{time.time_ns()}"
    folder.mkdir()
    made = Application(standalone, folder, getattr(request, "param", 0))
    try:
        yield made
    finally:
        made.close()


def test_a_task_that_is_tried_again_repeats_and_loses_nothing(application: Application) -> None:
    failed = application.folder / "failed"
    application.start("retry", failed=str(failed))
    application.finish()
    assert failed.exists()
    assert Counter(map(int, application.values())) == Counter(range(3000))


def test_without_de_duplication_the_same_task_does_repeat(application: Application) -> None:
    """So the test above would notice."""
    application.options["deliveryGuarantee"] = "at-least-once"
    failed = application.folder / "failed"
    application.start("retry", failed=str(failed))
    application.finish()
    assert failed.exists()
    found = Counter(map(int, application.values()))
    assert set(found) == set(range(3000))
    assert max(found.values()) == 2


@pytest.mark.parametrize("application", [3], indirect=True, ids=["three partitions"])
def test_a_stream_killed_in_mid_batch_and_before_its_commit(application: Application) -> None:
    folder = application.folder
    files, hold, hold_commit = folder / "files", folder / "hold", folder / "hold_commit"
    files.mkdir()
    expected = []
    for number in range(FILES):
        lines = [f"{number}-{line:04}" for line in range(LINES)]
        if number == FILES - 1:
            lines[LINES * 2 // 3] = "stop"
        expected += lines
        path = files / f"{number}.txt"
        path.write_text("".join(f"{line}{PADDING}\n" for line in lines))
        # Files are taken in the order of their times.
        seconds = 1_700_000_000 + number
        os.utime(path, (seconds, seconds))
    arguments = {
        "files": str(files),
        "hold": str(hold),
        "hold_commit": str(hold_commit),
        "checkpoint": str(folder / "checkpoint"),
    }
    commits = folder / "checkpoint" / "commits"

    # The first batch is sent as a whole, and its commit never comes.
    hold_commit.touch()
    application.start("stream", **arguments)
    application.wait_until(lambda: application.count() >= 2 * LINES)
    application.kill()
    assert not (commits / "0").exists()
    hold_commit.unlink()

    # The second one is sent in part.
    hold.touch()
    application.start("stream", **arguments)
    application.wait_until(
        lambda: (commits / "0").exists() and len(application.values()) >= 3 * LINES
    )
    application.kill()
    partly = len(application.values())
    assert 3 * LINES <= partly < FILES * LINES
    assert not (commits / "1").exists()
    hold.unlink()

    application.start("stream", **arguments)
    application.finish()
    assert (commits / "1").exists()
    assert Counter(application.values()) == Counter(expected)
