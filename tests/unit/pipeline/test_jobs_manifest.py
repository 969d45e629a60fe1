"""Manifests of exports: text and back, what they refuse, and whether runs follow each other."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.errors import BrokenExportError
from magnetar.pipeline.jobs.manifest import (
    DataFile,
    ExportedRange,
    Manifest,
    check_chain,
    ends_of,
    file_name,
    number_of,
    run_folder,
)
from magnetar.pipeline.offsets import Offset

TOPIC = "persistent://public/default/orders-partition-0"
OTHER = "persistent://public/default/orders-partition-1"


def manifest(number: int, spans: dict[str, ExportedRange], export: str = "e1") -> Manifest:
    run = run_folder(number, "0a1b2c3d")
    rows = sum(span.rows for span in spans.values())
    files = (DataFile(f"{run}/topic=x/part-0.parquet", 100, rows, "ff" * 32),) if rows else ()
    return Manifest(
        export, number, run, "2026-11-23T00:00:00+00:00", "0.1", "4.3", "i", "a int", spans, files
    )


def span(first: int, end: int, lost_from: int | None = None) -> ExportedRange:
    lost = None if lost_from is None else Offset(7, lost_from)
    return ExportedRange(Offset(7, first), Offset(7, end), end - first, lost)


numbers = st.integers(min_value=0, max_value=2**63 - 1)
points = st.builds(Offset, numbers, numbers, st.integers(min_value=0, max_value=2**31 - 1))
spans_of_any_kind = st.builds(
    ExportedRange, points, points, st.integers(min_value=0, max_value=2**40), st.none() | points
)


@given(spans=st.dictionaries(st.text(min_size=1), spans_of_any_kind), instance=st.text())
def test_text_and_back(spans: dict[str, ExportedRange], instance: str) -> None:
    each = replace(manifest(3, spans), instance_id=instance)
    text = each.to_json()
    assert Manifest.from_json(text, "x") == each
    assert json.loads(text)["rows"] == each.rows


def test_a_line_for_each_partition_and_file() -> None:
    text = manifest(1, {TOPIC: span(0, 5), OTHER: span(2, 4)}).to_json()
    lines = [line.strip() for line in text.splitlines()]
    start = '"persistent://public/default/orders-partition-0": {"start": [7, 0], "end": [7, 5], '
    assert f'{start}"rows": 5}},' in lines


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "not a manifest"),
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"number": "x"}, "not a manifest"),
        ({"run": "../elsewhere"}, "no folder of a run"),
        ({"files": [{"path": "x", "bytes": 1, "rows": 5, "sha256": ""}]}, "another folder"),
        (
            {"files": [{"path": "{run}/../x", "bytes": 1, "rows": 5, "sha256": ""}]},
            "another folder",
        ),
        ({"files": []}, "differ"),
        ({"partitions": {TOPIC: {"start": [1], "end": [2, 3], "rows": 5}}}, "not a point"),
        ({"partitions": []}, "not a manifest"),
    ],
)
def test_what_is_refused(change: dict[str, object], says: str) -> None:
    whole = manifest(1, {TOPIC: span(0, 5)})
    value = json.loads(whole.to_json()) | change
    text = json.dumps(value).replace("{run}", whole.run)
    with pytest.raises(BrokenExportError, match=says) as error:
        Manifest.from_json(text, "folder/000001.json")
    assert "folder/000001.json" in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "{"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(BrokenExportError, match="not a manifest"):
        Manifest.from_json(text, "x")


def test_runs_that_follow_each_other() -> None:
    runs = [
        manifest(1, {TOPIC: span(0, 5)}),
        manifest(2, {TOPIC: span(5, 9), OTHER: span(1, 2)}),
        manifest(3, {OTHER: span(2, 2)}),
        manifest(4, {TOPIC: span(20, 30, lost_from=9)}),
    ]
    check_chain(runs)
    assert ends_of(runs) == {TOPIC: Offset(7, 30), OTHER: Offset(7, 2)}
    assert ends_of([]) == {}


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (manifest(3, {TOPIC: span(5, 9)}), "000002.json is missing"),
        (manifest(2, {TOPIC: span(5, 9)}, export="e2"), "another export"),
        (manifest(2, {TOPIC: span(6, 9)}), "ended at 7:5"),
        (manifest(2, {TOPIC: span(4, 9)}), "ended at 7:5"),
        (manifest(2, {TOPIC: span(20, 30, lost_from=6)}), "ended at 7:5"),
        (manifest(2, {TOPIC: ExportedRange(Offset(7, 5), Offset(7, 4), 0)}), "from 7:5 to 7:4"),
    ],
)
def test_runs_that_do_not(second: Manifest, says: str) -> None:
    with pytest.raises(BrokenExportError, match=says):
        check_chain([manifest(1, {TOPIC: span(0, 5)}), second])


def test_names() -> None:
    assert file_name(12) == "000012.json"
    assert number_of("000012.json") == 12
    assert number_of(file_name(12_345_678)) == 12_345_678
    assert [number_of(x) for x in (".000012.json.tmp", "12.json", "x", ".lock")] == [None] * 4
