"""Entries to rows: what each column shows, bounds, filters, and entries that can't be shown."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.pipeline.decode import EntryDecoder
from magnetar.pipeline.errors import UndecodableError
from magnetar.pipeline.offsets import Offset
from magnetar.pipeline.row_columns import COLUMNS, arrow_schema
from tests.unit.pipeline.entries import (
    PUBLISHED_MS,
    TOPIC,
    batch,
    decoded,
    framed,
    outer,
    rows_of,
    single,
    stored,
)

One = pb.SingleMessageMetadata
PUBLISHED = datetime.fromtimestamp(PUBLISHED_MS / 1000, UTC)


def one(payload: bytes = b"v", **fields: Any) -> tuple[pb.SingleMessageMetadata, bytes]:
    return One(payload_size=0, **fields), payload


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


def test_all_columns_of_a_single_message() -> None:
    properties = [pb.KeyValue(key="a", value="1"), pb.KeyValue(key="b", value="")]
    entry = single(
        b"hello",
        partition_key="k",
        ordering_key=b"o",
        event_time=5,
        properties=properties,
        schema_version=b"\0\1",
        deliver_at_time=9,
        replicated_from="elsewhere",
    )
    assert decoded([entry]) == [
        {
            "key": b"k",
            "value": b"hello",
            "topic": TOPIC,
            "partition": 3,
            "ledgerId": 5,
            "entryId": 0,
            "batchIndex": -1,
            "publishTime": PUBLISHED,
            "eventTime": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=5),
            "properties": [("a", "1"), ("b", "")],
            "producerName": "p",
            "sequenceId": 7,
            "orderingKey": b"o",
            "schemaVersion": b"\0\1",
            "deliverAt": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=9),
        }
    ]


def test_what_a_message_does_not_have_is_null() -> None:
    (row,) = decoded([single(b"")])
    assert row["value"] == b""
    nulls = {name for name in COLUMNS if row[name] is None}
    assert nulls == {"key", "eventTime", "orderingKey", "schemaVersion", "deliverAt"}
    assert row["properties"] == []


def test_messages_of_a_batch_have_their_own_fields_and_share_the_others() -> None:
    entry = batch(
        [
            one(b"0", sequence_id=100, partition_key="k0", event_time=0),
            one(b"1", sequence_id=101, properties=[pb.KeyValue(key="x", value="y")]),
            one(b"2", sequence_id=300, ordering_key=b"o", event_time=8),
        ],
        schema_version=b"\7",
        properties=[pb.KeyValue(key="of the", value="batch")],
        partition_key="of the batch",
        ordering_key=b"of the batch",
    )
    rows = decoded([entry])
    assert [row["batchIndex"] for row in rows] == [0, 1, 2]
    assert [row["sequenceId"] for row in rows] == [100, 101, 300]
    assert [row["key"] for row in rows] == [b"k0", None, None]
    assert [row["orderingKey"] for row in rows] == [None, None, b"o"]
    assert [row["properties"] for row in rows] == [[], [("x", "y")], []]
    assert [row["eventTime"] is None for row in rows] == [True, True, False]
    assert {row["schemaVersion"] for row in rows} == {b"\7"}
    assert {row["publishTime"] for row in rows} == {PUBLISHED}


def test_a_message_without_sequence_id_or_event_time_shows_the_batch_s() -> None:
    """As Java's MessageImpl does; batches of old clients have none inside."""
    rows = decoded([batch([one(), one(sequence_id=9, event_time=2)], event_time=1)])
    assert [row["sequenceId"] for row in rows] == [7, 9]
    assert [row["eventTime"].microsecond for row in rows] == [1000, 2000]


@pytest.mark.parametrize("payload", [b"@", b"@@", b"@\x80\x01", b"(@@@", b"0\x01@\x05", b":\1@@\1"])
def test_payloads_that_look_like_more_fields(payload: bytes) -> None:
    """0x40 is the tag of the sequence id, 0x28, 0x30 and 0x3a are those before it."""
    entry = batch([one(payload), one(payload, sequence_id=200), one(payload), one(payload * 9)])
    rows = decoded([entry])
    assert values(rows) == [payload, payload, payload, payload * 9]
    assert [row["sequenceId"] for row in rows] == [7, 200, 7, 7]
    assert values(decoded([entry], ("value",))) == values(rows)


def test_properties_that_change_from_message_to_message() -> None:
    """The keys of the messages before are tried first."""
    sets: list[dict[str, str]] = [
        {"a": "1", "b": "2"},
        {"a": "3", "b": "4"},
        {"a": "5"},
        {"a": "6", "b": "", "c": "7"},
        {"b": "8", "a": "9"},
        {},
        {"aa": "1", "b": "2"},
        {"a": "x" * 150, "b": "2"},
        {"k" * 200: "1"},
        {"a": "10", "b": "y" * 110},
    ]
    messages = [
        one(
            b"\x0a\x06\x0a\x01a\x12\x01v",  # a property, were it read as one
            properties=[pb.KeyValue(key=key, value=value) for key, value in pairs.items()],
            sequence_id=index,
            partition_key=None if index % 2 else "\n\1b\x12\1v",
        )
        for index, pairs in enumerate(sets * 5)
    ]
    # One with a field of the future.
    later = pb.KeyValue.FromString(b"\n\1a\x12\1v\x1a\1z")
    messages.insert(1, one(properties=[later, pb.KeyValue(key="b", value="2")], sequence_id=7))
    rows = decoded([batch(messages)])
    assert rows.pop(1)["properties"] == [("a", "v"), ("b", "2")]
    assert [row["properties"] for row in rows] == [list(pairs.items()) for pairs in sets * 5]
    assert [row["sequenceId"] for row in rows] == list(range(50))


def test_a_batch_of_one_is_a_batch() -> None:
    (row,) = decoded([batch([one(b"only")])])
    assert (row["batchIndex"], row["value"]) == (0, b"only")


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"partition_key": "AP8=", "partition_key_b64_encoded": True}, b"\0\xff"),
        ({"partition_key": "AP8", "partition_key_b64_encoded": True}, b"\0\xff"),
        ({"partition_key": "AP8=", "partition_key_b64_encoded": False}, b"AP8="),
        ({"partition_key": "", "partition_key_b64_encoded": True}, b""),
        ({"partition_key": "not base64!", "partition_key_b64_encoded": True}, b"not base64!"),
        ({"partition_key": "ä", "partition_key_b64_encoded": True}, "ä".encode()),
        ({"partition_key": "x" * 300}, b"x" * 300),
        ({"partition_key": "k", "null_partition_key": True}, None),
        ({"null_partition_key": True}, None),
    ],
)
def test_keys(in_batch: bool, fields: dict[str, Any], key: bytes | None) -> None:
    # With and without a sequence id behind: the quick way and protobuf's.
    entries = [batch([one(**fields), one(sequence_id=300, **fields)])] if in_batch else []
    entries = entries or [single(b"v", **fields)]
    assert {row["key"] for row in decoded(entries)} == {key}


@pytest.mark.parametrize("columns", [COLUMNS, ("value",), ("batchIndex", "entryId")])
def test_null_values_are_null_and_compacted_messages_are_left_out(
    columns: tuple[str, ...],
) -> None:
    entries = [
        single(b"", null_value=True),
        batch(
            [
                one(b"gone", compacted_out=True, sequence_id=1),
                one(b"", null_value=True, sequence_id=2),
                one(b"also gone", compacted_out=True, sequence_id=3),
                one(b"stays", sequence_id=4),
                one(b"gone, too", compacted_out=True, sequence_id=5),
            ]
        ),
        batch([one(b"gone", compacted_out=True)]),
        single(b"last"),
    ]
    rows = decoded(entries, columns)
    wanted: list[dict[str, Any]] = [
        {"value": None, "batchIndex": -1, "entryId": 0},
        {"value": None, "batchIndex": 1, "entryId": 1},
        {"value": b"stays", "batchIndex": 3, "entryId": 1},
        {"value": b"last", "batchIndex": -1, "entryId": 3},
    ]
    names = [name for name in columns if name in wanted[0]]
    assert [{name: row[name] for name in names} for row in rows] == [
        {name: row[name] for name in names} for row in wanted
    ]


def test_markers_give_no_rows() -> None:
    assert values(decoded([single(b"m", marker_type=10), single(b"v")])) == [b"v"]


def test_numbers_that_spark_cannot_hold_are_shown_as_near_as_can_be() -> None:
    """Producers may send any 64 bits as times and sequence ids."""
    most = 2**64 - 1
    metadata = outer(sequence_id=most, publish_time=most, event_time=most, num_messages_in_batch=1)
    entry = stored(metadata, framed([one(b"v", sequence_id=most, event_time=most)]))
    decoder = EntryDecoder(("sequenceId", "publishTime", "eventTime"), TOPIC, -1)
    decoder.add(5, 0, [entry[0]], [entry[1]])
    assert decoder.take() is None
    found = decoder.finish()
    assert found is not None
    last = (2**63 - 1) // 1000 * 1000
    assert [column.cast(pa.int64()).to_pylist() for column in found.columns] == [
        [-1],
        [last],
        [last],
    ]


@pytest.mark.parametrize("sequence_id", [None, 3])
def test_equal_property_keys_and_broken_text_come_as_pulsar_s_clients_show_them(
    sequence_id: int | None,
) -> None:
    fields: dict[str, Any] = {} if sequence_id is None else {"sequence_id": sequence_id}
    pairs = [("a", "1"), ("b", "2"), ("a", "3")]
    properties = [pb.KeyValue(key=key, value=value) for key, value in pairs]
    rows = decoded([batch([one(properties=properties, **fields)])])
    assert rows[0]["properties"] == [("a", "3"), ("b", "2")]
    properties = [pb.KeyValue(key="kk", value="vv"), pb.KeyValue(key="kl", value="vw")]
    payload = framed([one(properties=properties, partition_key="pk", **fields)])
    for text in (b"kk", b"kl", b"vv", b"pk"):
        payload = payload.replace(text, b"\xff\xfe")
    (row,) = decoded([stored(outer(num_messages_in_batch=1), payload)])
    # Two keys became one; a key of a message is bytes, and stays what it was.
    assert (row["properties"], row["key"]) == ([("\ufffd\ufffd", "vw")], b"\xff\xfe")


ENTRIES = [
    single(b"0"),
    batch([one(b"1.%d" % index, sequence_id=index) for index in range(4)]),
    single(b"2"),
]


@pytest.mark.parametrize("columns", [("value",), ("sequenceId", "value")])
@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (Offset(-1, 0), Offset(9, 0), "0 1.0 1.1 1.2 1.3 2"),
        (Offset(5, 0), Offset(5, 3), "0 1.0 1.1 1.2 1.3 2"),
        (Offset(5, 0, 1), Offset(5, 2), "1.0 1.1 1.2 1.3"),
        (Offset(5, 1, 1), Offset(5, 1, 3), "1.1 1.2"),
        (Offset(5, 1, 3), Offset(5, 2, 0), "1.3"),
        (Offset(5, 1, 4), Offset(5, 2, 1), "2"),
        (Offset(5, 1, 9), Offset(6, 0), "2"),
        (Offset(5, 0), Offset(5, 1, 99), "0 1.0 1.1 1.2 1.3"),
        (Offset(5, 2, 1), Offset(6, 0), ""),
        (Offset(6, 0), Offset(9, 0), ""),
        (Offset(0, 0), Offset(5, 0), ""),
    ],
)
def test_bounds(start: Offset, end: Offset, wanted: str, columns: tuple[str, ...]) -> None:
    rows = decoded(ENTRIES, columns, start=start, end=end)
    assert values(rows) == [value.encode() for value in wanted.split()]


@pytest.mark.parametrize(
    ("between", "wanted"),
    [((None, None), "abc"), ((11, None), "bc"), ((None, 11), "ab"), ((11, 11), "b"), ((9, 1), "")],
)
def test_publish_times(between: tuple[int | None, int | None], wanted: str) -> None:
    entries = [
        single(b"a", publish_time=10),
        batch([one(b"b")], publish_time=11),
        single(b"c", publish_time=12),
    ]
    rows = decoded(entries, publish_time_ms=between)
    assert b"".join(values(rows)).decode() == wanted


def test_what_is_out_of_bounds_is_not_opened() -> None:
    head, _ = single(b"x", publish_time=10)
    entries = [(head, b"broken"), single(b"y", publish_time=20)]
    assert values(decoded(entries, publish_time_ms=(20, None))) == [b"y"]
    assert values(decoded(entries, start=Offset(5, 1))) == [b"y"]
    assert values(decoded(list(reversed(entries)), end=Offset(5, 1))) == [b"y"]


def encrypted(payload: bytes, **fields: Any) -> tuple[bytes, bytes]:
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    return stored(outer(encryption_keys=keys, **fields), payload)


def test_encrypted_entries() -> None:
    entries = [
        single(b"a"),
        encrypted(b"secret batch", num_messages_in_batch=3, partition_key="k"),
        encrypted(b"slice", uuid="u", num_chunks_from_msg=2, chunk_id=0),
        encrypted(b"packed", compression=pb.LZ4, uncompressed_size=100),
        single(b"b"),
    ]
    for position in (1, 2, 3):
        decoder = EntryDecoder(("value",), TOPIC, 3)
        place = rf"{TOPIC}-partition-3: entry 5:{position}: it is encrypted"
        with pytest.raises(UndecodableError, match=place):
            rows_of(decoder, entries[position:], first=position)
    decoder = EntryDecoder(("value",), TOPIC, -1, encrypted="skip")
    assert values(rows_of(decoder, entries)) == [b"a", b"b"]
    assert decoder.encrypted_skipped == 3
    rows = decoded(entries, encrypted="raw")
    assert values(rows) == [b"a", b"secret batch", b"slice", b"packed", b"b"]
    assert [row["batchIndex"] for row in rows] == [-1] * 5
    assert rows[1]["key"] == b"k"


def test_transactions_are_refused() -> None:
    with pytest.raises(UndecodableError, match=r"entry 5:1: it belongs to a transaction"):
        decoded([single(b"a"), single(b"b", txnid_least_bits=1, txnid_most_bits=2)])


GOOD = framed([one(b"first", sequence_id=1), one(b"second", sequence_id=2)])


@pytest.mark.parametrize("columns", [("value",), COLUMNS, ("entryId",)])
@pytest.mark.parametrize(
    ("count", "payload"),
    [
        (2, b""),
        (-1, GOOD),
        (2**31 - 1, GOOD),
        (3, GOOD),
        (2, GOOD[:-1]),
        (2, GOOD[:-7]),
        (1, b"\0\0\0\xff" + b"x" * 40),
        (1, b"\0\0\0\x02\x18\x05xxxx"),
        (1, b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01xxxx"),
        (1, b"\xff\xff\xff\xff" + b"x" * 40),
    ],
)
def test_broken_batches_are_named(count: int, payload: bytes, columns: tuple[str, ...]) -> None:
    entry = stored(outer(num_messages_in_batch=count), payload)
    with pytest.raises(UndecodableError, match=rf"{TOPIC}-partition-3: entry 5:1: "):
        decoded([single(b"fine"), entry], columns)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"", single(b"x")[1]),
        (b"\0" * 32, single(b"x")[1]),
        (single(b"x")[0], b""),
        (single(b"x")[0], b"\x0e\x01\0\0\0\0\0\0\xff\xff"),
        (single(b"x")[0], b"\x0e\x01\0\0\0\0\0\0\0\x02\xff\xff"),
        stored(outer(compression=pb.LZ4, uncompressed_size=100), b"x"),
        stored(outer(compression=pb.ZSTD, uncompressed_size=2**31), b"x"),
    ],
)
def test_broken_entries_are_named(head: bytes, body: bytes) -> None:
    with pytest.raises(UndecodableError, match=rf"{TOPIC}-partition-3: entry 5:1: "):
        decoded([single(b"fine"), (head, body)])


def test_batches_are_as_large_as_asked_for() -> None:
    entries = [
        batch([one(b"%02d" % index, sequence_id=index) for index in range(25)]),
        single(b"single"),
        batch([one(b"x" * 1000, sequence_id=index) for index in range(25)]),
    ]
    decoder = EntryDecoder(COLUMNS, TOPIC, 0, batch_rows=10)
    decoder.add(5, 0, [head for head, _ in entries], [body for _, body in entries])
    sizes = []
    while (found := decoder.take()) is not None:
        sizes.append(found.num_rows)
        assert found.schema == arrow_schema(COLUMNS)
        found.validate(full=True)
    assert sizes == [10] * 5
    rest = decoder.finish()
    assert rest is not None
    assert rest.num_rows == 1
    assert decoder.finish() is None

    decoder = EntryDecoder(("value",), TOPIC, 0, batch_bytes=5_000)
    decoder.add(5, 0, [entries[2][0]], [memoryview(entries[2][1])])
    sizes = []
    while (found := decoder.take()) is not None:
        sizes.append(found.nbytes)
    assert len(sizes) >= 4
    assert max(sizes) < 7_000


def test_views_and_several_ledgers() -> None:
    decoder = EntryDecoder(("ledgerId", "entryId", "value"), TOPIC, -1)
    for ledger_id, first in ((5, 7), (8, 0)):
        entries = [single(b"%d" % ledger_id), batch([one(b"b")], compression=pb.ZSTD)]
        decoder.add(
            ledger_id,
            first,
            [head for head, _ in entries],
            [memoryview(bytearray(body)) for _, body in entries],
        )
        assert decoder.take() is None
    found = decoder.finish()
    assert found is not None
    assert found.to_pydict() == {
        "ledgerId": [5, 5, 8, 8],
        "entryId": [7, 8, 0, 1],
        "value": [b"5", b"b", b"8", b"b"],
    }


def test_base64_keys_of_java_s_batches() -> None:
    """Java writes the flag for every key, also where it is false."""
    key = base64.b64encode(b"\1\2\3").decode()
    rows = decoded(
        [
            batch(
                [
                    one(partition_key="plain", partition_key_b64_encoded=False, sequence_id=200),
                    one(partition_key=key, partition_key_b64_encoded=True, sequence_id=201),
                ]
            )
        ]
    )
    assert [row["key"] for row in rows] == [b"plain", b"\1\2\3"]
