"""Where a bundle is cut: the four algorithms of Pulsar's split call. Pure.

Each function returns points strictly inside the range, rising; none when the bundle isn't worth
a cut, which is no error. The caller turns them into boundaries with ``NamespaceBundles.split``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.namespace_bundles import HashRange

RANGE_EQUALLY_DIVIDE = "range_equally_divide"
TOPIC_COUNT_EQUALLY_DIVIDE = "topic_count_equally_divide"
SPECIFIED_POSITIONS_DIVIDE = "specified_positions_divide"
FLOW_OR_QPS_EQUALLY_DIVIDE = "flow_or_qps_equally_divide"
SPLIT_ALGORITHMS = (
    RANGE_EQUALLY_DIVIDE,
    TOPIC_COUNT_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    FLOW_OR_QPS_EQUALLY_DIVIDE,
)


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """Traffic of one topic, in and out together."""

    hash: int
    messages: float  # per second
    bytes: float  # per second


def halve_range(bundle: HashRange) -> list[int]:
    """The middle of the range."""
    return _inside(bundle, [bundle.lower + (bundle.upper - bundle.lower) // 2])


def halve_topics(bundle: HashRange, hashes: Iterable[int]) -> list[int]:
    """Between the two middle topics, so that each half has as many (one more at most)."""
    ordered = sorted(hashes)
    if len(ordered) < 2:
        return []
    middle = len(ordered) // 2
    before, after = ordered[middle - 1], ordered[middle]
    # Never on the hash before: that topic would fall in the upper half.
    return _inside(bundle, [before + max((after - before) // 2, 1)])


def at_positions(bundle: HashRange, positions: Iterable[int], hashes: Sequence[int]) -> list[int]:
    """The caller's positions, those inside; nothing when the bundle has fewer than two topics.

    Raises:
        InvalidBundleError: no position at all.
    """
    wanted = list(positions)
    if not wanted:
        raise InvalidBundleError(
            f"With {SPECIFIED_POSITIONS_DIVIDE} split algorithm, splitBoundaries must not be empty"
        )
    return _inside(bundle, wanted) if len(hashes) > 1 else []


def divide_load(
    bundle: HashRange,
    topics: Iterable[TopicLoad],
    messages_max: float,
    bytes_max: float,
    tolerance: float,
) -> list[int]:
    """As many parts as it takes for each to stay below the limits, if single topics allow it.

    Args:
        messages_max, bytes_max: per second and part.
        tolerance: a bundle that exceeds neither limit by this fraction stays whole.
    """
    busy = sorted(
        (topic for topic in topics if topic.messages > 0 or topic.bytes > 0),
        key=lambda topic: topic.hash,
    )
    messages = sum(topic.messages for topic in busy)
    volume = sum(topic.bytes for topic in busy)
    spare = 1 + tolerance
    if len(busy) < 2 or (messages < messages_max * spare and volume < bytes_max * spare):
        return []
    points: list[int] = []
    part_messages, part_bytes = busy[0].messages, busy[0].bytes
    for before, topic in pairwise(busy):
        if part_messages + topic.messages > messages_max or part_bytes + topic.bytes > bytes_max:
            points.append(before.hash + (topic.hash - before.hash) // 2 + 1)
            part_messages = part_bytes = 0.0
        part_messages += topic.messages
        part_bytes += topic.bytes
    return _inside(bundle, points)


def _inside(bundle: HashRange, points: Iterable[int]) -> list[int]:
    return sorted({point for point in points if bundle.lower < point < bundle.upper})
