"""Options and columns of the sink: what is possible, and what is told about the rest."""

import pickle

import pytest

from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.sink_options import COLUMNS, find_columns, parse_sink_options

URL = {"serviceUrl": "pulsar://localhost:6650"}


def test_defaults() -> None:
    options = parse_sink_options(URL)
    assert options.service_url == "pulsar://localhost:6650"
    assert options.effectively_once
    assert (options.topic, options.producer_name, options.batch_id) == ("", "", 0)
    assert (options.compression, options.hashing) == ("none", "JavaStringHash")
    assert (options.messages_max, options.entry_bytes_max) == (1000, 1 << 20)
    assert (options.send_timeout_ms, options.name_wait_ms) == (30_000, 120_000)
    assert options.access.method == ""


def test_all_options_whatever_their_case() -> None:
    given = {
        "SERVICEURL": "pulsar+ssl://broker:6651",
        "Topic": "orders",
        "producername": "nightly",
        "batchID": "7",
        "deliveryguarantee": "At-Least-Once",
        "COMPRESSION": "ZSTD",
        "batchingMaxMessages": "10",
        "batchingMaxBytes": "2048",
        "maxPendingMessages": "20",
        "maxPendingBytes": "4096",
        "sendTimeoutMs": "1500",
        "producerNameTimeoutMs": "2500",
        "hashingScheme": "murmur3_32hash",
        "authPlugin": "token",
        "authParams": "token:abc",
        "tlsTrustCertsFilePath": "/certificates/ca.pem",
        "tlsAllowInsecureConnection": "true",
    }
    options = parse_sink_options(given)
    assert options.topic == "persistent://public/default/orders"
    assert (options.producer_name, options.batch_id) == ("nightly", 7)
    assert not options.effectively_once
    assert (options.compression, options.hashing) == ("zstd", "Murmur3_32Hash")
    assert (options.messages_max, options.entry_bytes_max) == (10, 2048)
    assert (options.pending_messages_max, options.pending_bytes_max) == (20, 4096)
    assert (options.send_timeout_ms, options.name_wait_ms) == (1500, 2500)
    assert options.access.data() == b"abc"
    assert (options.access.trusted, options.access.insecure) == ("/certificates/ca.pem", True)
    assert "abc" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"serviceUrl": ""}, "option serviceUrl is needed"),
        ({"serviceUrl": "http://localhost:8080"}, "serviceUrl .* not 'http://localhost:8080'"),
        ({"topic": "a/b"}, "option topic: "),
        ({"topic": "non-persistent://public/default/t"}, "option topic: .*at-least-once"),
        ({"batchId": "3"}, "option batchId .* producerName"),
        ({"producerName": "p", "batchId": "-1"}, "option batchId: a whole number"),
        ({"producerName": "p", "batchId": str(2**31)}, "option batchId: a whole number"),
        ({"deliveryGuarantee": "twice"}, "effectively-once, at-least-once, exactly-once are"),
        ({"deliveryGuarantee": "exactly-once"}, "option commitTopic is needed where rows name"),
        (
            {"deliveryGuarantee": "exactly-once", "topic": "t", "transactionTimeoutMs": "120000"},
            "option transactionTimeoutMs: more than 120000",
        ),
        ({"compression": "gzip"}, "option compression: none, lz4, zlib, zstd, snappy"),
        ({"hashingScheme": "crc"}, "option hashingScheme: JavaStringHash, Murmur3_32Hash"),
        ({"sendTimeoutMs": "0"}, "option sendTimeoutMs: a whole number above 0"),
        ({"batchingMaxBytes": "5242880"}, "option batchingMaxBytes: at most 4194304"),
        ({"batchingMaxBytes": "9", "maxPendingBytes": "8"}, "above maxPendingBytes"),
        ({"authPlugin": "kerberos"}, "option authPlugin kerberos: token, oauth2, basic or tls"),
        ({"tlsAllowInsecureConnection": "maybe"}, "true or false"),
    ],
)
def test_bad_options_are_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionsError, match=told):
        parse_sink_options(URL | given)


def test_non_persistent_topics_take_at_least_once() -> None:
    name = "non-persistent://public/default/t"
    given = URL | {"topic": name, "deliveryGuarantee": "at-least-once"}
    assert parse_sink_options(given).topic == name


def test_columns_in_any_order_and_case() -> None:
    fields = [
        *(("HEADERS", "map<string,string>"), ("Value", "binary"), ("eventtime", "timestamp")),
        *(("KEY", "string"), ("deliverAfter", "bigint"), ("partition", "int")),
        *(("topic", "string"), ("orderingKey", "binary"), ("deliverAt", "timestamp")),
    ]
    found = find_columns(fields, "")
    order = "properties value eventTime key deliverAfter partition topic orderingKey deliverAt"
    assert found == {name: index for index, name in enumerate(order.split())}
    assert set(found) == set(COLUMNS)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([("key", "string")], "column value is missing"),
        ([("value", "string")], "no topic"),
        ([("value", "bigint")], "column value is bigint, but must be string or binary"),
        (
            [("value", "string"), ("offset", "bigint")],
            "column offset: .* possible are value, key, topic, partition, properties, eventTime, "
            "deliverAt, deliverAfter, orderingKey and headers",
        ),
        ([("value", "string"), ("VALUE", "string")], "column value is there twice"),
        (
            [("headers", "map<string,string>"), ("properties", "map<string,string>")],
            "column properties is there twice",
        ),
        (
            [("value", "string"), ("properties", "map<string,binary>")],
            "column properties is map<string,binary>, but must be map<string,string>",
        ),
        ([("value", "string"), ("eventTime", "bigint")], "eventTime .* must be timestamp"),
    ],
)
def test_bad_columns_are_named(fields: list[tuple[str, str]], told: str) -> None:
    with pytest.raises(OptionsError, match=told):
        find_columns(fields, "")
