"""Random messages through all encodings: the decoder shows what the HTTP readers show."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.messages import (
    OutgoingMessage,
    UndecodableEntryError,
    encode_batch,
    encode_single,
    messages_of,
    open_entry,
)
from magnetar.pipeline.decode import EntryDecoder
from magnetar.pipeline.errors import UndecodableError
from magnetar.pipeline.offsets import Offset
from magnetar.pipeline.row_columns import COLUMNS
from tests.unit.pipeline.entries import (
    PUBLISHED_MS,
    TOPIC,
    Entry,
    decoded,
    framed,
    outer,
    rows_of,
    single,
    squeezed,
    stored,
)

LIMIT = 1 << 20
texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("x" * 130)
payloads = st.binary(max_size=20) | st.sampled_from(
    [b"@", b"\x18\x00@\x01", b"y" * 127, b"z" * 20_000]
)
# Around the edges of one, two and three bytes of a varint.
numbers = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 16_383, 16_384, 2**21, 2**35])
kinds = st.sampled_from(list(COMPRESSIONS.values()))
properties = st.dictionaries(texts, texts, max_size=3)
outgoing = st.builds(
    OutgoingMessage,
    payload=payloads,
    sequence_id=numbers,
    key=st.none() | texts,
    properties=properties,
    event_time_ms=st.integers(0, 2**53),
)


def shown(body: bytes, entry_id: int) -> list[dict[str, Any]]:
    """Rows as the HTTP readers' decoder gives them, times in microseconds."""
    return [
        {
            "key": None if message.key is None else message.key.encode(),
            "value": message.payload,
            "topic": TOPIC,
            "partition": 3,
            "ledgerId": 5,
            "entryId": entry_id,
            "batchIndex": message.batch_index,
            "publishTime": message.publish_time_ms * 1000,
            "eventTime": message.event_time_ms * 1000 or None,
            "properties": sorted(message.properties.items()),
            "producerName": message.producer_name,
            "sequenceId": message.sequence_id,
            "orderingKey": None,
            "schemaVersion": message.schema_version or None,
            "deliverAt": None,
        }
        for message in messages_of(*open_entry(body), LIMIT)
    ]


def found(entries: list[Entry], columns: tuple[str, ...] = COLUMNS, **more: Any) -> Any:
    """The same as our decoder gives them."""
    rows = decoded(entries, columns, **more)
    for row in rows:
        if "properties" in row:
            row["properties"] = sorted(row["properties"])
    return rows


@given(
    st.lists(
        st.tuples(st.lists(outgoing, min_size=1, max_size=6), st.booleans(), kinds), max_size=4
    ),
    st.integers(1, 9),
)
def test_rows_are_what_http_readers_show(
    groups: list[tuple[list[OutgoingMessage], bool, pb.CompressionType.ValueType]], batch_rows: int
) -> None:
    entries: list[Entry] = []
    wanted: list[dict[str, Any]] = []
    for messages, batched, kind in groups:
        made = (
            [encode_batch("prö", messages, PUBLISHED_MS, kind)]
            if batched
            else [encode_single("prö", message, PUBLISHED_MS, kind) for message in messages]
        )
        for metadata, body, _ in made:
            wanted += shown(body, len(entries))
            entries.append((make_header(metadata), body))
    rows = rows_in_microseconds(entries, batch_rows)
    assert rows == wanted
    for columns in (("value",), ("properties", "key"), ("batchIndex",), ("sequenceId", "value")):
        assert found(entries, columns) == [{name: row[name] for name in columns} for row in wanted]


def rows_in_microseconds(entries: list[Entry], batch_rows: int) -> list[dict[str, Any]]:
    """Years after 9999 are nothing that Python's datetime can hold."""
    decoder = EntryDecoder(COLUMNS, TOPIC, 3, batch_rows=batch_rows)
    rows: list[dict[str, Any]] = []

    def keep(batch: Any) -> None:
        batch.validate(full=True)
        assert batch.num_rows <= batch_rows
        for name in ("publishTime", "eventTime", "deliverAt"):
            index = COLUMNS.index(name)
            batch = batch.set_column(index, name, batch.column(index).cast("int64"))
        rows.extend(batch.to_pylist())

    decoder.add(5, 0, [head for head, _ in entries], [body for _, body in entries])
    while (batch := decoder.take()) is not None:
        keep(batch)
    if (batch := decoder.finish()) is not None:
        keep(batch)
    for row in rows:
        row["properties"] = sorted(row["properties"])
    return rows


@st.composite
def singles(draw: st.DrawFn) -> pb.SingleMessageMetadata:
    """Any fields a message in a batch may have."""
    metadata = pb.SingleMessageMetadata(payload_size=0)
    for name, values in (
        ("sequence_id", numbers),
        ("event_time", st.integers(0, 2**40)),
        ("partition_key", texts),
        ("partition_key_b64_encoded", st.booleans()),
        ("ordering_key", st.binary(max_size=4) | st.just(b"o" * 200)),
        ("null_value", st.booleans()),
        ("null_partition_key", st.booleans()),
        ("compacted_out", st.booleans()),
    ):
        if draw(st.booleans()):
            setattr(metadata, name, draw(values))
    for key, value in draw(st.lists(st.tuples(texts, texts), max_size=3)):
        metadata.properties.add(key=key, value=value)
    return metadata


@given(st.lists(st.tuples(singles(), payloads), min_size=1, max_size=6), kinds, st.data())
def test_any_fields_of_batched_messages(
    messages: list[tuple[pb.SingleMessageMetadata, bytes]],
    kind: pb.CompressionType.ValueType,
    data: st.DataObject,
) -> None:
    metadata = outer(num_messages_in_batch=len(messages), compression=kind)
    entry = stored(metadata, squeezed(metadata, framed(messages)))
    wanted: list[dict[str, Any]] = [
        {
            "batchIndex": index,
            "value": None if one.null_value else payload,
            "sequenceId": one.sequence_id if one.HasField("sequence_id") else 7,
            "orderingKey": one.ordering_key if one.HasField("ordering_key") else None,
            "properties": sorted({pair.key: pair.value for pair in one.properties}.items()),
        }
        for index, (one, payload) in enumerate(messages)
        if not one.compacted_out
    ]
    columns = ("batchIndex", "value", "sequenceId", "orderingKey", "properties")
    assert found([entry], columns) == wanted
    # Keys: as of the same message alone.
    alone = [
        single(
            b"v",
            **{
                name: getattr(one, name)
                for name in ("partition_key", "partition_key_b64_encoded", "null_partition_key")
                if one.HasField(name)
            },
        )
        for one, _ in messages
        if not one.compacted_out
    ]
    assert found([entry], ("key",)) == found(alone, ("key",))
    start = data.draw(st.integers(0, len(messages)))
    end = data.draw(st.integers(start, len(messages)))
    between = {"start": Offset(5, 0, start), "end": Offset(5, 0, end)}
    for names in (columns, ("batchIndex", "value")):
        assert found([entry], names, **between) == [
            {name: row[name] for name in names}
            for row in wanted
            if start <= row["batchIndex"] < end
        ]


@given(
    st.lists(st.tuples(singles(), payloads), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_broken_bytes_give_rows_or_the_error_with_their_place(
    messages: list[tuple[pb.SingleMessageMetadata, bytes]], changes: list[tuple[int, int]]
) -> None:
    payload = bytearray(framed(messages))
    for at, byte in changes:
        payload[at % len(payload)] = byte
    entry = stored(outer(num_messages_in_batch=len(messages)), bytes(payload))
    results: list[list[bytes | None] | None] = []
    for columns in (("value",), ("value", "key", "properties", "sequenceId")):
        try:
            decoder = EntryDecoder(columns, TOPIC, 3)
            results.append([row["value"] for row in rows_of(decoder, [entry])])
        except UndecodableError as error:
            assert f"{TOPIC}-partition-3: entry 5:0: " in str(error)  # noqa: PT017
            results.append(None)
    try:
        readable = [message.payload for message in messages_of(*open_entry(entry[1]), LIMIT)]
    except UndecodableEntryError:
        return
    # What protobuf's parser takes, we take, and read the same: here and there.
    values = [[value or b"" for value in result or []] for result in results]
    assert [len(each) for each in values] == [len(readable)] * 2
    for each in values:
        assert all(ours in (theirs, b"") for ours, theirs in zip(each, readable, strict=True))
