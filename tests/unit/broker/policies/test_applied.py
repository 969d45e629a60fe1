"""All policies in one answer: each value holds, and each source is the document that sets it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.applied import applied_policies
from magnetar.broker.policies.documents import change_namespace, change_topic
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.table import POLICIES, Policy
from tests.unit.broker.policies.test_effective import NUMBERS

CONFIG = BrokerConfig(file_system_uri="file:///copies", cluster_name="here")
SHOWN = [
    policy
    for policy in POLICIES
    if policy.inner is None
    if policy.field not in ("schema_auto_update_compatibility_strategy", "entryFilters")
]
LAYERS = {"local": "topic", "global": "global"}


def applied(
    namespace: dict[str, Any], topic: dict[str, Any] | None = None, config: BrokerConfig = CONFIG
) -> dict[str, tuple[Any, str]]:
    policies = EffectivePolicies(namespace, config)
    if topic is None:
        return applied_policies(policies, is_topic=False)
    return applied_policies(policies.with_topic(topic), is_topic=True)


def _example(policy: Policy) -> Any:
    """A value that no broker has by default."""
    at = policy.namespace or policy.topic
    assert at is not None
    if policy.off is not None:  # nothing else is stored than what switches it off
        return policy.kind.parse(policy.example, at.path)
    return policy.parse(policy.example, at, CONFIG)


@pytest.mark.parametrize("policy", SHOWN, ids=lambda policy: policy.field)
def test_the_source_is_the_most_specific_document(policy: Policy) -> None:
    value = _example(policy)
    for own, shared, namespace in product((False, True), repeat=3):
        document: dict[str, Any] = {}
        topic: dict[str, Any] = {}
        if namespace and policy.namespace is not None:
            document = change_namespace({}, policy, "here", value)
        for key, is_set in (("local", own), ("global", shared)):
            if is_set and policy.topic is not None:
                topic = change_topic(topic, key, policy.field, value)
        sources = [LAYERS[key] for key in ("local", "global") if key in topic]
        in_namespace = document.get(policy.field) not in (None, policy.stored_unset)
        right = [*sources, *(["namespace"] if in_namespace else []), "broker"][0]
        at = policy.topic or policy.namespace
        assert at is not None
        found = applied(document, topic)[at.path]
        assert found[1] == right
        if right != "broker" and policy.effective is None:
            assert found[0] == ({**found[0], **value} if isinstance(value, dict) else value)


@given(
    field=st.sampled_from(sorted(NUMBERS)),
    broker=st.integers(0, 9),
    layers=st.tuples(*[st.none() | st.integers(0, 9) | st.just("soon")] * 3),
)
def test_a_number_is_what_topics_obey(
    field: str, broker: int, layers: tuple[int | str | None, ...]
) -> None:
    attribute, setting = NUMBERS[field]
    config = BrokerConfig(**{setting: broker})  # type: ignore[arg-type]
    policies = EffectivePolicies({field: layers[0]}, config).with_topic(
        {"global": {field: layers[1]}, "local": {field: layers[2]}}
    )
    policy = next(each for each in POLICIES if each.field == field)
    at = policy.topic or policy.namespace
    assert at is not None
    value, source = applied_policies(policies, is_topic=True)[at.path]
    assert value == getattr(policies, attribute)
    first = next((each for each in reversed(layers) if each is not None), "soon")
    assert (source == "broker") == (first == "soon")


def test_flags_that_the_broker_sets_for_all() -> None:
    config = replace(
        CONFIG, encryption_require_on_producer=True, is_schema_validation_enforced=True
    )
    found = applied({"encryption_required": False, "schema_validation_enforced": False}, {}, config)
    assert found["encryptionRequired"] == (True, "broker")
    assert found["schemaValidationEnforced"] == (True, "broker")
    own = {"local": {"schema_validation_enforced": False}}
    found = applied({"schema_validation_enforced": True}, own)
    assert found["schemaValidationEnforced"] == (False, "topic")


def test_a_strategy_by_its_older_field() -> None:
    legacy = {"schema_auto_update_compatibility_strategy": "Backward"}
    unset = {"local": {"schema_compatibility_strategy": "UNDEFINED"}}
    assert applied(legacy, unset)["schemaCompatibilityStrategy"] == ("BACKWARD", "namespace")
    assert applied({}, unset)["schemaCompatibilityStrategy"] == ("FULL", "broker")


def test_quotas_and_subscriptions_come_one_by_one() -> None:
    rate = {"dispatchThrottlingRateInMsg": 5}
    document = {"backlog_quota_map": {"destination_storage": {"limitSize": 9, "policy": "x"}}}
    topic = {
        "local": {
            "backlog_quota_map": {"message_age": {"limitTime": 7, "policy": "y"}},
            "subscriptionPolicies": {"a/b": {"dispatchRate": rate}},
        },
        "global": {"subscriptionPolicies": {"a/b": {"dispatchRate": {}}, "c": 7}},
    }
    found = applied(document, topic)
    assert found["backlogQuota/destination_storage"][1] == "namespace"
    assert found["backlogQuota/destination_storage"][0]["limitSize"] == 9
    assert found["backlogQuota/message_age"][1] == "topic"
    assert found["a/b/dispatchRate"] == (rate, "topic")
    assert "c/dispatchRate" not in found
    assert found["replication"] == ([], "broker")


def test_what_others_damaged_holds_nowhere() -> None:
    document = {"retention_policies": [], "is_allow_auto_update_schema": "x", "max_topics": 3}
    found = applied({**document, "persistence": {"bookkeeperEnsemble": 3}, "properties": 7})
    assert found["retention"] == (
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        "broker",
    )
    assert found["persistence"][0]["bookkeeperEnsemble"] == 3
    assert (
        found["persistence"][0]["bookkeeperAckQuorum"] == CONFIG.managed_ledger_default_ack_quorum
    )
    assert found["persistence"][1] == "namespace"


def test_a_namespace_has_no_policies_of_topics_alone() -> None:
    assert "maxMessageSize" not in applied({})
    assert applied({}, {})["maxMessageSize"] == (CONFIG.max_message_size, "broker")
    assert {source for _, source in applied({}).values()} == {"broker"}
