"""The broker itself: loaded topics, their loading, creation and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.config import BrokerConfig
    from broker.protocol.topic_name import TopicName
    from broker.service.resources import Resources
    from broker.service.topic import Topic
    from bundles.ownership import OwnershipService
    from managed_ledger.factory import ManagedLedgerFactory
    from metadata.store import MetadataStore

__all__ = ["BrokerService"]


class BrokerService:
    """Everything a connection, an HTTP call or a WebSocket asks of this broker."""

    config: BrokerConfig
    store: MetadataStore
    ledgers: ManagedLedgerFactory
    bundles: OwnershipService
    resources: Resources
    clock: Callable[[], int]
    """Wall clock, milliseconds since 1970."""
    service_url: str
    web_url: str
    cluster: str
    topics: dict[str, Topic]

    async def start(self) -> None:
        """Bootstrap tenants and namespaces; from here on requests are served."""
        raise NotImplementedError

    async def listen(self, host: str, port: int) -> int:
        """Serve the binary protocol; returns the port (0 picks a free one)."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop listening, unload every topic, close every connection."""
        raise NotImplementedError

    async def get_topic(self, name: TopicName, *, create: bool) -> Topic:
        """The loaded topic, loading (and with ``create`` creating) it first.

        Raises:
            TopicNotFoundError: absent, and not to be created.
            ServiceNotReadyError: another broker owns it, or it could not be loaded in time.
        """
        raise NotImplementedError

    async def create_topic(
        self, name: TopicName, properties: Mapping[str, str] | None = None
    ) -> None:
        raise NotImplementedError

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        raise NotImplementedError

    async def unload_topic(self, name: TopicName) -> None:
        raise NotImplementedError

    async def topic_exists(self, name: TopicName) -> bool:
        raise NotImplementedError

    async def list_topics(self, namespace: str, mode: str = "persistent") -> list[str]:
        """Full names; mode: persistent, non-persistent or all. System topics are included."""
        raise NotImplementedError

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        raise NotImplementedError

    async def partitions(self, name: TopicName) -> int | None:
        """Partition count, None when there is no partitioned topic of that name."""
        raise NotImplementedError

    async def update_partitions(self, name: TopicName, partitions: int) -> None:
        raise NotImplementedError

    async def delete_partitioned_topic(self, name: TopicName, *, force: bool = False) -> None:
        raise NotImplementedError
