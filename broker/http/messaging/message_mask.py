"""Takes values of some fields out of messages before anybody searches or shows them. Pure.

A name stands for the fields of that name at any depth of a value, and for the property. What has
no fields that can be told apart isn't shown at all, as it may hold one: bytes, texts that are no
JSON, values whose schema isn't known. A value with a schema of one text or number is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from magnetar.broker.http.messaging.value_schemas import DecodedValue

if TYPE_CHECKING:
    from magnetar.broker.protocol.messages import Message

MASK: Final = "•••"
_NESTED_MAX: Final = 200
"""What is nested deeper is masked whole: it couldn't be written as JSON again."""


@dataclass(frozen=True, slots=True)
class MaskedMessage:
    message: Message
    """With its payload as it is stored, which isn't to be shown."""
    decoded: DecodedValue
    """To be shown in its place; it has no error."""
    is_masked: bool
    """Something was taken out."""


def names_of(text: str) -> frozenset[str]:
    """Of a list with commas."""
    return frozenset(name for each in text.split(",") if (name := each.strip()))


def masked(message: Message, decoded: DecodedValue | None, names: frozenset[str]) -> MaskedMessage:
    """
    Args:
        decoded: the value by its schema; None: it has none, or wasn't decoded.
    """
    key, properties = _key(message, names), _properties(message.properties, names)
    kind = "" if decoded is None else decoded.type
    value, is_masked = _value(message, decoded, names)
    is_masked = is_masked or key != message.key or properties != message.properties
    return MaskedMessage(
        replace(message, key=key, properties=properties), DecodedValue(kind, value), is_masked
    )


def _value(
    message: Message, decoded: DecodedValue | None, names: frozenset[str]
) -> tuple[Any, bool]:
    if decoded is not None and not decoded.error:
        value = _parsed(orjson.dumps(decoded.value))
        if isinstance(value, str) and isinstance(inner := _parsed(value), dict | list):
            value = inner  # a text that is JSON has fields
    elif message.schema_version or message.encryption is not None:
        return MASK, True
    elif not isinstance(value := _parsed(message.payload), dict | list):
        return MASK, bool(message.payload)  # bytes of Avro may look like a number
    try:
        shown = _without(value, names)
    except RecursionError:
        return MASK, True
    return shown, shown != value


def _key(message: Message, names: frozenset[str]) -> str | None:
    """Bytes may be the key of a schema, with fields of its own."""
    if message.key is None:
        return None
    if message.key_is_base64:
        return MASK
    value = _parsed(message.key)
    if not isinstance(value, dict | list):
        return message.key
    try:
        shown = _without(value, names)
    except RecursionError:
        return MASK
    return message.key if shown == value else orjson.dumps(shown).decode()


def _properties(properties: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: MASK if name in names else text for name, text in properties.items()}


def _without(value: Any, names: frozenset[str], deeper: int = _NESTED_MAX) -> Any:
    """Raises RecursionError."""
    if not isinstance(value, dict | list):
        return value
    if not deeper:
        raise RecursionError
    if isinstance(value, list):
        return [_without(each, names, deeper - 1) for each in value]
    return {
        name: MASK if name in names else _without(each, names, deeper - 1)
        for name, each in value.items()
    }


def _parsed(text: str | bytes) -> Any:
    """None: it is no JSON."""
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None
