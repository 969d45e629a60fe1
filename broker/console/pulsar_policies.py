"""Policies of Apache Pulsar with who sets them, which its REST doesn't tell in one call; pure."""

from collections.abc import Mapping
from typing import Any

from magnetar.broker.policies.documents import QUOTA_TYPES, QUOTAS, in_namespace
from magnetar.broker.policies.table import POLICIES

Rows = list[tuple[str, Any, str]]
"""Name, value in force and who sets it."""


def set_policies(document: Mapping[str, Any] | None, cluster: str) -> dict[str, Any]:
    """What a namespace's document sets, by its fields."""
    if document is None:  # the visitor may not read it
        return {}
    found: dict[str, Any] = {}
    for policy in POLICIES:
        value = in_namespace(document, policy, cluster)
        if _is_set(value) and value != policy.stored_unset:
            found[policy.field] = value
    return found | {QUOTAS: document.get(QUOTAS) or {}}


def _is_set(value: Any) -> bool:
    return value not in (None, {}, [])


def row_of(name: str, own: Any, applied: Any, of_namespace: Any) -> tuple[str, Any, str]:
    """
    Args:
        applied: what holds; None: REST doesn't tell.
        of_namespace: what the namespace sets; None: nothing.
    """
    if _is_set(own):
        return name, own, "topic"
    value = of_namespace if applied is None else applied
    return name, value, "broker" if of_namespace is None else "namespace"


def namespace_rows(found: Mapping[str, Any]) -> Rows:
    """
    Args:
        found: of ``set_policies``.
    """
    rows = [
        (each.namespace.path, found.get(each.field))
        for each in POLICIES
        if each.namespace is not None and each.inner is None
    ]
    rows += [(f"backlogQuota/{kind}", found[QUOTAS].get(kind)) for kind in QUOTA_TYPES]
    return [(name, value, "broker" if value is None else "namespace") for name, value in rows]
