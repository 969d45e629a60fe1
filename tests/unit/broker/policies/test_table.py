"""The table of policies: each row is whole, documented, and what its own example says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.documents import (
    change_inner,
    change_namespace,
    change_quota,
    change_topic,
    in_namespace,
    in_topic,
    parse_namespace,
    parse_quota,
    with_properties,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.errors import (
    InvalidPolicyError,
    PartitionCountError,
    PolicyConflictError,
    PolicyError,
    PolicyRangeError,
    UnsupportedPolicyError,
)
from magnetar.broker.policies.table import POLICIES, Policy, PolicyRoute, policy_of_field

ROOT = Path(__file__).resolve().parents[4]
CONFIG = BrokerConfig(file_system_uri="file:///copies", cluster_name="here")


def row(field: str) -> Policy:
    found = policy_of_field(field)
    assert found is not None
    return found


def places(policy: Policy) -> list[PolicyRoute]:
    return [at for at in (policy.namespace, policy.topic) if at is not None]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.field)
def test_a_row_is_whole(policy: Policy) -> None:
    page = (ROOT / "docs" / "reference" / "policies.md").read_text()
    assert places(policy)
    for at in places(policy):
        assert f"`{at.path}`" in page, "docs/reference/policies.md doesn't name it"
        assert at.method in ("POST", "PUT")
    assert (policy.off is None) == (policy.feature == "")
    assert not policy.title.endswith(".")
    assert len(policy.title) < 110
    assert "type" in policy.kind.schema
    if policy.stored_unset is not None and not policy.by_cluster:
        assert policy.namespace is not None
        assert policy.namespace.unset == policy.stored_unset


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.field)
def test_its_example_is_one(policy: Policy) -> None:
    for at in places(policy):
        try:
            stored = policy.parse(policy.example, at, CONFIG)
        except UnsupportedPolicyError:
            assert policy.off is not None
        except InvalidPolicyError:
            assert policy.field == "entryFilters", "there are no filters to name"
        else:
            assert policy.parse(stored, at, CONFIG) == stored, "what is stored can be set again"


def test_fields_and_paths_are_unique() -> None:
    assert len({policy.field for policy in POLICIES}) == len(POLICIES)
    for level in ("namespace", "topic"):
        paths = [at.path for policy in POLICIES if (at := getattr(policy, level)) is not None]
        assert len(paths) == len(set(paths))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["true", "Shared", "Prefix", "FULL"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def values(draw: st.DrawFn) -> tuple[Policy, PolicyRoute, Any]:
    """A policy and something like its value: its example with fields of anything."""
    policy = draw(st.sampled_from(POLICIES))
    at = draw(st.sampled_from(places(policy)))
    value = draw(JSON)
    if isinstance(policy.example, dict) and draw(st.booleans()):
        value = dict(policy.example)
        for key in draw(st.sets(st.sampled_from(sorted(value)))):
            value[key] = draw(JSON)
    return policy, at, value


def parsed_or_refused(parse: Callable[[], Any]) -> Any:
    """What it gives; None when it was refused, with a client's status and a reason."""
    try:
        return parse()
    except PolicyError as error:
        refused = error
    assert 400 <= refused.http_status < 500
    assert str(refused)
    return None


@given(values())
def test_anything_is_stored_or_refused_with_a_reason(case: tuple[Policy, PolicyRoute, Any]) -> None:
    policy, at, value = case
    if value is None:
        return
    stored = parsed_or_refused(lambda: policy.parse(value, at, CONFIG))
    if stored is None:
        return
    assert policy.parse(stored, at, CONFIG) == stored
    # ... and what is stored never breaks the topics that read it.
    document = {"here": stored} if policy.by_cluster else stored
    EffectivePolicies({policy.field: document}, CONFIG).with_topic(
        {"local": {policy.field: stored}}
    )


@given(st.dictionaries(st.sampled_from([p.field for p in POLICIES] + ["x", "bundles"]), JSON))
def test_any_body_creates_a_namespace_or_is_refused(body: dict[str, Any]) -> None:
    document = parsed_or_refused(lambda: parse_namespace(body, "t/n", CONFIG)) or {}
    assert all(policy_of_field(field) is not None for field in document)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["local", "global"]), st.sampled_from("abc"), st.none() | st.integers()
        )
    )
)
def test_a_topic_s_document_is_a_map_of_two_layers(
    changes: list[tuple[str, str, int | None]],
) -> None:
    document: dict[str, Any] = {}
    model: dict[tuple[str, str], int] = {}
    for scope, field, value in changes:
        before = repr(document)
        changed = change_topic(document, scope, field, value)
        assert repr(document) == before, "changes are pure"
        document = changed
        model.pop((scope, field), None)
        if value is not None:
            model[scope, field] = value
    for scope in ("local", "global"):
        for field in "abc":
            assert in_topic(document, scope, field) == model.get((scope, field))
    assert all(document.values()), "empty layers go"


def test_a_namespace_s_rate_is_kept_by_cluster() -> None:
    rates = row("topicDispatchRate")
    document = change_namespace({"topicDispatchRate": {"there": {}}}, rates, "here", {"a": 1})
    assert document["topicDispatchRate"] == {"there": {}, "here": {"a": 1}}
    assert in_namespace(document, rates, "here") == {"a": 1}
    removed = change_namespace(document, rates, "here", None)
    assert removed["topicDispatchRate"] == {"there": {}}
    assert in_namespace(removed, rates, "here") is None


def test_what_pulsar_always_writes_stays_in_the_document() -> None:
    types = row("subscription_types_enabled")
    assert change_namespace({}, types, "here", None) == {"subscription_types_enabled": []}
    ttl = row("message_ttl_in_seconds")
    assert change_namespace({"message_ttl_in_seconds": 4}, ttl, "here", None) == {}


def test_maps_inside_a_topic_s_document_lose_their_last_key_and_go() -> None:
    document = change_inner({}, "local", "backlog_quota_map", "message_age", {"limitTime": 1})
    assert document == {"local": {"backlog_quota_map": {"message_age": {"limitTime": 1}}}}
    assert change_inner(document, "local", "backlog_quota_map", "message_age", None) == {}


SIZE = {"limitSize": 20 << 20, "limitTime": -1, "policy": "producer_exception"}


@pytest.mark.parametrize(
    ("minutes", "megabytes", "quota", "agree"),
    [
        (10, 20, {"limitSize": 20 << 20}, False),
        (10, 20, {"limitSize": (20 << 20) - 1}, True),
        (10, 20, {"limitSize": -1, "limitTime": 600}, False),
        (10, 20, {"limitSize": -1, "limitTime": 599}, True),
        (-1, 20, {"limitSize": 0, "limitTime": 10**6}, True),
        (-1, -1, {"limitSize": 1 << 40, "limitTime": 10**6}, True),
        (0, 0, {"limitSize": 1 << 40, "limitTime": 10**6}, True),
    ],
)
def test_quota_and_retention_agree_in_whichever_order(
    minutes: int, megabytes: int, quota: dict[str, Any], agree: bool
) -> None:
    retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    stored = parse_quota({**quota, "policy": "producer_exception"}, "t/n")
    changes: list[Callable[[], dict[str, Any]]] = [
        lambda: change_quota({"retention_policies": retention}, "destination_storage", stored),
        lambda: change_namespace(
            {"backlog_quota_map": {"destination_storage": stored}},
            row("retention_policies"),
            "here",
            retention,
        ),
        lambda: parse_namespace(
            {
                "retention_policies": retention or None,
                "backlog_quota_map": {"destination_storage": stored},
            },
            "t/n",
            CONFIG,
        ),
    ]
    for change in changes:
        if agree:
            assert change()
        else:
            with pytest.raises(PolicyConflictError):
                change()


def test_ages_are_not_compared_with_retention() -> None:
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
    assert change_quota({"retention_policies": retention}, "message_age", SIZE)


def test_numbers_have_their_limits() -> None:
    ttl = row("message_ttl_in_seconds")
    assert ttl.namespace is not None
    with pytest.raises(PolicyRangeError, match="message TTL must >= 0"):
        ttl.parse(-1, ttl.namespace, CONFIG)
    wrong_values: list[Any] = [2**31, True, "five", 5.0, [5], {}]
    for wrong in wrong_values:
        with pytest.raises(InvalidPolicyError):
            ttl.parse(wrong, ttl.namespace, CONFIG)
    size = row("max_message_size")
    assert size.topic is not None
    with pytest.raises(PolicyRangeError, match="broker-level"):
        size.parse(CONFIG.max_message_size + 1, size.topic, CONFIG)


def test_automatic_partitions_have_the_broker_s_limit() -> None:
    auto = row("autoTopicCreationOverride")
    assert auto.namespace is not None
    limited = BrokerConfig(max_num_partitions_per_partitioned_topic=4)
    value = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 5}
    with pytest.raises(PartitionCountError):
        auto.parse(value, auto.namespace, limited)
    assert auto.parse(value, auto.namespace, CONFIG) == value


def test_what_a_whole_object_leaves_empty_says_nothing() -> None:
    body: dict[str, Any] = {
        "message_ttl_in_seconds": 7,
        "retention_policies": None,
        "offload_policies": {},
        "subscription_types_enabled": [],
        "offload_threshold": -1,
        "migrated": False,
        "deduplicationEnabled": False,
        "topicDispatchRate": {"here": {"dispatchThrottlingRateInMsg": 3}, "there": None},
        "a_field_of_the_future": {"x": 1},
    }
    assert parse_namespace(body, "t/n", CONFIG) == {
        "message_ttl_in_seconds": 7,
        "offload_threshold": -1,
        "deduplicationEnabled": False,
        "topicDispatchRate": {
            "here": {
                "dispatchThrottlingRateInMsg": 3,
                "dispatchThrottlingRateInByte": 0,
                "relativeToPublishRate": False,
                "ratePeriodInSecond": 0,
            }
        },
    }


@pytest.mark.parametrize(
    "body",
    [
        {"migrated": True},
        {"resource_group_name": "group"},
        {
            "offload_policies": {
                "managedLedgerOffloadDriver": "aws-s3",
                "managedLedgerOffloadBucket": "b",
            }
        },
        {"clusterDispatchRate": {"here": {"dispatchThrottlingRateInMsg": 3}}},
    ],
)
def test_features_that_don_t_exist_are_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedPolicyError, match="not available in this version"):
        parse_namespace(body, "t/n", CONFIG)


def test_permissions_and_properties_of_a_whole_object() -> None:
    auth = {"namespace_auth": {"role": ["produce"]}, "subscription_auth_roles": {"s": ["a"]}}
    body = {"auth_policies": auth, "properties": {"k": "v"}}
    document = parse_namespace(body, "t/n", CONFIG)
    assert document["auth_policies"] == {**auth, "destination_auth": {}}
    assert document["properties"] == {"k": "v"}
    wrong_bodies: list[dict[str, Any]] = [
        {"auth_policies": 5},
        {"properties": {"k": 5}},
        {"backlog_quota_map": {"x": {}}},
    ]
    for wrong in wrong_bodies:
        with pytest.raises(InvalidPolicyError):
            parse_namespace(wrong, "t/n", CONFIG)


def test_properties_are_bounded() -> None:
    with pytest.raises(InvalidPolicyError, match="exceed"):
        with_properties({"a": "x" * 60_000}, {"b": "x" * 10_000})


@pytest.mark.parametrize(
    ("size", "expected"), [("10240", 10240), (" -1 ", -1), ("+7", 7), (str(2**63 - 1), 2**63 - 1)]
)
def test_whole_numbers_may_be_texts(size: str, expected: int) -> None:
    # The official Go client's tests send quotas this way.
    for field in ("limit", "limitSize"):
        quota = parse_quota({field: size, "limitTime": "5", "policy": "producer_exception"}, "t/n")
        assert (quota["limitSize"], quota["limitTime"]) == (expected, 5)


@pytest.mark.parametrize("size", ["", "ten", "1_0", "10.0", "1e3", "٣", str(2**63), "9" * 5000])
def test_other_texts_are_no_whole_numbers(size: str) -> None:
    with pytest.raises(PolicyError):
        parse_quota({"limitSize": size, "policy": "producer_exception"}, "t/n")


def test_a_number_with_a_fraction_may_be_a_text() -> None:
    sizes = {f"bookkeeper{name}": "1" for name in ("Ensemble", "WriteQuorum", "AckQuorum")}
    kind = row("persistence").kind
    rate = "managedLedgerMaxMarkDeleteRate"
    assert kind.parse({**sizes, rate: "1.5"}, "persistence")[rate] == 1.5
    with pytest.raises(InvalidPolicyError):
        kind.parse({**sizes, rate: "1.5.1"}, "persistence")
