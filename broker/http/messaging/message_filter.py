"""The language in which messages are searched: comparisons joined by ``and`` and ``or``. Pure.

    key = "c-1" and value.status = "declined" or size > 1kB and property.region ~ "eu"

``and`` holds before ``or``; there are no brackets.
It is data, not code: a comparison has a field, an operator and a constant. Fields are ``key``,
``value`` (its text, or ``value.a.b`` of JSON), ``property.NAME``, ``producer``, ``size`` (bytes),
``publish``, ``event`` (milliseconds since 1970, or an ISO time) and ``sequence``. Operators are
``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``~`` (matches a part, RE2; only the first 64 KiB of
a value are looked at) and ``!~``. A message without the field satisfies ``!=`` and ``!~`` only.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import orjson
import re2  # type: ignore[import-untyped]  # ships no stubs

_CHARACTERS_MAX: Final = 2_000
_TERMS_MAX: Final = 20
_PATTERNS_MAX: Final = 5
_SEARCHED_CHARACTERS: Final = 64 << 10
_SPANS_MAX: Final = 200
"""That one pattern shows in one text."""
MISSING: Final = object()
"""Of a message that hasn't got the field."""
_NUMBER: Final = re.compile(r"-?\d{1,400}(?P<float>(\.\d+)?([eE][+-]?\d{1,3})?)", re.ASCII)
_INDEX: Final = re.compile(r"[0-9]{1,9}")
_PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory of RE2 for one pattern."""
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<operator>!=|!~|<=|>=|=|~|<|>)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<word>[^\s"'=!~<>]+)
    )""",
    re.VERBOSE,
)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)(k|M|G)?(i)?B", re.ASCII)
_SIZES: Final[dict[str | None, int]] = {None: 0, "k": 1, "M": 2, "G": 3}
_NUMBERS: Final = frozenset({"size", "publish", "event", "sequence"})
_TEXTS: Final = frozenset({"key", "value", "producer"})
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class FilterError(ValueError):
    """The text isn't a filter; ``str(error)`` says where."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What a filter sees of a message."""

    key: str | None
    properties: Mapping[str, str]
    producer: str
    size: int
    publish_ms: int
    event_ms: int
    sequence: int
    text: Callable[[], str]
    """Of the value; what isn't UTF-8 is replaced."""
    json: Callable[[], Any]
    """The value as JSON; None: it is none."""


@dataclass(frozen=True, slots=True)
class _Term:
    path: tuple[str, ...]
    matches: Callable[[Any], bool]
    if_missing: bool
    """Also: it finds what isn't there, so there is nothing to show of it."""
    pattern: Any = None
    """Of RE2; None: it compares the whole field."""

    def holds(self, message: Searched) -> bool:
        value = _field(message, self.path)
        return self.if_missing if value is MISSING else self.matches(value)


class MessageFilter:
    """All comparisons of one of its groups must hold; without any, every message is found."""

    def __init__(self, groups: Sequence[Sequence[_Term]] = ()) -> None:
        self._groups = groups
        self._terms = terms = [term for group in groups for term in group]
        self.needs_json = any(term.path[0] == "value" and len(term.path) > 1 for term in terms)
        """Whether it looks into values that are JSON."""
        self.names = {name for term in terms for name in term.path[1:]}
        """Of fields of values, and of properties, that it looks at."""
        self.reads_values = any(term.path[0] == "value" for term in terms)

    def __call__(self, message: Searched) -> bool:
        return not self._groups or any(
            all(term.holds(message) for term in group) for group in self._groups
        )

    def value_paths(self) -> list[tuple[str, ...]]:
        """Into values that are JSON: where something was found, if it can be nowhere else."""
        if len(self._groups) > 1:
            return []
        found = (term.path for term in self._terms if not term.if_missing)
        return [path[1:] for path in found if path[0] == "value" and len(path) > 1]

    def spans(self, path: tuple[str, ...], text: str) -> list[tuple[int, int]]:
        """What the comparisons of a field found in it: start and end, in no order.

        Args:
            path: ``("key",)``, ``("value",)``, ``("value", "status")``.
            text: the field of a message that was found, as it is shown.
        """
        found: list[tuple[int, int]] = []
        for term in self._terms:
            if term.path != path or term.if_missing:
                continue
            if term.pattern is None:
                if len(self._groups) == 1 or term.matches(text):
                    found.append((0, len(text)))
            else:
                matches = term.pattern.finditer(text[:_SEARCHED_CHARACTERS])
                found += [each.span() for each in islice(matches, _SPANS_MAX)]
        return [span for span in found if span[0] < span[1]]


def parse_filter(text: str) -> MessageFilter:
    """Raises FilterError."""
    if len(text) > _CHARACTERS_MAX:
        raise FilterError(f"it is longer than {_CHARACTERS_MAX} characters")
    tokens = _tokens(text)
    groups: list[list[_Term]] = []
    comparisons = patterns = 0
    while tokens:
        joint = "or"
        if groups:
            kind, word, at = tokens.pop(0)
            joint = word.lower()
            if kind != "word" or joint not in ("and", "or"):
                raise FilterError(f"`and` or `or` is expected at character {at}, not {word}")
        if len(tokens) < 3:
            raise FilterError("a comparison is a field, an operator and a value")
        if joint == "or":
            groups.append([])
        groups[-1].append(_term(*tokens[:3]))
        if tokens[1][1] in ("~", "!~") and (patterns := patterns + 1) > _PATTERNS_MAX:
            raise FilterError(f"it has more than {_PATTERNS_MAX} patterns")
        del tokens[:3]
        if (comparisons := comparisons + 1) > _TERMS_MAX:
            raise FilterError(f"it has more than {_TERMS_MAX} comparisons")
    return MessageFilter(groups)


_Found = tuple[str, str, int]
"""Kind, text and place of a token."""


def _tokens(text: str) -> list[_Found]:
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        if (match := _TOKEN.match(text, at)) is None:
            raise FilterError(
                f"character {at + 1} begins nothing that is known: {text[at : at + 10]}"
            )
        kind = str(match.lastgroup)
        found.append((kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return found


def _term(field: _Found, compared: _Found, constant: _Found) -> _Term:
    if field[0] != "word" or compared[0] != "operator" or constant[0] == "operator":
        raise FilterError(f"at character {field[2]}: a field, an operator and a value are expected")
    path, sign = tuple(field[1].split(".")), compared[1]
    if path[0] == "property":
        path = ("property", field[1].partition(".")[2])
    known = path[0] in _NUMBERS | _TEXTS and (len(path) == 1 or path[0] == "value")
    if not known and not (path[0] == "property" and path[1]):
        raise FilterError(f"at character {field[2]}: {field[1]} is no field")
    is_negative = sign in ("!=", "!~")
    if sign in ("~", "!~"):
        pattern = _pattern(constant)
        return _Term(path, _search(pattern, is_negative), is_negative, pattern)
    wanted = _constant(path, constant)
    return _Term(path, _comparison(_ORDERS[sign], wanted, _text(constant)), is_negative)


def _pattern(constant: _Found) -> Any:
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES_MAX
    options.never_capture = True  # hundreds of groups take milliseconds at each place of a text
    options.log_errors = False
    try:
        return re2.compile(_text(constant), options)
    except re2.error as error:
        raise FilterError(f"at character {constant[2]}: not a pattern: {error}") from error


def _search(pattern: Any, is_negative: bool) -> Callable[[Any], bool]:
    return lambda value: (
        (pattern.search(_shown(value)[:_SEARCHED_CHARACTERS]) is not None) != is_negative
    )


def _constant(path: tuple[str, ...], constant: _Found) -> Any:
    text = _text(constant)
    if path[0] in _NUMBERS:
        return _number(path[0], text, constant[2])
    if constant[0] == "word" and path[0] == "value" and len(path) > 1:
        return _literal(text)
    return text


def _text(constant: _Found) -> str:
    kind, text, _ = constant
    return text if kind == "word" else re.sub(r"\\(.)", r"\1", text[1:-1])


def _literal(text: str) -> Any:
    """A word beside JSON: a number, true, false, null, or a text."""
    fixed = {"true": True, "false": False, "null": None}
    if text in fixed:
        return fixed[text]
    found = _parsed(text)
    return text if found is None else found


def _parsed(text: str) -> float | int | None:
    """Whole numbers stay whole: an id of 64 bits has no place in a float."""
    if (match := _NUMBER.fullmatch(text)) is None:
        return None
    return float(text) if match["float"] else int(text)


def _number(field: str, text: str, at: int) -> float | int:
    if field == "size" and (match := _SIZE.fullmatch(text)) is not None:
        return float(match[1]) * float(1024 if match[3] else 1000) ** _SIZES[match[2]]
    if (found := _parsed(text)) is not None:
        return found
    if field in ("publish", "event"):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise FilterError(f"at character {at}: {text} is no time") from None
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000
    raise FilterError(f"at character {at}: {text} is no number")


def _comparison(
    compare: Callable[[Any, Any], bool], wanted: Any, written: str
) -> Callable[[Any], bool]:
    """
    Args:
        written: the constant as it stands there, for fields that are texts.
    """

    def holds(value: Any) -> bool:
        if isinstance(value, str) and isinstance(wanted, str):
            return compare(value, wanted)
        if isinstance(value, str) or isinstance(wanted, str):  # equal as they are written
            return compare in (operator.eq, operator.ne) and compare(_shown(value), written)
        if isinstance(value, bool) != isinstance(wanted, bool):  # true isn't 1
            return compare is operator.ne
        try:
            return compare(value, wanted)
        except TypeError:  # of JSON: null and a number have no order
            return False

    return holds


def _shown(value: Any) -> str:
    """As the text that JSON has for it; a text as it is. Empty: it is nested too deep for that."""
    try:
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return ""


def _field(message: Searched, path: tuple[str, ...]) -> Any:
    """``MISSING``: the message hasn't got it."""
    match path[0]:
        case "property":
            return message.properties.get(path[1], MISSING)
        case "value":
            return message.text() if len(path) == 1 else inside(message.json(), path[1:])
        case "event":
            return message.event_ms or MISSING
        case "key":
            return MISSING if message.key is None else message.key
    return {
        "producer": message.producer,
        "size": message.size,
        "publish": message.publish_ms,
        "sequence": message.sequence,
    }[path[0]]


def inside(value: Any, path: Sequence[str]) -> Any:
    """What JSON has there; ``MISSING``: nothing."""
    for name in path:
        if isinstance(value, Mapping):
            value = value.get(name, MISSING)
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value
