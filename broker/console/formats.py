"""Numbers, sizes, times and names as pages show them: the filters of the templates."""

import shlex
import time
import unicodedata
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_NOTHING: Final = "–"

_STEPS: Final = (".", "..")
_API_STEPS: Final = MappingProxyType({".;": "%2E", "..;": "%2E%2E"})


def number(value: float | None) -> str:
    """``1,284,310``; a fraction below 100 keeps one digit."""
    if value is None:
        return _NOTHING
    if value == int(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:,.1f}" if abs(value) >= 0.05 else "0"


def short(value: float | None) -> str:
    """At most four digits and a unit: ``48.2 k``."""
    if value is None:
        return _NOTHING
    for factor, unit in _UNITS:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return number(value)


def _digits(value: float) -> str:
    """Three digits that count."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def size(value: float | None) -> str:
    """Bytes: ``1.84 TB``."""
    if value is None or value < 0:
        return _NOTHING
    return f"{value:.0f} B" if value < 1000 else f"{short(value)}B"


def span(seconds: float | None) -> str:
    """A duration by its two largest units: ``3 h 12 min``."""
    if seconds is None or seconds < 0:
        return _NOTHING
    if seconds < 10:
        return f"{seconds:.1f} s"
    for number_of, (length, unit) in enumerate(_SPANS):
        if seconds >= length:
            whole, rest = divmod(int(seconds), length)
            if unit == "s":
                return f"{whole} s"
            next_length, next_unit = _SPANS[number_of + 1]
            least = rest // next_length
            return f"{whole} {unit} {least} {next_unit}" if least else f"{whole} {unit}"
    return _NOTHING


def milliseconds(value: float | None) -> str:
    """``4.1 ms``; below 10 two digits count."""
    if value is None:
        return _NOTHING
    return f"{value:.2g} ms" if value < 10 else f"{number(round(value))} ms"


def age(at_ms: float | None) -> str:
    """How long ago a time in milliseconds since 1970 was."""
    return span(max(0.0, time.time() - at_ms / 1000)) if at_ms else _NOTHING


def late(at_ms: float | None) -> str:
    """Style of a text that tells how long ago a time was: of ten minutes, and of an hour."""
    age_s = time.time() - at_ms / 1000 if at_ms else 0.0
    return " ba" if age_s >= 3600 else " wa" if age_s >= 600 else ""


def moment(at_ms: float | None) -> str:
    """A time in milliseconds since 1970 as ISO 8601 in UTC; the browser shows it in its zone."""
    if not at_ms:
        return ""
    whole, rest = divmod(int(at_ms), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{rest:03}Z"


def segment(name: str) -> str:
    """A name as one segment of a path, of a page or of ``AdminApi``.

    Browsers and HTTP clients take ``.`` and ``..`` for steps, however they are encoded. These get a
    ``;``, which is encoded in all other names.
    """
    return f"{name};" if name in _STEPS else quote(name, safe="")


def named(segment: str) -> str:
    """The name of a segment."""
    return segment[:-1] if segment[:-1] in _STEPS and segment.endswith(";") else unquote(segment)


def api_path(path: str) -> str:
    """A path of segments as the admin API has it; there ``%2E%2E`` is a name."""
    if ";" not in path:
        return path
    return "/".join(_API_STEPS.get(each, each) for each in path.split("/"))


def quoted(text: str) -> str:
    """A name as one word of a command line."""
    return shlex.quote(text)


def visible(text: object) -> str:
    """Foreign text; what has no look of its own, or turns the direction of writing, as its code."""
    shown = str(text)
    if shown.isprintable():  # nearly always, and a hundred times as fast
        return shown
    return "".join(
        f"⟨U+{ord(each):04X}⟩" if unicodedata.category(each) in ("Cc", "Cf", "Co", "Cs") else each
        for each in shown
    )


def visible_lines(text: str) -> str:
    """``visible``, but lines and tabs stay."""
    return "\n".join("\t".join(map(visible, line.split("\t"))) for line in text.split("\n"))


def plural(count: float | None, one: str, many: str = "") -> str:
    """``1 consumer``, ``2 consumers``."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def ceiling(values: Sequence[float]) -> float:
    """The end of an axis for them: 1, 2 or 5 times a power of ten, at least 1, so that its middle
    is written in full with one digit behind the point.
    """
    most, scale = max((*values, 0.0)), 1.0
    if most <= 1:
        return 1.0
    while scale < most:
        scale *= 10
    return next(scale * part for part in (0.1, 0.2, 0.5, 1.0) if scale * part >= most)


FILTERS: Final[dict[str, Any]] = {
    each.__name__: each
    for each in (
        number,
        short,
        size,
        span,
        milliseconds,
        age,
        late,
        moment,
        segment,
        quoted,
        visible,
        visible_lines,
        plural,
    )
}
