"""All versions of one topic's schema, and the node they are stored in. Pure.

One node holds the whole history, so a compare-and-set decides which broker adds a version, and
readers never see half of it. Small histories are plain JSON (operators can read them); larger ones
are compressed: versions of one schema repeat each other, so a hundred take little more than one.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import cramjam
import orjson

from magnetar.broker.errors import BrokerMetadataError, IncompatibleSchemaError
from magnetar.broker.schema.definition import SchemaDefinition, StoredSchema
from magnetar.metadata.store import VALUE_BYTES_MAX

VERSIONS_MAX: Final = 2_000
HISTORY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of all definitions of one topic together, uncompressed: they are kept in memory while in use."""
_PLAIN_BYTES_MAX: Final = 64 * 1024
_COMPRESSED: Final = b"\x28\xb5\x2f\xfd"  # how every zstd frame begins; JSON begins with "{"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """Versions in ascending order; deletion markers are among them."""

    versions: tuple[StoredSchema, ...] = ()

    @property
    def live(self) -> tuple[StoredSchema, ...]:
        """Versions since the last deletion, oldest first."""
        for index in range(len(self.versions) - 1, -1, -1):
            if self.versions[index].deleted:
                return self.versions[index + 1 :]
        return self.versions

    @property
    def last_version(self) -> int:
        """The highest version ever given, -1 when there is none."""
        return self.versions[-1].version if self.versions else -1

    def latest(self) -> StoredSchema | None:
        live = self.live
        return live[-1] if live else None

    def get(self, version: int) -> StoredSchema | None:
        return next((each for each in self.live if each.version == version), None)

    def find_exact(self, definition: SchemaDefinition) -> int | None:
        """The version with exactly these bytes; the cheap half of ``same_definition``."""
        return next((each.version for each in self.live if each.definition == definition), None)

    def appended(self, definition: SchemaDefinition, now_ms: int) -> "SchemaHistory":
        new = StoredSchema(self.last_version + 1, now_ms, definition)
        return SchemaHistory((*self.versions, new))

    def marked_deleted(self, now_ms: int) -> "SchemaHistory":
        """The history with a deletion marker; what the marker hides needn't be kept."""
        marker = StoredSchema(self.last_version + 1, now_ms, SchemaDefinition("NONE", b""), True)
        return SchemaHistory((marker,))

    # --- the node

    def encode(self) -> bytes:
        """The node's value.

        Raises:
            IncompatibleSchemaError: too many versions, or too large for one node; the error that
                no client repeats.
        """
        size = sum(each.definition.size_bytes for each in self.versions)
        if len(self.versions) > VERSIONS_MAX or size > HISTORY_BYTES_MAX:
            raise IncompatibleSchemaError(
                f"Too many schema versions: {len(self.versions)} of {size} bytes; at most "
                f"{VERSIONS_MAX} of {HISTORY_BYTES_MAX} bytes are kept, delete the schema first"
            )
        document = {"format": _FORMAT, "versions": [_document(each) for each in self.versions]}
        value = orjson.dumps(document)
        if len(value) > _PLAIN_BYTES_MAX:
            value = bytes(cramjam.zstd.compress(value))
        if len(value) > VALUE_BYTES_MAX:
            raise IncompatibleSchemaError(
                f"The schema's versions take {len(value)} bytes, more than the {VALUE_BYTES_MAX} "
                "of a metadata node; delete the schema first"
            )
        return value

    @staticmethod
    def decode(path: str, value: bytes) -> "SchemaHistory":
        """Raises BrokerMetadataError: damaged, or written by a newer version of this program."""
        if not value:  # a parent that was created on the way to its child
            return SchemaHistory()
        try:
            plain = bytes(cramjam.zstd.decompress(value)) if value[:4] == _COMPRESSED else value
            document = orjson.loads(plain)
            if document["format"] != _FORMAT:
                raise BrokerMetadataError(f"{path}: schema format {document['format']} is unknown")
            return SchemaHistory(tuple(_stored(each) for each in document["versions"]))
        except (ValueError, TypeError, KeyError, cramjam.DecompressionError) as error:
            raise BrokerMetadataError(f"{path} holds no schema history: {error}") from error


def is_large(value: bytes) -> bool:
    """Whether a node's value takes time to decode and room in memory."""
    return len(value) > _PLAIN_BYTES_MAX or value[:4] == _COMPRESSED


def _document(stored: StoredSchema) -> dict[str, Any]:
    definition = stored.definition
    document: dict[str, Any] = {
        "version": stored.version,
        "timestamp": stored.timestamp_ms,
        "type": definition.type,
        "properties": dict(definition.properties),
    }
    if stored.deleted:
        document["deleted"] = True
    try:  # as text where it is text: readable, and repetitions stay visible to the compressor
        document["text"] = definition.data.decode()
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(definition.data).decode()
    return document


def _stored(document: Mapping[str, Any]) -> StoredSchema:
    if (text := document.get("text")) is not None:
        data = str(text).encode()
    else:
        data = base64.b64decode(document["base64"], validate=True)
    return StoredSchema(
        document["version"],
        document["timestamp"],
        SchemaDefinition(document["type"], data, document["properties"]),
        document.get("deleted", False),
    )
