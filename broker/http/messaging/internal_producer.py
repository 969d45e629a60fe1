"""A topic by the name a client knows: one producer, or one per partition with key routing."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.cluster.broker_connection import BrokerConnections
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.broker.protocol.messages import OutgoingMessage
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import SchemaDefinition

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService


class InternalProducer:
    """Producers of a topic's partitions (one, with index -1, when it has none)."""

    def __init__(
        self,
        service: BrokerService,
        name: TopicName,
        producer_name: str = "",
        *,
        client_version: str,
        remote: str = "127.0.0.1:0",
        round_robin: bool = True,
        hash_key: Callable[[str], int] = java_string_hash,
        schema: SchemaDefinition | None = None,
    ) -> None:
        """
        Args:
            producer_name: empty: one is generated.
            round_robin: messages without a key take turns; else one partition by chance.
            schema: of the messages; None: raw bytes.
        """
        self.producers: list[LocalProducer | ClientProducer] = []
        self.partitioned = False
        self._is_generated = not producer_name
        # A name that nobody else has: cluster, kind and chance.
        self.producer_name = producer_name or f"{service.cluster}-http-{secrets.token_hex(6)}"
        self._service, self._name, self.schema = service, name, schema
        self._remote, self._client_version = remote, client_version
        self._round_robin, self._hash_key = round_robin, hash_key
        self._connections = BrokerConnections(service)
        self._turn, self._single = itertools.count(), 0
        self.next_sequence_id = 0
        """The next message may have this: a lower one could be taken for a message sent again."""

    async def open(self, *, single_here: bool = False) -> InternalProducer:
        """Register on the topic or on all its partitions, whichever brokers serve them.

        Args:
            single_here: a topic without partitions must be this broker's.
        Raises:
            BrokerError: see ``LocalProducer.open``.
        """
        name = self._name
        count = await self._service.directory.partitions_for_client(name, create=True)
        self.partitioned = bool(count)
        try:
            for one in [name.partition(index) for index in range(count)] if count else [name]:
                here = single_here and not count
                self.producers.append(await self._register(one, here=here))
        except BaseException:
            self.close()
            raise
        self._turn = itertools.count(secrets.randbelow(len(self.producers)))
        self._single = next(self._turn) % len(self.producers)
        self.next_sequence_id = 1 + max(producer.last_sequence_id for producer in self.producers)
        return self

    async def _register(self, name: TopicName, *, here: bool) -> LocalProducer | ClientProducer:
        owner = None if here else await self._service.broker_client.serving(name)
        if owner is not None:
            producer = ClientProducer(await self._connections.to(owner), name)
            return await producer.open(
                self.producer_name, generated=self._is_generated, schema=self.schema
            )
        return await LocalProducer.open(
            self._service,
            name,
            self.producer_name,
            generated=self._is_generated,
            remote=self._remote,
            client_version=self._client_version,
            schema=self.schema,
        )

    async def schema_version(self, schema: SchemaDefinition | None) -> int | None:
        """The version of the topic's schema that this definition is; None: it is raw bytes.

        Raises:
            IncompatibleSchemaError: against the namespace's rules.
        """
        first = self.producers[0]  # partitions share one history
        if schema == self.schema:
            return first.schema_version
        return await first.admit(schema)

    @property
    def closed(self) -> bool:
        return any(producer.closed for producer in self.producers)

    @property
    def limited(self) -> bool:
        """Whether any publish limit holds."""
        return self.producers[0].limited

    @property
    def held(self) -> bool:
        """Whether a publish limit of any partition is exceeded."""
        return any(producer.held for producer in self.producers)

    async def ready(self) -> None:
        """Wait until every partition may be published to."""
        for producer in self.producers:
            await producer.ready()

    def route(self, message: OutgoingMessage) -> int:
        """Index into ``producers`` for a message."""
        count = len(self.producers)
        if count == 1:
            return 0
        if message.key is not None:
            return self._hash_key(message.key) % count
        return next(self._turn) % count if self._round_robin else self._single

    def partition_of(self, index: int) -> int:
        """Partition number that ids of ``producers[index]`` carry; -1 without partitions."""
        return index if self.partitioned else -1

    def partition(self, index: int) -> int:
        """The same, also of a topic that is a partition: as REST of Pulsar tells it."""
        return index if self.partitioned else self._name.partition_index

    def close(self) -> None:
        for producer in self.producers:
            producer.close()
        self._connections.close()
