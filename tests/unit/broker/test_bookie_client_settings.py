"""From broker.conf's keys to a policy of placement and to quarantine."""

import random

import pytest

from magnetar.bookkeeper.client.placement import (
    IsolationGroups,
    PlacementConfig,
    RackRules,
    ZoneRules,
)
from magnetar.broker.bookie_client_settings import bookie_health, check_placement, placement_config
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.policies.errors import InvalidPolicyError
from magnetar.broker.policies.table import POLICIES


def load(**keys: str) -> BrokerConfig:
    return BrokerConfig.load(environment={}, overrides=keys)


def test_racks_as_in_pulsar_unless_something_else_is_set() -> None:
    assert placement_config(load()) == PlacementConfig("rack-aware")
    switched_off = load(bookkeeperClientRackawarePolicyEnabled="false")
    assert placement_config(switched_off) == PlacementConfig("random")


def test_racks() -> None:
    config = load(
        bookkeeperClientMinNumRacksPerWriteQuorum="3",
        bookkeeperClientEnforceMinNumRacksPerWriteQuorum="true",
    )
    assert placement_config(config).racks == RackRules(3, enforce=True)


def test_zones_by_name_and_by_bookkeepers_keys() -> None:
    config = load(
        bookkeeper_ensemblePlacementPolicy=(
            "org.apache.bookkeeper.client.ZoneawareEnsemblePlacementPolicy"
        ),
        bookkeeper_minNumZonesPerWriteQuorum="1",
        bookkeeper_desiredNumZonesPerWriteQuorum="2",
        bookkeeper_enforceMinNumFaultDomainsForWrite="true",
    )
    found = placement_config(config)
    assert found.policy == "zone-aware"
    assert found.zones == ZoneRules(1, 2, strict=True, spread_acks=True)
    assert found.racks == RackRules()
    assert placement_config(load(bookkeeperEnsemblePlacementPolicy="zone-aware")) == (
        PlacementConfig("zone-aware")
    )


def test_weights() -> None:
    config = load(
        bookkeeperDiskWeightBasedPlacementEnabled="true",
        bookkeeperClientGetBookieInfoIntervalSeconds="100",
        bookkeeperClientGetBookieInfoRetryIntervalSeconds="5",
        bookkeeper_bookieMaxWeightMultipleForWeightBasedPlacement="2",
        bookkeeper_opportunisticStriping="true",
    )
    assert placement_config(config) == PlacementConfig(
        "rack-aware",
        by_free_space=True,
        max_weight_multiple=2.0,
        info_interval_s=100.0,
        info_retry_s=5.0,
        opportunistic_striping=True,
    )


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"bookkeeperEnsemblePlacementPolicy": "nearest"}, "nearest"),
        (
            {
                "bookkeeperClientRegionawarePolicyEnabled": "true",
                "managedLedgerDefaultEnsembleSize": "3",
                "managedLedgerDefaultWriteQuorum": "3",
                "managedLedgerDefaultAckQuorum": "2",
            },
            "2 regions needs an ack quorum of at least 3",
        ),
        ({"bookkeeper_reppMinimumRegionsForDurability": "0"}, "at least 1 region"),
        ({"bookkeeperMinNumZonesPerWriteQuorum": "4"}, "minimum 4"),
        ({"bookkeeperClientMinNumRacksPerWriteQuorum": "0"}, "rack"),
        (
            {
                "bookkeeperClientRackawarePolicyEnabled": "false",
                "bookkeeperEnforceMinNumFaultDomainsForWrite": "true",
            },
            "fault domains",
        ),
        (
            {
                "bookkeeperEnsemblePlacementPolicy": "zone-aware",
                "bookkeeperEnforceStrictZoneawarePlacement": "false",
                "bookkeeperEnforceMinNumFaultDomainsForWrite": "true",
            },
            "strict",
        ),
        ({"bookkeeperClientGetBookieInfoIntervalSeconds": "0"}, "intervals"),
        # 2/2/2 of the defaults of a cluster's broker, and a striped ensemble.
        (
            {
                "bookkeeperEnsemblePlacementPolicy": "zone-aware",
                "managedLedgerDefaultEnsembleSize": "2",
                "managedLedgerDefaultWriteQuorum": "2",
                "managedLedgerDefaultAckQuorum": "2",
            },
            "write quorum above the 2 zones",
        ),
        (
            {
                "bookkeeperEnsemblePlacementPolicy": "zone-aware",
                "managedLedgerDefaultEnsembleSize": "5",
                "managedLedgerDefaultWriteQuorum": "3",
            },
            "multiple of the write quorum",
        ),
    ],
)
def test_what_cannot_be_satisfied_is_refused(keys: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_placement(load(**keys))


def test_regions_and_groups_by_pulsars_keys() -> None:
    config = load(
        bookkeeperClientRegionawarePolicyEnabled="true",
        bookkeeper_reppMinimumRegionsForDurability="3",
        bookkeeperEnforceMinNumFaultDomainsForWrite="true",
        bookkeeperClientIsolationGroups="ssd, fast",
        bookkeeperClientSecondaryIsolationGroups="hdd",
    )
    found = placement_config(config)
    assert found.policy == "region-aware"
    assert (found.regions.min_regions, found.regions.spread_acks) == (3, True)
    assert found.isolation == IsolationGroups(frozenset({"ssd", "fast"}), frozenset({"hdd"}))
    assert not found.racks.spread_acks


def test_what_can_be_satisfied_is_not() -> None:
    zones = {
        "bookkeeperEnsemblePlacementPolicy": "zone-aware",
        "managedLedgerDefaultEnsembleSize": "6",
        "managedLedgerDefaultWriteQuorum": "3",
        "managedLedgerDefaultAckQuorum": "2",
    }
    check_placement(load(**zones))
    check_placement(load())
    # Rack-aware acks don't depend on zone-aware's switches.
    check_placement(
        load(
            bookkeeperEnforceMinNumFaultDomainsForWrite="true",
            bookkeeperEnforceStrictZoneawarePlacement="false",
        )
    )


def test_quarantine() -> None:
    keys = {
        "bookkeeperClientHealthCheckErrorThresholdPerInterval": "2",
        "bookkeeperClientHealthCheckIntervalSeconds": "3600",
    }
    health = bookie_health(load(**keys), lambda: 0, random.Random(1))
    health.note_error("a")
    assert not health.quarantined()
    health.note_error("a")
    assert health.quarantined() == {"a"}
    off = bookie_health(
        load(**keys, bookkeeperClientHealthCheckEnabled="false"), lambda: 0, random.Random(1)
    )
    for _ in range(5):
        off.note_error("a")
    assert not off.quarantined()
    with pytest.raises(ConfigError, match="HealthCheck"):
        bookie_health(load(bookkeeperClientQuarantineRatio="2"), lambda: 0, random.Random(1))


def test_quorums_of_a_namespace_or_topic_are_held_against_the_policy() -> None:
    policy = next(each for each in POLICIES if each.field == "persistence")
    assert policy.namespace is not None
    quorums = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    two, three = (dict.fromkeys(quorums, copies) for copies in (2, 3))
    zones = load(bookkeeperEnsemblePlacementPolicy="zone-aware")
    with pytest.raises(InvalidPolicyError, match="write quorum above the 2 zones"):
        policy.parse(two, policy.namespace, zones)
    policy.parse(three, policy.namespace, zones)
    policy.parse(two, policy.namespace, load())
