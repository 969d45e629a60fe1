"""Backlog quotas: their value, and that they agree with retention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.policies.errors import InvalidPolicyError, PolicyConflictError
from magnetar.broker.policies.values import LONG_MAX, Choice, Integer, Shape, ShapeField

if TYPE_CHECKING:
    from magnetar.broker.policies.effective import EffectivePolicies

QUOTAS: Final = "backlog_quota_map"
STORAGE: Final = "destination_storage"
QUOTA_TYPES: Final = (STORAGE, "message_age")
QUOTA_EXAMPLE: Final = {
    "limitSize": 1073741824,
    "limitTime": -1,
    "policy": "producer_request_hold",
}

_ACTIONS: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
_SHAPE: Final = Shape(
    {
        "limitSize": ShapeField(Integer(-LONG_MAX - 1, LONG_MAX)),
        "limit": ShapeField(Integer(-LONG_MAX - 1, LONG_MAX)),
        "limitTime": ShapeField(Integer(), 0),
    }
)
QUOTA_SCHEMA: Final = {
    **_SHAPE.schema,
    "properties": {**_SHAPE.schema["properties"], "policy": Choice(_ACTIONS).schema},
    "required": ["policy"],
}


def parse_quota(value: Any, namespace: str) -> dict[str, Any]:
    """A BacklogQuota as it is stored; ``limit`` is the old name of ``limitSize``.

    Raises:
        InvalidPolicyError.
    """
    parsed = _SHAPE.parse(value, "backlogQuota")
    if (action := value.get("policy")) not in _ACTIONS:
        raise InvalidPolicyError(
            f"Set namespace[{namespace}] backlog quota failed because the data validation failed. "
            "the attribute policy cannot be null"
        )
    size = parsed.get("limitSize", parsed.get("limit", 0))
    return {
        "limit": size,
        "limitSize": size,
        "limitTime": parsed["limitTime"],
        "policy": action,
    }


def applied_quotas(policies: EffectivePolicies) -> dict[str, dict[str, Any]]:
    """What holds in the end, by type."""
    return {
        kind: {
            "limit": quota.limit_bytes,
            "limitSize": quota.limit_bytes,
            "limitTime": quota.limit_s,
            "policy": quota.action,
        }
        for kind, quota in policies.backlog_quotas.items()
    }


def check_agreement(quotas: Any, retention: Any, reason: str) -> None:
    """A quota must be below what retention keeps, or it would never be met.

    Args:
        quotas: by type, as stored.
        retention: as stored; only limits that are finite and not 0 count.
        reason: of the refusal.
    Raises:
        PolicyConflictError.
    """
    quota = quotas.get(STORAGE) if isinstance(quotas, Mapping) else None
    if not isinstance(quota, Mapping) or not isinstance(retention, Mapping):
        return
    size_max = _number(retention, "retentionSizeInMB", 0) * 1024 * 1024
    time_max_s = _number(retention, "retentionTimeInMinutes", 0) * 60
    size, time_s = _number(quota, "limitSize", -1), _number(quota, "limitTime", -1)
    if 0 < size_max <= size or 0 < time_max_s <= time_s:
        raise PolicyConflictError(reason)


def _number(stored: Mapping[str, Any], field: str, default: int) -> int:
    """Of a document that others may have written."""
    value = stored.get(field)
    return value if isinstance(value, int) else default
