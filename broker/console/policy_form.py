"""Policies that can be edited, and their forms; pure.

A form is made from the row of ``broker/policies/table.py``: the JSON schema of its values says
which fields there are, what they take and in which range.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.broker.console.actions import ActionError
from magnetar.broker.console.formats import number
from magnetar.broker.policies.documents import QUOTA_SCHEMA, QUOTA_TYPES
from magnetar.broker.policies.table import POLICIES, Policy, PolicyRoute

Json = Mapping[str, Any]

_TEXT_MAX: Final = 1_000
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,19}(\.[0-9]{1,19})?")
_FLAGS: Final = ("true", "false")
_OLD_LIMIT: Final = "limit"
"""Of a quota: an older name of ``limitSize``, which would contradict it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditablePolicy:
    """A policy of a topic or of a namespace, as its routes take it."""

    key: str
    """As ``policies?applied=true`` calls it."""
    title: str
    schema: Json
    """JSON schema of its values."""
    path: str
    """Last segment of the route that sets it."""
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)
    """Of the calls that set and remove it."""
    in_query: bool = False
    """The value is a parameter of the path's name."""
    is_removable: bool = True
    of_namespace: str = ""
    """A topic's: the key of what its namespace sets; empty: nothing does."""


@functools.cache
def editable_policies(*, is_topic: bool) -> Mapping[str, EditablePolicy]:
    """By key."""
    found: dict[str, EditablePolicy] = {}
    for policy in POLICIES:
        at = policy.topic if is_topic else policy.namespace
        if at is not None and policy.inner is None and not at.bodiless:
            found[at.path] = _editable(policy, at, is_topic=is_topic)
    properties = {
        name: each for name, each in QUOTA_SCHEMA["properties"].items() if name != _OLD_LIMIT
    }
    for kind in QUOTA_TYPES:
        key = f"backlogQuota/{kind}"
        found[key] = EditablePolicy(
            key=key,
            title="what a subscription may be behind, and what happens then",
            schema={**QUOTA_SCHEMA, "properties": properties},
            path="backlogQuota",
            query={"backlogQuotaType": kind},
            of_namespace=key if is_topic else "",
        )
    return found


def _editable(policy: Policy, at: PolicyRoute, *, is_topic: bool) -> EditablePolicy:
    return EditablePolicy(
        key=at.path,
        title=policy.title,
        schema=policy.kind.schema,
        path=at.path,
        method=at.method,
        in_query=at.in_query,
        is_removable=at.removable,
        of_namespace=policy.namespace.path if is_topic and policy.namespace else "",
    )


@dataclass(frozen=True, slots=True)
class FormField:
    name: str
    """Of the input; each of several boxes has its choice behind a dot."""
    label: str
    value: str
    hint: str = ""
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
    kind = schema["type"]
    if value is None:
        value = schema.get("default")
    if kind == "array":
        chosen = value if isinstance(value, list) else []
        if "enum" not in schema["items"]:
            return FormField(name, label, ", ".join(map(str, chosen)), "separated by commas")
        boxes = tuple((each, each in chosen) for each in schema["items"]["enum"])
        return FormField(name, label, "", boxes=boxes)
    choices = _FLAGS if kind == "boolean" else tuple(schema.get("enum", ()))
    if choices and not (is_needed and value is not None):
        choices = ("", *choices)
    hint = ""
    if kind == "integer":
        hint = f"{number(schema['minimum'])} to {number(schema['maximum'])}"
    return FormField(name, label, _typed(value), hint, choices)


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
    kind = schema["type"]
    if kind == "array" and "enum" in schema["items"]:
        return [each for each in schema["items"]["enum"] if f"{name}.{each}" in typed]
    text = typed.get(name, "").strip()
    if len(text) > _TEXT_MAX or any(unicodedata.category(each) == "Cc" for each in text):
        raise ActionError(f"{label}: at most {_TEXT_MAX} characters, no control characters")
    if kind == "array":
        return [each.strip() for each in text.split(",") if each.strip()]
    if not text:
        if is_needed:
            raise ActionError(f"{label}: a value is needed")
        return None
    if kind == "integer":
        return _whole(label, text, schema["minimum"], schema["maximum"])
    if kind == "number":
        if not _DECIMAL.fullmatch(text):
            raise ActionError(f"{label}: a number is needed")
        return float(text)
    choices = _FLAGS if kind == "boolean" else schema.get("enum")
    if choices and text not in choices:
        raise ActionError(f"{label}: one of {', '.join(choices)} is needed")
    return text == "true" if kind == "boolean" else text


def _whole(label: str, text: str, minimum: int, maximum: int) -> int:
    if _WHOLE.fullmatch(text) and minimum <= int(text) <= maximum:
        return int(text)
    span = f"{number(minimum)} to {number(maximum)}"
    raise ActionError(f"{label}: a whole number from {span} is needed")


def policy_text(value: Any) -> str:
    """A value for a person: JSON, nothing as a dash."""
    return "–" if value is None else json.dumps(value, ensure_ascii=False)
