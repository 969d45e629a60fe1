"""All policies in force for a topic or a namespace, each with the document that sets it. Pure.

A value that can't be of its policy holds nowhere (effective.py), so it isn't shown either.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from magnetar.broker.policies.documents import QUOTA_TYPES, QUOTAS, applied_quotas
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.errors import PolicyError
from magnetar.broker.policies.table import POLICIES, Policy

Sourced = tuple[Any, str]
"""A value, and its source: ``topic``, ``global``, ``namespace`` or ``broker``."""

_BROKER: Final = "broker"
_REPLICATION: Final = "replication_clusters"
_SUBSCRIPTIONS: Final = "subscriptionPolicies"
_RATE: Final = "dispatchRate"
_PARTS: Final = frozenset(
    each for policy in POLICIES for each in (policy.older, policy.inner and policy.field) if each
)
"""Fields that only say what another policy says, too."""


def applied_policies(policies: EffectivePolicies, *, is_topic: bool) -> dict[str, Sourced]:
    """What holds, by the last segment of the path that reads it.

    Args:
        is_topic: of a topic, with what only its namespace can set; else of a namespace.
    """
    found: dict[str, Sourced] = {}
    for policy in POLICIES:
        at = (policy.topic if is_topic else None) or policy.namespace
        if at is not None and policy.field not in _PARTS:
            found[at.path] = _applied(policy, policies)
    quotas = applied_quotas(policies)
    for kind in QUOTA_TYPES:
        found[f"backlogQuota/{kind}"] = quotas[kind], _source_of_quota(policies, kind)
    clusters = next(_set(policies, _REPLICATION), (None, _BROKER))
    found["replication"] = clusters[0] or [], clusters[1]
    found.update(_rates(policies))
    return found


def _applied(policy: Policy, policies: EffectivePolicies) -> Sourced:
    if policy.effective is not None:
        return policy.effective(policies), _source(policy, policies)
    default = policy.default(policies.config)
    for value, source in _set(policies, policy.field):
        if isinstance(default, Mapping):
            if not isinstance(value, Mapping):
                break
            own = {key: each for key, each in value.items() if each is not None}
            return {**default, **own}, source
        if _is_unset(policy, value, source):
            continue
        return (value, source) if _is_value(policy, value) else (default, _BROKER)
    return default, _BROKER


def _source(policy: Policy, policies: EffectivePolicies) -> str:
    """Of a policy that several documents make together: the most specific one of them."""
    for field in filter(None, (policy.field, policy.older)):
        for value, source in _set(policies, field):
            if not _is_unset(policy, value, source):
                return source
    return _BROKER


def _set(policies: EffectivePolicies, field: str) -> Iterator[Sourced]:
    """What each document says, the most specific one first."""
    for name, layer in policies.layers():
        if (value := layer.get(field)) is not None:
            yield value, name


def _is_unset(policy: Policy, value: Any, source: str) -> bool:
    """Whether a document says by this value that it sets nothing.

    A flag of a namespace is false then; a topic's document doesn't have it at all.
    """
    return value == policy.stored_unset and (source == "namespace" or value is not False)


def _is_value(policy: Policy, value: Any) -> bool:
    try:
        policy.kind.parse(value, policy.field)
    except PolicyError:
        return False
    return True


def _source_of_quota(policies: EffectivePolicies, kind: str) -> str:
    for quotas, source in _set(policies, QUOTAS):
        if isinstance(quotas, Mapping) and isinstance(quotas.get(kind), Mapping):
            return source
    return _BROKER


def _rates(policies: EffectivePolicies) -> dict[str, Sourced]:
    """Dispatch rates of single subscriptions."""
    found: dict[str, Sourced] = {}
    for rates, source in _set(policies, _SUBSCRIPTIONS):
        for subscription, own in rates.items() if isinstance(rates, Mapping) else ():
            rate = own.get(_RATE) if isinstance(own, Mapping) else None
            if isinstance(rate, Mapping):
                found.setdefault(f"{subscription}/{_RATE}", (rate, source))
    return found
