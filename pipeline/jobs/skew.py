"""How evenly keys spread over consumers, partitions and hash ranges. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import mmh3

SLOTS: Final = 65_536
"""Key_Shared spreads the slots 1 to 65,535 over its consumers."""
_POSITIVE: Final = 0x7FFF_FFFF


def slot_of(key: bytes | bytearray) -> int:
    """Which slot a Key_Shared subscription sends a key to.

    Source: Pulsar ConsistentHashingStickyKeyConsumerSelector: slot 0 stands for "no hash".
    """
    return (mmh3.hash(bytes(key), 0, signed=False) & _POSITIVE) % (SLOTS - 1) + 1


def range_loads(slots: Iterable[tuple[int, int]], ranges: int) -> list[int]:
    """Sums over equal ranges of slots.

    Args:
        slots: slot and what it weighs.
        ranges: how many, 1 to `SLOTS`.
    """
    loads = [0] * ranges
    for slot, weight in slots:
        loads[slot * ranges // SLOTS] += weight
    return loads


@dataclass(frozen=True, slots=True)
class SkewStats:
    """How equal some loads are.

    Attributes:
        max_to_mean: 1: even; 4: one has four times the fair share.
    """

    count: int
    max_to_mean: float


def skew_stats(loads: Sequence[int]) -> SkewStats:
    total = sum(loads)
    return SkewStats(len(loads), max(loads) * len(loads) / total if total else 0.0)


def gini(keys_by_weight: Mapping[int, int]) -> float:
    """Gini coefficient: 0: all keys are equal, near 1: one key has everything.

    Args:
        keys_by_weight: weight -> how many keys weigh that much. There are few different weights
            even of many keys, so that no list of all keys is needed.
    """
    keys = sum(keys_by_weight.values())
    total = sum(weight * count for weight, count in keys_by_weight.items())
    if not total:
        return 0.0
    below, ranked = 0, 0
    for weight, count in sorted(keys_by_weight.items()):
        ranked += weight * (count * below + count * (count + 1) // 2)
        below += count
    return 2 * ranked / (keys * total) - (keys + 1) / keys
