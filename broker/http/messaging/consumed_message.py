"""A message on its way to a client of REST or WebSocket, and the id that the client gives back."""

from dataclasses import dataclass

from magnetar.broker.protocol.messages import Message, encode_message_id, parse_message_id
from magnetar.managed_ledger.position import Position

MessageKey = tuple[int, int, int, int, int]
"""(partition or -1, ledger, entry, batch index or -1, batch size or 0)."""


def parse_key(message_id: str) -> MessageKey:
    """Of a message id as ``ConsumedMessage`` has it. Raises MessageIdError."""
    data = parse_message_id(message_id)
    return (data.partition, data.ledgerId, data.entryId, data.batch_index, data.batch_size)


@dataclass(slots=True)
class ConsumedMessage:
    """One message on its way to the client."""

    partition: int
    ledger_id: int
    entry_id: int
    message: Message
    redelivery_count: int
    first_chunk: Position | None = None
    """Of a chunked message; the entry is its last chunk."""
    topic: str = ""
    """Or partition that it came from."""

    @property
    def key(self) -> MessageKey:
        message = self.message
        return (
            self.partition,
            self.ledger_id,
            self.entry_id,
            message.batch_index,
            message.batch_size,
        )

    @property
    def message_id(self) -> str:
        """As WebSocket clients know it, which is what REST calls a token."""
        return encode_message_id(
            self.ledger_id,
            self.entry_id,
            self.partition,
            self.message.batch_index,
            self.message.batch_size,
            self.first_chunk,
        )

    @property
    def shown_id(self) -> str:
        """As the text form of Pulsar's clients."""
        index = self.message.batch_index
        tail = f":{index}" if index >= 0 else ""
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}{tail}"
