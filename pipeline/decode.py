"""Stored entries to Arrow record batches: the fast path of readers. Pure."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from struct import Struct
from struct import error as StructError
from typing import Literal, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import ChunkAssembler
from magnetar.broker.protocol.compression import CompressionError, decompress
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    FLAG_LAST_CHUNK,
    FLAG_MARKER,
    FLAG_TRANSACTION,
    EntryHeaderError,
    parse_header,
)
from magnetar.broker.protocol.framing import CHECKSUM_MAGIC, MalformedFrameError, parse_entry_body
from magnetar.broker.protocol.text import readable
from magnetar.pipeline.batch_messages import BrokenBatchError, walk_fields, walk_values
from magnetar.pipeline.chunks import Chunk, MissingChunk, join
from magnetar.pipeline.errors import UndecodableError
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.rows import EntryFacts, Rows

BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20
MESSAGE_BYTES_MAX = 256 << 20

Encrypted = Literal["fail", "skip", "raw"]

_CHUNKED_MAX = 1_000  # messages in chunks under way
_BATCHED_BYTES_MIN = 6  # of one message: its size field, and the required field of its metadata
_HEAD = Struct(">HH4xQQ8x")  # of `entry_head`: magic and version, flags, publish time, deliver-at
_HEAD_KIND = 0x4D01
_BODY_HEAD = Struct(">HII")  # of `framing`: magic, checksum, metadata size
# A slice that isn't the last one. Encrypted slices can't be joined.
_SLICE = FLAG_CHUNK | FLAG_LAST_CHUNK | FLAG_ENCRYPTED
_OF_TRANSACTION = "it belongs to a transaction"
_ENCRYPTED = "it is encrypted; readers here have no keys (see the option for encrypted messages)"
_BROKEN = (
    *(BrokenBatchError, CompressionError, DecodeError, EntryHeaderError, MalformedFrameError),
    StructError,  # a head that is too short
)


class _Run(NamedTuple):
    """Entries that were added and not looked at yet."""

    ledger_id: int
    inside: bool
    """Start and end are in other entries."""
    entries: Iterator[tuple[int, bytes, bytes | memoryview]]


class _Entry(NamedTuple):
    """One entry that is to be opened; times as in its head."""

    ledger_id: int
    entry_id: int
    flags: int
    publish_time_ms: int
    deliver_at_ms: int
    body: bytes | memoryview


@dataclass(slots=True)
class _OpenBatch:
    """A batch of which some messages were read."""

    facts: EntryFacts
    metadata: pb.MessageMetadata
    data: bytes
    last: int
    """Messages up to this index (not included) are wanted."""
    index: int = 0
    """Of the next message."""
    offset: int = 0
    """Of the next message in ``data``."""


class _Waiting(NamedTuple):
    """A last chunk whose beginning is looked for."""

    missing: MissingChunk
    chunk: Chunk
    entry: _Entry


class EntryDecoder:
    """Turns the entries of one partition, given in order, into record batches.

    Usage::

        decoder = EntryDecoder(columns, topic, partition, start=start, end=end)
        for run in runs:  # several ledgers may follow each other
            decoder.add(run.ledger_id, run.first, run.heads, run.bodies)
            while (batch := decoder.take()) is not None or decoder.missing is not None:
                if batch is not None:
                    yield batch
                else:
                    decoder.resolve(look_back(decoder.missing))
        if (batch := decoder.finish()) is not None:
            yield batch

    Attributes:
        encrypted_skipped: entries left out by ``encrypted="skip"``.
        incomplete_chunked: chunked messages left out: their beginning is not stored.

    Entries are opened by ``take``, as many as a batch needs: what was added and not opened yet is
    held as it was read.
    """

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        partition: int,
        *,
        start: Offset = BEGINNING,
        end: Offset = END,
        publish_time_ms: tuple[int | None, int | None] = (None, None),
        encrypted: Encrypted = "fail",
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """
        Args:
            columns: as `columns.check_schema` gives them: the columns of all batches, in order.
            topic: full name without ``-partition-N``.
            partition: -1: the topic isn't partitioned.
            start, end: messages from ``start`` on and before ``end``; entries outside may be given,
                too. A message outside of a batch has index 0 here.
            publish_time_ms: first and last publish time that is wanted, both included; None: any.
            encrypted: what to do with messages that are encrypted: "fail" raises, "skip" leaves
                them out, "raw" shows an entry's payload as it is, as one row with batchIndex -1.
            batch_rows, batch_bytes: a record batch is given out once it has so many rows, or bytes
                of values, keys and properties.
            message_bytes_max: largest entry after decompression, and largest chunked message.
        """
        self._place = topic if partition < 0 else f"{topic}-partition-{partition}"
        self._start, self._end = start, end
        self._from_ms, self._to_ms = publish_time_ms
        self._encrypted = encrypted
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        self._message_bytes_max = message_bytes_max
        self._rows = Rows(columns, topic, partition)
        self._runs: deque[_Run] = deque()
        self._open: _OpenBatch | None = None
        self._waiting: _Waiting | None = None
        self._chunks = ChunkAssembler(message_bytes_max, pending_max=_CHUNKED_MAX)
        self.encrypted_skipped = 0
        self.incomplete_chunked = 0

    def add(
        self,
        ledger_id: int,
        first_entry_id: int,
        heads: Sequence[bytes],
        bodies: Sequence[bytes | memoryview],
    ) -> None:
        """Consecutive entries of one ledger, after all that were added before.

        Args:
            heads: the first 32 bytes of each entry.
            bodies: the rest of each.
        """
        assert len(heads) == len(bodies)
        last_entry_id = first_entry_id + len(heads) - 1
        inside = (
            self._start[:2] < (ledger_id, first_entry_id)
            and (ledger_id, last_entry_id) < self._end[:2]
        )
        entries = zip(count(first_entry_id), heads, bodies, strict=False)
        self._runs.append(_Run(ledger_id, inside, entries))

    def take(self) -> pa.RecordBatch | None:
        """The next full batch; None: more entries are needed, or `missing` is to be resolved.

        Raises:
            UndecodableError: an entry is broken, or encrypted (``encrypted="fail"``), or belongs to
                a transaction; the text names topic, ledger and entry.
        """
        rows = self._rows
        while rows.count < self._batch_rows and rows.byte_count < self._batch_bytes:
            if self._open is not None:
                self._walk_on(self._open)
            elif self._waiting is not None or not self._open_next():
                return None
        return self._rows.take()

    @property
    def missing(self) -> MissingChunk | None:
        """Set: the decoder waits for `resolve` before it opens anything else."""
        return self._waiting.missing if self._waiting is not None else None

    def resolve(self, chunks: list[Chunk] | None) -> None:
        """Take what `ChunkLookback.chunks` found for `missing`; None: the message gives no row."""
        waiting, self._waiting = self._waiting, None
        assert waiting is not None, "nothing is missing"
        if chunks is None:
            self.incomplete_chunked += 1
        elif (payload := join([*chunks, waiting.chunk])) is not None:
            self._add_joined(waiting.entry, waiting.chunk[0], payload)

    def finish(self) -> pa.RecordBatch | None:
        """The rows that are left; None: there are none.

        REQUIRES: ``take`` returned None and nothing is `missing`. Chunked messages whose last chunk
        wasn't added give no row: they belong to the range that has it.
        """
        assert self._waiting is None
        assert self._open is None
        assert not self._runs
        return self._rows.take() if self._rows.count else None

    def _open_next(self) -> bool:
        """Look at one entry; False: there is none."""
        while self._runs:
            ledger_id, inside, entries = self._runs[0]
            for entry_id, head, body in entries:
                try:
                    kind, flags, publish_ms, deliver_ms = _HEAD.unpack_from(head)
                    if kind != _HEAD_KIND:
                        parse_header(head)  # tells what is wrong
                    entry = _Entry(ledger_id, entry_id, flags, publish_ms, deliver_ms, body)
                    if self._is_wanted(entry, inside):
                        self._look_at(entry)
                except _BROKEN as error:
                    raise self._undecodable(ledger_id, entry_id, str(error)) from error
                return True
            self._runs.popleft()
        return False

    def _undecodable(self, ledger_id: int, entry_id: int, why: str) -> UndecodableError:
        return UndecodableError(f"{self._place}: entry {ledger_id}:{entry_id}: {why}")

    def _is_wanted(self, entry: _Entry, inside: bool) -> bool:
        """As far as its head tells; a slice of a message may be wanted for the last one's sake."""
        ledger_id, entry_id, flags, publish_time_ms, *_ = entry
        if flags & _SLICE == FLAG_CHUNK:
            return inside or (ledger_id, entry_id, 0) < self._end
        if not inside and not (
            self._start[:2] <= (ledger_id, entry_id) and (ledger_id, entry_id, 0) < self._end
        ):
            return False
        return (
            (self._from_ms is None or self._from_ms <= publish_time_ms)
            and (self._to_ms is None or publish_time_ms <= self._to_ms)
            and not flags & FLAG_MARKER
        )

    def _look_at(self, entry: _Entry) -> None:
        flags = entry.flags
        if flags & FLAG_TRANSACTION:
            raise self._undecodable(entry.ledger_id, entry.entry_id, _OF_TRANSACTION)
        if flags & FLAG_ENCRYPTED and self._encrypted != "raw":
            if self._encrypted == "fail":
                raise self._undecodable(entry.ledger_id, entry.entry_id, _ENCRYPTED)
            self.encrypted_skipped += 1
            return
        metadata, payload = _open(entry.body)
        if flags & FLAG_ENCRYPTED:
            self._add_single(entry, metadata, bytes(payload))
        elif flags & FLAG_CHUNK:
            self._add_chunk(entry, metadata, payload)
        else:
            self._add_payload(entry, metadata, payload)

    def _add_chunk(
        self, entry: _Entry, metadata: pb.MessageMetadata, payload: bytes | memoryview
    ) -> None:
        ledger_id, entry_id, flags, *_ = entry
        chunks = self._chunks
        joined = chunks.add(metadata, memoryview(payload), (ledger_id, entry_id), 0)
        # What makes room is looked for again.
        chunks.put_back.clear()
        chunks.given_up.clear()
        if joined is not None:
            self._add_payload(entry, metadata, joined.payload)
        elif flags & FLAG_LAST_CHUNK:
            missing = MissingChunk(metadata.uuid, ledger_id, entry_id, self._place)
            self._waiting = _Waiting(missing, (metadata, bytes(payload)), entry)

    def _add_joined(self, entry: _Entry, metadata: pb.MessageMetadata, payload: bytes) -> None:
        size, size_max = len(payload), self._message_bytes_max
        try:
            if size > size_max:
                raise BrokenBatchError(f"chunked message of {size} bytes, limit {size_max}")
            self._add_payload(entry, metadata, payload)
        except _BROKEN as error:
            raise self._undecodable(entry.ledger_id, entry.entry_id, str(error)) from error

    def _add_payload(
        self, entry: _Entry, metadata: pb.MessageMetadata, payload: bytes | memoryview
    ) -> None:
        """A whole message or batch, compressed as it may be."""
        if metadata.compression != pb.NONE:
            data = decompress(
                metadata.compression, payload, metadata.uncompressed_size, self._message_bytes_max
            )
        else:
            data = bytes(payload)
        if metadata.HasField("num_messages_in_batch"):
            self._open_batch(entry, metadata, data)
        else:
            self._add_single(entry, metadata, data)

    def _bounds(self, entry: _Entry, messages: int) -> tuple[int, int]:
        """First index and the one after the last that are wanted of an entry's ``messages``."""
        position = entry[:2]
        first = self._start.batch_index if position == self._start[:2] else 0
        last = self._end.batch_index if position == self._end[:2] else messages
        return first, min(last, messages)

    def _open_batch(self, entry: _Entry, metadata: pb.MessageMetadata, data: bytes) -> None:
        messages = metadata.num_messages_in_batch
        if not 0 < messages <= len(data) // _BATCHED_BYTES_MIN:
            raise BrokenBatchError(f"batch of {messages} messages in {len(data)} bytes")
        first, last = self._bounds(entry, messages)
        if first >= last:
            return
        batch = _OpenBatch(self._facts(entry, metadata), metadata, data, last)
        if first:
            batch.offset = walk_values(data, 0, 0, first, Rows((), "", -1))
            batch.index = first
        self._open = batch

    def _facts(self, entry: _Entry, metadata: pb.MessageMetadata) -> EntryFacts:
        ledger_id, entry_id, _, publish_time_ms, deliver_at_ms, _ = entry
        if not self._rows.wants.producer:
            return ledger_id, entry_id, publish_time_ms, deliver_at_ms, "", None
        producer, version = readable(metadata.producer_name), metadata.schema_version
        return ledger_id, entry_id, publish_time_ms, deliver_at_ms, producer, version or None

    def _walk_on(self, batch: _OpenBatch) -> None:
        """Read as many messages of an open batch as the record batch has room for."""
        rows = self._rows
        room = self._batch_bytes - rows.byte_count
        most = room * batch.metadata.num_messages_in_batch // len(batch.data)
        last = min(batch.last, batch.index + max(1, min(most, self._batch_rows - rows.count)))
        try:
            if rows.wants.fields:
                end = walk_fields(batch.data, batch.offset, batch.index, last, rows, batch.metadata)
            else:
                end = walk_values(batch.data, batch.offset, batch.index, last, rows)
        except BrokenBatchError as error:
            raise self._undecodable(*batch.facts[:2], str(error)) from error
        rows.end_entry(batch.facts, end - batch.offset)
        batch.index, batch.offset = last, end
        if last == batch.last:
            self._open = None

    def _add_single(self, entry: _Entry, metadata: pb.MessageMetadata, payload: bytes) -> None:
        first, last = self._bounds(entry, 1)
        if first >= last:
            return
        self._rows.add_single(metadata, payload)
        self._rows.end_entry(self._facts(entry, metadata), max(len(entry.body), len(payload)))


def _open(body: bytes | memoryview) -> tuple[pb.MessageMetadata, bytes | memoryview]:
    """Metadata and payload of an entry; `parse_entry_body` for the usual bytes, in half its time.

    Raises:
        MalformedFrameError, DecodeError: it isn't an entry's body.
    """
    if len(body) > _BODY_HEAD.size:
        magic, _, size = _BODY_HEAD.unpack_from(body)
        end = _BODY_HEAD.size + size
        if magic == CHECKSUM_MAGIC and end <= len(body):
            metadata = bytes(body[_BODY_HEAD.size : end])
            return pb.MessageMetadata.FromString(metadata), body[end:]
    return parse_entry_body(body)
