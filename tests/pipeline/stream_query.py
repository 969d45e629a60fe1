"""A query of the streaming source without Spark: what its driver does with the reader."""

import json
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from magnetar.pipeline.admin import parse_access
from magnetar.pipeline.options import parse_read_options, parse_trigger_limits
from magnetar.pipeline.row_columns import COLUMNS
from magnetar.pipeline.stream_source import StreamReader
from tests.pipeline.topics import Addresses, Sent


class Query:
    """What Spark does with the reader, and what it keeps in the checkpoint."""

    def __init__(
        self, at: Addresses, offset: dict[str, Any] | None = None, **options: object
    ) -> None:
        texts = {name: str(value) for name, value in options.items()}
        texts = {"adminUrl": at.admin_url, "startingOffsets": "earliest", **texts}
        self.reader = StreamReader(
            parse_access(texts),
            COLUMNS,
            parse_read_options(texts, streaming=True),
            parse_trigger_limits(texts),
        )
        try:
            self.offset = self.reader.initialOffset() if offset is None else offset
        except BaseException:
            self.reader.stop()
            raise

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        return json_round_trip(self.reader.latestOffset(self.offset, limit))

    def read(self, end: dict[str, Any]) -> list[Sent]:
        """The rows up to ``end``, task after task; each task gets a reader that travelled."""
        rows = []
        for part in self.reader.partitions(self.offset, end):
            away = pickle.loads(pickle.dumps(self.reader))
            rows += rows_in(away.read(pickle.loads(pickle.dumps(part))))
        return rows

    def batch(self, limit: ReadLimit | None = None) -> list[Sent]:
        """One batch, committed."""
        end = self.plan(limit)
        rows = [] if end == self.offset else self.read(end)
        self.reader.commit(end)
        self.offset = end
        return rows

    def drain(self) -> list[list[Sent]]:
        """All batches with rows."""
        batches = []
        while self.plan() != self.offset:
            batches.append(self.batch())
        return [batch for batch in batches if batch]


def rows_in(batches: Iterable[pa.RecordBatch]) -> list[Sent]:
    return [_sent(row) for batch in batches for row in batch.to_pylist()]


def json_round_trip(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def _sent(row: dict[str, Any]) -> Sent:
    return Sent(
        value=row["value"],
        key=None if row["key"] is None else row["key"].decode(),
        properties=dict(row["properties"]),
        ledger_id=row["ledgerId"],
        entry_id=row["entryId"],
        batch_index=row["batchIndex"],
        partition=row["partition"],
    )


def numbered(count: int, first: int = 0) -> list[tuple[bytes, str | None, dict[str, str]]]:
    return [(b"value-%d" % n, f"key-{n % 7}", {"n": str(n)}) for n in range(first, first + count)]
