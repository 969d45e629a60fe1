"""Usage, windows and when a report is due: worked out by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.loadbalance.config import SHEDDERS, BalancerConfig, strategy_name
from magnetar.loadbalance.errors import InvalidSettingError
from magnetar.loadbalance.model import (
    DEFAULT_QUOTA,
    BrokerLoad,
    BundleData,
    BundleStats,
    ResourceUsage,
    TimeAverage,
    Weights,
    largest_change,
    namespace_of,
    report_due,
)

CONFIG = BalancerConfig()
WEIGHTS = Weights.of(CONFIG)
REPORT = BrokerLoad(
    "b1:8080",
    cpu=ResourceUsage(40, 200),
    bandwidth_in=ResourceUsage(100, 1000),
    msg_rate_in=100.0,
    msg_throughput_in=1000.0,
    bundles=[f"t/n/{number}" for number in range(10)],
)


def test_usage_is_the_largest_share_by_weight() -> None:
    load = BrokerLoad(
        "b",
        cpu=ResourceUsage(100, 400),  # a quarter
        direct_memory=ResourceUsage(90, 100),  # weighs nothing
        bandwidth_in=ResourceUsage(300, 1000),
        bandwidth_out=ResourceUsage(500, 1000),
    )
    assert load.usage(WEIGHTS) == 0.5
    assert load.usage(Weights(bandwidth_out=0.5)) == 0.3
    assert load.usage(Weights(direct_memory=1.0)) == 0.9


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_that_is_not_known_counts_nothing(limit: float) -> None:
    load = BrokerLoad("b", cpu=ResourceUsage(10, 100), bandwidth_in=ResourceUsage(9000, limit))
    assert load.usage(WEIGHTS) == 0.1


def test_a_wrong_limit_counts_nothing_but_a_full_cpu_counts_as_full() -> None:
    wrong = BrokerLoad("b", cpu=ResourceUsage(60, 100), bandwidth_out=ResourceUsage(4000, 1000))
    assert wrong.usage(WEIGHTS) == 0.6
    assert replace(wrong, cpu=ResourceUsage(100.3, 100)).usage(WEIGHTS) == 1.0


def test_two_reports_of_one_broker_are_known_by_their_urls() -> None:
    first = BrokerLoad("b", web_service_url="http://b:8080", pulsar_service_url="pulsar://b:6650")
    assert replace(first, msg_rate_in=9.0).identity == first.identity
    assert replace(first, pulsar_service_url="pulsar://b:6651").identity != first.identity


def test_the_first_sample_replaces_the_default() -> None:
    average = TimeAverage(10)
    assert (average.rate, average.throughput) == (100.0, 100_000.0)
    average.add(BundleStats(0.1, 0.2, 0.3, 0.4))
    assert (average.msg_rate_in, average.msg_rate_out) == (0.1, 0.2)
    assert (average.msg_throughput_in, average.msg_throughput_out) == (0.3, 0.4)


def test_averages_of_few_and_of_many_samples() -> None:
    average = TimeAverage(10)
    for rate in (10.0, 20.0, 60.0):
        average.add(BundleStats(msg_rate_in=rate))
    assert (average.samples, average.msg_rate_in) == (3, 30.0)
    for _ in range(20):
        average.add(BundleStats(msg_rate_in=30.0))
    assert average.samples == 10
    average.add(BundleStats(msg_rate_in=130.0))
    assert average.msg_rate_in == 40.0  # (9 * 30 + 130) / 10


def test_a_spike_weighs_a_tenth_and_a_thousandth() -> None:
    load = BundleData()
    for _ in range(1200):
        load.add(BundleStats(msg_rate_out=100.0, topics=3))
    load.add(BundleStats(msg_rate_out=1100.0, topics=4))
    assert load.short.msg_rate_out == 200.0
    assert load.long.msg_rate_out == 101.0
    assert (load.short.samples, load.long.samples, load.topics) == (10, 1000, 4)


@given(st.floats(0, 1e12, allow_nan=False), st.integers(1, 50), st.sampled_from([1, 2, 10, 1000]))
def test_a_constant_input_is_the_average(value: float, count: int, samples_max: int) -> None:
    average = TimeAverage(samples_max)
    for _ in range(count):
        average.add(BundleStats(value, value, value, value))
    assert (average.msg_rate_in, average.msg_throughput_out) == (value, value)
    assert average.samples == min(count, samples_max)


def test_a_quota_is_as_weighty_as_a_full_history() -> None:
    load = BundleData.of_quota(DEFAULT_QUOTA)
    assert (load.short.rate, load.long.throughput) == (160.0, 400_000.0)
    load.add(BundleStats())
    assert load.short.rate == 144.0  # 9/10
    assert load.long.rate == pytest.approx(159.84)  # 999/1000


def test_namespaces_of_bundles() -> None:
    assert namespace_of("public/default/0x00000000_0x08000000") == "public/default"
    assert namespace_of("pulsar/c/b1:8080/0x00000000_0xffffffff") == "pulsar/c/b1:8080"


@pytest.mark.parametrize(
    ("change", "percent"),
    [
        ({}, 0.0),
        ({"msg_rate_in": 60.0, "msg_rate_out": 45.0}, 5.0),  # 100 to 105 together
        ({"msg_throughput_out": 200.0}, 20.0),
        ({"bundles": [str(number) for number in range(7)]}, 30.0),
        ({"cpu": ResourceUsage(70, 200)}, 15.0),  # 20 to 35 percent: points, not a ratio
        ({"cpu": ResourceUsage(0, 200)}, 10.0),  # 20 to 10: the network's share is left
    ],
)
def test_largest_change(change: dict[str, object], percent: float) -> None:
    now = replace(REPORT, **change)  # type: ignore[arg-type]
    assert largest_change(REPORT, now, WEIGHTS) == pytest.approx(percent)


def test_the_first_message_is_an_unlimited_change() -> None:
    idle = BrokerLoad("b")
    assert largest_change(idle, idle, WEIGHTS) == 0.0
    assert largest_change(idle, replace(idle, msg_rate_in=0.1), WEIGHTS) == math.inf


@pytest.mark.parametrize(
    ("age_s", "rate", "bundles", "due"),
    [
        (899.9, 100.0, 10, False),
        (900.0, 100.0, 10, True),  # 15 minutes
        (5.0, 110.0, 10, False),  # not above ten percent
        (5.0, 110.1, 10, True),
        (4.9, 500.0, 10, False),  # too soon
        (59.9, 100.0, 9, False),  # 10 of 10 bundles are not 10 %
        (60.0, 100.0, 9, True),
        (60.0, 100.0, 10, False),
    ],
)
def test_when_a_report_is_due(age_s: float, rate: float, bundles: int, due: bool) -> None:
    now = replace(REPORT, msg_rate_in=rate, bundles=REPORT.bundles[:bundles])
    assert report_due(REPORT, age_s, now, CONFIG, WEIGHTS) is due
    assert report_due(None, age_s, now, CONFIG, WEIGHTS)


def test_strategies_may_be_named_as_java_classes() -> None:
    java = "org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder"
    assert strategy_name(java, SHEDDERS) == "ThresholdShedder"
    BalancerConfig(load_balancer_load_shedding_strategy=java)


@pytest.mark.parametrize(
    "settings",
    [
        {"load_balancer_load_shedding_strategy": "RandomShedder"},
        {"load_balancer_load_placement_strategy": "OverloadShedder"},
        {"max_unload_percentage": 20},
        {"load_balancer_history_resource_percentage": 90},
        {"load_balancer_broker_load_target_std": math.nan},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSettingError):
        BalancerConfig(**settings)  # type: ignore[arg-type]
