"""Producers inside the broker: what REST calls and WebSockets publish through.

One ``LocalProducer`` is one registered producer of one topic (or partition). Answers come back per
publish call to its ``PublishCallback``, never per entry: the HTTP side has no future per message
either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING

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
from magnetar.broker.protocol.entry_header import U32_MAX
from magnetar.broker.protocol.framing import METADATA_BYTES_MAX, METADATA_TOO_LARGE
from magnetar.broker.schema.schema_checks import admit_producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from magnetar.broker.client.client_producer import PublishCallback
    from magnetar.broker.protocol import pulsar_api_pb2 as pb
    from magnetar.broker.protocol.messages import Entry
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter
    from magnetar.broker.schema.definition import SchemaDefinition
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.topic import Topic


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


def shared_fields(
    entries: Sequence[Entry], make_header: Callable[[pb.MessageMetadata, int], bytes]
) -> tuple[list[bytes], list[int], int]:
    """Heads, highest sequence ids, and the number of messages.

    Found out once for neighbours that share their metadata: a head doesn't tell the sequence id.
    """
    heads, highest_ids, messages = list[bytes](), list[int](), 0
    previous, head, highest_id, count = None, b"", 0, 0
    for metadata, _, _ in entries:
        if metadata is not previous:
            previous, head = metadata, make_header(metadata, U32_MAX)
            highest_id = metadata.highest_sequence_id
            count = metadata.num_messages_in_batch  # its default is 1
        heads.append(head)
        highest_ids.append(highest_id)
        messages += count
    return heads, highest_ids, messages


class LocalProducer:
    """A ProducerSink whose client lives in this process; see ``open``."""

    def __init__(self, remote: str, client_version: str) -> None:
        self.remote = remote
        self.client_version = client_version
        self.closed = False
        self.on_closed: Callable[[], None] | None = None
        self._over_rate: set[PublishRateLimiter] = set()  # the publish limits it waits for
        self._is_paused = False  # for the process's publish buffer
        self._turn, self._resumed = asyncio.Lock(), asyncio.Event()  # of calls that wait for them
        self._topic: Topic | None = None
        self._producer: Producer | None = None
        # Publishes in their order: whom to tell, and the index in its call. The topic answers in
        # this order.
        self._waiting: deque[tuple[PublishBatch, PublishCallback, int]] = deque()

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
        topic = await service.loader.load(name, create=True)
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
        if service.ledgers.append_budget.must_pause():
            service.pause_publisher(self)  # or a call that opens its own would never wait
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
        async with self._turn:  # the next one looks again when this one has published
            while self.held:
                self._resumed.clear()
                await self._resumed.wait()

    def _wake(self) -> None:
        if not self.held:
            self._resumed.set()

    def publish(self, entries: Sequence[Entry], callback: PublishCallback) -> None:
        """Hand entries to the topic in one call."""
        topic, producer = self._topic, self._producer
        if self.closed or topic is None or producer is None:
            error = ServiceNotReadyError("The topic was closed or moved")
            callback(0, len(entries), -1, -1, error)
            return
        if producer.checked or any(len(body) > METADATA_BYTES_MAX for _, body, _ in entries):
            self._publish_checked(topic, producer, entries, callback)
        else:
            self._publish(topic, producer, entries, callback, 0)
        if topic.service.ledgers.append_budget.must_pause():
            topic.service.pause_publisher(self)

    def _publish_checked(
        self, topic: Topic, producer: Producer, entries: Sequence[Entry], callback: PublishCallback
    ) -> None:
        """Refuse what a policy forbids; what is between goes on in parts."""
        now_ms, first = topic.service.wall_clock(), 0
        for refusal, part in groupby(
            entries, lambda entry: _refusal(producer, entry[0], entry[1], now_ms)
        ):
            count = len(run := list(part))
            if refusal is None:
                self._publish(topic, producer, run, callback, first)
            else:
                callback(first, count, -1, -1, refusal)
            first += count

    def _publish(
        self,
        topic: Topic,
        producer: Producer,
        entries: Sequence[Entry],
        callback: PublishCallback,
        first: int,
    ) -> None:
        """``first``: index of the first entry in its call."""
        bodies = [body for _, body, _ in entries]
        heads, highest_ids, messages = shared_fields(
            entries, topic.service.send_messages.make_header
        )
        batch = PublishBatch(
            producer,
            heads,
            bodies,
            [sequence_id for _, _, sequence_id in entries],
            highest_ids,
            sum(map(len, bodies)),
            messages,
        )
        self._waiting.append((batch, callback, first))
        topic.publish((batch,))

    def close(self) -> None:
        """Unregister; entries under way are still answered."""
        if not self.closed:
            self.closed = True
            self._release_all()
            if self._topic is not None and self._producer is not None:
                self._topic.remove_producer(self._producer)
        # The producer holds this sink, and the callback what holds it.
        self._producer = self.on_closed = None

    # --- ProducerSink: the topic's answers

    def publish_done(
        self, batch: PublishBatch, offset: int, count: int, ledger_id: int, first_entry_id: int
    ) -> None:
        callback, first = self._take(batch, offset, count)
        callback(first + offset, count, ledger_id, first_entry_id, None)

    def publish_failed(
        self, batch: PublishBatch, offset: int, count: int, error: Exception
    ) -> None:
        callback, first = self._take(batch, offset, count)
        callback(first + offset, count, -1, -1, error)

    def close_producer(self, producer: Producer) -> None:
        self.closed = True
        self._release_all()
        if self.on_closed is not None:
            self.on_closed()

    def pause_publishing(self, limit: PublishRateLimiter) -> None:
        self._over_rate.add(limit)

    def resume_publishing(self, limit: PublishRateLimiter) -> None:
        self._over_rate.discard(limit)
        self._wake()

    def pause_for_process(self) -> None:
        """Too many bytes of the process wait for storage."""
        self._is_paused = True

    def resume_for_process(self) -> None:
        self._is_paused = False
        self._wake()

    def _release_all(self) -> None:
        """Nothing is published any more: whoever waits is told so by `publish`."""
        if self._topic is not None:
            self._topic.service.forget_publisher(self)
        for limit in self._over_rate:
            limit.leave(self)
        self._over_rate.clear()
        self._wake()

    async def check_liveness(self) -> bool:
        return not self.closed

    def _take(self, batch: PublishBatch, offset: int, count: int) -> tuple[PublishCallback, int]:
        waiting = self._waiting
        for index, (known, callback, first) in enumerate(waiting):
            if known is batch:  # nearly always the first one
                if offset + count == len(batch.sequence_ids):
                    del waiting[index]
                return callback, first
        raise AssertionError("the topic answered a batch twice")
