"""The client of bookies out of the broker's settings: reads and writes, placement, health. Pure."""

from collections.abc import Callable

from magnetar.bookkeeper.client.config import (
    ClientConfig,
    HealthConfig,
    ReadConfig,
    SpeculationConfig,
    WriteConfig,
)
from magnetar.bookkeeper.client.health import BookieHealth
from magnetar.bookkeeper.client.placement import (
    PlacementConfig,
    PlacementRandom,
    RackRules,
    RegionRules,
    ZoneRules,
)
from magnetar.bookkeeper.client.placement.config import (
    RACK_AWARE,
    RANDOM,
    REGION_AWARE,
    ZONE_AWARE,
    policy_named,
)
from magnetar.bookkeeper.client.placement.isolation import groups_of_settings
from magnetar.bookkeeper.errors import PlacementRuleError
from magnetar.bookkeeper.network_location import place
from magnetar.broker.config import BrokerConfig, ConfigError


def placement_config(config: BrokerConfig) -> PlacementConfig:
    """The policy and its rules.

    Raises:
        ConfigError: they contradict each other, or ask for what there isn't.
    """
    spread_acks = config.bookkeeper_enforce_min_num_fault_domains_for_write
    try:
        policy = policy_of(config)
        if spread_acks and policy == RANDOM:
            raise ValueError(
                "enforceMinNumFaultDomainsForWrite=true needs a policy that knows fault domains"
            )
        return PlacementConfig(
            policy=policy,
            racks=RackRules(
                config.bookkeeper_client_min_num_racks_per_write_quorum,
                config.bookkeeper_client_enforce_min_num_racks_per_write_quorum,
                spread_acks and policy == RACK_AWARE,
            ),
            zones=ZoneRules(
                config.bookkeeper_min_num_zones_per_write_quorum,
                config.bookkeeper_desired_num_zones_per_write_quorum,
                config.bookkeeper_enforce_strict_zoneaware_placement,
                spread_acks and policy == ZONE_AWARE,
            ),
            regions=RegionRules(
                config.bookkeeper_repp_minimum_regions_for_durability,
                spread_acks and policy == REGION_AWARE,
            ),
            isolation=groups_of_settings(
                config.bookkeeper_client_isolation_groups,
                config.bookkeeper_client_secondary_isolation_groups,
            ),
            by_free_space=config.bookkeeper_disk_weight_based_placement_enabled,
            max_weight_multiple=(
                config.bookkeeper_bookie_max_weight_multiple_for_weight_based_placement
            ),
            info_interval_s=float(config.bookkeeper_client_get_bookie_info_interval_seconds),
            info_retry_s=float(config.bookkeeper_client_get_bookie_info_retry_interval_seconds),
            opportunistic_striping=config.bookkeeper_opportunistic_striping,
        )
    except ValueError as error:
        raise ConfigError(f"placement of ledgers on bookies: {error}") from error


def policy_of(config: BrokerConfig) -> str:
    """Name of the policy: what is set, or as Pulsar's switches say.

    Raises:
        ValueError: there is no such policy.
    """
    if config.bookkeeper_ensemble_placement_policy:
        return policy_named(config.bookkeeper_ensemble_placement_policy)
    if config.bookkeeper_client_regionaware_policy_enabled:
        return REGION_AWARE
    return RACK_AWARE if config.bookkeeper_client_rackaware_policy_enabled else RANDOM


def bookie_health(
    config: BrokerConfig, clock_ms: Callable[[], int], rng: PlacementRandom
) -> BookieHealth:
    """The memory of failures, and quarantine unless it is switched off.

    Args:
        clock_ms: milliseconds of a clock that doesn't jump.

    Raises:
        ConfigError: a figure is out of range.
    """
    try:
        settings = HealthConfig(
            enabled=config.bookkeeper_client_health_check_enabled,
            error_threshold=config.bookkeeper_client_health_check_error_threshold_per_interval,
            interval_ms=config.bookkeeper_client_health_check_interval_seconds * 1000,
            quarantine_ms=config.bookkeeper_client_health_check_quarantine_time_in_seconds * 1000,
            quarantine_ratio=config.bookkeeper_client_quarantine_ratio,
            failure_memory_ms=config.bookkeeper_bookie_failure_history_expiration_m_sec,
        )
    except ValueError as error:
        raise ConfigError(f"bookkeeperClientHealthCheck...: {error}") from error
    return BookieHealth(settings, clock_ms, rng)


def check_placement(config: BrokerConfig) -> None:
    """Refuse rules, and default quorums, that could be satisfied in no cluster.

    Raises:
        ConfigError: the text says why.
    """
    try:
        placement_config(config).check(
            config.managed_ledger_default_ensemble_size,
            config.managed_ledger_default_write_quorum,
            config.managed_ledger_default_ack_quorum,
        )
    except PlacementRuleError as error:
        raise ConfigError(f"managedLedgerDefault...: {error}") from error


def client_config(config: BrokerConfig) -> ClientConfig:
    """Settings of the ledger client.

    Raises:
        ConfigError: a figure is out of range.
    """
    try:
        return ClientConfig(
            reads=ReadConfig(
                reorder=config.bookkeeper_client_reorder_read_sequence_enabled,
                pending_max=config.bookkeeper_reorder_threshold_pending_requests,
                network_location=place(
                    config.bookkeeper_network_location, config.zone, config.upgrade_domain
                ),
                slow_memory_ms=config.bookkeeper_bookie_failure_history_expiration_m_sec,
                sticky=config.bookkeeper_enable_sticky_reads,
                speculation=SpeculationConfig(
                    config.bookkeeper_client_speculative_read_timeout_in_millis,
                    config.bookkeeper_max_speculative_read_timeout,
                ),
            ),
            writes=WriteConfig(
                explicit_lac_interval_ms=config.bookkeeper_explicit_lac_interval_in_mills,
                # BookKeeper's -1 is off.
                add_quorum_timeout_ms=max(0, config.bookkeeper_add_entry_quorum_timeout_sec) * 1000,
                ensemble_changes_max=config.bookkeeper_max_allowed_ensemble_changes,
                delay_ensemble_change=config.bookkeeper_delay_ensemble_change,
            ),
        )
    except ValueError as error:
        raise ConfigError(f"bookkeeper...: {error}") from error
