"""Settings of the load balancer: Pulsar's keys, units and defaults.

A field is named like the key of ``broker.conf`` (``loadBalancerEnabled``), so that the broker's
configuration fills this class field by field. Where our default isn't Pulsar's 5.0, or a field is
our own, the comment says so.
"""

import math
from dataclasses import dataclass, fields
from typing import Final

from magnetar.loadbalance.errors import InvalidSettingError

LEAST_LONG_TERM_MESSAGE_RATE: Final = "LeastLongTermMessageRate"
LEAST_RESOURCE_USAGE: Final = "LeastResourceUsageWithWeight"
ROUND_ROBIN: Final = "RoundRobinBrokerSelector"
AVG_SHEDDER: Final = "AvgShedder"
OVERLOAD_SHEDDER: Final = "OverloadShedder"
THRESHOLD_SHEDDER: Final = "ThresholdShedder"
UNIFORM_SHEDDER: Final = "UniformLoadShedder"
TRANSFER_SHEDDER: Final = "TransferShedder"

PLACEMENTS: Final = (
    *(AVG_SHEDDER, LEAST_LONG_TERM_MESSAGE_RATE),
    *(LEAST_RESOURCE_USAGE, ROUND_ROBIN),
)
SHEDDERS: Final = (
    *(AVG_SHEDDER, OVERLOAD_SHEDDER, THRESHOLD_SHEDDER),
    *(UNIFORM_SHEDDER, TRANSFER_SHEDDER),
)


@dataclass(frozen=True, slots=True)
class BalancerConfig:
    """Rates are messages a second in and out together, percentages are 0 to 100."""

    load_balancer_enabled: bool = True
    load_balancer_shedding_enabled: bool = True
    load_balancer_load_shedding_strategy: str = AVG_SHEDDER
    load_balancer_load_placement_strategy: str = AVG_SHEDDER

    # Not in Pulsar: the leader alone assigns bundles to brokers, by an epoch that brokers check
    # (leader_epoch.py).
    load_balancer_leader_epoch_enabled: bool = False

    # --- load reports
    load_balancer_report_update_threshold_percentage: float = 10
    load_balancer_report_update_min_interval_millis: int = 5_000
    load_balancer_report_update_max_interval_minutes: float = 15
    load_balancer_resource_quota_update_interval_minutes: float = 15  # averages are stored
    load_balancer_max_number_of_bundles_in_bundle_load_report: int = 10  # a broker; -1: all
    load_balancer_broker_load_data_ttl_in_seconds: float = 1_800  # older reports don't count

    # --- what counts as usage of a broker
    load_balancer_cpu_resource_weight: float = 1.0
    load_balancer_direct_memory_resource_weight: float = 0.0
    load_balancer_bandwidth_in_resource_weight: float = 1.0
    load_balancer_bandwidth_out_resource_weight: float = 1.0
    load_balancer_history_resource_percentage: float = 0.9  # a fraction, in spite of its name

    # --- placement
    load_balancer_broker_overloaded_threshold_percentage: float = 85
    load_balancer_average_resource_usage_difference_threshold_percentage: float = 10
    load_balancer_broker_max_topics: int = 50_000
    load_balancer_distribute_bundles_evenly_enabled: bool = True
    prefer_later_versions: bool = False
    failure_domains_enabled: bool = False

    # --- moves, whatever the strategy
    load_balancer_shedding_interval_minutes: float = 1
    load_balancer_shedding_grace_period_minutes: float = 30  # of a bundle that was moved
    load_balance_shedding_delay_in_seconds: float = 180  # of a broker after a move (Transfer)
    load_balancer_shedding_excluded_namespaces: frozenset[str] = frozenset()
    load_balancer_shedding_bundles_with_policies_enabled: bool = False  # Transfer only
    # Our own: moves of one round together. A bundle that moves closes its topics for a moment.
    load_balancer_max_unloads_per_round: int = 1_000

    # --- ThresholdShedder
    load_balancer_broker_threshold_shedder_percentage: float = 10
    load_balancer_bundle_unload_min_throughput_threshold: float = 10  # MiB a second
    lower_boundary_shedding_enabled: bool = False

    # --- UniformLoadShedder and AvgShedder
    load_balancer_msg_rate_difference_shedder_threshold: float = 50  # percent of the least
    load_balancer_msg_throughput_multiplier_difference_shedder_threshold: float = 4
    max_unload_percentage: float = 0.2  # a fraction, in spite of its name
    min_unload_message: float = 1_000
    min_unload_message_throughput: float = 1_048_576  # bytes a second
    max_unload_bundle_num_per_shedding: int = -1  # -1: any number
    load_balancer_avg_shedder_low_threshold: float = 15
    load_balancer_avg_shedder_high_threshold: float = 40
    load_balancer_avg_shedder_hit_count_low_threshold: int = 8  # rounds in a row
    load_balancer_avg_shedder_hit_count_high_threshold: int = 2

    # --- TransferShedder
    load_balancer_broker_load_target_std: float = 0.25
    load_balancer_shedding_condition_hit_count_threshold: int = 3
    load_balancer_max_number_of_broker_shedding_per_cycle: int = 3

    # --- splits
    load_balancer_auto_bundle_split_enabled: bool = True
    load_balancer_auto_unload_split_bundles_enabled: bool = True
    load_balancer_namespace_bundle_max_topics: int = 1_000
    load_balancer_namespace_bundle_max_sessions: int = 1_000  # -1: any number
    load_balancer_namespace_bundle_max_msg_rate: float = 30_000
    load_balancer_namespace_bundle_max_bandwidth_mbytes: float = 100  # MiB a second, in and out
    load_balancer_namespace_maximum_bundles: int = 128
    load_balancer_split_condition_hit_count_threshold: int = 3
    load_balancer_max_number_of_bundles_to_split_per_cycle: int = 10
    # "": by what is too much, see auto_split.py (Pulsar: range_equally_divide).
    default_namespace_bundle_split_algorithm: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidSettingError: an unknown strategy, or a number out of its range."""
        strategy_name(self.load_balancer_load_shedding_strategy, SHEDDERS)
        strategy_name(self.load_balancer_load_placement_strategy, PLACEMENTS)
        for each in fields(BalancerConfig):  # those of a broker, which inherits them, are its own
            value = getattr(self, each.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidSettingError(f"{each.name}: {value}")
        for name in ("load_balancer_history_resource_percentage", "max_unload_percentage"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise InvalidSettingError(f"{name}: {value} isn't between 0 and 1")


def strategy_name(setting: str, known: tuple[str, ...]) -> str:
    """The strategy that a setting names, with or without the Java package of Pulsar's class.

    Raises:
        InvalidSettingError: none of ``known``.
    """
    name = setting.rsplit(".", 1)[-1]
    if name not in known:
        raise InvalidSettingError(f"{setting!r} is none of {', '.join(known)}")
    return name
