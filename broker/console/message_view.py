"""What a page shows of a search: rows of messages. Pure."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from magnetar.broker.console.highlight import Pieces, field_pieces, text_of, value_pieces
from magnetar.broker.http.messaging.message_filter import MISSING, MessageFilter, inside

BODY_MAX: Final = 512 << 10
"""Characters of an opened value."""
COLUMNS_MAX: Final = 8
"""That a visitor chooses."""
_HEX_ROW: Final = 16
_HEX_WIDTH: Final = 75
"""Characters of a row of it."""
_CELL: Final = 80
"""Characters of a value in a column of its own."""
_LINE: Final = 200
"""Characters of a value in a row."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
"""Of JSON."""
_TEXT: Final = 4_000
"""The same of what else is known of a message."""
ALL: Final = MessageFilter()
"""Finds every message, and nothing in it."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    id: str
    """``ledger:entry``, in a batch with its place there."""
    publish_ms: int
    key_pieces: Pieces
    value_pieces: Pieces
    """One line; empty: it isn't shown."""
    shown: Any
    """The value as the search has it."""
    size: int
    error: str
    is_masked: bool
    """A part of it is withheld."""
    withheld: str
    """Why no consumer gets it: ``open transaction``, ``aborted``; empty: they do."""
    is_cut: bool
    """Only the beginning of the value is known."""
    cells: Sequence[Pieces]
    """Of the columns that were chosen."""
    details: Sequence[tuple[str, str]]
    """Name and text of everything else."""

    @property
    def key(self) -> str:
        return text_of(self.key_pieces)

    @property
    def value(self) -> str:
        return text_of(self.value_pieces)

    @property
    def body(self) -> str:
        """The value, as one would read it."""
        if isinstance(self.shown, str):
            return self.shown if self.is_cut else indented(self.shown)
        return _beginning(self.shown, BODY_MAX + 1, indent=2)

    @property
    def raw(self) -> str:
        """The value as it was sent, if the search was told to show it so: a text, or base64."""
        try:
            return b64decode(self.shown).decode()
        except ValueError:
            return str(self.shown)

    @property
    def hex(self) -> str:
        """The same in hexadecimal digits, with the letters of ASCII beside them."""
        return hex_dump(b64decode(self.shown)[: BODY_MAX // _HEX_WIDTH * _HEX_ROW])


def indented(text: str) -> str:
    """JSON with a line for each member; another text as it is. Numbers stay as they were sent.

    Ends behind BODY_MAX: what is nested a thousand times deep is a thousand times as long.
    """
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    pieces: list[str] = []
    depth, before, length = 0, "", 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        is_end, is_first = token in ("}", "]"), before in ("{", "[")
        depth -= is_end
        if is_end != is_first or before == ",":  # else it is empty, or inside of a member
            pieces.append("\n" + "  " * depth)
            length += len(pieces[-1])
        pieces.append(": " if token == ":" else token)
        if (length := length + len(pieces[-1])) > BODY_MAX:
            break
        depth += token in ("{", "[")
        before = token
    return "".join(pieces)


def hex_dump(data: bytes) -> str:
    """Rows of an offset, sixteen bytes and what of them is ASCII."""
    rows = []
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        letters = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_ROW - 1}}  {letters}")
    return "\n".join(rows)


def columns_of(text: str) -> list[tuple[str, ...]]:
    """Of ``.status .card.brand``: paths into values that are JSON, of which each is a column."""
    words = text.replace(",", " ").split()
    paths = [tuple(word.removeprefix("value").strip(".").split(".")) for word in words]
    return [path for path in paths if all(path)][:COLUMNS_MAX]


def messages_view(
    found: Mapping[str, Any],
    columns: Sequence[tuple[str, ...]] = (),
    matches: MessageFilter = ALL,
) -> dict[str, Any]:
    """
    Args:
        matches: what was looked for, which is marked.
    """
    return {
        "rows": [_row(each, columns, matches) for each in found["messages"]],
        "next": found["next"],
        "previous": found.get("previous"),  # a broker of a version before may answer
        "entries": found["entriesRead"],
        "bytes": found["bytesRead"],
    }


def stored_id(message: Mapping[str, Any]) -> str:
    """``ledger:entry``, in a batch with its place there."""
    index = message.get("batchIndex")
    return str(message["messageId"]) + ("" if index is None else f":{index}")


def place_after(message_id: str) -> str:
    """In the log, of ``stored_id``."""
    ledger_id, entry_id, *index = message_id.split(":")
    return f"{ledger_id}:{entry_id}:{int(index[0] if index else 0) + 1}"


def _row(
    message: Mapping[str, Any], columns: Sequence[tuple[str, ...]], matches: MessageFilter
) -> MessageRow:
    shown = message.get("payload", "")
    line = shown[:_LINE] if isinstance(shown, str) else _beginning(shown, _LINE)[:_LINE]
    return MessageRow(
        id=stored_id(message),
        publish_ms=message.get("publishTime", 0),
        key_pieces=field_pieces(message.get("key", "")[:_LINE], ("key",), matches),
        value_pieces=value_pieces(line, matches),
        shown=shown,
        size=message["size"],
        error=message.get("error", "")[:_LINE],
        is_masked=message.get("isMasked", False),
        withheld=_WITHHELD.get(message.get("transactionState", ""), ""),
        is_cut=message.get("isCut", False),
        cells=_cells(shown, columns, matches),
        details=[(title, _text(message[name])) for name, title in _DETAILS if message.get(name)],
    )


def _beginning(value: Any, length: int, indent: int | None = None) -> str:
    """Of the JSON of a value: no more of it is written than is shown."""
    pieces: list[str] = []
    for piece in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        pieces.append(piece)
        if (length := length - len(piece)) <= 0:
            break
    return "".join(pieces)


def _cells(shown: Any, columns: Sequence[tuple[str, ...]], matches: MessageFilter) -> list[Pieces]:
    if columns and isinstance(shown, str):  # a text may be JSON
        try:
            shown = json.loads(shown)
        except (ValueError, RecursionError):
            shown = None
    texts = [_cell(inside(shown, path)) for path in columns]
    return [
        field_pieces(text, ("value", *path), matches)
        for text, path in zip(texts, columns, strict=True)
    ]


def _cell(value: Any) -> str:
    if value is MISSING:
        return "–"
    text = value if isinstance(value, str) else _beginning(value, _CELL + 1)
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


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
    ("decodeError", "Not decoded"),
    ("compression", "Compression"),
    ("entrySize", "Its entry as stored, bytes"),
    ("batchSize", "Messages of its batch"),
    ("chunkId", "Chunk"),
    ("chunkCount", "Chunks"),
    ("encryptionKeys", "Encrypted with"),
    ("transaction", "Transaction"),
    ("transactionState", "State of the transaction"),
)
_WITHHELD: Final[Mapping[str, str]] = MappingProxyType(
    {"OPEN": "open transaction", "ABORTED": "aborted"}
)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={each}" for name, each in value.items())
    else:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} ..."
