"""Apache Flink copies topics exactly once while everything around it fails.

``make interop-flink``: a job with Flink's own Pulsar connector (``flink/``) reads three partitions
and writes to another topic in transactions. Meanwhile it fails in each phase of a checkpoint, its
process is killed (-9) and begins at the last checkpoint, topics are unloaded, and the broker is
killed (-9) and started again. Judged by the official Python client: each message of the input is in
the output exactly once. docs/guides/flink.md says what a job has to do for that by itself.

With ``--service-url`` and ``--admin-url`` against a server that runs already, Apache Pulsar say;
nobody kills that one. ``--guarantee AT_LEAST_ONCE`` shows that this test finds what comes twice.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pulsar

from tests.official_client import client_of, open_client
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

_FOLDER: Final = Path(__file__).resolve().parent / "flink"
_BUILD: Final = ("mvn", "-q", "-B", "compile", "dependency:copy-dependencies")
_OPENED: Final = (  # of the Java platform, for Flink's serializers
    "java.base/java.lang=ALL-UNNAMED",
    "java.base/java.util=ALL-UNNAMED",
    "java.base/java.util.concurrent.atomic=ALL-UNNAMED",
)
_WAIT_S: Final = 240.0
_PAUSE_S: Final = 0.004
_TRANSACTION_TIMEOUT_MS: Final = 30_000
"""What a killed job leaves open ends after it; until then readers of the output wait."""


class Place:
    """A namespace, the job's topics in it, and the admin calls of this test."""

    def __init__(self, admin_url: str) -> None:
        self._admin_url = admin_url
        self._namespace = f"flink/{uuid.uuid4().hex[:8]}"
        self.source = f"persistent://{self._namespace}/source"
        self.copy = f"persistent://{self._namespace}/copy"

    def make(self) -> None:
        with urllib.request.urlopen(f"{self._admin_url}/admin/v2/tenants") as answer:
            tenants = json.load(answer)
        with urllib.request.urlopen(f"{self._admin_url}/admin/v2/clusters") as answer:
            clusters = json.load(answer)
        if "flink" not in tenants:
            self._put("tenants/flink", {"allowedClusters": clusters})
        self._put(f"namespaces/{self._namespace}", {})
        for topic, partitions in ((self.source, 3), (self.copy, 2)):
            self._put(f"{topic.replace('://', '/')}/partitions", partitions)

    def unload(self) -> None:
        self._put(f"namespaces/{self._namespace}/unload", None)

    def _put(self, path: str, value: object) -> None:
        request = urllib.request.Request(
            f"{self._admin_url}/admin/v2/{path}",
            None if value is None else json.dumps(value).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request).close()


class Job:
    """Flink in a process of its own, and what it tells."""

    def __init__(
        self, urls: tuple[str, str], place: Place, source: str, guarantee: str, folder: Path
    ) -> None:
        self._folder = folder
        self._arguments = [
            *("java", "-Xmx768m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
            *(word for each in _OPENED for word in ("--add-opens", each)),
            *("-cp", "build/classes:build/lib/*", "interop.CopyJob", *urls),
            *(source, place.copy, guarantee, str(folder), str(_TRANSACTION_TIMEOUT_MS)),
        ]
        self.told: list[str] = []
        self._start()

    def _start(self, *more: str) -> None:
        with (self._folder / "flink.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._arguments, *more],
                cwd=_FOLDER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.told.extend(line.strip() for line in self._process.stdout)

    def go_on(self, number: int) -> None:
        """Until a checkpoint has what was sent before ``number``."""
        told = len(self.told)

        def done() -> bool:
            assert self._process.poll() is None, "Flink's process ended"
            words = [line.split() for line in self.told[told:]]
            return any(word == "checkpoint" and int(last) >= number for word, last in words)

        wait_until(done, "it goes on", _WAIT_S)

    def fail(self, place: str) -> None:
        before = self.told.count(f"failed {place}")
        self._say(f"fail {place}\n")
        wait_until(
            lambda: self.told.count(f"failed {place}") > before, f"it fails: {place}", _WAIT_S
        )

    def kill_and_restart(self) -> None:
        """``kill -9``, and a new process that begins at the last complete checkpoint."""
        self.kill()
        complete = self._folder.glob("checkpoints/*/chk-*/_metadata")
        newest = max(complete, key=lambda path: path.stat().st_mtime_ns).parent
        self._start(newest.as_uri())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(_WAIT_S) == 0
        self._reader.join()
        assert self.told[-1] == "stopped", self.told[-1]

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()


@contextmanager
def numbers(service_url: str, topic: str) -> Iterator[Callable[[], int]]:
    """Numbers 0, 1, 2, ... to the topic until the end of the block; all are stored then.

    Yields:
        What tells the next number.
    """
    full_stop = threading.Event()
    failures: list[Exception] = []
    sent = [0]

    def send() -> None:
        try:
            with client_of(service_url) as client:
                producer = client.create_producer(topic, send_timeout_millis=0)
                while not full_stop.wait(_PAUSE_S):
                    producer.send_async(b"%d" % sent[0], None)
                    sent[0] += 1
                producer.flush()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield lambda: sent[0]
    finally:
        full_stop.set()
        thread.join(_WAIT_S)
    assert not failures, failures
    assert not thread.is_alive(), "it still sends"


class Found:
    """All messages of a topic, as the official client reads them."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._readers = [
            client.create_reader(partition, pulsar.MessageId.earliest)
            for partition in client.get_topic_partitions(topic)
        ]
        self.times: Counter[int] = Counter()

    def read(self) -> int:
        """What has come since the last call; how many messages there are now."""
        for reader in self._readers:
            while reader.has_message_available():
                self.times[int(reader.read_next(60_000).data())] += 1
        return self.times.total()


def disturbances(
    job: Job, place: Place, broker: StandaloneProcess | None
) -> Iterator[tuple[str, Callable[[], None]]]:
    for where in ("record", "snapshot", "commit"):
        yield f"the job fails: {where}", lambda where=where: job.fail(where)  # type: ignore[misc]
    yield "Flink is killed", job.kill_and_restart
    yield "topics are unloaded", place.unload
    if broker is not None:

        def kill() -> None:
            broker.kill()
            broker.start(same_ports=True)

        yield "the broker is killed", kill


def ranges(numbers: Sequence[int]) -> str:
    """As ``0-7 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


def check_copy(service_url: str, place: Place, job: Job) -> int:
    """REQUIRES: the input is complete.

    Returns:
        Messages of the copy, each of which is there exactly once.
    """
    with client_of(service_url) as client:
        source, copy = Found(client, place.source), Found(client, place.copy)
        sent = source.read()
        wait_until(
            lambda: copy.read() >= sent,
            lambda: f"{copy.times.total()} of {sent} messages are copied",
            _WAIT_S,
        )
        job.stop()
        copy.read()
        missing, more = sorted(source.times - copy.times), sorted(copy.times - source.times)
        assert (missing, more) == ([], []), f"missing: {ranges(missing)}; more: {ranges(more)}"
        return sent


def keep(service_url: str, place: Place) -> None:
    """A subscription that stays, so that nothing is trimmed."""
    client = open_client(service_url)
    for topic in (place.source, place.copy):
        client.subscribe(topic, "keeper").close()
    client.close()


def build() -> bool:
    """Whether there is Java, Maven, and what Maven has to fetch."""
    if shutil.which("mvn") is None:
        return False
    command = [*_BUILD, "-DoutputDirectory=build/lib"]
    return subprocess.run(command, cwd=_FOLDER, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service-url", help="a server that runs already")
    parser.add_argument("--admin-url")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pattern", action="store_true", help="the job finds its topics by one")
    parser.add_argument("--folder", type=Path, help="that stays, with Flink's log")
    parser.add_argument("--guarantee", default="EXACTLY_ONCE")
    options = parser.parse_args()
    if not build():
        print("skipped: Maven can't build tests/interop/flink here")
        return 0
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = None
        urls = (options.service_url, options.admin_url)
        if options.service_url is None:
            broker = StandaloneProcess(
                folder / "data", "--set", "transactionCoordinatorEnabled=true"
            )
            stack.enter_context(broker)
            urls = (broker.service_url, broker.admin_url)
        place = Place(urls[1])
        place.make()
        keep(urls[0], place)
        source = f"pattern:{place.source}.*" if options.pattern else place.source
        job = Job(urls, place, source, options.guarantee, folder)
        stack.callback(job.kill)
        with numbers(urls[0], place.source) as sent:
            job.go_on(sent())
            for _ in range(options.rounds):
                for what, act in disturbances(job, place, broker):
                    print(f"at {sent()}: {what}", flush=True)
                    act()
                    job.go_on(sent())
        print(f"{check_copy(urls[0], place, job)} messages, each exactly once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
