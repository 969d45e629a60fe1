"""A page of rows as brokers answer it; pages of several brokers become one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from magnetar.broker.index.figure_table import PageKey, PageQuery, turned
from magnetar.broker.index.topic_figures import (
    GREATEST,
    GREATEST_OF_PARTITIONS,
    catch_up_seconds,
    kept,
    shown,
)
from magnetar.metadata.loop_turns import Steps

_READ: Final = ("topicsRead", "topicsLoaded")
Row: TypeAlias = dict[str, Any]
"""Of an answer: ``topic``, of subscriptions ``subscription``, and the figures by their names."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """What one broker, or all together, have found."""

    as_of_ms: int
    """When the figures were taken; of several brokers the oldest ones'."""
    total: int
    matching: int
    views: dict[str, int]
    rows: list[Row]
    has_more: bool = field(kw_only=True)
    is_complete: bool = field(default=True, kw_only=True)
    """Whether all topics were looked at; only who asks for a part gets one."""
    read: tuple[int, int] = field(default=(0, 0), kw_only=True)
    """Loaded topics that were looked at, and all that are loaded."""

    def to_json(self, rows_name: str, query: PageQuery, silent: dict[str, str]) -> dict[str, Any]:
        """The answer of the route, whose rows are called so. ``silent``: reasons by broker."""
        last = self.rows[-1] if self.rows and self.has_more else None
        return {
            "asOf": self.as_of_ms,
            "total": self.total,
            "matching": self.matching,
            "views": self.views,
            rows_name: self.rows,
            "next": None if last is None else key_text(_key_of(last, query.sort)),
            "complete": self.is_complete,
            **read_json(self.read),
            "silentBrokers": silent,
        }

    @classmethod
    def of_json(cls, document: dict[str, Any], rows_name: str) -> PageAnswer:
        return cls(
            document["asOf"],
            document["total"],
            document["matching"],
            document["views"],
            document[rows_name],
            has_more=document["next"] is not None,
            is_complete=document.get("complete", True),  # brokers of before answer with all
            read=read_of(document),
        )


def merged(pages: Sequence[PageAnswer], query: PageQuery) -> PageAnswer:
    """The first rows of all pages, which are in the query's order; REQUIRES: a page.

    Of a topic that two brokers tell of, as it has just moved, only the loaded one counts.
    """
    rows: dict[str, Row] = {}
    for row in (row for page in pages for row in page.rows):
        name = _name_of(row)
        if (known := rows.get(name)) is None:
            rows[name] = row
        elif row.get("partitions") or known.get("partitions"):
            rows[name] = with_parts(known, row)
        elif known["broker"] is None:
            rows[name] = row
    found = list(rows.values())
    if query.sort:

        def place(row: Row) -> tuple[float, str]:
            figure = kept(query.sort, row[query.sort])
            return turned(figure, descending=query.descending), _name_of(row)

        found.sort(key=place)
    else:
        found.sort(key=_name_of, reverse=query.descending)
    return PageAnswer(
        min(page.as_of_ms for page in pages),
        sum(page.total for page in pages),
        sum(page.matching for page in pages),
        {view: sum(page.views.get(view, 0) for page in pages) for view in pages[0].views},
        found[: query.limit],
        has_more=len(found) > query.limit or any(page.has_more for page in pages),
        is_complete=all(page.is_complete for page in pages),
        read=read_together([page.read for page in pages]),
    )


def read_json(read: tuple[int, int]) -> dict[str, int]:
    return dict(zip(_READ, read, strict=True))


def read_of(document: dict[str, Any]) -> tuple[int, int]:
    """Of an answer; brokers of before don't tell it."""
    read, loaded = (document.get(name, 0) for name in _READ)
    return read, loaded


def read_together(reads: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Of several brokers."""
    read, loaded = map(sum, zip(*reads, strict=True))
    return read, loaded


def merged_sums(answers: Sequence[dict[str, Row]]) -> Steps[dict[str, Row]]:
    """Sums by namespace of all brokers, from those of each; a step for each namespace."""
    found: dict[str, Row] = {}
    for namespace, row in (each for answer in answers for each in answer.items()):
        known = found.get(namespace)
        found[namespace] = row if known is None else _sum(known, row, GREATEST)
        yield
    return found


def with_parts(one: Row, other: Row) -> Row:
    """A partitioned topic of which two brokers have partitions."""
    where = one["broker"] if one["broker"] == other["broker"] else None
    left_out = ("topic", "broker", "catchUpSeconds", "history")
    figures = [
        {name: value for name, value in row.items() if name not in left_out} for row in (one, other)
    ]
    row = _sum(figures[0], figures[1], GREATEST_OF_PARTITIONS)
    return {
        "topic": one["topic"],
        "broker": where,
        **row,
        "catchUpSeconds": catch_up_seconds(row),
    }


def _sum(one: Row, other: Row, greatest: Collection[str]) -> Row:
    """Figures of two parts; one that is unknown leaves the other."""
    found = one.copy()
    for name, value in other.items():
        if (before := found.get(name)) is None:
            found[name] = value
        elif value is not None:
            largest = max(kept(name, before), kept(name, value))
            found[name] = shown(name, largest) if name in greatest else before + value
    return found


def key_text(key: PageKey) -> str:
    """The text of ``after``: a figure, none when names are sorted, and a name behind it."""
    figure, name = key
    return f"{'' if figure is None else repr(figure)}:{name}"


def parse_key(text: str, sort: str) -> PageKey:
    """The inverse. Raises ValueError: not such a text, or one of another order."""
    figure, separator, name = text.partition(":")
    if not separator or bool(figure) != bool(sort) or figure == "nan":
        raise ValueError("not the `next` of a page in this order")
    return (float(figure) if figure else None, name)


def _key_of(row: Row, sort: str) -> PageKey:
    return (kept(sort, row[sort]) if sort else None, _name_of(row))


def _name_of(row: Row) -> str:
    """As the names in a table."""
    subscription = row.get("subscription")
    topic: str = row["topic"]
    return topic if subscription is None else f"{topic}\n{subscription}"
