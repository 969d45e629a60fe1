"""Probes and signals: any order of starts, no ZooKeeper, drains (docs/guides/containers.md)."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.child_process import ChildProcess
from tests.free_port import free_port
from tests.integration.failure_tools import new_topic
from tests.raw_client import RawClient
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

WAIT_S = 120.0
DRAINING = "draining: its topics go to other brokers"
ONE_COPY = [
    f"managedLedgerDefault{name}=1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
]


class Role(ChildProcess):
    """One ``magnetar`` process with fixed ports, which is probed from outside."""

    def __init__(self, folder: Path, word: str, number: int, metadata_url: str) -> None:
        super().__init__(folder / f"{word}-{number}.log")
        self.word, self.port, self.web_port = word, free_port(), free_port()
        http = ["httpServerEnabled=true", f"httpServerPort={self.web_port}"]
        options = {
            "broker": ["--port", str(self.port), "--web-port", str(self.web_port)],
            "bookie": ["--port", str(self.port), "--data", str(folder / f"bookie-{number}")],
            "autorecovery": ["--id", f"repair-{number}"],
        }
        settings = ["metadataStoreSessionTimeoutMillis=6000"]
        settings += [*ONE_COPY, "advertisedAddress=127.0.0.1"] if word == "broker" else http
        self._command = [
            *("magnetar.broker.cli.main", word, "--metadata", metadata_url),
            *options[word],
            *(part for text in settings for part in ("--set", text)),
        ]

    def add_settings(self, *texts: str) -> None:
        self._command += [part for text in texts for part in ("--set", text)]

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    def launch(self) -> None:
        """Start without waiting."""
        self._process = self.fork(*self._command)

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        wait_until(self.is_ready, f"{self.word} is ready: {self.log[-2000:]}", WAIT_S)

    def probe(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body; (0, {}): nobody answers."""
        found = _page(self, path)
        assert found[0] or self.is_running, self.log
        return found

    def is_ready(self) -> bool:
        return self.probe("/readyz") == (200, {"status": "ready"})

    def wait_for_reason(self, text: str) -> None:
        wait_until(lambda: text in self.reasons(), f"{self.word}: {text}", WAIT_S)

    def reasons(self) -> str:
        """Why it isn't ready; "": it is, or nobody answers."""
        return str(self.probe("/readyz")[1].get("reason", ""))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """These tests' own ZooKeeper, as they stop it; with a port, not started."""
    server = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    server.port = free_port()
    yield server
    if server.is_running:
        server.stop()


@pytest.fixture
def zookeeper(server: ZooKeeperProcess) -> ZooKeeperProcess:
    """Running; each test has a chroot of its own."""
    if not server.is_running:
        server.start()
    return server


@pytest.fixture
def stopped_zookeeper(server: ZooKeeperProcess) -> ZooKeeperProcess:
    if server.is_running:
        server.kill()
    return server


def roles(stack: ExitStack, folder: Path, zookeeper: ZooKeeperProcess, *words: str) -> list[Role]:
    """Not started; stopped with ``stack``."""
    metadata_url = zookeeper.url(f"/{folder.name}")
    made = [Role(folder, word, number, metadata_url) for number, word in enumerate(words)]

    def stop_all() -> None:
        for each in made:
            if each.is_running:
                each.kill()

    stack.callback(stop_all)
    return made


def test_a_start_that_waits_can_be_broken_off(
    tmp_path: Path, stopped_zookeeper: ZooKeeperProcess
) -> None:
    """There is no ZooKeeper, and there comes none."""
    with ExitStack() as stack:
        all_roles = roles(stack, tmp_path, stopped_zookeeper, "broker", "bookie", "autorecovery")
        for each in all_roles:
            each.launch()
        for each in all_roles:
            each.wait_for_reason("waiting for the metadata store")
            assert each.stop(WAIT_S) == 0, each.log
            assert "can't start" not in each.log


def test_whatever_comes_first_waits_for_the_rest(
    tmp_path: Path, stopped_zookeeper: ZooKeeperProcess
) -> None:
    """Everything at once, ZooKeeper last and empty: who waits is alive, and says for what."""
    with ExitStack() as stack:
        all_roles = roles(
            stack, tmp_path, stopped_zookeeper, "broker", "bookie", "bookie", "autorecovery"
        )
        for each in all_roles:
            each.launch()
        for each in all_roles:
            each.wait_for_reason("waiting for the metadata store")
            assert each.probe("/livez") == (200, {"status": "alive"})
        assert all_roles[0].probe("/admin/v2/clusters")[0] == 503
        stopped_zookeeper.start()
        for each in all_roles:
            each.wait_until_ready()
        broker = all_roles[0]
        client = pulsar.Client(broker.service_url, operation_timeout_seconds=60)
        stack.callback(client.close)
        topic = new_topic()
        consumer = client.subscribe(topic, "all")
        client.create_producer(topic).send(b"first")
        assert consumer.receive(60_000).data() == b"first"


@pytest.mark.parametrize("order", [("bookie", "broker"), ("broker", "bookie")])
def test_both_orders_make_what_is_missing(
    tmp_path: Path, zookeeper: ZooKeeperProcess, order: tuple[str, str]
) -> None:
    with ExitStack() as stack:
        made = {each.word: each for each in roles(stack, tmp_path, zookeeper, *order)}
        for word in order:
            made[word].start()
        with _producer(made["broker"], new_topic()) as producer:
            _send(producer, 0)
        assert made["broker"].stop() == made["bookie"].stop() == 0


def test_without_zookeeper_all_are_alive_and_nobody_is_ready(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    """A restart would help nobody, and topics that are loaded go on."""
    with ExitStack() as stack:
        all_roles = roles(stack, tmp_path, zookeeper, "bookie", "broker", "autorecovery")
        for each in all_roles:
            each.start()
        bookie, broker, repair = all_roles
        producer = stack.enter_context(_producer(broker, new_topic()))
        _send(producer, 0)
        zookeeper.kill()
        broker.wait_for_reason("metadata store")
        repair.wait_for_reason("metadata store")
        bookie.wait_for_reason("not registered")  # its session has ended
        for each in all_roles:
            assert each.probe("/livez") == (200, {"status": "alive"})
        _send(producer, 1)
        zookeeper.start()
        for each in all_roles:
            each.wait_until_ready()


def test_a_broker_that_is_told_to_end_says_where_its_topics_go(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    with ExitStack() as stack:
        bookie, *brokers = roles(stack, tmp_path, zookeeper, "bookie", "broker", "broker")
        for each in (bookie, *brokers):
            each.start()
        topics = [new_topic() for _ in range(4)]
        client = pulsar.Client(
            ",".join((brokers[0].service_url, brokers[1].service_url.removeprefix("pulsar://"))),
            operation_timeout_seconds=60,
        )
        stack.callback(client.close)
        producers = [client.create_producer(topic) for topic in topics]
        for producer in producers:
            producer.send(b"before")
        urls = [_owner(brokers[0], topic) for topic in topics]
        leaving = next(each for each in brokers if each.service_url == urls[0])
        other = next(each for each in brokers if each is not leaving)
        with _producer(leaving, topics[0]) as told:
            assert leaving.stop(WAIT_S) == 0, leaving.log
            (command, *_) = told.expect(pb.BaseCommand.CLOSE_PRODUCER)
            assert command.close_producer.assignedBrokerServiceUrl == other.service_url
        for topic in topics:
            assert _owner(other, topic) == other.service_url
        for producer in producers:
            producer.send(b"after")
        assert other.is_ready()
        assert "not drained in time" not in leaving.log


def test_a_broker_that_drains_sends_probes_away_and_serves_on(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    """ZooKeeper hangs, so that the drain takes a while."""
    with ExitStack() as stack:
        bookie, *brokers = roles(stack, tmp_path, zookeeper, "bookie", "broker", "broker")
        for each in (bookie, *brokers):
            each.add_settings("metadataStoreSessionTimeoutMillis=60000")
            each.start()
        topic = new_topic()
        owner = _owner(brokers[0], topic)
        leaving = next(each for each in brokers if each.service_url == owner)
        producer = stack.enter_context(_producer(leaving, topic))
        _send(producer, 0)
        zookeeper.pause()
        try:
            process = leaving.take()
            process.terminate()
            wait_until(lambda: _reason_at(leaving) == DRAINING, "it drains", WAIT_S)
            _send(producer, 1)
            assert _page(leaving, "/livez") == (200, {"status": "alive"})
        finally:
            zookeeper.resume()
        assert process.wait(WAIT_S) == 0, leaving.log


def test_a_bookie_flushes_and_ends_though_zookeeper_hangs(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    """Its registration ends with its session; whoever waited for an answer would flush too late."""
    with ExitStack() as stack:
        bookie, broker = roles(stack, tmp_path, zookeeper, "bookie", "broker")
        for each in (bookie, broker):
            each.add_settings("metadataStoreSessionTimeoutMillis=60000")
            each.start()
        with _producer(broker, new_topic()) as producer:
            _send(producer, 0)
        zookeeper.pause()
        try:
            assert bookie.stop(WAIT_S) == 0, bookie.log
        finally:
            zookeeper.resume()
        assert "could not unregister: the store doesn't answer" in bookie.log
        assert "without a complete" not in bookie.log


def test_brokers_that_end_together_wait_for_none_of_them(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    with ExitStack() as stack:
        bookie, *brokers = roles(stack, tmp_path, zookeeper, "bookie", "broker", "broker")
        for each in brokers:  # the leader of a busy machine warns of its load
            each.add_settings("loadBalancerBrokerOverloadedThresholdPercentage=1000")
        for each in (bookie, *brokers):
            each.start()
        client = pulsar.Client(brokers[0].service_url, operation_timeout_seconds=60)
        for _ in range(6):
            client.create_producer(new_topic()).send(b"stored")
        client.close()
        ends = [each.take() for each in brokers]
        for process in ends:
            process.terminate()
        assert [process.wait(WAIT_S) for process in ends] == [0, 0]
        for each in brokers:
            assert "not drained" not in each.log
            assert "WARNING" not in each.log, each.log


def _page(role: Role, path: str) -> tuple[int, dict[str, Any]]:
    """The same, of a process that may have ended."""
    try:
        with urllib.request.urlopen(role.web_url + path, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def _reason_at(role: Role) -> str:
    return str(_page(role, "/readyz")[1].get("reason", ""))


def _producer(broker: Role, topic: str) -> RawClient:
    client = RawClient(broker.service_url)
    client.look_up(topic)  # somebody has to own its bundle
    answer = client.create_producer(topic)
    assert isinstance(answer, pb.CommandProducerSuccess), answer
    return client


def _send(producer: RawClient, number: int) -> None:
    producer.send_bytes(RawClient.send_frame(number, b"stored"))
    producer.expect(pb.BaseCommand.SEND_RECEIPT)


def _owner(broker: Role, topic: str) -> str:
    path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
    status, body = broker.probe(path)
    assert status == 200, body
    return str(body["brokerUrl"])


def test_a_bookie_gets_rid_of_its_writers_before_it_is_stopped(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    with ExitStack() as stack:
        broker, *bookies = roles(stack, tmp_path, zookeeper, "broker", "bookie", "bookie")
        broker.add_settings("managedLedgerCacheSizeMB=0")  # what is read is read of bookies
        for each in (*bookies, broker):
            each.start()
        client = pulsar.Client(broker.service_url, operation_timeout_seconds=60)
        stack.callback(client.close)
        # Ledgers of one copy: some are on the first bookie, of all the chances there are.
        topics = [new_topic() for _ in range(20)]
        producers = [client.create_producer(topic) for topic in topics]
        for producer in producers:
            producer.send(b"before")
        first, second = bookies
        done = _drain(first, "--timeout", "60")
        assert done.returncode == 0, done.stderr
        assert "draining: read-only by order" in first.reasons()
        assert first.probe("/livez")[0] == 200
        read = _bytes_of(first, "READ")
        for topic in topics:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            assert reader.read_next(60_000).data() == b"before"
        assert _bytes_of(first, "READ") > read, "it serves readers"
        before = _bytes_of(second, "WRITE")
        for producer in producers:
            producer.send(b"after")
        assert _bytes_of(second, "WRITE") >= before + len(producers) * len(b"after")
        assert first.stop() == 0, first.log
        # There is nobody left to take the writers of the second.
        producers[0].send_async(b"more", lambda *_: None)
        assert _drain(second, "--undo").returncode == 0
        second.wait_until_ready()
        producers[0].send(b"last")


def _drain(bookie: Role, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "magnetar.broker.cli.main",
            "bookie-drain",
            bookie.web_url,
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def _bytes_of(bookie: Role, what: str) -> float:
    """What a bookie has taken (WRITE) or given (READ), as its metrics say."""
    with urllib.request.urlopen(f"{bookie.web_url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    lines = [line for line in page.splitlines() if line.startswith(f"bookie_{what}_BYTES")]
    return float(lines[0].rpartition(" ")[2])
