"""A consumer of `magnetar verify`: from being let in to its end, and what it saw between."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.client_connection import CONSUMER
from magnetar.broker.protocol.messages import UndecodableEntryError, messages_of, open_entry
from magnetar.broker.verify.history import (
    AckAsked,
    AckConfirmed,
    Activated,
    Attached,
    Delivered,
    End,
    Ended,
    Event,
    GivenBack,
    MessageName,
    Position,
    SubscriptionType,
)
from magnetar.broker.verify.plan import message_in

PERMITS: Final = 50
_PAYLOAD_BYTES_MAX: Final = 1024 * 1024
_SUB_TYPES: Final = {
    SubscriptionType.EXCLUSIVE: pb.CommandSubscribe.Exclusive,
    SubscriptionType.SHARED: pb.CommandSubscribe.Shared,
    SubscriptionType.FAILOVER: pb.CommandSubscribe.Failover,
    SubscriptionType.KEY_SHARED: pb.CommandSubscribe.Key_Shared,
}


class ReceivedEntry:
    """``positions`` of its messages, ``entry`` for acknowledging it as a whole."""

    __slots__ = ("entry", "messages", "positions", "redelivery_count")

    def __init__(self, command: pb.CommandMessage, body: bytes) -> None:
        id_ = command.message_id
        self.entry = id_.ledgerId, id_.entryId
        self.redelivery_count = command.redelivery_count
        self.messages: list[MessageName | None] = []
        self.positions: list[Position] = []
        try:
            messages = messages_of(*open_entry(body), _PAYLOAD_BYTES_MAX)
        except UndecodableEntryError:
            messages = []
        for message in messages:
            self.positions.append((*self.entry, message.batch_index))
            self.messages.append(message_in(message.payload))
        if not messages:
            self.positions, self.messages = [(*self.entry, -1)], [None]


class Owner(Protocol):
    """Of receivers: one subscription."""

    type: SubscriptionType
    next_ack: Callable[[], int]

    def note(self, event: Event) -> None: ...

    def on_entry(self, receiver: "Receiver", entry: ReceivedEntry) -> None: ...


class Receiver:
    """A ``ConnectionListener``. What it does with messages, its owner says."""

    def __init__(
        self, owner: Owner, connection: AsyncClientConnection, session: int, name: str
    ) -> None:
        self.session, self.name = session, name
        self.ended = asyncio.Event()
        self._owner, self._connection = owner, connection
        self._id = connection.next_id()
        self._attached = False
        self._used_permits = 0

    async def open(self, topic: str, subscription: str, *, durable: bool = True) -> "Receiver":
        """Raises BrokerError: the broker doesn't let it in."""
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=_SUB_TYPES[self._owner.type],
            consumer_id=self._id,
            consumer_name=self.name,
            durable=durable,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        if self._owner.type is SubscriptionType.KEY_SHARED:
            command.keySharedMeta.keySharedMode = pb.AUTO_SPLIT
        await self._connection.register(CONSUMER, self._id, self, command)
        self._note_attached()
        self._flow(PERMITS)
        return self

    def _note_attached(self) -> None:
        if not self._attached:
            self._attached = True
            self._owner.note(Attached(self.session))

    def _flow(self, permits: int) -> None:
        self._connection.tell(pb.CommandFlow(consumer_id=self._id, messagePermits=permits))

    # --- what comes

    def on_command(self, command: Any, body: bytes) -> None:
        self._note_attached()  # the answer may be waited for still
        match command:
            case pb.CommandMessage():
                self._on_message(command, body)
            case pb.CommandActiveConsumerChange():
                self._owner.note(Activated(self.session, command.is_active))
            case pb.CommandCloseConsumer():
                self.end(End.MOVED)

    def on_connection_lost(self, error: ServiceNotReadyError) -> None:
        self.end(End.LOST)

    def _on_message(self, command: pb.CommandMessage, body: bytes) -> None:
        entry = ReceivedEntry(command, body)
        self._used_permits += len(entry.messages)
        if self._used_permits >= PERMITS // 2:
            self._flow(self._used_permits)
            self._used_permits = 0
        at_ms = int(time.time() * 1000)
        for position, message in zip(entry.positions, entry.messages, strict=True):
            self._owner.note(
                Delivered(self.session, position, message, at_ms, entry.redelivery_count)
            )
        self._owner.on_entry(self, entry)

    # --- what is asked

    def acknowledge(self, entries: Sequence[ReceivedEntry], *, cumulative: bool = False) -> None:
        """Cumulative: up to the last one."""
        named = entries[-1:] if cumulative else entries
        ack = self._owner.next_ack()
        positions = [at for each in named for at in each.positions]
        self._owner.note(AckAsked(self.session, ack, positions, cumulative))
        kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
        command = pb.CommandAck(consumer_id=self._id, ack_type=kind, message_id=map(_id_of, named))
        answer = self._connection.begin(command)
        answer.add_done_callback(partial(self._on_acknowledged, ack))

    def _on_acknowledged(self, ack: int, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._owner.note(AckConfirmed(self.session, ack))

    def give_back(self, entry: ReceivedEntry) -> None:
        """Negatively acknowledge it. REQUIRES: the subscription may have several consumers."""
        self._owner.note(GivenBack(self.session, entry.positions))
        command = pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=self._id, message_ids=[_id_of(entry)]
        )
        self._connection.tell(command)

    async def close(self) -> None:
        """Leave. Raises BrokerError."""
        self.end(End.CLOSED)
        await self._connection.call(pb.CommandCloseConsumer(consumer_id=self._id))

    async def unsubscribe(self) -> None:
        """Leave, and remove the subscription. Raises BrokerError."""
        self.end(End.CLOSED)
        await self._connection.call(pb.CommandUnsubscribe(consumer_id=self._id))

    def end(self, why: End) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        self._connection.users.pop((CONSUMER, self._id), None)
        if self._attached:
            self._owner.note(Ended(self.session, why))


def _id_of(entry: ReceivedEntry) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=entry.entry[0], entryId=entry.entry[1])
