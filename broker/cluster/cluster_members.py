"""The members of the cluster: its brokers and their leader, as the metadata store has them.

Read at each call; nothing is kept, so a broker that has left is never named for longer than
its session lasts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import orjson

from magnetar.bundles.lookup import BrokerLookup
from magnetar.loadbalance.documents import broker_load_of, parse
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.leader import LEADER_PATH, LeaderBroker
from magnetar.loadbalance.model import BrokerLoad
from magnetar.loadbalance.registry import BROKERS_ROOT

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger(__name__)


class ClusterMembers:
    """All methods raise MetadataError."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    async def ids(self) -> list[str]:
        """``host:port`` of the web addresses of all live brokers, sorted."""
        service = self._service
        found = set(await service.store.children(BROKERS_ROOT))
        if service.ready:
            found.add(service.broker_id)  # asked, so alive, also before its node is written
        return sorted(found)

    async def find(self, broker_id: str) -> BrokerLookup | None:
        """Where a broker is reached; None: it isn't live."""
        service = self._service
        if broker_id == service.broker_id:
            return service.bundles.broker
        if (load := await self.load(broker_id)) is None:
            return None
        return BrokerLookup(
            load.pulsar_service_url,
            load.pulsar_service_url_tls,
            load.web_service_url,
            load.web_service_url_tls,
        )

    async def load(self, broker_id: str) -> BrokerLoad | None:
        """What a broker last said of itself; None: it isn't live."""
        path = f"{BROKERS_ROOT}/{broker_id}"
        if (node := await self._service.store.get(path)) is None:
            return None
        try:
            return broker_load_of(broker_id, parse(path, node.value))
        except InvalidDocumentError as error:
            logger.warning("%s: %s", path, error)
            return None

    async def leader(self) -> dict[str, str] | None:
        """LeaderBroker, of the broker alone if there are no others; None: none is elected now."""
        service = self._service
        if (node := await service.store.get(LEADER_PATH)) is not None:
            leader = LeaderBroker.decode(node.value)
            return None if leader is None else orjson.loads(leader.encode())
        if await self.ids() != [service.broker_id]:
            return None
        return {"serviceUrl": service.web_url or service.web_url_tls, "brokerId": service.broker_id}
