"""How a topic's ledgers are stored: by its policies, the settings and its namespace's bookies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.bookkeeper.client.placement.isolation import ALL_BOOKIES, metadata_of_groups
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.protocol.stored_entries import PulsarEntries
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.bundles.errors import InvalidBundleError
from magnetar.managed_ledger.config import ManagedLedgerConfig, PlacementMetadata
from magnetar.metadata.errors import MetadataError

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.bundles.bookie_affinity import BookieAffinity
    from magnetar.bundles.local_policies import BundleFactory


@dataclass(frozen=True, slots=True)
class AffinityMetadata(PlacementMetadata):
    """That of a namespace's topics: as its local policies are now.

    Equal for topics of one namespace, so that what else changes a config is seen.

    Attributes:
        without_groups: of a namespace without bookie affinity.
    """

    factory: BundleFactory
    namespace: str
    without_groups: Mapping[str, bytes]

    async def read(self) -> Mapping[str, bytes]:
        try:
            return self._metadata_of(await self.factory.bookie_affinity(self.namespace))
        except InvalidBundleError as error:
            raise MetadataError(f"groups of bookies: {error}") from error

    def known(self) -> Mapping[str, bytes]:
        return self._metadata_of(self.factory.bookie_affinity_nowait(self.namespace))

    def _metadata_of(self, affinity: BookieAffinity | None) -> Mapping[str, bytes]:
        if affinity is None:
            return self.without_groups
        return metadata_of_groups(affinity.primary, affinity.secondary)


def _metadata_without_groups(name: TopicName, *, is_strict: bool) -> dict[str, bytes]:
    if not is_strict:
        return {}
    # As BrokerService.getManagedLedgerConfig: bookies of no group, but for system topics all.
    groups = ALL_BOOKIES if name.is_system else ""
    return metadata_of_groups(groups, groups)


def ledger_config(
    service: BrokerService, policies: EffectivePolicies, name: TopicName
) -> ManagedLedgerConfig:
    """How a topic with these policies stores its entries, now or from now on."""
    config = service.config
    persistence = policies.persistence
    write_quorum = min(persistence.write_quorum, persistence.ensemble)
    return ManagedLedgerConfig(
        ensemble_size=persistence.ensemble,
        write_quorum=write_quorum,
        ack_quorum=min(persistence.ack_quorum, write_quorum),
        password=config.managed_ledger_password.encode(),
        digest_type=config.digest_type,
        form=PulsarEntries(is_clock_ahead=service.virtual_clock is not None),
        placement_metadata=AffinityMetadata(
            service.bundles.factory,
            name.namespace,
            _metadata_without_groups(name, is_strict=config.strict_bookie_affinity_enabled),
        ),
        ledger_entries_max=config.managed_ledger_max_entries_per_ledger,
        ledger_bytes_max=config.managed_ledger_max_size_per_ledger_mbytes << 20,
        ledger_age_min_ms=config.managed_ledger_min_ledger_rollover_time_minutes * 60_000,
        ledger_age_max_ms=config.managed_ledger_max_ledger_rollover_time_minutes * 60_000,
        retention_ms=policies.retention.time_ms,
        retention_bytes=policies.retention.size_bytes,
        offload=policies.offload,
        cursor_ensemble_size=config.managed_ledger_default_ensemble_size,
        cursor_write_quorum=config.managed_ledger_default_write_quorum,
        cursor_ack_quorum=config.managed_ledger_default_ack_quorum,
        mark_delete_rate=policies.persistence.mark_delete_rate,
        cursor_ledger_entries_max=config.managed_ledger_cursor_max_entries_per_ledger,
        cursor_ledger_age_max_ms=config.managed_ledger_cursor_rollover_time_in_seconds * 1000,
    )
