"""Policies of copies elsewhere: what is taken, where it is written, what holds in the end."""

from typing import Any

import pytest

from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.policies.documents import change_namespace, in_namespace, remove_offload
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.errors import PolicyError
from magnetar.broker.policies.offload import applied_offload
from magnetar.broker.policies.table import Policy, policy_of_field
from magnetar.managed_ledger.offload.config import OffloadConfig

CONFIG = BrokerConfig(file_system_uri="file:///data/copies")


def row(field: str) -> Policy:
    found = policy_of_field(field)
    assert found is not None
    return found


def parse(value: Any, config: BrokerConfig = CONFIG) -> Any:
    policy = row("offload_policies")
    assert policy.namespace is not None
    return policy.parse(value, policy.namespace, config)


def test_an_object_has_pulsar_s_defaults() -> None:
    assert parse({"managedLedgerOffloadDriver": "filesystem", "of_the_future": 1}) == {
        "offloadersDirectory": "./offloaders",
        "managedLedgerOffloadDriver": "filesystem",
        "managedLedgerOffloadMaxThreads": 2,
        "managedLedgerOffloadReadThreads": 2,
        "managedLedgerOffloadPrefetchRounds": 1,
        "managedLedgerExtraConfigurations": {},
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67108864,
        "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
        "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 134217728,
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1048576,
        "s3Driver": False,
        "gcsDriver": False,
        "fileSystemDriver": True,
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "support value: S3,aws-s3,google-cloud-storage,filesystem,azureblob,aliyun-oss"),
        ({"managedLedgerOffloadDriver": "nope"}, "The driver is not supported"),
        ({"managedLedgerOffloadDriver": "aws-s3"}, "The bucket must be specified"),
        (
            {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "b"},
            "aws-s3 is not available in this version",
        ),
        ({"fileSystemURI": "file:///etc"}, "not below file:///data/copies"),
        ({"fileSystemURI": "file:///data/copies/../x"}, "goes upwards"),
        ({"fileSystemURI": "file:///data/copies/%00"}, "NUL"),
        ({"fileSystemURI": "file:///data/copies2"}, "not below"),
        ({"fileSystemURI": "hdfs://name/x"}, "not a directory of this machine"),
        ({"managedLedgerOffloadedReadPriority": "x"}, "is not one of"),
        ({"managedLedgerOffloadThresholdInBytes": "x"}, "is not an integer"),
        ("x", "is not an object"),
    ],
)
def test_what_is_refused(value: Any, reason: str) -> None:
    if isinstance(value, dict) and not any("Driver" in key for key in value) and value:
        value = {"managedLedgerOffloadDriver": "filesystem", **value}
    with pytest.raises(PolicyError, match=reason):
        parse(value)


def test_places_below_the_broker_s() -> None:
    for uri in ("file:///data/copies", "file:///data/copies/of/mine", "/data/copies/x"):
        given = {"managedLedgerOffloadDriver": "filesystem", "fileSystemURI": uri}
        assert parse(given)["fileSystemURI"] == uri
    with pytest.raises(PolicyError, match="fileSystemURI is not set"):
        parse({"managedLedgerOffloadDriver": "filesystem"}, BrokerConfig())


def test_thresholds_are_written_into_the_object() -> None:
    document: dict[str, Any] = {"offload_threshold": -1, "offload_threshold_in_seconds": -1}
    for field, value in (
        ("offload_threshold", 100),
        ("offload_threshold_in_seconds", 50),
        ("offload_deletion_lag_ms", 1000),
    ):
        document = change_namespace(document, row(field), "here", value)
        assert in_namespace(document, row(field), "here") == value
    assert document["offload_threshold"] == -1
    written = document["offload_policies"]
    assert written["managedLedgerOffloadThresholdInBytes"] == 100
    assert written["managedLedgerOffloadThresholdInSeconds"] == 50
    assert written["managedLedgerOffloadDeletionLagInMillis"] == 1000
    assert "managedLedgerOffloadDriver" not in written
    document = change_namespace(document, row("offload_deletion_lag_ms"), "here", None)
    assert in_namespace(document, row("offload_deletion_lag_ms"), "here") is None
    assert in_namespace(document, row("offload_threshold"), "here") == 100
    whole = parse({"managedLedgerOffloadDriver": "filesystem"})
    document = change_namespace(document, row("offload_policies"), "here", whole)
    assert in_namespace(document, row("offload_threshold"), "here") == -1
    assert remove_offload(document) == {
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
    }


def test_what_holds_is_decided_field_by_field() -> None:
    assert EffectivePolicies({}, CONFIG).offload == OffloadConfig()
    assert applied_offload(EffectivePolicies({}, CONFIG)) is None
    namespace = {
        "offload_threshold": 7,  # as older tools create a namespace
        "offload_policies": parse(
            {
                "managedLedgerOffloadDriver": "filesystem",
                "managedLedgerOffloadThresholdInSeconds": 60,
                "managedLedgerOffloadDeletionLagInMillis": 5,
                "managedLedgerOffloadMaxBlockSizeInBytes": 1000,
            }
        ),
    }
    topic = {
        "local": {
            "offload_policies": parse(
                {
                    "managedLedgerOffloadDriver": "filesystem",
                    "fileSystemURI": "file:///data/copies/t",
                    "managedLedgerOffloadDeletionLagInMillis": -1,
                    "managedLedgerOffloadedReadPriority": "bookkeeper-first",
                }
            )
        }
    }
    held = EffectivePolicies(namespace, CONFIG).with_topic(topic)
    place = "file:///data/copies/t"
    assert held.offload == OffloadConfig(
        "filesystem", (("fileSystemURI", place),), 7, 60, -1, bookies_first=True, block_bytes=1000
    )
    applied = applied_offload(held)
    assert applied is not None
    assert applied["managedLedgerOffloadThresholdInBytes"] == 7
    assert applied["managedLedgerOffloadDeletionLagInMillis"] == -1
    assert (applied["fileSystemURI"], applied["fileSystemDriver"]) == (place, True)
    broker = BrokerConfig(
        file_system_uri="file:///c",
        managed_ledger_offload_driver="filesystem",
        managed_ledger_offload_auto_trigger_size_threshold_bytes=1,
        managed_ledger_data_read_priority="bookkeeper-first",
    )
    assert EffectivePolicies({}, broker).offload == OffloadConfig(
        "filesystem", (("fileSystemURI", "file:///c"),), 1, bookies_first=True
    )
    assert EffectivePolicies({"offload_threshold": -1}, broker).offload.threshold_bytes == 1


def test_settings_that_can_t_be() -> None:
    for bad in ("hdfs://x/y", "copies", "file:///a/../b"):
        with pytest.raises(ConfigError, match="fileSystemURI"):
            BrokerConfig(file_system_uri=bad)
    with pytest.raises(ConfigError, match="managedLedgerOffloadDriver='aws-s3'"):
        BrokerConfig(managed_ledger_offload_driver="aws-s3")
    with pytest.raises(ConfigError, match="must be positive"):
        BrokerConfig(managed_ledger_offload_max_threads=0)
    loaded = BrokerConfig.load(overrides={"fileSystemURI": "file:///x"}, environment={})
    assert loaded.file_system_uri == "file:///x"
