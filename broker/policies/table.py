"""Every policy of a namespace or a topic: one row each.

A row says under which name a document holds the policy, what its values are, what holds while
nobody sets it, under which paths it is read and written, and, where the feature behind it does not
exist, which values switch it off: only those are accepted. Routes, the checks of a namespace's
creation and the OpenAPI document are made from these rows; a policy is written down nowhere else.

Policies with a path of their own shape have no row here: backlog quotas, replication, permissions,
properties.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from magnetar.bookkeeper.errors import PlacementRuleError
from magnetar.broker.bookie_client_settings import placement_config
from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.effective import LEGACY_STRATEGIES, STRATEGIES, EffectivePolicies
from magnetar.broker.policies.errors import (
    InvalidPolicyError,
    PartitionCountError,
    PolicyError,
    PolicyRangeError,
    UnsupportedPolicyError,
)
from magnetar.broker.policies.offload import (
    DELETION_LAG,
    OFFLOAD,
    OFFLOAD_EXAMPLE,
    THRESHOLD_BYTES,
    THRESHOLD_SECONDS,
    applied_offload,
    check_place,
)
from magnetar.broker.policies.offload import FIELD as OFFLOAD_FIELD
from magnetar.broker.policies.values import (
    ANY_LONG,
    AUTO_SUBSCRIPTION,
    AUTO_TOPIC,
    DELAYED_DELIVERY,
    DISPATCH_RATE,
    ENTRY_FILTERS,
    INACTIVE_TOPICS,
    LONG_MAX,
    PERSISTENCE,
    PUBLISH_RATE,
    RETENTION,
    SUBSCRIBE_RATE,
    SUBSCRIPTION_TYPES,
    Choice,
    Flag,
    Integer,
    Names,
    ValueKind,
)

Off = Callable[[Any], bool]
_EMPTY: Final = InvalidPolicyError("The request entity cannot be empty.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRoute:
    """Where one level, namespaces or topics, has a policy."""

    path: str = field(kw_only=False)
    """Last segment of the URL."""
    method: str = "POST"
    """That sets it."""
    removable: bool = True
    """There is a DELETE."""
    too_low: str = ""
    """Reason for a number below its range; empty: Pulsar's usual one."""
    unset: Any = None
    """What GET answers while it isn't set; None: 204, nothing."""
    applied: bool = False
    """GET takes ``applied=true``: what holds in the end."""
    null_removes: bool = True
    """A body of ``null``, or none, takes the policy away; else it is refused."""
    in_query: bool = False
    """The value comes as a query parameter of the path's name, not as a body."""
    bodiless: bool = False
    """Setting it is setting it to true: there is no value."""
    refusal: int = 403
    """Status for a role that isn't an admin of the tenant."""
    set_by_superuser: bool = False
    """An admin of the tenant may only read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row."""

    field: str
    """Its name in documents."""
    kind: ValueKind
    title: str
    """What it is, for a summary: "Set: ..."."""
    example: Any
    namespace: PolicyRoute | None = None
    topic: PolicyRoute | None = None
    inner: tuple[str, str] | None = None
    """Setting it is setting this field of another policy; ``field`` is where tools once wrote it.
    """
    older: str = ""
    """Another field, which holds where no document has this one."""
    by_cluster: bool = False
    """A namespace's document holds a value for each cluster."""
    stored_unset: Any = None
    """What a namespace's document holds when it isn't set; None: no such field."""
    default: Callable[[BrokerConfig], Any] = lambda _: None
    """What holds while neither topic nor namespace sets it."""
    null_error: PolicyError = _EMPTY
    """Why ``null`` is refused, where it is."""
    effective: Callable[[EffectivePolicies], Any] | None = None
    """What holds in the end, where that isn't just the most specific document's value."""
    always_applied: bool = False
    """GET always answers what holds in the end."""
    off: Off | None = None
    """Where the feature doesn't exist: whether a value leaves it switched off."""
    feature: str = ""
    """Its name, for the refusal."""
    check: Callable[[Any, BrokerConfig], None] | None = None
    """Against the broker's settings; raises PolicyError."""

    def parse(self, value: Any, at: PolicyRoute, config: BrokerConfig) -> Any:
        """A client's value as it is stored.

        Raises:
            PolicyError: not a value, out of range, or of a feature that doesn't exist.
        """
        kind = self.kind
        if isinstance(kind, Integer) and at.too_low:
            kind = Integer(kind.minimum, kind.maximum, at.too_low)
        parsed = kind.parse(value, at.path)
        self.check_feature(parsed)
        if self.check is not None:
            self.check(parsed, config)
        return parsed

    def applied(self, policies: EffectivePolicies) -> Any:
        """What holds in the end, as a document would say it; None: nothing does."""
        if self.effective is not None:
            return self.effective(policies)
        value = policies.value(self.field)
        return self.default(policies.config) if value is None else value

    def check_feature(self, value: Any) -> None:
        if self.off is not None and not self.off(value):
            raise UnsupportedPolicyError(f"{self.feature} is not available in this version")


def _false(value: Any) -> bool:
    return value is False


def _never(_: Any) -> bool:
    return False


def _empty(value: Any) -> bool:
    return not value


def _no_rate(value: Any) -> bool:
    messages, size = value["dispatchThrottlingRateInMsg"], value["dispatchThrottlingRateInByte"]
    return bool(messages <= 0 and size <= 0)


def _check_message_size(value: int, config: BrokerConfig) -> None:
    if value > config.max_message_size:
        raise PolicyRangeError(_MESSAGE_SIZE)


def _check_partitions(value: dict[str, Any], config: BrokerConfig) -> None:
    limit = config.max_num_partitions_per_partitioned_topic
    if 0 < limit < int(value.get("defaultNumPartitions", 0)):
        raise PartitionCountError(f"Number of partitions should be less than or equal to {limit}")


def _check_quorums(value: dict[str, Any], config: BrokerConfig) -> None:
    sizes = [value[f"bookkeeper{name}"] for name in ("Ensemble", "WriteQuorum", "AckQuorum")]
    try:
        placement_config(config).check(*sizes)
    except PlacementRuleError as error:
        raise InvalidPolicyError(str(error)) from error


_COUNT: Final = Integer(0)
_LONG_COUNT: Final = Integer(0, LONG_MAX)
_MESSAGE_SIZE: Final = (
    "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that "
    "in the broker-level"
)
_EXPIRATION: Final = "Invalid value for subscription expiration time"
_UNACKED: Final = "maxUnackedNum must be 0 or more"
_DISPATCH: Final = {
    "dispatchThrottlingRateInMsg": 1000,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}


def dispatch_default(messages: int, size: int, *, relative: bool) -> dict[str, Any]:
    """A DispatchRate of the broker's settings."""
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size,
        "relativeToPublishRate": relative,
        "ratePeriodInSecond": 1,
    }


def _limit_row(
    field: str,
    title: str,
    namespace: str,
    topic: PolicyRoute,
) -> Policy:
    """A number of things, 0 for any number; the broker's setting has the name of the field."""
    return Policy(
        field=field,
        kind=_COUNT,
        title=title,
        example=10,
        namespace=PolicyRoute(path=namespace, null_removes=False),
        topic=topic,
        default=attrgetter(field),
    )


_STORAGE: Final = (
    Policy(
        field="message_ttl_in_seconds",
        kind=_COUNT,
        title="seconds after which messages count as acknowledged, 0: never",
        example=3600,
        namespace=PolicyRoute(
            "messageTTL",
            null_removes=False,
            too_low="Invalid value for message TTL, message TTL must >= 0",
        ),
        topic=PolicyRoute(
            "messageTTL", in_query=True, applied=True, too_low="Invalid value for message TTL"
        ),
        default=lambda config: config.ttl_duration_default_in_seconds,
    ),
    Policy(
        field="subscription_expiration_time_minutes",
        kind=_COUNT,
        title="minutes after which a subscription without use is deleted, 0: never",
        example=1440,
        namespace=PolicyRoute(
            "subscriptionExpirationTime", null_removes=False, too_low=_EXPIRATION
        ),
        topic=PolicyRoute(
            "subscriptionExpirationTime", in_query=True, applied=True, too_low=_EXPIRATION
        ),
        default=lambda config: config.subscription_expiration_time_minutes,
    ),
    Policy(
        field="retention_policies",
        kind=RETENTION,
        title="how long acknowledged messages are kept, -1: for ever",
        example={"retentionTimeInMinutes": 1440, "retentionSizeInMB": 1024},
        namespace=PolicyRoute("retention"),
        topic=PolicyRoute("retention", applied=True),
        default=lambda config: {
            "retentionTimeInMinutes": config.default_retention_time_in_minutes,
            "retentionSizeInMB": config.default_retention_size_in_mb,
        },
    ),
    Policy(
        field="persistence",
        kind=PERSISTENCE,
        title="bookies of a ledger, and cursor writes a second",
        example={
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 3,
            "bookkeeperAckQuorum": 2,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        },
        namespace=PolicyRoute("persistence", null_removes=False),
        topic=PolicyRoute("persistence", applied=True, null_removes=False),
        null_error=InvalidPolicyError("persistence policies should not be null"),
        check=_check_quorums,
        default=lambda config: {
            "bookkeeperEnsemble": config.managed_ledger_default_ensemble_size,
            "bookkeeperWriteQuorum": config.managed_ledger_default_write_quorum,
            "bookkeeperAckQuorum": config.managed_ledger_default_ack_quorum,
            "managedLedgerMaxMarkDeleteRate": config.managed_ledger_default_mark_delete_rate_limit,
        },
    ),
    Policy(
        field="compaction_threshold",
        kind=_LONG_COUNT,
        title="bytes of backlog that begin a compaction, 0: none",
        example=0,
        namespace=PolicyRoute("compactionThreshold", method="PUT", null_removes=False),
        topic=PolicyRoute(
            "compactionThreshold",
            applied=True,
            null_removes=False,
            too_low="Invalid value for compactionThreshold",
        ),
        default=lambda config: config.broker_service_compaction_threshold_in_bytes,
    ),
    Policy(
        field="offload_threshold",
        inner=(OFFLOAD_FIELD, THRESHOLD_BYTES),
        kind=ANY_LONG,
        title="bytes of a topic above which ledgers are offloaded, negative: never",
        example=-1,
        namespace=PolicyRoute(
            "offloadThreshold", method="PUT", removable=False, null_removes=False, unset=-1
        ),
        stored_unset=-1,
    ),
    Policy(
        field="offload_threshold_in_seconds",
        inner=(OFFLOAD_FIELD, THRESHOLD_SECONDS),
        kind=ANY_LONG,
        title="seconds after which ledgers are offloaded, negative: never",
        example=-1,
        namespace=PolicyRoute(
            "offloadThresholdInSeconds", method="PUT", removable=False, null_removes=False, unset=-1
        ),
        stored_unset=-1,
    ),
    Policy(
        field="offload_deletion_lag_ms",
        inner=(OFFLOAD_FIELD, DELETION_LAG),
        kind=ANY_LONG,
        title="milliseconds that offloaded ledgers stay in bookies, negative: for ever",
        example=-1,
        namespace=PolicyRoute("offloadDeletionLagMs", method="PUT", null_removes=False),
    ),
    Policy(
        field=OFFLOAD_FIELD,
        kind=OFFLOAD,
        title="where ledgers are offloaded to, and when",
        example=OFFLOAD_EXAMPLE,
        namespace=PolicyRoute("offloadPolicies", removable=False, null_removes=False),
        topic=PolicyRoute("offloadPolicies", applied=True, null_removes=False),
        null_error=PolicyRangeError("The offloadPolicies must be specified for namespace offload."),
        effective=applied_offload,
        check=check_place,
    ),
)

_RATES: Final = (
    Policy(
        field="publishMaxMessageRate",
        kind=PUBLISH_RATE,
        title="messages and bytes a second that producers of a topic may publish, -1: any",
        example={"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1048576},
        namespace=PolicyRoute("publishRate"),
        topic=PolicyRoute("publishRate"),
        by_cluster=True,
        stored_unset={},
        default=lambda config: {
            "publishThrottlingRateInMsg": config.max_publish_rate_per_topic_in_messages,
            "publishThrottlingRateInByte": config.max_publish_rate_per_topic_in_bytes,
        },
    ),
    Policy(
        field="topicDispatchRate",
        kind=DISPATCH_RATE,
        title="messages and bytes that a topic dispatches in a period, -1: any",
        example=_DISPATCH,
        namespace=PolicyRoute("dispatchRate"),
        topic=PolicyRoute("dispatchRate", applied=True),
        by_cluster=True,
        stored_unset={},
        default=lambda config: dispatch_default(
            config.dispatch_throttling_rate_per_topic_in_msg,
            config.dispatch_throttling_rate_per_topic_in_byte,
            relative=config.dispatch_throttling_rate_relative_to_publish_rate,
        ),
    ),
    Policy(
        field="subscriptionDispatchRate",
        kind=DISPATCH_RATE,
        title="messages and bytes that each subscription dispatches in a period, -1: any",
        example=_DISPATCH,
        namespace=PolicyRoute("subscriptionDispatchRate"),
        topic=PolicyRoute("subscriptionDispatchRate", applied=True),
        by_cluster=True,
        stored_unset={},
        default=lambda config: dispatch_default(
            config.dispatch_throttling_rate_per_subscription_in_msg,
            config.dispatch_throttling_rate_per_subscription_in_byte,
            relative=config.dispatch_throttling_rate_relative_to_publish_rate,
        ),
    ),
    Policy(
        field="replicatorDispatchRate",
        kind=DISPATCH_RATE,
        title="messages and bytes that go to other clusters in a period, -1: any",
        example={**_DISPATCH, "dispatchThrottlingRateInMsg": -1},
        namespace=PolicyRoute("replicatorDispatchRate"),
        topic=PolicyRoute("replicatorDispatchRate", applied=True),
        by_cluster=True,
        stored_unset={},
        default=lambda _: dispatch_default(0, 0, relative=False),
        off=_no_rate,
        feature="Replication to other clusters",
    ),
    Policy(
        field="clusterSubscribeRate",
        kind=SUBSCRIBE_RATE,
        title="how often one consumer may subscribe in a period, -1: any",
        example={"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30},
        namespace=PolicyRoute("subscribeRate"),
        topic=PolicyRoute("subscribeRate", applied=True),
        by_cluster=True,
        stored_unset={},
        default=lambda config: {
            "subscribeThrottlingRatePerConsumer": config.subscribe_throttling_rate_per_consumer,
            "ratePeriodInSecond": config.subscribe_rate_period_per_consumer_in_second,
        },
    ),
)

_LIMITS: Final = (
    _limit_row(
        "max_producers_per_topic",
        "producers that a topic may have, 0: any number",
        "maxProducersPerTopic",
        PolicyRoute("maxProducers", applied=True, null_removes=False),
    ),
    _limit_row(
        "max_consumers_per_topic",
        "consumers that a topic may have, 0: any number",
        "maxConsumersPerTopic",
        PolicyRoute("maxConsumers", applied=True, null_removes=False),
    ),
    _limit_row(
        "max_consumers_per_subscription",
        "consumers that a subscription may have, 0: any number",
        "maxConsumersPerSubscription",
        PolicyRoute(
            "maxConsumersPerSubscription",
            null_removes=False,
            too_low="Invalid value for maxConsumersPerSubscription",
        ),
    ),
    _limit_row(
        "max_subscriptions_per_topic",
        "subscriptions that a topic may have, 0: any number",
        "maxSubscriptionsPerTopic",
        PolicyRoute("maxSubscriptionsPerTopic", null_removes=False),
    ),
    _limit_row(
        "max_unacked_messages_per_consumer",
        "messages that a consumer may have unacknowledged, 0: any number",
        "maxUnackedMessagesPerConsumer",
        PolicyRoute("maxUnackedMessagesOnConsumer", applied=True, too_low=_UNACKED),
    ),
    _limit_row(
        "max_unacked_messages_per_subscription",
        "messages that a subscription may have unacknowledged, 0: any number",
        "maxUnackedMessagesPerSubscription",
        PolicyRoute("maxUnackedMessagesOnSubscription", applied=True, too_low=_UNACKED),
    ),
    Policy(
        field="max_topics_per_namespace",
        kind=_COUNT,
        title="topics that a namespace may have, 0: any number",
        example=1000,
        namespace=PolicyRoute("maxTopicsPerNamespace", null_removes=False, unset=0),
        default=attrgetter("max_topics_per_namespace"),
    ),
    Policy(
        field="max_message_size",
        kind=_COUNT,
        title="bytes that a message may have, 0: as many as the broker takes",
        example=1048576,
        topic=PolicyRoute("maxMessageSize", null_removes=False, too_low=_MESSAGE_SIZE, refusal=401),
        check=_check_message_size,
        default=attrgetter("max_message_size"),
    ),
)

_CREATION: Final = (
    Policy(
        field="autoTopicCreationOverride",
        kind=AUTO_TOPIC,
        title="whether using a topic creates it, and as what",
        example={
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 4,
        },
        namespace=PolicyRoute("autoTopicCreation"),
        check=_check_partitions,
        default=lambda config: {
            "allowAutoTopicCreation": config.allow_auto_topic_creation,
            "topicType": config.allow_auto_topic_creation_type,
            "defaultNumPartitions": config.default_num_partitions,
        },
    ),
    Policy(
        field="autoSubscriptionCreationOverride",
        kind=AUTO_SUBSCRIPTION,
        title="whether consuming creates the subscription",
        example={"allowAutoSubscriptionCreation": False},
        namespace=PolicyRoute("autoSubscriptionCreation"),
        topic=PolicyRoute("autoSubscriptionCreation", applied=True),
        default=lambda config: {
            "allowAutoSubscriptionCreation": config.allow_auto_subscription_creation
        },
    ),
    Policy(
        field="inactive_topic_policies",
        kind=INACTIVE_TOPICS,
        title="when a topic that nobody uses is deleted",
        example={
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 3600,
            "deleteWhileInactive": True,
        },
        namespace=PolicyRoute("inactiveTopicPolicies"),
        topic=PolicyRoute("inactiveTopicPolicies", applied=True),
        default=lambda config: {
            "inactiveTopicDeleteMode": config.broker_delete_inactive_topics_mode,
            "maxInactiveDurationSeconds": (
                config.broker_delete_inactive_topics_max_inactive_duration_seconds
                or config.broker_delete_inactive_topics_frequency_seconds
            ),
            "deleteWhileInactive": config.broker_delete_inactive_topics_enabled,
        },
    ),
)

_CLIENTS: Final = (
    Policy(
        field="delayed_delivery_policies",
        kind=DELAYED_DELIVERY,
        title="whether messages may ask for later delivery, and how much later",
        example={"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 86400000},
        namespace=PolicyRoute("delayedDelivery", set_by_superuser=True),
        topic=PolicyRoute("delayedDelivery", applied=True),
        default=lambda config: {
            "tickTime": config.delayed_delivery_tick_time_millis,
            "active": config.delayed_delivery_enabled,
            "maxDeliveryDelayInMillis": config.delayed_delivery_max_delay_in_millis,
        },
    ),
    Policy(
        field="subscription_types_enabled",
        kind=SUBSCRIPTION_TYPES,
        title="subscription types that consumers may use, empty: all",
        example=["Exclusive", "Failover"],
        namespace=PolicyRoute("subscriptionTypesEnabled", null_removes=False, unset=[]),
        topic=PolicyRoute("subscriptionTypesEnabled", null_removes=False, unset=[]),
        stored_unset=[],
        default=lambda config: sorted(config.subscription_types_enabled),
    ),
    Policy(
        field="encryption_required",
        kind=Flag(),
        title="whether producers must encrypt",
        example=True,
        namespace=PolicyRoute(
            "encryptionRequired", removable=False, null_removes=False, unset=False
        ),
        stored_unset=False,
        effective=lambda policies: policies.encryption_required,
    ),
    Policy(
        field="subscription_auth_mode",
        kind=Choice(("None", "Prefix")),
        title="whether a subscription's name must begin with the consumer's role",
        example="Prefix",
        namespace=PolicyRoute("subscriptionAuthMode", removable=False, unset="None"),
        stored_unset="None",
        default=lambda _: "None",
    ),
    Policy(
        field="deduplicationEnabled",
        kind=Flag(),
        title="whether messages that a producer sends again are dropped",
        example=False,
        namespace=PolicyRoute("deduplication", null_removes=False),
        topic=PolicyRoute("deduplicationEnabled", applied=True),
        default=lambda config: config.broker_deduplication_enabled,
    ),
    Policy(
        field="deduplicationSnapshotIntervalSeconds",
        kind=_COUNT,
        title="seconds between snapshots of the deduplication state, 0: by messages only",
        example=0,
        namespace=PolicyRoute(
            "deduplicationSnapshotInterval",
            removable=False,
            too_low="interval must be greater than or equal to 0",
        ),
        topic=PolicyRoute("deduplicationSnapshotInterval", too_low="interval must be 0 or more"),
        default=lambda config: config.broker_deduplication_snapshot_interval_seconds,
    ),
    Policy(
        field="entryFilters",
        kind=ENTRY_FILTERS,
        title="server-side filters, by name",
        example={"entryFilterNames": "filter"},
        namespace=PolicyRoute("entryFilters"),
        topic=PolicyRoute("entryFilters", applied=True),
        default=lambda _: {"entryFilterNames": ""},
    ),
    Policy(
        field="allowed_topic_property_keys_for_metrics",
        kind=Names(),
        title="properties of topics that label their metrics",
        example=["team"],
        namespace=PolicyRoute("allowedTopicPropertyKeysForMetrics"),
        off=_empty,
        default=lambda _: [],
        feature="Labelling metrics with properties of topics",
    ),
    Policy(
        field="replicate_subscription_state",
        kind=Flag(),
        title="whether subscriptions go to other clusters",
        example=False,
        namespace=PolicyRoute("replicateSubscriptionState"),
        topic=PolicyRoute("replicateSubscriptionState", applied=True),
        default=lambda _: False,
        off=_false,
        feature="Replication to other clusters",
    ),
    Policy(
        field="dispatcherPauseOnAckStatePersistentEnabled",
        kind=Flag(),
        title="whether dispatch waits for cursors that can't be stored in full",
        example=True,
        namespace=PolicyRoute("dispatcherPauseOnAckStatePersistent", bodiless=True, unset=False),
        topic=PolicyRoute(
            "dispatcherPauseOnAckStatePersistent", bodiless=True, unset=False, applied=True
        ),
        default=lambda _: False,
        off=_false,
        # Every hole of a cursor is stored: there is nothing to wait for.
        feature="Pausing dispatch while acknowledgements are not stored",
    ),
)

_SCHEMAS: Final = (
    Policy(
        field="schema_compatibility_strategy",
        kind=Choice(("UNDEFINED", *sorted(STRATEGIES))),
        title="how a new schema must fit the ones before",
        example="BACKWARD",
        namespace=PolicyRoute(
            "schemaCompatibilityStrategy",
            method="PUT",
            removable=False,
            applied=True,
            unset="UNDEFINED",
        ),
        topic=PolicyRoute("schemaCompatibilityStrategy", method="PUT", applied=True),
        stored_unset="UNDEFINED",
        older="schema_auto_update_compatibility_strategy",
        effective=lambda policies: policies.schema_strategy,
    ),
    Policy(
        field="schema_auto_update_compatibility_strategy",
        kind=Choice(tuple(LEGACY_STRATEGIES)),
        title="the strategy's old form, which holds while the new one is UNDEFINED",
        example="Backward",
        namespace=PolicyRoute(
            "schemaAutoUpdateCompatibilityStrategy", method="PUT", removable=False
        ),
    ),
    Policy(
        field="is_allow_auto_update_schema",
        kind=Flag(),
        title="whether producers and consumers may add schema versions",
        example=True,
        namespace=PolicyRoute("isAllowAutoUpdateSchema", removable=False, null_removes=False),
        effective=lambda policies: policies.schema_auto_update,
        always_applied=True,
    ),
    Policy(
        field="schema_validation_enforced",
        kind=Flag(),
        title="whether producers without a schema are refused on topics with one",
        example=True,
        namespace=PolicyRoute(
            "schemaValidationEnforced",
            removable=False,
            null_removes=False,
            applied=True,
            unset=False,
        ),
        topic=PolicyRoute(
            "schemaValidationEnforced", null_removes=False, applied=True, unset=False
        ),
        stored_unset=False,
        effective=lambda policies: policies.schema_validation_enforced,
    ),
)

POLICIES: Final = (*_STORAGE, *_RATES, *_LIMITS, *_CREATION, *_CLIENTS, *_SCHEMAS)
_BY_FIELD: Final = {policy.field: policy for policy in POLICIES}


def policy_of_field(field: str) -> Policy | None:
    """The row of a document's field; None: there is none."""
    return _BY_FIELD.get(field)
