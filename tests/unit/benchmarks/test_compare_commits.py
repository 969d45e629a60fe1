"""What ``make bench-compare`` says of figures."""

import pytest

from benchmarks.compare_commits import CPU, Figures, Row, rows_of, table


def pairs(figure: str, a: list[float], b: list[float]) -> list[Row]:
    def side(value: float) -> dict[str, Figures]:
        return {"load": {figure: value}}

    return list(rows_of([(side(x), side(y)) for x, y in zip(a, b, strict=True)]))


def test_ratios_are_of_one_pair_and_the_spread_is_of_neighbours() -> None:
    (row,) = pairs("msg/s", [100.0, 200.0, 100.0], [110.0, 180.0, 100.0])
    assert (row.a, row.b) == (100.0, 110.0)
    assert row.ratios == [1.1, 0.9, 1.0]
    assert row.spread == [2.0, 0.5]


@pytest.mark.parametrize(
    ("figure", "a", "b", "is_held"),
    [
        (CPU, [10.0, 20.0, 10.0], [10.2, 20.5, 10.3], True),
        (CPU, [10.0, 20.0, 10.0], [10.4, 20.8, 10.4], False),  # whatever the spread
        (CPU, [10.0, 10.0], [5.0, 5.0], True),  # less is no fault
        ("msg/s", [100.0, 90.0], [91.0, 82.0], True),
        ("msg/s", [100.0, 90.0], [80.0, 72.0], False),
        ("msg/s", [90.0, 100.0], [82.0, 91.0], True),  # drift counts in both directions
        ("msg/s", [100.0, 100.0], [150.0, 150.0], True),
        ("p99 ms", [1.0, 1.1], [1.09, 1.19], True),
        ("p99 ms", [1.0, 1.1], [1.2, 1.32], False),
    ],
)
def test_held(figure: str, a: list[float], b: list[float], is_held: bool) -> None:
    (row,) = pairs(figure, a, b)
    assert row.is_held is is_held


def test_the_table_marks_what_is_not_held() -> None:
    lines = table("aaa", "bbb", pairs("msg/s", [100.0, 100.0], [50.0, 50.0]))
    assert "A: aaa | B: bbb" in lines[0]
    assert lines[-1].endswith("| 0.500 | 0.50 to 0.50 | 1.00 to 1.00 | **no** |")
