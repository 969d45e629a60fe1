"""Which partition a row goes to. Pure; the same row goes to the same partition in every attempt.

Hashes are those of Pulsar's Java client, so that a key that other clients produce under is in the
same partition: JavaStringHash, its default, and Murmur3_32Hash.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import mmh3

from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.pipeline.errors import WriteError

Hash = Callable[[str], int]
_POSITIVE: Final = 0x7FFF_FFFF


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
