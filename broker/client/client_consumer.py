"""A consumer on a topic of a broker that this process is a client of, with the methods of a
consumer and of its subscription as brokers have them (broker/subscription)."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from magnetar.broker.client.async_client_connection import ANSWER_S, AsyncClientConnection
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.client_connection import CONSUMER
from magnetar.broker.protocol.framing import NO_ID
from magnetar.broker.protocol.messages import UndecodableEntryError, open_entry
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position


class ClientConsumer:
    """``subscription`` is itself: no other consumer shares it here."""

    def __init__(self, connection: AsyncClientConnection, name: TopicName, sink: Any) -> None:
        """
        Args:
            sink: a ``ConsumerSink``, of which ``deliver``, ``notify_end_of_topic`` and
                ``close_consumer`` are called, as by a broker's own consumer.
        """
        self.permits = 0
        """Messages that may come; never fewer than the broker believes."""
        self.topic = name
        self.subscription_name = ""
        self._connection, self._sink = connection, sink
        self._id = connection.next_id()
        self._acks: set[asyncio.Future[Any]] = set()
        self._failed: BaseException | None = None  # of acks, until ``flush`` raises it

    @property
    def subscription(self) -> "ClientConsumer":
        return self

    @property
    def cursor(self) -> "ClientConsumer":
        """``flush`` is asked of it."""
        return self

    async def subscribe(self, command: pb.CommandSubscribe) -> None:
        """Raises BrokerError. The topic, and what ids there are, are filled in."""
        command.topic, command.consumer_id = str(self.topic), self._id
        self.subscription_name = command.subscription
        await self._connection.register(CONSUMER, self._id, self, command)

    # --- what comes

    def on_command(self, command: Any, body: bytes) -> None:
        match command:
            case pb.CommandMessage():
                id_ = command.message_id
                self.permits -= _messages_in(body)
                batch = EntryBatch(id_.ledgerId, id_.entryId, [b""], [body])  # its head stays there
                words = {0: list(command.ack_set)} if command.ack_set else None
                self._sink.deliver(self, batch, None, [command.redelivery_count], words)
            case pb.CommandCloseConsumer():
                self._end()
            case pb.CommandReachedEndOfTopic():
                self._sink.notify_end_of_topic(self)

    def on_connection_lost(self, error: ServiceNotReadyError) -> None:
        self._end()

    def _end(self) -> None:
        self._connection.users.pop((CONSUMER, self._id), None)
        self._sink.close_consumer(self)

    # --- a consumer

    def wake(self) -> None:
        """The connection is resumed by its owner."""

    # --- a subscription; ``consumer`` is this one

    def flow(self, consumer: object, permits: int) -> None:
        self.permits += permits
        self._connection.tell(pb.CommandFlow(consumer_id=self._id, messagePermits=permits))

    def acknowledge(self, consumer: object, positions: Iterable[Position]) -> None:
        self._send_ack(map(_message_id, positions))

    def acknowledge_batch(self, consumer: object, position: Position, words: Sequence[int]) -> None:
        message_id = _message_id(position)
        message_id.ack_set.extend(words)
        self._send_ack((message_id,))

    def _send_ack(self, message_ids: Iterable[pb.MessageIdData]) -> None:
        """With an answer, which comes when it is durable."""
        ack = pb.CommandAck(
            consumer_id=self._id, ack_type=pb.CommandAck.Individual, message_id=message_ids
        )
        answer = self._connection.begin(ack)  # now: the consumer may be closed in this turn
        self._acks.add(answer)
        answer.add_done_callback(self._on_acked)

    async def acknowledge_in(
        self,
        transaction: tuple[int, int],
        message_ids: Iterable[pb.MessageIdData],
        *,
        cumulative: bool,
    ) -> None:
        """Acknowledge in a transaction, which has the subscription already. Raises BrokerError."""
        kinds = pb.CommandAck
        most, least = transaction
        await self._connection.call(
            pb.CommandAck(
                consumer_id=self._id,
                ack_type=kinds.Cumulative if cumulative else kinds.Individual,
                message_id=message_ids,
                txnid_most_bits=most,
                txnid_least_bits=least,
            )
        )

    def _on_acked(self, answer: asyncio.Future[Any]) -> None:
        self._acks.discard(answer)
        if not answer.cancelled() and (error := answer.exception()) is not None:
            self._failed = error

    async def flush(self) -> None:
        """Returns when what has been acknowledged is durable. Raises BrokerError: it isn't."""
        if self._acks:
            _, late = await asyncio.wait(set(self._acks), timeout=ANSWER_S)
            for answer in late:
                answer.cancel()
            if late:
                self._failed = self._connection.no_answer()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def redeliver(self, consumer: object, positions: Sequence[Position] | None) -> None:
        self._connection.tell(
            pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=self._id, message_ids=map(_message_id, positions or ())
            )
        )

    async def last_position(self) -> Position:
        """Of the last message that is stored; an entry id of -1: none is. Raises BrokerError."""
        command = pb.CommandGetLastMessageId(consumer_id=self._id)
        last = (await self._connection.call(command)).last_message_id
        return _signed(last.ledgerId), _signed(last.entryId)

    async def seek(self, publish_time_ms: int) -> None:
        """Move the subscription. The consumer leaves: brokers end those of what is moved."""
        command = pb.CommandSeek(consumer_id=self._id, message_publish_time=publish_time_ms)
        await self._leave(command)
        await self.close()

    async def unsubscribe(self, consumer: object, *, force: bool) -> None:
        """Raises BrokerError: other consumers use it."""
        await self._leave(pb.CommandUnsubscribe(consumer_id=self._id))

    async def close(self) -> None:
        """Leave; returns when the broker has all acknowledgements. Raises BrokerError."""
        await self._leave(pb.CommandCloseConsumer(consumer_id=self._id))

    async def _leave(self, command: Any) -> None:
        self._connection.users.pop((CONSUMER, self._id), None)
        await self._connection.call(command)

    def remove_consumer(self, consumer: object) -> None:
        self._connection.users.pop((CONSUMER, self._id), None)
        self._connection.request(pb.CommandCloseConsumer(consumer_id=self._id))


def _message_id(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=position[0] & NO_ID, entryId=position[1] & NO_ID)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _messages_in(body: bytes) -> int:
    try:
        return open_entry(body)[0].num_messages_in_batch
    except UndecodableEntryError:
        return 1
