"""End-to-end encryption of ``magnetar`` and of the official client: each reads the other's."""

import base64
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import magnetar
from magnetar.broker.cli.main import main
from magnetar.embedding import EmbeddedBroker
from tests.official_client import open_client

Cli = Callable[..., list[str]]
_MS_MAX = 30_000
_NUMBERS = itertools.count()
_PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Keys:
    """Files of one pair."""

    private: Path
    public: Path

    @classmethod
    def write(
        cls, folder: Path, name: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    ) -> "Keys":
        keys = cls(folder / f"{name}-private.pem", folder / f"{name}-public.pem")
        form = serialization.PrivateFormat.TraditionalOpenSSL
        keys.private.write_bytes(key.private_bytes(_PEM, form, serialization.NoEncryption()))
        subject = serialization.PublicFormat.SubjectPublicKeyInfo
        keys.public.write_bytes(key.public_key().public_bytes(_PEM, subject))
        return keys

    @property
    def reader(self) -> pulsar.CryptoKeyReader:
        return pulsar.CryptoKeyReader(str(self.public), str(self.private))


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(mode="process", maxMessageSize=200_000) as broker:
        yield broker


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return Keys.write(tmp_path_factory.mktemp("keys"), "ours", key)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return Keys.write(tmp_path_factory.mktemp("keys"), "theirs", key)


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[pulsar.Client]:
    client = open_client(broker.service_url)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"sealed-{next(_NUMBERS)}"


@pytest.fixture(params=["pulsar", "ws"])
def url(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> str:
    by_websocket = broker.web_url.replace("http", "ws")
    return broker.service_url if request.param == "pulsar" else by_websocket


@pytest.fixture
def cli(url: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    def cli(*words: str, fails: bool = False) -> list[str]:
        code = main(["--url", url, *words])
        output = capsys.readouterr()
        assert code == (1 if fails else 0), output.err
        return (output.err if fails else output.out).splitlines()

    return cli


def contents(lines: list[str]) -> list[str]:
    return [match[1] for line in lines if (match := re.search(r"content:(.*)$", line))]


def as_data(file: Path) -> str:
    return f"data:application/x-pem-file;base64,{base64.b64encode(file.read_bytes()).decode()}"


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("by_data", [False, True])
def test_the_official_client_reads_ours(
    cli: Cli, client: pulsar.Client, topic: str, keys: Keys, batching: bool, by_data: bool
) -> None:
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys.reader)
    uri = as_data(keys.public) if by_data else f"file://{keys.public}"
    line = ("produce", topic, "-m", "a,b,", "-k", "key", "-p", "x=1", "-ekn", "name", "-ekv", uri)
    cli(*line, *(() if batching else ("-db",)))
    messages = [consumer.receive(_MS_MAX) for _ in range(3)]
    assert [message.data() for message in messages] == [b"a", b"b", b""]
    assert messages[0].partition_key() == "key"
    assert messages[0].properties() == {"x": "1"}


@pytest.mark.parametrize("batching", [False, True])
def test_ours_reads_the_official_clients(
    cli: Cli, client: pulsar.Client, topic: str, keys: Keys, batching: bool
) -> None:
    producer = client.create_producer(
        topic,
        encryption_key="name",
        crypto_key_reader=keys.reader,
        batching_enabled=batching,
        batching_max_publish_delay_ms=100,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for text in (b"a" * 1000, b"b"):
        producer.send_async(text, lambda *_: None, partition_key="key", properties={"x": "1"})
    producer.flush()
    client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
    lines = cli("read", topic, "-m", "earliest", "-n", "2", "-ekv", f"file://{keys.private}")
    assert contents(lines) == ["a" * 1000, "b"]
    assert "key:[key], properties:[x=1]" in lines[1]
    lines = cli("consume", topic, "-s", "s", "-n", "2", "-ekv", as_data(keys.private))
    assert contents(lines) == ["a" * 1000, "b"]


def test_large_messages_in_pieces_both_ways(
    broker: EmbeddedBroker,
    client: pulsar.Client,
    topic: str,
    keys: Keys,
    capsys: pytest.CaptureFixture[str],
) -> None:
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys.reader)
    text = "0123456789" * 60_000
    sealed = ("-c", "-ekn", "name", "-ekv", f"file://{keys.public}")
    assert main(["--url", broker.service_url, "produce", topic, "-m", text, *sealed]) == 0
    assert consumer.receive(_MS_MAX).data() == text.encode()
    producer = client.create_producer(
        topic,
        encryption_key="name",
        crypto_key_reader=keys.reader,
        batching_enabled=False,
        chunking_enabled=True,
    )
    producer.send(text.encode()[::-1])
    capsys.readouterr()
    line = ["read", topic, "-m", "earliest", "-n", "2", "-ekv", f"file://{keys.private}"]
    assert main(["--url", broker.service_url, *line]) == 0
    assert contents(capsys.readouterr().out.splitlines()) == [text, text[::-1]]


def test_what_cannot_be_opened(
    cli: Cli, client: pulsar.Client, url: str, topic: str, keys: Keys, others: Keys
) -> None:
    for name in ("wrong", "discard", "show"):
        client.subscribe(topic, name).close()
    cli("produce", topic, "-m", "secret", "-ekn", "name", "-ekv", f"file://{others.public}")
    client.create_producer(topic).send(b"plain")
    key = ("-ekv", f"file://{keys.private}")
    said = cli("consume", topic, "-s", "wrong", *key, fails=True)
    assert "the private key doesn't open it (sealed for name)" in said[0]
    assert contents(cli("consume", topic, "-s", "discard", *key, "-ca", "DISCARD")) == ["plain"]
    shown = contents(cli("consume", topic, "-s", "show", *key, "-ca", "CONSUME", "-n", "2"))
    assert len(shown) == 2
    assert shown[0] != "secret"
    # It is still there for whoever has the key.
    opened = cli("consume", topic, "-s", "wrong", "-ekv", f"file://{others.private}", "-n", "2")
    assert contents(opened) == ["secret", "plain"]


def test_without_a_key(
    broker: EmbeddedBroker, client: pulsar.Client, topic: str, keys: Keys,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    client.subscribe(topic, "s").close()
    sealed = ("-ekn", "name", "-ekv", f"file://{keys.public}")
    assert main(["--url", broker.service_url, "produce", topic, "-m", "secret", *sealed]) == 0
    line = ["--url", broker.service_url, "consume", topic, "-s", "s"]
    assert main(line) == 1
    assert "no key (-ekv)" in capsys.readouterr().err
    assert main([*line, "-ca", "CONSUME", "-mp"]) == 0
    shown = capsys.readouterr().out
    assert ", encryption-keys:[name:name, key-value:" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-ekn", "name"), "belong together"),
        (("-ekv", "file:///x"), "belong together"),
        (("-ekn", "name", "-ekv", "/x"), "is expected"),
        (("-ekn", "name", "-ekv", "file:///no/such/file"), "No such file"),
        (("-ekn", "name", "-ekv", "data:text/plain;base64,AA=="), "text/plain"),
        (("-ekn", "name", "-ekv", "data:application/x-pem-file;base64,A"), "not base64"),
        (("-ekn", "name", "-ekv", "data:application/x-pem-file,abc"), "not a public key"),
    ],
)
def test_keys_that_are_none(cli: Cli, topic: str, words: tuple[str, ...], said: str) -> None:
    assert said in cli("produce", topic, "-m", "x", *words, fails=True)[0]


def test_other_keys_than_rsa(cli: Cli, topic: str, tmp_path: Path) -> None:
    keys = Keys.write(tmp_path, "curve", ec.generate_private_key(ec.SECP256R1()))
    line = ("produce", topic, "-m", "x", "-ekn", "n", "-ekv", f"file://{keys.public}")
    assert "not an RSA key" in cli(*line, fails=True)[0]
    consume = ("consume", topic, "-s", "s", "-ekv", f"file://{keys.private}")
    assert "not an RSA key" in cli(*consume, fails=True)[0]
