"""Topic policies as brokers of Apache Pulsar store them: events in a system topic. Pure.

Each namespace has the topic ``__change_events``. The last event of a topic holds all of its
policies, in Avro, by a schema in the registry. docs/formats/pulsar-metadata.md.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from magnetar.broker.migration.system_events import event_entry, records_of
from magnetar.broker.policies.offload import FIELD as OFFLOAD_FIELD
from magnetar.broker.protocol.topic_name import TopicName

Document = dict[str, Any]

EVENTS_TOPIC: Final = "__change_events"
_GLOBAL_KEY: Final = "__G__"
_FIELDS: Final = {
    "autoSubscriptionCreationOverride": "autoSubscriptionCreationOverride",
    "backLogQuotaMap": "backlog_quota_map",
    "compactionThreshold": "compaction_threshold",
    "deduplicationEnabled": "deduplicationEnabled",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotIntervalSeconds",
    "dispatchRate": "topicDispatchRate",
    "dispatcherPauseOnAckStatePersistentEnabled": "dispatcherPauseOnAckStatePersistentEnabled",
    "entryFilters": "entryFilters",
    "inactiveTopicPolicies": "inactive_topic_policies",
    "maxConsumerPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxMessageSize": "max_message_size",
    "maxProducerPerTopic": "max_producers_per_topic",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxUnackedMessagesOnConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesOnSubscription": "max_unacked_messages_per_subscription",
    "messageTTLInSeconds": "message_ttl_in_seconds",
    "offloadPolicies": OFFLOAD_FIELD,
    "persistence": "persistence",
    "publishRate": "publishMaxMessageRate",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "retentionPolicies": "retention_policies",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "schemaValidationEnforced": "schema_validation_enforced",
    "subscribeRate": "clusterSubscribeRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "subscriptionExpirationTimeInMinutes": "subscription_expiration_time_minutes",
    "subscriptionTypesEnabled": "subscription_types_enabled",
}
"""Pulsar's field of a topic's policies, and ours where the meaning is the same."""
_DELAYED: Final = "delayed_delivery_policies"
_DELAYED_FIELDS: Final = {
    "delayedDeliveryEnabled": "active",
    "delayedDeliveryTickTimeMillis": "tickTime",
    "delayedDeliveryMaxDelayInMillis": "maxDeliveryDelayInMillis",
}
_SUBSCRIPTIONS: Final = "subscriptionPolicies"
_DISPATCH: Final = "dispatchRate"
_IGNORED: Final = frozenset({"isGlobal"})


class PolicyEvent(NamedTuple):
    """The newest event of one key.

    Attributes:
        layer: ``local`` or ``global``.
        policies: in our fields; None: the topic has none any more.
        unknown: fields of Pulsar's that are set and have no counterpart.
    """

    topic: TopicName
    layer: str
    policies: Document | None
    unknown: Mapping[str, Any] = MappingProxyType({})


def read_events(
    entries: Iterable[bytes], schemas: Mapping[int, bytes], where: str
) -> dict[tuple[TopicName, str], PolicyEvent]:
    """What holds after all events, by topic and layer.

    Args:
        schemas: Avro definitions of the system topic by their version.

    Raises:
        PulsarFormatError: an event can't be read.
    """
    found: dict[tuple[TopicName, str], PolicyEvent] = {}
    for key, record in records_of(entries, schemas, where):
        event = _event(key, record)
        if event is not None:
            found[event.topic, event.layer] = event
    return found


def _event(key: str, record: Any) -> PolicyEvent | None:
    if record is None:
        layer = "global" if key.startswith(_GLOBAL_KEY) else "local"
        return PolicyEvent(TopicName.parse(key.removeprefix(_GLOBAL_KEY)), layer, None)
    event = record.get("topicPoliciesEvent")
    if record.get("eventType") != "TOPIC_POLICY" or not event:
        return None
    topic = TopicName.parse(
        f"{event['domain']}://{event['tenant']}/{event['namespace']}/{event['topic']}"
    )
    policies = event.get("policies")
    layer = "global" if policies and policies.get("isGlobal") else "local"
    if record.get("actionType") == "DELETE" or policies is None:
        return PolicyEvent(topic, layer, None)
    return PolicyEvent(topic, layer, *from_pulsar(policies))


def from_pulsar(policies: Mapping[str, Any]) -> tuple[Document, Document]:
    """Our layer of a topic's policies, and the fields that have no counterpart."""
    layer: Document = {}
    unknown: Document = {}
    delayed: Document = {}
    for field, value in policies.items():
        if value is None or value in ({}, []) or field in _IGNORED:
            continue
        if field in _FIELDS:
            layer[_FIELDS[field]] = _without_nulls(value)
        elif field in _DELAYED_FIELDS:
            delayed[_DELAYED_FIELDS[field]] = value
        elif field == _SUBSCRIPTIONS:
            rates = {name: each.get(_DISPATCH) for name, each in value.items()}
            layer[_SUBSCRIPTIONS] = {name: rate for name, rate in rates.items() if rate}
        else:
            unknown[field] = value
    if delayed:
        layer[_DELAYED] = delayed
    return layer, unknown


def to_pulsar(layer: Mapping[str, Any], *, is_global: bool) -> tuple[Document, tuple[str, ...]]:
    """The reverse of ``from_pulsar``; fields that Pulsar's record doesn't have are told."""
    names = {ours: pulsar for pulsar, ours in _FIELDS.items()}
    policies: Document = {"isGlobal": is_global}
    unknown = list[str]()
    for field, value in layer.items():
        if field in names:
            policies[names[field]] = value
        elif field == _DELAYED:
            for pulsar, ours in _DELAYED_FIELDS.items():
                policies[pulsar] = value.get(ours)
        elif field == _SUBSCRIPTIONS:
            policies[field] = {name: {_DISPATCH: rate} for name, rate in value.items()}
        else:
            unknown.append(field)
    return policies, tuple(unknown)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def encode_event(
    event: PolicyEvent,
    schema: bytes,
    version: int,
    cluster: str,
    sequence_id: int,
    now_ms: int,
) -> bytes:
    """The entry of an event, as a broker of Pulsar would have written it.

    Args:
        schema: the newest Avro definition of the system topic, with its version.
        cluster: which cluster replicates it: this one alone.

    Raises:
        PulsarFormatError: a value isn't of the kind that Pulsar's record takes.
    """
    is_global = event.layer == "global"
    name, replicate_to = event.topic, () if is_global else (cluster,)
    key = f"{_GLOBAL_KEY if is_global else ''}{name}"
    record = None
    if event.policies is not None:
        policies, _ = to_pulsar(event.policies, is_global=is_global)
        policies.update(event.unknown)
        tenant, _, namespace = name.namespace.partition("/")
        record = {
            "actionType": "UPDATE",
            "eventType": "TOPIC_POLICY",
            "replicateTo": list(replicate_to) or None,
            "topicPoliciesEvent": {
                "domain": name.domain,
                "tenant": tenant,
                "namespace": namespace,
                "topic": name.local,
                "policies": policies,
            },
        }
    return event_entry(key, record, (schema, version), sequence_id, now_ms, replicate_to)
