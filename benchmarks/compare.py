"""Turn two outputs of the comparison loads into a Markdown table with ratios.

    python benchmarks/compare.py PEER.txt OURS.txt

Each line of an output is a name and one JSON object. Ratios are ours by peer's: above 1 is good for
throughput, below 1 for latency.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path) -> dict[str, Row]:
    """Rows by name; lines that are no row are skipped."""
    rows: dict[str, Row] = {}
    for line in path.read_text().splitlines():
        name, _, text = line.partition(" ")
        if text.startswith("{"):
            rows[name] = json.loads(text)
    return rows


def table(peer: dict[str, Row], ours: dict[str, Row]) -> Iterator[str]:
    yield "| load | figure | Apache Pulsar | Magnetar | ratio |"
    yield "|---|---|---|---|---|"
    for name in ours:
        for figure, unit in _metrics(name, ours[name]):
            theirs, mine = peer.get(name, {}).get(figure), ours[name].get(figure)
            yield f"| {name} | {unit} | {_text(theirs)} | {_text(mine)} | {_ratio(theirs, mine)} |"
        for row, who in ((peer.get(name, {}), "Pulsar"), (ours[name], "Magnetar")):
            if faults := _faults(row):
                yield f"| {name} | **{who}: {faults}** | | | |"


def _metrics(name: str, row: Row) -> list[tuple[str, str]]:
    if row["mode"] == "e2e" or name.startswith("sync"):
        return [("p50_ms", "p50 ms"), ("p99_ms", "p99 ms")]
    if row["mode"] in ("fanout", "queue"):
        return [("delivered_per_s", "delivered/s")]
    metrics = [("msg_per_s", "msg/s")]
    if row.get("size", 0) > 10_000 or row["mode"] == "consume":
        metrics.append(("MB_per_s", "MB/s"))
    return metrics


def _faults(row: Row) -> str:
    counts = [f"{key} {row[key]}" for key in ("failed", "wrong", "lost") if row.get(key)]
    return ", ".join([*counts, *([row["error"]] if "error" in row else [])])


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _ratio(theirs: float | None, mine: float | None) -> str:
    return f"{mine / theirs:.2f}" if theirs and mine is not None else "-"


if __name__ == "__main__":
    print("\n".join(table(read_rows(Path(sys.argv[1])), read_rows(Path(sys.argv[2])))))
