"""Random histories of compacted topics that official clients write and read: Go, Java, Node, C++.

``make interop-compaction [SEEDS=20] [ONLY=go]``: each message, batch or chunked message is sent by
one client, and all of them look: a reader's view, from the start and after a seek, the last message
id, a table view, a durable subscription that acknowledges, and one that is set to a time. What they
are to see is a model's word; it is right about Apache Pulsar, too (``--service-url``).

A program (``go/views``, ``java/.../Views.java``, ``node/views.js``) is started with the service URL
and a folder with ``public.pem`` and ``private.pem``, and answers each line by one, ``ok ...`` or
``error ...``. A message is KEY=VALUE=ID, an id in hexadecimal digits as clients serialize it:

    send TOPIC CODEC KIND KEY=VALUE ...    ids; KIND: single, batch, sealed, sealed-batch, chunks
    view TOPIC [ID]                        messages; those after an id
    last TOPIC                             an id
    table TOPIC                            KEY=VALUE ...; of Java and C++
    consume TOPIC NAME UNTIL_ID MS ACKED   messages; MS: 0 or a time; ACKED: an id, or "-"
"""

import argparse
import functools
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pulsar
from _pulsar import ConsumerType

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.encryption_keys import encryption_keys
from tests.interop.conftest import Admin
from tests.interop.moving_cluster import LANGUAGES, build
from tests.official_client import open_client
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until

_HERE: Final = Path(__file__).resolve().parent
_KEYS: Final = ("", "a", "b", "c", "d", "e")
_CODECS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_KINDS: Final = (*["single"] * 3, *["batch"] * 5, "chunks")
_SEALED: Final = ("sealed", "sealed-batch")
_CHUNKING: Final = ("go", "java")
"""The others cut a message at 5 MiB only."""
_RETAINS: Final = "topicCompactionRetainNullKey"
_VALUE_BYTES: Final = 2500
"""Of a message in chunks: three."""


class RefusedError(AssertionError):
    """A program has answered by an error."""


class Asked(Protocol):
    def ask(self, action: str, *words: str) -> list[str]:
        """Raises: RefusedError: it has failed."""


class Program:
    """A language's process."""

    def __init__(self, name: str, program: str, *arguments: str) -> None:
        self._name, self._told = name, ""
        language = LANGUAGES[name]
        self._process = subprocess.Popen(
            [*language.command(program), *arguments],
            cwd=_HERE / language.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, action: str, *words: str) -> list[str]:
        self.tell(action, *words)
        return self.answer()

    def tell(self, action: str, *words: str) -> None:
        """`answer` is to follow."""
        assert self._process.stdin is not None
        self._told = f"{action} {words}"
        print(action, *words, file=self._process.stdin, flush=True)

    def answer(self) -> list[str]:
        """Raises: RefusedError: it has failed."""
        assert self._process.stdout is not None
        status, *found = self._process.stdout.readline().split() or ["gone"]
        if status != "ok":
            raise RefusedError(f"{self._name} {self._told}: {status} {' '.join(found)}")
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class CppProgram:
    """The C++ client by way of the Python one."""

    def __init__(self, url: str, keys: pulsar.CryptoKeyReader) -> None:
        self._client, self._keys = open_client(url), keys

    def ask(self, action: str, *words: str) -> list[str]:
        return list(getattr(self, f"_{action}")(*words))

    def close(self) -> None:
        self._client.close()

    def _send(self, topic: str, codec: str, kind: str, *pairs: str) -> list[str]:
        options: dict[str, Any] = {}
        if kind.startswith("sealed"):
            options = {"encryption_key": "k", "crypto_key_reader": self._keys}
        producer = self._client.create_producer(
            topic,
            compression_type=getattr(pulsar.CompressionType, {"ZLIB": "ZLib"}.get(codec, codec)),
            batching_enabled=kind.endswith("batch"),
            batching_max_messages=1000,
            batching_max_publish_delay_ms=60_000,
            **options,
        )
        ids: dict[int, str] = {}

        def sent(number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            assert result == pulsar.Result.Ok
            ids[number] = message_id.serialize().hex()

        for number, pair in enumerate(pairs):
            key, _, value = pair.partition("=")
            answer = functools.partial(sent, number)
            producer.send_async(value.encode(), answer, partition_key=key or None)
        producer.flush()
        producer.close()
        return [ids[number] for number in range(len(pairs))]

    def _view(self, topic: str, seek: str = "") -> Iterator[str]:
        start = pulsar.MessageId.latest if seek else pulsar.MessageId.earliest
        reader = self._client.create_reader(
            topic, start, is_read_compacted=True, crypto_key_reader=self._keys
        )
        if seek:
            reader.seek(pulsar.MessageId.deserialize(bytes.fromhex(seek)))
        while reader.has_message_available():
            yield _told(reader.read_next(30_000))
        reader.close()

    def _last(self, topic: str) -> list[str]:
        consumer = self._subscribed(topic, f"last-{uuid.uuid4().hex}")
        found = consumer.get_last_message_id().serialize().hex()
        consumer.unsubscribe()
        return [found]

    def _table(self, topic: str) -> list[str]:
        view = self._client.create_table_view(topic)
        found = {key: value.decode() for key, value in _entries(view)}
        view.close()
        return sorted(f"{key}={value}" for key, value in found.items())

    def _subscribed(self, topic: str, name: str) -> pulsar.Consumer:
        return self._client.subscribe(
            topic,
            name,
            ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            is_read_compacted=True,
            crypto_key_reader=self._keys,
        )

    def _consume(
        self, topic: str, name: str, until: str, time_ms: str, acked: str
    ) -> Iterator[str]:
        consumer = self._subscribed(topic, name)
        if int(time_ms):
            consumer.seek(int(time_ms))
        found = ""
        while _place(found or acked) != _place(until):
            message = consumer.receive(30_000)
            yield _told(message)
            found = message.message_id().serialize().hex()
            if acked != "-" and _place(found) == _place(acked):
                consumer.acknowledge_cumulative(message)
        consumer.close()


def _entries(view: pulsar.TableView) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    view.for_each(lambda key, value: found.append((key, value)))
    return found


def _told(message: pulsar.Message) -> str:
    value = message.data().decode()
    return f"{message.partition_key()}={value}={message.message_id().serialize().hex()}"


def _place(message_id: str) -> tuple[int, ...]:
    """Ledger, entry and index; a batch of one has no index once Pulsar has compacted it."""
    if message_id == "-":
        return ()
    data = pb.MessageIdData.FromString(bytes.fromhex(message_id))
    return data.ledgerId, data.entryId, max(data.batch_index, 0)


def _partition(message_id: str) -> int:
    return max(pb.MessageIdData.FromString(bytes.fromhex(message_id)).partition, 0)


@dataclass(slots=True)
class Sent:
    """A message.

    Attributes:
        partition: 0 of a topic without partitions.
        entry: its number; several of a batch are one.
        outer_key: what a compaction goes by.
    """

    key: str
    value: str
    kind: str
    message_id: str
    time_ms: int
    partition: int
    entry: int
    outer_key: str

    @property
    def is_shown(self) -> bool:
        """Some clients show what was taken out of a batch as a message with neither."""
        return bool(self.key or self.value)


@dataclass
class History:
    """Of one topic.

    Attributes:
        as_pulsar: a compaction loses messages in chunks.
        retains_keyless: a compaction keeps what has no key (topicCompactionRetainNullKey).
        is_sealed: some messages are encrypted, and it is one client's; table views have no keys.
        partitions: 0: it has none; others are looked at by readers and table views only.
    """

    admin: Admin
    programs: dict[str, Asked]
    seed: int
    as_pulsar: bool
    retains_keyless: bool
    topic: str = ""
    partitions: int = 0
    sent: list[Sent] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    horizon: int = 0
    entries: int = 0
    was_unloaded: bool = False

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.is_sealed = self.rng.random() < 0.4
        if self.is_sealed:  # Go can't read the batches that others have encrypted
            name = self.rng.choice(list(self.programs))
            self.programs = {name: self.programs[name]}
        self.topic = f"persistent://public/default/clients-{self.seed}-{uuid.uuid4().hex[:8]}"
        self.partitions = self.seed % 3 and self.rng.choice((0, 2, 3))

    @property
    def parts(self) -> list[str]:
        each = range(self.partitions)
        return [f"{self.topic}-partition-{number}" for number in each] or [self.topic]

    def run(self) -> None:
        if self.partitions:
            self.admin.create_partitioned(self.topic, self.partitions)
        for _ in range(3):
            for _ in range(self.rng.randint(1, 6)):
                self._send()
            self._send_last()
            self._compact()
            if self.rng.random() < 0.3:
                for part in self.parts:
                    self._call("PUT", part, "unload")
                self.was_unloaded = True
            self._look()
            if self.rng.random() < 0.7:
                self._send()
                self._send_last()
                self._look()
        end = "/partitions" if self.partitions else ""
        self.admin.call("DELETE", f"{self.admin.topic_path(self.topic)}{end}?force=true")

    def _call(self, method: str, topic: str, what: str) -> Any:
        status, answer = self.admin.call(method, f"{self.admin.topic_path(topic)}/{what}")
        assert status in (200, 204), (what, status, answer)
        return answer

    # --- what is sent

    def _send(self) -> None:
        kind = self.rng.choice((*_KINDS, *_SEALED * 2) if self.is_sealed else _KINDS)
        writers = [each for each in self.programs if kind != "chunks" or each in _CHUNKING]
        count = self.rng.randint(1, 6) if kind.endswith("batch") else 1
        pairs = []
        for number in range(len(self.sent), len(self.sent) + count):
            value = f"v{number}-" + "x" * self.rng.choice([0, 0, 40])
            if kind == "chunks":
                value += "x" * _VALUE_BYTES
            elif kind != "sealed" and self.rng.random() < 0.2:  # 16 bytes are added to such ones
                value = ""
            pairs.append((self.rng.choice(_KEYS), value))
        codec = self.rng.choice(_CODECS)
        if kind in ("single", "sealed", "chunks"):  # C++ can't read an empty one that is compressed
            codec = codec if all(value for _, value in pairs) and kind != "chunks" else "NONE"
        if writers:
            self._sent(self.rng.choice(writers), codec, kind, pairs)

    def _send_last(self) -> None:
        """A plain one to each partition: up to it everybody reads."""
        for number in range(len(self.parts)):
            writer = self.rng.choice(list(self.programs))
            pair = self.rng.choice(_KEYS[1:]), f"v{len(self.sent)}-"
            self._sent(writer, "NONE", "single", [pair], partition=number)

    def _sent(
        self,
        writer: str,
        codec: str,
        kind: str,
        pairs: Sequence[tuple[str, str]],
        partition: int | None = None,
    ) -> None:
        """``partition``: the one it is sent to; None: where the client sends it."""
        time.sleep(0.003)  # so that a time tells what was sent before it from what was sent later
        now_ms = int(time.time() * 1000)
        words = [f"{key}={value}" for key, value in pairs]
        topic = self.topic if partition is None else self.parts[partition]
        ids = self.programs[writer].ask("send", topic, codec, kind, *words)
        assert len(ids) == len(pairs), (writer, ids)
        entries: dict[tuple[int, ...], tuple[int, str]] = {}
        for (key, value), message_id in zip(pairs, ids, strict=True):
            place = _place(message_id)[:2]
            if place not in entries:
                self.entries += 1
                entries[place] = self.entries, key
            entry, outer = entries[place]
            by = outer if kind == "sealed-batch" else key
            of = _partition(message_id) if partition is None else partition
            self.sent.append(Sent(key, value, kind, message_id, now_ms, of, entry, by))

    # --- what is seen

    def _view(self) -> list[int]:
        return [*self.kept, *range(self.horizon, len(self.sent))]

    def _compact(self) -> None:
        fresh = {each.partition for each in self.sent[self.horizon :]}
        for number, part in enumerate(self.parts):
            if number in fresh:
                self._compact_part(part)
        view = self._view()
        newest = {(self.sent[at].partition, self.sent[at].outer_key): at for at in view}
        self.kept = [at for at in view if self._is_kept(at, newest)]
        self.horizon = len(self.sent)

    def _compact_part(self, part: str) -> None:
        before = self._ledger(part)

        def is_compacted() -> bool:
            """In Pulsar a run that begins too soon may find nothing, and is a success."""
            self._call("PUT", part, "compaction")
            wait_until(lambda: self._call("GET", part, "compaction")["status"] != "RUNNING")
            return self._ledger(part) != before

        wait_until(is_compacted)

    def _is_kept(self, at: int, newest: dict[tuple[int, str], int]) -> bool:
        sent = self.sent[at]
        if not sent.outer_key:
            return self.retains_keyless
        if sent.kind == "chunks" and self.as_pulsar:
            return False
        last = newest[sent.partition, sent.outer_key]
        if sent.kind == "sealed-batch":  # one message to the broker, and never an empty one
            return self.sent[last].entry == sent.entry
        return last == at and bool(sent.value)

    def _ledger(self, part: str) -> int:
        return int(self._call("GET", part, "internalStats")["compactedLedger"]["ledgerId"])

    def _look(self) -> None:
        view = [at for at in self._view() if self.sent[at].is_shown]
        for name, program in self.programs.items():
            self._equal(name, "view", program.ask("view", self.topic), view)
            if name in ("java", "cpp") and not self.is_sealed:  # Go's wants a schema of the topic
                self._look_at_table(name, program, view)
        if not self.partitions:  # of which a client takes no id
            self._look_from_places(view)

    def _look_at_table(self, name: str, program: Asked, view: Sequence[int]) -> None:
        """Which of two partitions is read first, nobody knows."""
        homes: dict[str, set[int]] = {}
        for at in view:
            homes.setdefault(self.sent[at].key, set()).add(self.sent[at].partition)
        sure = {key for key, of in homes.items() if key and len(of) == 1}
        table = {self.sent[at].key: self.sent[at].value for at in view}
        expected = sorted(f"{key}={table[key]}" for key in sure if table[key])
        pairs = program.ask("table", self.topic)
        found = sorted(each for each in pairs if each.partition("=")[0] in sure)
        assert found == expected, f"{name}: table {found}, not {expected}"

    def _look_from_places(self, view: Sequence[int]) -> None:
        """Behind a seek, by consumers, and at the end."""
        until = self.sent[view[-1]].message_id
        seek = self.rng.randrange(len(self.sent) - 1)
        from_ms = self.sent[self.rng.choice(view)].time_ms
        alone = [
            at
            for at in view[:-1]
            if self.sent[at].kind in ("single", "sealed") and self.sent[at].value
        ]
        acked = self.rng.choice(alone) if alone else -1
        for name, program in self.programs.items():
            after = [at for at in view if at > seek]
            found = program.ask("view", self.topic, self.sent[seek].message_id)
            if name == "go":  # it may show that message, and its batch, too
                place = _place(self.sent[seek].message_id)
                found = [each for each in found if _place(each.split("=")[2]) > place]
            self._equal(name, f"seek to {seek}", found, after)
            if name != "node":  # has no such call
                last = program.ask("last", self.topic)[0]
                assert _place(last) == _place(until), f"{name}: last {last}, not {until}"
            subscription = f"{name}-{self.horizon}-{len(self.sent)}"
            mark = "-" if acked < 0 else self.sent[acked].message_id
            found = program.ask("consume", self.topic, subscription, until, "0", mark)
            self._equal(name, "consumer", found, view)
            if not self.was_unloaded:  # else the log is trimmed, and the cursor has no such place
                rest = [at for at in view if at > acked]
                found = program.ask("consume", self.topic, subscription, until, "0", "-")
                self._equal(name, f"consumer behind {acked}", found, rest)
                late = [at for at in view if self.sent[at].time_ms >= from_ms]
                found = program.ask("consume", self.topic, subscription, until, str(from_ms), "-")
                self._equal(name, f"consumer from {from_ms}", found, late)
            self._call("DELETE", self.topic, f"subscription/{subscription}?force=true")

    def _equal(self, name: str, what: str, words: Sequence[str], expected: Sequence[int]) -> None:
        numbers = {_place(each.message_id): at for at, each in enumerate(self.sent)}
        found = []
        for word in words:
            key, value, message_id = word.split("=")
            if value or (key and name != "go"):
                found.append(numbers[_place(message_id)])
                sent = self.sent[found[-1]]
                assert (key, value) == (sent.key, sent.value), f"{name}: {word}, not {sent}"
        if name == "go":  # drops a message of no bytes that is in no batch
            expected = [at for at in expected if self.sent[at].value]
        # The order is that within each partition.
        found = sorted(found, key=lambda at: self.sent[at].partition)
        expected = sorted(expected, key=lambda at: self.sent[at].partition)
        assert found == expected, (
            f"seed {self.seed}, {len(self.sent)} sent, {self.horizon} compacted: "
            f"{name}, {what}: {found}, not {expected}\n"
            + "\n".join(
                f"{at} {each.key}={each.value[:9]} {each.kind} in {each.entry} of {each.partition}"
                for at, each in enumerate(self.sent)
            )
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--service-url", help="of a server that runs already")
    parser.add_argument("--admin-url")
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", choices=LANGUAGES, nargs="+", help="languages, and C++")
    options = parser.parse_args()
    names = options.only or list(LANGUAGES)
    build(names)
    seeds = range(options.first, options.first + options.seeds)
    if options.service_url is not None:
        _run(names, seeds, options.service_url, options.admin_url)
        return 0
    for retains in ("false", "true"):
        with tempfile.TemporaryDirectory() as folder:
            setting = f"{_RETAINS}={retains}"
            with StandaloneProcess(Path(folder) / "data", "--set", setting) as broker:
                print(setting, flush=True)
                _run(names, seeds, broker.service_url, broker.admin_url)
    return 0


def _run(names: Sequence[str], seeds: Iterable[int], service_url: str, admin_url: str) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs: dict[str, Asked] = {}
        keys = encryption_keys(folder)
        for name in names:
            program = Program(name, "views", service_url, str(folder))
            stack.callback(program.close)
            programs[name] = program
        cpp = CppProgram(service_url, keys)
        stack.callback(cpp.close)
        programs["cpp"] = cpp
        admin = Admin(admin_url)
        as_pulsar = not admin.call("GET", "/admin/v2/brokers/version")[1].startswith("0.")
        settings = admin.call("GET", "/admin/v2/brokers/configuration/runtime")[1]
        retains = settings[_RETAINS] == "true"
        for seed in seeds:
            History(admin, programs, seed, as_pulsar, retains).run()
            print(f"seed {seed}: as expected", flush=True)


if __name__ == "__main__":
    sys.exit(main())
