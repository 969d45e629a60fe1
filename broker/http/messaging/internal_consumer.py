"""The consumer side of one HTTP client: messages of one topic or all its partitions, with credit.

Credit is what the client may still be sent. The broker's permits follow the credit, so nothing is
fetched that the client hasn't room for, except the rest of a batch and up to one message a
partition. Bytes decoded and not yet written to the client are bounded: above the limit, and while
the client's socket takes nothing, the sinks aren't writable. Chunked messages are put together
here, within a bound of their own: were their chunks counted above, the rest of a large message
could never come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.cluster.broker_connection import BrokerConnections
from magnetar.broker.errors import BrokerError
from magnetar.broker.http.messaging.consumed_message import ConsumedMessage, MessageKey
from magnetar.broker.http.messaging.entry_unpacker import QueuedEntry, Unpacker
from magnetar.broker.http.no_callback import no_callback
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import EXPIRE_MS, ChunkAssembler
from magnetar.broker.protocol.framing import NO_ID
from magnetar.broker.protocol.messages import (
    BATCH_MESSAGES_MAX,
    INFLATE_BYTES_MAX,
    Message,
    UndecodableEntryError,
    is_chunk,
    is_large,
    is_set,
    messages_of,
    open_entry,
)
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.managed_ledger.cursor.ack_state import mask_to_words
from magnetar.managed_ledger.position import EARLIEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from magnetar.broker.dispatch.unsent_budget import UnsentBudget
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.subscription.consumer import Consumer, SubscribeRequest
    from magnetar.managed_ledger.entry_batch import EntryBatch
    from magnetar.managed_ledger.position import Position

logger = logging.getLogger(__name__)

CONSUME, DISCARD = "CONSUME", "DISCARD"  # cryptoFailureAction of Pulsar's clients
UNACKED, ACKED, UNKNOWN = "unacknowledged", "acknowledged", "unknown"
PARTIAL_MAX = 20_000  # batches acknowledged in part, per source
PARTIAL_BYTES_MAX = 4 * 1024 * 1024  # of their bits
LEDGERS_MAX = 10_000  # that messages of several topics came from
CHUNK_POSITIONS_MAX = 200_000  # of chunked messages that aren't acknowledged, per source
LEAVING_S = 0.2  # how long a rival for an exclusive subscription waits for a session to end


class _Source:
    """ConsumerSink of one topic or partition; hands everything to its feed."""

    unheard = ""

    def __init__(
        self, consumer_feed: InternalConsumer, partition: int, remote: str, client_version: str
    ) -> None:
        self.consumer_feed = consumer_feed
        self.partition = partition
        self.remote = remote
        self.client_version = client_version
        self.consumer: Any = None  # Consumer, or ClientConsumer, which has the same face
        self.gone = False  # its consumer was closed, by us or by the broker
        self.end_of_topic = False
        self.topic_name = ""
        self.skip_through: tuple[int, int, int] | None = None  # ledger, entry, batch index
        self.acked: list[Position] = []  # whole entries acknowledged in this tick
        # Acknowledged bits and size of batches that aren't whole yet. Kept until then: the broker
        # may be set not to keep batch indexes. Bounded by what this client has unacknowledged.
        self.partial: dict[Position, tuple[int, int]] = {}
        self.partial_bytes = 0  # of these bits; each batch counts as it was first met
        self.touched: set[Position] = set()  # of these, what was acknowledged in this tick
        self.chunks: ChunkAssembler | None = None  # made when the first chunk comes
        # All positions of chunked messages that the client has, by the last one.
        self.chunked: dict[Position, tuple[Position, ...]] = {}
        self.chunked_positions = 0
        self.met_encrypted = False
        self.returning: list[tuple[int, list[Position]]] = []  # chunks, by deadline (ms); few

    @property
    def writable(self) -> bool:
        return self.consumer_feed.writable

    def deliver(
        self,
        consumer: Consumer,
        batch: EntryBatch,
        picks: Sequence[int] | None,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        self.consumer = consumer  # the first delivery may come before subscribe has returned
        chosen = range(len(batch.bodies)) if picks is None else picks
        for number, index in enumerate(chosen):
            count = redelivery_counts[number] if redelivery_counts else 0
            words = ack_sets.get(index) if ack_sets else None
            self.consumer_feed.add_entry(
                self, batch.ledger_id, batch.first + index, batch.bodies[index], count, words
            )
        self.consumer_feed.announce()

    def take_chunked(self, position: Position) -> tuple[Position, ...]:
        """The positions of one message; the caller settles them all."""
        positions = self.chunked.pop(position, None)
        if positions is None:
            return (position,)
        self.chunked_positions -= len(positions)
        return positions

    def note_acked(self, position: Position, bits: int, size: int) -> None:
        """These messages of a batch of ``size`` are acknowledged in this tick."""
        known = self.partial.get(position)
        if known is None:
            self.partial_bytes += size >> 3
        self.partial[position] = (bits if known is None else bits | known[0], size)
        self.touched.add(position)
        # Ids that were never delivered here, of batches as large as ids may claim.
        while len(self.partial) > PARTIAL_MAX or (
            self.partial_bytes > PARTIAL_BYTES_MAX and len(self.partial) > 1
        ):
            self.forget_partial(next(iter(self.partial)))

    def forget_partial(self, position: Position) -> None:
        _, size = self.partial.pop(position)
        self.partial_bytes -= size >> 3

    def keep_chunked(self, position: Position, positions: tuple[Position, ...]) -> None:
        self.take_chunked(position)  # an earlier delivery of it
        self.chunked[position] = positions
        self.chunked_positions += len(positions)
        # Forgotten ones stay unacknowledged and come again with the next session.
        while self.chunked_positions > CHUNK_POSITIONS_MAX and len(self.chunked) > 1:
            self.take_chunked(next(iter(self.chunked)))

    def notify_active(self, consumer: Consumer, is_active: bool) -> None:
        """Nothing to tell: the WebSocket protocol has no word for it."""

    def notify_end_of_topic(self, consumer: Consumer) -> None:
        self.end_of_topic = True

    def close_consumer(self, consumer: Consumer) -> None:
        self.consumer, self.gone = None, True
        self.consumer_feed.lost(self)

    async def check_liveness(self) -> bool:
        # A client that closes a WebSocket and connects again may be here before the old session
        # has heard of its close frame, which the protocol below answers by itself.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await self.consumer_feed.wait_for_end()
        return not self.consumer_feed.closed


class InternalConsumer:
    """Subscribed consumers of one client. Open it, add credit, take deliveries, acknowledge.

    One object, because credit, buffered bytes and permits are one account over all topics; the
    state of one topic (partial batches, chunks) is in its `_Source`, unpacking in `Unpacker`.
    """

    def __init__(
        self,
        service: BrokerService,
        on_ready: Callable[[], None],
        on_lost: Callable[[], None],
        buffer_bytes_max: int,
        budget: UnsentBudget | None = None,
    ) -> None:
        """
        Args:
            on_ready: called when deliveries arrived; take them before or after, on the loop.
            on_lost: the broker closed a consumer (topic unloaded, deleted or moved).
            budget: what is buffered counts there.
        """
        self._service = service
        self._on_ready = on_ready
        self._on_lost = on_lost
        self.buffer_bytes_max = buffer_bytes_max
        self.buffered_bytes = 0
        self._budget, self._counted_bytes = budget, 0
        self._stalled = False
        self.credit = 0
        self.closed = False
        self.crypto_action = CONSUME
        """With encrypted messages: CONSUME passes them on as they are, DISCARD acknowledges them,
        FAIL leaves them unacknowledged. Nothing here has keys."""
        self.on_topic_lost: Callable[[str], None] | None = None
        """Set: topics come and go, and ``on_lost`` isn't called for one of them."""
        self._ended: asyncio.Event | None = None  # made when somebody waits
        # Replaced before anything is added: a deque takes 760 bytes, and most feeds are idle.
        self.ready: deque[ConsumedMessage] = _NOTHING
        self._sources: list[_Source] = []
        self._connections = BrokerConnections(service)  # of topics that aren't served here
        self._by_partition: dict[int, _Source] = {}
        # With several topics partition numbers don't tell them apart; ledgers belong to one.
        self._by_ledger: dict[int, _Source] | None = None
        self._flush_scheduled = False
        self._paused = False
        self._payload_bytes_max = 4 * service.config.max_message_size
        self._chunk_timer: asyncio.TimerHandle | None = None
        self._unpacker: Unpacker | None = None  # while entries wait to be taken apart
        self._inflated_bytes = 0  # in this turn of the loop

    async def open(
        self,
        names: Sequence[TopicName],
        request: SubscribeRequest,
        *,
        remote: str,
        client_version: str,
    ) -> None:
        """Subscribe to all of the topics, or to each partition of a partitioned one.

        Raises:
            BrokerError: as ``Topic.subscribe``; nothing stays subscribed then.
        """
        if len(names) > 1:
            self._by_ledger = {}
        try:
            for name in names:
                count = await self._service.directory.partitions_for_client(name, create=True)
                parts = [name.partition(index) for index in range(count)] if count else [name]
                for index, one in enumerate(parts):
                    source = _Source(self, index if count else -1, remote, client_version)
                    source.topic_name = str(one)
                    self._by_partition[source.partition] = source
                    self._sources.append(source)
                    source.consumer = await self._subscribe(one, request, source, create=True)
        except BaseException:
            self.close()
            raise

    async def _subscribe(
        self, name: TopicName, request: SubscribeRequest, source: _Source, *, create: bool
    ) -> Any:
        """The consumer, where the topic is served."""
        if (owner := await self._service.broker_client.serving(name)) is None:
            topic = await self._service.loader.load(name, create=create)
            return await topic.subscribe(replace(request), source)
        consumer = ClientConsumer(await self._connections.to(owner), name, source)
        await consumer.subscribe(_subscribe_command(request))
        return consumer

    async def add_topic(
        self, name: TopicName, request: SubscribeRequest, *, remote: str, client_version: str
    ) -> None:
        """Subscribe to one more topic or partition, which must exist.

        REQUIRES: ``on_topic_lost`` is set.
        Raises:
            BrokerError: as ``Topic.subscribe``; the others go on.
        """
        if self._by_ledger is None:
            self._by_ledger = {}
        source = _Source(self, name.partition_index, remote, client_version)
        source.topic_name = str(name)
        consumer = await self._subscribe(name, request, source, create=False)
        if self.closed:
            consumer.subscription.remove_consumer(consumer)
        elif source.gone:  # closed again before we heard of it
            self.lost(source)
        else:
            source.consumer = consumer
            self._sources.append(source)
            self._flush_soon()  # its share of the credit

    def remove_topic(self, topic: str) -> None:
        """Leave one; what is unacknowledged goes to others, as far as the topic is still there."""
        for source in self._sources:
            if source.topic_name == topic:
                consumer, source.consumer, source.gone = source.consumer, None, True
                self._drop(source)
                if consumer is not None:
                    consumer.subscription.remove_consumer(consumer)
                return

    def _drop(self, source: _Source) -> None:
        """Forget a source and what came from it: it comes again if the topic does."""
        assert self._by_ledger is not None
        if source in self._sources:
            self._sources.remove(source)
        self._by_ledger = {
            ledger_id: each for ledger_id, each in self._by_ledger.items() if each is not source
        }
        if source.chunks is not None:
            source.chunks.close()
        dropped = [delivery for delivery in self.ready if delivery.topic == source.topic_name]
        if dropped:
            self.ready = deque(d for d in self.ready if d.topic != source.topic_name)
            self.release(dropped)
        self._flush_soon()  # the others' shares are larger now

    def skip_through(self, ledger_id: int, entry_id: int, batch_index: int) -> None:
        """Leave out this batch's messages up to that index: a reader starts behind a message id."""
        for source in self._sources:
            source.skip_through = (ledger_id, entry_id, batch_index)

    # --- messages

    def add_entry(
        self,
        source: _Source,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        redelivery_count: int,
        words: Sequence[int] | None,
    ) -> None:
        """Take one entry apart, or later if that takes long or others wait for that already. One
        that can't be is acknowledged, as the official clients do.
        """
        entry = QueuedEntry(source, (ledger_id, entry_id), redelivery_count, words)
        decoded = self._service.decoded_entries
        if self._unpacker is None and (known := decoded.find(body)) is not None:
            if not self.add_messages(entry, known):
                self.skip(entry)
            return
        try:
            metadata, payload = open_entry(body)
            if metadata.encryption_keys and self.crypto_action != CONSUME:
                self._refuse_encrypted(source, entry.position)
                return
            if is_chunk(metadata):
                positions, joined = self._join(source, metadata, payload, entry.position)
                if joined is None:
                    return
                entry.first_chunk, payload = positions[0], memoryview(joined)
                source.keep_chunked(entry.position, positions)
            if self._unpacker is not None or is_large(metadata) or self._inflates_much(metadata):
                self._unpack_later(entry, metadata, payload)
                return
            messages = messages_of(metadata, payload, self._payload_bytes_max)
            decoded.add(body, metadata, messages)
        except UndecodableEntryError as error:
            self.skip_broken(entry, error)
            return
        if not self.add_messages(entry, messages):
            self.skip(entry)

    def _inflates_much(self, metadata: pb.MessageMetadata) -> bool:
        """Whether small entries together are as much as a large one, in this turn of the loop."""
        if not metadata.HasField("compression"):
            return False
        if not self._inflated_bytes:
            asyncio.get_running_loop().call_soon(self._turn_ended)
        self._inflated_bytes += metadata.uncompressed_size
        return self._inflated_bytes > INFLATE_BYTES_MAX

    def _turn_ended(self) -> None:
        self._inflated_bytes = 0

    def _unpack_later(
        self, entry: QueuedEntry, metadata: pb.MessageMetadata, payload: memoryview
    ) -> None:
        if self._unpacker is None:
            self._unpacker = Unpacker(self, self._payload_bytes_max, self._service.schemas)
        self.buffered_bytes += len(payload)
        self._unpacker.add(entry, metadata, payload)

    def unpacked(self, payload_bytes: int) -> None:
        """The unpacker is done with an entry's payload."""
        self.buffered_bytes -= payload_bytes
        if not self.closed:
            self.announce()

    def unpacker_ended(self) -> None:
        """Entries are taken apart at once again."""
        self._unpacker = None

    def skip_broken(
        self, entry: QueuedEntry, error: Exception, messages: int = 0, size: int = 0
    ) -> None:
        """Log why, and acknowledge the entry: of a batch of ``size`` what is behind the first
        ``messages``, which were delivered.
        """
        source = entry.source
        logger.warning("%s: skipped %d:%d: %s", source.topic_name, *entry.position, error)
        if not messages:
            self.skip(entry)
            return
        source.note_acked(entry.position, (1 << size) - (1 << messages), size)
        self._flush_soon()

    def skip(self, entry: QueuedEntry) -> None:
        """There is nothing in it: acknowledge it."""
        entry.source.acked += entry.source.take_chunked(entry.position)
        self._flush_soon()

    def add_messages(self, entry: QueuedEntry, messages: Iterable[Message]) -> int:
        """Make deliveries of messages of one entry; how many messages there were."""
        source, (ledger_id, entry_id) = entry.source, entry.position
        if (by_ledger := self._by_ledger) is not None:
            by_ledger[ledger_id] = source
            if len(by_ledger) > LEDGERS_MAX:
                del by_ledger[next(iter(by_ledger))]
        skip, words, count = source.skip_through, entry.words, 0
        for message in messages:
            count += 1
            index = message.batch_index
            if words is not None and index >= 0 and not is_set(words, index):
                continue
            if skip is not None and index >= 0 and (ledger_id, entry_id, index) <= skip:
                continue
            self.buffered_bytes += message.held_bytes
            if self.ready is _NOTHING:
                self.ready = deque()
            self.ready.append(
                ConsumedMessage(
                    source.partition,
                    ledger_id,
                    entry_id,
                    message,
                    entry.redelivery_count,
                    entry.first_chunk,
                    source.topic_name,
                )
            )
        return count

    def _refuse_encrypted(self, source: _Source, position: Position) -> None:
        if self.crypto_action == DISCARD:
            source.acked.append(position)
        elif not source.met_encrypted:
            source.met_encrypted = True
            logger.warning("%s: %d:%d is encrypted: not delivered", source.topic_name, *position)
        self._flush_soon()  # it used up a permit

    def _join(
        self,
        source: _Source,
        metadata: pb.MessageMetadata,
        payload: memoryview,
        position: Position,
    ) -> tuple[tuple[Position, ...], bytes | None]:
        """Take one chunk: the message's positions and payload, when this was its last one."""
        if (chunks := source.chunks) is None:
            chunks = source.chunks = ChunkAssembler(
                self._payload_bytes_max, self._service.chunk_bytes
            )
        now_ms = _now_ms()
        joined = chunks.add(metadata, payload, position, now_ms)
        self._settle_chunks(source, now_ms)
        self._arm_chunks()
        self._flush_soon()  # chunks use up permits, not credit
        return ((), None) if joined is None else (joined.positions, joined.payload)

    def _settle_chunks(self, source: _Source, now_ms: int) -> None:
        """Acknowledge the chunks that the assembler gave up; those it put back come again."""
        assert source.chunks is not None
        if given_up := source.chunks.given_up:
            logger.warning(
                "%s: skipped a chunked message that is incomplete or too large, %d chunks to %d:%d",
                *(source.topic_name, len(given_up), *given_up[-1]),
            )
            source.acked += given_up
            given_up.clear()
            self._flush_soon()
        if put_back := source.chunks.put_back:
            source.returning.append((now_ms + EXPIRE_MS, list(put_back)))
            put_back.clear()

    def _arm_chunks(self) -> None:
        """One timer for all that waits: the assemblers' deadlines and chunks to come again."""
        deadlines = [source.returning[0][0] for source in self._sources if source.returning]
        deadlines += [
            deadline_ms
            for source in self._sources
            if source.chunks is not None
            and (deadline_ms := source.chunks.next_deadline_ms) is not None
        ]
        if self._chunk_timer is None and deadlines and not self.closed:
            delay_s = max(min(deadlines) - _now_ms(), 0) / 1000 + 0.01
            self._chunk_timer = asyncio.get_running_loop().call_later(delay_s, self._on_chunk_timer)

    def _on_chunk_timer(self) -> None:
        self._chunk_timer = None
        if self.closed:
            return
        now_ms = _now_ms()
        for source in self._sources:
            if source.chunks is not None:
                source.chunks.expire(now_ms)
                self._settle_chunks(source, now_ms)
            due: list[Position] = []
            while source.returning and source.returning[0][0] <= now_ms:
                due += source.returning.pop(0)[1]
            if due and (consumer := source.consumer) is not None:
                consumer.subscription.redeliver(consumer, sorted(due))
        self._arm_chunks()

    def announce(self) -> None:
        if self.buffered_bytes >= self.buffer_bytes_max:
            self._pause()
        self._count_buffered()
        self._on_ready()

    @property
    def writable(self) -> bool:
        return self.buffered_bytes < self.buffer_bytes_max and not self._stalled

    def stall(self) -> None:
        """The client's socket takes nothing now: what is buffered waits until `release`."""
        self._stalled = True
        self._pause()

    def _count_buffered(self) -> None:
        if self._budget is not None:
            self._budget.changed(self.buffered_bytes - self._counted_bytes)
            self._counted_bytes = self.buffered_bytes

    def _pause(self) -> None:
        self._paused = True
        self._connections.pause()

    def take(self, count_max: int) -> list[ConsumedMessage]:
        """Up to that many deliveries, within the credit, which they use up."""
        ready = self.ready
        count = min(count_max, self.credit, len(ready))
        self.credit -= count
        return [ready.popleft() for _ in range(count)]

    def release(self, deliveries: Sequence[ConsumedMessage]) -> None:
        """These were handed to the client's socket: their bytes are free again."""
        self.buffered_bytes -= sum(d.message.held_bytes for d in deliveries)
        self._stalled = False
        self._count_buffered()
        if self._unpacker is not None and self.buffered_bytes < self.buffer_bytes_max:
            self._unpacker.on_room()
        if self._paused and self.buffered_bytes <= self.buffer_bytes_max // 2:
            self._paused = False
            self._connections.resume()
            for source in self._sources:
                if source.consumer is not None:
                    source.consumer.subscription.wake()

    def add_credit(self, count: int) -> None:
        """The client has room for that many more."""
        self.credit += count
        self._flush_soon()

    # --- acknowledgements

    def acknowledge(self, key: MessageKey) -> None:
        """One message is done; all of a tick go to the subscription together.

        Raises:
            KeyError: no such partition; of several topics: not delivered here. Where topics come
                and go, such an id is of one that went.
        """
        partition, ledger_id, entry_id, batch_index, batch_size = key
        if (source := self._source(partition, ledger_id)) is None:
            return
        if batch_index >= 0 and not batch_index < max(batch_size, 1) <= BATCH_MESSAGES_MAX:
            return  # a made-up id: nothing of ours, and no huge bit set because of it
        if batch_index < 0 or batch_size <= 1:
            source.acked += source.take_chunked((ledger_id, entry_id))
        else:
            source.note_acked((ledger_id, entry_id), 1 << batch_index, batch_size)
        self._flush_soon()

    def state_of(self, key: MessageKey) -> str:
        """UNACKED, ACKED, or UNKNOWN: there is no such message, or not any more.

        What was acknowledged in this tick counts after ``flush``. A volatile topic's are UNKNOWN.

        Raises:
            KeyError: no such partition.
        """
        partition, ledger_id, entry_id, index, size = key
        source = self._source(partition, ledger_id)
        if source is None or source.consumer is None:
            return UNKNOWN
        subscription, position = source.consumer.subscription, (ledger_id, entry_id)
        if isinstance(subscription, ClientConsumer):
            return UNACKED  # its broker knows; to acknowledge twice does no harm
        if not isinstance(subscription, PersistentSubscription):
            return UNKNOWN
        beyond = size >= 0 and index >= max(size, 1)  # of the batch that the id claims
        if beyond or not subscription.ledger.offsets.is_valid(position):
            return UNKNOWN
        cursor = subscription.cursor
        if cursor.state.is_acked(position):
            return ACKED
        if index < 0:
            return UNACKED
        bits, _ = source.partial.get(position, (0, 0))
        words = cursor.state.batch_ack_set(position)
        done = bits >> index & 1 or (words is not None and not is_set(words, index))
        return ACKED if done else UNACKED

    def flush(self) -> None:
        """Hand acknowledgements to the subscriptions now, not at the end of the tick."""
        if not self.closed:
            self._flush()

    async def stored(self) -> None:
        """Returns when what has been acknowledged is durable.

        Raises:
            ManagedLedgerError: it isn't, and may be delivered again.
        """
        self.flush()
        for source in list(self._sources):
            if source.consumer is not None and (cursor := source.consumer.subscription.cursor):
                await cursor.flush()

    def redeliver(self, keys: Sequence[MessageKey]) -> None:
        """Send these again; of a batch everything that isn't acknowledged."""
        by_source: dict[_Source, set[Position]] = {}
        for partition, ledger_id, entry_id, _, _ in keys:
            if (source := self._source(partition, ledger_id)) is None:
                continue
            by_source.setdefault(source, set()).update(source.take_chunked((ledger_id, entry_id)))
        self._flush()
        for source, positions in by_source.items():
            if (consumer := source.consumer) is not None:
                consumer.subscription.redeliver(consumer, sorted(positions))

    def _source(self, partition: int, ledger_id: int) -> _Source | None:
        if self.closed:
            return None
        if self._by_ledger is not None:
            if self.on_topic_lost is not None:
                return self._by_ledger.get(ledger_id)
            return self._by_ledger[ledger_id]
        if (source := self._by_partition.get(partition)) is not None:
            return source
        if len(self._sources) == 1:  # an id without its partition, of another client library
            return self._sources[0]
        raise KeyError(partition)

    def _flush_soon(self) -> None:
        # Not at once: deliver() runs inside the dispatcher, and acks of a tick go together.
        if not self._flush_scheduled and not self.closed:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_scheduled_now)

    def _flush_scheduled_now(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _flush(self) -> None:
        for source in self._sources:
            if source.touched or source.acked:
                self._flush_acks(source)
        wanted = self.credit - len(self.ready)
        if wanted <= 0 or not self._sources:
            return
        share = -(-wanted // len(self._sources))
        # An entry that was skipped used up as many permits as it claimed to have messages, perhaps
        # a million. Nothing else but what is still to be delivered may be owed.
        owed = bool(self.ready) or self._unpacker is not None
        for source in self._sources:
            consumer = source.consumer
            # In steps of half the share: a flow per message would wake the dispatcher each time.
            if consumer is not None and consumer.permits * 2 <= share:
                had = max(consumer.permits, 0) if owed else consumer.permits
                consumer.subscription.flow(consumer, share - had)

    def _flush_acks(self, source: _Source) -> None:
        acked, source.acked = source.acked, []
        touched, source.touched = source.touched, set()
        consumer = source.consumer
        if consumer is None:
            return  # its messages will be redelivered wherever the topic went
        subscription = consumer.subscription
        for position in touched & source.partial.keys():
            bits, size = source.partial[position]
            whole = (1 << size) - 1
            if bits & whole == whole:
                source.forget_partial(position)
                acked.append(position)
            else:
                subscription.acknowledge_batch(consumer, position, _words(whole & ~bits, size))
        if acked:
            subscription.acknowledge(consumer, acked)

    # --- ends

    @property
    def end_of_topic(self) -> bool:
        """Every partition is terminated and read to its end."""
        return bool(self._sources) and all(source.end_of_topic for source in self._sources)

    async def unsubscribe(self) -> None:
        """Remove the subscription itself, with its cursor.

        Raises:
            BrokerError: other consumers use it.
        """
        for source in list(self._sources):
            if (consumer := source.consumer) is not None:
                source.consumer = None
                await consumer.subscription.unsubscribe(consumer, force=False)

    def lost(self, source: _Source) -> None:
        if self.closed:
            return
        if self.on_topic_lost is None:
            self._on_lost()
            return
        self._drop(source)
        self.on_topic_lost(source.topic_name)

    async def wait_for_end(self) -> None:
        if not self.closed:
            if self._ended is None:
                self._ended = asyncio.Event()
            await self._ended.wait()

    def close(self) -> None:
        """Leave the subscription: what isn't acknowledged goes to others at once."""
        if self.closed:
            return
        try:
            self._flush()
        except BrokerError as error:  # a topic that is being closed takes no more acks
            logger.info("acknowledgements lost at close: %s", error)
        self.closed = True
        if self._ended is not None:
            self._ended.set()
        if self._chunk_timer is not None:
            self._chunk_timer.cancel()
        if self._unpacker is not None:
            self._unpacker.close()
        for source in self._sources:
            if source.chunks is not None:
                source.chunks.close()
            if (consumer := source.consumer) is not None:
                source.consumer = None
                consumer.subscription.remove_consumer(consumer)
        self._connections.close()
        self.ready.clear()
        self.buffered_bytes = 0
        self._count_buffered()
        # Nothing here is held by what it holds: it is freed at once, not by the collector.
        self._on_ready = self._on_lost = no_callback
        self.on_topic_lost = None
        self._sources, self._by_partition, self._by_ledger = [], {}, None


_NOTHING: Final[deque[ConsumedMessage]] = deque(maxlen=0)
"""Of all feeds that have nothing to deliver."""


def _subscribe_command(request: SubscribeRequest) -> pb.CommandSubscribe:
    command = pb.CommandSubscribe(
        subscription=request.subscription,
        subType=pb.CommandSubscribe.SubType.ValueType(request.sub_type),
        consumer_name=request.consumer_name,
        priority_level=request.priority_level,
        durable=request.durable,
    )
    if request.initial_position == EARLIEST:
        command.initialPosition = pb.CommandSubscribe.Earliest
    if request.start_position is not None:
        ledger_id, entry_id = (number & NO_ID for number in request.start_position)
        command.start_message_id.ledgerId, command.start_message_id.entryId = ledger_id, entry_id
    return command


def _now_ms() -> int:
    """Of the loop's clock, which doesn't jump."""
    return int(asyncio.get_running_loop().time() * 1000)


def _words(bits: int, size: int) -> list[int]:
    """``bits`` as signed 64-bit words, lowest first, as cursors take them."""
    words = mask_to_words(bits)
    return words + [0] * (-(-size // 64) - len(words))
