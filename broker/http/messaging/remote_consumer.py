"""A consumer on a topic of another broker, with the faces of a consumer and its subscription that
a feed needs (internal_consumer.py)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import (
    NO_ID,
    MalformedFrameError,
    encode_command,
    parse_entry_body,
)
from magnetar.managed_ledger.position import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from magnetar.broker.cluster.broker_connection import BrokerConnection
    from magnetar.broker.errors import ServiceNotReadyError
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.subscription.consumer import SubscribeRequest
    from magnetar.managed_ledger.position import Position


class RemoteConsumer:
    """``subscription`` is itself: a remote one isn't shared with anybody here."""

    def __init__(
        self,
        link: BrokerConnection,
        name: TopicName,
        on_entry: Callable[[int, int, bytes, int, Sequence[int] | None], None],
        on_closed: Callable[[], None],
        on_end_of_topic: Callable[[], None],
    ) -> None:
        """
        Args:
            on_entry: ledger, entry, body, redelivery count, ack set of each entry that comes.
        """
        self.permits = 0
        """Messages that may come; never fewer than the broker believes."""
        self.topic = name
        self._link = link
        self._id = link.next_id()
        self._on_entry, self._on_closed = on_entry, on_closed
        self._on_end_of_topic = on_end_of_topic
        self._acks: set[asyncio.Future[None]] = set()
        self._failed: Exception | None = None  # of acks, until somebody asks

    @property
    def subscription(self) -> RemoteConsumer:
        return self

    @property
    def cursor(self) -> RemoteConsumer:
        """What ``flush`` is asked of."""
        return self

    async def subscribe(self, request: SubscribeRequest) -> None:
        """Raises BrokerError."""
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        wire = command.subscribe
        wire.topic, wire.subscription = str(self.topic), request.subscription
        wire.subType = pb.CommandSubscribe.SubType.ValueType(request.sub_type)
        wire.consumer_id, wire.request_id = self._id, self._link.next_id()
        wire.consumer_name, wire.priority_level = request.consumer_name, request.priority_level
        wire.durable = request.durable
        if request.initial_position == EARLIEST:
            wire.initialPosition = pb.CommandSubscribe.Earliest
        if request.start_position is not None:
            ledger_id, entry_id = request.start_position
            wire.start_message_id.ledgerId = ledger_id & NO_ID
            wire.start_message_id.entryId = entry_id & NO_ID
        self._link.users["consumer", self._id] = self
        try:
            await self._link.call(command, wire.request_id)
        except BaseException:
            self._link.users.pop(("consumer", self._id), None)
            raise

    # --- what comes

    def on_frame(self, command: pb.BaseCommand, body: bytes) -> None:
        match command.type:
            case pb.BaseCommand.MESSAGE:
                message = command.message
                id_ = message.message_id
                self.permits -= _messages_in(body)
                words = list(message.ack_set) or None
                self._on_entry(id_.ledgerId, id_.entryId, body, message.redelivery_count, words)
            case pb.BaseCommand.CLOSE_CONSUMER:
                self._end()
            case pb.BaseCommand.REACHED_END_OF_TOPIC:
                self._on_end_of_topic()

    def on_link_lost(self, error: ServiceNotReadyError) -> None:
        self._end()

    def _end(self) -> None:
        self._link.users.pop(("consumer", self._id), None)
        self._on_closed()

    # --- a consumer

    def on_writable(self) -> None:
        """The link is resumed by its feed."""

    # --- a subscription; ``consumer`` is this one

    def flow(self, consumer: object, permits: int) -> None:
        self.permits += permits
        command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = self._id, permits
        self._link.send(encode_command(command))

    def acknowledge(self, consumer: object, positions: Sequence[Position]) -> None:
        command, ack = self._ack()
        for position in positions:
            _fill(ack.message_id.add(), position)
        self._send_ack(command)

    def acknowledge_batch(self, consumer: object, position: Position, words: Sequence[int]) -> None:
        command, ack = self._ack()
        id_ = ack.message_id.add()
        _fill(id_, position)
        id_.ack_set.extend(words)
        self._send_ack(command)

    def _ack(self) -> tuple[pb.BaseCommand, pb.CommandAck]:
        command = pb.BaseCommand(type=pb.BaseCommand.ACK)
        command.ack.consumer_id = self._id
        command.ack.ack_type = pb.CommandAck.Individual
        command.ack.request_id = self._link.next_id()
        return command, command.ack

    def _send_ack(self, command: pb.BaseCommand) -> None:
        """With an answer, which comes when it is durable."""
        task: asyncio.Future[None] = asyncio.ensure_future(self._acked(command))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _acked(self, command: pb.BaseCommand) -> None:
        try:
            await self._link.call(command, command.ack.request_id)
        except Exception as error:
            self._failed = error

    async def flush(self) -> None:
        """Returns when what has been acknowledged is durable. Raises BrokerError: it isn't."""
        if self._acks:
            await asyncio.wait(set(self._acks))
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def redeliver(self, consumer: object, positions: Sequence[Position] | None) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        wire = command.redeliverUnacknowledgedMessages
        wire.consumer_id = self._id
        for position in positions or ():
            _fill(wire.message_ids.add(), position)
        self._link.send(encode_command(command))

    async def unsubscribe(self, consumer: object, *, force: bool) -> None:
        """Raises BrokerError: other consumers use it."""
        command = pb.BaseCommand(type=pb.BaseCommand.UNSUBSCRIBE)
        command.unsubscribe.consumer_id = self._id
        command.unsubscribe.request_id = self._link.next_id()
        self._link.users.pop(("consumer", self._id), None)
        await self._link.call(command, command.unsubscribe.request_id)

    def remove_consumer(self, consumer: object) -> None:
        self._link.users.pop(("consumer", self._id), None)
        command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self._id
        command.close_consumer.request_id = self._link.next_id()
        self._link.send(encode_command(command))


def _fill(id_: pb.MessageIdData, position: Position) -> None:
    id_.ledgerId, id_.entryId = position


def _messages_in(body: bytes) -> int:
    try:
        return parse_entry_body(body)[0].num_messages_in_batch
    except MalformedFrameError:
        return 1
