"""Pages with one row for a partitioned topic, whose partitions are at several brokers."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.index import figure_table
from magnetar.broker.index.figure_table import (
    ELSEWHERE,
    LOADED,
    UNKNOWN,
    UNLOADED,
    FigureTable,
    PageQuery,
)
from magnetar.broker.index.group_scan import GroupScan
from magnetar.broker.index.page_answer import PageAnswer, merged, parse_key
from magnetar.broker.index.topic_figures import GREATEST_OF_PARTITIONS, shown

FIELDS = ("msgBacklog", "msgRateIn", "producerCount", "earliestMsgPublishTimeInBacklogs")
BROKERS = 3


@pytest.fixture(autouse=True, scope="module")
def _small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_table, "SLICE_ROWS", 3)
        yield


NAME = st.sampled_from([f"{first}{second}" for first in "aBc" for second in "xyX"])
FIGURES = st.tuples(*(st.sampled_from([1.0, 2.0, 5.0]) for _ in FIELDS))
PART = st.tuples(st.integers(0, BROKERS - 1), st.one_of(st.none(), FIGURES))
"""Broker, and figures; None: no broker has loaded it."""
TOPICS = st.dictionaries(NAME, st.one_of(PART, st.lists(PART, min_size=1, max_size=14)))
"""A topic without partitions, or its partitions."""


def tables_of(topics: dict[str, Any]) -> list[FigureTable]:
    """Of each broker. Who doesn't serve a topic knows its name, as that of another one."""
    tables = [FigureTable(FIELDS) for _ in range(BROKERS)]
    for name, found in topics.items():
        parts = (
            [(f"{name}-partition-{at}", name, part) for at, part in enumerate(found)]
            if isinstance(found, list)
            else [(name, None, found)]
        )
        for full, group, (broker, figures) in parts:
            for at, table in enumerate(tables):
                slot = table.add(full, full, "t/n", ELSEWHERE if at != broker else UNLOADED, group)
                if at == broker and figures is not None:
                    table.move(slot, LOADED)
                    table.set(slot, figures)
    return tables


def answer_of(at: int, table: FigureTable, query: PageQuery) -> PageAnswer:
    """As ``IndexTables`` answers it."""
    scan = GroupScan(table, query, {})
    while scan.step():
        pass
    rows = []
    for name, slots in scan.groups:
        row: dict[str, Any] = {"topic": name, "broker": f"b{at}"}
        row["partitions"] = sum(table.names[slot] != name for slot in slots)
        for field, column in table.columns.items():
            known = [column[slot] for slot in slots if column[slot] != UNKNOWN]
            together = max if field in GREATEST_OF_PARTITIONS else sum
            row[field] = shown(field, together(known)) if known else None
        rows.append(row)
    page = scan.page
    return PageAnswer(1, page.total, page.matching, {}, rows, has_more=scan.has_more)


def naive(topics: dict[str, Any], query: PageQuery) -> list[dict[str, Any]]:
    rows = []
    for name in sorted(topics, reverse=query.descending):
        if query.text not in name.lower():
            continue
        found = topics[name]
        parts = found if isinstance(found, list) else [found]
        row: dict[str, Any] = {
            "topic": name,
            "partitions": len(parts) if isinstance(found, list) else 0,
        }
        for at, field in enumerate(FIELDS):
            known = [figures[at] for _, figures in parts if figures is not None]
            together = max if field in GREATEST_OF_PARTITIONS else sum
            row[field] = shown(field, together(known)) if known else None
        rows.append(row)
    return rows


@settings(max_examples=300, deadline=None)
@given(TOPICS, st.booleans(), st.integers(1, 4), st.sampled_from(["", "", "x", "0", "partition"]))
def test_pages_of_all_brokers_are_sums_over_them(
    topics: dict[str, Any], descending: bool, limit: int, text: str
) -> None:
    tables = tables_of(topics)
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        key = None if after is None else parse_key(after, "")
        query = PageQuery("", descending, key, limit, text, grouped=True)
        page = merged([answer_of(at, table, query) for at, table in enumerate(tables)], query)
        assert len(page.rows) <= limit
        found += page.rows
        after = page.to_json("topics", query, {})["next"]
        if after is None:
            break
    expected = naive(topics, query)
    assert [{name: row[name] for name in ("topic", "partitions", *FIELDS)} for row in found] == (
        expected
    )
    assert page.matching == len(expected)
    assert page.total == len(topics)


def test_a_name_is_not_found_by_the_number_of_a_partition() -> None:
    """Else a sum would be that of some of the partitions."""
    (one, *_) = tables_of({"ax": [(0, (1.0,) * 4)] * 12})
    query = PageQuery(text="partition-1", grouped=True)
    assert answer_of(0, one, query).rows == []
    (row,) = answer_of(0, one, PageQuery(text="ax", grouped=True)).rows
    assert (row["partitions"], row["msgBacklog"], row["producerCount"]) == (12, 12, 1)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_what_is_behind_the_page_is_forgotten_but_nothing_of_it(
    descending: bool, limit: int
) -> None:
    names = [f"t{number:03}" for number in range(60)]
    Random(3).shuffle(names)
    topics: dict[str, Any] = {name: [(0, (1.0,) * 4)] * 3 for name in names}
    (one, *_) = tables_of(topics)
    query = PageQuery("", descending, (None, "t030"), limit, grouped=True)
    answer = answer_of(0, one, query)
    first = sorted(each for each in names if each != "t030" and (each < "t030") == descending)
    expected = (first[::-1] if descending else first)[:limit]
    assert [row["topic"] for row in answer.rows] == expected
    assert {row["partitions"] for row in answer.rows} == {3}
    assert answer.has_more
