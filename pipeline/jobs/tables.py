"""Rows of a report as text, JSON or Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from magnetar.pipeline.errors import JobError

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """
    Attributes:
        columns: name -> Arrow's name of its type (``string``, ``int64``, ``float64``); None of any
            type is allowed.
    """

    name: str
    columns: Mapping[str, str]
    rows: Sequence[Row]

    def sorted_by(self, column: str) -> "ReportTable":
        """The largest first; rows without the value last."""
        rows = sorted(
            self.rows, key=lambda row: (row[column] is not None, row[column] or 0), reverse=True
        )
        return replace(self, rows=rows)

    def to_text(self) -> str:
        """Columns side by side; numbers to the right."""
        cells = [[_cell(row[name]) for name in self.columns] for row in self.rows]
        widths = [
            max(len(name), *(len(line[index]) for line in cells), 0)
            for index, name in enumerate(self.columns)
        ]
        numeric = [kind != "string" for kind in self.columns.values()]
        lines = [list(self.columns), *cells]
        return "\n".join(
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
            for line in lines
        )

    def write_parquet(self, path: Path) -> None:
        """
        Raises:
            JobError: the file can't be written.
        """
        import pyarrow as pa
        import pyarrow.parquet as parquet

        schema = pa.schema([(name, kind) for name, kind in self.columns.items()])
        table = pa.Table.from_pylist([dict(row) for row in self.rows], schema)
        try:
            parquet.write_table(table, path)
        except OSError as error:
            raise JobError(f"{path}: {error}") from error


def age_text(seconds: float | None) -> str:
    """``3d 4h``, ``5m 10s``; "-": unknown."""
    if seconds is None:
        return "-"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)
