"""The objects that policies are, field by field, with what Pulsar checks of them."""

from __future__ import annotations

from typing import Any, Final

from magnetar.broker.policies.errors import InvalidPolicyError, PolicyRangeError
from magnetar.broker.policies.values import (
    LONG_MAX,
    Choice,
    Flag,
    Integer,
    Names,
    Number,
    Shape,
    ShapeField,
    Text,
)

_LONG: Final = Integer(-LONG_MAX - 1, LONG_MAX)
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
        "retentionTimeInMinutes": ShapeField(_INT, 0),
        "retentionSizeInMB": ShapeField(_LONG, 0),
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
        "bookkeeperEnsemble": ShapeField(_INT, 2),
        "bookkeeperWriteQuorum": ShapeField(_INT, 2),
        "bookkeeperAckQuorum": ShapeField(_INT, 2),
        "managedLedgerMaxMarkDeleteRate": ShapeField(Number(), -1.0),
        "managedLedgerStorageClassName": ShapeField(Text()),
    },
    _check_persistence,
)

DISPATCH_RATE: Final = Shape(
    {
        "dispatchThrottlingRateInMsg": ShapeField(_INT, 0),
        "dispatchThrottlingRateInByte": ShapeField(_LONG, 0),
        "relativeToPublishRate": ShapeField(Flag(), False),
        "ratePeriodInSecond": ShapeField(_INT, 0),
    }
)
PUBLISH_RATE: Final = Shape(
    {
        "publishThrottlingRateInMsg": ShapeField(_INT, -1),
        "publishThrottlingRateInByte": ShapeField(_LONG, -1),
    }
)
SUBSCRIBE_RATE: Final = Shape(
    {
        "subscribeThrottlingRatePerConsumer": ShapeField(_INT, -1),
        "ratePeriodInSecond": ShapeField(_INT, 30),
    }
)
DELAYED_DELIVERY: Final = Shape(
    {
        "tickTime": ShapeField(_LONG, 0),
        "active": ShapeField(Flag(), False),
        "maxDeliveryDelayInMillis": ShapeField(_LONG, 0),
    }
)
INACTIVE_TOPICS: Final = Shape(
    {
        "inactiveTopicDeleteMode": ShapeField(
            Choice(("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"))
        ),
        "maxInactiveDurationSeconds": ShapeField(_INT, 0),
        "deleteWhileInactive": ShapeField(Flag(), False),
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
        "allowAutoTopicCreation": ShapeField(Flag(), False),
        "topicType": ShapeField(Text()),
        "defaultNumPartitions": _NO_DEFAULT,
    },
    _check_auto_topic,
)
AUTO_SUBSCRIPTION: Final = Shape({"allowAutoSubscriptionCreation": ShapeField(Flag(), False)})


def _check_filters(value: dict[str, Any]) -> None:
    names = value.get("entryFilterNames", "")
    if not names.strip():
        raise InvalidPolicyError(
            "entryFilterNames can't be empty. To remove entry filters use the remove method."
        )
    # There is nowhere to put one: this broker runs nobody else's code.
    raise InvalidPolicyError(f"Entry filter '{names.split(',')[0].strip()}' not found")


ENTRY_FILTERS: Final = Shape({"entryFilterNames": ShapeField(Text())}, _check_filters)
