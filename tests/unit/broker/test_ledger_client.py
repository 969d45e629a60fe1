"""From broker.conf's keys to how ledgers are read and written."""

import random

import pytest

from magnetar.bookkeeper.client.config import (
    ClientConfig,
    ReadConfig,
    SpeculationConfig,
    WriteConfig,
)
from magnetar.broker.bookie_client_settings import bookie_health, client_config
from magnetar.broker.config import BrokerConfig, ConfigError


def load(**keys: str) -> BrokerConfig:
    return BrokerConfig.load(environment={}, overrides=keys)


def test_only_the_order_of_reads_is_on_unless_something_is_set() -> None:
    assert client_config(load()) == ClientConfig(reads=ReadConfig(reorder=True))


def test_reads() -> None:
    config = load(
        bookkeeperClientReorderReadSequenceEnabled="false",
        bookkeeperNetworkLocation="/zone-a/ud1",
        bookkeeper_reorderThresholdPendingRequests="7",
        bookkeeper_bookieFailureHistoryExpirationMSec="5000",
        bookkeeperEnableStickyReads="false",
        bookkeeperClientSpeculativeReadTimeoutInMillis="150",
        bookkeeper_maxSpeculativeReadTimeout="900",
    )
    assert client_config(config).reads == ReadConfig(
        reorder=False,
        network_location="/zone-a/ud1",
        pending_max=7,
        slow_memory_ms=5000,
        sticky=False,
        speculation=SpeculationConfig(150, 900),
    )


def test_writes() -> None:
    config = load(
        bookkeeperExplicitLacIntervalInMills="20",
        bookkeeper_addEntryQuorumTimeoutSec="30",
        bookkeeper_maxAllowedEnsembleChanges="5",
        bookkeeper_delayEnsembleChange="true",
    )
    assert client_config(config).writes == WriteConfig(20, 30_000, 5, True)


def test_figures_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="bookkeeper"):
        client_config(load(bookkeeperExplicitLacIntervalInMills="-5"))


def test_the_memory_of_failures_is_the_same_for_placement_and_reads() -> None:
    config = load(bookkeeper_bookieFailureHistoryExpirationMSec="5000")
    now_ms = 0
    health = bookie_health(config, lambda: now_ms, random.Random(1))
    health.note_error("b1")
    now_ms = 4999
    assert health.recent_failures("b1") == 1
    now_ms = 5000
    assert health.recent_failures("b1") == 0
