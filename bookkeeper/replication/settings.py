"""Settings of auto-recovery: bookkeeper.conf's keys, in the units they have there.

The same keys hold for ``magnetar autorecovery`` and inside a bookie with
``autoRecoveryDaemonEnabled=true``.
"""

import logging
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.client.placement import PlacementConfig, RackRules, RegionRules, ZoneRules
from magnetar.bookkeeper.client.placement.config import RACK_AWARE, policy_named
from magnetar.bookkeeper.client.placement.isolation import groups_of_settings
from magnetar.bookkeeper.environment import PREFIXES
from magnetar.bookkeeper.network_location import place
from magnetar.bookkeeper.process_settings import ALIASES, ProcessSettings, key_of
from magnetar.bookkeeper.replication.auditor_checks import ChecksConfig
from magnetar.bookkeeper.replication.auditor_core import AuditorConfig
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.zones import ZoneConfig
from magnetar.bookkeeper.settings_parser import SettingsParser, raising
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport_grpc.config import TransportConfig

_log = logging.getLogger(__name__)

ENVIRONMENT_PREFIXES: Final = (
    *(*PREFIXES, "BOOKIE_", "MAGNETAR_BOOKIE_"),
    *("AUTORECOVERY_", "MAGNETAR_AUTORECOVERY_"),
)
# Longer is a mistake: most keys beside it are in milliseconds. To wait for hours is what
# lostBookieRecoveryDelay is for.
_ZONE_SETTLE_S_MAX: Final = 600.0

_TIMES: Final = (
    "lost_bookie_recovery_delay",
    "auditor_periodic_bookie_check_interval",
    "auditor_periodic_check_interval",
    "auditor_periodic_placement_policy_check_interval",
    "auditor_replicas_check_interval",
    "underreplicated_ledger_recovery_grace_period",
    "zone_settle_time",
)


class AutoRecoverySettingsError(ValueError):
    """A setting can't be used; the text names the key and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoverySettings(ProcessSettings):
    """Attribute names are the keys in snake case; "own key" marks what bookkeeper.conf lacks.

    ``ProcessSettings`` has more of them, a bookie's.
    """

    # --- name and place
    auto_recovery_id: str = ""  # own key; "": host name and process id
    network_location: str = ""  # own key: /zone/upgrade-domain of this process

    # --- auditor
    auditor_enabled: bool = True  # own key: take part in the election
    lost_bookie_recovery_delay: float = 0.0  # s; an operator's, in the store, wins
    auditor_periodic_bookie_check_interval: float = 86_400.0  # s
    auditor_periodic_check_interval: float = 604_800.0  # s
    auditor_ledger_verification_percentage: float = 0.0
    auditor_periodic_placement_policy_check_interval: float = 0.0  # s
    auditor_replicas_check_interval: float = 0.0  # s
    underreplicated_ledger_recovery_grace_period: float = 0.0  # s

    # --- zones (own keys)
    zone_low_watermark: float = 0.5
    zone_high_watermark: float = 0.65
    zone_settle_time: float = 15.0  # s, at most _ZONE_SETTLE_S_MAX
    zone_lost_bookies_min: int = 2
    zone_auto_return: bool = True
    zone_down_scope: str = "cluster"  # what a lost zone switches off; or "zone": its own repair

    # --- workers
    replication_workers: int = 1  # own key; 0: this process only audits
    replication_concurrent_ledgers: int = 4  # own key: of one worker
    replication_rate_by_bytes: int = -1  # a second and worker; -1 or 0: no limit
    rereplication_entry_batch_size: int = 500
    open_ledger_rereplication_grace_period: int = 30_000  # ms
    rw_rereplicate_backoff_ms: int = 9_375

    # --- placement of the new copies: as the ledgers' writers have it
    ensemble_placement_policy: str = RACK_AWARE  # or random, region-aware, zone-aware
    min_num_racks_per_write_quorum: int = 2
    enforce_min_num_racks_per_write_quorum: bool = False
    min_num_zones_per_write_quorum: int = 2
    desired_num_zones_per_write_quorum: int = 3
    enforce_strict_zoneaware_placement: bool = True
    repp_minimum_regions_for_durability: int = 2
    isolation_bookie_groups: str = ""  # with commas, as the two of Pulsar's policy
    secondary_isolation_bookie_groups: str = ""
    disk_weight_based_placement_enabled: bool = False
    bookie_max_weight_multiple_for_weight_based_placement: float = 3.0
    get_bookie_info_interval_seconds: int = 86_400
    get_bookie_info_retry_interval_seconds: int = 60

    # --- how bookies are talked to
    client_timeout_in_seconds: float = 30.0  # own key
    client_certificate_path: str = ""  # own keys; the broker's bookkeeperTLS... fit, too
    client_key_path: str = ""
    client_trust_path: str = ""

    def __post_init__(self) -> None:
        if self.replication_workers < 0 or (
            not self.replication_workers and not self.auditor_enabled
        ):
            raise AutoRecoverySettingsError(
                f"replicationWorkers={self.replication_workers}, auditorEnabled="
                f"{str(self.auditor_enabled).lower()}: nothing to do"
            )
        with raising(AutoRecoverySettingsError):
            self.check_process()
            self._check_times()
            self.auditor(), self.replication(), self.placement(), self.tls()

    def _check_times(self) -> None:
        for name in _TIMES:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise AutoRecoverySettingsError(f"{key_of(name)}={value}: not a time in seconds")
        if self.zone_settle_time > _ZONE_SETTLE_S_MAX:
            raise AutoRecoverySettingsError(
                f"zoneSettleTime={self.zone_settle_time:g}: it is in seconds, and "
                f"{_ZONE_SETTLE_S_MAX:g} at most"
            )
        if self.zone_down_scope not in ("cluster", "zone"):
            raise AutoRecoverySettingsError(
                f"zoneDownScope={self.zone_down_scope}: cluster or zone"
            )
        if not 0 <= self.auditor_ledger_verification_percentage <= 100:
            raise AutoRecoverySettingsError(
                "auditorLedgerVerificationPercentage="
                f"{self.auditor_ledger_verification_percentage}: 0 to 100"
            )

    @classmethod
    def load(cls, *sources: Mapping[str, str], is_part: bool = False) -> "AutoRecoverySettings":
        """Keys and texts; a later source wins.

        Args:
            is_part: other parts of the process take further keys; else unknown ones are told.

        Raises:
            AutoRecoverySettingsError: a value doesn't fit its key.
        """
        values, unknown = KEYS.parse(sources)
        if unknown and not is_part:
            names = ", ".join(sorted(unknown))
            _log.warning("ignored %d unknown settings: %s", len(unknown), names)
        return cls(**values)

    @property
    def name(self) -> str:
        """Of this candidate: no other process may have it."""
        return self.auto_recovery_id or f"{socket.gethostname()}:{os.getpid()}"

    def location(self) -> str:
        """``/zone/upgrade-domain`` of this process; "": not known."""
        return place(self.network_location, self.zone, self.upgrade_domain)

    def auditor(self) -> AuditorConfig:
        return AuditorConfig(
            round(self.lost_bookie_recovery_delay * 1000),
            ZoneConfig(
                low_watermark=self.zone_low_watermark,
                high_watermark=self.zone_high_watermark,
                settle_ms=round(self.zone_settle_time * 1000),
                losses_min=self.zone_lost_bookies_min,
                auto_return=self.zone_auto_return,
                holds_all=self.zone_down_scope == "cluster",
            ),
        )

    def checks(self) -> ChecksConfig:
        return ChecksConfig(
            bookie_check_s=self.auditor_periodic_bookie_check_interval,
            all_ledgers_s=self.auditor_periodic_check_interval,
            share=self.auditor_ledger_verification_percentage / 100,
            placement_s=self.auditor_periodic_placement_policy_check_interval,
            replicas_s=self.auditor_replicas_check_interval,
            grace_s=self.underreplicated_ledger_recovery_grace_period,
            request_timeout_s=self.client_timeout_in_seconds,
        )

    def replication(self) -> ReplicationConfig:
        backoff_s = self.rw_rereplicate_backoff_ms / 1000
        return ReplicationConfig(
            concurrent_ledgers=self.replication_concurrent_ledgers,
            bytes_per_s=max(0, self.replication_rate_by_bytes),
            batch_entries=self.rereplication_entry_batch_size,
            request_timeout_s=self.client_timeout_in_seconds,
            open_ledger_grace_s=self.open_ledger_rereplication_grace_period / 1000,
            backoff_min_s=backoff_s,
            backoff_max_s=max(300.0, backoff_s),
        )

    def placement(self) -> PlacementConfig:
        try:
            policy = policy_named(self.ensemble_placement_policy or RACK_AWARE)
        except ValueError as error:
            raise AutoRecoverySettingsError(f"ensemblePlacementPolicy: {error}") from error
        return PlacementConfig(
            policy,
            RackRules(
                self.min_num_racks_per_write_quorum, self.enforce_min_num_racks_per_write_quorum
            ),
            ZoneRules(
                self.min_num_zones_per_write_quorum,
                self.desired_num_zones_per_write_quorum,
                self.enforce_strict_zoneaware_placement,
            ),
            self.disk_weight_based_placement_enabled,
            self.bookie_max_weight_multiple_for_weight_based_placement,
            float(self.get_bookie_info_interval_seconds),
            float(self.get_bookie_info_retry_interval_seconds),
            regions=RegionRules(self.repp_minimum_regions_for_durability),
            isolation=groups_of_settings(
                self.isolation_bookie_groups, self.secondary_isolation_bookie_groups
            ),
        )

    def transport(self) -> TransportConfig:
        return TransportConfig(
            add_timeout_s=self.client_timeout_in_seconds,
            read_timeout_s=self.client_timeout_in_seconds,
            entry_bytes_max=self.entry_bytes_max,
            token=self.client_token(),
        )

    @raising(AutoRecoverySettingsError)
    def authenticator(self) -> BookieAuthenticator | None:
        """Judges callers of the HTTP port; None: every caller is let in.

        Raises:
            AutoRecoverySettingsError: settings that can't be used.
        """
        settings = self.auth_settings()
        return None if settings is None else BookieAuthenticator(settings)

    def tls(self) -> TlsFiles | None:
        """None: bookies are talked to without TLS."""
        if not self.client_certificate_path and not self.client_trust_path:
            return None
        return TlsFiles(self.client_certificate_path, self.client_key_path, self.client_trust_path)


KEYS: Final = SettingsParser(
    AutoRecoverySettings,
    {
        **ALIASES,
        # The broker's names: the same lines may stand in both files.
        **{
            f"bookkeeper_{name}": name
            for name in (
                *("ensemble_placement_policy", "disk_weight_based_placement_enabled"),
                *("min_num_zones_per_write_quorum", "desired_num_zones_per_write_quorum"),
                "enforce_strict_zoneaware_placement",
                "bookie_max_weight_multiple_for_weight_based_placement",
            )
        },
        **{
            f"bookkeeper_client_{name}": name
            for name in (
                *("min_num_racks_per_write_quorum", "enforce_min_num_racks_per_write_quorum"),
                *("get_bookie_info_interval_seconds", "get_bookie_info_retry_interval_seconds"),
            )
        },
        "bookkeeperClientIsolationGroups": "isolation_bookie_groups",
        "bookkeeperClientSecondaryIsolationGroups": "secondary_isolation_bookie_groups",
        "bookkeeperClientTimeoutInSeconds": "client_timeout_in_seconds",
        "bookkeeperTLSTrustCertsFilePath": "client_trust_path",
        "bookkeeperTLSCertificateFilePath": "client_certificate_path",
        "bookkeeperTLSKeyFilePath": "client_key_path",
        "clientTrustStore": "client_trust_path",
        "clientKeyStore": "client_key_path",
    },
    AutoRecoverySettingsError,
)
