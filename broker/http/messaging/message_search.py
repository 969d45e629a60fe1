"""Searches the log of a topic: messages from a position on that a filter finds.

It reads as tools do that look at a log: no cursor and no subscription take part, so nothing that
consumers see changes. A search is cut where it has read enough; its answer says where to go on.

INVARIANT: what depends on the size or the number of stored messages is done in a thread, a slice at
a time: a few stored bytes may be a million messages.
"""

from __future__ import annotations

import sys
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final, Protocol, TypeVar

import orjson

from magnetar.broker.http.messaging.message_filter import MessageFilter, Searched
from magnetar.broker.http.messaging.message_mask import MASK, masked
from magnetar.broker.http.messaging.rest_consume import described
from magnetar.broker.http.messaging.value_schemas import DecodedValue, ValueSchemas
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import (
    Message,
    UndecodableEntryError,
    inflated,
    is_chunk,
    messages_in,
    messages_of,
    open_entry,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.transaction.markers import transaction_of
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import EARLIEST, Position

T = TypeVar("T")

ENTRIES_MAX: Final = 12_000
BYTES_MAX: Final = 64 << 20
"""After decompression."""
SECONDS_MAX: Final = 5.0
_ENTRIES_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 1 << 20
_MESSAGES_AT_ONCE: Final = 200
_ANSWER_BYTES_MAX: Final = 8 << 20
_PAYLOAD_BYTES: Final = 64 << 10
PAYLOADS: Final = {
    "cut": _PAYLOAD_BYTES,
    "long": 512 << 10,
    "whole": sys.maxsize,
    "none": _PAYLOAD_BYTES,
}
"""Bytes of a value that are shown, by what is asked for; "none": while it is looked at."""


class Log(Protocol):
    """Of a topic: a `ManagedLedger`, or one that another broker has."""

    @property
    def offsets(self) -> LedgerOffsets:
        """The ledgers it is made of."""

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """The first existing entry at or after ``position`` and more of its ledger; None: the end
        of the log."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Of a message in the log."""

    position: Position
    index: int = 0
    """In its batch."""

    def __str__(self) -> str:
        text = f"{self.position[0]}:{self.position[1]}"
        return f"{text}:{self.index}" if self.index else text


BEGINNING: Final = Place(EARLIEST)
"""Before all that a log has: what compaction left may be older than its first entry."""


def place_of(text: str, log: Log) -> Place:
    """``earliest``, ``latest`` (for `MessageSearch.last`), ``ledger:entry`` or, in a batch,
    ``ledger:entry:index``.

    Raises:
        ValueError: none of these.
    """
    if text in ("earliest", "latest"):
        return Place(log.offsets.first_position())
    parts = text.split(":")
    is_place = len(parts) in (2, 3) and all(
        each.isascii() and each.isdecimal() and len(each) < 20 for each in parts
    )
    if not is_place:
        raise ValueError("position is earliest, latest, ledger:entry or ledger:entry:index")
    ledger_id, entry_id, *index = map(int, parts)
    return Place((ledger_id, entry_id), *index)


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for."""

    start: Place
    limit: int
    """Messages of the answer."""
    matches: MessageFilter
    with_payload: bool = True
    payload_max: int = _PAYLOAD_BYTES
    """Bytes; of a longer value the beginning is shown."""
    raw: bool = False
    """Whether values are shown as the bytes that are stored, in base64; none beside ``masked``."""
    masked: frozenset[str] = frozenset()
    """Fields whose values neither the filter nor the answer has, see `message_mask`."""
    end: Place | None = None
    """It and what is behind it aren't looked at."""


@dataclass(slots=True)
class SearchResult:
    messages: list[dict[str, Any]] = field(default_factory=list)
    next: Place | None = None
    """Where to go on; None: the end of the log, or of what is looked at, was reached."""
    previous: Place | None = None
    """The first place that was looked at, if there are messages before it."""
    entries: int = 0
    bytes: int = 0
    """Read, both of them; after decompression."""

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "next": None if self.next is None else str(self.next),
            "previous": None if self.previous is None else str(self.previous),
            "entriesRead": self.entries,
            "bytesRead": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class _Item:
    """A message in an entry; or what stands in its place."""

    place: Place
    message: Message | None
    """None: it was compacted out, or the entry holds none."""
    metadata: pb.MessageMetadata | None
    opened: int
    """Bytes of the entry, with its first item; 0 with the others."""
    stored: int
    """Bytes of the entry as it is stored."""
    error: str = ""
    is_masked: bool = False


class MessageSearch:
    """Searches in one topic."""

    def __init__(
        self,
        schemas: ValueSchemas,
        name: TopicName,
        message_bytes_max: int,
        state_of: Callable[[TransactionId], str | None] = lambda _: None,
    ) -> None:
        """
        Args:
            message_bytes_max: largest entry that is opened, after decompression.
            state_of: of a transaction, see `TopicTransactionBuffer`; None: it isn't known.
        """
        self._schemas, self._name, self._message_bytes_max = schemas, name, message_bytes_max
        self._state_of = state_of

    async def run(self, log: Log, search: Search) -> SearchResult:
        """Raises ManagedLedgerError, LedgerError: the log can't be read now."""
        run = _Run(search)
        await self._read(log, run)
        if search.start > Place(log.offsets.first_position()):
            run.result.previous = search.start
        return run.result

    async def last(self, log: Log, search: Search) -> SearchResult:
        """The last messages before the end, of which the filter finds some.

        Looks further and further back until there are enough. Raises as `run`.
        """
        offsets, entries = log.offsets, 1
        before = offsets.previous_position(offsets.first_position())
        end = (
            Place(offsets.next_position(offsets.last_confirmed))
            if search.end is None
            else search.end
        )
        # The entry of the end has messages before it if the end isn't its first one.
        count = offsets.entries_between(
            before, (end.position[0], end.position[1] - (not end.index))
        )
        while True:
            skipped = max(0, count - entries)
            start = Place(offsets.position_after(before, skipped + 1))
            run = _Run(replace(search, start=start), deque(maxlen=search.limit))
            await self._read(log, run)
            assert run.tail is not None
            is_full = len(run.tail) == search.limit
            if is_full or entries >= min(count, search.limit) or run.result.next is not None:
                run.result.previous = run.tail[0].place if is_full else start if skipped else None
                await self._show(list(run.tail), run)
                return run.result
            entries *= 4

    async def newest(
        self, log: Log, search: Search, kept: Newest, until_s: float
    ) -> tuple[list[dict[str, Any]], Place, bool]:
        """Of what is found up to the end of the log, or a time, what ``kept`` keeps.

        Returns:
            With it: where to go on, and whether that is the end of the log.

        Raises as `run`.
        """
        run = _Run(search, kept)
        run.until_s = until_s
        await self._read(log, run)
        place, is_end = run.result.next or run.end, run.result.next is None
        await self._show(list(kept), run)
        return run.result.messages, place, is_end

    async def _read(self, log: Log, run: _Run) -> None:
        """Until there is enough, or the end of the log."""
        position, end = run.search.start.position, run.search.end
        while end is None or position <= end.position:
            count = min(_ENTRIES_AT_ONCE, ENTRIES_MAX - run.result.entries)
            if (batch := await log.read(position, count, _BYTES_AT_ONCE)) is None:
                if position != run.search.start.position:
                    run.end = Place(position)
                return
            # Copies: the bodies may be views of a buffer that is used again.
            ids = [(batch.ledger_id, batch.first + place) for place in range(len(batch.bodies))]
            entries = zip(ids, map(bytes, batch.bodies), strict=True)
            items = _items(entries, run.search.start, self._message_bytes_max)
            if end is not None:
                items = takewhile(lambda item: item.place < end, items)
            while found := await self._in_thread(lambda items=items: _slice(items)):
                if await self._look(found, run):
                    return
            position = (ids[-1][0], ids[-1][1] + 1)

    async def _look(self, items: Sequence[_Item], run: _Run) -> bool:
        """Whether that is enough."""
        matches = run.search.matches
        messages = [each.message for each in items if each.message is not None]
        needs_json = matches.needs_json or (run.search.masked and matches.reads_values)
        decoded = (
            iter(await self._schemas.decode(self._name, messages))
            if needs_json
            else iter([None] * len(messages))
        )
        pairs = [(each, None if each.message is None else next(decoded)) for each in items]
        hits, seen = await self._in_thread(lambda: _hits(pairs, run.search, run.until_s))
        for each in items[:seen]:
            run.count(each)
        if run.tail is not None:
            run.tail.extend(hits)
        elif await self._show(hits, run):
            return True
        if seen < len(items):
            run.result.next = items[seen].place
            return True
        return run.is_over(items[-1].place)

    async def _show(self, hits: Sequence[_Item], run: _Run) -> bool:
        """Whether the answer is full."""
        values = iter(await self._values([each.message for each in hits if each.message], run))
        pairs = [(each, None if each.message is None else next(values)) for each in hits]
        if run.search.masked:
            pairs = await self._in_thread(lambda: [_masked(*each, run.search) for each in pairs])

        def shown() -> list[dict[str, Any]]:
            return [
                _shown(item, run.search, value) | self._transaction(item.metadata)
                for item, value in pairs
            ]

        # Whole values may be long: their text, as JSON, takes some ten milliseconds.
        found = await self._in_thread(shown) if run.search.payload_max > _PAYLOAD_BYTES else shown()
        items = (item for item, _ in pairs)
        return any(run.add(*each) for each in zip(items, found, strict=True))

    async def _values(
        self, messages: Sequence[Message], run: _Run
    ) -> Sequence[DecodedValue | None]:
        """None: it isn't decoded, as only its beginning is shown, or nothing of it."""
        places = [
            place
            for place, message in enumerate(messages)
            if run.search.with_payload and not run.search.raw and not _is_cut(message, run.search)
        ]
        decoded = await self._schemas.decode(self._name, [messages[place] for place in places])
        found: list[DecodedValue | None] = [None] * len(messages)
        for place, value in zip(places, decoded, strict=True):
            found[place] = value
        return found

    def _transaction(self, metadata: pb.MessageMetadata | None) -> dict[str, Any]:
        if metadata is None or not metadata.HasField("txnid_least_bits"):
            return {}
        transaction = transaction_of(metadata)
        state = self._state_of(transaction)
        known = {} if state is None else {"transactionState": state}
        return {"transaction": str(transaction), **known}

    async def _in_thread(self, work: Any) -> Any:
        return await self._schemas.in_value_thread(work)


class Newest(deque[_Item]):
    """Keeps the last ones of what is found, of at most some messages and bytes."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        super().__init__()
        self.found = 0
        self.bytes = 0
        """Of the payloads that are kept."""
        self._messages_max, self._bytes_max = messages_max, bytes_max

    def extend(self, items: Iterable[_Item]) -> None:
        for each in items:
            self.append(each)
            self.found += 1
            self.bytes += _payload_bytes(each)
            while len(self) > self._messages_max or (
                len(self) > 1 and self.bytes > self._bytes_max
            ):
                self.bytes -= _payload_bytes(self.popleft())


def _payload_bytes(item: _Item) -> int:
    return 0 if item.message is None else len(item.message.payload)


class _Run:
    """One search: what it has found, and how much it may still read."""

    def __init__(self, search: Search, tail: deque[_Item] | None = None) -> None:
        """
        Args:
            tail: takes what is found, of which the last ones are kept.
        """
        self.search, self.tail = search, tail
        self.until_s = time.monotonic() + SECONDS_MAX
        self.end = search.start
        """Of the log, when it was reached: the place of the next message."""
        self.result = SearchResult()
        self._shown = 0

    def count(self, item: _Item) -> None:
        if item.opened:
            self.result.entries += 1
            self.result.bytes += item.opened

    def add(self, item: _Item, shown: dict[str, Any]) -> bool:
        """Whether the answer is full."""
        self.result.messages.append(shown)
        if (message := item.message) is not None:
            payload = min(len(message.payload), self.search.payload_max)
            properties = sum(len(name) + len(text) for name, text in message.properties.items())
            self._shown += len(message.key or "") + properties
            self._shown += payload if self.search.with_payload else 0
        is_full = len(self.result.messages) == self.search.limit
        if is_full or self._shown > _ANSWER_BYTES_MAX:
            self.result.next = _after(item.place)
            return True
        return False

    def is_over(self, last: Place) -> bool:
        """Whether it has read enough, up to that message."""
        result = self.result
        if (
            result.entries < ENTRIES_MAX
            and result.bytes < BYTES_MAX
            and time.monotonic() < self.until_s
        ):
            return False
        result.next = _after(last)
        return True


def _after(place: Place) -> Place:
    return Place(place.position, place.index + 1)


def _items(entries: Iterable[tuple[Position, bytes]], skip: Place, largest: int) -> Iterator[_Item]:
    """Message by message; an entry is opened when it is reached."""
    for position, body in entries:
        first = skip.index if position == skip.position else 0
        opened, index, metadata = len(body), 0, None
        try:
            metadata, messages, opened = _opened(body, largest)
            for index, message in enumerate(messages):
                if index >= first:
                    yield _Item(Place(position, index), message, metadata, opened, len(body))
                    opened = 0
            if opened and not first:
                yield _Item(Place(position), None, metadata, opened, len(body))
        except UndecodableEntryError as error:
            yield _Item(Place(position, index), None, metadata, opened, len(body), str(error))


def _opened(body: bytes, largest: int) -> tuple[pb.MessageMetadata, Iterable[Message | None], int]:
    """Metadata, messages, and bytes after decompression. Raises UndecodableEntryError."""
    metadata, payload = open_entry(body)
    if is_chunk(metadata):  # a piece, which can't be decompressed without the others
        plain = pb.MessageMetadata()
        plain.CopyFrom(metadata)
        plain.compression = pb.NONE
        return metadata, messages_of(plain, payload, len(body)), len(body)
    if metadata.encryption_keys or metadata.HasField("marker_type"):
        return metadata, messages_of(metadata, payload, largest), len(body)
    data = inflated(metadata, payload, largest)
    return metadata, messages_in(metadata, data), max(1, len(data))


def _slice(items: Iterator[_Item]) -> list[_Item]:
    """The next ones, of at most some messages and bytes; empty: there are none."""
    found: list[_Item] = []
    size = 0
    for each in items:
        found.append(each)
        size += each.opened
        if len(found) >= _MESSAGES_AT_ONCE or size >= _BYTES_AT_ONCE:
            break
    return found


def _hits(
    pairs: Sequence[tuple[_Item, DecodedValue | None]], search: Search, until_s: float
) -> tuple[list[_Item], int]:
    """Those that are found, and those that are errors; and how many were looked at in time."""
    found: list[_Item] = []
    for number, (item, decoded) in enumerate(pairs):
        if number and time.monotonic() > until_s:
            return found, number
        if item.error or (item.message and search.matches(_seen(item.message, decoded, search))):
            found.append(item)
    return found, len(pairs)


def _seen(message: Message, decoded: DecodedValue | None, search: Search) -> Searched:
    """What the filter sees of a message."""
    if not search.masked:
        return _searched(message, decoded)
    found = masked(message, decoded, search.masked)
    value, searched = found.decoded.value, _searched(found.message, None)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return replace(searched, text=lambda: text, json=lambda: value)


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
        _once(lambda: message.payload.decode(errors="replace")),
        _once(value),
    )


def _once(make: Callable[[], T]) -> Callable[[], T]:
    """Makes it for the first of a message's comparisons that asks for it."""
    made: list[T] = []

    def found() -> T:
        if not made:
            made.append(make())
        return made[0]

    return found


def _masked(
    item: _Item, decoded: DecodedValue | None, search: Search
) -> tuple[_Item, DecodedValue | None]:
    if item.message is None:
        return item, None
    found = masked(item.message, decoded, search.masked)
    if search.raw or _is_cut(item.message, search):  # no fields that can be told apart
        found = replace(found, decoded=DecodedValue(found.decoded.type, MASK), is_masked=True)
    return replace(item, message=found.message, is_masked=found.is_masked), found.decoded


def _shown(item: _Item, search: Search, decoded: DecodedValue | None) -> dict[str, Any]:
    ledger_id, entry_id = item.place.position
    base: dict[str, Any] = {"messageId": f"{ledger_id}:{entry_id}", "size": item.opened}
    if item.message is None or item.metadata is None:
        return base | {"error": item.error}
    message, metadata = item.message, item.metadata
    base["size"] = len(message.payload)
    is_cut = _is_cut(message, search)
    if is_cut:
        message = replace(message, payload=message.payload[: search.payload_max])
    found = described(message, as_base64=is_cut or search.raw, decoded=decoded)
    if item.is_masked:
        found["isMasked"] = True
    if is_cut:
        found["isCut"] = True
        if not (search.masked or search.raw):
            _show_beginning(found)
    if not search.with_payload:
        found.pop("payload", None)
        found.pop("encoding", None)
    found |= {
        "producerName": message.producer_name,
        "sequenceId": message.sequence_id,
        "compression": pb.CompressionType.Name(metadata.compression),
        "entrySize": item.stored,
    }
    if message.batch_index >= 0:
        found |= {"batchIndex": message.batch_index, "batchSize": message.batch_size}
    if metadata.num_chunks_from_msg > 1:
        found |= {"chunkId": metadata.chunk_id, "chunkCount": metadata.num_chunks_from_msg}
    if message.encryption is not None:
        found["encryptionKeys"] = [each.key for each in metadata.encryption_keys]
    if metadata.HasField("deliver_at_time"):
        found["deliverAtTime"] = metadata.deliver_at_time
    return base | found


def _is_cut(message: Message, search: Search) -> bool:
    return len(message.payload) > search.payload_max


def _show_beginning(found: dict[str, Any]) -> None:
    """Of a value that is cut: as text if it is one, where a letter may be cut in two."""
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
