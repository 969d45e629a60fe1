"""The schemas that REST calls name, with codecs for their values.

What a request says is checked before anything is opened or stored; the registry decides afterwards,
when the topic is known to exist.
"""

from __future__ import annotations

import binascii
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import orjson

from magnetar.broker.errors import InvalidSchemaError
from magnetar.broker.http.errors import ApiError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import (
    DEFINITION_BYTES_MAX,
    SCHEMA_TYPES,
    SchemaDefinition,
    StoredSchema,
    parse_version,
)
from magnetar.broker.schema.key_value import join_parts
from magnetar.broker.schema.values import KeyValueCodec, ValueCodec, codec_of, decode_message

if TYPE_CHECKING:
    from magnetar.broker.protocol.messages import Message

T = TypeVar("T")

Codec = ValueCodec | KeyValueCodec

_CODECS_MAX: Final = 256
_CODECS_BYTES_MAX: Final = 8 * 1024 * 1024
_LARGE: Final = 4_096
"""A definition that takes a thread's time to be parsed."""
_INLINE_BYTES_MAX: Final = 1_024
_INLINE_MESSAGES_MAX: Final = 2
"""So many are encoded or decoded on the loop: the codecs' budgets allow 15 ms for that. More takes
a thread, for which a call waits a tenth of a millisecond."""
_CALL_S: Final = 5.0
"""A thread's time for one call; messages that are left then aren't decoded or encoded."""
LATE: Final = "the values of this call took too long"
_NO_SCHEMA: Final = frozenset({"BYTES", "NONE"})


@dataclass(frozen=True, slots=True)
class ProduceSchema:
    """The schemas of one call's messages."""

    definition: SchemaDefinition | None
    """None: raw bytes, which is no schema."""
    codec: Codec | None
    """None: values are the texts as they are."""


STRING: Final = ProduceSchema(SchemaDefinition("STRING", b"", {"__charset": "UTF-8"}), None)
"""Calls without a schema publish this."""
RAW: Final = ProduceSchema(None, None)


@dataclass(frozen=True, slots=True)
class DecodedValue:
    """A message's value as JSON can hold it, or why it isn't shown."""

    type: str
    """Of its schema; empty: not known."""
    value: Any = None
    """An ``orjson.Fragment``: written to JSON already, where it can't fail others any more."""
    error: str = ""


class KnownSchemas(Protocol):
    """Schemas of topics, of this cluster (`SchemaRegistry`) or of another one; and threads."""

    async def get(self, name: TopicName, version: int) -> StoredSchema | None:
        """One version, None when there is none or it is deleted."""

    async def in_thread(self, work: Callable[[], T]) -> T:
        """For what takes a definition."""

    async def in_value_thread(self, work: Callable[[], T]) -> T:
        """For what takes messages."""


class ValueSchemas:
    """One per broker; keeps the codecs of recent definitions."""

    def __init__(self, known: KnownSchemas) -> None:
        self._known = known
        self._codecs: OrderedDict[tuple[Any, ...], Codec | None] = OrderedDict()
        self._bytes = 0

    async def in_value_thread(self, work: Callable[[], T]) -> T:
        """What depends on the size or the number of messages."""
        return await self._known.in_value_thread(work)

    async def work(
        self, payloads: Sequence[bytes], each: Callable[[int], T], late: Callable[[int], T]
    ) -> list[T]:
        """``each`` for the index of each payload, on the loop where that takes no time.

        Args:
            late: the result for a payload that the call's time doesn't reach.
        """

        def run() -> list[T]:
            end_s = time.monotonic() + _CALL_S
            return [
                each(index) if time.monotonic() < end_s else late(index)
                for index in range(len(payloads))
            ]

        if len(payloads) <= _INLINE_MESSAGES_MAX and sum(map(len, payloads)) <= _INLINE_BYTES_MAX:
            return run()
        return await self.in_value_thread(run)

    async def of_body(self, name: TopicName, body: dict[str, Any]) -> ProduceSchema:
        """The schema of a ProducerMessages object; nothing is stored.

        Raises:
            ApiError: 400 not a SchemaInfo, 404 no such version, 501 its values have no text form.
            InvalidSchemaError: not a definition of its type.
        """
        version = body.get("schemaVersion")
        key_text, value_text = body.get("keySchema"), body.get("valueSchema")
        if version is not None and version != -1:
            if isinstance(version, bool) or not isinstance(version, int):
                raise ApiError(400, f"schemaVersion must be a number, not {version!r:.40}")
            stored = await self._known.get(name, version)
            if stored is None:
                raise ApiError(404, f"Schema version {version} not found")
            return await self._of(stored.definition)
        if key_text:
            key = _schema_info(key_text, "keySchema")
            value = _schema_info(value_text, "valueSchema") if value_text else None
            return await self._of(_pair(key, value))
        if value_text is None:
            return STRING
        return await self._of(_schema_info(value_text, "valueSchema")[1])

    async def _of(self, definition: SchemaDefinition) -> ProduceSchema:
        if definition.type in _NO_SCHEMA:
            return RAW
        if definition.type == "STRING":
            return ProduceSchema(definition, None)
        if (codec := await self.codec(definition)) is None:
            raise ApiError(
                501, f"REST produce can't encode values of schema type {_told(definition)}"
            )
        return ProduceSchema(definition, codec)

    async def codec(self, definition: SchemaDefinition) -> Codec | None:
        """None: values of its type have no text form.

        Raises:
            InvalidSchemaError: not a definition of its type.
        """
        kinds = tuple(
            definition.properties.get(name)
            for name in ("key.schema.type", "value.schema.type", "kv.encoding.type")
        )
        key = (definition.type, definition.data, kinds)
        if key in self._codecs:
            self._codecs.move_to_end(key)
            return self._codecs[key]
        if len(definition.data) < _LARGE:
            codec = codec_of(definition)
        else:
            codec = await self._known.in_thread(lambda: codec_of(definition))
        if key not in self._codecs:  # another call may have been faster
            self._codecs[key] = codec
            self._bytes += len(definition.data)
        while len(self._codecs) > _CODECS_MAX or self._bytes > _CODECS_BYTES_MAX:
            dropped, _ = self._codecs.popitem(last=False)
            self._bytes -= len(dropped[1])
        return codec

    async def decode(
        self, name: TopicName, messages: Sequence[Message]
    ) -> list[DecodedValue | None]:
        """Values by the versions the messages carry; None: it carries none, or is encrypted."""
        codecs: dict[bytes, tuple[str, Codec | None]] = {}
        for stamp in {message.schema_version for message in messages} - {b""}:
            version = parse_version(stamp)
            stored = None if version is None else await self._known.get(name, version)
            if stored is None:
                codecs[stamp] = "", None
                continue
            try:
                codecs[stamp] = stored.definition.type, await self.codec(stored.definition)
            except InvalidSchemaError:  # stored under ALWAYS_COMPATIBLE, or by an older version
                codecs[stamp] = stored.definition.type, None

        places = [
            place
            for place, message in enumerate(messages)
            if message.schema_version and message.encryption is None
        ]
        chosen = [messages[place] for place in places]
        found = await self.work(
            [message.payload for message in chosen],
            lambda index: _decoded(chosen[index], *codecs[chosen[index].schema_version]),
            lambda index: DecodedValue(codecs[chosen[index].schema_version][0], error=LATE),
        )
        results: list[DecodedValue | None] = [None] * len(messages)
        for place, result in zip(places, found, strict=True):
            results[place] = result
        return results


def _decoded(message: Message, kind: str, codec: Codec | None) -> DecodedValue:
    if codec is None:
        unknown = "values of its schema aren't shown" if kind else "its schema isn't known"
        return DecodedValue(kind, error=unknown)
    try:
        value = decode_message(
            codec, message.key, message.payload, key_is_base64=message.key_is_base64
        )
        return DecodedValue(kind, orjson.Fragment(orjson.dumps(value)))
    except ValueError as error:  # ValueCodecError
        return DecodedValue(kind, error=str(error))
    except orjson.JSONEncodeError as error:  # a TypeError: JSON has no form for it
        return DecodedValue(kind, error=f"can't be shown: {error}")


def _told(definition: SchemaDefinition) -> str:
    if definition.type != "KEY_VALUE":
        return definition.type
    sides = (definition.properties.get(f"{side}.schema.type") for side in ("key", "value"))
    return f"KEY_VALUE of {' and '.join(str(side) for side in sides)}"


def _pair(
    key: tuple[str, SchemaDefinition], value: tuple[str, SchemaDefinition] | None
) -> SchemaDefinition:
    """Pulsar keeps such keys outside of the payload, and takes text for values without a schema."""
    if value is None:
        assert STRING.definition is not None
        value = ("String", STRING.definition)
    return join_parts(key[1], value[1], names=(key[0], value[0]))


def _schema_info(text: Any, field: str) -> tuple[str, SchemaDefinition]:
    """Name and definition of a SchemaInfo, which travels as text within the JSON.

    Raises:
        ApiError: 400 not a SchemaInfo; InvalidSchemaError: of no type that can be stored.
    """
    try:
        info = orjson.loads(text) if isinstance(text, str) else None
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        info = None
    if not isinstance(info, dict):
        raise ApiError(400, f"{field} must be the JSON text of a SchemaInfo")
    kind, properties = info.get("type"), info.get("properties") or {}
    if not isinstance(kind, str) or not isinstance(properties, dict):
        raise ApiError(400, f"{field} must have a type, and properties as an object")
    if not all(isinstance(each, str) for each in properties.values()):
        raise ApiError(400, f"The properties of {field} must be texts")
    if kind not in SCHEMA_TYPES | _NO_SCHEMA:
        raise InvalidSchemaError(f"Values of schema type {kind!r:.60} can't be produced")
    try:
        data = b64decode(info.get("schema") or "", validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidSchemaError(f"The schema of {field} must be base64: {error}") from error
    definition = SchemaDefinition(kind, data, properties)
    if definition.size_bytes > DEFINITION_BYTES_MAX:
        raise InvalidSchemaError(
            f"Schema of {definition.size_bytes} bytes; at most {DEFINITION_BYTES_MAX} are stored"
        )
    return str(info.get("name") or ""), definition
