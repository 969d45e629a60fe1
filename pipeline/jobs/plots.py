"""Pictures of backlog and load: matplotlib without a display, imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.pipeline.errors import JobError
from magnetar.pipeline.jobs.progress import size_text
from magnetar.pipeline.jobs.skew import SLOTS
from magnetar.pipeline.jobs.tables import ReportTable, age_text
from magnetar.pipeline.session import check_packages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from magnetar.pipeline.jobs.load import BundleLoad, KeyLoad

FORMATS: Final = (".svg", ".png", ".pdf")
BARS_MAX: Final = 25
_BARS_MIN: Final = 4
"""Space is kept for so many bars, so that a plot of fewer has bars of the same width."""
# Told apart by people who see colours differently, too.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_LABEL_MAX: Final = 60


def check_file(path: Path) -> None:
    """Check, before the work begins, that a plot can be written to ``path``.

    Raises:
        JobError: not in that format, or there is no such folder.
        SetupError: matplotlib isn't installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise JobError(f"{path}: a plot is one of {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise JobError(f"{path}: there is no folder {path.absolute().parent}")
    check_packages("matplotlib")


def draw_backlog(table: ReportTable, measure: str, path: Path) -> None:
    """Draw the largest backlogs as bars of ``entries``, ``bytes`` or ``oldestSeconds``."""
    rows = [row for row in table.sorted_by(measure).rows if row[measure]][:BARS_MAX]
    figure = _figure(7.0, 1.6 + 0.3 * max(_BARS_MIN, len(rows)))
    axes = figure.add_subplot()
    titles = {
        "entries": "entries to consume",
        "bytes": "bytes to consume",
        "oldestSeconds": "age of the oldest message to consume",
    }
    texts = {"bytes": size_text, "oldestSeconds": age_text}
    labels = [f"{_local(row['topic'], row['partition'])} · {row['subscription']}" for row in rows]
    values = [float(row[measure]) for row in rows]
    # A backlog without consumers only grows: readers look for that first.
    colours = [_COLOURS[0] if row["consumers"] else _COLOURS[1] for row in rows]
    _bars(axes, labels, values, colours, texts.get(measure))
    axes.set_title(titles.get(measure, measure), loc="left")
    _legend(figure, {"with consumers": _COLOURS[0], "without consumers": _COLOURS[1]})
    if not rows:
        _nothing(axes, "no backlog")
    _save(figure, path)


def draw_bundles(load: BundleLoad, measure: str, path: Path) -> None:
    """The hottest bundles, and how much each broker has of all."""
    rows = [row for row in load.bundles.sorted_by(measure).rows if row[measure]][:BARS_MAX]
    brokers = [str(row["broker"]) for row in load.brokers.rows]
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(brokers)}
    heights = max(_BARS_MIN, len(rows)), max(_BARS_MIN, len(brokers))
    figure = _figure(7.0, 1.6 + 0.3 * sum(heights))
    top, bottom = figure.subplots(2, 1, height_ratios=heights, squeeze=True)
    text = size_text if measure in ("storage", "throughput") else None
    _bars(
        top,
        [str(row["bundle"]) for row in rows],
        [float(row[measure]) for row in rows],
        [colours[str(row["broker"])] for row in rows],
        text,
    )
    top.set_title(f"bundles by {measure}", loc="left")
    if not rows:
        _nothing(top, "no load")
    sums = [
        float(sum(row[measure] for row in load.bundles.rows if row["broker"] == name))
        for name in brokers
    ]
    _bars(bottom, brokers, sums, [colours[name] for name in brokers], text)
    bottom.set_title(f"brokers by {measure}", loc="left")
    _save(figure, path)


def draw_keys(load: KeyLoad, path: Path) -> None:
    """The heaviest keys, the slots of Key_Shared, and the partitions."""
    rows = list(load.keys.rows)[:BARS_MAX]
    figure = _figure(7.0, 6.0 + 0.3 * max(_BARS_MIN, len(rows)))
    keys, slots, partitions = figure.subplots(
        3, 1, height_ratios=(0.3 * max(_BARS_MIN, len(rows)), 2.0, 2.0), squeeze=True
    )
    labels, values = [str(row["key"]) for row in rows], [float(row["messages"]) for row in rows]
    _bars(keys, labels, values, [_COLOURS[0]] * len(rows), None)
    share = f"{100 * load.top_share:.0f} % of the messages with a key, Gini {load.gini:.2f}"
    keys.set_title(f"heaviest of {load.distinct:,} keys: {share}", loc="left")
    if not rows:
        _nothing(keys, "no keys")
    width = SLOTS / len(load.ranges)
    slots.bar(
        [number * width for number in range(len(load.ranges))],
        load.ranges,
        width=width,
        align="edge",
        color=_COLOURS[2],
    )
    _mean(slots, load.ranges)
    slots.set_xlim(0, SLOTS)
    slots.set_title(
        "messages by slot of Key_Shared\n"
        f"the busiest of {load.consumers.count} consumers with equal ranges would have "
        f"{load.consumers.max_to_mean:.1f} times its share",
        loc="left",
    )
    numbers = [str(number) if number >= 0 else "topic" for number in load.partitions]
    partitions.bar(numbers, list(load.partitions.values()), color=_COLOURS[1])
    partitions.set_xlim(-0.6, max(2 * _BARS_MIN, len(numbers)) - 0.4)
    _mean(partitions, list(load.partitions.values()))
    partitions.set_title("messages by partition", loc="left")
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    """Inches. Not pyplot: it keeps figures, and may look for a display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _bars(
    axes: Any, labels: Sequence[str], values: Sequence[float], colours: Sequence[str], text: Any
) -> None:
    """The first on top; equal labels stay apart."""
    places = list(range(len(labels)))
    bars = axes.barh(places, values, color=list(colours))
    # A dollar sign would begin a formula.
    axes.set_yticks(places, [_short(label).replace("$", r"\$") for label in labels])
    axes.set_ylim(max(_BARS_MIN, len(labels)) - 0.5, -0.5)
    shown = [text(value) if text else f"{value:,.6g}" for value in values]
    axes.bar_label(bars, shown, padding=3, fontsize="small")
    axes.margins(x=0.15)
    axes.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)


def _mean(axes: Any, values: Sequence[int]) -> None:
    if values:
        axes.axhline(sum(values) / len(values), color="#555555", linestyle="--", linewidth=1)


def _legend(figure: Figure, names: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in names.items()],
        loc="outside lower right",
        ncols=len(names),
        frameon=False,
        fontsize="small",
    )


def _nothing(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_MAX else f"{text[: _LABEL_MAX - 1]}…"


def _local(topic: str, partition: int) -> str:
    name = topic.removeprefix("persistent://")
    return name if partition < 0 else f"{name}-{partition}"


def _save(figure: Figure, path: Path) -> None:
    """Raises JobError: it can't be written."""
    try:
        figure.savefig(path, format=path.suffix.lower().removeprefix("."), dpi=150)
    except OSError as error:
        raise JobError(f"{path}: {error}") from error
