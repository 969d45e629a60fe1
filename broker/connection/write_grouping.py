"""How buffers that leave in one tick are grouped for the socket."""

from collections.abc import Sequence

_JOIN_MEAN_BYTES = 2048
"""Below this mean size one joined copy is cheaper than a vector of small pieces."""
_JOIN_BELOW_BYTES = 4096


def coalesce(buffers: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Same bytes in the same order, small neighbours joined, large ones untouched."""
    if len(buffers) < 2:
        return list(buffers)
    if sum(map(len, buffers)) < _JOIN_MEAN_BYTES * len(buffers):
        return [b"".join(buffers)]
    grouped: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) < _JOIN_BELOW_BYTES:
            small.append(buffer)
            continue
        if small:
            grouped.append(b"".join(small) if len(small) > 1 else small[0])
            small = []
        grouped.append(buffer)
    if small:
        grouped.append(b"".join(small) if len(small) > 1 else small[0])
    return grouped
