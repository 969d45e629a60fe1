"""Events in system topics of Apache Pulsar's brokers: Avro records by key. Pure."""

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import fastavro
import orjson

from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.protocol import pulsar_api_pb2 as wire
from magnetar.broker.protocol.messages import (
    OutgoingMessage,
    UndecodableEntryError,
    encode_single,
    messages_of,
    open_entry,
)
from magnetar.broker.schema.definition import version_bytes

_PRODUCER: Final = "magnetar-migrate"
_PAYLOAD_BYTES_MAX: Final = 64 << 20
_BROKER_METADATA: Final = b"\x0e\x02"
_PREFIX_BYTES: Final = 6


def records_of(
    entries: Iterable[bytes], schemas: Mapping[int, bytes], where: str
) -> Iterator[tuple[str, Any]]:
    """Keys and records, oldest first; a record of None deletes its key.

    Args:
        schemas: Avro definitions of the system topic by their version.

    Raises:
        PulsarFormatError: one can't be read.
    """
    for entry in entries:
        metadata, payload = opened(entry, where)
        version = int.from_bytes(metadata.schema_version or b"\0")
        try:
            for message in messages_of(metadata, payload, _PAYLOAD_BYTES_MAX):
                record = None
                if message.payload:
                    schema = fastavro.parse_schema(orjson.loads(schemas[version]))
                    record = fastavro.schemaless_reader(io.BytesIO(message.payload), schema, None)
                yield message.key or "", record
        except (UndecodableEntryError, KeyError, ValueError, EOFError, IndexError) as error:
            raise PulsarFormatError(f"{where}: not an event: {error!r}") from error


def event_entry(
    key: str,
    record: Mapping[str, Any] | None,
    schema: tuple[bytes, int],
    sequence_id: int,
    now_ms: int,
    replicate_to: tuple[str, ...] = (),
) -> bytes:
    """The entry of an event, as a broker of Pulsar would have written it.

    Args:
        record: None: the key is deleted.
        schema: an Avro definition of the system topic, with its version.
        replicate_to: clusters.

    Raises:
        PulsarFormatError: a value isn't of the kind that the definition takes.
    """
    definition, version = schema
    target = io.BytesIO()
    if record is not None:
        try:
            fastavro.schemaless_writer(
                target, fastavro.parse_schema(orjson.loads(definition)), record
            )
        except (ValueError, TypeError, KeyError) as error:
            raise PulsarFormatError(f"{key}: {error}") from error
    message = OutgoingMessage(
        target.getvalue(),
        sequence_id,
        key,
        schema_version=version_bytes(version),
        replicate_to=replicate_to,
        is_tombstone=record is None,
    )
    return bytes(encode_single(_PRODUCER, message, now_ms)[1])


def opened(entry: bytes, where: str) -> tuple[wire.MessageMetadata, memoryview]:
    """Metadata and payload of an entry of a topic.

    Raises:
        PulsarFormatError: it isn't one.
    """
    try:
        return open_entry(without_broker_metadata(entry))
    except UndecodableEntryError as error:
        raise PulsarFormatError(f"{where}: {error}") from error


def without_broker_metadata(entry: bytes) -> bytes:
    """An entry as its producer sent it."""
    if entry[:2] != _BROKER_METADATA:
        return entry
    return entry[_PREFIX_BYTES + int.from_bytes(entry[2:_PREFIX_BYTES]) :]
