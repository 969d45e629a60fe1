"""What holds for a topic: its own policies, over its namespace's, over the broker's settings.

Documents hold policies under the names of Pulsar's Policies object. A namespace's
document has rates by cluster; a topic's document is ``{"local": {...}, "global": {...}}``, where
``local`` wins, with the same names and rates as they are.

Everything is worked out once, when a document was read: topics of a namespace without own policies
share one ``EffectivePolicies``, and asking it is an attribute read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.offload import effective_offload

LEGACY_STRATEGIES: Final = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
"""Schema compatibility as it was named before; tools still write it."""
STRATEGIES: Final = frozenset(LEGACY_STRATEGIES.values())

Document = Mapping[str, Any]

_EMPTY: Final[Document] = MappingProxyType({})
_MINUTE_MS: Final = 60_000
_TICK_MS_MAX: Final = 3_600_000  # no message is more than an hour late, whatever is asked
_TOPIC_LAYERS: Final = {"local": "topic", "global": "global"}
_QUOTA_TYPES: Final = ("destination_storage", "message_age")


@dataclass(frozen=True, slots=True)
class RetentionPolicies:
    """How long acknowledged messages are kept; -1: for ever, 0: not."""

    time_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """What a subscription may be behind."""

    limit_bytes: int
    """-1: no limit."""
    limit_s: int
    """-1: no limit."""
    action: str
    """``producer_request_hold``, ``producer_exception`` or ``consumer_backlog_eviction``."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Of publishing or of dispatch; 0: no limit."""

    messages: int
    """In each period."""
    bytes: int
    """In each period."""
    period_s: int = 1
    relative_to_publish: bool = False
    """The limits are added to the rate of publishing."""

    @property
    def limited(self) -> bool:
        return self.messages > 0 or self.bytes > 0


@dataclass(frozen=True, slots=True)
class SubscribeRate:
    """How often one consumer may subscribe."""

    per_consumer: int
    """In each period; 0: no limit."""
    period_s: int


@dataclass(frozen=True, slots=True)
class PersistencePolicies:
    """Bookies of a topic's ledgers, and the writes of a cursor."""

    ensemble: int
    write_quorum: int
    ack_quorum: int
    mark_delete_rate: float
    """Cursor writes a second; 0: no limit."""


@dataclass(frozen=True, slots=True)
class DelayedDeliveryPolicies:
    active: bool
    """Whether messages with a delivery time wait for it."""
    tick_ms: int
    delay_max_ms: int
    """0: no limit."""


@dataclass(frozen=True, slots=True)
class InactiveTopicPolicies:
    """When an unused topic is deleted."""

    delete: bool
    mode: str
    """``delete_when_no_subscriptions`` or ``delete_when_subscriptions_caught_up``."""
    after_s: int
    """Unused for so long; 0: no time was set."""


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether using a topic's name brings it into being, and as what."""

    allowed: bool
    partitioned: bool
    partitions: int


class EffectivePolicies:
    """Read-only; never changed, replaced when one of its documents changes."""

    def __init__(
        self,
        document: Document,
        config: BrokerConfig,
        topic_document: Document = _EMPTY,
        namespace: "EffectivePolicies | None" = None,
    ) -> None:
        """
        Args:
            document: the namespace's, as stored.
            topic_document: the topic's, empty when it has none.
            namespace: the policies of ``document`` alone, where they are known already.
        """
        self.document = document
        """The namespace's, as stored; not to be modified."""
        self.topic_document = topic_document
        """The topic's, as stored; empty: none."""
        self.config = config
        # The most specific one first.
        self._layers: tuple[Document, ...] = (
            *(layer for key in _TOPIC_LAYERS if (layer := _object(topic_document.get(key)))),
            namespace._layers[-1] if namespace else _of_cluster(document, config.cluster_name),
        )
        self._read_storage()
        self._read_rates()
        self._read_limits()
        self._read_rest()
        self.offload = effective_offload(self)

    def with_topic(self, topic_document: Document | None) -> "EffectivePolicies":
        """A topic's policies from its namespace's; None: it has none of its own."""
        assert not self.topic_document, "these are a topic's already"
        if not topic_document:
            return self
        return EffectivePolicies(self.document, self.config, topic_document, self)

    def value(self, field: str) -> Any:
        """A policy as stored, of the most specific document that has it; None: none has."""
        for layer in self._layers:
            if (value := layer.get(field)) is not None:
                return value
        return None

    def values(self, field: str) -> list[Any]:
        """A policy as stored, of every document that has it, the most specific one first."""
        return [value for layer in self._layers if (value := layer.get(field)) is not None]

    def layers(self) -> Iterator[tuple[str, Document]]:
        """The documents that policies are taken from, the most specific one first, each with its
        name: ``topic``, ``global`` (the topic's, of all clusters) or ``namespace``.
        """
        own = (name for key, name in _TOPIC_LAYERS.items() if _object(self.topic_document.get(key)))
        return zip((*own, "namespace"), self._layers, strict=True)

    def subscription_dispatch_rate(self, subscription: str) -> Rate:
        """The limit of one subscription: its own, else that of every subscription."""
        own = self._subscription_rates.get(subscription)
        return self.subscription_dispatch_rate_default if own is None else own

    # --- reading the documents, at construction

    def _read_storage(self) -> None:
        config = self.config
        kept = _object(self.value("retention_policies"))
        minutes = _integer(
            kept.get("retentionTimeInMinutes"), config.default_retention_time_in_minutes
        )
        megabytes = _integer(kept.get("retentionSizeInMB"), config.default_retention_size_in_mb)
        self.retention = RetentionPolicies(
            -1 if minutes < 0 else minutes * _MINUTE_MS, -1 if megabytes < 0 else megabytes << 20
        )
        self.message_ttl_s = self._integer(
            "message_ttl_in_seconds", config.ttl_duration_default_in_seconds
        )
        """0: messages never expire."""
        self.compaction_threshold = self._integer(
            "compaction_threshold", config.broker_service_compaction_threshold_in_bytes
        )
        """Bytes behind the last compaction that begin the next; 0: none begins by itself."""
        self.subscription_expiration_minutes = self._integer(
            "subscription_expiration_time_minutes", config.subscription_expiration_time_minutes
        )
        """Of unused subscriptions; 0: never."""
        self.backlog_quotas = {kind: self._quota(kind) for kind in _QUOTA_TYPES}
        """By type: ``destination_storage`` (its size counts), ``message_age`` (its time)."""
        stored = _object(self.value("persistence"))
        self.persistence = PersistencePolicies(
            _positive(
                stored.get("bookkeeperEnsemble"), config.managed_ledger_default_ensemble_size
            ),
            _positive(
                stored.get("bookkeeperWriteQuorum"), config.managed_ledger_default_write_quorum
            ),
            _positive(stored.get("bookkeeperAckQuorum"), config.managed_ledger_default_ack_quorum),
            float(
                _number(
                    stored.get("managedLedgerMaxMarkDeleteRate"),
                    config.managed_ledger_default_mark_delete_rate_limit,
                )
            ),
        )

    def _quota(self, kind: str) -> BacklogQuota:
        config = self.config
        for layer in self._layers:
            if isinstance(found := _object(layer.get("backlog_quota_map")).get(kind), Mapping):
                return BacklogQuota(
                    _integer(found.get("limitSize"), _integer(found.get("limit"), -1)),
                    _integer(found.get("limitTime"), -1),
                    str(found.get("policy") or config.backlog_quota_default_retention_policy),
                )
        gigabytes = min(config.backlog_quota_default_limit_gb, 2**30)
        return BacklogQuota(
            int(gigabytes * 2**30) if gigabytes > 0 else config.backlog_quota_default_limit_bytes,
            config.backlog_quota_default_limit_second,
            config.backlog_quota_default_retention_policy,
        )

    def _read_rates(self) -> None:
        config = self.config
        publish = _object(self.value("publishMaxMessageRate"))
        self.publish_rate = Rate(
            _limit(
                publish.get("publishThrottlingRateInMsg"),
                config.max_publish_rate_per_topic_in_messages,
            ),
            _limit(
                publish.get("publishThrottlingRateInByte"),
                config.max_publish_rate_per_topic_in_bytes,
            ),
        )
        relative = config.dispatch_throttling_rate_relative_to_publish_rate
        self.dispatch_rate = _dispatch_rate(self.value("topicDispatchRate")) or Rate(
            max(0, config.dispatch_throttling_rate_per_topic_in_msg),
            max(0, config.dispatch_throttling_rate_per_topic_in_byte),
            relative_to_publish=relative,
        )
        self.subscription_dispatch_rate_default = _dispatch_rate(
            self.value("subscriptionDispatchRate")
        ) or Rate(
            max(0, config.dispatch_throttling_rate_per_subscription_in_msg),
            max(0, config.dispatch_throttling_rate_per_subscription_in_byte),
            relative_to_publish=relative,
        )
        """Of a subscription without a rate of its own."""
        self._subscription_rates: dict[str, Rate] = {}
        for layer in reversed(self._layers):  # the most specific one is written last
            for name, own in _object(layer.get("subscriptionPolicies")).items():
                if (rate := _dispatch_rate(_object(own).get("dispatchRate"))) is not None:
                    self._subscription_rates[name] = rate
        subscribe = _object(self.value("clusterSubscribeRate"))
        self.subscribe_rate = SubscribeRate(
            _limit(
                subscribe.get("subscribeThrottlingRatePerConsumer"),
                config.subscribe_throttling_rate_per_consumer,
            ),
            _positive(
                subscribe.get("ratePeriodInSecond"),
                config.subscribe_rate_period_per_consumer_in_second,
            ),
        )

    def _read_limits(self) -> None:
        """Numbers; 0 means no limit."""
        self.max_producers = self._limit("max_producers_per_topic")
        self.max_consumers = self._limit("max_consumers_per_topic")
        self.max_consumers_per_subscription = self._limit("max_consumers_per_subscription")
        self.max_subscriptions = self._limit("max_subscriptions_per_topic")
        self.max_topics = self._limit("max_topics_per_namespace")
        self.max_unacked_per_consumer = self._limit("max_unacked_messages_per_consumer")
        self.max_unacked_per_subscription = self._limit("max_unacked_messages_per_subscription")
        self.max_message_size = max(0, self._integer("max_message_size", 0))
        """Bytes of one message, chunks aside; 0: as many as the broker takes."""

    def _read_rest(self) -> None:
        config = self.config
        self.encryption_required = (
            config.encryption_require_on_producer or self.value("encryption_required") is True
        )
        self.deduplication = _boolean(
            self.value("deduplicationEnabled"), config.broker_deduplication_enabled
        )
        self.deduplication_snapshot_s = self._integer(
            "deduplicationSnapshotIntervalSeconds",
            config.broker_deduplication_snapshot_interval_seconds,
        )
        """Seconds between snapshots of what is known of producers; 0: by entries only."""
        types = (_names(value) for value in self.values("subscription_types_enabled"))
        self.subscription_types: frozenset[str] = next(
            filter(None, types), config.subscription_types_enabled
        )
        """Names of the allowed types."""
        delayed = _object(self.value("delayed_delivery_policies"))
        self.delayed_delivery = DelayedDeliveryPolicies(
            _boolean(delayed.get("active"), config.delayed_delivery_enabled),
            min(
                _positive(delayed.get("tickTime"), config.delayed_delivery_tick_time_millis),
                _TICK_MS_MAX,
            ),
            max(
                0,
                _integer(
                    delayed.get("maxDeliveryDelayInMillis"),
                    config.delayed_delivery_max_delay_in_millis,
                ),
            ),
        )
        inactive = _object(self.value("inactive_topic_policies"))
        self.inactive_topics = InactiveTopicPolicies(
            _boolean(
                inactive.get("deleteWhileInactive"), config.broker_delete_inactive_topics_enabled
            ),
            str(
                inactive.get("inactiveTopicDeleteMode") or config.broker_delete_inactive_topics_mode
            ),
            _positive(
                inactive.get("maxInactiveDurationSeconds"),
                config.broker_delete_inactive_topics_max_inactive_duration_seconds,
            ),
        )
        self._read_auto_creation()
        self._read_schemas()

    def _read_schemas(self) -> None:
        config = self.config
        named = (
            text
            for text in self.values("schema_compatibility_strategy")
            if text in tuple(STRATEGIES)
        )
        legacy = self.value("schema_auto_update_compatibility_strategy")
        self.schema_strategy: str = (
            next(named, None)
            or (LEGACY_STRATEGIES.get(legacy) if isinstance(legacy, str) else None)
            or config.schema_compatibility_strategy
        )
        """How a new schema must fit the ones before."""
        self.schema_auto_update = _boolean(
            self.value("is_allow_auto_update_schema"), config.is_allow_auto_update_schema_enabled
        )
        """Whether producers and consumers may add schema versions."""
        self.schema_validation_enforced = (
            config.is_schema_validation_enforced or self.value("schema_validation_enforced") is True
        )
        """Whether producers without a schema are refused on topics with one."""

    def _read_auto_creation(self) -> None:
        config = self.config
        partitioned = config.allow_auto_topic_creation_type == "partitioned"
        self.auto_topic_creation = AutoTopicCreation(
            config.allow_auto_topic_creation, partitioned, config.default_num_partitions
        )
        if isinstance(override := self.value("autoTopicCreationOverride"), Mapping):
            self.auto_topic_creation = AutoTopicCreation(
                override.get("allowAutoTopicCreation") is True,
                override.get("topicType") == "partitioned",
                _positive(override.get("defaultNumPartitions"), config.default_num_partitions),
            )
        self.auto_subscription_creation = config.allow_auto_subscription_creation
        if isinstance(override := self.value("autoSubscriptionCreationOverride"), Mapping):
            self.auto_subscription_creation = override.get("allowAutoSubscriptionCreation") is True

    def _integer(self, field: str, default: int) -> int:
        return _integer(self.value(field), default)

    def _limit(self, field: str) -> int:
        """Of a policy whose field has the name of the broker's setting."""
        return self._integer(field, getattr(self.config, field))


_BY_CLUSTER: Final = (
    "topicDispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "clusterSubscribeRate",
    "publishMaxMessageRate",
)
"""Fields of a namespace's document that hold one value for each cluster."""


def _of_cluster(document: Document, cluster: str) -> Document:
    """A namespace's document as this cluster reads it."""
    own = {field: _object(document.get(field)).get(cluster) for field in _BY_CLUSTER}
    return {**document, **own}


def _dispatch_rate(value: Any) -> Rate | None:
    """None: the document names none."""
    if not isinstance(value, Mapping):
        return None
    return Rate(
        _limit(value.get("dispatchThrottlingRateInMsg"), 0),
        _limit(value.get("dispatchThrottlingRateInByte"), 0),
        _positive(value.get("ratePeriodInSecond"), 1),
        value.get("relativeToPublishRate") is True,
    )


# What is stored was checked when it was written; others write documents too. A value of the wrong
# type counts as absent: one broken policy must not take a topic away.


def _object(value: Any) -> Document:
    return value if isinstance(value, Mapping) else _EMPTY


def _names(value: Any) -> frozenset[str]:
    items = value if isinstance(value, list) else ()
    return frozenset(item for item in items if isinstance(item, str))


def _boolean(value: Any, default: bool) -> bool:
    return value if isinstance(value, bool) else default


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def _positive(value: Any, default: int) -> int:
    return found if (found := _integer(value, 0)) > 0 else default


def _limit(value: Any, default: int) -> int:
    return max(0, _integer(value, default))
