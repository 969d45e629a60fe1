"""The schema: what Spark makes of it, and what users may ask for."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.row_columns import (
    COLUMNS,
    SCHEMA_DDL,
    SPARK_TYPES,
    arrow_schema,
    check_schema,
)

_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def test_batches_have_exactly_the_schema_that_spark_compares_them_with() -> None:
    fields = [StructField(name, _TYPES[kind]) for name, kind in SPARK_TYPES.items()]
    schema = StructType(fields)
    assert check_schema((field.name, field.dataType.simpleString()) for field in fields) == COLUMNS
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(COLUMNS))


def test_the_schema_as_text() -> None:
    assert SCHEMA_DDL.startswith("key BINARY, value BINARY, topic STRING, partition INT, ledgerId ")
    assert SCHEMA_DDL.endswith("schemaVersion BINARY, deliverAt TIMESTAMP")
    assert SCHEMA_DDL.count(", ") + 1 == len(COLUMNS) == 15


def test_a_part_of_the_columns_in_another_order() -> None:
    names = check_schema([("value", "binary"), ("ledgerId", "bigint"), ("key", "binary")])
    assert names == ("value", "ledgerId", "key")
    fields = [("value", pa.binary()), ("ledgerId", pa.int64()), ("key", pa.binary())]
    assert arrow_schema(names) == pa.schema(fields)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ([("Value", "binary")], "no column 'Value'"),
        ([("value", "string")], "column value is of type binary, not string"),
        ([("properties", "map<string,bigint>")], "of type map<string,string>, not map"),
        ([("key", "binary"), ("key", "binary")], "key is there twice"),
        ([], "without columns"),
    ],
)
def test_other_schemas_are_refused(schema: list[tuple[str, str]], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        check_schema(schema)
