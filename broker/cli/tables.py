"""Objects as tables, for people at a terminal. Pure.

Not rich's tables: to load it costs 40 ms, a third of a whole call (docs/decisions/0065).
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_GAP: Final = "  "
_ONE_COLUMN_MAX: Final = 10
"""As many pairs stand below each other; more of them go side by side where there is room."""
_HEADING: Final = "1"  # bold, as ECMA-48 numbers it
_NAME: Final = "36"  # cyan
_VALUE: Final = ""


def render(value: Any, width: int, *, colours: bool) -> Iterator[str]:
    """Lines that show all of a JSON value.

    Args:
        width: of the terminal; a value that is longer stays whole.
    """
    yield from _Tables(width, colours).block(value, ())


def plain_text(value: Any) -> str:
    """A value in one line, without anything that a terminal would obey."""
    match value:
        case str():
            return value if value.isprintable() else json.dumps(value)[1:-1]
        case bool() | None:
            return json.dumps(value)
        case float():
            if 0 < abs(value) < 0.001:
                return f"{value:.3g}"
            return f"{value:.3f}".rstrip("0").rstrip(".")
        case list() if value:
            return ", ".join(map(plain_text, value))
    return str(value)


def printable(text: str) -> str:
    """A text of others in its lines, without anything else that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode()
        if each not in "\n\t" and unicodedata.category(each) in ("Cc", "Cf", "Co", "Cs")
        else each
        for each in text
    )


def _is_plain(value: Any) -> bool:
    """Whether it goes into one cell."""
    if isinstance(value, list):
        return not any(isinstance(each, dict | list) for each in value)
    return not (isinstance(value, dict) and value)


def _rows(value: Any) -> list[dict[str, Any]] | None:
    """A list of similar objects, or an object of them, as rows; None: it is none."""
    rows = value
    if isinstance(value, dict):
        if not all(isinstance(row, dict) for row in value.values()):
            return None
        rows = [{"": name, **row} for name, row in value.items()]
    if not rows or not all(isinstance(row, dict) for row in rows):
        return None
    if not all(_is_plain(cell) for row in rows for cell in row.values()):
        return None
    of_all = set.intersection(*(set(row) for row in rows)) - {""}
    of_any = set().union(*rows) - {""}
    return rows if 2 * len(of_all) >= len(of_any) > 0 else None


class _Tables:
    def __init__(self, width: int, colours: bool) -> None:
        self._width, self._colours = width, colours

    def block(self, value: Any, path: tuple[str, ...]) -> Iterator[str]:
        """A value below its heading."""
        if (rows := _rows(value)) is not None and (lines := self._table(rows)):
            yield from self._heading(path)
            yield from lines
            return
        if not isinstance(value, dict | list):
            yield plain_text(value)
            return
        named = value if isinstance(value, Mapping) else _numbered(value)
        plain = {name: each for name, each in named.items() if _is_plain(each)}
        if plain:
            yield from self._heading(path)
            yield from self._pairs(plain)
        for name, each in named.items():
            if name not in plain:
                if plain or name != next(iter(named)):
                    yield ""
                yield from self.block(each, (*path, plain_text(name)))

    def _heading(self, path: tuple[str, ...]) -> Iterator[str]:
        if path:
            yield self._paint(" / ".join(path), _HEADING)

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if self._colours and style else text

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """None of its lines where it is wider than the terminal."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[plain_text(row[n]) if n in row else "" for n in names] for row in rows]
        titles = list(map(plain_text, names))
        widths = [max(map(cell_count, column)) for column in zip(titles, *cells, strict=True)]
        if sum(widths) + len(_GAP) * (len(widths) - 1) > self._width:
            return []
        numbers = [all(_is_number(row.get(name)) for row in rows) for name in names]
        lines = [self._line(titles, widths, numbers, [_HEADING] * len(names))]
        styles = [_NAME, *[_VALUE] * (len(names) - 1)]
        return lines + [self._line(row, widths, numbers, styles) for row in cells]

    def _line(
        self,
        cells: Sequence[str],
        widths: Sequence[int],
        numbers: Sequence[bool],
        styles: Sequence[str],
    ) -> str:
        parts: list[str] = []
        last = len(cells) - 1
        columns = zip(cells, widths, numbers, styles, strict=True)
        for at, (text, width, is_number, style) in enumerate(columns):
            space = " " * (width - cell_count(text))
            text = self._paint(text, style)
            parts.append(space + text if is_number else text if at == last else text + space)
        return _GAP.join(parts).rstrip()

    def _pairs(self, pairs: Mapping[str, Any]) -> Iterator[str]:
        """Names with their values, short ones side by side."""
        texts = {plain_text(name): plain_text(value) for name, value in pairs.items()}
        named = max(map(cell_count, texts))
        long = [n for n, text in texts.items() if named + cell_count(text) > self._width // 2]
        short = [name for name in texts if name not in long]
        width = named + max((cell_count(texts[name]) for name in short), default=0) + 2 * len(_GAP)
        columns = max(1, (self._width + len(_GAP)) // (width + len(_GAP)))
        if len(short) <= _ONE_COLUMN_MAX:
            columns = 1
        height = -(-len(short) // columns)
        for row in range(height):
            cells = [self._pair(name, texts[name], named) for name in short[row::height]]
            *others, last = cells
            yield (
                "".join(text + " " * (width + len(_GAP) - cell) for text, cell in others) + last[0]
            )
        for name in long:
            yield self._pair(name, texts[name], named)[0]

    def _pair(self, name: str, text: str, named: int) -> tuple[str, int]:
        """The text, and how many cells it takes."""
        space = " " * (named - cell_count(name)) + _GAP
        return f"{self._paint(name, _NAME)}{space}{text}", named + len(_GAP) + cell_count(text)


def _numbered(values: Sequence[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell_count(text: str) -> int:
    """How wide a terminal shows it."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # a table of Unicode

    return cell_len(text)
