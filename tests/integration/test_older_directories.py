"""Data directories of an older version (tests/directories): today's version opens them, finds what
is written in their histories, goes on with them, and finds that again."""

import fcntl
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tests.directories import make
from tests.standalone_process import StandaloneProcess

FIRST_MARK = 1001


class Directory:
    """One of them, and what must be in it; each ``visit`` adds a message to every topic."""

    def __init__(self, process: StandaloneProcess, history: dict[str, Any]) -> None:
        self._process = process
        self._stored: dict[str, list[list[str]]] = history["stored"]
        self._left: dict[str, dict[str, list[str]]] = history["unacknowledged"]
        self._mark = FIRST_MARK

    def visit(self) -> None:
        client = pulsar.Client(self._process.service_url, operation_timeout_seconds=30)
        self._check_repetitions_are_dropped(client)
        self._read_all(client)
        for topic in self._stored:
            self._write(client, topic)
            for subscription, left in self._left[topic].items():
                self._consume(client, topic, subscription, left)
        client.close()
        self._mark += 1

    def _read_all(self, client: pulsar.Client) -> None:
        for topic, messages in self._stored.items():
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            found = []
            while reader.has_message_available():
                message = reader.read_next(30_000)
                found.append([make.position_of(message.message_id()), message.data().decode()])
            reader.close()
            assert found == messages, topic

    def _write(self, client: pulsar.Client, topic: str) -> None:
        if topic == make.topic("ended"):
            with pytest.raises(pulsar.TopicTerminated):
                client.create_producer(topic)
            return
        name = "p1" if topic == make.topic("once") else None
        producer = client.create_producer(topic, name, batching_enabled=False)
        where = producer.send(b"%d" % self._mark, sequence_id=self._mark)
        producer.close()
        self._stored[topic].append([make.position_of(where), str(self._mark)])
        for left in self._left[topic].values():
            left.append(str(self._mark))

    def _consume(
        self, client: pulsar.Client, topic: str, subscription: str, left: list[str]
    ) -> None:
        """Nothing comes before the message just written but what is left, which is in order."""
        consumer = client.subscribe(
            topic, subscription, pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
        )
        messages = [consumer.receive(30_000) for _ in left]
        assert [message.data().decode() for message in messages] == left, (topic, subscription)
        if subscription == "holes":
            consumer.acknowledge(messages[0])
            left.pop(0)
        consumer.close()

    def _check_repetitions_are_dropped(self, client: pulsar.Client) -> None:
        """``_read_all`` sees that they aren't stored."""
        for name, last in (("p1", self._last_of_p1()), ("p2", 3)):
            producer = client.create_producer(make.topic("once"), name, batching_enabled=False)
            assert producer.last_sequence_id() == last
            producer.send(b"again", sequence_id=last)
            producer.close()

    def _last_of_p1(self) -> int:
        return max(int(text) for _, text in self._stored[make.topic("once")])

    def check_documents(self) -> None:
        with httpx.Client(base_url=self._process.admin_url + "/admin/v2", timeout=30) as http:

            def get(path: str) -> Any:
                answer = http.get(path)
                assert answer.is_success, (path, answer.text)
                return answer.json()

            namespace = f"/persistent/{make.NAMESPACE}"
            assert get(f"/tenants/{make.TENANT}")["adminRoles"] == ["chief"]
            for name, value in make.POLICIES.items():
                assert get(f"/namespaces/{make.NAMESPACE}/{name}") == value
            assert get(f"{namespace}/log/properties") == make.PROPERTIES
            assert get(f"{namespace}/log/subscription/holes/properties") == make.PROPERTIES
            for version, schema in enumerate(make.SCHEMAS):
                found = get(f"/schemas/{make.NAMESPACE}/typed/schema/{version}")
                assert (json.loads(found["data"]), found["properties"]) == (schema, {"k": "v"})
            assert get(f"{namespace}/parts/partitions")["partitions"] == 3
            rows = get(f"{namespace}/copied/internalStats?metadata=true")["ledgers"]
            copied = [row["offloaded"] and not row.get("metadata") for row in rows]
            assert copied[:2] == [True, True]
            later = get(f"{namespace}/delayed/stats")["subscriptions"]["later"]
            assert later["msgBacklog"] == len(self._stored[make.topic("delayed")])
            ended = get(f"{namespace}/ended/stats")["subscriptions"]["all"]
            assert ended["msgBacklog"] == len(self._left[make.topic("ended")]["all"])


@pytest.fixture
def copies() -> Iterator[None]:
    """The place of copies is written in the metadata, and therefore a fixed one: of one run at a
    time."""
    with make.COPIES.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(make.COPIES, ignore_errors=True)
        yield
        shutil.rmtree(make.COPIES, ignore_errors=True)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_an_older_directory_opens_with_all_that_is_in_it(tmp_path: Path, ended: str) -> None:
    with tarfile.open(make.HERE / f"{ended}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.copytree(tmp_path / "copies", make.COPIES)
    history = json.loads((make.HERE / f"{ended}.json").read_text())
    process = StandaloneProcess(tmp_path / "data", *make.OPTIONS)
    directory = Directory(process, history)
    for _ in range(2):
        with process:
            directory.visit()
            directory.check_documents()
