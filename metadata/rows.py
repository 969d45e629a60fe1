"""Rows of an embedded store: what one commit changes, its bytes, and the digest of all rows.

The digest of a state is the sum of the hashes of its rows, modulo 2**128: it doesn't depend on the
order and follows each commit at the cost of the rows that it changes. docs/formats/metadata-log.md
draws the bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import starmap
from struct import Struct

Row = tuple[str, bytes, int, int, int]
"""Path, value, version, created_ms, modified_ms."""

DIGEST_BYTES = 16
DIGEST_END = 1 << 8 * DIGEST_BYTES

_ROW = Struct(">IIqqq")  # bytes of path and value; version, created_ms, modified_ms
_TEXT = Struct(">I")
_NUMBER = Struct(">Iq")
_COUNTS = Struct(">III")


@dataclass(slots=True)
class CommitRows:
    """Holds the rows and counters that one commit writes.

    Attributes:
        replaced, old_counters: the values before the commit of ``puts``, ``deletes`` and
            ``counters``; only a store with a log needs them.
    """

    puts: Sequence[Row] = ()
    deletes: Sequence[str] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    replaced: Sequence[Row] = ()
    old_counters: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encodes the commit for the log: rows put, paths deleted, counters."""
        return b"".join(
            (
                _COUNTS.pack(len(self.puts), len(self.deletes), len(self.counters)),
                *map(encode_row, self.puts),
                *map(_encode_text, self.deletes),
                *starmap(_encode_counter, self.counters.items()),
            )
        )

    def digest_after(self, digest: int) -> int:
        """Digest of the state that this makes of the one with ``digest``."""
        added = digest_of_rows(self.puts) + digest_of_counters(self.counters)
        removed = digest_of_rows(self.replaced) + digest_of_counters(self.old_counters)
        return (digest + added - removed) % DIGEST_END


def encode_row(row: Row) -> bytes:
    path, value, *numbers = row
    name = path.encode()
    return _ROW.pack(len(name), len(value), *numbers) + name + value


def decode_change(data: bytes) -> CommitRows:
    """The inverse of ``CommitRows.encode``; ``data`` has fitted its CRC."""
    puts, deletes, counters = _COUNTS.unpack_from(data)
    reader = _Reader(data, _COUNTS.size)
    return CommitRows(
        [reader.row() for _ in range(puts)],
        [reader.text(*reader.unpack(_TEXT)) for _ in range(deletes)],
        dict(reader.counter() for _ in range(counters)),
    )


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        self._at += layout.size
        return layout.unpack_from(self._data, self._at - layout.size)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self, size: int) -> str:
        return self.take(size).decode()

    def row(self) -> Row:
        path_bytes, value_bytes, version, created_ms, modified_ms = self.unpack(_ROW)
        path = self.text(path_bytes)
        return path, self.take(value_bytes), version, created_ms, modified_ms

    def counter(self) -> tuple[str, int]:
        size, number = self.unpack(_NUMBER)
        return self.text(size), number


def digest_of_rows(rows: Iterable[Row]) -> int:
    """Not reduced."""
    return sum(_hash(b"n", encode_row(row)) for row in rows)


def digest_of_counters(counters: Mapping[str, int]) -> int:
    """Not reduced."""
    return sum(_hash(b"c", data) for data in starmap(_encode_counter, counters.items()))


class Digester:
    """Passes rows on and adds up their hashes: ``digest``."""

    def __init__(self) -> None:
        self.digest = 0

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.digest += _hash(b"n", encode_row(row))
            yield row


def _hash(kind: bytes, data: bytes) -> int:
    return int.from_bytes(sha256(kind + data).digest()[:DIGEST_BYTES], "big")


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return _TEXT.pack(len(data)) + data


def _encode_counter(parent: str, number: int) -> bytes:
    data = parent.encode()
    return _NUMBER.pack(len(data), number) + data
