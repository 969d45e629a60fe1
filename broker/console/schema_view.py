"""Versions of a topic's schema, and what differs from one to the next; pure."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

_LINES_MAX: Final = 2_000
"""Definitions with more are compared as a whole: finding the differences takes their product."""
_CONTEXT: Final = 3


@dataclass(frozen=True, slots=True)
class ShownSchema:
    number: int
    type: str
    timestamp: int
    """ms since 1970."""
    text: str
    """The definition, one line a field."""
    changes: tuple[tuple[str, str], ...]
    """Lines of the difference from the version before: ``+``, ``-`` or a space, and the text."""


def schema_versions(found: Sequence[Mapping[str, Any]]) -> list[ShownSchema]:
    """Of the route ``schemas``, which has the oldest first; the newest first."""
    versions: list[ShownSchema] = []
    before: str | None = None
    for each in found:
        text = _readable(str(each.get("data", "")))
        if properties := each.get("properties"):
            text += f"\nproperties {json.dumps(properties, indent=2, sort_keys=True)}"
        shown = f"{each.get('type', '')}\n{text}"
        changes = () if before is None else tuple(_changes(before, shown))
        number, when = int(each["version"]), int(each.get("timestamp", 0))
        versions.append(ShownSchema(number, str(each.get("type", "")), when, text, changes))
        before = shown
    return versions[::-1]


def _readable(text: str) -> str:
    try:
        # A tenth of the time of json's, whose 500 kB are a long turn.
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2).decode()
    except ValueError:
        return text


def _changes(before: str, after: str) -> list[tuple[str, str]]:
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _LINES_MAX:
        return [*(("-", line) for line in old), *(("+", line) for line in new)]
    lines = list(difflib.unified_diff(old, new, n=_CONTEXT, lineterm=""))[2:]  # without its head
    return [(line[0], line[1:]) for line in lines if line[0] != "@"]
