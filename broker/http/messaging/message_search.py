"""Searches the log of a topic: messages from a position on that a filter finds.

It reads as tools do that look at a log: no cursor and no subscription take part, so nothing that
consumers see changes. A search is cut where it has read enough; its answer says where to go on.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from magnetar.broker.http.messaging.message_filter import MessageFilter, Searched
from magnetar.broker.http.messaging.rest_consume import described
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import (
    Message,
    UndecodableEntryError,
    is_chunk,
    messages_of,
    open_entry,
)

if TYPE_CHECKING:
    from magnetar.broker.http.messaging.value_schemas import DecodedValue, ValueSchemas
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.managed_ledger.entry_batch import EntryBatch
    from magnetar.managed_ledger.managed_ledger import ManagedLedger
    from magnetar.managed_ledger.position import Position

ENTRIES_MAX: Final = 12_000
BYTES_MAX: Final = 64 << 20
SECONDS_MAX: Final = 5.0
_ENTRIES_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 1 << 20
_ANSWER_BYTES_MAX: Final = 8 << 20
_PAYLOAD_BYTES: Final = 64 << 10
"""Of a longer value the beginning is shown, unless the whole is asked for."""


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for."""

    start: Position
    limit: int
    """Messages of the answer."""
    matches: MessageFilter
    with_payload: bool = True
    whole_payload: bool = False


@dataclass(slots=True)
class SearchResult:
    messages: list[dict[str, Any]] = field(default_factory=list)
    next: Position | None = None
    """Where to go on; None: the end of the log was reached."""
    entries: int = 0
    bytes: int = 0
    """Read, both of them."""

    def as_json(self) -> dict[str, Any]:
        following = None if self.next is None else f"{self.next[0]}:{self.next[1]}"
        return {
            "messages": self.messages,
            "next": following,
            "entriesRead": self.entries,
            "bytesRead": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry taken apart: its messages, or why there are none."""

    position: Position
    size: int
    messages: Sequence[Message] = ()
    metadata: pb.MessageMetadata | None = None
    error: str = ""


class MessageSearch:
    """Searches in one topic."""

    def __init__(self, service: BrokerService, schemas: ValueSchemas, name: TopicName) -> None:
        self._service, self._schemas, self._name = service, schemas, name

    async def run(self, ledger: ManagedLedger, search: Search) -> SearchResult:
        """Raises ManagedLedgerError, LedgerError: the log can't be read now."""
        result, shown_bytes = SearchResult(), 0
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SECONDS_MAX
        position = search.start
        while True:
            batch = await ledger.read(position, _ENTRIES_AT_ONCE, _BYTES_AT_ONCE)
            if batch is None:
                return result
            for entry in await self._entries(batch):
                result.entries += 1
                result.bytes += entry.size
                position = (entry.position[0], entry.position[1] + 1)
                found = await self._found(entry, search)
                result.messages += found
                shown_bytes += sum(each["size"] for each in found if search.with_payload)
                if len(result.messages) >= search.limit or shown_bytes > _ANSWER_BYTES_MAX:
                    result.next = position
                    return result
            if result.entries >= ENTRIES_MAX or result.bytes >= BYTES_MAX or loop.time() > until_s:
                result.next = position
                return result

    async def _entries(self, batch: EntryBatch) -> list[_Entry]:
        """Taken apart in a thread: a few bytes may be a million messages."""
        # Copies: the bodies may be views of a buffer that is used again.
        bodies = [bytes(body) for body in batch.bodies]
        largest = self._service.config.max_message_size
        ids = [(batch.ledger_id, batch.first + place) for place in range(len(bodies))]
        return await self._service.schemas.in_value_thread(
            lambda: [
                _taken_apart(position, body, largest)
                for position, body in zip(ids, bodies, strict=True)
            ]
        )

    async def _found(self, entry: _Entry, search: Search) -> list[dict[str, Any]]:
        base = {"messageId": f"{entry.position[0]}:{entry.position[1]}", "size": entry.size}
        if entry.metadata is None:
            return [base | {"error": entry.error}]
        messages = entry.messages
        if search.matches.needs_json:
            decoded = await self._schemas.decode(self._name, messages)
        else:
            decoded = [None] * len(messages)
        chosen = [
            place
            for place, message in enumerate(messages)
            if search.matches(_searched(message, decoded[place]))
        ]
        shown = [messages[place] for place in chosen]
        values = await self._values(shown, search)
        return [
            base | _described(message, entry.metadata, search, value)
            for message, value in zip(shown, values, strict=True)
        ]

    async def _values(
        self, messages: Sequence[Message], search: Search
    ) -> list[DecodedValue | None]:
        """None: it isn't decoded, as only its beginning is shown, or nothing of it."""
        places = [
            place
            for place, message in enumerate(messages)
            if search.with_payload and not _is_cut(message, search)
        ]
        decoded = await self._schemas.decode(self._name, [messages[place] for place in places])
        found: list[DecodedValue | None] = [None] * len(messages)
        for place, value in zip(places, decoded, strict=True):
            found[place] = value
        return found


def _taken_apart(position: Position, body: bytes, payload_bytes_max: int) -> _Entry:
    try:
        metadata, payload = open_entry(body)
        if is_chunk(metadata):  # a piece, which can't be decompressed without the others
            plain = pb.MessageMetadata()
            plain.CopyFrom(metadata)
            plain.compression = pb.NONE
            return _Entry(position, len(body), messages_of(plain, payload, len(body)), metadata)
        messages = messages_of(metadata, payload, payload_bytes_max)
        return _Entry(position, len(body), messages, metadata)
    except UndecodableEntryError as error:
        return _Entry(position, len(body), error=str(error))


def _searched(message: Message, decoded: DecodedValue | None) -> Searched:
    def value() -> Any:
        if decoded is not None and not decoded.error:
            found = orjson.loads(orjson.dumps(decoded.value))
            if not isinstance(found, str):  # a text may be JSON itself
                return found
        try:
            return orjson.loads(message.payload)
        except orjson.JSONDecodeError:
            return None

    return Searched(
        message.key,
        message.properties,
        message.producer_name,
        len(message.payload),
        message.publish_time_ms,
        message.event_time_ms,
        message.sequence_id,
        lambda: message.payload.decode(errors="replace"),
        value,
    )


def _described(
    message: Message,
    metadata: pb.MessageMetadata,
    search: Search,
    decoded: DecodedValue | None,
) -> dict[str, Any]:
    size = len(message.payload)
    if is_cut := _is_cut(message, search):
        message = replace(message, payload=message.payload[:_PAYLOAD_BYTES])
    found = described(message, as_base64=is_cut, decoded=decoded)
    if is_cut:
        _show_beginning(found)
    if not search.with_payload:
        found.pop("payload", None)
        found.pop("encoding", None)
    found |= {
        "size": size,
        "producerName": message.producer_name,
        "sequenceId": message.sequence_id,
        "compression": pb.CompressionType.Name(metadata.compression),
    }
    if message.batch_index >= 0:
        found |= {"batchIndex": message.batch_index, "batchSize": message.batch_size}
    if metadata.num_chunks_from_msg > 1:
        found |= {"chunkId": metadata.chunk_id, "chunkCount": metadata.num_chunks_from_msg}
    if message.encryption is not None:
        found["encryptionKeys"] = [each.key for each in metadata.encryption_keys]
    if metadata.HasField("deliver_at_time"):
        found["deliverAtTime"] = metadata.deliver_at_time
    return found


def _is_cut(message: Message, search: Search) -> bool:
    return not search.whole_payload and len(message.payload) > _PAYLOAD_BYTES


def _show_beginning(found: dict[str, Any]) -> None:
    """Marks a value as cut; as text if it is one, where a letter may be cut in two."""
    found["isCut"] = True
    data = b64decode(found["payload"])
    try:
        text = data[: _text_end(data)].decode()
    except UnicodeDecodeError:
        return
    found["payload"], found["encoding"] = text, "text"


def _text_end(data: bytes) -> int:
    """Before the last letter of UTF-8, which may not be whole."""
    end = len(data)
    while end and data[end - 1] & 0xC0 == 0x80:
        end -= 1
    return max(0, end - 1)
