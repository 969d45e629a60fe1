"""A consumer of `magnetar verify`: from being let in to its end, and what it saw between."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from magnetar.broker.client.async_client_connection import AsyncClientConnection
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import ChunkAssembler
from magnetar.broker.protocol.client_connection import CONSUMER
from magnetar.broker.protocol.messages import (
    UndecodableEntryError,
    is_chunk,
    messages_of,
    open_entry,
)
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
from magnetar.managed_ledger.cursor.ack_state import words_to_mask

PERMITS: Final = 50
_PAYLOAD_BYTES_MAX: Final = 1024 * 1024
_SUB_TYPES: Final = {
    SubscriptionType.EXCLUSIVE: pb.CommandSubscribe.Exclusive,
    SubscriptionType.SHARED: pb.CommandSubscribe.Shared,
    SubscriptionType.FAILOVER: pb.CommandSubscribe.Failover,
    SubscriptionType.KEY_SHARED: pb.CommandSubscribe.Key_Shared,
}


class ReceivedEntry:
    """``positions`` of its messages, without those that are acknowledged already; ``entries`` for
    acknowledging it as a whole: those of a chunked message, which is at the last one. No messages:
    it is a chunk, and others are missing.
    """

    __slots__ = (
        *("entries", "entry", "messages", "positions", "published_ms", "redelivery_count"),
        "remaining",
    )

    def __init__(self, command: pb.CommandMessage, body: bytes, assembler: ChunkAssembler) -> None:
        id_ = command.message_id
        self.entry = id_.ledgerId, id_.entryId
        self.entries: Sequence[Position] = [self.entry]
        self.redelivery_count = command.redelivery_count
        self.messages: list[MessageName | None] = []
        self.positions: list[Position] = []
        self.published_ms = 0
        self.remaining = words_to_mask(command.ack_set) if command.ack_set else -1
        """Bits by batch index: set for what isn't acknowledged."""
        try:
            metadata, payload = open_entry(body)
            self.published_ms = metadata.publish_time
            if is_chunk(metadata):
                joined = assembler.add(metadata, payload, self.entry, 0)
                if joined is None:
                    return
                self.entries = joined.positions
                messages = messages_of(metadata, joined.payload, _PAYLOAD_BYTES_MAX)
            else:
                messages = messages_of(metadata, payload, _PAYLOAD_BYTES_MAX)
        except UndecodableEntryError:
            messages = []
        for message in messages:
            if message.batch_index >= 0 and not self.remaining >> message.batch_index & 1:
                continue
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
        self._assembler = ChunkAssembler(_PAYLOAD_BYTES_MAX)

    async def open(
        self,
        topic: str,
        subscription: str,
        *,
        start: Position | None = None,
        latest: bool = False,
    ) -> "Receiver":
        """
        Args:
            latest: a subscription that isn't there gets what is sent from now on; else everything.
            start: ledger and entry of a reader's start message id; None: it isn't a reader.

        Raises:
            BrokerError: the broker doesn't let it in.
        """
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=_SUB_TYPES[self._owner.type],
            consumer_id=self._id,
            consumer_name=self.name,
            durable=start is None,
            initialPosition=pb.CommandSubscribe.Latest if latest else pb.CommandSubscribe.Earliest,
        )
        if start is not None:
            command.start_message_id.CopyFrom(_id_of(start))
        if self._owner.type is SubscriptionType.KEY_SHARED:
            command.keySharedMeta.keySharedMode = pb.AUTO_SPLIT
        await self._connection.register(CONSUMER, self._id, self, command)
        self._note_attached()
        self._flow(PERMITS)
        return self

    @property
    def is_connected(self) -> bool:
        return not self._connection.closed

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
        entry = ReceivedEntry(command, body, self._assembler)
        self._used_permits += max(1, len(entry.messages))
        if self._used_permits >= PERMITS // 2:
            self._flow(self._used_permits)
            self._used_permits = 0
        if not entry.messages:
            return
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
        self._acknowledge(ack, kind, [_id_of(at) for each in named for at in each.entries])

    def acknowledge_part(self, entry: ReceivedEntry, count: int) -> None:
        """The first ``count`` messages of a batch, of those that came; the others are left to be
        acknowledged. REQUIRES: there are more, and at most 63 in the batch.
        """
        acked, entry.positions = entry.positions[:count], entry.positions[count:]
        entry.messages = entry.messages[count:]
        ack = self._owner.next_ack()
        self._owner.note(AckAsked(self.session, ack, acked, partial=True))
        entry.remaining = sum(1 << position[-1] for position in entry.positions)
        id_ = _id_of(entry.entry)
        id_.ack_set.append(entry.remaining)
        self._acknowledge(ack, pb.CommandAck.Individual, [id_])

    def _acknowledge(
        self, ack: int, kind: pb.CommandAck.AckType.ValueType, ids: list[pb.MessageIdData]
    ) -> None:
        command = pb.CommandAck(consumer_id=self._id, ack_type=kind, message_id=ids)
        answer = self._connection.begin(command)
        answer.add_done_callback(partial(self._on_acknowledged, ack))

    def _on_acknowledged(self, ack: int, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self._owner.note(AckConfirmed(self.session, ack))

    def give_back(self, entry: ReceivedEntry) -> None:
        """Negatively acknowledge it. REQUIRES: the subscription may have several consumers."""
        self._owner.note(GivenBack(self.session, entry.positions))
        command = pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=self._id, message_ids=[_id_of(entry.entry)]
        )
        self._connection.tell(command)

    async def seek(self, entry: Position | None, published_ms: int) -> None:
        """To an entry, or by time. All consumers of the subscription end meanwhile.

        Raises:
            BrokerError: it isn't done; or it may be done, if the connection has ended.
        """
        command = pb.CommandSeek(consumer_id=self._id)
        if entry is not None:
            command.message_id.CopyFrom(_id_of(entry))
        else:
            command.message_publish_time = published_ms
        await self._connection.call(command)

    async def close(self, why: End = End.CLOSED) -> None:
        """Leave. Raises BrokerError."""
        self.end(why)
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


def _id_of(entry: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=entry[0], entryId=entry[1])
