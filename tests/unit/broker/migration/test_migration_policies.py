"""Topic policies out of the system topic of a cluster of Apache Pulsar 4.2.4, and back into it."""

import pytest

from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.migration.policy_events import (
    PolicyEvent,
    encode_event,
    from_pulsar,
    read_events,
    to_pulsar,
)
from magnetar.broker.migration.pulsar_schemas import stored_schema
from magnetar.broker.policies.table import POLICIES
from magnetar.broker.protocol.messages import open_entry
from magnetar.broker.protocol.topic_name import TopicName
from tests.unit.broker.migration.recorded import recorded

HOLES, PARTS, PROPS = (
    TopicName.parse(f"persistent://acme/orders/{name}") for name in ("holes", "parts", "props")
)


def definition() -> bytes:
    return stored_schema(0, recorded().entries[3][0], "").definition.data


def test_the_last_event_of_a_topic_counts() -> None:
    found = read_events(recorded().entries[2], {0: definition()}, "events")
    assert found == {
        (HOLES, "local"): PolicyEvent(
            HOLES,
            "local",
            {
                "max_consumers_per_topic": 7,
                "retention_policies": {"retentionSizeInMB": 100, "retentionTimeInMinutes": 60},
            },
        ),
        (PARTS, "local"): PolicyEvent(
            PARTS, "local", {"max_producers_per_topic": 9, "message_ttl_in_seconds": 3600}
        ),
        (PROPS, "local"): PolicyEvent(PROPS, "local", {}),
    }


@pytest.mark.parametrize(
    "policies",
    [
        {"max_consumers_per_topic": 7, "schema_compatibility_strategy": "BACKWARD"},
        {
            "delayed_delivery_policies": {
                "active": True,
                "tickTime": 5,
                "maxDeliveryDelayInMillis": 9,
            }
        },
        {
            "backlog_quota_map": {
                "destination_storage": {
                    "limit": 5,
                    "limitSize": 5,
                    "limitTime": -1,
                    "policy": "producer_exception",
                }
            }
        },
        {
            "subscriptionPolicies": {
                "s": {
                    "dispatchThrottlingRateInMsg": 1,
                    "dispatchThrottlingRateInByte": 2,
                    "relativeToPublishRate": False,
                    "ratePeriodInSecond": 3,
                }
            }
        },
        {"subscription_types_enabled": ["Shared", "Key_Shared"]},
        None,
    ],
)
@pytest.mark.parametrize("layer", ["local", "global"])
def test_an_event_that_we_write_is_read_as_it_was_meant(
    policies: dict[str, object] | None, layer: str
) -> None:
    event = PolicyEvent(HOLES, layer, policies)
    entry = encode_event(event, definition(), 0, "standalone", 5, 1_700_000_000_000)
    assert read_events([entry], {0: definition()}, "") == {(HOLES, layer): event}


def test_an_event_has_the_metadata_that_pulsar_gives_it() -> None:
    theirs, _ = open_entry(recorded().entries[2][0])
    event = PolicyEvent(HOLES, "local", {"max_consumers_per_topic": 7})
    ours, _ = open_entry(encode_event(event, definition(), 0, "standalone", 5, 1))
    ours.producer_name, ours.sequence_id = theirs.producer_name, theirs.sequence_id
    ours.publish_time, ours.uncompressed_size = theirs.publish_time, theirs.uncompressed_size
    theirs.ClearField("partition_key_b64_encoded")  # false, and there
    assert ours == theirs


def test_every_policy_of_a_topic_has_its_field() -> None:
    for policy in POLICIES:
        if policy.topic is not None and policy.field != "delayed_delivery_policies":
            fields, unknown = to_pulsar({policy.field: 1}, is_global=False)
            known = set(fields) > {"isGlobal"}
            assert known != bool(unknown)
            if unknown:
                assert unknown == (policy.field,)
                assert policy.field in {
                    "allowed_topic_property_keys_for_metrics",
                    "replicate_subscription_state",
                    "subscription_auth_mode",
                }


def test_what_has_no_counterpart_is_told() -> None:
    assert from_pulsar({"replicationClusters": ["a", "b"], "maxConsumerPerTopic": 1}) == (
        {"max_consumers_per_topic": 1},
        {"replicationClusters": ["a", "b"]},
    )


def test_an_event_of_an_unknown_schema_is_an_error() -> None:
    with pytest.raises(PulsarFormatError, match="ns/__change_events: not an event"):
        read_events(recorded().entries[2], {}, "ns/__change_events")
