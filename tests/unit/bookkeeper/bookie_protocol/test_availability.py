"""Lists of entries as bookies answer them."""

from struct import pack

import pytest

from magnetar.bookkeeper.bookie_protocol.availability import decode_availability
from magnetar.bookkeeper.errors import FrameError


def availability(*groups: tuple[int, int, int, int], version: int = 0) -> bytes:
    header = pack(">II", version, len(groups)).ljust(64, b"\0")
    return header + b"".join(pack(">qqii", *group) for group in groups)


def test_runs() -> None:
    assert decode_availability(availability()) == []
    # Entries 0 to 9; then two of every three from 10 to 17; then 100.
    data = availability((0, 0, 10, 0), (10, 16, 2, 3), (100, 100, 1, 0))
    assert decode_availability(data) == [(0, 12), (13, 15), (16, 18), (100, 101)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        availability(version=1),
        availability((0, 0, 1, 0))[:-1],
        availability((0, 0, 1, 0)) + b"x",
        availability((5, 5, 1, 0), (0, 0, 1, 0)),
        availability((0, 9, 3, 2)),
        availability((0, 9, 0, 1)),
        availability((-1, 0, 1, 1)),
        availability((0, 1 << 40, 1, 2)),
    ],
)
def test_what_is_no_such_list(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_availability(data)
