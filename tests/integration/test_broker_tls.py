"""TLS on both ports, mutual TLS, and renewal of certificates, with the official client."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError, URLError

import pulsar
import pytest
import uvloop
from cryptography import x509
from cryptography.x509.oid import NameOID

import magnetar
from magnetar.bookkeeper.auth.certificates import common_name
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.listener.tls import TlsListener, server_context
from magnetar.embedding import EmbeddedBroker
from magnetar.errors import EmbeddedError
from tests.certificates import Authority, Pair
from tests.official_client import open_client
from tests.unit.managed_ledger.cluster import eventually

TOPIC = "persistent://public/default/tls"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _settings(server: Pair, **more: object) -> dict[str, Any]:
    return {
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "tlsCertificateFilePath": server.certificate,
        "tlsKeyFilePath": server.key,
        **more,
    }


def _client(
    broker: EmbeddedBroker, authority: Authority, who: Pair | None = None, **options: Any
) -> pulsar.Client:
    if who is not None:
        options["authentication"] = pulsar.AuthenticationTLS(str(who.certificate), str(who.key))
    options.setdefault("operation_timeout_seconds", 30)
    return open_client(
        broker.service_url_tls,
        tls_trust_certs_file_path=str(authority.certificate),
        tls_validate_hostname=True,
        **options,
    )


def _round_trip(client: pulsar.Client, count: int = 200, size: int = 1000) -> None:
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC, batching_enabled=True, block_if_queue_full=True)
    sent = [bytes([number % 251]) * size for number in range(count)]
    for payload in sent:
        producer.send_async(payload, lambda result, _: None)
    producer.flush()
    received = []
    for _ in sent:
        message = consumer.receive(30_000)
        received.append(message.data())
        consumer.acknowledge(message)
    assert received == sent
    consumer.close()
    producer.close()


def _get(url: str, authority: Authority, who: Pair | None = None) -> Any:
    context = ssl.create_default_context(cafile=authority.certificate)
    if who is not None:
        context.load_cert_chain(who.certificate, who.key)
    with urllib.request.urlopen(url, timeout=30, context=context) as answer:
        return json.load(answer)


def test_messages_small_and_large_pass_and_lookups_tell_both_addresses(
    authority: Authority,
) -> None:
    with magnetar.embedded(**_settings(authority.sign("localhost"))) as broker:
        client = _client(broker, authority)
        _round_trip(client)
        url = f"{broker.web_url_tls}/admin/v2/broker-stats/connections"
        shown = _get(url, authority)["connections"]
        assert {each["listener"] for each in shown} == {"pulsar+ssl"}
        if hasattr(socket, "TCP_INFO"):
            assert sum(each["bytesIn"] for each in shown) > 200_000
        _round_trip(client, count=8, size=2_000_000)  # frames larger than any buffer of TLS
        client.close()
        found = _get(f"{broker.web_url_tls}/lookup/v2/topic/persistent/public/default/x", authority)
        assert found["brokerUrl"] == broker.service_url
        assert found["brokerUrlTls"] == found["brokerUrlSsl"] == broker.service_url_tls
        assert found["httpUrlTls"] == broker.web_url_tls
        cluster = _get(f"{broker.web_url_tls}/admin/v2/clusters/standalone", authority)
        assert cluster["serviceUrlTls"] == broker.web_url_tls
        assert cluster["brokerServiceUrlTls"] == broker.service_url_tls
        plain = pulsar.Client(broker.service_url)
        _round_trip(plain, count=5)
        plain.close()


def test_a_child_process_tells_its_addresses_too(authority: Authority) -> None:
    settings = _settings(authority.sign("localhost"))
    with magnetar.embedded(mode="process", **settings) as broker:
        assert _get(f"{broker.web_url_tls}/admin/v2/clusters", authority) == ["standalone"]
        client = _client(broker, authority)
        _round_trip(client, count=3)
        client.close()


def test_the_common_name_is_the_role_and_nothing_less_gets_in(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "foreign").mkdir()
    foreign = Authority(tmp_path / "foreign", "foreign").sign("alice")
    alice = authority.sign("alice")
    settings = _settings(
        authority.sign("localhost"),
        authenticationEnabled=True,
        authenticationProviders="tls",
        tlsTrustCertsFilePath=authority.certificate,
    )
    with magnetar.embedded(**settings) as broker:
        client = _client(broker, authority, alice)
        _round_trip(client, count=5)
        client.close()
        url = f"{broker.web_url_tls}/admin/v2/clusters"
        assert _get(url, authority, alice) == ["standalone"]
        for who in (None, foreign):
            with pytest.raises((HTTPError, URLError, ssl.SSLError, ConnectionError)):
                _get(url, authority, who)
            unknown_client = _client(broker, authority, who, operation_timeout_seconds=3)
            with pytest.raises(pulsar.PulsarException):
                unknown_client.create_producer(TOPIC)
            unknown_client.close()
        with pytest.raises(HTTPError, match="401"):  # no certificate can come this way
            urllib.request.urlopen(f"{broker.web_url}/admin/v2/clusters", timeout=30)


def test_a_client_certificate_can_be_demanded_of_all(authority: Authority) -> None:
    settings = _settings(
        authority.sign("localhost"),
        tlsTrustCertsFilePath=authority.certificate,
        tlsRequireTrustedClientCertOnConnect=True,
    )
    with magnetar.embedded(**settings) as broker:
        url = f"{broker.web_url_tls}/admin/v2/clusters"
        assert _get(url, authority, authority.sign("anyone")) == ["standalone"]
        with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
            _get(url, authority)


# --- settings


def test_bad_files_and_settings_end_the_start(authority: Authority, tmp_path: Path) -> None:
    server, other = authority.sign("localhost"), authority.sign("other")
    good = _settings(server)
    for change, text in (
        ({"tlsCertificateFilePath": ""}, "needs tlsCertificateFilePath"),
        ({"tlsCertificateFilePath": tmp_path / "none"}, "No such file"),
        ({"tlsKeyFilePath": other.key}, "tlsKeyFilePath"),
        ({"tlsKeyFilePath": server.certificate}, "tlsKeyFilePath"),
        ({"tlsTrustCertsFilePath": server.key}, "tlsTrustCertsFilePath"),
        ({"tlsRequireTrustedClientCertOnConnect": True}, "needs tlsTrustCertsFilePath"),
        ({"tlsProtocols": "SSLv3"}, "SSLv3 is not one of"),
        ({"tlsCiphers": "ROT13"}, "tlsCiphers"),
    ):
        with pytest.raises(ConfigError, match=text):
            server_context(BrokerConfig().with_keys({**good, **change}))
    with pytest.raises(EmbeddedError, match="No such file"):
        magnetar.embedded(**{**good, "tlsKeyFilePath": tmp_path / "none"}).__enter__()


def test_protocols_and_ciphers_are_restricted(authority: Authority) -> None:
    settings = _settings(
        authority.sign("localhost"),
        tlsProtocols="TLSv1.2",
        tlsCiphers="TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    )
    context = server_context(BrokerConfig().with_keys(settings))
    assert context.maximum_version == context.minimum_version == ssl.TLSVersion.TLSv1_2
    # OpenSSL always lists those of 1.3, which this context never speaks
    old = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert old == ["ECDHE-ECDSA-AES256-GCM-SHA384"]
    both = server_context(BrokerConfig().with_keys(_settings(authority.sign("localhost"))))
    assert both.minimum_version == ssl.TLSVersion.TLSv1_2
    assert both.maximum_version == ssl.TLSVersion.TLSv1_3


def test_common_names(authority: Authority) -> None:
    cn, unit = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
    cases: list[tuple[list[tuple[x509.ObjectIdentifier, str]], str | None]] = [
        ([(cn, "alice")], "alice"),
        ([(unit, "sales"), (cn, "alice")], "alice"),
        ([(cn, "outer"), (cn, "inner")], "inner"),  # first in RFC 2253's order
        ([(cn, "a,CN=admin")], "a,CN=admin"),
        ([(unit, "x,CN=admin")], None),
    ]
    for number, (subject, role) in enumerate(cases):
        assert common_name(authority.sign_subject(subject, f"case{number}").der) == role


# --- renewal


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        cast("asyncio.Transport", self._transport).write(data)


async def _connect(
    port: int, authority: Authority, who: Pair | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cafile=authority.certificate)
    context.check_hostname = False
    if who is not None:
        context.load_cert_chain(who.certificate, who.key)
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def _echo(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
    reader, writer = streams
    writer.write(b"x")
    return await asyncio.wait_for(reader.read(1), 30)


async def _answers(port: int, authority: Authority, who: Pair) -> bool:
    """Whether somebody is served; TLS 1.3 tells a client only after its handshake that it isn't."""
    try:
        streams = await _connect(port, authority, who)
        answer = await _echo(streams)
        streams[1].close()
    except OSError:
        return False
    return bool(answer)


async def test_files_are_renewed_without_dropping_connections(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    new = Authority(tmp_path / "new", "new")
    server, successor = authority.sign("localhost"), new.sign("localhost")
    alice, bob = authority.sign("alice"), new.sign("bob")
    trusted = tmp_path / "trusted.pem"
    shutil.copy(authority.certificate, trusted)
    config = BrokerConfig().with_keys(
        _settings(server, tlsTrustCertsFilePath=trusted, tlsRequireTrustedClientCertOnConnect=True)
    )
    listener = TlsListener(config, _Echo, backlog=16)
    listener.renewal.settle_s = 0
    port = await listener.start("127.0.0.1", 0, "test")
    old = await _connect(port, authority, alice)
    assert await _echo(old) == b"x"
    try:
        # Half of a renewal: key and certificate don't fit, so nothing changes
        shutil.copy(successor.certificate, server.certificate)
        await listener.renewal.check()
        halfway = await _connect(port, authority, alice)
        assert await _echo(halfway) == b"x"
        shutil.copy(successor.key, server.key)
        shutil.copy(new.certificate, trusted)
        await listener.renewal.check()
        fresh = await _connect(port, new, bob)
        assert await _echo(fresh) == b"x"
        assert not await _answers(port, new, alice)  # who is trusted no longer
        assert await _answers(port, new, bob)
        for streams in (old, halfway, fresh):
            assert await _echo(streams) == b"x"
            streams[1].close()
    finally:
        listener.close()


async def test_the_timer_notices_changed_files(authority: Authority) -> None:
    server = authority.sign("localhost")
    settings = _settings(server, tlsCertRefreshCheckDurationSec=1)
    listener = TlsListener(BrokerConfig().with_keys(settings), _Echo, backlog=16)
    port = await listener.start("127.0.0.1", 0, "test")

    async def served() -> bytes:
        _, writer = await _connect(port, authority)
        tls = writer.get_extra_info("ssl_object")
        writer.close()
        certificate: bytes = tls.getpeercert(binary_form=True)
        return certificate

    try:
        assert await served() == server.der
        renewed = authority.sign("localhost", file="renewed")
        for old, new in ((server.certificate, renewed.certificate), (server.key, renewed.key)):
            os.replace(new, old)
        async with asyncio.timeout(30):
            while await served() != renewed.der:
                pass
    finally:
        listener.close()


class _Pausing(asyncio.Protocol):
    """Reads nothing for now."""

    made: "list[_Pausing]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.pause_reading()
        self.size = 0
        self.made.append(self)

    def data_received(self, data: bytes) -> None:
        self.size += len(data)


def test_who_pauses_as_soon_as_it_is_connected_is_not_read(authority: Authority) -> None:
    """uvloop begins to read after connection_made, whatever was said in it."""
    config = BrokerConfig().with_keys(_settings(authority.sign("localhost")))

    async def pause() -> None:
        _Pausing.made = []
        listener = TlsListener(config, _Pausing, backlog=16)
        port = await listener.start("127.0.0.1", 0, "test")
        _, writer = await _connect(port, authority)
        writer.write(bytes(1 << 20))
        await eventually(lambda: bool(_Pausing.made))
        (protocol,) = _Pausing.made
        lower = cast("Any", protocol.transport)._lower
        await eventually(lambda: not lower.is_reading())
        assert protocol.size == 0
        protocol.transport.resume_reading()
        await eventually(lambda: protocol.size == 1 << 20)
        writer.close()
        listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(pause())


# --- limits before anybody has proved anything


async def test_connections_that_only_hang_are_few_and_leave_room(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.listener.tls._HANDSHAKES_MAX", 4)  # of one address: 2
    config = BrokerConfig().with_keys(_settings(authority.sign("localhost")))
    listener = TlsListener(config, _Echo, backlog=16)
    port = await listener.start("127.0.0.1", 0, "test")
    try:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        oldest, _ = silent[0]
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(oldest.read(), 30) == b""
        assert listener.limiter.cut == 1
        streams = await _connect(port, authority)
        assert listener.limiter.cut == 2
        assert await _echo(streams) == b"x"
        for _, writer in (streams, *silent):
            writer.close()
    finally:
        listener.close()


async def test_who_speaks_no_tls_is_cut_and_others_are_served(authority: Authority) -> None:
    config = BrokerConfig().with_keys(_settings(authority.sign("localhost")))
    listener = TlsListener(config, _Echo, backlog=16)
    port = await listener.start("127.0.0.1", 0, "test")
    try:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(500)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 30)  # an alert, perhaps, and the end
            writer.close()
        streams = await _connect(port, authority)
        assert await _echo(streams) == b"x"
        streams[1].close()
    finally:
        listener.close()
