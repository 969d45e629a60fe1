"""Pages, counts and sums of a table are those of a look at every row, after any changes."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
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
    PageScan,
    Sight,
    SumScan,
)
from magnetar.broker.index.page_answer import PageAnswer, key_text, merged, parse_key

FIELDS = ("msgBacklog", "msgRateIn")
NAMES = [f"{first}{second}" for first in "aBc" for second in "xyzXYZ"]
SPACES = ("t/one", "t/two", "u/one")


def _positive(table: FigureTable, slots: list[int]) -> list[int]:
    return [slot for slot in slots if table.columns["msgBacklog"][slot] > 0]


VIEWS = {"backlog": _positive}


@pytest.fixture(autouse=True, scope="module")
def _small_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_table, "SLICE_ROWS", 4)
        patch.setattr(figure_table, "_RUN_ROWS", 2)
        yield


@dataclass
class NaiveRow:
    space: str
    place: int
    figures: tuple[float, ...]


class Both:
    """A table, and a dict that had the same changes."""

    def __init__(self) -> None:
        self.table = FigureTable(FIELDS)
        self.rows: dict[str, NaiveRow] = {}

    def apply(self, name: str, change: int, place: int, figures: tuple[float, ...]) -> None:
        table, space = self.table, SPACES[NAMES.index(name) % len(SPACES)]
        if name not in self.rows:
            table.add(name, name, space, place)
            self.rows[name] = NaiveRow(space, place, (UNKNOWN,) * len(FIELDS))
        slot = table.slot_of[name]
        if change == 0:
            table.remove(slot)
            del self.rows[name]
            return
        table.move(slot, place)
        if place == LOADED:
            table.set(slot, figures)
            self.rows[name] = NaiveRow(space, place, figures)
        elif self.rows[name].place != place:
            self.rows[name] = NaiveRow(space, place, (UNKNOWN,) * len(FIELDS))


FIGURE = st.sampled_from([0.0, 1.0, 2.0, 2.5])
CHANGE = st.tuples(
    st.sampled_from(NAMES),
    st.integers(0, 3),
    st.sampled_from([LOADED, LOADED, UNLOADED, ELSEWHERE]),
    st.tuples(FIGURE, FIGURE),
)
QUERY = st.builds(
    PageQuery,
    sort=st.sampled_from(["", *FIELDS]),
    descending=st.booleans(),
    limit=st.integers(1, 5),
    text=st.sampled_from(["", "", "", "x", "b"]),
    namespace=st.sampled_from([*[""] * 8, *SPACES, "no/such"]),
    view=st.sampled_from(["", "", "", "backlog"]),
    place_max=st.sampled_from([UNLOADED, LOADED]),
    only=st.one_of(st.none(), st.none(), st.frozensets(st.sampled_from([*NAMES, "gone"]))),
)
SIGHT = st.one_of(
    st.none(),
    st.none(),
    st.dictionaries(st.integers(0, 2), st.sampled_from([None, lambda key: key[1] in "xX"])),
)


def run(table: FigureTable, query: PageQuery, sight: Sight | None) -> PageScan:
    scan = PageScan(table, query, VIEWS, sight)
    while scan.step():
        pass
    return scan


def walk(both: Both, query: PageQuery, sight: Sight | None) -> list[str]:
    """All pages, each by the key of the one before; through the texts that clients send."""
    found: list[str] = []
    after: Any = None
    while True:
        page = run(both.table, PageQuery(**{**_fields(query), "after": after}), sight).page
        assert len(page.slots) <= query.limit
        found += [both.table.names[slot] for slot in page.slots]
        if not page.has_more:
            return found
        last = page.slots[-1]
        figure = both.table.columns[query.sort][last] if query.sort else None
        after = parse_key(key_text((figure, both.table.names[last])), query.sort)


def _fields(query: PageQuery) -> dict[str, Any]:
    return {name: getattr(query, name) for name in PageQuery.__dataclass_fields__}


def expected(both: Both, query: PageQuery, sight: Sight | None) -> tuple[list[str], dict[str, int]]:
    """Names in order, and the counts."""
    seen = {
        name: row
        for name, row in both.rows.items()
        if row.place <= query.place_max
        and query.namespace in ("", row.space)
        and (query.only is None or name in query.only)
        and _may(both, name, row, sight)
    }
    told = {name: row for name, row in seen.items() if query.text in name.lower()}
    kept = {name: row for name, row in told.items() if row.figures[0] > 0}
    chosen = kept if query.view else told
    counts = {"total": len(seen), "matching": len(chosen), "backlog": len(kept)}
    if not query.sort:
        return sorted(chosen, reverse=query.descending), counts
    at = FIELDS.index(query.sort)

    def place(name: str) -> tuple[bool, float, str]:
        figure = chosen[name].figures[at]
        return figure == UNKNOWN, -figure if query.descending else figure, name

    return sorted(chosen, key=place), counts


def _may(both: Both, name: str, row: NaiveRow, sight: Sight | None) -> bool:
    if sight is None:
        return True
    space = both.table.space_of[row.space]
    return space in sight and ((may := sight[space]) is None or may(name))


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGE, max_size=40), QUERY, SIGHT)
def test_pages_are_those_of_a_look_at_every_row(
    changes: list[Any], query: PageQuery, sight: Sight | None
) -> None:
    both = Both()
    for change in changes:
        both.apply(*change)
    names, counts = expected(both, query, sight)
    assert walk(both, query, sight) == names
    page = run(both.table, query, sight).page
    assert {"total": page.total, "matching": page.matching, **page.views} == counts


@pytest.mark.parametrize("descending", [False, True])
def test_unknown_figures_come_last_in_both_orders(descending: bool) -> None:
    both = Both()
    both.apply("ax", 1, UNLOADED, (0.0, 0.0))
    both.apply("ay", 1, LOADED, (1.0, 0.0))
    both.apply("az", 1, LOADED, (2.0, 0.0))
    query = PageQuery("msgBacklog", descending, limit=1)
    known = ["az", "ay"] if descending else ["ay", "az"]
    assert walk(both, query, None) == [*known, "ax"]


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGE, max_size=40), SIGHT)
def test_sums_are_those_of_a_look_at_every_row(changes: list[Any], sight: Sight | None) -> None:
    both = Both()
    for change in changes:
        both.apply(*change)
    scan = SumScan(both.table, {"msgRateIn"}, sight)
    while scan.step():
        pass
    for space in SPACES:
        rows = [
            row
            for name, row in both.rows.items()
            if row.space == space and row.place <= UNLOADED and _may(both, name, row, sight)
        ]
        at = both.table.space_of.get(space, -1)
        assert scan.rows.get(at, 0) == len(rows)
        loaded = [row.figures for row in rows if row.place == LOADED]
        if loaded:
            backlog, rate = scan.figures[at]
            assert backlog == sum(max(figures[0], 0.0) for figures in loaded)
            assert rate == max(figures[1] for figures in loaded)


def test_a_step_adds_to_a_bounded_number_of_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an addition to all figures: a slice of as many namespaces as rows took 7 ms."""
    monkeypatch.setattr(figure_table, "SLICE_ROWS", 1_000)
    table = FigureTable(FIELDS)
    for number in range(500):
        table.add(number, str(number), f"t/n{number % 250}", LOADED)
    scan, before, goes_on = SumScan(table, {"msgRateIn"}), 0, True
    while goes_on:
        goes_on = scan.step()
        added, before = sum(scan.rows.values()) - before, sum(scan.rows.values())
        assert 0 < added <= 64
    assert [*scan.rows.values()] == [2] * 250


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CHANGE, st.integers(0, 2)), max_size=40), QUERY)
def test_merged_pages_of_brokers_are_one_brokers(changes: list[Any], query: PageQuery) -> None:
    """Each topic is at one of three brokers; the pages of the three, walked, are those of one."""
    whole, parts = Both(), [Both(), Both(), Both()]
    for change, _ in changes:
        at = NAMES.index(change[0]) % 3
        whole.apply(*change)
        parts[at].apply(*change)
    found: list[str] = []
    after: str | None = None
    while True:
        key = None if after is None else parse_key(after, query.sort)
        asked = PageQuery(**{**_fields(query), "after": key})
        page = merged([_answer(part, asked) for part in parts], asked)
        found += [row["topic"] for row in page.rows]
        after = page.to_json("topics", asked, {})["next"]
        if after is None:
            break
    assert found == expected(whole, query, None)[0]
    assert page.matching == expected(whole, query, None)[1]["matching"]


def _answer(part: Both, query: PageQuery) -> PageAnswer:
    page, table = run(part.table, query, None).page, part.table
    rows = []
    for slot in page.slots:
        figures = [None if each == UNKNOWN else each for each in table.figures(slot)]
        rows.append(
            {
                "topic": table.names[slot],
                "broker": "b" if table.places[slot] == LOADED else None,
                **dict(zip(FIELDS, figures, strict=True)),
            }
        )
    return PageAnswer(1, page.total, page.matching, page.views, rows, has_more=page.has_more)


@pytest.mark.parametrize("text", ["", "1.0", "x:t", "nan:t", ":t"])
def test_a_key_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not the `next`|could not convert"):
        parse_key(text, "msgBacklog")


def test_a_version_is_another_one_whenever_something_changed() -> None:
    table = FigureTable(FIELDS)
    slot = table.add("a", "a", "t/one", LOADED)
    table.set(slot, (1.0, 2.0))
    version = table.version
    table.set(slot, (1.0, 2.0))
    table.move(slot, LOADED)
    assert table.version == version
    table.set(slot, (1.0, 3.0))
    assert table.version != version


def test_a_row_moves_one_array_or_list_at_most() -> None:
    """All at once, those of 100,000 rows would hold the loop for some milliseconds."""
    table = FigureTable(FIELDS)
    met = table.numbers("q", -1)
    texts = (table.keys, table.names, table.folded, table.groups)
    by_slot: tuple[Sized, ...] = (met, *table.columns.values(), *texts, table.places, table.spaces)
    before = [len(each) for each in by_slot]
    for number in range(2_500):
        assert table.add(number, f"Name {number}", "t/one", UNLOADED) == number
        assert (met[number], table.figures(number)) == (-1, [UNKNOWN] * len(FIELDS))
        after = [len(each) for each in by_slot]
        assert sum(one != other for one, other in zip(before, after, strict=True)) <= 1
        before = after
    assert table.end == len(table) == 2_500
    rows = (table.keys, table.names, table.folded)
    assert [each[2_499] for each in rows] == [2_499, "Name 2499", "name 2499"]


def test_keys_are_spread_over_small_dictionaries() -> None:
    table = FigureTable(FIELDS)
    for number in range(6_400):
        table.add(f"persistent://public/default/topic-{number}", "", "t/one", UNLOADED)
    sizes = [len(part) for part in table.slot_of.parts]
    assert sum(sizes) == 6_400
    assert max(sizes) < 200
