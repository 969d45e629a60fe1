"""May a topic's schema become this one? Strategies and per-type rules. Pure, but slow for large
definitions: the registry calls it in a thread.

Source: SchemaRegistryServiceImpl and the *SchemaCompatibilityCheck classes of apache/pulsar 4.2.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from magnetar.broker.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.broker.schema.avro_definition import canonical_text, parse_avro, why_unreadable
from magnetar.broker.schema.definition import (
    AUTO_CONSUME,
    AVRO_FORMS,
    SCHEMA_TYPES,
    SchemaDefinition,
)
from magnetar.broker.schema.key_value import split_key_value
from magnetar.broker.schema.protobuf_native import root_message


class Strategy(Enum):
    """How a new version must relate to older ones (a policy of the namespace)."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether every version counts, not only the newest."""
        return self.value.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


# A consumer reads: under these it must be able to read what the newest version writes.
_CONSUMER_READS_LATEST: Final = frozenset(
    {Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL}
)


def validate(definition: SchemaDefinition) -> None:
    """Raises InvalidSchemaError for a definition that isn't one of its type."""
    kind, data = definition.type, definition.data
    if kind == AUTO_CONSUME:
        raise InvalidSchemaError(f"Schema {kind} is a client-side schema type")
    if kind in AVRO_FORMS:
        parse_avro(data, kind)
        if kind == "AVRO":  # the others' values aren't in Avro's binary form
            from magnetar.broker.schema.avro_values import check_empty_values

            check_empty_values(data)
    elif kind == "PROTOBUF_NATIVE":
        root_message(data)
    elif kind == "KEY_VALUE":
        for part in split_key_value(definition):
            validate(part)
    elif kind == "BYTES" or kind == "EXTERNAL":
        return
    elif kind not in SCHEMA_TYPES:
        raise InvalidSchemaError(f"Unknown schema type {kind}")
    elif data and data != b"null":  # "null": what some clients make of no definition
        raise InvalidSchemaError(
            f"Invalid schema definition data for {kind} schema: {len(data)} bytes, should be none"
        )


def same_definition(one: SchemaDefinition, other: SchemaDefinition) -> bool:
    """Whether both mean the same, so that they share a version."""
    if one.type != other.type:
        return False
    if one.data == other.data:
        return True
    if one.type not in AVRO_FORMS:
        return False
    return canonical_text(one.data, one.type) == canonical_text(other.data, other.type)


def check_evolution(
    strategy: Strategy, history: Sequence[SchemaDefinition], new: SchemaDefinition
) -> None:
    """Whether ``new`` may follow ``history`` (oldest first; empty: anything may).

    Raises:
        IncompatibleSchemaError: it may not; the text says why.
    """
    if strategy is Strategy.ALWAYS_COMPATIBLE or not history:
        return
    for old in history if strategy.transitive else history[-1:]:
        if old.type != new.type:
            raise IncompatibleSchemaError(
                f"Incompatible schema: exists schema type {old.type}, new schema type {new.type}"
            )
        if strategy is Strategy.ALWAYS_INCOMPATIBLE:
            raise IncompatibleSchemaError("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")
        _check_pair(strategy, old, new)


def _check_pair(strategy: Strategy, old: SchemaDefinition, new: SchemaDefinition) -> None:
    if new.type in AVRO_FORMS:
        _check_avro(strategy, old, new)
    elif new.type == "PROTOBUF_NATIVE":
        before, after = root_message(old.data), root_message(new.data)
        if before != after:
            raise IncompatibleSchemaError(
                f"Protobuf root message must not change: it was {before}, now it is {after}"
            )
    elif new.type == "KEY_VALUE":
        _check_key_value(strategy, old, new)
    # Others have no definition: an equal type is an equal schema.


def _check_avro(strategy: Strategy, old: SchemaDefinition, new: SchemaDefinition) -> None:
    before, after = parse_avro(old.data, old.type), parse_avro(new.data, new.type)
    reason = why_unreadable(after, before) if strategy.new_reads_old else None
    if reason is not None:
        raise IncompatibleSchemaError(
            f"Incompatible with strategy {strategy.value}: the new schema can't read data of an "
            f"existing one: {reason}"
        )
    reason = why_unreadable(before, after) if strategy.old_reads_new else None
    if reason is not None:
        raise IncompatibleSchemaError(
            f"Incompatible with strategy {strategy.value}: an existing schema can't read data of "
            f"the new one: {reason}"
        )


def _check_key_value(strategy: Strategy, old: SchemaDefinition, new: SchemaDefinition) -> None:
    for name, before, after in zip(
        ("key", "value"), split_key_value(old), split_key_value(new), strict=True
    ):
        if before.type != after.type:
            raise IncompatibleSchemaError(
                f"Incompatible schema: exists {name} schema type {before.type}, "
                f"new {name} schema type {after.type}"
            )
        _check_pair(strategy, before, after)


def check_consumer(
    strategy: Strategy, history: Sequence[SchemaDefinition], wanted: SchemaDefinition
) -> None:
    """Whether a consumer with the schema ``wanted`` may read a topic with this history.

    Raises:
        IncompatibleSchemaError: it may not.
    """
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if not history:
        raise IncompatibleSchemaError("Topic does not have schema to check")
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        # Pulsar refuses every consumer here; no new schema is meant, not no reader.
        if any(same_definition(old, wanted) for old in history):
            return
    elif strategy in _CONSUMER_READS_LATEST:
        strategy = Strategy.BACKWARD
    check_evolution(strategy, history, wanted)
