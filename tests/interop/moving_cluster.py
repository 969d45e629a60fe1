"""Official Go, Java and Node clients in a cluster whose bundles move and whose brokers die.

``make interop-cluster [ONLY=go]``: three brokers, three bookies, a ZooKeeper. For each language a
program (``go/traffic``, ``java/.../Traffic.java``, ``node/traffic.js``) produces to some topics and
consumes from them, while bundles are given to other brokers, a namespace is unloaded, and an owner
is killed (-9). Judged by the histories: nothing acknowledged is lost, each producer's messages stay
in order, everybody goes on by itself and ends when told to.

A program is started with the service URL and ``TOPIC,WINDOW,single|batched`` for each topic. It
sends 0, 1, 2, ..., at most WINDOW at once, and tells by lines:

    acked TOPIC N         the receipt of N came; no error may come
    received TOPIC N      its consumer got N
    sent TOPIC COUNT      after a line, or the end, of its input: so many are sent and acknowledged
    end                   and all of them received; it exits with 0
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import pulsar

from tests.cluster_process import ClusterProcess
from tests.cluster_tools import (
    WAIT_S,
    all_go_on,
    broker_at,
    broker_name,
    cluster_of,
    get,
    owner_of,
)
from tests.cluster_traffic import assert_numbers, reset_gaps
from tests.official_client import open_client
from tests.waiting import wait_until

_HERE: Final = Path(__file__).resolve().parent
_KINDS: Final = ((1, "single"), (50, "single"), (200, "batched"))
"""Window and batching of each topic of a program."""


@dataclass(frozen=True)
class Language:
    """
    Attributes:
        build, run: commands in ``folder``; "{name}" is the program, "{Class}" its class.
        needs: a file of the folder with which building can be left out; "": none.
    """

    folder: str
    build: tuple[str, ...]
    run: tuple[str, ...]
    needs: str = ""

    def command(self, program: str) -> list[str]:
        return [word.format(name=program, Class=program.capitalize()) for word in self.run]


LANGUAGES: Final = {
    "go": Language(
        "go",
        ("go", "build", "-o", "build/", "./traffic", "./views", "./transactions"),
        ("build/{name}",),
    ),
    "java": Language(
        "java",
        (
            *("mvn", "-q", "-B", "compile", "dependency:copy-dependencies"),
            "-DoutputDirectory=build/lib",
        ),
        (
            *("java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
            *("-cp", "build/classes:build/lib/*", "interop.{Class}"),
        ),
    ),
    "node": Language(
        "node",
        ("npm", "install", "--no-audit", "--no-fund"),
        ("node", "{name}.js"),
        "node_modules/pulsar-client/lib/binding/pulsar.node",
    ),
}


@dataclass
class TopicTraffic:
    """What a program has told of one topic."""

    topic: str
    window: int
    kind: str
    acknowledged: int = 0  # numbers below it are
    consumed: int = 0  # numbers below it were received
    received: list[int] = field(default_factory=list)
    sent: int | None = None
    longest_gap_s: float = 0.0
    failure: Exception | None = None
    _acked_s: float | None = None
    _ahead: set[int] = field(default_factory=set)  # acknowledged before one that was sent earlier

    def on_acked(self, number: int) -> None:
        """In any order: Node's promises are kept as its threads come."""
        if number < self.acknowledged or number in self._ahead:
            self.failure = AssertionError(f"{self.topic}: {number} is acknowledged twice")
            return
        now_s = time.monotonic()
        if self._acked_s is not None:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._acked_s)
        self._acked_s = now_s
        self._ahead.add(number)
        while self.acknowledged in self._ahead:
            self._ahead.remove(self.acknowledged)
            self.acknowledged += 1

    def on_received(self, number: int) -> None:
        """Some may come again; none is left out, or comes too early."""
        self.received.append(number)
        if number > self.consumed:
            self.failure = AssertionError(f"{self.topic}: {number} before {self.consumed}")
        elif number == self.consumed:
            self.consumed += 1


class Program:
    """A language's process, and a thread that reads what it tells."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.topics = [
            TopicTraffic(f"persistent://public/default/moving-{name}-{number}", window, kind)
            for number, (window, kind) in enumerate(_KINDS)
        ]
        language = LANGUAGES[name]
        arguments = [f"{each.topic},{each.window},{each.kind}" for each in self.topics]
        self._process = subprocess.Popen(
            [*language.command("traffic"), url, *arguments],
            cwd=_HERE / language.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        by_name = {each.topic: each for each in self.topics}
        for line in self._process.stdout:
            word, *rest = line.split()
            if word == "end":
                self._ended = True
                continue
            topic, number = by_name[rest[0]], int(rest[1])
            if word == "acked":
                topic.on_acked(number)
            elif word == "received":
                topic.on_received(number)
            else:
                topic.sent = number
        if not self._ended:
            for each in self.topics:
                each.failure = each.failure or AssertionError(f"the {self.name} client gave up")

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.close()

    def wait(self) -> None:
        """Until it has acknowledged and received everything."""
        assert self._process.wait(WAIT_S) == 0
        self._reader.join()
        for each in self.topics:
            assert each.failure is None, each.failure
            assert each.sent == each.acknowledged == each.consumed, each.topic


class MovingCluster:
    """Moves what the clients use, and remembers what it cost them."""

    def __init__(self, cluster: ClusterProcess, traffic: list[TopicTraffic]) -> None:
        self.cluster, self.traffic = cluster, traffic
        self.stalls_s: dict[str, list[float]] = {}

    def move(self, topic: str) -> str:
        """Give the topic's bundle to another broker."""
        urls = self.cluster.web_urls
        targets: list[str] = []

        def done() -> bool:
            source = self._owner(topic)
            found = get(f"{source}/lookup/v2/topic/{topic.replace('://', '/')}/bundle")
            if found is None:
                return False
            targets.append(urls[(urls.index(source) + 1) % len(urls)])
            destination = targets[-1].removeprefix("http://")
            path = f"public/default/{found.decode()}/unload?destinationBroker={destination}"
            return self._put(f"{source}/admin/v2/namespaces/{path}")

        wait_until(done, f"{topic} moves", WAIT_S)
        return f"to {broker_name(self.cluster, targets[-1])}"

    def unload(self, topic: str) -> str:
        """Unload all bundles; who gets each is chosen when it is asked for."""
        asked = self._owner(topic)
        url = f"{asked}/admin/v2/namespaces/public/default/unload"
        wait_until(lambda: self._put(url), "everything is unloaded", WAIT_S)
        return f"asked of {broker_name(self.cluster, asked)}"

    def kill(self, topic: str) -> str:
        owner = self._owner(topic)
        name, process = broker_name(self.cluster, owner), broker_at(self.cluster, owner)
        ready = f"{name} ready at "
        before = self.cluster.log.count(ready)
        process.kill()
        all_go_on(self.traffic, f"{name} was killed")
        wait_until(lambda: self.cluster.log.count(ready) > before, f"{name} is back", WAIT_S)
        return name

    def event(self, kind: str, topic: str) -> None:
        reset_gaps(self.traffic)
        act = {"move": self.move, "unload": self.unload, "kill": self.kill}[kind]
        who = act(topic)
        all_go_on(self.traffic, f"{kind} {who}")
        # A move is one bundle's, mostly with that topic alone; the rest is everybody's.
        hurt = [each for each in self.traffic if kind != "move" or each.topic == topic]
        stalls_s = [each.longest_gap_s for each in hurt]
        self.stalls_s.setdefault(kind, []).extend(stalls_s)
        print(f"{kind} {who}: {min(stalls_s):.3f} to {max(stalls_s):.3f} s", flush=True)

    def _owner(self, topic: str) -> str:
        found: list[str] = []

        def known() -> bool:
            owner = owner_of(self.cluster.web_urls[0], topic)
            found.extend([owner] if owner in self.cluster.web_urls else [])
            return bool(found)

        wait_until(known, "somebody owns it", WAIT_S)
        return found[0]

    @staticmethod
    def _put(url: str) -> bool:
        """False: it is just changing hands."""
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=WAIT_S):
                return True
        except urllib.error.HTTPError as error:
            if error.code not in (307, 503):
                raise
            return False


def keep(url: str, traffic: Sequence[TopicTraffic]) -> None:
    """A second subscription, so that nothing is trimmed."""
    client = _client(url)
    for each in traffic:
        client.subscribe(each.topic, "keeper").close()
    client.close()


def read_all(url: str, traffic: Sequence[TopicTraffic]) -> dict[str, int]:
    """What is stored is all that was acknowledged, in order; by topic, what is there twice."""
    client = _client(url)
    repetitions = {}
    for each in traffic:
        reader = client.create_reader(each.topic, pulsar.MessageId.earliest)
        numbers = []
        while reader.has_message_available():
            numbers.append(int(reader.read_next(60_000).data()))
        reader.close()
        repetitions[each.topic] = assert_numbers(numbers, each.acknowledged, each.window)
    client.close()
    return repetitions


def _client(url: str) -> pulsar.Client:
    return open_client(url, operation_timeout_seconds=int(WAIT_S))


def build(names: Sequence[str]) -> None:
    for name in names:
        language = LANGUAGES[name]
        folder = _HERE / language.folder
        if not (language.needs and (folder / language.needs).exists()):
            subprocess.run(language.build, cwd=folder, check=True)


def print_table(
    programs: Sequence[Program], repetitions: dict[str, int], stalls_s: dict[str, list[float]]
) -> None:
    print("\n| client | topics | messages | stored twice | delivered again |")
    print("|---|---:|---:|---:|---:|")
    for each in programs:
        sent = sum(topic.acknowledged for topic in each.topics)
        twice = sum(repetitions[topic.topic] for topic in each.topics)
        again = sum(len(topic.received) - topic.consumed for topic in each.topics)
        print(f"| {each.name} | {len(each.topics)} | {sent:,} | {twice} | {again} |")
    print("\n| | stalls | p50 | longest |\n|---|---:|---:|---:|")
    for kind, stalls in stalls_s.items():
        print(
            f"| {kind} | {len(stalls)} | {statistics.median(stalls):.3f} s | {max(stalls):.3f} s |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=LANGUAGES, help="one of the languages")
    parser.add_argument("--moves", type=int, default=24, help="before the kill, and after it")
    options = parser.parse_args()
    names = [options.only] if options.only else list(LANGUAGES)
    build(names)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(cluster_of(folder))
        programs = [stack.enter_context(Program(name, cluster.service_url)) for name in names]
        traffic = [topic for each in programs for topic in each.topics]
        keep(cluster.service_url, traffic)
        all_go_on(traffic, "the start")
        moving = MovingCluster(cluster, traffic)
        topics = itertools.cycle(each.topic for each in traffic)
        for half in range(2):
            for number in range(1, options.moves + 1):
                moving.event("unload" if number % 6 == 0 else "move", next(topics))
            if half == 0:
                moving.event("kill", next(topics))
        for each in programs:
            each.stop()
        for each in programs:
            each.wait()
            for topic in each.topics:
                assert_numbers(topic.received, topic.acknowledged, window=None)
        print_table(programs, read_all(cluster.service_url, traffic), moving.stalls_s)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("UV_THREADPOOL_SIZE", "16")  # of Node: its receives occupy threads
    sys.exit(main())
