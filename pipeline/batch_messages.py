"""The messages of one batch, one after the other: the loop that most messages go through. Pure.

A batch is ``[u32 size][SingleMessageMetadata][payload]`` as often as its metadata says. protobuf's
own parser takes a microsecond and a half for the fields of a message, which is more than all the
rest, so the bytes are read here as clients write them: fields in ascending order, each once, with
lengths below 128. Anything else goes to the parser. Nothing that the parser takes is read in
another way for it: each step reads a field as the parser would, and the last one must end exactly
where the metadata ends.
"""

from struct import Struct
from struct import error as StructError
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.pipeline.rows import Rows, decode_key, key_of

_U32: Final = Struct(">I")
# The tags below are written as numbers, which is what the loops can afford (field * 8 + wire type):
# SingleMessageMetadata 0x0a properties, 0x12 partition key, 0x18 payload size, 0x28 event time,
# 0x30 "the key is base64", 0x3a ordering key, 0x40 sequence id; KeyValue 0x0a key, 0x12 value.


class BrokenBatchError(ValueError):
    """The bytes are not the messages they are said to be."""


class _UncommonError(Exception):
    """For protobuf's parser; never leaves this module."""


def walk_values(data: bytes, offset: int, first: int, last: int, rows: Rows) -> int:
    """Add messages ``first`` to ``last`` (not included) to ``rows``: nothing but values.

    Args:
        data: the payload of a batch, uncompressed.
        offset: of message ``first`` in it.
    Returns:
        Offset of message ``last``.
    Raises:
        BrokenBatchError: see the class.
    """
    unpack, add, wanted, run_from = _U32.unpack_from, rows.values.append, rows.wants.value, first
    for index in range(first, last):
        try:
            at = offset + 4
            end = at + unpack(data, offset)[0]
            while data[at] == 0x0A and data[at + 1] < 128:
                at += 2 + data[at + 1]
            if data[at] == 0x12 and data[at + 1] < 128:
                at += 2 + data[at + 1]
            if data[at] != 0x18:
                raise _UncommonError
            if (size := data[at + 1]) < 128:
                at += 2
            else:
                at, size = _read_varint(data, at)
            if data[at] != 0x40:
                at, *_ = _read_middle(data, at, None, 0)
            if data[at] != 0x40:
                raise _UncommonError
            at += 2
            while data[at - 1] > 127:
                at += 1
            if at != end:
                raise _UncommonError
            offset = end + size
            if wanted:
                add(data[end:offset])
        except (IndexError, StructError, _UncommonError):
            single, end = _parse(data, offset, index)
            offset = end + single.payload_size
            if single.compacted_out:
                rows.add_indexes(run_from, index)
                run_from = index + 1
            elif wanted:
                add(None if single.null_value else data[end:offset])
    return _end(data, offset, run_from, last, rows)


def walk_fields(
    data: bytes, offset: int, first: int, last: int, rows: Rows, outer: pb.MessageMetadata
) -> int:
    """As `walk_values`, with all that a message has of its own.

    Args:
        outer: the batch's metadata; its sequence id and event time are those of messages without.
    """
    unpack, add, run_from = _U32.unpack_from, rows.messages.append, first
    property_keys, outer_event = rows.property_keys, outer.event_time
    high, high_bits = b"", 0  # the last sequence id without its lowest seven bits
    for index in range(first, last):
        try:
            at = offset + 4
            end = at + unpack(data, offset)[0]
            key: bytes | None = None
            ordering_key: bytes | None = None
            event_time = outer_event
            if data[at] == 0x0A:
                at = _read_properties(data, at, rows)
            if data[at] == 0x12 and (size := data[at + 1]) < 128:
                key = data[at + 2 : (at := at + 2 + size)]
            if data[at] != 0x18:
                raise _UncommonError
            if (size := data[at + 1]) < 128:
                at += 2
            else:
                at, size = _read_varint(data, at)
            if data[at] != 0x40:
                at, key, event_time, ordering_key = _read_middle(data, at, key, outer_event)
            if data[at] != 0x40:
                raise _UncommonError
            # Equal for 128 messages in a row; empty also where `end` was passed already.
            if (tail := data[at + 2 : end]) != high or not tail:
                high_bits = _high_bits(data, at, end)
                high = tail
            sequence_id = data[at + 1] + high_bits
            offset = end + size
            add((data[end:offset], key, event_time, sequence_id, ordering_key, len(property_keys)))
        except (IndexError, StructError, _UncommonError):
            rows.undo_properties()
            single, end = _parse(data, offset, index)
            offset = end + single.payload_size
            if single.compacted_out:
                rows.add_indexes(run_from, index)
                run_from = index + 1
            else:
                _add_parsed(single, data[end:offset], rows, outer)
    return _end(data, offset, run_from, last, rows)


def _read_properties(data: bytes, at: int, rows: Rows) -> int:
    """From ``at``, where one begins, up to the next other field."""
    if not rows.wants.properties:
        while data[at] == 0x0A and data[at + 1] < 128:
            at += 2 + data[at + 1]
        return at
    keys, values, startswith = rows.property_keys, rows.property_values, data.startswith
    begin, count = at, len(keys)
    for prefix, key, to_size in rows.property_layout:
        size = data[at + 1]
        middle = at + to_size
        if (
            data[at] != 0x0A
            or size > 127
            or data[middle] + to_size - 1 != size
            or not startswith(prefix, at + 2)
        ):
            break
        keys.append(key)
        at += 2 + size
        values.append(data[middle + 1 : at])
    else:
        if data[at] != 0x0A:
            return at
    del keys[count:], values[count:]
    return _read_new_properties(data, begin, rows)


def _read_new_properties(data: bytes, at: int, rows: Rows) -> int:
    """The same where the keys aren't those of the messages before."""
    keys: list[bytes] = []
    values = rows.property_values
    while data[at] == 0x0A:
        end = at + 2 + data[at + 1]
        middle = at + 4 + data[at + 3]  # where the value's tag is
        if (
            data[at + 1] > 127
            or data[at + 2] != 0x0A
            or data[middle] != 0x12
            or middle + 2 + data[middle + 1] != end
        ):
            raise _UncommonError
        keys.append(data[at + 4 : middle])
        values.append(data[middle + 2 : end])
        at = end
    if len(set(keys)) < len(keys):
        raise _UncommonError
    rows.property_keys += keys
    rows.note_property_keys(keys)
    return at


def _read_middle(
    data: bytes, at: int, key: bytes | None, event_time: int
) -> tuple[int, bytes | None, int, bytes | None]:
    """The fields between payload size and sequence id; few messages have one."""
    ordering_key: bytes | None = None
    if data[at] == 0x28:
        at, event_time = _read_varint(data, at)
    if data[at] == 0x30 and (flag := data[at + 1]) < 2:
        at += 2
        if flag and key is not None:
            key = decode_key(key)
    if data[at] == 0x3A and (size := data[at + 1]) < 128:
        ordering_key = data[at + 2 : (at := at + 2 + size)]
    return at, key, event_time, ordering_key


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Of the field at ``at``: where the next one is, and the number. Not of more than 49 bits."""
    number = data[at + 1]
    at += 2
    shift = 7
    while number >> shift:  # the last byte's high bit: there is one more, which takes it back
        number += (data[at] - 1) << shift
        at += 1
        shift += 7
    if shift > 49:
        raise _UncommonError
    return at, number


def _high_bits(data: bytes, at: int, end: int) -> int:
    """The bits above the first byte of the field at ``at``, which ends at ``end``."""
    stop, number = _read_varint(data, at)
    if stop != end:
        raise _UncommonError
    return number - data[at + 1]


def _parse(data: bytes, offset: int, index: int) -> tuple[pb.SingleMessageMetadata, int]:
    """Metadata of the message at ``offset``, and the offset of its payload."""
    if offset + 4 > len(data):
        raise BrokenBatchError(f"batch ends before message {index}")
    end = offset + 4 + _U32.unpack_from(data, offset)[0]
    if end > len(data):
        raise BrokenBatchError(f"metadata of message {index} leaves its batch")
    try:
        single = pb.SingleMessageMetadata.FromString(data[offset + 4 : end])
    except DecodeError as error:
        raise BrokenBatchError(f"metadata of message {index}: {error}") from error
    if single.payload_size < 0 or end + single.payload_size > len(data):
        raise BrokenBatchError(f"payload of message {index} leaves its batch")
    return single, end


def _add_parsed(
    single: pb.SingleMessageMetadata, payload: bytes, rows: Rows, outer: pb.MessageMetadata
) -> None:
    has = single.HasField
    if rows.wants.properties:
        rows.add_properties(single.properties)
    rows.messages.append(
        (
            None if single.null_value else payload,
            key_of(single),
            single.event_time if has("event_time") else outer.event_time,
            single.sequence_id if has("sequence_id") else outer.sequence_id,
            single.ordering_key if has("ordering_key") else None,
            len(rows.property_keys),
        )
    )


def _end(data: bytes, offset: int, run_from: int, last: int, rows: Rows) -> int:
    if offset > len(data):
        raise BrokenBatchError(f"payload of message {last - 1} leaves its batch")
    rows.add_indexes(run_from, last)
    return offset
