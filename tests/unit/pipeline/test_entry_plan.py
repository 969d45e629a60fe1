"""Where entries end depends on the rows alone, and within the limits."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.entry_plan import ROW_OVERHEAD_BYTES as OVERHEAD
from magnetar.pipeline.entry_plan import EntryPlan

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.booleans()), max_size=120)


def cut(plan: EntryPlan, rows: list[tuple[int, int, bool]]) -> list[list[int]]:
    """The entries, as the indexes of their rows, in the order in which they end."""
    ended: list[list[int]] = []
    open_rows: dict[int, list[int]] = {}
    for index, (target, size, alone) in enumerate(rows):
        before, is_end = plan.place(target, size, alone)
        ended.extend(open_rows.pop(each) for each in before)
        open_rows.setdefault(target, []).append(index)
        if is_end:
            ended.append(open_rows.pop(target))
    return ended + list(open_rows.values())


def test_an_entry_ends_by_count_by_bytes_and_around_what_must_be_alone() -> None:
    rows = [(0, 10, False)] * 5
    assert cut(EntryPlan(2, 1000, 99, 9999), rows) == [[0, 1], [2, 3], [4]]
    limit = 2 * (10 + OVERHEAD)
    assert cut(EntryPlan(99, limit, 99, 9999), rows) == [[0, 1], [2, 3], [4]]
    assert cut(EntryPlan(99, limit - 1, 99, 9999), rows) == [[0], [1], [2], [3], [4]]
    rows[2] = (0, 10, True)
    assert cut(EntryPlan(99, 1000, 99, 9999), rows) == [[0, 1], [2], [3, 4]]
    rows[2] = (0, 1001, False)
    assert cut(EntryPlan(99, 1000, 99, 9999), rows) == [[0, 1], [2], [3, 4]]


def test_targets_are_cut_apart_until_all_together_are_too_much() -> None:
    rows = [(index % 3, 0, False) for index in range(9)]
    assert cut(EntryPlan(99, 1000, 99, 9999), rows) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    together = [[0, 3], [1, 4], [2], [6], [7], [5, 8]]  # the first five are three entries
    assert sorted(cut(EntryPlan(99, 1000, 5, 9999), rows)) == sorted(together)
    assert sorted(cut(EntryPlan(99, 1000, 99, 5 * OVERHEAD), rows)) == sorted(together)


@given(
    ROWS,
    st.integers(1, 9),
    st.integers(100, 600),
    st.integers(1, 12),
    st.integers(600, 2000),
)
def test_limits_hold_and_no_row_is_lost_or_out_of_order(
    rows: list[tuple[int, int, bool]], count: int, size: int, pending: int, pending_bytes: int
) -> None:
    ended = cut(EntryPlan(count, size, pending, pending_bytes), rows)
    assert sorted(index for entry in ended for index in entry) == list(range(len(rows)))
    for target in range(4):
        mine = [i for entry in ended for i in entry if rows[i][0] == target]
        assert mine == sorted(mine)
    for entry in ended:
        assert len({rows[index][0] for index in entry}) == 1
        assert len(entry) <= count
        total = sum(rows[index][1] + OVERHEAD for index in entry)
        assert len(entry) == 1 or total <= size
        assert len(entry) == 1 or not any(rows[index][2] for index in entry)


@given(ROWS)
def test_open_entries_are_bounded_together(rows: list[tuple[int, int, bool]]) -> None:
    plan, open_bytes = EntryPlan(50, 500, 10, 700), dict[int, list[int]]()
    for target, size, alone in rows:
        before, is_end = plan.place(target, size, alone)
        for each in before:
            del open_bytes[each]
        open_bytes.setdefault(target, []).append(size + OVERHEAD)
        if is_end:
            del open_bytes[target]
        assert sum(map(len, open_bytes.values())) <= 10
        assert sum(map(sum, open_bytes.values())) <= 700
