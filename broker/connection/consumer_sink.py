"""A binary connection as the sink of one consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from magnetar.broker.connection.assigned_broker import send_close
from magnetar.broker.connection.message_frames import MessageFrames
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.subscription.consumer import Consumer
from magnetar.managed_ledger.entry_batch import EntryBatch

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

_ACTIVE_CHANGE_VERSION = 12
_END_OF_TOPIC_VERSION = 9


class BinaryConsumerSink:
    """Writes MESSAGE frames, and the few other commands a broker sends to a consumer."""

    def __init__(self, connection: Connection, consumer_id: int, partition_index: int) -> None:
        self.connection = connection
        self.consumer_id = consumer_id
        self.remote = connection.remote
        self.client_version = connection.client_version
        self._frames = MessageFrames(consumer_id, partition_index)

    @property
    def writable(self) -> bool:
        return self.connection.writable

    def attach(self, consumer: Consumer) -> None:
        """Follow the connection: wake the consumer with it, end it with it."""
        connection = self.connection
        connection.on_writable[self] = consumer.subscription.wake
        connection.on_closed[self] = lambda: consumer.subscription.remove_consumer(consumer)

    def detach(self) -> None:
        """The consumer is gone; the connection lives on."""
        self.connection.on_writable.pop(self, None)
        self.connection.on_closed.pop(self, None)

    def deliver(
        self,
        consumer: Consumer,
        batch: EntryBatch,
        picks: Sequence[int] | None,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        self.connection.write_bulk(
            self._frames.build(batch, picks, redelivery_counts, ack_sets, consumer.epoch)
        )

    def notify_active(self, consumer: Consumer, is_active: bool) -> None:
        if self.connection.protocol_version >= _ACTIVE_CHANGE_VERSION:
            self.connection.send(
                pb.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=is_active)
            )

    def notify_end_of_topic(self, consumer: Consumer) -> None:
        # C++ and Go close the connection on this command.
        is_java = self.client_version.startswith("Pulsar-Java")
        if is_java and self.connection.protocol_version >= _END_OF_TOPIC_VERSION:
            self.connection.send(pb.CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    def close_consumer(self, consumer: Consumer) -> None:
        self.detach()
        connection = self.connection
        # First forget the id: the client subscribes again with the same one.
        if connection.consumers.get(self.consumer_id) is consumer:
            del connection.consumers[self.consumer_id]
        if connection.closed:
            return
        closing = pb.CommandCloseConsumer(consumer_id=self.consumer_id)
        send_close(connection, closing, consumer.subscription.topic.new_owner)

    async def check_liveness(self) -> bool:
        return await self.connection.check_liveness()
