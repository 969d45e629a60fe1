"""Tables of numbers in few bytes: less the number before, column of bytes by column, compressed.

Numbers that ascend have small differences; of these all bytes but the lowest are mostly zero, and
the lowest ones have few values. So Huffman's code, which Zstandard makes of what has no repeated
strings, comes to within a few percent of what any code needs, ten times as fast as deflate.

Sums and differences of a whole table are a few operations on one long number, as a loop over a
million numbers takes ten times as long. Little-endian throughout.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final

import cramjam

_SIZE: Final = struct.Struct(">I")
_LEVEL: Final = 1
_PLANES_MIN: Final = 1024  # bytes
_PLANES_SHIFT: Final = 28  # of a size: above it the number of planes, 0 to 8
_SIZE_MASK: Final = (1 << _PLANES_SHIFT) - 1
_BIT_OF: Final = [bytes(value >> bit & 1 for value in range(256)) for bit in range(8)]


def differences(number: int, size: int, width: int) -> bytes:
    """Of numbers of ``width`` bytes that make up a long one of ``size`` bytes: each less the one
    before it. Where that is negative, it borrows from the next.
    """
    bits, step = 8 * size, 8 * width
    found = number - (number << step) + (number >> bits - step << bits)
    if found < 0:
        found += 1 << bits
    return found.to_bytes(size, "little")


def sums(rows: bytes, width: int) -> bytes:
    """The reverse of `differences`; of any bytes."""
    bits, step = 8 * len(rows), 8 * width
    number = int.from_bytes(rows, "little")
    while step < bits:
        number += number << step
        step *= 2
    return (number & (1 << bits) - 1).to_bytes(len(rows), "little")


def columns_of(rows: bytes, width: int) -> list[bytes]:
    """The lowest bytes of all numbers, then the next ones, and so on."""
    return [rows[column::width] for column in range(width)]


def rows_of(data: bytes, width: int) -> bytes:
    """The reverse of `columns_of`, of the joined columns."""
    count = len(data) // width
    rows = bytearray(len(data))
    for column in range(width):
        rows[column::width] = data[column * count : (column + 1) * count]
    return bytes(rows)


def compressed(data: bytes) -> bytes:
    """A size and a Zstandard frame; nothing but the size 0 when all is zero.

    Huffman's code takes a bit for each byte at least. Where most are zero that is too much: there
    the lowest bits of all come first, eight of them a byte, then the next ones, and so on.
    """
    others = data.translate(None, b"\0")
    if not others:
        return _SIZE.pack(0)
    frame = bytes(cramjam.zstd.compress(data, _LEVEL))
    count = 0
    if len(data) >= _PLANES_MIN and 3 * len(others) <= len(data):
        planes = max(others).bit_length()
        bits = b"".join([_bits(data.translate(_BIT_OF[bit])) for bit in range(planes)])
        smaller = bytes(cramjam.zstd.compress(bits, _LEVEL))
        if len(smaller) < len(frame):
            frame, count = smaller, planes
    return _SIZE.pack(count << _PLANES_SHIFT | len(frame)) + frame


def _bits(flags: bytes) -> bytes:
    """Bytes that are 0 or 1, eight of them in one; the first in the lowest bit."""
    size = len(flags) + 7 >> 3
    number = 0
    for bit in range(8):
        number |= int.from_bytes(flags[bit::8], "little") << bit
    return number.to_bytes(size, "little")


def _bytes_of(planes: bytes, size: int) -> bytes:
    """The reverse of `_bits`, of one plane after the other."""
    plane_size = size + 7 >> 3
    ones = int.from_bytes(b"\1" * plane_size, "little")
    found = bytearray(8 * plane_size)
    words = [
        int.from_bytes(planes[start : start + plane_size], "little")
        for start in range(0, len(planes), plane_size)
    ]
    for bit in range(8):
        number = 0
        for plane, word in enumerate(words):
            number |= (word >> bit & ones) << plane
        found[bit::8] = number.to_bytes(plane_size, "little")
    return bytes(found[:size])


class Expander:
    """Reads what `compressed` made, one after the other.

    Args:
        body: from ``offset`` on.
    """

    __slots__ = ("_body", "_offset")

    def __init__(self, body: bytes, offset: int) -> None:
        self._body, self._offset = body, offset

    def next(self, size: int) -> bytes:
        """
        Args:
            size: what it must come to; not more is expanded, whatever it claims to be.

        Raises:
            ValueError, struct.error: it doesn't, or isn't what `compressed` makes.
        """
        (stored,) = _SIZE.unpack_from(self._body, self._offset)
        if stored == 0:
            self._offset += _SIZE.size
            return bytes(size)
        planes = stored >> _PLANES_SHIFT
        if planes > 8:
            raise ValueError(f"{planes} planes of bits")
        if planes:
            return _bytes_of(self._frame(stored & _SIZE_MASK, planes * (size + 7 >> 3)), size)
        return self._frame(stored, size)

    def _frame(self, stored: int, size: int) -> bytes:
        start = self._offset + _SIZE.size
        self._offset = start + stored
        if self._offset > len(self._body):
            raise ValueError(f"{stored} bytes announced, {len(self._body) - start} left")
        found = bytearray(size)
        try:
            count = cramjam.zstd.decompress_into(self._body[start : self._offset], found)
        except cramjam.DecompressionError as error:
            raise ValueError(f"{size} bytes announced: {error}") from error
        if count != size:
            raise ValueError(f"{size} bytes announced, {count} found")
        return bytes(found)

    def end(self) -> None:
        """
        Raises:
            ValueError: something is left.
        """
        if self._offset != len(self._body):
            raise ValueError(f"{len(self._body) - self._offset} bytes after the last column")


def to_little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def from_little(code: str, data: bytes) -> array[int]:
    numbers = array(code, data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
