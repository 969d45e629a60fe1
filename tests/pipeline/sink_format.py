"""The format of the tests of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.sink import make_stream_writer, make_writer
from pipeline.source import MagnetarDataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class SinkFormat(MagnetarDataSource):
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return make_stream_writer(self.options, schema, overwrite)
