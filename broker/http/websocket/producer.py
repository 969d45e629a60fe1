"""WebSocket producer session: JSON messages in, one answer each.

Batching needs no delay: whatever arrived in one turn of the loop becomes one publish, and with
``batchingEnabled`` one batch entry. A busy socket batches by itself, an idle one answers at once.
"""

from __future__ import annotations

import asyncio
import binascii
import itertools
from base64 import b64decode
from collections import deque
from collections.abc import Sequence
from typing import Any

import orjson

from magnetar.broker.http.messaging.internal_producer import InternalProducer
from magnetar.broker.http.websocket.channel import Session, WebSocketChannel
from magnetar.broker.http.websocket.fields import (
    FieldError,
    base64_bytes,
    flag,
    text,
    time_ms,
    whole,
)
from magnetar.broker.http.websocket.parameters import ProducerParameters, add_encryption_key
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.broker.protocol.messages import (
    HEAVY_BYTES,
    Entry,
    OutgoingMessage,
    SingleEncoder,
    encode_batch,
    encode_message_id,
    encode_single,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService

_BAD_JSON, _BAD_ENCODING, _UNKNOWN = 3, 7, 8
_SHRUNK_AT_MOST, _BATCHED_BYTES_MIN = 16, 6  # by compression; of a message in a batch
_BATCH_BYTES_MAX = 128 * 1024  # as the official clients: a batch is closed above it
_LIMITED_MESSAGES = 32
"""Published together at most where a publish rate holds."""


class _RefusedError(Exception):
    """The message can't be published; ``code`` is Pulsar's."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _Published:
    """One publish call: the contexts of its messages, entry by entry."""

    __slots__ = ("_contexts", "_partition", "_session", "deadline_s", "waiting")

    def __init__(
        self,
        session: ProducerSession,
        partition: int,
        contexts: list[list[str | None]],
        deadline_s: float,
    ) -> None:
        self._session, self._partition, self._contexts = session, partition, contexts
        self.deadline_s = deadline_s
        self.waiting = len(contexts)

    def completed(
        self, index: int, count: int, ledger_id: int, first_entry_id: int, error: Exception | None
    ) -> None:
        self.waiting -= count
        if error is not None:
            self._failed(self._contexts[index : index + count], error)
            return
        session, partition = self._session, self._partition
        receipts: list[str] = []
        # A duplicate's place isn't known.
        ids = itertools.count(first_entry_id) if ledger_id >= 0 else itertools.repeat(0)
        ledger_id = max(ledger_id, 0)
        for contexts, entry_id in zip(self._contexts[index : index + count], ids, strict=False):
            if not session.batching:
                at = encode_message_id(ledger_id, entry_id, partition)
                receipts.append(_receipt(at, contexts[0]))
                continue
            size = len(contexts)
            for batch_index, context in enumerate(contexts):
                at = encode_message_id(ledger_id, entry_id, partition, batch_index, size)
                receipts.append(_receipt(at, context))
        session.accepted(receipts)

    def _failed(self, entries: list[list[str | None]], error: Exception) -> None:
        for contexts in entries:
            for context in contexts:
                self._session.answered()
                self._session.refuse(_UNKNOWN, str(error) or type(error).__name__, context)


class ProducerSession(Session):
    """One producer socket."""

    def __init__(
        self, service: BrokerService, name: TopicName, parameters: ProducerParameters
    ) -> None:
        self._service = service
        self._name = name
        self._parameters = parameters
        self.batching = parameters.batching
        self._next_sequence_id = parameters.first_sequence_id + 1
        self._publisher: InternalProducer | None = None
        self._channel: WebSocketChannel | None = None
        self._collected: list[tuple[OutgoingMessage, str | None]] = []
        self._turn_characters = 0  # of frames, since others had a turn
        self._flush_scheduled = False
        self._pending = 0  # messages taken and not answered
        self._watch: asyncio.TimerHandle | None = None
        self._sent: deque[_Published] = deque()  # only kept while a send timeout is set

    async def open(self, remote: str, client_version: str) -> None:
        """Register the producer."""
        self._publisher = await InternalProducer(
            self._service,
            self._name,
            self._parameters.producer_name,
            remote=remote,
            client_version=client_version,
            round_robin=self._parameters.round_robin,
            hash_key=self._parameters.hash_key,
        ).open()
        for producer in self._publisher.producers:
            producer.on_closed = self._lost
        if self._parameters.first_sequence_id < 0:  # it goes on where its name left off
            self._next_sequence_id = self._publisher.next_sequence_id

    async def run(self, channel: WebSocketChannel) -> None:
        self._channel = channel
        while (frames := await channel.receive()) is not None:
            for frame in frames:
                if not len(self._collected) % _LIMITED_MESSAGES:
                    await self._keep_rate()
                if channel.ending:
                    return
                if len(frame) > HEAVY_BYTES:
                    await self._take_long(frame)
                    continue
                self._turn_characters += len(frame)
                self._take(*self._read(frame))
                if self._turn_characters > HEAVY_BYTES:
                    await asyncio.sleep(0)
                    self._turn_characters = 0

    async def _take_long(self, frame: str) -> None:
        """In a thread, after what came before."""
        self._flush()
        in_thread = self._service.schemas.in_value_thread
        self._take(*await in_thread(lambda: self._read(frame)))
        collected, self._collected = self._collected, []
        if collected and (publisher := self._publisher) is not None:
            self._publish(publisher, await in_thread(lambda: self._encoded(publisher, collected)))

    async def _keep_rate(self) -> None:
        """Leave messages unread, with the client, while a publish limit is exceeded."""
        if (publisher := self._publisher) is None:
            return
        # Messages that are read in one go would count only when all of it is published.
        if len(self._collected) >= _LIMITED_MESSAGES and publisher.limited:
            self._flush()
        if publisher.held:
            await publisher.ready()

    def close(self) -> None:
        if self._publisher is not None:
            self._flush()
            self._publisher.close()
        if self._watch is not None:
            self._watch.cancel()
        self._sent.clear()  # which hold this session

    # --- messages

    def _read(self, frame: str) -> tuple[OutgoingMessage | _RefusedError, str | None]:
        """The message of a frame, or what is wrong with it, and its context.

        May run in a thread while nothing else is read.
        """
        context: str | None = None
        try:
            try:
                item = orjson.loads(frame)
            except orjson.JSONDecodeError as error:
                raise _RefusedError(_BAD_JSON, f"Failed to deserialize message: {error}") from error
            if not isinstance(item, dict):
                raise _RefusedError(_BAD_JSON, "Failed to deserialize message: not an object")
            if (given := item.get("context")) is not None:
                context = text(given, "context")
            if self._pending >= self._parameters.pending_max:
                raise _RefusedError(_UNKNOWN, "Producer send queue is full")
            return self._parse(item), context
        except _RefusedError as error:
            return error, context
        except FieldError as error:
            return _RefusedError(_BAD_JSON, str(error)), context

    def _take(self, message: OutgoingMessage | _RefusedError, context: str | None) -> None:
        if isinstance(message, _RefusedError):
            self.refuse(message.code, str(message), context)
            return
        self._pending += 1
        self._collected.append((message, context))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _parse(self, item: dict[str, Any]) -> OutgoingMessage:
        payload = item.get("payload")
        if not isinstance(payload, str):
            code = _BAD_JSON if isinstance(payload, list | dict) else _BAD_ENCODING
            raise _RefusedError(code, "payload must be a base64 string")
        try:
            data = base64_bytes(payload)
        except FieldError as error:
            raise _RefusedError(_BAD_ENCODING, f"payload: {error}") from error
        if len(data) > self._service.config.max_message_size:
            raise _RefusedError(_UNKNOWN, f"Message of {len(data)} bytes is too large")
        message = OutgoingMessage(data, self._next_sequence_id)
        if (keys := self._parameters.encryption_keys) is not None:
            message.encryption = _sealed_with(keys, item)
        if len(item) > 2 or (len(item) == 2 and "context" not in item):
            _parse_options(item, message, self._service.wall_clock())
        self._next_sequence_id = max(self._next_sequence_id, message.sequence_id) + 1
        return message

    def _flush(self) -> None:
        self._flush_scheduled = False
        collected, self._collected = self._collected, []
        if collected and (publisher := self._publisher) is not None:
            self._publish(publisher, self._encoded(publisher, collected))

    def _encoded(
        self, publisher: InternalProducer, collected: Sequence[tuple[OutgoingMessage, str | None]]
    ) -> list[tuple[int, list[Entry], list[list[str | None]]]]:
        """Entries and the contexts of their messages, by the index of their producer."""
        name = publisher.producer_name
        if len(publisher.producers) == 1:
            return [(0, *self._encode(name, collected))]
        routed: dict[int, list[tuple[OutgoingMessage, str | None]]] = {}
        for pair in collected:
            routed.setdefault(publisher.route(pair[0]), []).append(pair)
        return [(index, *self._encode(name, pairs)) for index, pairs in routed.items()]

    def _publish(
        self,
        publisher: InternalProducer,
        parts: list[tuple[int, list[Entry], list[list[str | None]]]],
    ) -> None:
        timeout_ms = self._parameters.send_timeout_ms
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        for index, entries, contexts in parts:
            sent = _Published(self, publisher.partition_of(index), contexts, deadline_s)
            if timeout_ms:
                self._sent.append(sent)
            publisher.producers[index].publish(entries, sent.completed)
        if timeout_ms and self._watch is None:
            self._watch_timeouts()
        while self._sent and not self._sent[0].waiting:
            self._sent.popleft()

    def _encode(
        self, producer_name: str, pairs: Sequence[tuple[OutgoingMessage, str | None]]
    ) -> tuple[list[Entry], list[list[str | None]]]:
        now_ms, kind = self._service.wall_clock(), self._parameters.compression
        if not self.batching:
            encoder = SingleEncoder(producer_name, now_ms, kind)
            return (
                encoder.encode([message for message, _ in pairs]),
                [[context] for _, context in pairs],
            )
        entries: list[Entry] = []
        contexts: list[list[str | None]] = []
        group: list[OutgoingMessage] = []
        group_contexts: list[str | None] = []
        group_bytes = 0

        def end_group() -> None:
            nonlocal group, group_contexts, group_bytes
            if group:
                entries.append(encode_batch(producer_name, group, now_ms, kind))
                contexts.append(group_contexts)
                group, group_contexts, group_bytes = [], [], 0

        for message, context in pairs:
            encrypted = message.encryption is not None
            alone = message.deliver_at_ms or message.replicate_to or encrypted
            if alone or group_bytes + len(message.payload) > _BATCH_BYTES_MAX:
                end_group()
            if encrypted:  # it may be a batch already
                entries.append(encode_single(producer_name, message, now_ms))
                contexts.append([context])
                continue
            group.append(message)
            group_contexts.append(context)
            group_bytes += len(message.payload)
            if alone or len(group) >= self._parameters.batch_messages_max:
                end_group()
        end_group()
        return entries, contexts

    # --- answers

    def accepted(self, receipts: Sequence[str]) -> None:
        self._pending -= len(receipts)
        if self._channel is not None and not self._channel.closed:
            self._channel.send(*receipts)

    def answered(self) -> None:
        self._pending -= 1

    def refuse(self, code: int, reason: str, context: str | None) -> None:
        if self._channel is None or self._channel.closed:
            return
        answer: dict[str, Any] = {"result": f"send-error:{code}", "errorMsg": reason}
        if context is not None:
            answer["context"] = context
        answer |= {"errorCode": code, "schemaVersion": 0}
        self._channel.send(orjson.dumps(answer).decode())

    def _lost(self) -> None:
        """The topic was unloaded or moved: clients reconnect, and what failed was told them."""
        if self._channel is not None:
            self._channel.close_soon(1012, "The topic was closed or moved: connect again")

    def _watch_timeouts(self) -> None:
        """End the session when the storage doesn't answer within ``sendTimeoutMillis``."""
        self._watch = None
        while self._sent and not self._sent[0].waiting:
            self._sent.popleft()
        if not self._sent:
            return  # armed again with the next message: an idle socket has no timer
        loop = asyncio.get_running_loop()
        left_s = self._sent[0].deadline_s - loop.time()
        if left_s > 0:
            self._watch = loop.call_later(left_s, self._watch_timeouts)
        elif self._channel is not None:
            self._channel.close_soon(1011, "The storage did not answer in time")


def _receipt(message_id: str, context: str | None) -> str:
    quoted = "" if context is None else f'"context":{orjson.dumps(context).decode()},'
    return f'{{"result":"ok","messageId":"{message_id}",{quoted}"errorCode":0,"schemaVersion":0}}'


def _parse_options(item: dict[str, Any], message: OutgoingMessage, now_ms: int) -> None:
    """Raises FieldError, _RefusedError."""
    get = item.get
    if (key := get("key")) is not None:
        message.key = text(key, "key")
    if (properties := get("properties")) is not None:
        if not isinstance(properties, dict):
            raise FieldError("properties must be an object")
        message.properties = {text(k, "properties"): text(v, k) for k, v in properties.items()}
    if (event_time := get("eventTime")) is not None:
        try:
            message.event_time_ms = time_ms(event_time, "eventTime")
        except FieldError as error:
            raise _RefusedError(_BAD_ENCODING, str(error)) from error
    if (sequence_id := get("sequenceId")) is not None:
        message.sequence_id = whole(sequence_id, "sequenceId")
        if message.sequence_id < 0:
            raise FieldError("sequenceId must not be negative")
    # A message that is due already is delivered at once, as in Pulsar.
    if (deliver_at := get("deliverAt")) is not None:
        message.deliver_at_ms = max(whole(deliver_at, "deliverAt"), 0)
    if (after := get("deliverAfterMs")) is not None and (
        after_ms := whole(after, "deliverAfterMs")
    ) > 0:
        message.deliver_at_ms = now_ms + after_ms
    if (disabled := get("disableReplication")) is not None and flag(disabled, "disableReplication"):
        message.replicate_to = ("__local__",)
    elif (clusters := get("replicationClusters")) is not None:
        if not isinstance(clusters, list):
            raise FieldError("replicationClusters must be an array")
        message.replicate_to = [text(cluster, "replicationClusters") for cluster in clusters]
    if (encryption := get("encryptionContext")) is not None:
        message.encryption = _encryption(encryption, len(message.payload))


def _sealed_with(keys: pb.MessageMetadata, item: dict[str, Any]) -> pb.MessageMetadata:
    """How the payload of a message was encrypted, with the keys of its producer.

    Raises:
        _RefusedError, FieldError
    """
    metadata = pb.MessageMetadata()
    metadata.CopyFrom(keys)
    param = item.get("encryptionParam")
    if not isinstance(param, str) or not param:
        raise _RefusedError(_BAD_ENCODING, "encryptionParam must be a base64 string")
    try:
        metadata.encryption_param = base64_bytes(param)
    except FieldError as error:
        raise _RefusedError(_BAD_ENCODING, f"encryptionParam: {error}") from error
    kind, size = item.get("compressionType"), item.get("uncompressedMessageSize")
    if (kind is None) != (size is None):
        raise _RefusedError(
            _BAD_ENCODING, "compressionType and uncompressedMessageSize belong together"
        )
    if kind is not None:
        if not isinstance(kind, str) or kind not in COMPRESSIONS:
            raise FieldError(f"compressionType must be one of {', '.join(COMPRESSIONS)}")
        metadata.compression = COMPRESSIONS[kind]
        uncompressed = whole(size, "uncompressedMessageSize")
        if not 0 <= uncompressed < 2**31:
            raise FieldError("uncompressedMessageSize is out of range")
        metadata.uncompressed_size = uncompressed
    return metadata


def _encryption(context: Any, payload_bytes: int) -> pb.MessageMetadata:
    """The metadata of a payload, out of its encryptionContext.

    Raises:
        _RefusedError: a field is missing or of the wrong type.
    """
    metadata = pb.MessageMetadata()
    try:
        for name, key in context["keys"].items():
            add_encryption_key(metadata, name, key)
        metadata.encryption_param = b64decode(context["param"], validate=True)
        if (algorithm := context.get("algorithm")) is not None:
            metadata.encryption_algo = algorithm
        if (kind := context.get("compressionType")) is not None:
            metadata.compression = COMPRESSIONS[kind]
        if size := context.get("uncompressedMessageSize"):
            metadata.uncompressed_size = size
        if (count := context.get("batchSize")) is not None:
            # As for binary clients (decision 0010): permits are charged by this count.
            if not 0 < count <= payload_bytes * _SHRUNK_AT_MOST // _BATCHED_BYTES_MIN:
                raise ValueError(f"batchSize {count}")
            metadata.num_messages_in_batch = count
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise _RefusedError(_BAD_ENCODING, f"Invalid encryptionContext: {error!r:.200}") from error
    if not metadata.encryption_keys:
        raise _RefusedError(_BAD_ENCODING, "Invalid encryptionContext: no keys")
    return metadata
