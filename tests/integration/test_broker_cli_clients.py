"""``magnetar produce``, ``consume`` and ``read`` against a real broker and the official client."""

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.broker.cli.main import main
from magnetar.embedding import EmbeddedBroker
from tests.official_client import open_client

Cli = Callable[..., list[str]]
_S_MAX = 30.0
_NUMBERS = itertools.count()
RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'


class R(pulsar.schema.Record):  # type: ignore[misc]  # the client has no types
    a = pulsar.schema.Integer(required=True)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(mode="process", maxMessageSize=200_000) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[pulsar.Client]:
    client = open_client(broker.service_url)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"cli-{next(_NUMBERS)}"


@pytest.fixture
def cli(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command; its output's lines. ``fails``: exit code 1, and standard error's lines."""

    def cli(*words: str, fails: bool = False) -> list[str]:
        url = "--admin-url" if words[0] == "admin" else "--url"
        address = broker.web_url if words[0] == "admin" else broker.service_url
        code = main([words[0], url, address, *words[1:]])
        output = capsys.readouterr()
        assert code == (1 if fails else 0), output.err
        return (output.err if fails else output.out).splitlines()

    return cli


def contents(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.search(r"content:(.*)$", line))]


# --- produce, as the official client sees it


def test_what_is_produced(cli: Cli, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    consumer = client.subscribe(topic, "s")
    (tmp_path / "file").write_bytes(b"\x00from a file\xff")
    said = cli(
        *("produce", topic, "-m", "a|b", "-m", "c", "-s", "|", "-f", str(tmp_path / "file")),
        *("-n", "2", "-k", "the key", "-p", "x=1,y=2", "-p", "z=3"),
    )
    assert said == ["8 messages successfully produced"]
    messages = [consumer.receive(int(_S_MAX * 1000)) for _ in range(8)]
    assert [message.data() for message in messages] == 2 * [
        b"a",
        b"b",
        b"c",
        b"\x00from a file\xff",
    ]
    assert {message.partition_key() for message in messages} == {"the key"}
    assert messages[0].properties() == {"x": "1", "y": "2", "z": "3"}
    assert cli("produce", topic, fails=True) == [
        "magnetar: nothing to send: give -m TEXT or -f FILE"
    ]


def test_batches_and_their_absence(cli: Cli, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    cli("produce", topic, "-m", "x", "-n", "250")
    cli("produce", topic, "-m", "x", "-n", "3", "-db")
    ids = [consumer.receive(int(_S_MAX * 1000)).message_id() for _ in range(253)]
    assert len({message_id.entry_id() for message_id in ids}) == 3 + 3
    assert len({(message_id.entry_id(), message_id.batch_index()) for message_id in ids}) == 253


def test_a_key_stays_in_one_partition(cli: Cli, topic: str) -> None:
    cli("admin", "topics", "create-partitioned-topic", topic, "-p", "4")
    cli("produce", topic, "-m", "x", "-n", "5", "-db", "-k", "key")
    cli("produce", topic, "-m", "x", "-n", "8", "-db")
    counts = []
    for index in range(4):
        lines = cli("admin", "topics", "stats", f"{topic}-partition-{index}")
        counts.append(json.loads("\n".join(lines))["msgInCounter"])
    assert sorted(counts) == [2, 2, 2, 7]
    assert counts[_java_hash("key") % 4] == 7
    assert len(contents(cli("consume", topic, "-s", "s", "-p", "earliest", "-n", "13"))) == 13


def _java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) % 2**32
    return value % 2**31


def test_large_messages_go_in_pieces(
    cli: Cli, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 2500
    (tmp_path / "large").write_bytes(data)
    (said,) = cli("produce", topic, "-f", str(tmp_path / "large"), fails=True)
    assert "the broker takes 200000: cut it with -c" in said
    consumer = client.subscribe(topic, "official")
    cli("produce", topic, "-f", str(tmp_path / "large"), "-c")
    assert consumer.receive(int(_S_MAX * 1000)).data() == data
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(data[::-1])
    (one, two) = contents(cli("consume", topic, "-s", "s", "-p", "earliest", "-n", "2", "--hex"))
    assert (bytes.fromhex(one), bytes.fromhex(two)) == (data, data[::-1])
    # All pieces are acknowledged.
    lines = cli("admin", "topics", "stats", topic)
    assert json.loads("\n".join(lines))["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_values_by_schema(cli: Cli, client: pulsar.Client, topic: str, kind: str) -> None:
    schema: Any = pulsar.schema.AvroSchema(R) if kind == "avro" else pulsar.schema.JsonSchema(R)
    consumer = client.subscribe(topic, "s", schema=schema)
    cli("produce", topic, "-m", '{"a": 5}', "-s", "", "-vs", f"{kind}:{RECORD}")
    assert consumer.receive(int(_S_MAX * 1000)).value().a == 5
    client.create_producer(topic, schema=schema).send(R(a=6))
    lines = cli("read", topic, "-m", "earliest", "-n", "2", "-st", "auto_consume")
    assert [json.loads(text) for text in contents(lines)] == [{"a": 5}, {"a": 6}]
    said = cli("produce", topic, "-m", "x", "-vs", f"{kind}:{RECORD}", fails=True)
    assert "is no value of the schema" in said[0]
    other = RECORD.replace('"int"', '"string"')
    said = cli("produce", topic, "-m", '{"a": ""}', "-s", "", "-vs", f"{kind}:{other}", fails=True)
    assert "IncompatibleSchema" in said[0]


@pytest.mark.parametrize("encoding", ["separated", "inline"])
def test_pairs_of_key_and_value(cli: Cli, topic: str, encoding: str) -> None:
    cli(
        *("produce", topic, "-m", '{"a": 5}', "-s", "", "-k", "the key"),
        *("-kvet", encoding, "-ks", "string", "-vs", f"avro:{RECORD}"),
    )
    (text,) = contents(cli("read", topic, "-m", "earliest", "-st", "auto_consume"))
    assert json.loads(text) == {"key": "the key", "value": {"a": 5}}


def test_a_schema_that_is_none(cli: Cli, topic: str) -> None:
    assert "bytes, string, avro" in cli("produce", topic, "-m", "x", "-vs", "xml", fails=True)[0]
    assert "not JSON" in cli("produce", topic, "-m", "x", "-vs", "avro:{", fails=True)[0]
    assert "can't be used" in cli("produce", topic, "-m", "x", "-vs", "avro:{}", fails=True)[0]


@pytest.mark.parametrize("by_file", [False, True])
def test_keys_of_pairs_in_words_of_their_own(
    cli: Cli, topic: str, tmp_path: Path, by_file: bool
) -> None:
    (tmp_path / "key").write_text("k")
    key = ("-kvkf", str(tmp_path / "key")) if by_file else ("-kvk", "k")
    line = ("consume", topic, "-s", "s", "-p", "earliest", "-st", "auto_consume")
    cli("produce", topic, "-m", "v", "-vs", "string", "-kvet", "inline", *key)
    assert contents(cli(*line)) == ['{"key": "k", "value": "v"}']
    said = cli("produce", topic, "-m", "v", *key, fails=True)
    assert "need -kvet" in said[0]


def test_no_more_bytes_on_their_way_than_allowed(cli: Cli, topic: str) -> None:
    sizes = ("produce", topic, "-m", "x" * 5000, "-db", "-n", "50")
    assert cli(*sizes, "-ml", "6k") == ["50 messages successfully produced"]


def test_from_one_time_to_another(cli: Cli, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "times")
    sent = []
    for text in ("old", "from here", "to here", "new"):
        producer.send(text.encode())
        sent.append(consumer.receive(int(_S_MAX * 1000)).publish_timestamp())
        deadline = time.time() + _S_MAX
        while time.time() * 1000 <= sent[-1] + 5 and time.time() < deadline:
            time.sleep(0.002)
    line = ("consume", topic, "-s", "s", "-p", "earliest", "-n", "0")
    times = ("-stp", str(sent[1]), "-etp", str(sent[2]))
    assert contents(cli(*line, *times)) == ["from here", "to here"]
    assert contents(cli("consume", topic, "-s", "s")) == ["new"]  # it ended the command before
    assert contents(cli("consume", topic, "-s", "s", "-stp", "1")) == ["old"]


def test_what_else_messages_carry(cli: Cli, topic: str) -> None:
    cli("produce", topic, "-m", "a,b")
    line = cli("read", topic, "-m", "earliest", "-mp", "-n", "2")[3]
    assert re.search(
        r"content:b, message-id:\d+:0:-1:1, producer-name:\S+, sequence-id:1, "
        r"replicated-from:null, redelivery-count:0, ordering-key:, schema-version:$",
        line,
    )


@pytest.mark.parametrize("command", ["produce", "consume", "read"])
def test_a_listener_that_no_broker_has(cli: Cli, topic: str, command: str) -> None:
    more = {"produce": ("-m", "x"), "consume": ("-s", "s"), "read": ()}[command]
    said = cli(command, topic, *more, "--listener-name", "nowhere", fails=True)
    assert "nowhere" in said[0]


def test_a_rate(cli: Cli, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("magnetar.broker.cli.payloads.sleep", sleep)
    cli("produce", topic, "-m", "x", "-n", "4", "-r", "0.001")
    assert [round(wait, -2) for wait in waits] == [0.0, 1000.0, 2000.0, 3000.0]


# --- consume and read


def test_what_is_shown(cli: Cli, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"\x01\xff", partition_key="k", properties={"x": "1"}, event_timestamp=77)
    (mark, line, end) = cli("read", topic, "-m", "earliest", "--hex")
    assert mark == "----- got message -----"
    assert re.fullmatch(
        r"publishTime:\[\d{13}\], eventTime:\[77\], key:\[k\], properties:\[x=1\], content:01 ff",
        line,
    )
    assert end == "1 messages successfully read"
    shown = cli("consume", topic, "-s", "s", "-p", "earliest", "--hide-content")
    assert shown == ["1 messages successfully consumed"]


def test_part_of_a_batch_is_acknowledged(cli: Cli, topic: str) -> None:
    cli("produce", topic, "-m", "a,b,c,d,e")
    consume = ("consume", topic, "-s", "s", "-p", "earliest", "-n")
    assert contents(cli(*consume, "2")) == ["a", "b"]
    assert contents(cli(*consume, "3")) == ["c", "d", "e"]
    assert "then silence" in cli(*consume, "1", "--timeout", "0.2", fails=True)[0]


def test_a_subscription_that_does_not_stay(cli: Cli, topic: str) -> None:
    cli("produce", topic, "-m", "a")
    line = ("consume", topic, "-s", "gone", "-m", "NonDurable", "-p", "earliest")
    assert contents(cli(*line)) == ["a"]
    assert cli("admin", "topics", "subscriptions", topic) == []


def test_reading_from_a_message(cli: Cli, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(5)]
    third = f"{ids[2].ledger_id()}:{ids[2].entry_id()}"
    assert contents(cli("read", topic, "-m", third, "-n", "2")) == ["3", "4"]
    assert contents(cli("read", topic, "-m", third, "-i", "-n", "2")) == ["2", "3"]
    assert "silence" in cli("read", topic, "--timeout", "0.2", fails=True)[0]
    assert "not a message id" in cli("read", topic, "-m", "third", fails=True)[0]
    assert cli("admin", "topics", "subscriptions", topic) == []


def test_all_topics_that_match_also_new_ones(
    cli: Cli, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.cli.consume_command.LOOK_FOR_TOPICS_S", 0.05)
    client.create_producer(f"{topic}-one").send(b"one")
    client.create_producer(f"other-{topic}-one").send(b"not this")
    cli("admin", "topics", "create-partitioned-topic", f"{topic}-two", "-p", "2")
    cli("produce", f"{topic}-two", "-m", "two", "-n", "2", "-db")
    late = threading.Timer(0.3, lambda: client.create_producer(f"{topic}-new").send(b"new"))
    late.start()
    line = ("consume", f"public/default/{topic}-.*", "--regex", "-s", "s", "-p", "earliest")
    lines = cli(*line, "-n", "4", "--timeout", str(_S_MAX))
    late.join()
    assert sorted(contents(lines)) == ["new", "one", "two", "two"]
    assert (
        "not an expression"
        in cli("consume", "public/default/(", "--regex", "-s", "s", fails=True)[0]
    )


def test_over_websocket(
    broker: EmbeddedBroker, cli: Cli, client: pulsar.Client, topic: str
) -> None:
    url = ("--url", broker.web_url.replace("http", "ws"))
    cli("admin", "topics", "create-subscription", topic, "-s", "s")
    consumer = client.subscribe(topic, "official")
    send = ("produce", *url, topic, "-k", "key", "-p", "x=1")
    assert cli(*send, "-m", "a,b", "-n", "600")[-1] == "1200 messages successfully produced"
    message = consumer.receive(int(_S_MAX * 1000))
    assert (message.data(), message.partition_key()) == (b"a", "key")
    assert message.properties() == {"x": "1"}
    consumer.close()
    lines = cli("consume", *url, topic, "-s", "s", "-n", "1199")
    assert contents(lines) == ["a", "b"] * 599 + ["a"]
    assert re.match(r"publishTime:\[\d{13}\], eventTime:\[0\], key:\[key\], ", lines[1])
    assert contents(cli("consume", *url, topic, "-s", "s", "--hex")) == ["62"]
    assert contents(cli("read", *url, topic, "-m", "earliest", "-n", "2")) == ["a", "b"]
    regex = ("consume", *url, f"public/default/{topic}.*", "--regex", "-s", "official")
    assert contents(cli(*regex)) == ["a"]
    silent = cli("consume", *url, topic, "-s", "s", "--timeout", "0.2", fails=True)
    assert "then silence" in silent[0]
    said = cli(*send, "-m", "a", "-vs", "string", fails=True)
    assert "not possible over WebSocket" in said[0]
    refused = cli("produce", *url, "no-such-tenant/ns/x", "-m", "a", fails=True)
    assert refused[0].startswith("magnetar: HTTP 4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("produce", "--url", "ws://127.0.0.1:9", "x", "-m", "a"), "can't be reached"),
        (("produce", "--url", "http://127.0.0.1:8080", "x", "-m", "a"), "not a service URL"),
        (("read", "--url", "pulsar://127.0.0.1:9", "x"), "can't be reached"),
    ],
)
def test_a_url_that_does_not_do(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert said in capsys.readouterr().err
