"""A producer on a topic of a broker that this process is a client of."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from magnetar.broker.client.async_client_connection import AsyncClientConnection, error_of
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.client_connection import PRODUCER, encode_send
from magnetar.broker.protocol.messages import Entry
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import SchemaDefinition, fill_wire, parse_version


class PublishCallback(Protocol):
    """Told of each entry of one publish call exactly once; of many at once where that can be."""

    def __call__(
        self,
        index: int,
        count: int,
        ledger_id: int,
        first_entry_id: int,
        error: Exception | None,
        /,
    ) -> None:
        """Entries ``index .. index + count`` of the call are durable from that id on (-1, -1:
        dropped as duplicates); with an error they were not stored and won't be.
        """


class ClientProducer:
    """Registered by ``open``. The broker's limits hold the connection back, not single calls."""

    limited = held = False

    def __init__(self, connection: AsyncClientConnection, name: TopicName) -> None:
        self.closed = False
        self.on_closed: Callable[[], None] | None = None
        self.producer_name = ""
        self.schema_version: int | None = None
        self.last_sequence_id = -1
        self.topic = name
        self._connection = connection
        self._id = connection.next_id()
        # Entries under way, as sent: sequence id, whom to tell, and the index in its call.
        self._waiting: deque[tuple[int, PublishCallback, int]] = deque()

    async def open(
        self,
        producer_name: str = "",
        *,
        generated: bool = True,
        schema: SchemaDefinition | None = None,
        encrypted: bool = False,
    ) -> "ClientProducer":
        """Register; an empty name is generated there.

        Raises:
            BrokerError: as that broker says, or it is gone.
        """
        command = pb.CommandProducer(
            topic=str(self.topic),
            producer_id=self._id,
            producer_name=producer_name or None,
            user_provided_producer_name=not generated,
            encrypted=encrypted,
        )
        if schema is not None:
            fill_wire(command.schema, self.topic.local, schema)
        answer = await self._connection.register(PRODUCER, self._id, self, command)
        self.producer_name, self.last_sequence_id = answer.producer_name, answer.last_sequence_id
        self.schema_version = parse_version(answer.schema_version) if schema is not None else None
        return self

    async def admit(self, schema: SchemaDefinition | None) -> int | None:
        """Check and add another schema of its messages; its version.

        Raises:
            IncompatibleSchemaError: against the namespace's rules.
        """
        if schema is None:
            return None
        command = pb.CommandGetOrCreateSchema(topic=str(self.topic))
        fill_wire(command.schema, self.topic.local, schema)
        return parse_version((await self._connection.call(command)).schema_version)

    async def ready(self) -> None:
        """At once: see the class."""

    def publish(self, entries: Sequence[Entry], callback: PublishCallback) -> None:
        """Send entries."""
        if self.closed or self._connection.closed:
            error = ServiceNotReadyError("The topic was closed or moved")
            callback(0, len(entries), -1, -1, error)
            return
        self._waiting += [
            (sequence_id, callback, index) for index, (_, _, sequence_id) in enumerate(entries)
        ]
        frames = [encode_send(self._id, *entry) for entry in entries]
        self._connection.send(b"".join(frames))

    def on_command(self, command: Any, body: bytes) -> None:
        if isinstance(command, pb.CommandCloseProducer):
            self._end(ServiceNotReadyError("The topic was closed or moved"))
        elif self._waiting:
            callback, index = self._take(command.sequence_id)
            if isinstance(command, pb.CommandSendReceipt):
                id_ = command.message_id
                duplicate = id_.ledgerId >= 2**63  # -1 on the wire
                ledger_id, entry_id = (-1, -1) if duplicate else (id_.ledgerId, id_.entryId)
                callback(index, 1, ledger_id, entry_id, None)
            else:
                callback(index, 1, -1, -1, error_of(command.error, command.message))

    def _take(self, sequence_id: int) -> tuple[PublishCallback, int]:
        """Whose answer it is. Apache Pulsar answers a duplicate before what was sent earlier."""
        for nth, (sent_id, callback, index) in enumerate(self._waiting):
            if sent_id == sequence_id:
                del self._waiting[nth]
                return callback, index
        _, callback, index = self._waiting.popleft()
        return callback, index

    def on_connection_lost(self, error: ServiceNotReadyError) -> None:
        self._end(error)

    def _end(self, error: BrokerError) -> None:
        if self.closed:
            return
        self.closed = True
        self._connection.users.pop((PRODUCER, self._id), None)
        waiting, self._waiting = self._waiting, deque()
        for _, callback, index in waiting:  # stored or not: as for any client
            callback(index, 1, -1, -1, error)
        if self.on_closed is not None:
            self.on_closed()

    def close(self) -> None:
        """Unregister; entries under way are still answered, as long as the connection stays."""
        if not self.closed:
            self.closed = True
            self._connection.request(pb.CommandCloseProducer(producer_id=self._id))
