"""Avro's binary form to what JSON can hold, by one schema. Pure.

Apache's ``avro`` has no bound on the values that a payload stands for, and looks through all
branches of a union for each value; ``fastavro`` ends the process on a deep one. Here every value
read is a step, and the steps are bounded by the payload's bytes: records of records of ``null``
take no bytes at all, however many they are.
"""

import math
import struct
from typing import Any, Final

from magnetar.broker.schema.value_errors import ValueCodecError

EMPTY_VALUES_MAX: Final = 1_000
"""Values without bytes that a definition may put beside each other."""
DEPTH_MAX: Final = 200
"""Objects and arrays within each other; what writes JSON takes 254."""
_STEPS_BASE: Final = 2 * EMPTY_VALUES_MAX
_STEPS_PER_BYTE: Final = 8
_VARINT_BYTES_MAX: Final = 10
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_READ_ERRORS: Final = (ValueError, KeyError, IndexError, RecursionError, struct.error)


class AvroReader:
    """Reads one payload once.

    Invariant: at most ``_STEPS_BASE + _STEPS_PER_BYTE * len(data)`` values are read.
    """

    __slots__ = ("_at", "_data", "_left", "_names")

    def __init__(self, names: dict[str, Any], data: bytes) -> None:
        """
        Args:
            names: the named types, as ``fastavro`` holds them.
        """
        self._names, self._data, self._at = names, data, 0
        self._left = _STEPS_BASE + _STEPS_PER_BYTE * len(data)

    def read(self, schema: Any) -> Any:
        """The value in the form that ``AvroCodec.encode`` takes.

        Raises:
            ValueCodecError: not what the schema writes, or too much for so few bytes.
        """
        try:
            return self._value(schema, 0)
        except _READ_ERRORS as error:
            raise ValueCodecError(f"not what this AVRO schema writes: {error!r:.200}") from error

    def _value(self, schema: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueCodecError(f"{len(self._data)} bytes of AVRO hold too many values")
        if isinstance(schema, str):
            named = self._names.get(schema)
            return self._primitive(schema) if named is None else self._value(named, depth)
        if isinstance(schema, list):
            index = self._long()
            if not 0 <= index < len(schema):
                raise ValueError(f"branch {index} of a union of {len(schema)}")
            return self._value(schema[index], depth)
        kind = schema["type"]
        if kind in ("record", "error", "array", "map"):
            return self._container(schema, kind, depth)
        if kind == "enum":
            index = self._long()
            if not 0 <= index < len(schema["symbols"]):
                raise ValueError(f"symbol {index} of an enum of {len(schema['symbols'])}")
            return schema["symbols"][index]
        if kind == "fixed":
            return self._take(schema["size"]).decode("latin-1")
        return self._value(kind, depth)

    def _container(self, schema: Any, kind: str, depth: int) -> Any:
        if depth == DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} objects and arrays within each other")
        if kind == "array":
            items = schema["items"]
            values: list[Any] = []
            while count := self._block():
                values.extend(self._value(items, depth + 1) for _ in range(count))
            return values
        if kind == "map":
            inner = schema["values"]
            pairs: dict[str, Any] = {}
            while count := self._block():
                for _ in range(count):
                    key = self._take(self._long()).decode()
                    pairs[key] = self._value(inner, depth + 1)
            return pairs
        return {field["name"]: self._value(field["type"], depth + 1) for field in schema["fields"]}

    def _block(self) -> int:
        """Items of the next block of an array or a map; 0: there are no more."""
        self._left -= 1
        if (count := self._long()) < 0:
            self._long()  # its length in bytes
            count = -count
        return count

    def _primitive(self, kind: str) -> Any:
        if kind in ("long", "int"):
            return self._long()
        if kind == "string":
            return self._take(self._long()).decode()
        if kind == "null":
            return None
        if kind == "boolean":
            return self._take(1) != b"\0"
        if kind == "double":
            return _shown(_DOUBLE.unpack(self._take(8))[0])
        if kind == "float":
            return _shown(_FLOAT.unpack(self._take(4))[0])
        if kind == "bytes":
            return self._take(self._long()).decode("latin-1")
        raise ValueError(f"unknown type {kind:.60}")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if not self._at <= end <= len(self._data):
            raise ValueError(f"{size} bytes at {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _long(self) -> int:
        number, shift, data = 0, 0, self._data
        for at in range(self._at, self._at + _VARINT_BYTES_MAX):
            byte = data[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at + 1
                if number >= 1 << 64:
                    break
                return (number >> 1) ^ -(number & 1)
            shift += 7
        raise ValueError("a number of more than 64 bits")


def _shown(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")


def empty_values(schema: Any, names: dict[str, Any]) -> int:
    """The most values without bytes that a value of any part of the definition holds in one place:
    what an item of an array may cost although it is a byte long.

    Args:
        names: the named types, as ``fastavro`` holds them.
    """
    return _EmptyValues(names).most(schema)


class _EmptyValues:
    """Counts; each named type once, so that the work is the definition's size."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._known: dict[str, tuple[int, bool]] = {}
        self._most = 0

    def most(self, schema: Any) -> int:
        self._count(schema)
        return self._most

    def _count(self, schema: Any) -> tuple[int, bool]:
        """Values without bytes up to the first choice, and whether all are."""
        if isinstance(schema, str):
            if schema not in self._names:
                return (1, True) if schema == "null" else (0, False)
            if schema not in self._known:
                return self._count(self._names[schema])
            return self._known[schema]
        if isinstance(schema, list):  # the branch's index takes a byte
            for branch in schema:
                self._count(branch)
            return 0, False
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema)
        if kind in ("array", "map"):
            self._count(schema["items" if kind == "array" else "values"])
            return 0, False
        if kind == "fixed":
            return (1, True) if schema["size"] == 0 else (0, False)
        return (0, False) if kind == "enum" else self._count(kind)

    def _record(self, schema: Any) -> tuple[int, bool]:
        name = schema["name"]
        if name in self._known:
            return self._known[name]
        self._known[name] = 0, False  # within itself: whatever is in there counts once
        total, empty = 0, True
        for field in schema["fields"]:
            count, whole = self._count(field["type"])
            total += count
            empty = empty and whole
        total += empty
        self._known[name] = total, empty
        self._most = max(self._most, total)
        return total, empty
