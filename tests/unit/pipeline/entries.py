"""Entries as brokers store them, built from messages; and rows as dictionaries."""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import pyarrow as pa

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import compress
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.pipeline.chunks import ChunkLookback
from magnetar.pipeline.decode import EntryDecoder
from magnetar.pipeline.row_columns import COLUMNS

TOPIC = "persistent://public/default/t"
PUBLISHED_MS = 1_700_000_000_000
_U32 = Struct(">I")

Entry = tuple[bytes, bytes]
"""Head and body."""


def outer(**fields: Any) -> pb.MessageMetadata:
    """An entry's metadata."""
    plain: dict[str, Any] = {"producer_name": "p", "sequence_id": 7, "publish_time": PUBLISHED_MS}
    return pb.MessageMetadata(**(plain | fields))


def stored(metadata: pb.MessageMetadata, payload: bytes) -> Entry:
    """One entry with this payload, as it is."""
    return make_header(metadata, len(payload)), encode_body(metadata, payload)


def squeezed(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """The payload compressed as the metadata's ``compression`` says; tells it the size."""
    if metadata.compression == pb.NONE:
        return payload
    metadata.uncompressed_size = len(payload)
    return compress(metadata.compression, payload)


def single(payload: bytes, **fields: Any) -> Entry:
    """A message that is an entry of its own."""
    metadata = outer(**fields)
    return stored(metadata, squeezed(metadata, payload))


def framed(messages: Iterable[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """The payload of a batch; payload sizes are filled in."""
    parts: list[bytes] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        data = metadata.SerializeToString()
        parts += (_U32.pack(len(data)), data, payload)
    return b"".join(parts)


def batch(messages: Sequence[tuple[pb.SingleMessageMetadata, bytes]], **fields: Any) -> Entry:
    """Several messages as one entry."""
    metadata = outer(num_messages_in_batch=len(messages), **fields)
    return stored(metadata, squeezed(metadata, framed(messages)))


def chunked(payload: bytes, count: int, uuid: str = "p-7", **fields: Any) -> list[Entry]:
    """A message in ``count`` slices."""
    metadata = outer(uuid=uuid, num_chunks_from_msg=count, **fields)
    data = squeezed(metadata, payload)
    size = -(-len(data) // count)
    entries = []
    for chunk_id in range(count):
        metadata.chunk_id = chunk_id
        entries.append(stored(metadata, data[chunk_id * size : (chunk_id + 1) * size]))
    return entries


def rows_of(
    decoder: EntryDecoder,
    entries: Sequence[Entry],
    *,
    ledger_id: int = 5,
    first: int = 0,
    before: Sequence[Entry] = (),
    window: int = 2,
) -> list[dict[str, Any]]:
    """All rows of ``entries``, which begin at ``ledger_id:first``.

    Args:
        before: the entries of the ledger before ``first``; what is missing is looked for there.
    """
    batches: list[pa.RecordBatch] = []
    decoder.add(ledger_id, first, [head for head, _ in entries], [body for _, body in entries])
    while (found := decoder.take()) is not None or decoder.missing is not None:
        if found is not None:
            batches.append(found)
            continue
        assert decoder.missing is not None
        lookback = ChunkLookback(decoder.missing)
        every = [*before, *entries]
        assert decoder.missing.ledger_id == ledger_id
        end = decoder.missing.entry_id - first + len(before)
        while not lookback.done and end > 0:
            part = every[max(0, end - window) : end]
            lookback.add([head for head, _ in part], [body for _, body in part])
            end -= window
        decoder.resolve(lookback.chunks())
    if (found := decoder.finish()) is not None:
        batches.append(found)
    for each in batches:
        each.validate(full=True)
    return [row for each in batches for row in each.to_pylist()]


def decoded(entries: Sequence[Entry], columns: Sequence[str] = COLUMNS, **more: Any) -> Any:
    """All rows of entries that begin at 5:0."""
    return rows_of(EntryDecoder(columns, TOPIC, 3, **more), entries)
