"""Rows gathered as Python lists, and the Arrow record batch they become. Pure."""

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.text import readable
from magnetar.pipeline.row_columns import ARROW_TYPES, arrow_schema

_TIMESTAMP: Final = ARROW_TYPES["publishTime"]
_MS_MAX: Final = (2**63 - 1) // 1000
"""Spark has no later time. A client may send one; then the row has this time."""
_I64_MAX: Final = 2**63 - 1

MessageFacts: TypeAlias = tuple[bytes | None, bytes | None, int, int, bytes | None, int]
"""One message: value, key, event time in ms (0: none), sequence id, ordering key, and the end of
its properties in the lists of all messages' properties."""

EntryFacts: TypeAlias = tuple[int, int, int, int, str, bytes | None]
"""The facts that all messages of an entry share: ledger, entry, publish time and deliver-at time in
ms (0: none), producer's name, schema version. A plain tuple: one is made per entry."""


class Projection(NamedTuple):
    """Says which parts of each message the rows need; the messages of an entry share the rest."""

    value: bool
    batch_index: bool
    fields: bool
    """Anything of the message's own metadata, so that `Rows.messages` is filled, not ``values``."""
    properties: bool
    producer: bool
    """Anything of an entry's metadata that its head doesn't have."""


class Rows:
    """Collects messages of one partition for a record batch.

    A decoder appends to ``messages`` or to ``values`` (see `Projection`), and adds their indexes;
    after the messages of an entry it adds the `EntryFacts`.
    """

    __slots__ = (
        *("_arrays", "_columns", "_partition", "_run_ends", "_runs", "_schema", "_topic"),
        *("_new_layouts", "byte_count", "count", "indexes", "messages", "property_keys"),
        *("property_layout", "property_values", "values", "wants"),
    )

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self._columns, self._schema = tuple(columns), arrow_schema(columns)
        self._topic, self._partition = topic, partition
        names = set(columns)
        self.wants = Projection(
            "value" in names,
            "batchIndex" in names,
            not names.isdisjoint({"key", "eventTime", "properties", "sequenceId", "orderingKey"}),
            "properties" in names,
            not names.isdisjoint({"producerName", "schemaVersion"}),
        )
        self._arrays: dict[str, Callable[[], pa.Array]] = {
            "value": self._value_array,
            "topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), self.count),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), self.count),
            "batchIndex": lambda: pa.array(self.indexes, pa.int32()),
            "ledgerId": lambda: self._of_entries(0, "ledgerId"),
            "entryId": lambda: self._of_entries(1, "entryId"),
            "publishTime": lambda: self._of_entries(2, "publishTime"),
            "deliverAt": lambda: self._of_entries(3, "deliverAt"),
            "producerName": lambda: self._of_entries(4, "producerName"),
            "schemaVersion": lambda: self._of_entries(5, "schemaVersion"),
            "key": lambda: pa.array([each[1] for each in self.messages], pa.binary()),
            "eventTime": lambda: _timestamps([each[2] for each in self.messages]),
            "sequenceId": lambda: _signed([each[3] for each in self.messages]),
            "orderingKey": lambda: pa.array([each[4] for each in self.messages], pa.binary()),
            "properties": self._property_array,
        }
        self.property_layout: list[tuple[bytes, bytes, int]] = []
        """Of each property that messages have one after the other: its bytes from the key's tag to
        the value's tag, its key, and how far from its beginning the value's size is."""
        self._new_layouts = 0
        self._clear()

    def _clear(self) -> None:
        self.count = self.byte_count = 0
        self.values: list[bytes | None] = []
        self.messages: list[MessageFacts] = []
        self.indexes: list[int] = []
        self.property_keys: list[bytes | str] = []
        self.property_values: list[bytes | str] = []
        self._runs: list[EntryFacts] = []
        self._run_ends: list[int] = []  # rows up to the end of each of them

    def add_indexes(self, first: int, last: int) -> None:
        """Messages were added whose batch indexes are ``first`` to ``last`` (not included)."""
        self.count += last - first
        if self.wants.batch_index:
            self.indexes.extend(range(first, last))

    def add_properties(self, pairs: Iterable[pb.KeyValue]) -> None:
        """Of the message that is added next; the last of several equal keys counts."""
        found = {pair.key: pair.value for pair in pairs}
        self.property_keys += found
        self.property_values += found.values()

    def note_property_keys(self, keys: Sequence[bytes]) -> None:
        """A message has these and no others, each shorter than 124 bytes; the next ones may, too.

        Now and then only: where each message has others it would be of no use.
        """
        if self._new_layouts % 16 == 0:
            self.property_layout = [
                (b"\x0a%c%b\x12" % (len(key), key), key, len(key) + 5) for key in keys
            ]
        self._new_layouts += 1

    def add_single(self, metadata: pb.MessageMetadata, payload: bytes) -> None:
        """A message that is an entry of its own."""
        value = None if metadata.null_value else payload
        self.add_indexes(-1, 0)
        if not self.wants.fields:
            if self.wants.value:
                self.values.append(value)
            return
        if self.wants.properties and metadata.properties:
            self.add_properties(metadata.properties)
        self.messages.append(
            (
                value,
                key_of(metadata),
                metadata.event_time,
                metadata.sequence_id,
                metadata.ordering_key if metadata.HasField("ordering_key") else None,
                len(self.property_keys),
            )
        )

    def undo_properties(self) -> None:
        """Forget those of the message that would have been added next."""
        end = self.messages[-1][5] if self.messages else 0  # keys may be fewer than values
        del self.property_keys[end:], self.property_values[end:]

    def end_entry(self, facts: EntryFacts, byte_count: int) -> None:
        """All rows since the last call are of this entry; ``byte_count``: about what they take."""
        self.byte_count += byte_count
        if self.count != (self._run_ends[-1] if self._run_ends else 0):
            self._runs.append(facts)
            self._run_ends.append(self.count)

    def take(self) -> pa.RecordBatch:
        """All rows; there are none afterwards."""
        arrays = [self._arrays[name]() for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
        return batch

    def _value_array(self) -> pa.Array:
        if self.wants.fields:
            return pa.array([each[0] for each in self.messages], pa.binary())
        return pa.array(self.values, pa.binary())

    def _of_entries(self, field: int, name: str) -> pa.Array:
        values: list[Any] = [run[field] for run in self._runs]
        kind = ARROW_TYPES[name]
        array = _timestamps(values) if kind == _TIMESTAMP else pa.array(values, kind)
        if len(values) == self.count:
            return array
        ends = pa.array(self._run_ends, pa.int32())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, array))

    def _property_array(self) -> pa.Array:
        try:
            keys = pa.array(self.property_keys, pa.string())
            values = pa.array(self.property_values, pa.string())
        except pa.ArrowInvalid:  # not UTF-8
            return self._repaired_property_array()
        offsets = pa.array([0, *(each[5] for each in self.messages)], pa.int32())
        return pa.MapArray.from_arrays(offsets, keys, values)

    def _repaired_property_array(self) -> pa.Array:
        """The same where some text isn't UTF-8; two keys may be equal afterwards."""
        maps: list[list[tuple[str, str]]] = []
        start = 0
        for *_, end in self.messages:
            keys = map(readable, self.property_keys[start:end])
            values = map(readable, self.property_values[start:end])
            maps.append(list(dict(zip(keys, values, strict=True)).items()))
            start = end
        return pa.array(maps, ARROW_TYPES["properties"])


def key_of(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> bytes | None:
    """The partition key's bytes; None: there is none."""
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    key = encoded(metadata.partition_key)
    return decode_key(key) if metadata.partition_key_b64_encoded else key


def decode_key(key: bytes) -> bytes:
    """The bytes a base64 key stands for; itself where it isn't base64 after all."""
    try:
        return base64.b64decode(key + b"=" * (-len(key) % 4), validate=True)
    except binascii.Error:
        return key


def encoded(text: str | bytes) -> bytes:
    """A text field's bytes: protobuf hands out ``bytes`` where they aren't UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def _timestamps(times_ms: list[int]) -> pa.Array:
    """0 becomes null."""
    if not any(times_ms):
        return pa.nulls(len(times_ms), _TIMESTAMP)
    return pa.array([min(ms, _MS_MAX) * 1000 if ms else None for ms in times_ms], _TIMESTAMP)


def _signed(numbers: list[int]) -> pa.Array:
    """uint64 of the wire as Java shows it."""
    if max(numbers, default=0) > _I64_MAX:
        numbers = [(number + 2**63) % 2**64 - 2**63 for number in numbers]
    return pa.array(numbers, pa.int64())
