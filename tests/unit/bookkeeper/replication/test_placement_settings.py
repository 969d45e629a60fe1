"""Auto-recovery places copies as brokers do: by the same keys, in either form."""

import pytest

from magnetar.bookkeeper.client.placement import (
    IsolationGroups,
    PlacementConfig,
    RackRules,
    ZoneRules,
)
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings, AutoRecoverySettingsError
from magnetar.broker.bookie_client_settings import placement_config
from magnetar.broker.config import BrokerConfig


def load(keys: dict[str, str]) -> PlacementConfig:
    return AutoRecoverySettings.load({"metadataServiceUri": "zk:h:1"}, keys).placement()


def test_bookkeepers_names() -> None:
    assert load({}) == load({"ensemblePlacementPolicy": ""}) == PlacementConfig("rack-aware")
    assert load({"ensemblePlacementPolicy": "random"}) == PlacementConfig("random")
    found = load(
        {
            "ensemblePlacementPolicy": (
                "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy"
            ),
            "minNumRacksPerWriteQuorum": "3",
            "enforceMinNumRacksPerWriteQuorum": "true",
            "diskWeightBasedPlacementEnabled": "true",
            "getBookieInfoIntervalSeconds": "5",
        }
    )
    assert found == PlacementConfig(
        "rack-aware", RackRules(3, enforce=True), by_free_space=True, info_interval_s=5.0
    )


def test_regions_are_known_here_too() -> None:
    found = load(
        {
            "ensemblePlacementPolicy": (
                "org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy"
            ),
            "reppMinimumRegionsForDurability": "3",
        }
    )
    assert (found.policy, found.regions.min_regions) == ("region-aware", 3)


def test_groups_by_the_lines_of_pulsars_policy() -> None:
    keys = {
        "ensemblePlacementPolicy": (
            "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
        ),
        "isolationBookieGroups": "ssd,fast",
    }
    groups = IsolationGroups(frozenset({"ssd", "fast"}))
    assert load(keys) == PlacementConfig("rack-aware", isolation=groups)
    assert load({"secondaryIsolationBookieGroups": "hdd"}).isolation is None


def test_a_brokers_lines_mean_the_same_here() -> None:
    keys = {
        "bookkeeperEnsemblePlacementPolicy": "zone-aware",
        "bookkeeper_minNumZonesPerWriteQuorum": "1",
        "bookkeeper_desiredNumZonesPerWriteQuorum": "4",
        "bookkeeper_enforceStrictZoneawarePlacement": "false",
        "bookkeeperClientMinNumRacksPerWriteQuorum": "5",
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum": "true",
        "bookkeeperDiskWeightBasedPlacementEnabled": "true",
        "bookkeeper_bookieMaxWeightMultipleForWeightBasedPlacement": "2",
        "bookkeeperClientGetBookieInfoIntervalSeconds": "50",
        "bookkeeperClientGetBookieInfoRetryIntervalSeconds": "6",
        "bookkeeperClientIsolationGroups": "ssd, fast",
        "bookkeeperClientSecondaryIsolationGroups": "hdd",
    }
    broker = placement_config(BrokerConfig.load(environment={}, overrides=keys))
    assert load(keys) == broker
    assert broker.isolation is not None
    assert broker.zones == ZoneRules(1, 4, strict=False)


@pytest.mark.parametrize(
    "bad",
    [
        {"ensemblePlacementPolicy": "LocalBookieEnsemblePlacementPolicy"},
        {"reppMinimumRegionsForDurability": "0"},
        {"minNumZonesPerWriteQuorum": "9"},
        {"getBookieInfoRetryIntervalSeconds": "0"},
    ],
)
def test_what_makes_no_sense_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(AutoRecoverySettingsError):
        load(bad)
