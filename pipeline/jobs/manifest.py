"""The record of one export run: which messages are in which files. Pure.

An export is a folder: ``_manifests/000001.json``, ... and the files they name, below one folder for
each run. A run exists when its manifest does. Ranges of runs follow each other without gap or
overlap, so that all manifests together say exactly which messages the export holds.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.pipeline.errors import BrokenExportError, OptionsError
from magnetar.pipeline.offsets import Offset, Offsets, offset_from_json, offset_to_json

FORMAT: Final = "magnetar-export"
VERSION: Final = 1
MANIFESTS: Final = "_manifests"
REPLAYS: Final = "_replays"
_NAME: Final = re.compile(r"(\d{6,})\.json")
_RUN: Final = re.compile(r"run=\d{6,}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a run.

    Attributes:
        path: relative to the export, ``/`` between its parts.
        size: in bytes.
    """

    path: str
    size: int
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """The messages of one partition in a run: ``start <= message < end``.

    Attributes:
        lost_from: messages from here to ``start`` were gone, and the user said that this is fine;
            None: nothing was.
    """

    start: Offset
    end: Offset
    rows: int
    lost_from: Offset | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One run.

    Attributes:
        export: id of the whole export, the same in all of its runs.
        number: 1, 2, ...; run ``number`` begins where the ones before it ended.
        run: folder of its files.
        instance_id: of the cluster of bookies; "": unknown.
        schema: of the rows, as Spark's DDL, with the columns that are in paths.
        spans: by full name of the partition.
    """

    export: str
    number: int
    run: str
    created_at: str
    magnetar: str
    spark: str
    instance_id: str
    schema: str
    spans: Mapping[str, ExportedRange]
    files: Sequence[DataFile] = field(default_factory=tuple)

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans.values())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)

    def to_json(self) -> str:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "export": self.export,
            "number": self.number,
            "run": self.run,
            "createdAt": self.created_at,
            "magnetar": self.magnetar,
            "spark": self.spark,
            "instanceId": self.instance_id,
            "schema": self.schema,
            "rows": self.rows,
            "bytes": self.size,
        }
        # A line for each partition and each file, so that people can read it.
        fields = [f"{_json(name)}: {_json(value)}" for name, value in head.items()]
        spans = [
            f"{_json(name)}: {_json(_span_to_json(self.spans[name]))}"
            for name in sorted(self.spans)
        ]
        files = [
            _json({"path": each.path, "bytes": each.size, "rows": each.rows, "sha256": each.sha256})
            for each in self.files
        ]
        fields.append(f'"partitions": {{{_lines(spans)}}}')
        fields.append(f'"files": [{_lines(files)}]')
        return "{\n " + ",\n ".join(fields) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """
        Args:
            where: name of the file, for errors.
        Raises:
            BrokenExportError: not a manifest that this version can read.
        """
        try:
            value = json.loads(text)
            if value["format"] != FORMAT:
                raise BrokenExportError(f"{where}: not a manifest of an export")
            if value["version"] != VERSION:
                raise BrokenExportError(
                    f"{where}: version {value['version']!r} of manifests; this package knows "
                    f"{VERSION}"
                )
            manifest = cls(
                export=str(value["export"]),
                number=int(value["number"]),
                run=str(value["run"]),
                created_at=str(value["createdAt"]),
                magnetar=str(value["magnetar"]),
                spark=str(value["spark"]),
                instance_id=str(value["instanceId"]),
                schema=str(value["schema"]),
                spans={
                    str(name): _span_from_json(span) for name, span in value["partitions"].items()
                },
                files=tuple(_file_from_json(each) for each in value["files"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BrokenExportError(f"{where}: not a manifest of an export: {error!r}") from error
        if _RUN.fullmatch(manifest.run) is None:
            raise BrokenExportError(f"{where}: no folder of a run: {manifest.run!r}")
        for each in manifest.files:
            if not each.path.startswith(f"{manifest.run}/") or ".." in each.path.split("/"):
                raise BrokenExportError(f"{where}: a file of another folder: {each.path!r}")
        if sum(each.rows for each in manifest.files) != manifest.rows:
            raise BrokenExportError(f"{where}: rows of files and of partitions differ")
        return manifest


def run_folder(number: int, unique: str) -> str:
    """``run=000001-0a1b2c3d``; ``unique`` tells attempts apart: a folder is never used again."""
    folder = f"run={number:06}-{unique}"
    assert _RUN.fullmatch(folder), folder
    return folder


def file_name(number: int) -> str:
    """The name of a manifest's file."""
    return f"{number:06}.json"


def number_of(name: str) -> int | None:
    """Inverse of `file_name`; None: not a manifest's name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def check_chain(manifests: Sequence[Manifest]) -> None:
    """Do the runs make up one export?

    Args:
        manifests: all there are, ascending by number.
    Raises:
        BrokenExportError: one is missing, or they are of several exports.
    """
    ends: Offsets = {}
    for number, each in enumerate(manifests, 1):
        if each.number != number:
            raise BrokenExportError(f"manifest {file_name(number)} is missing")
        if each.export != manifests[0].export:
            raise BrokenExportError(f"manifest {file_name(number)} is of another export")
        for name, span in each.spans.items():
            begin = span.start if span.lost_from is None else span.lost_from
            if begin != ends.get(name, begin) or span.end < span.start:
                raise BrokenExportError(
                    f"manifest {file_name(number)}: {name} goes from {begin} to {span.end}, but "
                    f"the run before it ended at {ends.get(name)}"
                )
            ends[name] = span.end


def ends_of(manifests: Iterable[Manifest]) -> Offsets:
    """How far the export goes in each partition."""
    ends: Offsets = {}
    for each in manifests:
        ends.update((name, span.end) for name, span in each.spans.items())
    return ends


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(items: Sequence[str]) -> str:
    return "".join(f"{',' if index else ''}\n  {item}" for index, item in enumerate(items))


def _span_to_json(span: ExportedRange) -> dict[str, Any]:
    value: dict[str, Any] = {
        "start": offset_to_json(span.start),
        "end": offset_to_json(span.end),
        "rows": span.rows,
    }
    if span.lost_from is not None:
        value["lostFrom"] = offset_to_json(span.lost_from)
    return value


def _span_from_json(value: Mapping[str, Any]) -> ExportedRange:
    lost = value.get("lostFrom")
    try:
        return ExportedRange(
            offset_from_json(value["start"]),
            offset_from_json(value["end"]),
            int(value["rows"]),
            None if lost is None else offset_from_json(lost),
        )
    except OptionsError as error:
        raise ValueError(str(error)) from error


def _file_from_json(value: Mapping[str, Any]) -> DataFile:
    return DataFile(
        str(value["path"]), int(value["bytes"]), int(value["rows"]), str(value["sha256"])
    )
