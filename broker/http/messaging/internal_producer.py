"""A topic by the name a client knows: one producer, or one per partition with key routing."""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING

from magnetar.broker.cluster.broker_connection import BrokerConnections
from magnetar.broker.http.messaging.local_producer import LocalProducer, java_string_hash
from magnetar.broker.http.messaging.remote_producer import RemoteProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar.broker.http.messaging.messages import OutgoingMessage
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.schema.definition import SchemaDefinition
    from magnetar.broker.service.broker_service import BrokerService

_Producer = LocalProducer | RemoteProducer


def generated_name(service: BrokerService, kind: str) -> str:
    """A producer name nobody else has: cluster, kind and chance."""
    return f"{service.cluster}-{kind}-{secrets.token_hex(6)}"


class InternalProducer:
    """Producers of a topic's partitions (one, with index -1, when it has none)."""

    def __init__(
        self,
        producers: list[_Producer],
        partitioned: bool,
        producer_name: str,
        *,
        round_robin: bool,
        hash_key: Callable[[str], int],
    ) -> None:
        self.producers = producers
        self.partitioned = partitioned
        self.producer_name = producer_name
        self._round_robin = round_robin
        self._hash_key = hash_key
        self._schema: SchemaDefinition | None = None
        self._links: BrokerConnections | None = None
        self._turn = itertools.count(secrets.randbelow(len(producers)))
        self._single = next(self._turn) % len(producers)
        self.next_sequence_id = 1 + max(producer.last_sequence_id for producer in producers)
        """What its next message may have: a lower one could be taken for a message sent again."""

    @classmethod
    async def open(
        cls,
        service: BrokerService,
        name: TopicName,
        producer_name: str,
        *,
        remote: str,
        client_version: str,
        round_robin: bool = True,
        hash_key: Callable[[str], int] = java_string_hash,
        schema: SchemaDefinition | None = None,
        single_here: bool = False,
    ) -> InternalProducer:
        """Register on the topic or on all its partitions, whichever brokers serve them.

        Args:
            single_here: a topic without partitions must be this broker's.
            producer_name: empty: one is generated.
            round_robin: messages without a key take turns; else one partition by chance.
            schema: of the messages; None: raw bytes.
        Raises:
            BrokerError: see ``LocalProducer.open``.
        """
        generated = not producer_name
        producer_name = producer_name or generated_name(service, "http")
        count = await service.partitions_for_client(name, create=True)
        names = [name.partition(index) for index in range(count)] if count else [name]
        links = BrokerConnections(service)
        producers: list[_Producer] = []

        async def register(one: TopicName) -> _Producer:
            owner = None if single_here and not count else await service.broker_client.serving(one)
            if owner is not None:
                link = await links.to(owner)
                return await RemoteProducer.open(
                    link, one, producer_name, generated=generated, schema=schema
                )
            return await LocalProducer.open(
                service,
                one,
                producer_name,
                generated=generated,
                remote=remote,
                client_version=client_version,
                schema=schema,
            )

        try:
            for one in names:
                producers.append(await register(one))  # noqa: PERF401 - closed when one fails
        except BaseException:
            for producer in producers:
                producer.close()
            links.close()
            raise
        publisher = cls(
            producers,
            bool(count),
            producer_name,
            round_robin=round_robin,
            hash_key=hash_key,
        )
        publisher._schema, publisher._links = schema, links
        return publisher

    async def schema_version(self, schema: SchemaDefinition | None) -> int | None:
        """The version of the topic's schema that this definition is; None: it is raw bytes.

        Raises:
            IncompatibleSchemaError: against the namespace's rules.
        """
        first = self.producers[0]  # partitions share one history
        if schema == self._schema:
            return first.schema_version
        return await first.admit(schema)

    @property
    def closed(self) -> bool:
        return any(producer.closed for producer in self.producers)

    @property
    def in_flight(self) -> int:
        return sum(producer.in_flight for producer in self.producers)

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

    def close(self) -> None:
        for producer in self.producers:
            producer.close()
        if self._links is not None:
            self._links.close()
