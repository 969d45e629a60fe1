"""Definitions in Avro's JSON form: parsing, sameness, and which schema can read which.

The resolution rules are Apache Avro's own (library ``avro``, decision 0011). Sameness is ours: the
library compares documentation and spelling too, and a client that re-orders attributes would get a
new version at every connect.
"""

import json
from typing import Any, Final

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
)
from avro.errors import AvroException
from avro.schema import RecordSchema, Schema, make_avsc_object

from magnetar.broker.errors import InvalidSchemaError

_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
# Neither says anything about the data (as Java's Schema.equals sees it).
_UNCOMPARED: Final = frozenset({"doc", "aliases", "namespace"})
# What the library and the JSON module raise for hostile text: they don't check every type.
_PARSE_ERRORS: Final = (
    *(AvroException, ValueError, TypeError, KeyError, AttributeError, IndexError),
    RecursionError,
)
_REASON_LENGTH_MAX: Final = 400
_PARTS_MAX: Final = 4_000
"""The library takes time by the square of a record's fields: 1.8 s to compare this many."""
_STEPS_MAX: Final = 50_000
"""Pairs of types looked at; 25 µs each when none of them fits."""


def parse_avro(data: bytes, type_name: str) -> Schema:
    """The schema in ``data``.

    Raises:
        InvalidSchemaError: not JSON, or no Avro schema.
    """
    try:
        # Logical types don't take part in resolution, and unknown ones make the library warn.
        # Names and symbols are the client's matter: Java allows more than the specification.
        document = without_logical(json.loads(data))
        if (parts := _part_count(document)) > _PARTS_MAX:
            raise InvalidSchemaError(
                f"{type_name} schema of {parts} fields and types; at most {_PARTS_MAX} are checked"
            )
        return make_avsc_object(document, validate_enum_symbols=False, validate_names=False)
    except _PARSE_ERRORS as error:
        raise _invalid(type_name, error) from error


def _invalid(type_name: str, error: BaseException) -> InvalidSchemaError:
    reason = (str(error) or type(error).__name__)[:_REASON_LENGTH_MAX]
    return InvalidSchemaError(f"Invalid schema definition data for {type_name} schema: {reason}")


def without_logical(node: Any) -> Any:
    """The definition with every logical type as the plain type it stands for."""
    if isinstance(node, list):
        return [without_logical(each) for each in node]
    if not isinstance(node, dict):
        return node
    plain = {name: part for name, part in node.items() if name != "logicalType"}
    for name in plain.keys() & {"type", "items", "values", "fields"}:  # not of default values
        plain[name] = without_logical(plain[name])
    return plain


def _part_count(node: Any) -> int:
    """Objects, and texts in lists: fields, types, branches, symbols."""
    match node:
        case dict():
            return 1 + sum(map(_part_count, node.values()))
        case list():
            return sum(1 if isinstance(item, str) else _part_count(item) for item in node)
    return 0


class _TooComplexError(Exception):
    """The comparison was given up."""


class _BoundedChecker(ReaderWriterCompatibilityChecker):
    """The library's, but it gives up: unions of unions cost the product of their sizes.

    Names of records don't count, those of enums and fixed types do, as in Pulsar (Java's resolution
    pairs records by their fields): clients name a record after their class, which people rename.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the library's
        self._steps = 0

    def get_compatibility(self, *arguments: Any, **named: Any) -> SchemaCompatibilityResult:
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise _TooComplexError
        return super().get_compatibility(*arguments, **named)

    def calculate_compatibility(
        self, reader: Schema, writer: Schema, location: list[str]
    ) -> SchemaCompatibilityResult:
        if isinstance(reader, RecordSchema) and isinstance(writer, RecordSchema):
            return self.check_reader_writer_record_fields(reader, writer, location)
        return super().calculate_compatibility(reader, writer, location)


def why_unreadable(reader: Schema, writer: Schema) -> str | None:
    """Why data of ``writer`` can't be read with ``reader``; None: all of it can."""
    try:
        result = _BoundedChecker().get_compatibility(reader, writer)
    except RecursionError:
        return "schemas are nested too deeply to be compared"
    except _TooComplexError:
        return f"not compared in {_STEPS_MAX} steps"
    if result.compatibility is not SchemaCompatibilityType.incompatible:
        return None
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    where = ", ".join(sorted(result.locations))
    what = ", ".join(sorted(result.messages))
    return f"{kinds} at {where}: {what}"[:_REASON_LENGTH_MAX]


def canonical_text(data: bytes, type_name: str) -> str:
    """A text that is the same for definitions that mean the same.

    Raises:
        InvalidSchemaError: not JSON.
    """
    try:
        return json.dumps(_canonical(json.loads(data), ""), sort_keys=True)
    except _PARSE_ERRORS as error:
        raise _invalid(type_name, error) from error


def _canonical(node: Any, space: str) -> Any:
    """Full names, no documentation, no attributes that only spell out a default."""
    match node:
        case str():
            return node if node in _PRIMITIVES else _full_name(node, space)
        case list():
            return [_canonical(branch, space) for branch in node]
        case dict():
            return _canonical_object(node, space)
    return node


def _canonical_object(node: dict[str, Any], space: str) -> Any:
    kept = {key: value for key, value in node.items() if key not in _UNCOMPARED}
    kind = node.get("type")
    if isinstance(kind, str) and kind in _NAMED:
        kept["name"] = _full_name(str(node.get("name")), str(node.get("namespace", space)))
        space = kept["name"].rpartition(".")[0]
        if isinstance(fields := node.get("fields"), list):
            kept["fields"] = [_canonical_field(each, space) for each in fields]
        return kept
    for key in ("items", "values"):
        if key in kept:
            kept[key] = _canonical(kept[key], space)
    if kind not in ("array", "map"):
        kept["type"] = _canonical(kind, space)
    return kept["type"] if kept.keys() == {"type"} else kept


def _canonical_field(field: dict[str, Any], space: str) -> dict[str, Any]:
    kept = {key: value for key, value in field.items() if key not in ("doc", "aliases")}
    kept["type"] = _canonical(field["type"], space)
    if kept.get("order") == "ascending":
        del kept["order"]
    return kept


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
