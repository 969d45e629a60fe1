"""The lines above the list, and the list as text: of ``--once`` and of the screen. Pure."""

from collections.abc import Sequence
from typing import Final

from magnetar.broker.cli.tables import cell_count, plain_text
from magnetar.broker.cli.top.figures import Figures, TopColumn, TopView
from magnetar.broker.cli.top.texts import bars_text, cut, trend_text
from magnetar.broker.console.formats import milliseconds, number, plural, short, size, span

WIDE_MIN: Final = 110
"""Columns of a terminal that has room for all of a list's."""
NAME_MIN: Final = 8
"""Characters of a name that are always shown."""
_FINDINGS_MAX: Final = 3
_BARS: Final = 8
_GAP: Final = "  "
_SHAPES: Final = {"critical": "◆", "warning": "▲"}


def head_lines(figures: Figures, now_ms: int, width: int) -> list[str]:
    """Name of the cluster, sums, and what is wrong, for a terminal of so many columns."""
    sums, state = figures.sums, figures.state
    writable = sum(each["state"] == "writable" for each in state.bookies)
    bookies = f"  {writable}/{len(state.bookies)} bookies" if state.bookies else ""
    silent = len(state.history.get("silentBrokers", ()))
    brokers = f"{plural(len(state.brokers), 'broker')}{f' ({silent} silent)' if silent else ''}"
    age_s = None if sums.oldest_ms is None else (now_ms - sums.oldest_ms) / 1000
    rate_in, rate_out, backlog = (
        f"{bars_text(state.recent(name)):<{_BARS}}"
        for name in ("msgRateIn", "msgRateOut", "msgBacklog")
    )
    backlog = f" {backlog}" if width >= WIDE_MIN else ""
    p99 = milliseconds(state.latency_ms("publishLatencyP99Ms"))
    lines = [
        f"{state.cluster or 'cluster'}   {brokers}{bookies}",
        f"in   {_rate(sums.msg_rate_in, sums.bytes_in)} {rate_in}"
        f"  backlog {short(sums.backlog):>8} {trend_text(sums.backlog_trend):>12}{backlog}"
        f"  p99 {p99}",
        f"out  {_rate(sums.msg_rate_out, sums.bytes_out)} {rate_out}"
        f"  oldest  {span(age_s):>12}  stored {size(sums.stored_bytes)}",
    ]
    lines += [
        f"{_SHAPES.get(finding['severity'], ' ')} {finding['sentence']}"
        for finding in state.findings[:_FINDINGS_MAX]
    ]
    if (more := len(state.findings) - _FINDINGS_MAX) > 0:
        lines.append(f"  {more} more: magnetar doctor")
    if sums.not_loaded:
        lines.append(f"  without the figures of {plural(sums.not_loaded, 'topic')} not loaded")
    return lines


def columns_of(view: TopView, width: int) -> list[TopColumn]:
    """Those that there is room for."""
    return [each for each in view.columns if width >= WIDE_MIN or not each.wide]


def fitted(widths: Sequence[int], columns: Sequence[TopColumn], room: int) -> list[int]:
    """Widths that fit into a room of so many characters: the longest names give way, numbers never.

    Args:
        widths: that the columns would like.
    """
    fit = list(widths)
    names = [nth for nth, column in enumerate(columns) if not column.is_number]
    while sum(fit) > room and (long := [nth for nth in names if fit[nth] > NAME_MIN]):
        fit[max(long, key=fit.__getitem__)] -= 1
    return fit


def list_lines(
    view: TopView, figures: Figures, now_ms: int, width: int, *, cuts: bool = False
) -> list[str]:
    """The rows below their titles.

    Args:
        cuts: whether long names are cut, so that a row fits into ``width``.
    """
    columns = columns_of(view, width)
    titles = [each.title for each in columns]
    cells = [[plain_text(each.text(row, now_ms)) for each in columns] for row in figures.rows]
    widths = [max(map(cell_count, column)) for column in zip(titles, *cells, strict=True)]
    if cuts:
        widths = fitted(widths, columns, width - len(_GAP) * (len(columns) - 1))
    return [
        _GAP.join(
            _padded(cut(text, size), size, column.is_number)
            for text, size, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in (titles, *cells)
    ]


def _padded(text: str, size: int, is_number: bool) -> str:
    space = " " * (size - cell_count(text))
    return space + text if is_number else text + space


def counts_text(figures: Figures) -> str:
    """``100 of 318``, the rows that are shown and those that match."""
    shown, matching = len(figures.rows), figures.matching
    of_all = "" if matching == figures.total else f", {figures.total:,} in all"
    read, loaded = figures.read
    so_far = "" if figures.is_complete else f", {read:,} of {loaded:,} topics read"
    return f"{shown:,} of {matching:,}{of_all}{so_far}"


def _rate(messages: float, size_bytes: float) -> str:
    return f"{number(messages):>10}/s {size(size_bytes):>8}/s"
