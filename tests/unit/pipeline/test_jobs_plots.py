"""Pictures of reports: whole, with what they should tell, whatever names there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from magnetar.pipeline.errors import JobError
from magnetar.pipeline.jobs.load import (
    BROKER_COLUMNS,
    BUNDLE_COLUMNS,
    KEY_COLUMNS,
    BundleLoad,
    KeyLoad,
)
from magnetar.pipeline.jobs.plots import FORMATS, check_file, draw_backlog, draw_bundles, draw_keys
from magnetar.pipeline.jobs.skew import skew_stats
from magnetar.pipeline.jobs.tables import ReportTable

ODD = "a$b_{c}$ 日本 <x> & y"
HEADS = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}


def backlog(count: int) -> ReportTable:
    rows = [
        {
            "topic": f"persistent://public/default/{ODD}",
            "partition": number - 1,
            "subscription": f"s{number}",
            "messages": number * 10,
            "bytes": number * 1000,
            "oldestSeconds": None if number % 2 else 60.0 * number,
            "consumers": number % 2,
        }
        for number in range(count)
    ]
    return ReportTable("backlog", {}, rows)


def bundles(count: int) -> BundleLoad:
    zeros = dict.fromkeys(BUNDLE_COLUMNS, 0)
    rows: list[dict[str, Any]] = [
        {**zeros, "bundle": f"n/{number}", "broker": f"b{number % 9}", "rate": float(number)}
        for number in range(count)
    ]
    brokers = [{**dict.fromkeys(BROKER_COLUMNS, 0), "broker": f"b{number}"} for number in range(9)]
    return BundleLoad(
        ReportTable("bundles", BUNDLE_COLUMNS, rows),
        ReportTable("brokers", BROKER_COLUMNS, brokers),
    )


def keys(count: int) -> KeyLoad:
    rows = [
        {"key": f"{ODD}{number}", "messages": 9, "bytes": 1, "share": 0.1, "slot": 1}
        for number in range(count)
    ]
    return KeyLoad(
        *("t", ReportTable("keys", KEY_COLUMNS, rows), 100, 10, count, 0.5, 0.3),
        {-1: 100} if count else {},
        [count] * 64,
        skew_stats([count] * 4),
    )


DRAWINGS: list[Callable[[int, Path], None]] = [
    lambda count, path: draw_backlog(backlog(count), "messages", path),
    lambda count, path: draw_backlog(backlog(count), "oldestSeconds", path),
    lambda count, path: draw_bundles(bundles(count), "rate", path),
    lambda count, path: draw_keys(keys(count), path),
]


@pytest.mark.filterwarnings("ignore:Glyph")  # of fonts without Japanese: a box is drawn
@pytest.mark.parametrize("draw", DRAWINGS)
@pytest.mark.parametrize("count", [0, 1, 60])
def test_pictures(draw: Callable[[int, Path], None], count: int, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    draw(count, path)
    ElementTree.parse(path)
    assert path.read_text().count("<path") > 5


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("suffix", FORMATS)
def test_formats(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"plot{suffix}"
    check_file(path)
    draw_keys(keys(3), path)
    assert path.read_bytes().startswith(HEADS[suffix])


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="a plot is one of"):
        check_file(tmp_path / "plot.gif")
    with pytest.raises(JobError, match="there is no folder"):
        check_file(tmp_path / "nowhere" / "plot.svg")
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(JobError, match=r"taken\.svg"):
        draw_backlog(backlog(1), "messages", tmp_path / "taken.svg")
