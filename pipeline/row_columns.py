"""The columns of a row: names, Spark and Arrow types, and which a user asked for. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from magnetar.pipeline.errors import OptionsError

SPARK_TYPES: Final[dict[str, str]] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "ledgerId": "bigint",
    "entryId": "bigint",
    "batchIndex": "int",
    "publishTime": "timestamp",
    "eventTime": "timestamp",
    "properties": "map<string,string>",
    "producerName": "string",
    "sequenceId": "bigint",
    "orderingKey": "binary",
    "schemaVersion": "binary",
    "deliverAt": "timestamp",
}
"""Name -> type as Spark writes it (``DataType.simpleString()``), in the order of the schema."""
COLUMNS: Final = tuple(SPARK_TYPES)
SCHEMA_DDL: Final = ", ".join(f"{name} {kind.upper()}" for name, kind in SPARK_TYPES.items())
"""The schema of this source where the user gives none."""

_ARROW: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    name: _ARROW[kind] for name, kind in SPARK_TYPES.items()
}
"""Name -> exactly the type that Spark compares a batch's with."""


def check_schema(names_and_types: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The columns a user's schema asks for, in its order.

    Args:
        names_and_types: of each field the name and ``DataType.simpleString()``. Names count as
            written: Spark keeps the user's case in the schema that batches are compared with.
    Raises:
        OptionsError: an unknown name, another type than ours, a name twice, or no column at all.
    """
    names: list[str] = []
    for name, kind in names_and_types:
        wanted = SPARK_TYPES.get(name)
        if wanted is None:
            raise OptionsError(f"there is no column {name!r}; there are: {SCHEMA_DDL}")
        if kind != wanted:
            raise OptionsError(f"column {name} is of type {wanted}, not {kind}")
        if name in names:
            raise OptionsError(f"column {name} is there twice")
        names.append(name)
    if not names:
        raise OptionsError(f"a schema without columns; there are: {SCHEMA_DDL}")
    return tuple(names)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of record batches with these columns; all may be null, as Spark has it."""
    return pa.schema([(name, ARROW_TYPES[name]) for name in columns])
