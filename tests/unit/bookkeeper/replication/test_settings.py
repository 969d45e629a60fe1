"""Settings of auto-recovery: names, units, what is refused."""

import logging

import pytest

from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.replication.settings import (
    ENVIRONMENT_PREFIXES,
    KEYS,
    AutoRecoverySettings,
    AutoRecoverySettingsError,
)


def test_bookkeepers_keys_in_their_units() -> None:
    settings = AutoRecoverySettings.load(
        {
            "lostBookieRecoveryDelay": "300",
            "auditorPeriodicCheckInterval": "7200",
            "auditorPeriodicBookieCheckInterval": "3600",
            "auditorPeriodicPlacementPolicyCheckInterval": "60",
            "auditorReplicasCheckInterval": "70",
            "auditorLedgerVerificationPercentage": "20",
            "underreplicatedLedgerRecoveryGracePeriod": "80",
            "openLedgerRereplicationGracePeriod": "45000",
            "rereplicationEntryBatchSize": "10",
            "replicationRateByBytes": "1000000",
            "zkServers": "one:2181",
        },
        {"zoneLowWatermark": "0.3", "zone_high_watermark": "0.9", "zoneSettleTime": "2.5"},
    )
    auditor, checks, replication = settings.auditor(), settings.checks(), settings.replication()
    assert auditor.lost_bookie_delay_ms == 300_000
    assert auditor.zones.low_watermark == 0.3
    assert auditor.zones.high_watermark == 0.9
    assert auditor.zones.settle_ms == 2500
    assert (checks.all_ledgers_s, checks.bookie_check_s) == (7200, 3600)
    assert (checks.placement_s, checks.replicas_s) == (60, 70)
    assert (checks.share, checks.grace_s) == (0.2, 80)
    assert replication.open_ledger_grace_s == 45
    assert (replication.batch_entries, replication.bytes_per_s) == (10, 1_000_000)
    assert settings.metadata_service_uri == "one:2181"


def test_defaults() -> None:
    settings = AutoRecoverySettings()
    assert settings.replication().bytes_per_s == 0
    assert settings.auditor().zones.auto_return
    assert settings.auditor().zones.holds_all
    assert not AutoRecoverySettings(zone_down_scope="zone").auditor().zones.holds_all
    assert settings.tls() is None
    assert ":" in settings.name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zoneLowWatermark", "0.9"),
        ("zoneHighWatermark", "two thirds"),
        ("zoneSettleTime", "-1"),
        ("zoneDownScope", "planet"),
        ("lostBookieRecoveryDelay", "nan"),
        ("auditorLedgerVerificationPercentage", "101"),
        ("replicationWorkers", "-1"),
        ("httpServerPort", "65536"),
        ("logLevel", "LOUD"),
        ("ensemblePlacementPolicy", "com.example.MyPolicy"),
        ("auditorEnabled", "perhaps"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: str) -> None:
    with pytest.raises(AutoRecoverySettingsError):
        AutoRecoverySettings.load({key: value})


def test_a_settle_time_in_milliseconds_is_noticed() -> None:
    """15000 would let every loss wait for four hours."""
    with pytest.raises(AutoRecoverySettingsError, match=r"zoneSettleTime=15000: it is in seconds"):
        AutoRecoverySettings.load({"zoneSettleTime": "15000"})
    assert AutoRecoverySettings.load({"zoneSettleTime": "600"}).auditor().zones.settle_ms == 600_000


def test_a_process_with_nothing_to_do_is_refused() -> None:
    with pytest.raises(AutoRecoverySettingsError, match="nothing to do"):
        AutoRecoverySettings.load({"replicationWorkers": "0", "auditorEnabled": "false"})


def test_one_file_for_bookies_and_auto_recovery(caplog: pytest.LogCaptureFixture) -> None:
    """Each takes its own keys; only a process that is one of them tells what nobody knows."""
    file = {"lostBookieRecoveryDelay": "5", "journalMaxSizeMB": "64", "nobodysKey": "1"}
    with caplog.at_level(logging.WARNING):
        BookieSettings.load(file, others=KEYS.knows)
        AutoRecoverySettings.load(file, is_part=True)
    assert [record.getMessage() for record in caplog.records] == [
        "ignored 1 unknown settings: nobodysKey"
    ]


def test_environment() -> None:
    variables = {
        "BOOKIE_lostBookieRecoveryDelay": "1",
        "AUTORECOVERY_lostBookieRecoveryDelay": "2",
        "BOOKIE_journalMaxSizeMB": "64",
        "PATH": "/bin",
    }
    found = KEYS.environment(variables, ENVIRONMENT_PREFIXES)
    assert found == {"lostBookieRecoveryDelay": "2"}
