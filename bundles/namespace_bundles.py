"""Bundles of a namespace: slices of the 32-bit hash space of topic names. Pure.

Boundaries b0 = 0 < b1 < ... < bn = 0xffffffff; bundle i is [b_i, b_i+1), and the last one holds
0xffffffff too, so every hash is in exactly one bundle. All brokers compute the same, from the
name and the stored boundaries alone.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.bundles.errors import InvalidBundleError

FULL_UPPER = 0xFFFFFFFF
DEFAULT_BUNDLE_COUNT = 32  # Pulsar's default since 5.0
BUNDLES_MAX = 1 << 16  # of a namespace, by requests: boundaries take 852 KB of a metadata node

_RANGE = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")
_BOUNDARY = re.compile(r"0x[0-9a-fA-F]{1,8}")


def topic_hash(topic_name: str) -> int:
    """CRC-32 (zlib's) of the complete name, ``persistent://tenant/ns/topic-partition-0``."""
    return zlib.crc32(topic_name.encode())


def namespace_of(topic_name: str) -> str:
    """``tenant/ns`` of a complete topic name.

    Raises:
        InvalidBundleError: not ``<domain>://<tenant>/<namespace>/<topic>``.
    """
    scheme = topic_name.find("://") + 3
    tenant_end = topic_name.find("/", scheme)
    end = topic_name.find("/", tenant_end + 1)
    if scheme < 4 or tenant_end <= scheme or end <= tenant_end + 1 or end + 1 == len(topic_name):
        raise InvalidBundleError(f"not a complete topic name: {topic_name!r}")
    return topic_name[scheme:end]


@dataclass(frozen=True, slots=True)
class HashRange:
    """[lower, upper), and with ``upper`` = 0xffffffff that value too."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        if not 0 <= self.lower < self.upper <= FULL_UPPER:
            raise InvalidBundleError(f"not a hash range: {self.lower:#x} to {self.upper:#x}")

    def __contains__(self, value: int) -> bool:
        return self.lower <= value < self.upper or value == self.upper == FULL_UPPER

    def __str__(self) -> str:
        return f"0x{self.lower:08x}_0x{self.upper:08x}"

    @classmethod
    def parse(cls, text: str) -> "HashRange":
        """The form of paths and admin calls: ``0x00000000_0x08000000``."""
        found = _RANGE.fullmatch(text)
        if found is None:
            raise InvalidBundleError(f"not a hash range: {text!r}")
        return cls(int(found[1], 16), int(found[2], 16))


class NamespaceBundles:
    """The partition of one namespace into bundles. Immutable."""

    __slots__ = ("_lowers", "boundaries", "names", "namespace", "ranges")

    def __init__(self, namespace: str, boundaries: Sequence[int]) -> None:
        """Raises InvalidBundleError unless the boundaries partition the hash space."""
        if len(boundaries) < 2 or boundaries[0] != 0 or boundaries[-1] != FULL_UPPER:
            raise InvalidBundleError(
                f"{namespace}: boundaries must run from 0x00000000 to 0xffffffff"
            )
        self.namespace, self.boundaries = namespace, tuple(boundaries)
        # HashRange refuses an empty or a backward one: so they rise strictly.
        self.ranges = tuple(
            HashRange(lower, upper)
            for lower, upper in zip(boundaries, self.boundaries[1:], strict=False)
        )
        self.names = tuple(f"{namespace}/{each}" for each in self.ranges)
        self._lowers = self.boundaries[:-1]  # without the end: hash 0xffffffff is in the last

    @classmethod
    def equal_parts(cls, namespace: str, count: int) -> "NamespaceBundles":
        """``count`` ranges of floor(2^32 / count); the last one takes the remainder."""
        if not 0 < count <= FULL_UPPER:
            raise InvalidBundleError(f"{namespace}: {count} bundles")
        width = (FULL_UPPER + 1) // count
        return cls(namespace, [*range(0, count * width, width), FULL_UPPER])

    @classmethod
    def parse(cls, namespace: str, boundaries: Sequence[str]) -> "NamespaceBundles":
        """From the boundaries of policies, ``["0x00000000", ..., "0xffffffff"]``."""
        for text in boundaries:
            if not isinstance(text, str) or _BOUNDARY.fullmatch(text) is None:
                raise InvalidBundleError(f"{namespace}: not a boundary: {text!r}")
        return cls(namespace, [int(text, 16) for text in boundaries])

    def boundary_texts(self) -> list[str]:
        return [f"0x{each:08x}" for each in self.boundaries]

    def bundle_of(self, topic_name: str) -> str:
        """Name of the topic's bundle, ``tenant/ns/0x00000000_0x08000000``."""
        return self.names[bisect_right(self._lowers, zlib.crc32(topic_name.encode())) - 1]

    def range_of(self, topic_name: str) -> HashRange:
        return self.ranges[bisect_right(self._lowers, topic_hash(topic_name)) - 1]

    def find(self, bundle_range: str) -> HashRange:
        """The bundle of this range, ``0x00000000_0x08000000``.

        Raises:
            InvalidBundleError: not a range, or not the range of one of these bundles.
        """
        try:
            wanted = HashRange.parse(bundle_range)
        except InvalidBundleError as error:
            raise InvalidBundleError(f"Invalid bundle range: {bundle_range}") from error
        found = self.ranges[bisect_right(self._lowers, wanted.lower) - 1]
        if found == wanted:
            return found
        if found.lower != wanted.lower:
            raise InvalidBundleError(
                f"Cannot find bundle {self.namespace}/{wanted} in the bundles list"
            )
        raise InvalidBundleError(
            f"Invalid upper boundary for bundle {self.namespace}/{wanted}. "
            f"Expected upper boundary of {self.namespace}/{found}"
        )

    def split(self, bundle: HashRange, points: Sequence[int]) -> "NamespaceBundles":
        """The same with ``bundle`` cut at points strictly inside it.

        Raises:
            InvalidBundleError: not a bundle of these, or a point that isn't inside.
        """
        if bundle not in self.ranges or any(
            not bundle.lower < point < bundle.upper for point in points
        ):
            raise InvalidBundleError(f"{self.namespace}/{bundle} can't be cut at {list(points)}")
        return NamespaceBundles(self.namespace, sorted({*self.boundaries, *points}))

    def __len__(self) -> int:
        return len(self.ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamespaceBundles):
            return NotImplemented
        return (self.namespace, self.boundaries) == (other.namespace, other.boundaries)

    def __hash__(self) -> int:
        return hash((self.namespace, self.boundaries))
