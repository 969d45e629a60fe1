"""The kinds of values that policies have: how each is read, what it is refused for, how it looks.

``parse`` turns JSON that a client sent into what is stored, with every field that Pulsar answers
with, or raises PolicyError. Unknown fields are ignored, absent and null ones get their default:
clients may be newer or older than this broker.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.policies.errors import InvalidPolicyError, PolicyRangeError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_DOUBLE_MAX: Final = 1e300
_WHOLE_TEXT: Final = re.compile(r"\s*[+-]?[0-9]{1,20}\s*")
_DECIMAL_TEXT: Final = re.compile(r"\s*[+-]?[0-9]{1,40}(\.[0-9]{1,40})?\s*")


class ValueKind(ABC):
    """How a policy's value is read."""

    @abstractmethod
    def parse(self, value: Any, where: str) -> Any:
        """The value as it is stored.

        Args:
            value: parsed JSON, not None.
            where: what the reason calls it.
        Raises:
            InvalidPolicyError: not of this kind.
            PolicyRangeError: out of its range.
        """

    @property
    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """JSON schema, for the OpenAPI document."""


@dataclass(frozen=True, slots=True)
class Integer(ValueKind):
    minimum: int = -(2**31)
    maximum: int = INT_MAX
    too_low: str = ""
    """Reason below ``minimum``, ``{}`` is the policy's name."""

    def parse(self, value: Any, where: str) -> int:
        # Clients send numbers as texts too, since Pulsar's JSON reader takes them.
        if isinstance(value, str) and _WHOLE_TEXT.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidPolicyError(f"{where}: {value!r:.60} is not an integer")
        if value > self.maximum or value < -self.maximum - 1:
            raise InvalidPolicyError(f"{where}: {value} is out of range")
        if value < self.minimum:
            reason = self.too_low or "{} must be " + str(self.minimum) + " or more"
            raise PolicyRangeError(reason.format(where))
        return value

    @property
    def schema(self) -> dict[str, Any]:
        wide = "int64" if self.maximum > INT_MAX else "int32"
        return {
            "type": "integer",
            "format": wide,
            "minimum": self.minimum,
            "maximum": self.maximum,
        }


@dataclass(frozen=True, slots=True)
class Number(ValueKind):
    """A floating-point number."""

    def parse(self, value: Any, where: str) -> float:
        if isinstance(value, str) and _DECIMAL_TEXT.fullmatch(value):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidPolicyError(f"{where}: {value!r:.60} is not a number")
        if abs(value) > _DOUBLE_MAX:  # also infinity, which JSON can't tell
            raise InvalidPolicyError(f"{where}: {value!r:.60} is out of range")
        return float(value)

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "number", "format": "double"}


@dataclass(frozen=True, slots=True)
class Flag(ValueKind):
    def parse(self, value: Any, where: str) -> bool:
        # Clients send the text "true" as well.
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise InvalidPolicyError(f"{where}: {value!r:.60} is neither true nor false")
        return value

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice(ValueKind):
    """One of some texts."""

    values: Sequence[str]

    def parse(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in self.values:
            wanted = ", ".join(self.values)
            raise InvalidPolicyError(f"{where}: {value!r:.60} is not one of {wanted}")
        return value

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class Text(ValueKind):
    def parse(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise InvalidPolicyError(f"{where}: {value!r:.60} is not a text")
        return value

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class Names(ValueKind):
    """A set of texts, each once; of ``values`` only, where they are given, and in their order."""

    values: Sequence[str] = ()

    def parse(self, value: Any, where: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidPolicyError(f"{where}: {value!r:.60} is not an array of names")
        if not self.values:
            return list(dict.fromkeys(value))
        for item in value:
            if item not in self.values:
                wanted = ", ".join(self.values)
                raise InvalidPolicyError(f"{where}: {item!r:.60} is not one of {wanted}")
        return [item for item in self.values if item in value]

    @property
    def schema(self) -> dict[str, Any]:
        items: dict[str, Any] = {"type": "string"}
        if self.values:
            items["enum"] = list(self.values)
        return {"type": "array", "items": items}


@dataclass(frozen=True, slots=True)
class ShapeField:
    """One field of an object."""

    kind: ValueKind
    default: Any = None
    """What stands there when the client gives nothing; None: the field is left out."""
    about: str = ""
    """What it does, for forms and for the OpenAPI document."""


@dataclass(frozen=True, slots=True)
class Shape(ValueKind):
    """An object with known fields."""

    fields: Mapping[str, ShapeField]
    check: Callable[[dict[str, Any]], None] | None = None
    """Of the fields together; raises PolicyError."""

    def parse(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidPolicyError(f"{where}: {value!r:.60} is not an object")
        parsed: dict[str, Any] = {}
        for name, field in self.fields.items():
            given = value.get(name)
            item = field.default if given is None else field.kind.parse(given, name)
            if item is not None:
                parsed[name] = item
        if self.check is not None:
            self.check(parsed)
        return parsed

    @property
    def schema(self) -> dict[str, Any]:
        properties = {}
        for name, field in self.fields.items():
            properties[name] = dict(field.kind.schema)
            if field.default is not None:
                properties[name]["default"] = field.default
            if field.about:
                properties[name]["description"] = field.about
        return {"type": "object", "properties": properties}


# --- the objects that policies are, with what Pulsar checks of them

ANY_LONG: Final = Integer(-LONG_MAX - 1, LONG_MAX)
_INT: Final = Integer()
_BOOKIES_MAX: Final = 5
_NO_DEFAULT: Final = ShapeField(_INT)

SUBSCRIPTION_TYPES: Final = Names(("Exclusive", "Shared", "Failover", "Key_Shared"))


def _check_retention(value: dict[str, Any]) -> None:
    minutes, megabytes = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    if minutes < -1:
        raise InvalidPolicyError("Invalid retention policy: time limit must be >= -1")
    if megabytes < -1:
        raise InvalidPolicyError("Invalid retention policy: size limit must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise InvalidPolicyError(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when "
            "one of the limits has a non-zero value. Use the value of -1 instead of 0 to ignore a "
            "specific limit. To disable retention both limits must be set to 0."
        )


RETENTION: Final = Shape(
    {
        "retentionTimeInMinutes": ShapeField(
            _INT, 0, "minutes that acknowledged messages are kept, -1: for ever, 0: not at all"
        ),
        "retentionSizeInMB": ShapeField(
            ANY_LONG, 0, "MB of them that are kept, -1: any number, 0: none"
        ),
    },
    _check_retention,
)


def _check_persistence(value: dict[str, Any]) -> None:
    sizes = [value[f"bookkeeper{name}"] for name in ("Ensemble", "WriteQuorum", "AckQuorum")]
    for name, size in zip(("Ensemble", "WriteQuorum", "AckQuorum"), sizes, strict=True):
        if not 0 < size <= _BOOKIES_MAX:
            raise InvalidPolicyError(f"Bookkeeper-{name} must be <= {_BOOKIES_MAX} and > 0.")
    ensemble, write, ack = sizes
    if not ensemble >= write >= ack:
        raise InvalidPolicyError(
            f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})"
        )


PERSISTENCE: Final = Shape(
    {
        "bookkeeperEnsemble": ShapeField(
            _INT, 2, "bookies among which the entries of a ledger are spread"
        ),
        "bookkeeperWriteQuorum": ShapeField(_INT, 2, "bookies that each entry is written to"),
        "bookkeeperAckQuorum": ShapeField(
            _INT, 2, "of those, how many must have it on disk before the receipt"
        ),
        "managedLedgerMaxMarkDeleteRate": ShapeField(
            Number(), -1.0, "how often a second a cursor is stored at most, -1: as the broker does"
        ),
        "managedLedgerStorageClassName": ShapeField(Text()),
    },
    _check_persistence,
)

DISPATCH_RATE: Final = Shape(
    {
        "dispatchThrottlingRateInMsg": ShapeField(_INT, 0, "messages in a period, -1: any number"),
        "dispatchThrottlingRateInByte": ShapeField(
            ANY_LONG, 0, "bytes in a period, -1: any number"
        ),
        "relativeToPublishRate": ShapeField(
            Flag(), False, "whether the rate of publishing is added to the limits"
        ),
        "ratePeriodInSecond": ShapeField(_INT, 0, "seconds of a period"),
    }
)
PUBLISH_RATE: Final = Shape(
    {
        "publishThrottlingRateInMsg": ShapeField(_INT, -1, "messages a second, -1: any number"),
        "publishThrottlingRateInByte": ShapeField(ANY_LONG, -1, "bytes a second, -1: any number"),
    }
)
SUBSCRIBE_RATE: Final = Shape(
    {
        "subscribeThrottlingRatePerConsumer": ShapeField(
            _INT, -1, "times in a period that one consumer may subscribe, -1: any number"
        ),
        "ratePeriodInSecond": ShapeField(_INT, 30, "seconds of a period"),
    }
)
DELAYED_DELIVERY: Final = Shape(
    {
        "tickTime": ShapeField(
            ANY_LONG, 0, "milliseconds by which a delivery may be late, 0: as the broker does"
        ),
        "active": ShapeField(Flag(), False, "whether messages may ask for later delivery"),
        "maxDeliveryDelayInMillis": ShapeField(
            ANY_LONG, 0, "milliseconds that they may ask for, 0: any number"
        ),
    }
)
INACTIVE_TOPICS: Final = Shape(
    {
        "inactiveTopicDeleteMode": ShapeField(
            Choice(("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"))
        ),
        "maxInactiveDurationSeconds": ShapeField(
            _INT, 0, "seconds without use after which it is deleted"
        ),
        "deleteWhileInactive": ShapeField(Flag(), False, "whether topics without use are deleted"),
    }
)


def _check_auto_topic(value: dict[str, Any]) -> None:
    if not value["allowAutoTopicCreation"]:
        return
    kind, count = value.get("topicType"), value.get("defaultNumPartitions")
    detail = ""
    if kind not in ("partitioned", "non-partitioned"):
        detail = f"Unknown topic type [{'null' if kind is None else kind}]"
    elif kind == "non-partitioned":
        if count is not None:
            detail = (
                "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
            )
    elif count is None:
        detail = "[defaultNumPartitions] cannot be null when the type is partitioned."
    elif count < 1:
        detail = "[defaultNumPartitions] cannot be less than 1 for partition type."
    if detail:
        raise PolicyRangeError(
            f"Invalid configuration for autoTopicCreationOverride. the detail is {detail}"
        )


AUTO_TOPIC: Final = Shape(
    {
        "allowAutoTopicCreation": ShapeField(Flag(), False, "whether using a topic creates it"),
        "topicType": ShapeField(Text(), about="partitioned or non-partitioned: what is created"),
        "defaultNumPartitions": _NO_DEFAULT,
    },
    _check_auto_topic,
)
AUTO_SUBSCRIPTION: Final = Shape(
    {
        "allowAutoSubscriptionCreation": ShapeField(
            Flag(), False, "whether consuming creates the subscription"
        )
    }
)


def _check_filters(value: dict[str, Any]) -> None:
    names = value.get("entryFilterNames", "")
    if not names.strip():
        raise InvalidPolicyError(
            "entryFilterNames can't be empty. To remove entry filters use the remove method."
        )
    # There is nowhere to put one: this broker runs no code of others.
    raise InvalidPolicyError(f"Entry filter '{names.split(',')[0].strip()}' not found")


ENTRY_FILTERS: Final = Shape({"entryFilterNames": ShapeField(Text())}, _check_filters)
