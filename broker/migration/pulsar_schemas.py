"""Schemas as brokers of Apache Pulsar store them: a locator, and a ledger a version. Pure.

docs/formats/pulsar-metadata.md.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.migration.pulsar_forms import parse, properties_of
from magnetar.broker.schema.definition import SchemaDefinition, StoredSchema
from magnetar.broker.schema.history import SchemaHistory

_NOWHERE: Final = -1


def locator_index(value: bytes, where: str) -> list[pb.SchemaIndexEntry]:
    """The versions that a locator names, oldest first.

    Raises:
        PulsarFormatError: it isn't one.
    """
    index = parse(pb.SchemaLocator, value, where).index
    return sorted(index, key=lambda each: each.version)


def stored_schema(version: int, entry: bytes, where: str) -> StoredSchema:
    """A version, from the entry of its ledger.

    Raises:
        PulsarFormatError: it isn't a schema.
    """
    info = parse(pb.SchemaInfo, parse(pb.SchemaEntry, entry, where).schemaData, where)
    definition = SchemaDefinition(
        pb.SchemaInfo.Type.Name(info.type), info.schema, properties_of(info.properties)
    )
    return StoredSchema(version, info.timestamp, definition, info.deleted)


def schema_entry(
    schema_id: str, stored: StoredSchema, earlier: Sequence[pb.SchemaIndexEntry]
) -> bytes:
    """The entry of a version's ledger.

    Args:
        schema_id: ``tenant/namespace/topic``.
        earlier: the versions before it.

    Raises:
        PulsarFormatError: Pulsar has no such type.
    """
    definition = stored.definition
    if definition.type not in pb.SchemaInfo.Type.keys():  # noqa: SIM118
        raise PulsarFormatError(f"{schema_id}: no schema of Pulsar has the type {definition.type}")
    info = pb.SchemaInfo(
        schemaId=schema_id,
        user="",
        type=pb.SchemaInfo.Type.Value(definition.type),
        schema=definition.data,
        timestamp=stored.timestamp_ms,
        deleted=stored.deleted,
        properties=[pb.KeyValue(key=k, value=v) for k, v in definition.properties.items()],
    )
    nowhere = pb.NestedPosition(ledgerId=_NOWHERE, entryId=_NOWHERE)
    # Pulsar's first version names itself, at a place that isn't.
    index = earlier or [index_entry(stored, nowhere)]
    return pb.SchemaEntry(schemaData=info.SerializeToString(), index=index).SerializeToString()


def index_entry(stored: StoredSchema, position: pb.NestedPosition) -> pb.SchemaIndexEntry:
    """How a locator names a version."""
    digest = hashlib.sha256(stored.definition.data).digest()
    return pb.SchemaIndexEntry(version=stored.version, position=position, hash=digest)


def locator(index: Sequence[pb.SchemaIndexEntry]) -> bytes:
    """Value of a schema's node. REQUIRES: not empty, oldest first."""
    return pb.SchemaLocator(info=index[-1], index=index).SerializeToString()


def history_of(versions: Sequence[StoredSchema]) -> SchemaHistory:
    """All versions as we store them. REQUIRES: oldest first."""
    return SchemaHistory(tuple(versions))
