"""JSON values to what ``fastavro`` writes, within a number of steps. Pure."""

from typing import Any, Final

from magnetar.broker.schema.value_errors import ValueCodecError

_INTS: Final = {"int": 2**31, "long": 2**63}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_MISSING: Final = object()
_STEPS_BASE: Final = 5_000
"""More than a definition has parts: fields that are left out have their defaults."""
_STEPS_PER_CHARACTER: Final = 8
_STEPS_MAX: Final = 6_000_000
"""What takes a thread some seconds, however long the text is."""
_WHERE_LENGTH_MAX: Final = 300

# A value's place: its key or index, and its parent's place. Joined for an error's text only: texts
# that grow level by level would take the square of the depth.
_Place = tuple[Any, str | int] | None


class _TooComplexError(Exception):
    """The value was given up: no branch of a union, however often tried, may catch this."""


class _MismatchError(Exception):
    """The value isn't of the type; a branch of a union may still fit."""

    def __init__(self, place: _Place, wanted: str, value: Any = _MISSING) -> None:
        super().__init__()
        self.place, self.wanted, self.value = place, wanted, value

    def __str__(self) -> str:
        where = _text(self.place) or "the value"
        if self.value is _MISSING:
            return f"{where} lacks the field {self.wanted:.200}"
        if isinstance(self.value, dict | list):  # not its text, which may be long
            told = "an object" if isinstance(self.value, dict) else "an array"
        else:
            told = f"{self.value!r:.60}"
        return f"{where} must be {self.wanted:.200}, not {told}"


def _text(place: _Place) -> str:
    parts: list[str] = []
    length = 0
    while place is not None and length < _WHERE_LENGTH_MAX:
        place, step = place
        part = f"[{step}]" if isinstance(step, int) else f".{step}"[-_WHERE_LENGTH_MAX:]
        parts.append(part)
        length += len(part)
    return ("" if place is None else "...") + "".join(reversed(parts)).lstrip(".")


class _Union:
    """Names of a union's branches."""

    __slots__ = ("indexes", "names")

    def __init__(self, branches: list[Any]) -> None:
        self.names = [_branch_name(branch) for branch in branches]
        self.indexes = {name: index for index, name in reversed(list(enumerate(self.names)))}


def shape(
    names: dict[str, Any], schema: Any, value: Any, text_length: int, *, lenient: bool
) -> Any:
    """What ``fastavro`` writes for a value.

    Args:
        names: the named types, as ``fastavro`` holds them.
        text_length: characters of the value's text; what it may cost grows with it.
        lenient: as JSON readers are: fields without a default may be missing.

    Raises:
        ValueCodecError: why that can't be.
    """
    try:
        return _Encoder(names, text_length, lenient=lenient).shape(schema, value, None)
    except _MismatchError as error:
        raise ValueCodecError(str(error)) from error
    except _TooComplexError as error:
        raise ValueCodecError("unions within unions: too much to try") from error


class _Encoder:
    """Of one value."""

    __slots__ = ("_left", "_lenient", "_names", "_symbols", "_unions")

    def __init__(self, names: dict[str, Any], text_length: int, *, lenient: bool) -> None:
        self._names = names
        self._lenient = lenient
        # Unions within unions: each level may try all branches, which is exponential in the depth.
        self._left = min(_STEPS_BASE + _STEPS_PER_CHARACTER * text_length, _STEPS_MAX)
        self._unions: dict[int, _Union] = {}  # by id: the definition outlives this
        self._symbols: dict[int, frozenset[str]] = {}

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooComplexError

    def shape(self, schema: Any, value: Any, place: _Place) -> Any:
        """Raises _MismatchError, _TooComplexError."""
        self._spend(1)
        if isinstance(schema, list):
            return self._union(schema, value, place)
        if isinstance(schema, str):
            if (named := self._names.get(schema)) is not None:
                return self.shape(named, value, place)
            return self._primitive(schema, value, place)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, value, place)
        if kind == "array":
            items = schema["items"]
            values = _expect(value, list, "an array", place)
            return [self.shape(items, each, (place, n)) for n, each in enumerate(values)]
        if kind == "map":
            values = _expect(value, dict, "an object", place)
            inner = schema["values"]
            return {key: self.shape(inner, each, (place, key)) for key, each in values.items()}
        if kind == "enum":
            return self._enum(schema["symbols"], value, place)
        if kind == "fixed":
            if self._lenient:  # JSON libraries have their own idea of bytes
                return _expect(value, str, "a text", place)
            data = _raw(value, place)
            if len(data) != schema["size"]:
                raise _MismatchError(place, f"{schema['size']} bytes", value)
            return data
        return self.shape(kind, value, place)

    def _record(self, schema: Any, value: Any, place: _Place) -> dict[str, Any]:
        values = _expect(value, dict, "an object", place)
        shaped: dict[str, Any] = {}
        for field in schema["fields"]:
            name = field["name"]
            given = values.get(name, _MISSING)
            if given is _MISSING:
                given = field.get("default", _MISSING)
                if given is _MISSING:
                    self._spend(1)
                    if self._lenient:
                        continue
                    raise _MismatchError(place, name)
            shaped[name] = self.shape(field["type"], given, (place, name))
        return shaped

    def _union(self, branches: list[Any], value: Any, place: _Place) -> Any:
        if (known := self._unions.get(id(branches))) is None:
            self._spend(len(branches))
            known = self._unions[id(branches)] = _Union(branches)
        if value is None and "null" in known.indexes:
            return None
        if isinstance(value, dict) and len(value) == 1:
            ((tag, inner),) = value.items()
            if (index := known.indexes.get(tag)) is not None:
                self._spend(index // 16)  # fastavro looks for it from the first branch on
                return tag, self.shape(branches[index], inner, (place, tag))
        for name, branch in zip(known.names, branches, strict=True):
            try:
                return name, self.shape(branch, value, place)
            except _MismatchError:
                continue
        more = " ..." if len(known.names) > 16 else ""
        raise _MismatchError(place, " or ".join(known.names[:16]) + more, value)

    def _enum(self, symbols: list[str], value: Any, place: _Place) -> Any:
        if (known := self._symbols.get(id(symbols))) is None:
            self._spend(len(symbols))
            known = self._symbols[id(symbols)] = frozenset(symbols)
        self._spend(len(symbols) // 64)  # fastavro looks for it from the first symbol on
        if not isinstance(value, str) or value not in known:
            raise _MismatchError(place, f"one of {', '.join(symbols[:8])}", value)
        return value

    def _primitive(self, kind: str, value: Any, place: _Place) -> Any:
        if (limit := _INTS.get(kind)) is not None:
            number = _expect(value, int, f"an {kind}" if kind == "int" else f"a {kind}", place)
            if not -limit <= number < limit:
                raise _MismatchError(place, f"within the range of {kind}", value)
            return number
        if kind in ("float", "double"):
            if value in ("NaN", "Infinity", "-Infinity"):
                return float(value)
            number = _expect(value, int | float, f"a {kind}", place)
            if kind == "float" and abs(number) > 3.4028235677973366e38:
                raise _MismatchError(place, "within the range of float", value)
            return float(number)
        if kind == "string":
            return _expect(value, str, "a text", place)
        if kind == "bytes":
            return _expect(value, str, "a text", place) if self._lenient else _raw(value, place)
        if kind == "boolean":
            if not isinstance(value, bool):
                raise _MismatchError(place, "true or false", value)
            return value
        if value is not None:
            raise _MismatchError(place, "null", value)
        return None


def _branch_name(branch: Any) -> str:
    """As fastavro's pairs and Avro's JSON encoding name it."""
    if isinstance(branch, str):
        return branch
    kind: str = branch["type"]
    return str(branch["name"]) if kind in _NAMED else kind


def _expect(value: Any, kind: Any, what: str, place: _Place) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _MismatchError(place, what, value)
    return value


def _raw(value: Any, place: _Place) -> bytes:
    try:
        return str(_expect(value, str, "a text of bytes", place)).encode("latin-1")
    except UnicodeEncodeError as error:
        wanted = "characters U+0000 to U+00FF, one for each byte"
        raise _MismatchError(place, wanted, value) from error
