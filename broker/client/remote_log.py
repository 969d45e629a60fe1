"""The log of a topic of another broker, as a reader gets it: nothing of it stays at the broker."""

import asyncio
import secrets
from collections import deque
from typing import Any, Final

from magnetar.broker.client.async_client_connection import ANSWER_S, AsyncClientConnection
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.client.cluster_client import ClusterClient
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import NO_ID
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position

_PERMITS: Final = 1_000
"""Messages that may be on their way."""
_HELD_BYTES_MAX: Final = 4 << 20
"""Of entries that came and weren't read yet; then the connection isn't read any more."""


class RemoteLog:
    """Entries from a position on; another one than the next takes a new subscription.

    REQUIRES: the client is used for nothing else, and ended with the log: its connection may wait.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: TopicName,
        offsets: LedgerOffsets,
        prefix: str,
        *,
        is_followed: bool = False,
        is_compacted: bool = False,
    ) -> None:
        """
        Args:
            offsets: what is known of the log's ledgers.
            prefix: of the subscriptions' names.
            is_followed: reads get what has come so far, and wait for nothing.
            is_compacted: of what was compacted, only the newest message of each key comes.
        """
        self.offsets = offsets
        self._client, self._topic, self._prefix = client, topic, prefix
        self._connection: AsyncClientConnection | None = None
        self._consumer: ClientConsumer | None = None
        self._next: Position | None = None
        self._last: Position = (-1, -1)
        self._entries: deque[tuple[Position, bytes]] = deque()
        self._held_bytes = 0
        self.came = asyncio.Event()
        """Set when there may be something to read."""
        self._is_followed, self._is_compacted = is_followed, is_compacted

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        """As `ManagedLedger.read`: up to the last message that the topic had when it was opened.

        Raises:
            BrokerError: the broker refuses it, or doesn't answer.
        """
        if self._consumer is None or position != self._next:
            await self.open(position)
        if self._is_followed and not self._entries:
            return None
        if position > self._last and not self._is_followed:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                while not self._entries:
                    if self._consumer is None:
                        raise ServiceNotReadyError(f"{self._topic} has left its broker: ask again")
                    self.came.clear()
                    await self.came.wait()
        except TimeoutError as error:
            raise ServiceNotReadyError(f"{self._topic}: no messages came in time") from error
        return self._take(entries_max, bytes_max)

    @property
    def next(self) -> Position:
        """Behind what was read last. REQUIRES: something was."""
        assert self._next is not None
        return self._next

    async def open(self, position: Position) -> None:
        """Begin to read there. Raises BrokerError."""
        before, self._consumer = self._consumer, None
        self._entries.clear()
        self._held_bytes = 0
        if self._connection is not None:
            self._connection.resume()  # or the answer to CLOSE_CONSUMER would never be read
        if before is not None:
            await before.close()
        self._connection = await self._client.owner(self._topic)
        self._consumer = ClientConsumer(self._connection, self._topic, self)
        ledger_id, entry_id = position
        await self._consumer.subscribe(
            pb.CommandSubscribe(
                subscription=f"{self._prefix}{secrets.token_hex(5)}",
                subType=pb.CommandSubscribe.Exclusive,
                durable=False,
                force_topic_creation=False,
                read_compacted=self._is_compacted,
                # Brokers begin there or behind it: by their version, and with or without batches.
                start_message_id=pb.MessageIdData(
                    ledgerId=ledger_id & NO_ID, entryId=max(entry_id - 1, -1) & NO_ID
                ),
            )
        )
        self._last = await self._consumer.last_position()
        self._next = position
        self._consumer.flow(self._consumer, _PERMITS)

    def _take(self, entries_max: int, bytes_max: int) -> EntryBatch:
        """What came of one ledger, one entry after the other, at least one."""
        (ledger_id, first), _ = self._entries[0]
        bodies: list[Any] = []
        while self._entries and len(bodies) < entries_max:
            position, body = self._entries[0]
            if position != (ledger_id, first + len(bodies)) or (bodies and bytes_max <= 0):
                break
            bytes_max -= len(body)
            self._held_bytes -= len(body)
            bodies.append(body)
            self._entries.popleft()
        self._next = (ledger_id, first + len(bodies))
        self._ask_for_more()
        if self._connection is not None and self._held_bytes <= _HELD_BYTES_MAX:
            self._connection.resume()
        return EntryBatch(ledger_id, first, [b""] * len(bodies), bodies)

    def _ask_for_more(self) -> None:
        if self._consumer is not None and self._consumer.permits < _PERMITS // 2:
            self._consumer.flow(self._consumer, _PERMITS - self._consumer.permits)

    # --- the sink of the consumer

    def deliver(
        self, consumer: ClientConsumer, batch: EntryBatch, _holes: Any, _counts: Any, _words: Any
    ) -> None:
        if consumer is not self._consumer:
            return  # the one before it, on its way out
        body, position = bytes(batch.bodies[0]), (batch.ledger_id, batch.first)
        if self._next is not None and position < self._next:
            self._ask_for_more()
            return
        self._entries.append((position, body))
        self._held_bytes += len(body)
        if self._held_bytes > _HELD_BYTES_MAX and self._connection is not None:
            self._connection.pause()
        self.came.set()

    def notify_end_of_topic(self, consumer: object) -> None:
        """A terminated topic: its last message is known."""

    def close_consumer(self, consumer: object) -> None:
        if consumer is self._consumer:
            self._consumer = None
            self.came.set()
