"""A producer of `magnetar verify`: sends what it planned until each message has its receipt."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from magnetar.broker.cli.binary_client import CommandClient
from magnetar.broker.cli.verify.attempts import NoProgressError, retried
from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.messages import Entry, OutgoingMessage, encode_batch, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.history import MessageName, Position, Sent, TopicHistory
from magnetar.broker.verify.plan import Group, content_of

GROUPS_UNDER_WAY: Final = 20
_SEND_AGAIN_EVERY: Final = 5
"""Groups with deduplication: who got an error sends again, too."""


@dataclass(slots=True)
class _Pending:
    group: Group
    entry: Entry
    is_last: bool = True
    """Of the chunks of a message."""
    is_again: bool = False
    """It is sent again, and may be stored by then."""


class Sender:
    """Sends a group again that has no receipt when its connection ends, as clients do. Not to a
    non-persistent topic: there it would be delivered twice by right.
    """

    def __init__(
        self,
        client: CommandClient,
        topic: TopicName,
        history: TopicHistory,
        name: str,
        patience_s: float,
    ) -> None:
        self.name = name
        self._client, self._topic, self._history = client, topic, history
        self._patience_s = patience_s
        self._pending: deque[_Pending] = deque()
        self._producer: ClientProducer | None = None
        self.stored = asyncio.Event()
        """The first receipt came."""
        self._changed = asyncio.Event()
        self._broken = False

    @property
    def _deduplicated(self) -> bool:
        return self._history.is_stored and self._history.window == 0

    async def send_all(self, groups: Iterable[Group], pause_s: float) -> None:
        """Returns when each message has its receipt.

        Args:
            pause_s: between two groups.
        Raises:
            NoProgressError: no receipt came for too long.
        """
        for group in groups:
            while len(self._pending) >= GROUPS_UNDER_WAY:
                await self._wait()
            pending = self._begin(group)
            self._pending += pending
            if self._producer is None or self._broken:
                await self._open()
            else:
                self._publish(pending)
            await asyncio.sleep(pause_s)
        while self._pending:
            await self._wait()

    def cut(self) -> None:
        """End the connections without a word."""
        self._client.close()
        self._break()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()

    def _begin(self, group: Group) -> list[_Pending]:
        now_ms = int(time.time() * 1000)
        due_ms = now_ms + group.delay_ms if group.delay_ms else 0
        messages = []
        for number in range(group.first, group.end):
            name = self.name, number
            self._history.sent[name] = Sent(group.key, due_ms, now_ms)
            message = OutgoingMessage(content_of(name), number, group.key, deliver_at_ms=due_ms)
            messages.append(message)
        kind = cast("pb.CompressionType.ValueType", group.compression)
        if group.batched:
            return [_Pending(group, encode_batch(self.name, messages, now_ms, kind))]
        entry = encode_single(self.name, messages[0], now_ms, kind)
        if group.chunks == 1:
            return [_Pending(group, entry)]
        chunks = list(chunks_of(entry[0], messages[0].payload, group.chunks))
        return [_Pending(group, each, is_last=each is chunks[-1]) for each in chunks]

    async def _wait(self) -> None:
        if self._broken:
            await self._open()
        self._changed.clear()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._changed.wait()
        except TimeoutError as error:
            text = f"{self._topic}: no receipt within {self._patience_s:.0f} s"
            raise NoProgressError(text) from error

    async def _open(self) -> None:
        producer = await retried(f"{self._topic}: no producer", self._register, self._patience_s)
        self._producer, self._broken = producer, False
        producer.on_closed = self._break
        if producer.closed:
            return self._break()
        self._publish(list(self._pending))
        for pending in self._pending:
            pending.is_again = True

    async def _register(self) -> ClientProducer:
        producer = ClientProducer(await self._client.owner(self._topic), self._topic)
        return await producer.open(self.name, generated=False)

    def _publish(self, pending: list[_Pending]) -> None:
        if pending and self._producer is not None:
            answered = partial(self._on_answer, self._producer, pending)
            self._producer.publish([each.entry for each in pending], answered)

    def _on_answer(
        self,
        producer: ClientProducer,
        pending: list[_Pending],
        index: int,
        count: int,
        ledger_id: int,
        first_entry_id: int,
        error: Exception | None,
    ) -> None:
        if producer is not self._producer:
            return
        for offset, each in enumerate(pending[index : index + count]):
            if error is not None:
                self._break()
                continue
            entry_id = first_entry_id + offset
            # Of a chunk that was sent again, and may be stored twice, the first one counts.
            somewhere = ledger_id < 0 or (each.group.chunks > 1 and each.is_again)
            if each.is_last:
                self._note_receipt(each.group, None if somewhere else (ledger_id, entry_id))
            if self._pending and each is self._pending[0]:
                self._pending.popleft()
                again = self._deduplicated and each.group.first % _SEND_AGAIN_EVERY == 0
                if again and not self._broken:
                    self._publish([each])
        self._changed.set()

    def _note_receipt(self, group: Group, entry: Position | None) -> None:
        for number in range(group.first, group.end):
            message: MessageName = self.name, number
            index = number - group.first if group.batched else -1
            position = None if entry is None else (*entry, index)
            self._history.receipts.append((message, position))
        self.stored.set()

    def _break(self) -> None:
        if not self._broken and self._producer is not None:
            self._broken = True
            self._producer.on_closed = None
            self._producer.close()
            if not self._history.is_stored:
                self._pending.clear()
            self._changed.set()


def chunks_of(metadata: pb.MessageMetadata, payload: bytes, count: int) -> Iterator[Entry]:
    """At most ``count`` entries of one message, which isn't compressed."""
    size = -(-len(payload) // count)
    slices = [payload[at : at + size] for at in range(0, len(payload), size)]
    for nth, part in enumerate(slices):
        chunk = pb.MessageMetadata()
        chunk.CopyFrom(metadata)
        chunk.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
        chunk.num_chunks_from_msg, chunk.total_chunk_msg_size = len(slices), len(payload)
        chunk.chunk_id = nth
        yield chunk, encode_body(chunk, part), chunk.sequence_id
