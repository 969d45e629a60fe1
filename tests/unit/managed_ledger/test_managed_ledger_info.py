"""The stored list's encoding, and positions checked against a list of all entries."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.errors import ManagedLedgerFormatError
from magnetar.managed_ledger.ledger_rows import LedgerInfo, LedgerRows
from magnetar.managed_ledger.managed_ledger_info import (
    LedgerOffsets,
    ManagedLedgerInfo,
    decode_list_node,
    encode_info,
)
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

INFO = ManagedLedgerInfo(
    owner="me",
    ledgers=LedgerRows((LedgerInfo(3, 10, 100, 5), LedgerInfo(7, 0, 0, 6), LedgerInfo(9))),
    properties={"a": "b"},
    terminated=(9, -1),
    doomed=(1, 2),
)


def test_encoding_round_trips() -> None:
    assert decode_list_node(encode_info(INFO), "/p").info == INFO
    empty = ManagedLedgerInfo(owner="x")
    assert decode_list_node(encode_info(empty), "/p").info == empty
    assert orjson.loads(encode_info(empty)) == {"format": 1, "owner": "x", "ledgers": []}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"format":5,"owner":"","ledgers":[]}',
        b'{"format":1,"owner":1,"ledgers":[]}',
        b'{"format":1,"owner":"","ledgers":[[1,2,3]]}',
        b'{"format":1,"owner":"","ledgers":[[1,2,3,"4"]]}',
        b'{"format":1,"owner":"","ledgers":[1]}',
        b'{"format":1,"owner":"","ledgers":[[2,0,0,0],[2,0,0,0]]}',
        b'{"format":1,"owner":"","ledgers":[],"terminated":[1]}',
        b'{"format":1,"owner":"","ledgers":[],"properties":[]}',
        b'{"format":1,"owner":"","ledgers":[],"properties":{"a":1}}',
        b'{"format":1,"owner":"","ledgers":[],"doomed":[true]}',
    ],
)
def test_damaged_values_name_the_path(value: bytes) -> None:
    with pytest.raises(ManagedLedgerFormatError, match=r"^/p: "):
        decode_list_node(value, "/p")


def test_changes() -> None:
    assert INFO.with_ledger(9) is INFO
    assert INFO.with_ledger(11).ledgers[-1] == LedgerInfo(11)
    with pytest.raises(ValueError, match="8 is not above 9"):
        INFO.with_ledger(8)
    assert INFO.with_closed(9, 4, 40, 8).ledgers[-1] == LedgerInfo(9, 4, 40, 8)
    assert INFO.with_closed(8, 4, 40, 8) == INFO
    assert INFO.without([3, 4]).doomed == (1, 2, 3)
    assert [x.ledger_id for x in INFO.without([3, 4]).ledgers] == [7, 9]
    assert INFO.forget([1, 7]).doomed == (2,)
    assert [x.ledger_id for x in INFO.forget([1, 7]).ledgers] == [3, 9]
    assert [x.ledger_id for x in INFO.without_empty().ledgers] == [3, 9]
    assert INFO.without_empty().without_empty().doomed == (1, 2, 7)
    last = ManagedLedgerInfo(ledgers=LedgerRows([LedgerInfo(1, 0, 0, 1)]))
    assert last.without_empty() is last  # its id is the proof that later ones are greater
    assert INFO.size == 100
    assert INFO.with_properties({"c": "d"}).properties == {"c": "d"}
    assert INFO.with_terminated((1, 1)).terminated == (1, 1)


LEDGERS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=6).map(
    lambda steps: [(sum(x[0] for x in steps[: i + 1]), count) for i, (_, count) in enumerate(steps)]
)
POSITIONS = st.one_of(
    st.tuples(st.integers(-1, 32), st.integers(-1, 4)), st.sampled_from([EARLIEST, LATEST])
)


@given(LEDGERS, POSITIONS, POSITIONS, st.integers(-1, 20))
def test_positions_agree_with_a_plain_list(
    ledgers: list[tuple[int, int]], position: Position, other: Position, steps: int
) -> None:
    every = [(ledger, entry) for ledger, count in ledgers for entry in range(count)]
    listed = LedgerOffsets(ledgers)
    empty = (ledgers[-1][0], -1) if ledgers else EARLIEST
    last = every[-1] if every else empty
    assert listed.last_confirmed == last
    assert listed.entry_count == len(every)
    assert listed.counts() == ledgers
    assert listed.ledger_ids == [x for x, _ in ledgers]
    assert listed.is_valid(position) == (position in every)
    after = [x for x in every if x > position]
    before = [x for x in every if x < position]
    following = (last[0], last[1] + 1)
    assert listed.next_position(position) == (after[0] if after else following)
    assert listed.first_position() == (every[0] if every else following)
    assert listed.first_at_or_after(position) == next((x for x in every if x >= position), None)
    if before:
        assert listed.previous_position(position) == before[-1]
    else:
        assert listed.previous_position(position) == ((ledgers[0][0], -1) if ledgers else EARLIEST)
    between = [x for x in every if position < x <= other]
    assert listed.entries_between(position, other) == len(between)
    is_near = listed.entries_between(position, last) <= max(steps, 0)
    assert (position >= listed.position_before_last(max(steps, 0))) == is_near
    if steps <= 0:
        assert listed.position_after(position, steps) == position
    else:
        expected = after[steps - 1] if len(after) >= steps else following
        assert listed.position_after(position, steps) == expected


def test_growing_and_trimming() -> None:
    listed = LedgerOffsets([(1, 3)])
    listed.add(4)
    listed.add(6)
    listed.confirm(4, 1)
    assert listed.entry_count == 5
    assert listed.last_confirmed == (4, 1)
    listed.confirm(4, 0)  # an older end says nothing new
    listed.confirm(4, -1)
    assert listed.counts() == [(1, 3), (4, 2), (6, 0)]
    listed.confirm(6, 0)
    assert listed.entries_between((1, 0), (6, 0)) == 5
    assert listed.entries(4) == 2
    assert listed.entries(5) is None
    assert listed.entries(0) is None
    listed.remove([1, 4])
    assert listed.counts() == [(6, 1)]
    listed.add(8)
    listed.remove([6])
    assert listed.last_confirmed == (6, 0)  # message ids never go backwards
    assert listed.next_position(EARLIEST) == (6, 1)
    assert listed.previous_position((6, 1)) == (6, 0)
