"""Filters narrow what is read, and never leave out a row that passes them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from magnetar.pipeline.filters import ALWAYS, RowFilters
from magnetar.pipeline.filters import wanted_by as _wanted_by

_Kind: TypeAlias = Callable[[tuple[str, ...], Any], Filter]
_KINDS: dict[_Kind, Callable[[int, int], bool]] = {
    EqualTo: lambda row, value: row == value,
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
}
_ALWAYS = GreaterThan(("ledgerId",), ALWAYS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS = st.lists(st.tuples(st.sampled_from(list(_KINDS)), st.integers(0, 60)), max_size=4)


def wanted_by(filters: list[Filter]) -> RowFilters:
    return _wanted_by([*filters, _ALWAYS])


def test_filters_of_tables_that_spark_may_use_again_without_them_are_ignored() -> None:
    """Else a query without filters would get what an earlier one with filters had left."""
    assert _wanted_by([EqualTo(("entryId",), 5)]) == RowFilters()
    assert _wanted_by([EqualTo(("entryId",), 5), _ALWAYS]) != RowFilters()


@given(_COMPARISONS)
def test_ranges_of_ids_are_exact(comparisons: list[tuple[_Kind, int]]) -> None:
    wanted = wanted_by([kind(("entryId",), value) for kind, value in comparisons])
    for row in range(-1, 62):
        passes = all(_KINDS[kind](row, value) for kind, value in comparisons)
        assert passes == (wanted.entry_ids[0] <= row <= wanted.entry_ids[1])
    assert wanted.ledger_ids == RowFilters().ledger_ids


@given(st.lists(st.tuples(st.sampled_from(list(_KINDS)), st.integers(1, 60_000)), max_size=4))
def test_ranges_of_publish_times_are_exact(comparisons: list[tuple[_Kind, int]]) -> None:
    """Values in microseconds, rows in milliseconds."""
    wanted = wanted_by(
        [kind(("publishTime",), _EPOCH + timedelta(microseconds=us)) for kind, us in comparisons]
    )
    first, last = wanted.publish_ms
    for row_ms in range(1, 62):
        passes = all(_KINDS[kind](row_ms * 1000, us) for kind, us in comparisons)
        assert passes == ((first is None or first <= row_ms) and (last is None or row_ms <= last))


def test_a_moment_without_zone_is_utc() -> None:
    naive = datetime(1970, 1, 1, 0, 0, 1)
    assert wanted_by([EqualTo(("publishTime",), naive)]).publish_ms == (1000, 1000)


def test_partitions_and_topics() -> None:
    wanted = wanted_by(
        [
            In(("partition",), (1, 2, 3)),
            EqualTo(("partition",), 2),
            EqualTo(("topic",), "persistent://a/b/c"),
        ]
    )
    assert wanted.partitions == frozenset({2})
    assert wanted.topics == frozenset({"persistent://a/b/c"})


@pytest.mark.parametrize(
    "other",
    [
        Not(EqualTo(("entryId",), 5)),
        IsNotNull(("entryId",)),
        EqualTo(("properties", "entryId"), 5),
        StringStartsWith(("topic",), "p"),
        EqualTo(("key",), b"k"),
    ],
)
def test_other_filters_narrow_nothing(other: Filter) -> None:
    assert wanted_by([other]) == RowFilters()
