"""Spark's filters spare ledgers and entries. Pure.

Nothing is taken over: Spark tests every filter again on the rows it gets. So a range here may be
too wide, never too narrow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import Filter

ALWAYS: Final = -3
"""``ledgerId > ALWAYS`` is true of every row, and says that filters may be obeyed; without it they
are ignored (see ``source.read_topics``).
"""

_MAX: Final = 2**63 - 1
_US_PER_MS: Final = 1000


@dataclass(slots=True)
class RowFilters:
    """Inclusive ranges of what rows may be wanted; None: any.

    Attributes:
        topics: full names without partition numbers.
        publish_ms: by the clock of producers.
    """

    ledger_ids: tuple[int, int] = (-1, _MAX)
    entry_ids: tuple[int, int] = (-1, _MAX)
    publish_ms: tuple[int | None, int | None] = (None, None)
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None


def wanted_by(filters: Iterable[Filter]) -> RowFilters:
    """The ranges that all filters together leave; everything, unless one of them is `ALWAYS`."""
    wanted = RowFilters()
    filters = list(filters)
    if not any(_is_always(each) for each in filters):
        return wanted
    for each in filters:
        attribute = getattr(each, "attribute", None)
        if attribute is None or len(attribute) != 1:
            continue
        name, kind = attribute[0], type(each).__name__
        value = getattr(each, "value", None)
        if name in ("partition", "topic"):
            _narrow_set(wanted, name, kind, each)
        elif name == "publishTime" and isinstance(value, datetime):
            lowest, highest = _range(kind, _microseconds(value))
            # A row's publish time is a whole number of milliseconds.
            _narrow_time(wanted, -(-lowest // _US_PER_MS), highest // _US_PER_MS)
        elif name in ("ledgerId", "entryId") and isinstance(value, int):
            lowest, highest = _range(kind, value)
            field_name = "ledger_ids" if name == "ledgerId" else "entry_ids"
            before = getattr(wanted, field_name)
            setattr(wanted, field_name, (max(before[0], lowest), min(before[1], highest)))
    return wanted


def _is_always(each: Any) -> bool:
    return (
        type(each).__name__ == "GreaterThan"
        and each.attribute == ("ledgerId",)
        and each.value == ALWAYS
    )


def _range(kind: str, value: int) -> tuple[int, int]:
    """Whole numbers that pass a comparison."""
    match kind:
        case "EqualTo" | "EqualNullSafe":
            return value, value
        case "GreaterThan":
            return max(-1, value + 1), _MAX
        case "GreaterThanOrEqual":
            return value, _MAX
        case "LessThan":
            return -1, value - 1
        case "LessThanOrEqual":
            return -1, value
    return -1, _MAX


def _narrow_time(wanted: RowFilters, lowest: int, highest: int) -> None:
    first, last = wanted.publish_ms
    if lowest > 0:
        first = lowest if first is None else max(first, lowest)
    if highest < _MAX // _US_PER_MS:
        last = highest if last is None else min(last, highest)
    wanted.publish_ms = (first, last)


def _narrow_set(wanted: RowFilters, name: str, kind: str, each: Any) -> None:
    if kind in ("EqualTo", "EqualNullSafe"):
        values = {each.value}
    elif kind == "In":
        values = set(each.value)
    else:
        return
    if name == "partition":
        before = wanted.partitions
        wanted.partitions = frozenset(values if before is None else before & values)
    else:
        earlier = wanted.topics
        wanted.topics = frozenset(values if earlier is None else earlier & values)


def _microseconds(moment: datetime) -> int:
    """Since the epoch. Spark gives instants with a time zone; one without is UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
