"""What a page shows of a search: rows of messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_LINE: Final = 200
"""Characters of a value in a row."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: str
    """``ledger:entry``, in a batch with its place there."""
    publish_ms: int
    key: str
    value: str
    """One line; empty: it isn't shown."""
    body: str
    """The whole of what is known, as one would read it."""
    size: int
    error: str
    details: Sequence[tuple[str, str]]
    """Name and text of everything else."""


def messages_view(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rows": [_row(each) for each in found["messages"]],
        "next": found["next"],
        "entries": found["entriesRead"],
        "bytes": found["bytesRead"],
    }


def _row(message: Mapping[str, Any]) -> MessageRow:
    shown = message.get("payload")
    if message.get("encoding") == "json":
        line = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        body = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, indent=2)
    else:
        line = body = shown or ""
    index = message.get("batchIndex")
    return MessageRow(
        id=message["messageId"] + ("" if index is None else f":{index}"),
        publish_ms=message.get("publishTime", 0),
        key=message.get("key", ""),
        value=line[:_LINE],
        body=body,
        size=message["size"],
        error=message.get("error", ""),
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
    ("decodeError", "Not decoded"),
    ("compression", "Compression"),
    ("batchSize", "Messages of its batch"),
    ("chunkId", "Chunk"),
    ("chunkCount", "Chunks"),
    ("encryptionKeys", "Encrypted with"),
)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
