"""Producers inside the broker: what REST calls and WebSockets publish through.

One ``LocalProducer`` is one registered producer of one topic (or partition). Answers come back per
publish call to its ``PublishContext``, never per entry: the HTTP side has no future per message
either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import iter_unpack
from typing import TYPE_CHECKING, Protocol

import mmh3

from magnetar.broker.errors import (
    BrokerError,
    BrokerMetadataError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.producer.producer import (
    SHARED,
    TOO_LARGE,
    Producer,
    ProducerRequest,
    PublishBatch,
)
from magnetar.broker.protocol.entry_header import make_header
from magnetar.broker.protocol.framing import METADATA_BYTES_MAX, METADATA_TOO_LARGE
from magnetar.broker.schema.schema_checks import admit_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from magnetar.broker.protocol import pulsar_api_pb2 as pb
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.rate_limits.throttle import PublishThrottle
    from magnetar.broker.schema.definition import SchemaDefinition
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.topic import Topic

Entry = tuple["pb.MessageMetadata", bytes]


class PublishContext(Protocol):
    """Who waits for the entries of one publish call; indexes count from the call's first entry."""

    def done(self, index: int, count: int, ledger_id: int, first_entry_id: int) -> None:
        """Entries ``index .. index + count`` are durable; -1, -1: dropped as duplicates."""

    def failed(self, index: int, count: int, error: Exception) -> None:
        """Those entries were not stored and won't be."""


class _PartContext:
    """The context of a part of a call's entries."""

    def __init__(self, publish_context: PublishContext, first: int) -> None:
        self._publish_context, self._first = publish_context, first

    def done(self, index: int, count: int, ledger_id: int, first_entry_id: int) -> None:
        self._publish_context.done(self._first + index, count, ledger_id, first_entry_id)

    def failed(self, index: int, count: int, error: Exception) -> None:
        self._publish_context.failed(self._first + index, count, error)


def _refusal(
    producer: Producer, metadata: pb.MessageMetadata, body: bytes, now_ms: int
) -> BrokerError | None:
    """Why a policy or a limit forbids an entry, as for those that come by the binary protocol."""
    if producer.encryption_required and not metadata.encryption_keys:
        return BrokerMetadataError("Messages must be encrypted")
    # Magic and checksum are in front of its size: framing.py.
    if int.from_bytes(body[6:10]) > METADATA_BYTES_MAX:
        return NotAllowedError(METADATA_TOO_LARGE)
    if 0 < producer.message_bytes_max < len(body):
        return NotAllowedError(TOO_LARGE)
    if 0 < producer.delay_max_ms < metadata.deliver_at_time - now_ms:
        return NotAllowedError(
            f"Exceeds max allowed delivery delay of {producer.delay_max_ms} milliseconds"
        )
    return None


class LocalProducer:
    """A ProducerSink whose client lives in this process; see ``open``."""

    def __init__(self, remote: str, client_version: str) -> None:
        self.remote = remote
        self.client_version = client_version
        self.closed = False
        self.on_closed: Callable[[], None] | None = None
        self.in_flight = 0  # entries published and not answered
        self._over_rate: set[PublishThrottle] = set()  # the publish limits it waits for
        self._is_paused = False  # for the process's publish buffer
        self._line: deque[asyncio.Future[None]] = deque()  # calls that wait for them
        self._topic: Topic | None = None
        self._producer: Producer | None = None
        # Calls that wait, in publish order, each with its batch: the topic answers in this order.
        self._waiting: deque[tuple[PublishBatch, PublishContext]] = deque()

    @classmethod
    async def open(
        cls,
        service: BrokerService,
        name: TopicName,
        producer_name: str,
        *,
        generated: bool,
        remote: str,
        client_version: str,
        schema: SchemaDefinition | None = None,
    ) -> LocalProducer:
        """Load the topic, creating it if that is allowed, and register a producer on it.

        Args:
            schema: of its messages; checked, and added to the topic's history if that is allowed.
        Raises:
            BrokerError: no such topic, name taken, topic terminated or fenced, limits, schema.
        """
        self = cls(remote, client_version)
        topic = await service.get_topic(name, create=True)
        self._producer = await topic.add_producer(
            ProducerRequest(
                sink=self,
                producer_id=0,
                name=producer_name,
                user_provided_name=not generated,
                access_mode=SHARED,
                metadata={},
                schema=schema,
            )
        )
        self._topic = topic
        service.pause_if_full(self)  # or a call that opens its own would never wait
        return self

    @property
    def last_sequence_id(self) -> int:
        """The highest that is stored of producers of its name; -1: none is known."""
        if self._topic is None or self._producer is None:
            return -1
        return self._topic.last_sequence_id(self._producer.name)

    @property
    def schema_version(self) -> int | None:
        """Of the schema it was opened with."""
        return None if self._producer is None else self._producer.schema_version

    async def admit(self, schema: SchemaDefinition | None) -> int | None:
        """Check and add another schema of its messages; its version.

        Raises:
            IncompatibleSchemaError: against the namespace's rules.
            ServiceNotReadyError: the topic was closed or moved.
        """
        if (topic := self._topic) is None:
            raise ServiceNotReadyError("The topic was closed or moved")
        return await admit_producer(topic, schema, topic.policies)

    @property
    def limited(self) -> bool:
        """Whether any publish limit holds here."""
        topic = self._topic
        return topic is not None and (
            topic.rate_limits.publish is not None or topic.service.publish_throttle is not None
        )

    @property
    def held(self) -> bool:
        """Whether a publish limit is exceeded: call `ready` before the next `publish`."""
        return (self._is_paused or bool(self._over_rate)) and not self.closed

    async def ready(self) -> None:
        """Wait until a call may publish; calls go on one after the other, as they came."""
        while self.held:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._line:
                    self._line.remove(turn)
                else:
                    self._wake_next()  # its turn came and is given away
                raise

    def _wake_next(self) -> None:
        if not self.held:
            while self._line:
                turn = self._line.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return

    def publish(self, entries: Sequence[Entry], publish_context: PublishContext) -> None:
        """Hand entries to the topic in one call; each is answered on ``publish_context`` exactly
        once."""
        topic, producer = self._topic, self._producer
        if self.closed or topic is None or producer is None:
            publish_context.failed(
                0, len(entries), ServiceNotReadyError("The topic was closed or moved")
            )
            return
        if producer.checked or any(len(body) > METADATA_BYTES_MAX for _, body in entries):
            self._publish_checked(topic, producer, entries, publish_context)
        else:
            self._publish(topic, producer, entries, publish_context)
        topic.service.pause_if_full(self)
        if self._line:
            self._wake_next()

    def _publish_checked(
        self,
        topic: Topic,
        producer: Producer,
        entries: Sequence[Entry],
        publish_context: PublishContext,
    ) -> None:
        """Refuse what a policy forbids; what is between goes on in parts."""
        first = 0
        for index, (metadata, body) in enumerate(entries):
            if (refusal := _refusal(producer, metadata, body, topic.service.clock())) is None:
                continue
            if index > first:
                part = entries[first:index]
                self._publish(topic, producer, part, _PartContext(publish_context, first))
            publish_context.failed(index, 1, refusal)
            first = index + 1
        if first == 0:
            self._publish(topic, producer, entries, publish_context)
        elif first < len(entries):
            self._publish(topic, producer, entries[first:], _PartContext(publish_context, first))

    def _publish(
        self,
        topic: Topic,
        producer: Producer,
        entries: Sequence[Entry],
        publish_context: PublishContext,
    ) -> None:
        bodies = [body for _, body in entries]
        metadatas = [metadata for metadata, _ in entries]
        batch = PublishBatch(
            producer,
            [make_header(metadata) for metadata in metadatas],
            bodies,
            [metadata.sequence_id for metadata in metadatas],
            [metadata.highest_sequence_id for metadata in metadatas],
            sum(map(len, bodies)),
            sum(metadata.num_messages_in_batch for metadata in metadatas),  # its default is 1
        )
        self._waiting.append((batch, publish_context))
        self.in_flight += len(bodies)
        topic.publish(producer, batch)

    def close(self) -> None:
        """Unregister; entries under way are still answered."""
        if not self.closed:
            self.closed = True
            self._release_all()
            if self._topic is not None and self._producer is not None:
                self._topic.remove_producer(self._producer)

    # --- ProducerSink: the topic's answers

    def publish_done(
        self, batch: PublishBatch, offset: int, count: int, ledger_id: int, first_entry_id: int
    ) -> None:
        self._take(batch, offset, count).done(offset, count, ledger_id, first_entry_id)

    def publish_failed(
        self, batch: PublishBatch, offset: int, count: int, error: Exception
    ) -> None:
        self._take(batch, offset, count).failed(offset, count, error)

    def close_producer(self, producer: Producer) -> None:
        self.closed = True
        self._release_all()
        if self.on_closed is not None:
            self.on_closed()

    def pause_publishing(self, limit: PublishThrottle) -> None:
        self._over_rate.add(limit)

    def resume_publishing(self, limit: PublishThrottle) -> None:
        self._over_rate.discard(limit)
        self._wake_next()

    def pause_for_process(self) -> None:
        """Too many bytes of the process wait for storage."""
        self._is_paused = True

    def resume_for_process(self) -> None:
        self._is_paused = False
        self._wake_next()

    def _release_all(self) -> None:
        """Nothing is published any more: whoever waits is told so by `publish`."""
        if self._topic is not None:
            self._topic.service.forget_publisher(self)
        for limit in self._over_rate:
            limit.leave(self)
        self._over_rate.clear()
        line, self._line = self._line, deque()
        for turn in line:
            if not turn.done():
                turn.set_result(None)

    async def check_liveness(self) -> bool:
        return not self.closed

    def _take(self, batch: PublishBatch, offset: int, count: int) -> PublishContext:
        self.in_flight -= count
        waiting = self._waiting
        for index, (known, publish_context) in enumerate(waiting):
            if known is batch:  # nearly always the first one
                if offset + count == len(batch.sequence_ids):
                    del waiting[index]
                return publish_context
        raise AssertionError("the topic answered a batch twice")


_UNITS_AT_ONCE = 256


def java_string_hash(key: str) -> int:
    """Java's ``String.hashCode`` without its sign: what clients route keys by, by default."""
    data = key.encode("utf-16-be", "surrogatepass")
    if len(data) > 2 * _UNITS_AT_ONCE:
        return _long_hash(data)
    value = 0
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def _long_hash(data: bytes) -> int:
    """The same of many blocks at once: 10 ns a character, not a quarter of a microsecond.

    A block's sum is a column of 64 bits of one large number; below 2**32 after each step, so that
    31 times it doesn't reach its neighbour.
    """
    data = bytes(-len(data) % (2 * _UNITS_AT_ONCE)) + data  # zeros in front change nothing
    stride = 2 * _UNITS_AT_ONCE
    blocks = len(data) // stride
    mask = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * blocks, "little")
    sums, columns = 0, bytearray(8 * blocks)
    for at in range(0, stride, 2):
        columns[0::8], columns[1::8] = data[at + 1 :: stride], data[at::stride]
        sums = (31 * sums + int.from_bytes(columns, "little")) & mask
    step, value = pow(31, _UNITS_AT_ONCE, 1 << 32), 0
    for (block,) in iter_unpack("<Q", sums.to_bytes(8 * blocks, "little")):
        value = (value * step + block) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def murmur_hash(key: str) -> int:
    """Murmur3_32 of the key's UTF-8, without its sign."""
    return mmh3.hash(key.encode("utf-8", "surrogatepass"), signed=False) & 0x7FFFFFFF
