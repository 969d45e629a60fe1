"""WebSocket consumer and reader sessions: messages out under credit, acknowledgements in (6.3)."""

import asyncio
import logging
import secrets
from abc import abstractmethod
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import orjson

from magnetar.broker.errors import BrokerError
from magnetar.broker.http.messaging.consumed_message import ConsumedMessage, MessageKey, parse_key
from magnetar.broker.http.messaging.internal_consumer import InternalConsumer
from magnetar.broker.http.messaging.internal_producer import InternalProducer
from magnetar.broker.http.websocket.channel import CLOSE_BASE, RESTART, Session, WebSocketChannel
from magnetar.broker.http.websocket.fields import iso_millis, whole
from magnetar.broker.http.websocket.parameters import ConsumerParameters, ReaderParameters
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import (
    HEAVY_BYTES,
    MessageIdError,
    OutgoingMessage,
    encode_single,
)
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.broker.schema.definition import parse_version
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.consumer import EXCLUSIVE, SubscribeRequest
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

logger = logging.getLogger(__name__)

_BAD_JSON, _UNKNOWN = 3, 8
# Of dead letters; Pulsar's clients write the misspelt one too, for readers of older versions.
_ORIGIN_PROPERTIES = ("ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_IDY_TIME")
NACKS_MAX = 20_000  # that wait for their delay; beyond it the oldest one is redelivered at once
_PUSH_AT_ONCE = 64  # deliveries per turn: the loop is free again after about a millisecond


def message_json(delivery: ConsumedMessage) -> dict[str, Any]:
    """A message as WebSocket and REST consumers see it."""
    message = delivery.message
    item: dict[str, Any] = {
        "messageId": delivery.message_id,
        "payload": b64encode(message.payload).decode(),
        "properties": message.properties,
        "publishTime": iso_millis(message.publish_time_ms),
        "redeliveryCount": delivery.redelivery_count,
    }
    if message.event_time_ms:
        item["eventTime"] = iso_millis(message.event_time_ms)
    if message.key is not None:
        item["key"] = message.key
    if (version := parse_version(message.schema_version)) is not None:
        item["schemaVersion"] = version  # Pulsar's clients can't tell
    if message.encryption is not None:
        item["encryptionContext"] = _encryption_context(message.encryption)
    return item


def _encryption_context(metadata: pb.MessageMetadata) -> dict[str, Any]:
    context: dict[str, Any] = {
        "keys": {
            key.key: {
                "keyValue": b64encode(key.value).decode(),
                "metadata": {pair.key: pair.value for pair in key.metadata},
            }
            for key in metadata.encryption_keys
        },
        "param": b64encode(metadata.encryption_param).decode(),
        "compressionType": pb.CompressionType.Name(metadata.compression),
        "uncompressedMessageSize": metadata.uncompressed_size,
        "batchSize": None,
        "encrypted": True,
    }
    if metadata.encryption_algo:
        context["algorithm"] = metadata.encryption_algo
    if metadata.HasField("num_messages_in_batch"):
        context["batchSize"] = metadata.num_messages_in_batch
    return context


def _light(ready: Iterable[ConsumedMessage], bytes_max: int) -> int:
    """How many of the next ones can be written in a turn of the loop; 0: the first one can't.

    Args:
        bytes_max: of them, but one may be larger: for a client that doesn't read they are in memory
            as messages and as text.
    """
    count = size = 0
    for delivery in islice(ready, _PUSH_AT_ONCE):
        size += delivery.message.held_bytes
        if size > (bytes_max if count else HEAVY_BYTES):
            break
        count += 1
    return count


class _ReceivingSession(Session):
    """The common part of consumers and readers: it pushes under credit, and reads frames."""

    def __init__(self, service: BrokerService) -> None:
        self._service, self._budget = service, service.unsent_budget
        self._channel: WebSocketChannel | None = None
        self._pushing = False
        self._long_push: asyncio.Task[None] | None = None
        self._shows_topic = False
        self.consumer_feed = InternalConsumer(
            *(service, self._push_soon, self._on_lost, service.config.web_socket_buffer_bytes),
            self._budget,
        )

    async def run(self, channel: WebSocketChannel) -> None:
        self._channel = channel
        self._push_soon()
        while (texts := await channel.receive()) is not None:
            try:
                for text in texts:
                    if channel.ending:
                        return
                    item = orjson.loads(text)
                    if not isinstance(item, dict):
                        raise ValueError("not an object")
                    await self._on_word(item)
            except (ValueError, KeyError) as error:  # JSONDecodeError, MessageIdError included
                channel.close_soon(CLOSE_BASE + _BAD_JSON, f"Bad message: {error}")
            except BrokerError as error:
                channel.close_soon(CLOSE_BASE + _UNKNOWN, str(error))

    def close(self) -> None:
        if self._long_push is not None:
            self._long_push.cancel()
        self.consumer_feed.close()

    @abstractmethod
    async def _on_word(self, item: dict[str, Any]) -> None:
        """Do what a frame asks for: consumers and readers have frames of their own."""

    def _answer_end_of_topic(self) -> None:
        assert self._channel is not None
        text = "true" if self.consumer_feed.end_of_topic else "false"
        self._channel.send(f'{{"endOfTopic":{text}}}')

    def _add_credit(self) -> None:
        self.consumer_feed.add_credit(1)
        if self.consumer_feed.ready:
            self._push_soon()

    def _push_soon(self) -> None:
        """Push in a turn of the topic's: hundreds of sessions may want to in one tick."""
        ready = self.consumer_feed.ready
        if ready and not self._pushing and self._channel is not None:
            self._pushing = True
            name = ready[0].topic
            topic = self._service.topics.get(name, name)
            self._service.dispatch_turns.add(topic, self._push)

    def _push(self) -> None:
        self._pushing = False
        channel, consumer_feed = self._channel, self.consumer_feed
        if (
            channel is None
            or consumer_feed.closed
            or not consumer_feed.ready
            or consumer_feed.credit <= 0
        ):
            return
        if channel.is_blocked:  # `_on_sent` goes on
            consumer_feed.stall()
            return
        count = _PUSH_AT_ONCE
        if (
            consumer_feed.buffered_bytes > (bytes_max := self._budget.piece_bytes // 4)
            and (count := _light(consumer_feed.ready, bytes_max)) == 0
        ):
            self._pushing = True
            push = self._push_long(channel, self._admit(consumer_feed.take(1)))
            self._long_push = asyncio.get_running_loop().create_task(push)
            return
        if deliveries := self._admit(consumer_feed.take(count)):
            channel.send(
                *map(self._text_of, deliveries), on_sent=partial(self._on_sent, deliveries)
            )
        if consumer_feed.ready and consumer_feed.credit > 0:
            self._push_soon()

    async def _push_long(
        self, channel: WebSocketChannel, deliveries: list[ConsumedMessage]
    ) -> None:
        """A large message, written as JSON in a thread; the next ones wait for it."""
        for delivery in deliveries:
            text = await self._service.schemas.in_value_thread(lambda d=delivery: self._text_of(d))  # type: ignore[misc]
            channel.send(text, on_sent=partial(self._on_sent, (delivery,)))
        self._pushing = False
        if self.consumer_feed.ready and self.consumer_feed.credit > 0:
            self._push_soon()

    def _on_sent(self, deliveries: Sequence[ConsumedMessage]) -> None:
        self.consumer_feed.release(deliveries)
        if self.consumer_feed.ready:
            self._push_soon()

    def _text_of(self, delivery: ConsumedMessage) -> str:
        item = message_json(delivery)
        if self._shows_topic:
            item["topic"] = delivery.topic
        return orjson.dumps(item).decode()

    def _admit(self, deliveries: list[ConsumedMessage]) -> list[ConsumedMessage]:
        """Which of the deliveries the client is to see."""
        return deliveries

    def _on_lost(self) -> None:
        """The topic was unloaded or moved: what isn't acknowledged comes again elsewhere."""
        if self._channel is not None:
            self._channel.close_soon(RESTART, "The topic was closed or moved: connect again")


class ConsumerSession(_ReceivingSession):
    """One consumer socket."""

    def __init__(
        self,
        service: BrokerService,
        names: Sequence[TopicName],
        subscription: str,
        parameters: ConsumerParameters,
    ) -> None:
        super().__init__(service)
        self._names = names
        self._shows_topic = len(names) > 1
        self._subscription = subscription
        self._parameters = parameters
        # Messages to be sent again by deadline (s, loop time): negative acks, and ack timeouts.
        self._nacks: OrderedDict[MessageKey, float] = OrderedDict()
        self._unacked: OrderedDict[MessageKey, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._dead_letters: dict[str, InternalProducer] = {}  # by topic
        self._dead_letter_tasks: set[asyncio.Task[None]] = set()
        self.consumer_feed.crypto_action = parameters.crypto_action

    async def open(self, remote: str, client_version: str) -> None:
        """Subscribe."""
        request = self._request()
        await self.consumer_feed.open(
            self._names, request, remote=remote, client_version=client_version
        )
        self._start_pushing()

    def _request(self) -> SubscribeRequest:
        parameters = self._parameters
        return SubscribeRequest(
            subscription=self._subscription,
            sub_type=parameters.sub_type,
            consumer_name=parameters.consumer_name or secrets.token_hex(5),
            priority_level=parameters.priority_level,
            durable=parameters.durable,
            initial_position=EARLIEST if parameters.earliest else LATEST,
        )

    def _start_pushing(self) -> None:
        if not self._parameters.pull:
            self.consumer_feed.add_credit(self._parameters.queue_size)

    @property
    def writes_to(self) -> Sequence[TopicName]:
        """The topics of its dead letters."""
        return self._dead_letter_topics(self._names)

    def _dead_letter_topics(self, names: Iterable[TopicName]) -> list[TopicName]:
        if not self._parameters.redeliver_max:
            return []
        found = []
        for name in names:
            with suppress(InvalidTopicNameError):  # nothing can be published there
                found.append(TopicName.parse(self._dead_letter_topic(str(name))))
        return found

    def _named(self, delivery: ConsumedMessage) -> str:
        """The topic as the client has named it: of a partition perhaps the partitioned one."""
        if any(delivery.topic == name.full for name in self._names):
            return delivery.topic
        return str(TopicName.parse(delivery.topic).base)

    def _dead_letter_topic(self, topic: str) -> str:
        return self._parameters.dead_letter_topic or f"{topic}-{self._subscription}-DLQ"

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().close()
        for task in self._dead_letter_tasks:
            task.cancel()
        for publisher in self._dead_letters.values():
            publisher.close()

    async def _on_word(self, item: dict[str, Any]) -> None:
        kind = item.get("type")
        if kind == "permit":
            count = whole(item.get("permitMessages"), "permitMessages")
            if count < 0:
                raise ValueError("permitMessages must not be negative")
            if self._parameters.pull:
                self.consumer_feed.add_credit(min(count, 1_000_000))
                self._push_soon()
        elif kind == "isEndOfTopic":
            self._answer_end_of_topic()
        elif kind == "unsubscribe":
            await self._unsubscribe()
        elif kind == "negativeAcknowledge":
            self._negative_acknowledge(self._key(item))
        elif isinstance(kind, list | dict):
            raise ValueError("type must be a text")
        else:  # every other type is an acknowledgement
            self._acknowledge(self._key(item))

    async def _unsubscribe(self) -> None:
        await self.consumer_feed.unsubscribe()

    def _key(self, item: dict[str, Any]) -> MessageKey:
        text = item.get("messageId")
        if not isinstance(text, str):
            raise MessageIdError("messageId must be a string")
        return parse_key(text)

    def _acknowledge(self, key: MessageKey) -> None:
        self.consumer_feed.acknowledge(key)
        self._unacked.pop(key, None)
        self._nacks.pop(key, None)
        self._free_slot()

    def _negative_acknowledge(self, key: MessageKey) -> None:
        self._unacked.pop(key, None)
        delay_s = self._parameters.nack_delay_ms / 1000
        self._nacks[key] = asyncio.get_running_loop().time() + delay_s
        self._nacks.move_to_end(key)  # the order is that of the deadlines
        if len(self._nacks) > NACKS_MAX:  # more than any window: made-up ids, or repeated ones
            self.consumer_feed.redeliver([self._nacks.popitem(last=False)[0]])
        self._arm(delay_s)
        self._free_slot()

    def _free_slot(self) -> None:
        if not self._parameters.pull:
            self._add_credit()

    def _admit(self, deliveries: list[ConsumedMessage]) -> list[ConsumedMessage]:
        redeliver_max = self._parameters.redeliver_max
        if redeliver_max:
            # As Pulsar's Java client: redelivered that often, refused once more, then sent to the
            # dead letter topic.
            dead_letters = [d for d in deliveries if d.redelivery_count > redeliver_max]
            if dead_letters:
                deliveries = [d for d in deliveries if d.redelivery_count <= redeliver_max]
                self._send_to_dead_letter_topic(dead_letters)
        if self._parameters.ack_timeout_ms and deliveries:
            timeout_s = self._parameters.ack_timeout_ms / 1000
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            for delivery in deliveries:
                self._unacked[delivery.key] = deadline_s
                self._unacked.move_to_end(delivery.key)
            self._arm(timeout_s)
        return deliveries

    # --- redelivery: one timer for both lists; each is in the order of its deadlines

    def _arm(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + delay_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        due: list[MessageKey] = []
        for waiting in (self._nacks, self._unacked):
            while waiting and next(iter(waiting.values())) <= now_s + 0.001:
                due.append(waiting.popitem(last=False)[0])
            if waiting:
                self._arm(next(iter(waiting.values())) - now_s)
        if due:
            self.consumer_feed.redeliver(due)

    # --- dead letters

    def _send_to_dead_letter_topic(self, dead_letters: list[ConsumedMessage]) -> None:
        task = asyncio.create_task(self._publish_dead_letter(dead_letters))
        self._dead_letter_tasks.add(task)
        task.add_done_callback(self._dead_letter_tasks.discard)

    async def _publish_dead_letter(self, dead_letters: list[ConsumedMessage]) -> None:
        """Copy to the dead letter topic, then acknowledge: a crash may give two, never none."""
        for delivery in dead_letters:
            topic = self._named(delivery) if self._shows_topic else str(self._names[0])
            name = self._dead_letter_topic(topic)
            try:
                publisher = await self._dead_letter_publisher(name)
            except (BrokerError, ValueError) as error:
                logger.warning("dead letter topic %s: %s", name, error)
                self.consumer_feed.redeliver([delivery.key])
                continue
            source = delivery.message
            message = OutgoingMessage(
                source.payload,
                source.sequence_id,
                source.key,
                {
                    **source.properties,
                    "REAL_TOPIC": topic,
                    "REAL_SUBSCRIPTION": self._subscription,
                    **dict.fromkeys(_ORIGIN_PROPERTIES, delivery.shown_id),
                },
                source.event_time_ms,
                key_is_base64=source.key_is_base64,
            )
            entry = encode_single(publisher.producer_name, message, self._service.wall_clock())
            producer = publisher.producers[publisher.route(message)]
            producer.publish([entry], partial(self._on_dead_letter, delivery))

    async def _dead_letter_publisher(self, name: str) -> InternalProducer:
        known = self._dead_letters.get(name)
        if known is not None and not known.closed:
            return known
        producer = InternalProducer(
            self._service, TopicName.parse(name), client_version="WebSocket"
        )
        publisher = await producer.open()
        faster = self._dead_letters.get(name)  # of other messages' task
        if self.consumer_feed.closed or (faster is not None and not faster.closed):
            publisher.close()
            return faster or publisher
        self._dead_letters[name] = publisher
        return publisher

    def _on_dead_letter(
        self,
        delivery: ConsumedMessage,
        index: int,
        count: int,
        ledger_id: int,
        first_entry_id: int,
        error: Exception | None,
    ) -> None:
        if self.consumer_feed.closed:
            return
        self.consumer_feed.release((delivery,))
        if error is None:
            self._acknowledge(delivery.key)
        else:
            self._negative_acknowledge(delivery.key)


class ReaderSession(_ReceivingSession):
    """One reader socket: a subscription of its own that leaves nothing behind."""

    def __init__(
        self, service: BrokerService, name: TopicName, parameters: ReaderParameters
    ) -> None:
        super().__init__(service)
        self._name = name
        self._parameters = parameters
        self.consumer_feed.crypto_action = parameters.crypto_action

    async def open(self, remote: str, client_version: str) -> None:
        """Subscribe at the start message."""
        start = self._parameters.start
        position: Position
        if isinstance(start, str):
            position = EARLIEST if start == "earliest" else LATEST
        elif start.batch_index >= 0:
            position = (start.ledgerId, start.entryId)  # the rest of that batch comes first
        else:
            position = (start.ledgerId, start.entryId + 1)
        name = self._parameters.reader_name or f"reader-{secrets.token_hex(5)}"
        request = SubscribeRequest(
            subscription=f"reader-{secrets.token_hex(5)}",
            sub_type=EXCLUSIVE,
            consumer_name=name,
            durable=False,
            start_position=position,
        )
        await self.consumer_feed.open(
            (self._name,), request, remote=remote, client_version=client_version
        )
        if not isinstance(start, str) and start.batch_index >= 0:
            self.consumer_feed.skip_through(start.ledgerId, start.entryId, start.batch_index)
        self.consumer_feed.add_credit(self._parameters.queue_size)

    async def _on_word(self, item: dict[str, Any]) -> None:
        if item.get("type") == "isEndOfTopic":
            self._answer_end_of_topic()
            return
        text = item.get("messageId")
        if isinstance(text, str):
            # Acknowledged for the cursor's own sake: what it holds in memory stays small.
            self.consumer_feed.acknowledge(parse_key(text))
        self._add_credit()
