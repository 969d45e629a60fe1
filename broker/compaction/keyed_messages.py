"""Messages of an entry as compaction sees them; and the entry without those that are dropped.

Rules: docs/formats/compacted-ledger.md.
"""

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import CompressionError, compress, decompress
from magnetar.broker.protocol.framing import MalformedFrameError, encode_body, parse_entry_body
from magnetar.managed_ledger.entry_batch import Buffer

_U32 = Struct(">I")
INFLATED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of a batch; a larger one is kept as it is."""


class KeyedMessage(NamedTuple):
    """A message: its key and whether it has a value.

    Attributes:
        key: None: it has none.
        is_gone: an earlier compaction took it out of its batch.
    """

    key: str | None
    removes: bool
    is_gone: bool = False


class OpenedEntry:
    """An entry taken apart.

    Attributes:
        messages: those that compaction decides on; none: the entry is dropped (a marker).
        is_opaque: what it holds can't be told, so that it is kept whole.
        chunk: (uuid, index, chunks) of a part of a chunked message.
    """

    __slots__ = ("_metadata", "_parts", "chunk", "is_opaque", "messages")

    def __init__(self, body: Buffer) -> None:
        self.messages: list[KeyedMessage] = []
        self.is_opaque = False
        self.chunk: tuple[str, int, int] | None = None
        self._parts: list[tuple[pb.SingleMessageMetadata, bytes]] = []
        try:
            self._metadata, payload = parse_entry_body(body)
            self._open(payload)
        except (MalformedFrameError, DecodeError, CompressionError, ValueError):
            self.is_opaque = True

    def _open(self, payload: memoryview) -> None:
        metadata = self._metadata
        if metadata.HasField("marker_type"):
            return
        if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
            self._parts = list(_parts_of(metadata, payload))
            self.messages = [
                KeyedMessage(
                    part.partition_key if part.HasField("partition_key") else None,
                    part.null_value or part.payload_size == 0,
                    part.compacted_out,
                )
                for part, _ in self._parts
            ]
            return
        if metadata.num_chunks_from_msg > 1:
            self.chunk = (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
        size = len(payload)
        if metadata.HasField("uncompressed_size"):
            size = metadata.uncompressed_size
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        self.messages = [KeyedMessage(key, metadata.null_value or size == 0)]

    def body_of(self, is_kept: Callable[[int], bool]) -> bytes | None:
        """Return the body of a batch with some of its messages only; the others leave a mark, so
        that ids stay as they are.

        Args:
            is_kept: by index in the batch.
        Returns:
            None: all are kept.
        """
        kept = [index for index in range(len(self._parts)) if is_kept(index)]
        if len(kept) == len(self._parts):
            return None
        pieces: list[bytes] = []
        is_in = frozenset(kept)
        out = pb.SingleMessageMetadata(compacted_out=True, payload_size=0).SerializeToString()
        for index, (part, payload) in enumerate(self._parts):
            data = part.SerializeToString() if index in is_in else out
            pieces += (_U32.pack(len(data)), data)
            if index in is_in:
                pieces.append(payload)
        payload = b"".join(pieces)
        metadata = self._metadata
        metadata.ClearField("compacted_batch_indexes")
        metadata.compacted_batch_indexes.extend(kept)
        metadata.uncompressed_size = len(payload)
        if metadata.compression != pb.NONE:
            payload = compress(metadata.compression, payload)
        return encode_body(metadata, payload)


def _parts_of(
    metadata: pb.MessageMetadata, payload: memoryview
) -> Iterator[tuple[pb.SingleMessageMetadata, bytes]]:
    if metadata.compression != pb.NONE:
        size = metadata.uncompressed_size
        data = decompress(metadata.compression, payload, size, INFLATED_BYTES_MAX)
    else:
        data = bytes(payload)
    at, end = 0, len(data)
    for index in range(metadata.num_messages_in_batch):
        if at + 4 > end:
            raise ValueError(f"batch ends before message {index}")
        payload_from = at + 4 + _U32.unpack_from(data, at)[0]
        part = pb.SingleMessageMetadata.FromString(data[at + 4 : payload_from])
        at = payload_from + part.payload_size
        if payload_from > end or part.payload_size < 0 or at > end:
            raise ValueError(f"message {index} leaves its batch")
        yield part, data[payload_from:at]


def last_kept_index(body: Buffer) -> int:
    """Index in its batch of the last message that an entry still has; -1: it is no batch."""
    try:
        metadata, _ = parse_entry_body(body)
    except (MalformedFrameError, DecodeError):
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    if metadata.compacted_batch_indexes:
        return metadata.compacted_batch_indexes[-1]
    return metadata.num_messages_in_batch - 1
