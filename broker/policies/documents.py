"""Changes of policy documents, as pure functions: a document goes in, a new one comes out."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.errors import (
    InvalidPolicyError,
    PolicyConflictError,
    UnsupportedPolicyError,
)
from magnetar.broker.policies.offload import FIELD as OFFLOAD_FIELD
from magnetar.broker.policies.offload import unset_offload
from magnetar.broker.policies.table import POLICIES, Policy, policy_of_field
from magnetar.broker.policies.values import (
    ANY_LONG,
    Choice,
    Integer,
    Names,
    Shape,
    ShapeField,
    Text,
)

Document = dict[str, Any]

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
        "limitSize": ShapeField(
            ANY_LONG, about="bytes that a subscription may be behind, -1: any number"
        ),
        "limit": ShapeField(ANY_LONG),
        "limitTime": ShapeField(Integer(), 0, "seconds that it may be behind, 0: any number"),
    }
)
_THEN: Final = "beyond it producers wait, or are refused, or the oldest messages are skipped"
QUOTA_SCHEMA: Final = {
    **_SHAPE.schema,
    "properties": {
        **_SHAPE.schema["properties"],
        "policy": {**Choice(_ACTIONS).schema, "description": _THEN},
    },
    "required": ["policy"],
}

TOPIC_RETENTION_BELOW_QUOTA: Final = (
    "Retention Quota must exceed configured backlog quota for topic. "
    "Please increase retention quota and retry"
)
TOPIC_QUOTA_ABOVE_RETENTION: Final = (
    "Backlog Quota exceeds configured retention quota for topic. "
    "Please increase retention quota and retry"
)
_RETENTION_BELOW_QUOTA: Final = (
    "Retention Quota must exceed configured backlog quota for namespace."
)
_QUOTA_ABOVE_RETENTION: Final = (
    "Backlog Quota exceeds configured retention quota for namespace. "
    "Please increase retention quota and retry"
)
_RETENTION: Final = "retention_policies"
_PROPERTIES_BYTES_MAX: Final = 64 * 1024


# --- reading


def in_namespace(document: Mapping[str, Any], policy: Policy, cluster: str) -> Any:
    """A namespace's own value; None: not set."""
    value = document.get(policy.field)
    if policy.inner is not None:
        outer = document.get(policy.inner[0])
        inner = outer.get(policy.inner[1]) if isinstance(outer, Mapping) else None
        return value if inner is None else inner
    if policy.by_cluster:
        return value.get(cluster) if isinstance(value, Mapping) else None
    return value


def in_topic(document: Mapping[str, Any], scope: str, field: str) -> Any:
    """A topic's own value; None: not set."""
    layer = document.get(scope)
    return layer.get(field) if isinstance(layer, Mapping) else None


# --- changing


def change_namespace(document: Document, policy: Policy, cluster: str, value: Any) -> Document:
    """The document with a policy's value; None takes the policy away.

    Raises:
        PolicyConflictError: it contradicts another policy.
    """
    changed = dict(document)
    if policy.inner is not None:
        outer, key = policy.inner
        found = document.get(outer)
        fields = {**(found if isinstance(found, Mapping) else unset_offload())}
        fields.pop(key, None)
        changed[outer] = fields if value is None else {**fields, key: value}
        return _without_legacy(changed, policy)
    if policy.by_cluster:
        before = document.get(policy.field)
        values = dict(before) if isinstance(before, Mapping) else {}
        values.pop(cluster, None)
        changed[policy.field] = values if value is None else {**values, cluster: value}
    elif value is not None:
        changed[policy.field] = value
    elif policy.stored_unset is not None:
        changed[policy.field] = policy.stored_unset
    else:
        changed.pop(policy.field, None)
    if policy.field == _RETENTION:
        check_agreement(changed.get(QUOTAS), value, _RETENTION_BELOW_QUOTA)
    return changed


def _without_legacy(document: Document, policy: Policy) -> Document:
    """What a policy's own field said doesn't hold beside the newer place."""
    if policy.stored_unset is not None:
        return {**document, policy.field: policy.stored_unset}
    return {field: value for field, value in document.items() if field != policy.field}


def remove_offload(document: Document) -> Document:
    """A namespace's document without any policy of offloading."""
    changed = {field: value for field, value in document.items() if field != OFFLOAD_FIELD}
    for policy in POLICIES:
        if policy.inner is not None:
            changed = _without_legacy(changed, policy)
    return changed


def change_quota(document: Document, kind: str, quota: Document | None) -> Document:
    """A namespace's document with the backlog quota of one type; None takes it away.

    Raises:
        PolicyConflictError: retention keeps less.
    """
    before = document.get(QUOTAS)
    quotas = {**(before if isinstance(before, Mapping) else {})}
    quotas.pop(kind, None)
    if quota is not None:
        quotas[kind] = quota
        check_agreement({kind: quota}, document.get(_RETENTION), _QUOTA_ABOVE_RETENTION)
    return {**document, QUOTAS: quotas}


def change_topic(document: Document, scope: str, field: str, value: Any) -> Document:
    """A topic's document with a policy's value; None takes it away, and the layer when empty."""
    before = document.get(scope)
    layer = dict(before) if isinstance(before, Mapping) else {}
    layer.pop(field, None)
    if value is not None and value != {}:
        layer[field] = value
    changed = {key: item for key, item in document.items() if key != scope}
    return {**changed, scope: layer} if layer else changed


def change_inner(document: Document, scope: str, field: str, key: str, value: Any) -> Document:
    """The same for a policy that is a map: one of its keys; None takes the key away."""
    before = in_topic(document, scope, field)
    inner = {**(before if isinstance(before, Mapping) else {})}
    inner.pop(key, None)
    if value is not None:
        inner[key] = value
    return change_topic(document, scope, field, inner)


def check_topic_agreement(policies: EffectivePolicies, reason: str) -> None:
    """A topic's quota against its retention, from the topic or the namespace.

    Raises:
        PolicyConflictError.
    """
    quotas: dict[str, Any] = {}
    for layer in reversed(policies.values(QUOTAS)):
        quotas.update(layer)
    check_agreement(quotas, policies.value(_RETENTION), reason)


# --- backlog quotas: their value, and that they agree with retention


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


# --- a whole namespace, as it is created


def parse_namespace(body: Mapping[str, Any], namespace: str, config: BrokerConfig) -> Document:
    """What a client's Policies object says, as it is stored; what it leaves empty is left out.

    Clients send whole objects full of nulls and empty maps, and fields of later versions: those
    say nothing. Bundles and replication clusters are the caller's.

    Raises:
        PolicyError: a value that can't be, or of a feature that doesn't exist.
    """
    document: Document = {}
    for field, value in body.items():
        if value is None or value in ({}, [], ""):
            continue
        if (policy := policy_of_field(field)) is not None and policy.namespace is not None:
            document[field] = _parse_field(policy, value, config)
        elif (parse := _OTHERS.get(field)) is not None:
            document[field] = parse(value, namespace)
        elif (feature := _UNSUPPORTED.get(field)) is not None and value is not False:
            raise UnsupportedPolicyError(f"{feature} is not available in this version")
    check_agreement(document.get(QUOTAS), document.get(_RETENTION), _RETENTION_BELOW_QUOTA)
    return document


def _parse_field(policy: Policy, value: Any, config: BrokerConfig) -> Any:
    assert policy.namespace is not None
    if not policy.by_cluster:
        return policy.parse(value, policy.namespace, config)
    return {
        cluster: policy.parse(rate, policy.namespace, config)
        for cluster, rate in _object(value, policy.field).items()
        if rate is not None
    }


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidPolicyError(f"{where}: {value!r:.60} is not an object")
    return value


def _quotas(value: Any, namespace: str) -> Document:
    quotas = _object(value, QUOTAS)
    for kind in quotas:
        if kind not in QUOTA_TYPES:
            raise InvalidPolicyError(f"{kind!r:.60} is not a type of backlog quota")
    return {kind: parse_quota(quota, namespace) for kind, quota in quotas.items()}


def _permissions(value: Any, _: str) -> Document:
    given = _object(value, "auth_policies")
    names = Names()

    def roles(of: Any, where: str) -> Document:
        return {role: names.parse(items, where) for role, items in _object(of, where).items()}

    topics = _object(given.get("destination_auth") or {}, "destination_auth")
    return {
        "namespace_auth": roles(given.get("namespace_auth") or {}, "namespace_auth"),
        "destination_auth": {name: roles(of, "destination_auth") for name, of in topics.items()},
        "subscription_auth_roles": roles(
            given.get("subscription_auth_roles") or {}, "subscription_auth_roles"
        ),
    }


def with_properties(before: Mapping[str, str], added: Any) -> dict[str, str]:
    """Properties with more of them.

    Raises:
        InvalidPolicyError: not texts, or too many bytes.
    """
    text = Text()
    changed = {
        **before,
        **{key: text.parse(value, key) for key, value in _object(added, "properties").items()},
    }
    size = sum(len(key.encode()) + len(value.encode()) for key, value in changed.items())
    if size > _PROPERTIES_BYTES_MAX:
        raise InvalidPolicyError(f"Properties of {size} bytes exceed {_PROPERTIES_BYTES_MAX}")
    return changed


_OTHERS: Final[dict[str, Callable[[Any, str], Document]]] = {
    QUOTAS: _quotas,
    "auth_policies": _permissions,
    "properties": lambda value, _: with_properties({}, value),
}
_UNSUPPORTED: Final = {
    "migrated": "Migration to another cluster",
    "resource_group_name": "Grouping resources",
    "clusterDispatchRate": "The dispatch rate of a cluster",
}
