"""Collects what is known of a cluster: its brokers, its bookies, its ledgers to repair."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from magnetar.bookkeeper.client.bookie_states import BookieState, bookie_states
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.broker.cluster.broker_client import (
    BrokerCall,
    BrokerEndpoint,
    BrokerRefusedError,
)
from magnetar.broker.doctor.broker_checks import CredentialFacts
from magnetar.broker.doctor.cluster_checks import PeerFacts, clock_between
from magnetar.broker.doctor.credentials import server_facts, stated_facts, zookeeper_settings
from magnetar.broker.doctor.findings import Report
from magnetar.broker.doctor.group_collector import collect_groups
from magnetar.broker.doctor.storage_checks import BookieFacts, RepairFacts, StorageFacts
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OWNERS_ROOT

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

BROKER_PATH: Final = "/admin/v2/doctor/broker"
ANSWER_S: Final = 5.0
"""For another broker, or a bookie."""
BUNDLES_MAX: Final = 4096
"""Owners of bundles that are read; each is a read of the metadata store."""
_OWNERS_DEPTH: Final = 3  # tenant, namespace, range
_MARKERS_MAX: Final = 200
"""Ledgers to repair that are looked at one by one."""


class TooManyError(BrokerError):
    """More than are looked at; the text says of which."""


async def collect_peers(service: BrokerService) -> list[tuple[PeerFacts, Report]]:
    """The other brokers, each with its report of itself. Raises MetadataError."""
    others = [each for each in await service.cluster_members.ids() if each != service.broker_id]
    answers = await asyncio.gather(*(_ask(service, each) for each in others))
    return [each for each in answers if each is not None]


async def _ask(service: BrokerService, broker_id: str) -> tuple[PeerFacts, Report] | None:
    """None: it has left."""
    if (load := await service.cluster_members.load(broker_id)) is None:
        return None
    peer = BrokerEndpoint(load.web_service_url or None, load.web_service_url_tls or None)
    facts, report = PeerFacts(broker_id, version=load.version), Report()
    asked_ms = service.wall_clock()
    try:
        answer = await service.broker_client.ask(
            peer, BrokerCall("GET", BROKER_PATH), until_s=service.loop.time() + ANSWER_S
        )
        clock = clock_between(asked_ms, int(answer["clockMs"]), service.wall_clock())
        facts = replace(facts, settings=dict(answer["settings"]), clock=clock)
        report = Report.of_json(answer)
    except BrokerRefusedError as error:
        why = "it is of an earlier release" if error.http_status == 404 else str(error)
        report.not_looked_at.append(f"{broker_id}: {why}")
    except ServiceNotReadyError as error:
        facts = replace(facts, silence=str(error))
    except (KeyError, TypeError, ValueError) as error:
        report.not_looked_at.append(f"{broker_id}: a strange answer: {error!r}")
    return facts, report


async def collect_ownerless(service: BrokerService) -> dict[str, str]:
    """Bundles whose owner isn't registered, and that owner. Raises MetadataError."""
    store, live = service.store, set(await service.cluster_members.ids())
    nodes = [OWNERS_ROOT]
    for _ in range(_OWNERS_DEPTH):
        listed = await asyncio.gather(*map(store.children, nodes))
        nodes = [f"{up}/{each}" for up, names in zip(nodes, listed, strict=True) for each in names]
        if len(nodes) > BUNDLES_MAX:
            raise TooManyError(f"more than {BUNDLES_MAX}")
    owners = {}
    for path, node in zip(nodes, await asyncio.gather(*map(store.get, nodes)), strict=True):
        if node is not None and node.value:
            owners[path.removeprefix(f"{OWNERS_ROOT}/")] = BrokerEndpoint.of(
                BrokerLookup.decode(node.value)
            ).name.rstrip("/")
    return {bundle: owner for bundle, owner in owners.items() if owner not in live}


async def collect_closed(service: BrokerService, ownerless: Mapping[str, str]) -> dict[int, str]:
    """Coordinators of transactions that no broker has, and why. Raises MetadataError."""
    coordinators, found = service.transactions, dict[int, str]()
    if coordinators is None:
        return found
    for number in range(await coordinators.count()):
        bundle = await service.bundles.bundle_of(str(coordinators.partition(number)))
        if (owner := ownerless.get(bundle)) is not None:
            found[number] = f"its bundle belongs to {owner}, which isn't a broker of the cluster"
        elif await service.bundles.owner_of_bundle(bundle) is None:
            found[number] = "no broker has its bundle"
    return found


async def collect_storage(service: BrokerService) -> StorageFacts:
    """Raises MetadataError."""
    config = service.config
    is_cluster, bookies = service.sharing is not None, service.bookie_cluster
    load = await service.cluster_members.load(service.broker_id) if is_cluster else None
    found = await _bookies(service)
    return StorageFacts(
        found,
        config.managed_ledger_default_ensemble_size,
        config.managed_ledger_default_write_quorum,
        await _repair(service) if bookies is not None and bookies.has_auto_recovery else None,
        f"--metadata {config.apache_store_url or config.metadata_store_url}" if is_cluster else "",
        "" if load is None else load.version,
        [*await _shown_certificates(service), *await _stated_credentials(service)],
        service.wall_clock(),
        await collect_groups(service, found),
    )


async def _shown_certificates(service: BrokerService) -> list[CredentialFacts]:
    """Those of the servers that this broker uses: bookies and ZooKeeper, where by TLS."""
    config, bookies = service.config, service.bookie_cluster
    asked: list[tuple[str, tuple[str, int], tuple[str, str] | None]] = []
    if bookies is not None and config.bookkeeper_tls_trust_certs_file_path:
        files = config.bookkeeper_tls_certificate_file_path, config.bookkeeper_tls_key_file_path
        for name in sorted(bookies.pool.registered):
            info = bookies.pool.infos.get(name)
            if info is not None and info.address is not None:
                asked.append((f"bookie {name}", info.address, files if all(files) else None))
    store = await asyncio.to_thread(zookeeper_settings, config)
    if store is not None and store.tls is not None:
        for host, port in store.servers:
            asked.append((f"ZooKeeper {host}:{port}", (host, port), None))
    found = await asyncio.gather(*(asyncio.to_thread(server_facts, *each) for each in asked))
    return [each for each in found if each is not None]


async def _stated_credentials(service: BrokerService) -> list[CredentialFacts]:
    """Of processes of auto-recovery, as they say themselves. Raises MetadataError."""
    if (bookies := service.bookie_cluster) is None:
        return []
    # Loaded here: a broker doesn't need it otherwise.
    from magnetar.bookkeeper.replication.stated_ends import stated_ends

    return [stated_facts(each) for each in await stated_ends(bookies.store)]


async def _bookies(service: BrokerService) -> list[BookieFacts]:
    bookies = service.bookie_cluster
    if bookies is None:
        return []
    pool = bookies.pool
    states = await bookie_states(
        pool, bookies.store, answer_s=ANSWER_S, clock_ms=service.wall_clock
    )
    data = await asyncio.gather(*(_data(pool, each) for each in states))
    return [
        replace(_facts_of(state), data=found, is_failing=state.is_quarantined)
        for state, found in zip(states, data, strict=True)
    ]


async def _data(pool: BookiePool, state: BookieState) -> dict[str, Any] | None:
    """What a bookie knows of the state of its data; None: it doesn't tell."""
    if state.status is None:
        return None
    try:
        async with asyncio.timeout(ANSWER_S):
            found = orjson.loads(await pool.client(state.bookie_id).check_data())
    except (BookkeeperError, TimeoutError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _facts_of(state: BookieState) -> BookieFacts:
    name, found = state.bookie_id, state.status
    if not state.is_registered:
        return BookieFacts(name, is_registered=False)
    if found is None:
        return BookieFacts(name, is_read_only=not state.is_writable, silence=state.error)
    total = found.total_bytes
    used = (total - found.free_bytes) / total if total else None
    clock = None
    if found.clock_ms:
        clock = clock_between(state.asked_ms, found.clock_ms, state.answered_ms)
    return BookieFacts(
        name,
        is_read_only=found.read_only,
        used=used,
        free_bytes=found.free_bytes if total else None,
        clock=clock,
        version=found.version,
    )


async def _repair(service: BrokerService) -> RepairFacts:
    # Loaded here: a broker doesn't need it otherwise.
    from magnetar.bookkeeper.replication.repair_state import repair_state
    from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore

    cluster = service.bookie_cluster
    assert cluster is not None  # the caller has looked
    store, layout = cluster.store, cluster.ledgers().layout
    state = await repair_state(store, service.clock, _MARKERS_MAX, layout)
    markers = UnderReplicationStore(store, service.clock, layout)
    read = [await markers.read(ledger_id) for ledger_id in state.first]
    found = [each for each in read if each is not None]
    return RepairFacts(
        state.off_reason,
        state.off_since_ms,
        state.auditor,
        state.marked,
        await _without_replica(service, state.first),
        min((each.created_ms for each in found), default=None),
        sorted({each.reason for each in found if each.reason}),
    )


async def _without_replica(service: BrokerService, ledger_ids: Iterable[int]) -> list[int]:
    """Those of the ledgers that have a segment without any bookie that is there."""
    bookies = service.bookie_cluster
    assert bookies is not None
    ledgers, pool = bookies.ledgers(), bookies.pool
    lost = []
    for ledger_id in ledger_ids:
        found = await ledgers.read(ledger_id)
        if found is not None and any(
            not any(map(pool.is_registered, segment.bookies)) for segment in found.metadata.segments
        ):
            lost.append(ledger_id)
    return lost
