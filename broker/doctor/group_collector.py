"""Collects which groups of bookies ledgers are kept on, and which bookies are in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.bookkeeper.client.placement.isolation import (
    IsolationGroups,
    groups_of_ledger,
    groups_of_settings,
    metadata_of_groups,
)
from magnetar.broker.doctor.group_checks import GroupedLedgers, GroupFacts
from magnetar.broker.doctor.storage_checks import BookieFacts
from magnetar.bundles.bookie_affinity import BookieAffinity
from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.local_policies import LOCAL_POLICIES_ROOT, LocalPolicies

if TYPE_CHECKING:
    from magnetar.broker.policies.effective import PersistencePolicies
    from magnetar.broker.service.broker_service import BrokerService

NAMESPACES_MAX: Final = 4096
"""Whose local policies are read; the others aren't looked at."""
_READS: Final = 256
_SYSTEM: Final = "pulsar/system"  # its topics use all bookies
_log = logging.getLogger(__name__)


async def collect_groups(service: BrokerService, bookies: Sequence[BookieFacts]) -> GroupFacts:
    """Raises MetadataError."""
    cluster, config, ledgers = service.bookie_cluster, service.config, list[GroupedLedgers]()
    if cluster is None or not bookies:
        return GroupFacts()
    has_others = False
    async for namespace, affinity in _affinities(service):
        if affinity is None:
            has_others = has_others or namespace != _SYSTEM
        elif (policies := await service.resources.policies(namespace)) is not None:
            metadata = metadata_of_groups(affinity.primary, affinity.secondary)
            needed = _needed(service, policies.persistence)
            if (groups := groups_of_ledger(metadata)) is not None:
                ledgers.append(GroupedLedgers(namespace, groups, needed))
    is_strict = config.strict_bookie_affinity_enabled
    groups = groups_of_settings(
        config.bookkeeper_client_isolation_groups,
        config.bookkeeper_client_secondary_isolation_groups,
    )
    if has_others and (is_strict or groups is not None):
        others = IsolationGroups(frozenset()) if is_strict or groups is None else groups
        needed = _needed(service, service.policies.defaults.persistence)
        subject = "namespaces without groups of bookies"
        ledgers.append(GroupedLedgers(subject, others, needed, is_strict))
    pool = cluster.pool
    writable = [each.bookie_id for each in bookies if each.is_registered and not each.is_read_only]
    return GroupFacts(
        tuple(ledgers),
        {each.bookie_id: pool.groups_of(each.bookie_id) for each in bookies},
        {each: pool.location(each) or "" for each in writable},
    )


def _needed(service: BrokerService, persistence: PersistencePolicies) -> int:
    """Bookies that a new ledger needs at least."""
    if service.config.bookkeeper_opportunistic_striping:
        return min(persistence.ensemble, persistence.write_quorum)
    return persistence.ensemble


async def _affinities(service: BrokerService) -> AsyncIterator[tuple[str, BookieAffinity | None]]:
    """Of each namespace that was ever used. Read past the cache, which is for those in use."""
    store = service.store
    tenants = await store.children(LOCAL_POLICIES_ROOT)
    listed = await asyncio.gather(*(store.children(f"{LOCAL_POLICIES_ROOT}/{t}") for t in tenants))
    names = [f"{t}/{name}" for t, some in zip(tenants, listed, strict=True) for name in some]
    for start in range(0, min(len(names), NAMESPACES_MAX), _READS):
        part = names[start : start + _READS]
        nodes = await asyncio.gather(*(store.get(f"{LOCAL_POLICIES_ROOT}/{n}") for n in part))
        for namespace, node in zip(part, nodes, strict=True):
            try:
                if node is not None:
                    local = LocalPolicies.decode(namespace, node.value)
                    yield namespace, local.bookie_affinity
            except InvalidBundleError as error:
                _log.warning("groups of bookies: %s", error)
