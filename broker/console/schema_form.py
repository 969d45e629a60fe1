"""Fields of a form, made from the JSON schema of what it asks for; pure.

The schema says which fields there are, what they take and in which range: so do the forms of
policies and of steps.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.broker.console.formats import number

Json = Mapping[str, Any]

_TEXT_MAX: Final = 1_000
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?")
_FLAGS: Final = ("true", "false")


class ActionError(Exception):
    """What was typed isn't what the form needs."""

    def __init__(self, reason: str, field: str = "") -> None:
        """
        Args:
            field: name of the input that is wrong; empty: no single one is.
        """
        super().__init__(reason)
        self.field = field


@dataclass(frozen=True, slots=True)
class FormField:
    name: str
    """Of the input; each of several boxes has its choice behind a dot."""
    label: str
    value: str
    hint: str = ""
    example: str = ""
    """What could be typed."""
    choices: tuple[str, ...] = ()
    """What a list offers; an empty one means that the field isn't sent."""
    boxes: tuple[tuple[str, bool], ...] = ()
    """Choices of which several may be ticked, and whether they are."""

    def with_typed(self, typed: Mapping[str, str]) -> FormField:
        """As it was sent, right or wrong."""
        boxes = tuple((each, f"{self.name}.{each}" in typed) for each, _ in self.boxes)
        return replace(self, value=typed.get(self.name, "")[:_TEXT_MAX], boxes=boxes)


def fields_of(schema: Json, value: Any) -> tuple[FormField, ...]:
    """The fields of a form that holds a value.

    Args:
        value: of the schema; None: none yet.
    """
    if schema["type"] != "object":
        return (_field("value", "Value", schema, value, is_needed=True),)
    given = value if isinstance(value, Mapping) else {}
    return tuple(
        _field(f"value.{name}", name, each, given.get(name), is_needed=_is_needed(schema, name))
        for name, each in schema["properties"].items()
        if each["type"] != "object"
    )


def _is_needed(schema: Json, name: str) -> bool:
    return name in schema.get("required", ()) or "default" in schema["properties"][name]


def _field(name: str, label: str, schema: Json, value: Any, *, is_needed: bool) -> FormField:
    kind, label = schema["type"], schema.get("title", label)
    example = str(next(iter(schema.get("examples", ())), ""))
    if value is None:
        value = schema.get("default")
    if kind == "array":
        chosen = value if isinstance(value, list) else []
        if "enum" not in schema["items"]:
            text = ", ".join(map(str, chosen))
            return FormField(name, label, text, "separated by commas", example)
        boxes = tuple((each, each in chosen) for each in schema["items"]["enum"])
        return FormField(name, label, "", schema.get("description", ""), boxes=boxes)
    choices = _FLAGS if kind == "boolean" else tuple(schema.get("enum", ()))
    if choices and not (is_needed and value is not None):
        choices = ("", *choices)
    hint = schema.get("description") or ("" if is_needed else "may be empty")
    if kind == "integer" and not schema.get("description"):
        hint = f"{number(schema['minimum'])} to {number(schema['maximum'])}"
    return FormField(name, label, _typed(value), hint, example, choices)


def _typed(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def value_of(schema: Json, typed: Mapping[str, str], before: Any = None) -> Any:
    """What a form holds.

    Args:
        before: what its objects are taken from, which have no field.
    Raises:
        ActionError: which field has no such value.
    """
    if schema["type"] != "object":
        return _value("value", "Value", schema, typed, is_needed=True)
    found = {
        name: _value(f"value.{name}", name, each, typed, is_needed=_is_needed(schema, name))
        for name, each in schema["properties"].items()
        if each["type"] != "object"
    }
    kept = before.items() if isinstance(before, Mapping) else ()
    objects = {name: each for name, each in kept if isinstance(each, Mapping)}
    return objects | {name: each for name, each in found.items() if each is not None}


def _value(
    name: str, label: str, schema: Json, typed: Mapping[str, str], *, is_needed: bool
) -> Any:
    try:
        return _parsed(name, schema, typed, is_needed=is_needed)
    except ActionError as error:
        raise ActionError(f"{schema.get('title', label)}: {error}", name) from error


def _parsed(name: str, schema: Json, typed: Mapping[str, str], *, is_needed: bool) -> Any:
    """Raises ActionError, without the field's name."""
    kind = schema["type"]
    if kind == "array" and "enum" in schema["items"]:
        return [each for each in schema["items"]["enum"] if f"{name}.{each}" in typed]
    text = typed.get(name, "").strip()
    if len(text) > _TEXT_MAX or any(unicodedata.category(each) == "Cc" for each in text):
        raise ActionError(f"at most {_TEXT_MAX} characters, no control characters")
    if kind == "array":
        return [each.strip() for each in text.split(",") if each.strip()]
    if not text:
        if is_needed:
            raise ActionError("a value is needed")
        return None
    if kind == "integer":
        return _whole(text, schema["minimum"], schema["maximum"])
    if kind == "number":
        if not _DECIMAL.fullmatch(text):
            raise ActionError("a number is needed")
        return float(text)
    choices = _FLAGS if kind == "boolean" else schema.get("enum")
    if choices and text not in choices:
        raise ActionError(f"one of {', '.join(choices)} is needed")
    if not re.fullmatch(schema.get("pattern", "(?s:.*)"), text):
        raise ActionError(f"{schema['description']} is needed")
    return text == "true" if kind == "boolean" else text


def _whole(text: str, minimum: int, maximum: int) -> int:
    if _WHOLE.fullmatch(text) and minimum <= int(text) <= maximum:
        return int(text)
    span = f"{number(minimum)} to {number(maximum)}"
    raise ActionError(f"a whole number from {span} is needed")
