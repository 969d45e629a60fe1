"""Effective policies: a topic's over its namespace's over the broker's settings."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.effective import (
    AutoTopicCreation,
    BacklogQuota,
    EffectivePolicies,
    Rate,
    RetentionPolicies,
    SubscribeRate,
)

CONFIG = BrokerConfig(cluster_name="here")

# attribute of Policies, setting of the broker
NUMBERS = {
    "max_producers_per_topic": ("max_producers", "max_producers_per_topic"),
    "max_consumers_per_topic": ("max_consumers", "max_consumers_per_topic"),
    "max_consumers_per_subscription": (
        "max_consumers_per_subscription",
        "max_consumers_per_subscription",
    ),
    "max_subscriptions_per_topic": ("max_subscriptions", "max_subscriptions_per_topic"),
    "max_topics_per_namespace": ("max_topics", "max_topics_per_namespace"),
    "max_unacked_messages_per_consumer": (
        "max_unacked_per_consumer",
        "max_unacked_messages_per_consumer",
    ),
    "max_unacked_messages_per_subscription": (
        "max_unacked_per_subscription",
        "max_unacked_messages_per_subscription",
    ),
    "message_ttl_in_seconds": ("message_ttl_s", "ttl_duration_default_in_seconds"),
    "subscription_expiration_time_minutes": (
        "subscription_expiration_minutes",
        "subscription_expiration_time_minutes",
    ),
}


@given(
    field=st.sampled_from(sorted(NUMBERS)),
    broker=st.integers(0, 9),
    namespace=st.none() | st.integers(0, 9),
    shared=st.none() | st.integers(0, 9),
    own=st.none() | st.integers(0, 9),
)
def test_the_most_specific_number_holds(
    field: str, broker: int, namespace: int | None, shared: int | None, own: int | None
) -> None:
    attribute, setting = NUMBERS[field]
    config = BrokerConfig(**{setting: broker})  # type: ignore[arg-type]
    base = EffectivePolicies({field: namespace}, config)
    topic = base.with_topic({"local": {field: own}, "global": {field: shared}})
    wanted = next(n for n in (own, shared, namespace, broker) if n is not None)
    assert getattr(topic, attribute) == wanted
    assert getattr(base, attribute) == (broker if namespace is None else namespace)


def test_a_topic_without_own_policies_shares_its_namespace_s() -> None:
    base = EffectivePolicies({"message_ttl_in_seconds": 5}, CONFIG)
    assert base.with_topic(None) is base
    assert base.with_topic({}) is base
    own = base.with_topic({"local": {"message_ttl_in_seconds": 7}})
    assert (own.message_ttl_s, base.message_ttl_s) == (7, 5)
    assert own.document is base.document


def test_retention_in_milliseconds_and_bytes() -> None:
    assert EffectivePolicies({}, CONFIG).retention == RetentionPolicies(0, 0)
    stored = {"retentionTimeInMinutes": 2, "retentionSizeInMB": -1}
    assert EffectivePolicies({"retention_policies": stored}, CONFIG).retention == RetentionPolicies(
        120_000, -1
    )


def test_quotas_are_merged_by_type() -> None:
    size = {"limitSize": 10, "limitTime": -1, "policy": "producer_exception"}
    age = {"limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    base = EffectivePolicies({"backlog_quota_map": {"destination_storage": size}}, CONFIG)
    topic = base.with_topic({"local": {"backlog_quota_map": {"message_age": age}}})
    assert topic.backlog_quotas == {
        "destination_storage": BacklogQuota(10, -1, "producer_exception"),
        "message_age": BacklogQuota(-1, 60, "consumer_backlog_eviction"),
    }
    assert base.backlog_quotas["message_age"] == BacklogQuota(-1, -1, "producer_request_hold")


def test_rates_of_a_namespace_are_this_cluster_s() -> None:
    mine = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1}
    document: dict[str, Any] = {
        "topicDispatchRate": {
            "there": {"dispatchThrottlingRateInMsg": 9},
            "here": {**mine, "ratePeriodInSecond": 3, "relativeToPublishRate": True},
        },
        "subscriptionDispatchRate": {"here": mine},
        "publishMaxMessageRate": {"there": {"publishThrottlingRateInMsg": 1}},
        "clusterSubscribeRate": {"here": {"subscribeThrottlingRatePerConsumer": 4}},
    }
    base = EffectivePolicies(document, CONFIG)
    assert base.dispatch_rate == Rate(5, 0, 3, relative_to_publish=True)
    assert base.publish_rate == Rate(0, 0)
    assert not base.publish_rate.limited
    assert base.subscribe_rate == SubscribeRate(4, 30)
    own = {"dispatchRate": {"dispatchThrottlingRateInByte": 7}}
    topic = base.with_topic(
        {
            "local": {
                "publishMaxMessageRate": {"publishThrottlingRateInByte": 8},
                "subscriptionPolicies": {"s": own},
            }
        }
    )
    assert topic.publish_rate == Rate(0, 8)
    assert topic.subscription_dispatch_rate("s") == Rate(0, 7)
    assert topic.subscription_dispatch_rate("other") == Rate(5, 0)


def test_automatic_creation() -> None:
    config = BrokerConfig(default_num_partitions=3, allow_auto_subscription_creation=False)
    base = EffectivePolicies({}, config)
    assert base.auto_topic_creation == AutoTopicCreation(
        allowed=True, partitioned=False, partitions=3
    )
    assert base.auto_subscription_creation is False
    document = {
        "autoTopicCreationOverride": {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 5,
        },
        "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": True},
    }
    changed = EffectivePolicies(document, config)
    assert changed.auto_topic_creation == AutoTopicCreation(
        allowed=True, partitioned=True, partitions=5
    )
    assert changed.auto_subscription_creation is True
    refused = EffectivePolicies({"autoTopicCreationOverride": {}}, config).auto_topic_creation
    assert not refused.allowed


def test_subscription_types_are_replaced_not_added() -> None:
    base = EffectivePolicies({"subscription_types_enabled": ["Shared"]}, CONFIG)
    topic = base.with_topic({"local": {"subscription_types_enabled": ["Failover"]}})
    assert topic.subscription_types == {"Failover"}
    cleared = base.with_topic({"local": {"subscription_types_enabled": []}})
    assert cleared.subscription_types == {"Shared"}
    config = BrokerConfig(subscription_types_enabled=frozenset({"Exclusive"}))
    assert EffectivePolicies({}, config).subscription_types == {"Exclusive"}
    cleared = EffectivePolicies({"subscription_types_enabled": []}, config)
    assert cleared.subscription_types == {"Exclusive"}
    assert base.subscription_types == {"Shared"}


def test_delayed_messages_are_looked_after_now_and_then() -> None:
    policies = EffectivePolicies(
        {"delayed_delivery_policies": {"active": True, "tickTime": 2**62}}, CONFIG
    )
    assert policies.delayed_delivery.tick_ms == 3_600_000
    assert EffectivePolicies({}, CONFIG).delayed_delivery.tick_ms == 1000


def test_encryption_can_t_be_switched_off_below_the_broker() -> None:
    strict = BrokerConfig(encryption_require_on_producer=True)
    assert EffectivePolicies({"encryption_required": False}, strict).encryption_required
    assert EffectivePolicies({"encryption_required": True}, CONFIG).encryption_required


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = [
    *NUMBERS,
    *("retention_policies", "persistence", "backlog_quota_map", "publishMaxMessageRate"),
    *("topicDispatchRate", "subscriptionDispatchRate", "clusterSubscribeRate"),
    *("delayed_delivery_policies", "inactive_topic_policies", "autoTopicCreationOverride"),
    *("autoSubscriptionCreationOverride", "encryption_required", "subscriptionPolicies"),
    *("subscription_types_enabled", "max_message_size", "subscription_auth_mode"),
]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.dictionaries(st.text(max_size=6), JSON))
def test_a_damaged_document_never_takes_a_topic_away(
    document: dict[str, Any], topic_document: dict[str, Any]
) -> None:
    policies = EffectivePolicies(document, CONFIG).with_topic(
        {"local": document, "global": topic_document, **topic_document}
    )
    assert policies.max_message_size >= 0
    assert policies.subscription_dispatch_rate("s").period_s >= 1


@pytest.mark.parametrize("value", [True, "7", 7.5, [7], {}])
def test_a_value_of_the_wrong_type_counts_as_absent(value: object) -> None:
    config = BrokerConfig(max_producers_per_topic=3)
    assert EffectivePolicies({"max_producers_per_topic": value}, config).max_producers == 3


@pytest.mark.parametrize(
    ("stored", "seconds"), [(None, 120), (0, 0), (7, 7), ("soon", 120), ([], 120), (True, 120)]
)
def test_a_snapshot_interval_that_is_no_number_is_the_broker_s(stored: Any, seconds: int) -> None:
    fields = {"deduplicationSnapshotIntervalSeconds": stored}
    assert EffectivePolicies(fields, CONFIG).deduplication_snapshot_s == seconds
