"""Messages of an entry as compaction sees them; and the entry without those that are dropped.

Rules: docs/formats/compacted-ledger.md.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import compress
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.messages import (
    BATCH_MESSAGES_MAX,
    UndecodableEntryError,
    batch_parts,
    inflated,
    open_entry,
)
from magnetar.broker.protocol.plain_sends import scan_keys
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

    key: bytes | None
    removes: bool
    is_gone: bool = False


class OpenedEntry:
    """An entry taken apart.

    Attributes:
        messages: those that compaction decides on; none: the entry is dropped (a marker).
        is_opaque: what it holds can't be told, so that it is kept whole.
        chunk: (uuid, index, chunks) of a part of a chunked message.
    """

    __slots__ = ("_data", "_metadata", "chunk", "is_opaque", "messages")

    def __init__(self, body: Buffer) -> None:
        self.messages: list[KeyedMessage] = []
        self.is_opaque = False
        self.chunk: tuple[str, int, int] | None = None
        self._data: Buffer = b""  # of a batch
        try:
            self._metadata, payload = open_entry(body)
            self._open(payload)
        except UndecodableEntryError:
            self.is_opaque = True

    def _open(self, payload: memoryview) -> None:
        metadata = self._metadata
        if metadata.HasField("marker_type"):
            return
        if metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys:
            self._data = payload
            if metadata.compression != pb.NONE:
                self._data = inflated(metadata, payload, INFLATED_BYTES_MAX)
            self.messages = _keyed(metadata, self._data)
            return
        if metadata.num_chunks_from_msg > 1:
            self.chunk = (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
        size = len(payload)
        if metadata.HasField("uncompressed_size"):
            size = metadata.uncompressed_size
        has_key = metadata.HasField("partition_key")
        key = _bytes_of(metadata.partition_key) if has_key else None
        self.messages = [KeyedMessage(key, metadata.null_value or size == 0)]

    def body_of(self, is_kept: Callable[[int], bool]) -> bytes | None:
        """Return the body of a batch with some of its messages only; the others leave a mark, so
        that ids stay as they are.

        Args:
            is_kept: by index in the batch.
        Returns:
            None: all are kept.
        """
        kept = [index for index in range(len(self.messages)) if is_kept(index)]
        if len(kept) == len(self.messages):
            return None
        pieces: list[bytes] = []
        is_in = frozenset(kept)
        out = pb.SingleMessageMetadata(compacted_out=True, payload_size=0).SerializeToString()
        for index, (part, payload) in enumerate(batch_parts(self._metadata, bytes(self._data))):
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


def _keyed(metadata: pb.MessageMetadata, data: Buffer) -> list[KeyedMessage]:
    """The messages of a batch."""
    count = metadata.num_messages_in_batch
    if scan_keys is not None and 0 < count <= BATCH_MESSAGES_MAX:
        found = scan_keys(data, count)
        if found is not None:
            return [KeyedMessage._make(each) for each in found]
    return [
        KeyedMessage(
            _bytes_of(part.partition_key) if part.HasField("partition_key") else None,
            part.null_value or part.payload_size == 0,
            part.compacted_out,
        )
        for part, _ in batch_parts(metadata, bytes(data))
    ]


def _bytes_of(key: str | bytes) -> bytes:
    """A key of a C++ producer may be no UTF-8: the parser gives bytes then."""
    return key if isinstance(key, bytes) else key.encode()


def last_kept_index(body: Buffer) -> int:
    """Index in its batch of the last message that an entry still has; -1: it is no batch."""
    try:
        metadata, _ = open_entry(body)
    except UndecodableEntryError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    if metadata.compacted_batch_indexes:
        return metadata.compacted_batch_indexes[-1]
    return metadata.num_messages_in_batch - 1
