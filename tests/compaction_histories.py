"""Histories of a topic that is compacted, made by a seed, and what its compacted view is then.

The model knows no entries, ledgers or positions: the rank of an entry is the number of entries that
were stored before it. ``tests/interop/test_compaction_histories.py`` checks it, and servers by it,
Apache Pulsar too.
"""

import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS, compress, decompress
from magnetar.broker.protocol.framing import encode_body, parse_entry_body

_U32 = Struct(">I")
_KEYS: Final = ("", "a", "b", "c", "d", "YQ==", base64.b64encode(b"\xff\x00").decode())
_TIME_MS: Final = 1_790_000_000_000
"""Of the first entry; the next ones follow by 10 ms."""
_BROKEN: Final = b"\xff" * 9
"""A batch that can't be decompressed. (One that can, and is none, fails each run in Pulsar.)"""
FAR_MS: Final = 4_000_000_000_000
"""A time of delivery that doesn't come."""
PRODUCERS: Final = ("p", "q")


@dataclass(frozen=True, slots=True)
class Sent:
    """A message.

    Attributes:
        key: None: it has none.
        is_null: it has no value, which one of no bytes isn't; to a compaction both are the same.
    """

    value: bytes
    key: str | None = None
    is_base64: bool = False
    is_null: bool = False
    ordering_key: bytes = b""
    event_time: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What is stored at once.

    Attributes:
        messages: one, or those of a batch.
        is_sealed: encrypted; of a batch the key of the first message is written outside, too.
        is_broken: a batch that can't be opened.
        chunk: message, index, count: a part of a message.
        transaction: its number in the history.
        is_delayed: for other subscriptions than ours.
    """

    messages: tuple[Sent, ...]
    codec: str = "NONE"
    is_batch: bool = False
    is_sealed: bool = False
    is_broken: bool = False
    chunk: tuple[str, int, int] | None = None
    transaction: int | None = None
    is_delayed: bool = False
    names_size: bool = True
    producer: str = "p"

    def body(self, rank: int, sequence_id: int, transaction: tuple[int, int] | None) -> bytes:
        """As a client sends it."""
        first = self.messages[0]
        metadata = pb.MessageMetadata(
            producer_name=self.producer, sequence_id=sequence_id, publish_time=publish_time_ms(rank)
        )
        data = _batched(self.messages) if self.is_batch else first.value
        if self.is_batch:
            metadata.num_messages_in_batch = len(self.messages)
            metadata.highest_sequence_id = sequence_id + len(self.messages) - 1
        if not self.is_batch or self.is_sealed or self.is_broken:
            _describe(metadata, first)
        if self.is_sealed:
            metadata.encryption_keys.add(key="k", value=b"secret")
            metadata.encryption_algo = "AES/GCM"
        if self.is_delayed:
            metadata.deliver_at_time = FAR_MS
        if self.chunk is not None:
            metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = self.chunk
            metadata.total_chunk_msg_size = len(data) * self.chunk[2]
        if transaction is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = transaction
        if self.names_size or self.codec != "NONE":
            metadata.uncompressed_size = len(data)
        if self.codec != "NONE":
            metadata.compression = COMPRESSIONS[self.codec]
            data = compress(metadata.compression, data)
        return encode_body(metadata, _BROKEN if self.is_broken else data)


@dataclass(frozen=True, slots=True)
class Row:
    """A message as it is seen.

    Attributes:
        index: in its batch; -1: it is in none, or the batch can't be opened by a reader without the
            key, or at all.
    """

    rank: int
    index: int
    sent: Sent


def publish_time_ms(rank: int) -> int:
    return _TIME_MS + 10 * rank


def _describe(metadata: "pb.MessageMetadata | pb.SingleMessageMetadata", sent: Sent) -> None:
    if sent.key is not None:
        metadata.partition_key = sent.key
    if sent.is_base64:
        metadata.partition_key_b64_encoded = True
    if sent.is_null:
        metadata.null_value = True
    if sent.ordering_key:
        metadata.ordering_key = sent.ordering_key
    if sent.event_time:
        metadata.event_time = sent.event_time


def _described(metadata: "pb.MessageMetadata | pb.SingleMessageMetadata", value: bytes) -> Sent:
    return Sent(
        value,
        metadata.partition_key if metadata.HasField("partition_key") else None,
        metadata.partition_key_b64_encoded,
        metadata.null_value,
        metadata.ordering_key,
        metadata.event_time,
    )


def _batched(messages: Sequence[Sent]) -> bytes:
    pieces: list[bytes] = []
    for sent in messages:
        metadata = pb.SingleMessageMetadata(payload_size=len(sent.value))
        _describe(metadata, sent)
        data = metadata.SerializeToString()
        pieces += (_U32.pack(len(data)), data, sent.value)
    return b"".join(pieces)


def rows_of(rank: int, body: bytes) -> Iterator[Row]:
    """Of what a server delivers, without messages that were taken out of their batch."""
    metadata, stored = parse_entry_body(body)
    payload = bytes(stored)
    if metadata.compression != pb.NONE and payload != _BROKEN:
        payload = decompress(metadata.compression, payload, metadata.uncompressed_size, 1 << 20)
    if not metadata.HasField("num_messages_in_batch") or (
        metadata.encryption_keys or payload == _BROKEN
    ):
        yield Row(rank, -1, _described(metadata, payload))
        return
    at = 0
    for index in range(metadata.num_messages_in_batch):
        end = at + 4 + _U32.unpack_from(payload, at)[0]
        part = pb.SingleMessageMetadata.FromString(payload[at + 4 : end])
        at = end + part.payload_size
        if not part.compacted_out:
            yield Row(rank, index, _described(part, payload[end:at]))


# --- what is done


@dataclass(frozen=True, slots=True)
class Publish:
    entry: Entry


@dataclass(frozen=True, slots=True)
class Begin:
    transaction: int


@dataclass(frozen=True, slots=True)
class End:
    transaction: int
    commits: bool


@dataclass(frozen=True, slots=True)
class Do:
    """Attributes:
    what: "repeat" (the last SEND again, where that is a duplicate), "compact", "unload" (the next
        entry is in another ledger), "trim", "look", "restart" (of a run: the topic is unloaded
        while it compacts).
    """

    what: str


Step = Publish | Begin | End | Do


def history(seed: int, *, deduplicates: bool) -> list[Step]:
    """Ends with a compaction, messages behind it, and a look."""
    rng = random.Random(seed)
    steps: list[Step] = []
    opened: list[int] = []
    numbers = iter(range(1_000_000))
    for run in range(rng.randint(2, 4)):
        for _ in range(rng.randint(1, 12)):
            chance = rng.random()
            if chance < 0.08 and len(opened) < 2:
                opened.append(next(numbers))
                steps.append(Begin(opened[-1]))
            elif chance < 0.16 and opened:
                steps.append(End(opened.pop(rng.randrange(len(opened))), rng.random() < 0.6))
            elif chance < 0.2:
                steps.append(Do("unload"))
            elif chance < 0.24 and deduplicates:
                steps.append(Do("repeat"))
            else:
                number = next(numbers)
                steps += [Publish(each) for each in _entries(rng, f"{run}-{number}", opened)]
        if rng.random() < 0.7:  # else what is compacted ends before the first open transaction
            steps += [End(each, rng.random() < 0.6) for each in opened]
            opened.clear()
        if rng.random() < 0.15 and not opened:
            steps += [Do("restart"), Publish(Entry((_sent(rng, f"{run}-after"),)))]
        steps.append(Do("compact"))
        if rng.random() < 0.4:
            steps += [Do("unload"), Do("trim")]
        steps.append(Do("look"))
        for _ in range(rng.randrange(3)):
            steps += [Publish(each) for each in _entries(rng, f"tail-{run}-{next(numbers)}", [])]
        steps.append(Do("look"))
    steps += [End(each, rng.random() < 0.6) for each in opened]
    steps.append(Publish(Entry((Sent(b"the last one", "a"),))))
    steps.append(Do("look"))
    return steps


def _sent(rng: random.Random, name: str) -> Sent:
    key = rng.choice(_KEYS) if rng.random() < 0.85 else None
    chance = rng.random()
    value = b"" if chance < 0.2 else name.encode() * rng.choice([1, 1, 20])
    return Sent(
        value,
        key,
        key is not None and key.endswith("=") and rng.random() < 0.5,
        not value and chance < 0.1,
        rng.choice([b"", b"", b"order", b"\x00\xff"]),
        rng.choice([0, 0, rng.randrange(1, _TIME_MS)]),
    )


def _entries(rng: random.Random, name: str, opened: Sequence[int]) -> Iterator[Entry]:
    """One; the parts of a message, and perhaps others between them."""
    codec = rng.choice([*COMPRESSIONS, "NONE", "NONE"])
    transaction = rng.choice(opened) if opened and rng.random() < 0.6 else None
    entry = Entry((_sent(rng, name),), codec, transaction=transaction)
    kind = rng.choice(["single"] * 5 + ["batch"] * 5 + ["sealed", "sealed batch", "broken"])
    if rng.random() < 0.12:
        kind = "chunks"
    entry = replace(entry, is_delayed=rng.random() < 0.1, names_size=rng.random() < 0.8)
    if kind in ("batch", "sealed batch"):
        count = rng.choice([1, 2, 3, 7])
        messages = tuple(_sent(rng, f"{name}.{index}") for index in range(count))
        entry = replace(entry, messages=messages, is_batch=True)
    elif kind == "broken":
        entry = replace(entry, messages=(Sent(_BROKEN, rng.choice([None, "a"])),))
        entry = replace(entry, is_batch=True, is_broken=True, codec="ZLIB")
    if kind.startswith("sealed"):
        entry = replace(entry, is_sealed=True, codec="NONE")
    if kind != "chunks":
        yield entry
        return
    count = rng.choice([2, 3])
    is_whole = rng.random() < 0.8
    for index in range(count if is_whole else count - 1):
        if rng.random() < 0.3:
            yield Entry((_sent(rng, f"{name}:{index}"),), producer="q")
        part = replace(entry.messages[0], value=b"%s part %d" % (name.encode(), index))
        part = replace(part, is_null=False)
        yield replace(entry, messages=(part,), codec="NONE", chunk=(name, index, count))


# --- what is seen then


@dataclass(slots=True)
class Model:
    """Of one topic.

    Attributes:
        retains_keyless: messages without a key stay.
        as_pulsar: with the differences that are deliberate. In Pulsar each part of a message is a
            message, so that the last one alone stays, which no client can read; and the last
            message of a batch of one has no index once it is compacted.
    """

    retains_keyless: bool = False
    as_pulsar: bool = False
    entries: list[Entry] = field(default_factory=list)
    horizon: int = 0
    """What has a lower rank is compacted."""
    _kept: list[Row] = field(default_factory=list)
    _ends: dict[int, bool] = field(default_factory=dict)

    def end_transaction(self, number: int, *, commits: bool) -> None:
        self._ends[number] = commits

    @property
    def open_count(self) -> int:
        """Transactions that have stored something and have not ended."""
        numbers = {each.transaction for each in self.entries} - {None}
        return len(numbers - self._ends.keys())

    def end(self) -> int:
        """The first rank that nobody sees yet: that of an open transaction holds back the rest."""
        for rank, entry in enumerate(self.entries):
            if entry.transaction is not None and entry.transaction not in self._ends:
                return rank
        return len(self.entries)

    def log(self, first: int) -> list[Row]:
        """What a reader of the log gets from there on."""
        return [
            row
            for rank in range(first, self.end())
            if self._ends.get(_transaction(self.entries[rank]), True)
            for row in _rows(rank, self.entries[rank])
        ]

    def view(self, first: int = 0) -> list[Row]:
        """What a reader of the compacted view gets from there on."""
        kept = [row for row in self._kept if row.rank >= first]
        return kept + self.log(max(first, self.horizon))

    def compact(self) -> None:
        rows = self.view()
        self.horizon = self.end()
        self._kept = list(self._survivors(rows))

    def _survivors(self, rows: Sequence[Row]) -> Iterator[Row]:
        parts, whole = ({}, {}) if self.as_pulsar else self._parts(rows)
        newest: dict[str, int] = {}
        for at, row in enumerate(rows):
            if self._is_opaque(row) or (at in parts and at not in whole):
                continue
            if row.sent.key is not None:
                newest[row.sent.key] = at
        for at, row in enumerate(rows):
            last = parts.get(at, at)  # of the message whose part it is
            key = row.sent.key
            if last < 0 or self._is_opaque(row):
                yield row
            elif key is None:
                if self.retains_keyless:
                    yield row
            elif newest[key] == last and self._has_value(row):
                yield row

    def _parts(self, rows: Sequence[Row]) -> tuple[dict[int, int], dict[int, int]]:
        """Of the parts of messages, the last one's place; -1: it isn't there."""
        places: dict[str, list[int]] = {}
        for at, row in enumerate(rows):
            if (chunk := self.entries[row.rank].chunk) is not None:
                places.setdefault(chunk[0], []).append(at)
        parts: dict[int, int] = {}
        whole: dict[int, int] = {}
        for found in places.values():
            chunk = self.entries[rows[found[0]].rank].chunk
            assert chunk is not None
            is_whole = len(found) == chunk[2]
            parts |= dict.fromkeys(found, found[-1] if is_whole else -1)
            if is_whole:
                whole[found[-1]] = found[-1]
        return parts, whole

    def _is_opaque(self, row: Row) -> bool:
        return self.entries[row.rank].is_broken

    def _has_value(self, row: Row) -> bool:
        return bool(row.sent.value) and not row.sent.is_null

    def last(self) -> tuple[int, int] | None:
        """Rank and index in its batch of the last message; None: there is none."""
        rows = self.view()
        if not rows:
            return None
        rank, entry = rows[-1].rank, self.entries[rows[-1].rank]
        if not entry.is_batch:
            return rank, -1
        if rank >= self.horizon:
            return rank, len(entry.messages) - 1
        if self.as_pulsar and len(entry.messages) == 1:
            return rank, -1
        return rank, len(entry.messages) - 1 if rows[-1].index < 0 else rows[-1].index


def _transaction(entry: Entry) -> int:
    return -1 if entry.transaction is None else entry.transaction


def _rows(rank: int, entry: Entry) -> Iterator[Row]:
    if entry.is_batch and not (entry.is_sealed or entry.is_broken):
        yield from (Row(rank, index, sent) for index, sent in enumerate(entry.messages))
        return
    first = entry.messages[0]
    value = _batched(entry.messages) if entry.is_batch and not entry.is_broken else first.value
    yield Row(rank, -1, replace(first, value=value))
