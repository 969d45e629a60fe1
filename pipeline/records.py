"""Values of a topic decoded by its schema: a column ``record`` beside the others."""

import struct
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import arrow_udf

from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.pipeline.admin import Admin, ClusterAccess, NoSuchTopicError, parse_access
from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.record_types import SchemaError, SchemaVersion, ValueDecoder

__all__ = ["COLUMN", "records"]

COLUMN: Final = "record"
_NEEDED: Final = ("value", "schemaVersion")
_NAMING: Final = ("topic", "ledgerId", "entryId", "batchIndex")
"""Columns that errors name a message by; those that a table has."""
_VERSION: Final = struct.Struct(">q")  # as clients carry the version of a schema


def records(table: DataFrame, topic: str, **options: object) -> DataFrame:
    """The table with one more column, ``record``: the value as the topic's newest schema has it.

    The type is that of the newest version when this is called; each row is decoded by the version
    it was written with. docs/guides/spark.md has the types.

    Args:
        table: or stream, of the format ``magnetar``; needs the columns value and schemaVersion.
            Errors name a message by ledgerId, entryId and batchIndex, where they are there.
        topic: whose schema it is; rows of others are an error where the column topic tells them.
        options: adminUrl and those for credentials, as the format has them; ``malformed``:
            ``fail`` (default), or ``null`` for a record of null where a value isn't of its schema.
    Raises:
        OptionsError; SchemaError: the topic has no schema, or one without a type of Spark.
        SegmentsUnavailableError: no broker answers.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    cluster = parse_access(given)
    if (malformed := given.get("malformed", "fail").lower()) not in ("fail", "null"):
        raise OptionsError(f"option malformed is fail or null, not {malformed!r}")
    if missing := [name for name in _NEEDED if name not in table.columns]:
        raise OptionsError(f"the table has no column {missing[0]}, which records are made of")
    if COLUMN in (name.lower() for name in table.columns):
        raise OptionsError(f"the table has a column {COLUMN} already")
    try:
        name = TopicName.parse(topic).base
    except InvalidTopicNameError as error:
        raise OptionsError(str(error)) from error
    rows = _Rows(cluster, name, malformed == "null")
    columns = [*_NEEDED, *(name for name in _NAMING if name in table.columns)]

    def decode(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        decoder = rows.make_decoder()
        for arrays in batches:
            batch = pa.RecordBatch.from_arrays(list(arrays), names=columns)
            yield pa.array(rows.shapes(batch, decoder), decoder.type.arrow)

    # mapInArrow() would need pandas, and hide filters from the source.
    kind = rows.make_decoder().type.spark
    as_column = arrow_udf(decode, kind)  # type: ignore[call-overload] # stubs know no iterators
    return table.withColumn(COLUMN, as_column(*(table[name] for name in columns)))


class _Rows:
    """A topic's schema as tasks have it; Spark pickles it to them."""

    def __init__(self, cluster: ClusterAccess, topic: TopicName, null_for_malformed: bool) -> None:
        """Asks a broker. Raises SchemaError, SegmentsUnavailableError."""
        self._cluster = cluster
        self._topic = topic
        self._null_for_malformed = null_for_malformed
        self._versions = self._ask()
        self._newest = self._versions[max(self._versions)]

    def make_decoder(self) -> ValueDecoder:
        try:
            return ValueDecoder(self._newest)
        except SchemaError as error:
            raise SchemaError(f"topic {self._topic}: {error}") from error

    def shapes(self, batch: pa.RecordBatch, decoder: ValueDecoder) -> list[Any]:
        """Decode the values of some rows. Raises SchemaError, which names the message."""
        if "topic" in batch.schema.names:
            for other in batch.column("topic").unique().to_pylist():
                if other not in (None, str(self._topic)):
                    raise SchemaError(
                        f"a row of topic {other}; the schema is that of {self._topic}: "
                        "select its rows before they are decoded"
                    )
        shapes: list[Any] = []
        values, versions = (batch.column(name).to_pylist() for name in _NEEDED)
        for row, (value, version) in enumerate(zip(values, versions, strict=True)):
            try:
                shapes.append(
                    None if value is None else decoder.decode(value, self._writer(version))
                )
            except SchemaError as error:
                raise SchemaError(f"{self._name(batch, row)}: {error}") from error
            except ValueError as error:
                if not self._null_for_malformed:
                    raise SchemaError(
                        f"{self._name(batch, row)} isn't of its schema: {error}; option "
                        "malformed=null makes records of null of such values"
                    ) from error
                shapes.append(None)
        return shapes

    def _writer(self, data: bytes | None) -> SchemaVersion:
        """The version a row names; the newest, where its producer had no schema."""
        if not data:
            return self._newest
        if len(data) != _VERSION.size:
            raise SchemaError(f"schemaVersion {data.hex()} is none of this broker's")
        (version,) = _VERSION.unpack(data)
        if version not in self._versions:  # a stream lives longer than a schema is the newest
            self._versions = self._ask()
        if version not in self._versions:
            known = ", ".join(map(str, sorted(self._versions)))
            raise SchemaError(
                f"version {version} of the schema is unknown (known: {known}); was it deleted?"
            )
        return self._versions[version]

    def _ask(self) -> dict[int, SchemaVersion]:
        topic = self._topic
        path = f"/admin/v2/schemas/{quote(topic.namespace)}/{quote(topic.local, safe='')}/schemas"
        try:
            with Admin(self._cluster) as admin:
                found = admin.get(path, str(topic))["getSchemaResponses"]
        except NoSuchTopicError as error:
            raise SchemaError(
                f"topic {topic} has no schema: {error}; use the column value as it is"
            ) from error
        return {
            each["version"]: SchemaVersion(each["version"], each["type"], each["data"])
            for each in found
        }

    def _name(self, batch: pa.RecordBatch, row: int) -> str:
        """How an error names a message."""
        columns = (name for name in _NAMING[1:] if name in batch.schema.names)
        numbers = [batch.column(name)[row].as_py() for name in columns]
        place = ":".join(str(each) for each in numbers if each != -1)
        return f"topic {self._topic}: message {place or '(the table has no column ledgerId)'}"
