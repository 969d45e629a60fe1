"""Which entries of a ledger a bookie holds, as it answers a list of entries."""

from collections.abc import Sequence
from struct import Struct, error
from typing import Final

from magnetar.bookkeeper.errors import FrameError

_HEADER_BYTES: Final = 64
_HEADER: Final = Struct(">II")
_GROUP: Final = Struct(">qqii")
"""First and last start of a sequence, its size, and how far the starts are apart."""
_RUNS_MAX: Final = 1 << 20
_PERIOD_MAX: Final = (1 << 31) - 1


def decode_availability(data: bytes) -> list[tuple[int, int]]:
    """Ascending runs ``(first, end)``, end not in it.

    Raises:
        FrameError: another version, or not such bytes.
    """
    try:
        version, count = _HEADER.unpack_from(data)
        if version != 0 or len(data) != _HEADER_BYTES + count * _GROUP.size:
            raise FrameError(f"a list of entries of version {version}, {len(data)} bytes")
        runs: list[tuple[int, int]] = []
        for first, last, size, period in _GROUP.iter_unpack(data[_HEADER_BYTES:]):
            if size < 1 or first < 0 or last < first or (last > first and period < size):
                raise FrameError(f"senseless entries: {first} to {last}, {size} each {period}")
            starts = range(first, last + 1, max(period, 1))
            if len(runs) + len(starts) > _RUNS_MAX:
                raise FrameError("too many runs of entries")
            for start in starts:
                if runs and runs[-1][1] > start:
                    raise FrameError("entries that don't ascend")
                if runs and runs[-1][1] == start:
                    runs[-1] = (runs[-1][0], start + size)
                else:
                    runs.append((start, start + size))
        return runs
    except error as caught:
        raise FrameError(f"not a list of entries: {caught}") from caught


def encode_availability(runs: Sequence[tuple[int, int]]) -> bytes:
    """Of ascending runs ``(first, end)``; runs of one size at one distance become one group."""
    groups: list[list[int]] = []
    for first, end in runs:
        size = end - first
        if groups and groups[-1][2] == size:
            last = groups[-1]
            period = first - last[1]
            if (not last[3] or last[3] == period) and period <= _PERIOD_MAX:
                last[1], last[3] = first, period
                continue
        groups.append([first, first, size, 0])
    head = _HEADER.pack(0, len(groups)).ljust(_HEADER_BYTES, b"\0")
    return head + b"".join(_GROUP.pack(*group) for group in groups)
