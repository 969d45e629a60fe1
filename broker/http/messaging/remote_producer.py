"""A producer on a topic of another broker, with the face of a local one (local_producer.py)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from magnetar.broker.cluster.broker_connection import error_of
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_command, encode_payload_command
from magnetar.broker.schema.definition import fill_wire, parse_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from magnetar.broker.cluster.broker_connection import BrokerConnection
    from magnetar.broker.http.messaging.local_producer import Entry, PublishContext
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.schema.definition import SchemaDefinition


class RemoteProducer:
    """One registered producer. That broker's limits hold the connection back, not single calls."""

    limited = held = False

    def __init__(self, link: BrokerConnection, name: TopicName) -> None:
        self.closed = False
        self.on_closed: Callable[[], None] | None = None
        self.schema_version: int | None = None
        self.last_sequence_id = -1
        self._link, self._name = link, name
        self._id = link.next_id()
        # Entries under way, in the order of their answers: the context, and the index in its call.
        self._waiting: deque[tuple[PublishContext, int]] = deque()

    @property
    def in_flight(self) -> int:
        """Entries published and not answered."""
        return len(self._waiting)

    @classmethod
    async def open(
        cls,
        link: BrokerConnection,
        name: TopicName,
        producer_name: str,
        *,
        generated: bool,
        schema: SchemaDefinition | None = None,
    ) -> RemoteProducer:
        """Raises BrokerError: as ``LocalProducer.open``, or the broker is gone."""
        self = cls(link, name)
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        request = command.producer
        request.topic, request.producer_id = str(name), self._id
        request.request_id = link.next_id()
        request.producer_name = producer_name
        request.user_provided_producer_name = not generated
        if schema is not None:
            fill_wire(request.schema, name.local, schema)
        link.users["producer", self._id] = self
        try:
            answer = (await link.call(command, request.request_id)).producer_success
        except BaseException:
            link.users.pop(("producer", self._id), None)
            raise
        self.last_sequence_id = answer.last_sequence_id
        self.schema_version = parse_version(answer.schema_version) if schema is not None else None
        return self

    async def admit(self, schema: SchemaDefinition | None) -> int | None:
        """As of a local one: check and add another schema; its version."""
        if schema is None:
            return None
        command = pb.BaseCommand(type=pb.BaseCommand.GET_OR_CREATE_SCHEMA)
        request = command.getOrCreateSchema
        request.topic, request.request_id = str(self._name), self._link.next_id()
        fill_wire(request.schema, self._name.local, schema)
        answer = await self._link.call(command, request.request_id)
        return parse_version(answer.getOrCreateSchemaResponse.schema_version)

    async def ready(self) -> None:
        """At once: see the class."""

    def publish(self, entries: Sequence[Entry], publish_context: PublishContext) -> None:
        """Send entries; each is answered on ``publish_context`` exactly once."""
        if self.closed or self._link.closed:
            publish_context.failed(
                0, len(entries), ServiceNotReadyError("The topic was closed or moved")
            )
            return
        frames = []
        for index, (metadata, body) in enumerate(entries):
            command = pb.BaseCommand(type=pb.BaseCommand.SEND)
            send = command.send
            send.producer_id, send.sequence_id = self._id, metadata.sequence_id
            send.num_messages = metadata.num_messages_in_batch
            if metadata.highest_sequence_id:
                send.highest_sequence_id = metadata.highest_sequence_id
            frames.append(encode_payload_command(command, body))
            self._waiting.append((publish_context, index))
        self._link.send(b"".join(frames))

    def on_frame(self, command: pb.BaseCommand, body: bytes) -> None:
        if command.type == pb.BaseCommand.CLOSE_PRODUCER:
            self._end(ServiceNotReadyError("The topic was closed or moved"))
        elif self._waiting:
            publish_context, index = self._waiting.popleft()
            if command.type == pb.BaseCommand.SEND_RECEIPT:
                id_ = command.send_receipt.message_id
                duplicate = id_.ledgerId >= 2**63  # -1 on the wire
                ledger_id, entry_id = (-1, -1) if duplicate else (id_.ledgerId, id_.entryId)
                publish_context.done(index, 1, ledger_id, entry_id)
            else:
                told = command.send_error
                publish_context.failed(index, 1, error_of(told.error, told.message))

    def on_link_lost(self, error: ServiceNotReadyError) -> None:
        self._end(error)

    def _end(self, error: BrokerError) -> None:
        if self.closed:
            return
        self.closed = True
        self._link.users.pop(("producer", self._id), None)
        waiting, self._waiting = self._waiting, deque()
        for (
            publish_context,
            index,
        ) in waiting:  # stored or not: as for any client whose connection ends
            publish_context.failed(index, 1, error)
        if self.on_closed is not None:
            self.on_closed()

    def close(self) -> None:
        """Unregister; entries under way are still answered, as long as the link stays."""
        if not self.closed:
            self.closed = True
            command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
            command.close_producer.producer_id = self._id
            command.close_producer.request_id = self._link.next_id()
            self._link.send(encode_command(command))
