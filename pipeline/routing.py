"""Which partition a row goes to. Pure; the same row goes to the same partition in every attempt.

Hashes are those of Pulsar's Java client, so that a key that other clients produce under is in the
same partition: JavaStringHash, its default, and Murmur3_32Hash.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import mmh3

from magnetar.pipeline.errors import WriteError

Hash = Callable[[str], int]
_POSITIVE: Final = 0x7FFF_FFFF


def java_string_hash(text: str) -> int:
    """``String.hashCode`` without its sign: 31 * hash + unit over the UTF-16 units."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = value * 31 + unit & 0xFFFF_FFFF
    else:
        units = text.encode("utf-16-le", "surrogatepass")
        for low, high in zip(units[::2], units[1::2], strict=True):
            value = value * 31 + (high << 8 | low) & 0xFFFF_FFFF
    return value & _POSITIVE


def murmur3_32_hash(text: str) -> int:
    """MurmurHash3 of the UTF-8 bytes with seed 0, without its sign."""
    return mmh3.hash(text, 0, signed=False) & _POSITIVE


HASHES: Final[dict[str, Hash]] = {
    # Keys come again and again, and a hash by hand costs 50 ns a character.
    "JavaStringHash": lru_cache(maxsize=16_384)(java_string_hash),
    "Murmur3_32Hash": murmur3_32_hash,
}
"""By the value of the option ``hashingScheme``."""


def choose_partition(key: str | None, asked: int | None, row: int, count: int, hashed: Hash) -> int:
    """
    Args:
        key: None or "": none.
        asked: what the row says itself; None: nothing.
        row: tells rows without a key apart, which go to one partition after the other.
        count: partitions of the topic, above 0.
    Raises:
        WriteError: there is no such partition.
    """
    if asked is not None:
        if not 0 <= asked < count:
            raise WriteError(f"no partition {asked}, there are {count}")
        return asked
    if key:
        return hashed(key) % count
    return row % count
