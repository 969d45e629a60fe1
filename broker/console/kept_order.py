"""The order of rows as somebody first saw them, kept while their figures change. Pure.

The page has it as a text, which its script sends back whenever it fetches the page's middle. So no
broker remembers who looks at what, and any of them may answer.
"""

import binascii
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import orjson

from magnetar.broker.console.views import row_id

T = TypeVar("T")
Name = tuple[str, ...]
"""Of a row: a topic, or a topic and a subscription."""

_TEXT_MAX: Final = 2_000
"""Servers take a request's head of 8 KiB, and cookies are a part of it."""
_NAMES_MAX: Final = 65_536
"""Bytes that the text may become."""
_ROWS_MAX: Final = 200
_NAMES, _IDS = "n", "i"
_ID_BYTES: Final = 8
_NAMES_AT_ONCE: Final = 4_000
"""Characters of a call's names, so that its address is no longer than servers take."""


@dataclass(frozen=True, slots=True)
class KeptOrder:
    """Of the rows of a page."""

    text: str
    """Of the page."""
    ids: Sequence[str]
    """Of the rows, see ``row_id``."""
    names: Sequence[Name] = ()
    """Of the same rows; empty: they were too long."""

    @classmethod
    def of(cls, names: Sequence[Name]) -> Self:
        ids = [row_id(*each) for each in names]
        text = _NAMES + _encoded(zlib.compress(orjson.dumps(names)))
        if len(text) <= _TEXT_MAX:
            return cls(text, ids, names)
        return cls(_IDS + _encoded(bytes.fromhex("".join(each[1:] for each in ids))), ids)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None: it is no such text."""
        try:
            content = urlsafe_b64decode(text[1:])
            if text[:1] == _IDS:
                firsts = range(0, len(content), _ID_BYTES)
                return cls(text, [f"r{content[at : at + _ID_BYTES].hex()}" for at in firsts])
            if text[:1] != _NAMES:
                return None
            found = orjson.loads(zlib.decompressobj().decompress(content, _NAMES_MAX))
            names = [(str(topic), *map(str, more)) for topic, *more in found[:_ROWS_MAX]]
        except (binascii.Error, zlib.error, LookupError, ValueError, TypeError):
            return None
        return cls(text, [row_id(*each) for each in names], names)

    def arranged(self, rows: Mapping[str, T]) -> list[T]:
        """Those that are there still.

        Args:
            rows: by their ids.
        """
        return [rows[each] for each in self.ids if each in rows]

    def missing(self, ids: Collection[str]) -> Iterator[str]:
        """Names of the other rows, some at a time, as the parameter ``only`` of an index."""
        names = [
            each[0] if len(each) == 1 else each
            for row, each in zip(self.ids, self.names, strict=False)
            if row not in ids
        ]
        return name_lists(names)


def name_lists(names: Iterable[str | Name]) -> Iterator[str]:
    """As a parameter that is a JSON array, some at a time."""
    some, size = list[str](), 0
    for each in names:
        text = orjson.dumps(each).decode()
        size += len(quote(text)) + len("%2C")
        if some and size > _NAMES_AT_ONCE:
            yield f"[{','.join(some)}]"
            some, size = [], len(quote(text))
        some.append(text)
    if some:
        yield f"[{','.join(some)}]"


def name_of(row: Mapping[str, Any]) -> Name:
    """Of a row of an index."""
    names: Iterable[str] = (row[key] for key in ("topic", "subscription") if key in row)
    return tuple(names)


def only_those(text: str) -> frozenset[Name]:
    """The names of ``missing``."""
    return frozenset(
        (each,) if isinstance(each, str) else tuple(each) for each in orjson.loads(text)
    )


def _encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).decode()
