"""Bytes behind a position, and the position behind which few enough bytes are."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.position import EARLIEST
from magnetar.managed_ledger.sizes import LedgerSize, bytes_after, position_before_bytes


@st.composite
def logs(draw: st.DrawFn) -> list[LedgerSize]:
    ids = sorted(draw(st.sets(st.integers(0, 50), max_size=6)))
    rows: list[LedgerSize] = []
    for ledger_id in ids:
        entries = draw(st.integers(0, 40))
        rows.append((ledger_id, entries, entries * draw(st.integers(1, 10_000))))
    return rows


@given(logs(), st.integers(0, 400_000))
def test_the_lowest_position_with_few_enough_bytes_behind_it(
    log: list[LedgerSize], bytes_max: int
) -> None:
    position = position_before_bytes(log, bytes_max)
    if position is None:
        assert bytes_after(log, EARLIEST) <= bytes_max
        return
    assert bytes_after(log, position) <= bytes_max
    assert bytes_after(log, (position[0], position[1] - 1)) > bytes_max


@given(logs())
def test_every_entry_counts_once(log: list[LedgerSize]) -> None:
    """From before the first to behind the last, each step takes the mean of its ledger."""
    assert bytes_after(log, EARLIEST) == sum(size for _, _, size in log)
    for ledger_id, entries, size in log:
        for entry_id in range(entries):
            behind = bytes_after(log, (ledger_id, entry_id))
            assert bytes_after(log, (ledger_id, entry_id - 1)) - behind == size // entries
    if log:
        assert bytes_after(log, (log[-1][0], log[-1][1] - 1)) == 0


def test_positions_outside_of_every_ledger() -> None:
    log = [(3, 10, 1_000), (5, 10, 2_000)]
    assert bytes_after(log, (4, 7)) == 2_000  # trimmed, or never there
    assert bytes_after(log, (3, 99)) == 2_000
    assert bytes_after(log, (9, 0)) == 0
