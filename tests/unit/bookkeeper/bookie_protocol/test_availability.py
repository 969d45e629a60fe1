"""Lists of entries as bookies answer them."""

from struct import pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie_protocol.availability import (
    decode_availability,
    encode_availability,
)
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


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), max_size=30))
def test_what_a_bookie_of_ours_answers_is_read_back(steps: list[tuple[int, int]]) -> None:
    runs, end = [], -1
    for gap, size in steps:
        runs.append((end + 1 + gap, end + 1 + gap + size))
        end = end + gap + size
    data = encode_availability(runs)
    assert decode_availability(data) == runs
    assert unpack_from(">I", data, 4)[0] <= len(runs)


def test_a_striped_ledger_is_one_group() -> None:
    data = encode_availability([(first, first + 2) for first in range(0, 3000, 3)])
    assert len(data) == 64 + 24
