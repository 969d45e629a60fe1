"""From Arrow's columns to the messages of the sink."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from magnetar.pipeline.errors import WriteError
from magnetar.pipeline.task_producers import RowMessage

_ROWS_AT_ONCE: Final = 1000
"""So many rows exist as Python objects at a time."""


def messages_of(batch: pa.RecordBatch, columns: Mapping[str, int]) -> Iterator[RowMessage]:
    """The rows of a batch in order.

    Args:
        columns: index by the names of `magnetar.pipeline.sink_options.COLUMNS`.
    Raises:
        WriteError: a row can't be a message; names the column.
    """
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        part = batch.slice(start, _ROWS_AT_ONCE)
        rows = part.num_rows
        lists = [
            _READERS[name](part.column(columns[name])) if name in columns else [None] * rows
            for name in _READERS
        ]
        yield from map(_message, *lists)


def _message(*values: Any) -> RowMessage:
    """
    Args:
        values: one of each column of `_READERS`.
    """
    row = RowMessage(*values)
    if row.deliver_ms is not None and row.deliver_after_ms is not None:
        raise WriteError("columns deliverAt and deliverAfter: a row may have one of them")
    # A character has at most three bytes as UTF-8.
    row.size = len(row.value or b"") + 3 * (len(row.key or "") + len(row.ordering_key or ""))
    if row.properties:
        row.size += sum(3 * (len(name) + len(text)) + 8 for name, text in row.properties.items())
    return row


def _values(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _text(name: str) -> Callable[[pa.Array], list[str | None]]:
    def texts(column: pa.Array) -> list[str | None]:
        values: list[Any] = column.to_pylist()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return values
        try:
            return [None if each is None else each.decode() for each in values]
        except UnicodeDecodeError as error:
            raise WriteError(
                f"column {name}: {error.object[:32]!r} is not UTF-8, and the client sends no other "
                f"keys; base64({name}) makes a text of it"
            ) from error

    return texts


def _list(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _maps(column: pa.Array) -> list[dict[str, str] | None]:
    maps = [None if each is None else dict(each) for each in column.to_pylist()]
    for each in maps:
        if each and None in each.values():
            name = next(name for name, text in each.items() if text is None)
            raise WriteError(f"column properties: the value of {name!r} is null")
    return maps


def _times_ms(name: str) -> Callable[[pa.Array], list[int | None]]:
    def times(column: pa.Array) -> list[int | None]:
        zone = column.type.tz
        values: list[int | None] = (
            column.cast(pa.timestamp("ms", zone), safe=False).cast(pa.int64()).to_pylist()
        )
        _refuse_negative(name, values, "is before 1970")
        return values

    return times


def _delays_ms(column: pa.Array) -> list[int | None]:
    values: list[int | None] = column.to_pylist()
    _refuse_negative("deliverAfter", values, "is negative")
    return values


def _refuse_negative(name: str, values: list[int | None], what: str) -> None:
    for value in values:
        if value is not None and value < 0:
            raise WriteError(f"column {name}: {value} ms {what}")


_READERS: Final[dict[str, Callable[[pa.Array], list[Any]]]] = {
    "value": _values,
    "key": _text("key"),
    "topic": _list,
    "partition": _list,
    "properties": _maps,
    "eventTime": _times_ms("eventTime"),
    "deliverAt": _times_ms("deliverAt"),
    "deliverAfter": _delays_ms,
    "orderingKey": _text("orderingKey"),
}
"""In the order of the fields of `RowMessage`."""
