"""What one broker parses SENDs into and writes receipts from: the same messages again and again.

Invariant: between a parse and the last use of what it read, nothing else may parse into the same
objects. Code of one event loop that never awaits in between keeps to that; two loops in two threads
don't, for the interpreter may switch threads anywhere. So each broker has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias, cast

from magnetar.broker.producer.producer import PublishBatch
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import NO_ID

_RENEW_BYTES: Final = 1 << 20
_SIZES: Final = tuple(Struct(">II").pack(size + 4, size) for size in range(128))
# upb takes any buffer; its stubs say bytes.
_Parse: TypeAlias = "Callable[[bytes | memoryview], object]"


class SendMessages:
    """The command and the metadata of the SEND just parsed, and the receipt being written.

    A parse fills the same object again and leaves what it held in the object's arena, which never
    shrinks, so the objects are replaced after every megabyte received.
    """

    __slots__ = (
        "_parsed_bytes",
        "_receipt",
        "_receipt_id",
        "_serialize_receipt",
        "metadata",
        "parts",
        "send",
    )

    def __init__(self) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
        self._receipt = command.send_receipt
        self._receipt_id = self._receipt.message_id
        self._serialize_receipt = command.SerializeToString
        self._renew()

    def _renew(self) -> None:
        """Let go of the arenas that the parsed messages have filled."""
        send, metadata = self.send, self.metadata = pb.CommandSend(), pb.MessageMetadata()
        # One lookup for all of them: they are used for every message.
        self.parts = (
            *(send, cast("_Parse", send.ParseFromString), send.IsInitialized),
            *(metadata, cast("_Parse", metadata.ParseFromString), metadata.IsInitialized),
        )
        self._parsed_bytes = 0

    def read_done(self, read_bytes: int) -> None:
        """A read of so many bytes is over: nobody uses what was parsed any more."""
        self._parsed_bytes += read_bytes
        if self._parsed_bytes > _RENEW_BYTES:
            self._renew()

    def receipts(
        self, batch: PublishBatch, start: int, end: int, ledger_id: int, entry_id: int
    ) -> list[bytes | memoryview]:
        """SEND_RECEIPT frames of ``batch[start:end]``, joined.

        A negative ledger: nothing was stored (duplicates, drops).
        """
        producer = batch.producer
        step = 1
        if ledger_id < 0 or not producer.topic.persistent:
            step = 0  # these ids name no entry, so they don't count up
            ledger_id, entry_id = ledger_id & NO_ID, entry_id & NO_ID
        receipt, receipt_id = self._receipt, self._receipt_id
        serialize, sizes = self._serialize_receipt, _SIZES
        receipt.producer_id = producer.producer_id
        receipt_id.ledgerId = ledger_id
        parts: list[bytes] = []
        append = parts.append
        highest_ids = batch.highest_ids
        sequence_ids = batch.sequence_ids
        for index in range(start, end):
            receipt.sequence_id = sequence_ids[index]
            receipt.highest_sequence_id = highest_ids[index]
            receipt_id.entryId = entry_id
            entry_id += step
            data = serialize()
            append(sizes[len(data)])
            append(data)
        return [b"".join(parts)]
