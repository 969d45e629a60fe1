"""What a page shows of a search: rows of messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_LINE: Final = 200
"""Characters of a value in a row."""
_TEXT: Final = 4_000
"""The same of what else is known of a message."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: str
    """``ledger:entry``, in a batch with its place there."""
    publish_ms: int
    key: str
    value: str
    """One line; empty: it isn't shown."""
    shown: Any
    """The value as the search has it."""
    size: int
    error: str
    is_masked: bool
    """A part of it is withheld."""
    details: Sequence[tuple[str, str]]
    """Name and text of everything else."""

    @property
    def body(self) -> str:
        """The whole value, as one would read it."""
        if isinstance(self.shown, str):
            return self.shown
        return json.dumps(self.shown, ensure_ascii=False, indent=2)


def messages_view(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rows": [_row(each) for each in found["messages"]],
        "next": found["next"],
        "entries": found["entriesRead"],
        "bytes": found["bytesRead"],
    }


def stored_id(message: Mapping[str, Any]) -> str:
    """``ledger:entry``, in a batch with its place there."""
    index = message.get("batchIndex")
    return str(message["messageId"]) + ("" if index is None else f":{index}")


def _row(message: Mapping[str, Any]) -> MessageRow:
    shown = message.get("payload", "")
    line = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return MessageRow(
        id=stored_id(message),
        publish_ms=message.get("publishTime", 0),
        key=message.get("key", "")[:_LINE],
        value=line[:_LINE],
        shown=shown,
        size=message["size"],
        error=message.get("error", "")[:_LINE],
        is_masked=message.get("isMasked", False),
        details=[(title, _text(message[name])) for name, title in _DETAILS if message.get(name)],
    )


_DETAILS: Final = (
    ("producerName", "Producer"),
    ("sequenceId", "Sequence id"),
    ("properties", "Properties"),
    ("eventTime", "Event time, ms"),
    ("deliverAtTime", "Deliver at, ms"),
    ("schemaType", "Schema"),
    ("schemaVersion", "Schema version"),
    ("encoding", "Shown as"),
    ("keyEncoding", "Key shown as"),
    ("isCut", "Only its beginning"),
    ("isMasked", "Values withheld"),
    ("decodeError", "Not decoded"),
    ("compression", "Compression"),
    ("batchSize", "Messages of its batch"),
    ("chunkId", "Chunk"),
    ("chunkCount", "Chunks"),
    ("encryptionKeys", "Encrypted with"),
)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={each}" for name, each in value.items())
    else:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ..."
