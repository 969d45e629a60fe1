"""REST produce: one JSON call, many messages, one publish per partition."""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from magnetar.broker.client.client_producer import ClientProducer
from magnetar.broker.errors import (
    IncompatibleSchemaError,
    ProducerFencedError,
    ServiceNotReadyError,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.internal_producer import InternalProducer
from magnetar.broker.http.messaging.local_producer import LocalProducer
from magnetar.broker.http.messaging.value_schemas import (
    LATE,
    STRING,
    Codec,
    ProduceSchema,
    ValueSchemas,
)
from magnetar.broker.protocol.framing import stored_bytes_max
from magnetar.broker.protocol.messages import HEAVY_BYTES, Entry, OutgoingMessage, SingleEncoder
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import version_bytes
from magnetar.broker.schema.value_errors import ValueCodecError
from magnetar.broker.schema.values import KeyValueCodec, encode_message

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

    _Part: TypeAlias = tuple[list[int], list[Entry]]
    """Of a call, for one producer: slots of the results, and the entries."""

ANSWER_TIMEOUT_S = 30.0
_OVER_RATE = "The topic's publish rate did not admit the message in time"
_RETRYABLE, _FAILED = 1, 2
_INT64_MAX = 2**63 - 1
SCHEMA_FIELDS = frozenset(("schemaVersion", "keySchema", "valueSchema"))
"""Of a body; with one of them, values may be of another schema than STRING."""
MESSAGES_MAX = 10_000
"""Of one call: they are taken in one go, for which everybody else waits, a tenth of a second."""
_NAME_LENGTH_MAX = 4_096  # as on the binary port
_TEXT_FACTOR = 4
"""A value's text may be so many times as long as the longest payload: JSON names each field."""


class _Call:
    """Collects the results of one call.

    Results are kept as JSON: an object each takes longer than all else about it.
    """

    __slots__ = ("left", "on_end", "results", "schema_version")

    def __init__(self, messages: list[OutgoingMessage], version: int | None) -> None:
        """``version``: of the schema that the messages are of from now on; None: of none."""
        stamp = version_bytes(version)
        for message in messages:
            message.schema_version = stamp
        self.results = [""] * len(messages)
        self.schema_version = -1 if version is None else version
        self.left = len(messages)
        self.on_end: Callable[[], object] | None = None
        """Called once, when all results are there, or too late."""

    def completed(
        self,
        slots: list[int],
        partition: int,
        index: int,
        count: int,
        ledger_id: int,
        first_entry_id: int,
        error: Exception | None,
    ) -> None:
        """Of the part of the call that went to one partition; ``slots``: where its results belong.

        The rest is a `PublishCallback`'s.
        """
        results, slots = self.results, slots[index : index + count]
        if error is not None:
            text = _failure(error, self.schema_version)
            for slot in slots:
                results[slot] = text
        else:
            front = f'{{"messageId":"{ledger_id}:'
            back = f':{partition}","errorCode":0,"schemaVersion":{self.schema_version}}}'
            entry_ids = itertools.count(first_entry_id, 1 if ledger_id >= 0 else 0)
            for slot, entry_id in zip(slots, entry_ids, strict=False):
                results[slot] = f"{front}{entry_id}{back}"
        self.left -= count
        if self.left == 0:
            self.end()

    def refused(self, wrong: dict[int, Exception]) -> None:
        """Messages that go nowhere, by their slots."""
        for slot, error in wrong.items():
            self.completed([slot], -1, 0, 1, -1, -1, error)

    def end(self) -> None:
        """Wake up who waits for the results, with those that there are."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def answer(self) -> str:
        """JSON; messages without a result are told to be worth a retry."""
        results = self.results
        if self.left:
            late = ServiceNotReadyError("The storage did not answer in time")
            timeout = _failure(late, self.schema_version)
            results = [result or timeout for result in results]
        return (
            f'{{"messagePublishResults":[{",".join(results)}],'
            f'"schemaVersion":{self.schema_version}}}'
        )


class _Shared:
    """A publisher of several calls; the last one closes it.

    Attributes:
        order: held while a call gets sequence ids and publishes, also while a rate holds it back.
            One that overtook it would have higher ids, and de-duplication would drop the lower
            ones.
    """

    __slots__ = ("key", "order", "publisher", "users")

    def __init__(self, key: tuple[str, str], publisher: asyncio.Future[InternalProducer]) -> None:
        self.key, self.publisher = key, publisher
        self.order = asyncio.Lock()
        self.users = 0

    @property
    def closed(self) -> bool:
        """Whether a new call needs a new one: it failed, or its topic was closed or moved."""
        future = self.publisher
        return future.done() and (
            future.cancelled() or future.exception() is not None or future.result().closed
        )

    def close(self) -> None:
        if not self.publisher.done():
            self.publisher.cancel()
        elif not self.publisher.cancelled() and self.publisher.exception() is None:
            self.publisher.result().close()


async def _may_publish(producer: LocalProducer | ClientProducer, until_s: float) -> bool:
    """Wait for the topic's publish rate; False: not by that time of the loop's clock."""
    try:
        async with asyncio.timeout_at(until_s):
            await producer.ready()
    except TimeoutError:
        return False
    return True


def _failure(error: Exception, schema_version: int) -> str:
    """The result of a message that wasn't stored; code 1: worth a retry."""
    code = _RETRYABLE if isinstance(error, ServiceNotReadyError | ProducerFencedError) else _FAILED
    result = {
        "errorCode": code,
        "errorMsg": str(error) or type(error).__name__,
        "schemaVersion": schema_version,
    }
    return orjson.dumps(result).decode()


class RestPublishers:
    """Publishers of the calls under way, shared by calls to the same topic under the same name.

    Nothing is kept between calls: a producer that lingers would keep its topic from being deleted.
    Under load there is always a call under way, so the registration is shared just when it matters.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._open: dict[tuple[str, str], _Shared] = {}
        self._sequence = itertools.count()
        # Calls without their answer, and when each is too late: in that order.
        self._waiting: dict[_Call, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.schemas = ValueSchemas(service.schemas)

    async def produce(
        self,
        name: TopicName,
        producer_name: str,
        messages: list[OutgoingMessage],
        schema: ProduceSchema,
        now_ms: int,
        body_bytes: int = 0,
    ) -> str:
        """Publish and wait; the answer as JSON, with results in request order.

        Args:
            body_bytes: of the request: messages of a large one are made into entries in a thread.
        Raises:
            BrokerError: nothing could be published at all (no such topic, name taken ...).
        """
        key = name.full, producer_name
        while True:
            shared = self._open.get(key)
            own = shared is None or shared.closed
            if shared is None or own:
                shared = self._open[key] = self._opening(key, name, schema)
            shared.users += 1
            try:
                publisher = await asyncio.shield(shared.publisher)
                return await self._produce(
                    publisher, shared.order, messages, schema, now_ms, body_bytes
                )
            except IncompatibleSchemaError:
                # Another call's schema may have been refused when the publisher was opened.
                if own or not shared.closed:
                    raise
            finally:
                self.give_back(shared)

    def borrow(self, name: TopicName, producer_name: str) -> _Shared | None:
        """A publisher with which ``produce``, of texts, has to wait for nothing but the storage.

        It is given back by ``give_back``, or once the answer of ``produce_nowait`` is there.
        """
        key = name.full, producer_name
        if (shared := self._open.get(key)) is None:
            shared = self._opened_at_once(key, name)
        elif not shared.publisher.done() or shared.closed or shared.order.locked():
            return None
        if shared is None:
            return None
        shared.users += 1
        publisher = shared.publisher.result()
        if publisher.schema is not STRING.definition or publisher.held:
            self.give_back(shared)
            return None
        return shared

    def produce_nowait(
        self,
        shared: _Shared,
        messages: list[OutgoingMessage],
        now_ms: int,
        on_answer: Callable[[str], None],
    ) -> None:
        """As ``produce``, by a borrowed publisher; ``on_answer`` is called in a later turn."""
        publisher = shared.publisher.result()
        call = _Call(messages, publisher.producers[0].schema_version)
        wrong: dict[int, Exception] = {}
        try:
            self._number(publisher, messages, wrong, now_ms)
            split = self._entries(publisher, messages, wrong, now_ms)
            call.refused(wrong)
            for index, (slots, entries) in split.items():
                completed = partial(call.completed, slots, publisher.partition(index))
                publisher.producers[index].publish(entries, completed)
        except BaseException:
            self.give_back(shared)  # else it would stay open for good
            raise

        def end() -> None:
            del self._waiting[call]
            self.give_back(shared)
            on_answer(call.answer())

        # Not amid the topic's answers: it closes the producer, and writes to a socket.
        call.on_end = partial(asyncio.get_running_loop().call_soon, end)
        self._wait_for(call)
        if not call.left:
            call.end()

    def _producer(
        self, key: tuple[str, str], name: TopicName, schema: ProduceSchema
    ) -> InternalProducer:
        return InternalProducer(
            self._service, name, key[1], client_version="REST", schema=schema.definition
        )

    def _opened_at_once(self, key: tuple[str, str], name: TopicName) -> _Shared | None:
        """A new publisher, of a topic that is loaded here, if opening it waits for nothing."""
        if str(name) not in self._service.topics:
            return None
        opening = self._producer(key, name, STRING).open(single_here=True)
        try:
            opening.send(None)
        except StopIteration as end:
            opened = asyncio.get_running_loop().create_future()
            opened.set_result(end.value)
            shared = self._open[key] = _Shared(key, opened)
            return shared
        except Exception:
            return None
        opening.close()
        return None

    def _opening(self, key: tuple[str, str], name: TopicName, schema: ProduceSchema) -> _Shared:
        # Else the client is sent to its broker.
        opening = self._producer(key, name, schema).open(single_here=True)
        return _Shared(key, asyncio.ensure_future(opening))

    def give_back(self, shared: _Shared) -> None:
        shared.users -= 1
        if shared.users == 0:
            shared.close()
            if self._open.get(shared.key) is shared:
                del self._open[shared.key]

    async def _produce(
        self,
        publisher: InternalProducer,
        order: asyncio.Lock,
        messages: list[OutgoingMessage],
        schema: ProduceSchema,
        now_ms: int,
        body_bytes: int,
    ) -> str:
        until_s = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        version = await publisher.schema_version(schema.definition)
        wrong = await self._encode(schema.codec, messages)
        call = _Call(messages, version)
        async with order:
            self._number(publisher, messages, wrong, now_ms)
            make = partial(self._entries, publisher, messages, wrong, now_ms)
            if body_bytes > HEAVY_BYTES:
                split = await self._service.schemas.in_value_thread(make)
            else:
                split = make()
            call.refused(wrong)
            await _publish(publisher, call, split, until_s)
        return await self._answer(call)

    async def _encode(
        self, codec: Codec | None, messages: list[OutgoingMessage]
    ) -> dict[int, Exception]:
        """Texts to values, in place; what is wrong with those that are none, by index."""
        if codec is None:
            return {}
        length_max = _TEXT_FACTOR * self._service.config.max_message_size

        def encode(index: int) -> Exception | None:
            message = messages[index]
            if message.is_value:
                return None
            if len(message.payload) > length_max:
                return ValueError(f"Text of {len(message.payload)} bytes, limit {length_max}")
            return encode_value(codec, message)

        found = await self.schemas.work(
            [message.payload for message in messages],
            encode,
            lambda _: ServiceNotReadyError(f"Not encoded: {LATE}"),
        )
        return {index: error for index, error in enumerate(found) if error is not None}

    def _number(
        self,
        publisher: InternalProducer,
        messages: list[OutgoingMessage],
        wrong: dict[int, Exception],
        now_ms: int,
    ) -> None:
        """Give ids and times to messages of a size that can be stored."""
        size_max, ids = self._service.config.max_message_size, self._sequence
        next_id = publisher.next_sequence_id
        for slot, message in enumerate(messages):
            if len(message.payload) > size_max:
                wrong[slot] = ValueError(
                    f"Payload of {len(message.payload)} bytes, limit {size_max}"
                )
            if wrong and slot in wrong:
                continue
            if message.sequence_id < 0:
                # Not max(), here and below: the calls are a third of this loop.
                id_ = next(ids)
                message.sequence_id = id_ if id_ > next_id else next_id
            if message.sequence_id >= next_id:
                next_id = message.sequence_id + 1
            if message.deliver_after_ms:
                # Relative to the event time; without one only now makes sense.
                message.deliver_at_ms = message.deliver_after_ms + (message.event_time_ms or now_ms)
        publisher.next_sequence_id = next_id

    def _entries(
        self,
        publisher: InternalProducer,
        messages: list[OutgoingMessage],
        wrong: dict[int, Exception],
        now_ms: int,
    ) -> dict[int, _Part]:
        """Of what isn't wrong, by producer, with the slots of the call; may run in a thread."""
        slots = list(range(len(messages)))
        if wrong:
            slots = [slot for slot in slots if slot not in wrong]
            messages = [messages[slot] for slot in slots]
        entries = SingleEncoder(publisher.producer_name, now_ms).encode(messages)
        # With metadata: what the binary port takes.
        entry_max = stored_bytes_max(self._service.config.max_message_size)
        if len(publisher.producers) == 1 and all(len(body) <= entry_max for _, body, _ in entries):
            return {0: (slots, entries)} if slots else {}
        split: dict[int, _Part] = {}
        for slot, message, entry in zip(slots, messages, entries, strict=True):
            if len(entry[1]) > entry_max:
                wrong[slot] = ValueError(f"Message of {len(entry[1])} bytes, limit {entry_max}")
                continue
            part = split.setdefault(publisher.route(message), ([], []))
            part[0].append(slot)
            part[1].append(entry)
        return split

    async def _answer(self, call: _Call) -> str:
        if call.left:
            answered = asyncio.get_running_loop().create_future()
            call.on_end = partial(answered.set_result, None)
            self._wait_for(call)
            try:
                await answered
            finally:
                call.on_end = None
                del self._waiting[call]
        return call.answer()

    def _wait_for(self, call: _Call) -> None:
        self._waiting[call] = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        if self._timer is None:
            self._end_late()

    def _end_late(self) -> None:
        """One timer for all calls: one for each is two percent of a small call."""
        loop, self._timer = asyncio.get_running_loop(), None
        for call, until_s in list(self._waiting.items()):
            if until_s > loop.time():
                self._timer = loop.call_at(until_s, self._end_late)
                return
            call.end()


async def _publish(
    publisher: InternalProducer, call: _Call, split: dict[int, _Part], until_s: float
) -> None:
    """Publish the parts; those that no rate holds back come first."""
    producers = publisher.producers
    for index, (slots, entries) in sorted(split.items(), key=lambda x: producers[x[0]].held):
        producer = producers[index]
        completed = partial(call.completed, slots, publisher.partition(index))
        if not producer.held or await _may_publish(producer, until_s):
            producer.publish(entries, completed)
        else:
            completed(0, len(slots), -1, -1, ServiceNotReadyError(_OVER_RATE))


def encode_value(codec: Codec, message: OutgoingMessage) -> Exception | None:
    """Replace a message's text by its value; what is wrong with one that is none."""
    if isinstance(codec, KeyValueCodec) and codec.separated and message.key is None:
        return ValueCodecError("A message of a KEY_VALUE schema needs a key")
    try:
        payload, key, is_base64 = encode_message(codec, message.key, message.payload.decode())
    except ValueCodecError as error:
        return error
    message.payload = payload
    if isinstance(codec, KeyValueCodec):
        message.key, message.key_is_base64 = key, is_base64
    return None


def parse_messages(body: Any) -> tuple[str, list[OutgoingMessage]]:
    """Producer name and messages of a ProducerMessages object.

    Raises:
        ApiError: 400 with the first thing that is wrong.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "Request body must be a JSON object with the field messages")
    items = body.get("messages")
    if not isinstance(items, list) or not items:
        raise ApiError(400, "messages must be a non-empty array")
    if len(items) > MESSAGES_MAX:
        raise ApiError(413, f"{len(items)} messages in one call, at most {MESSAGES_MAX} are taken")
    name = body.get("producerName")
    if name is not None and not isinstance(name, str):
        raise ApiError(400, "producerName must be a string")
    if name is not None and len(name) > _NAME_LENGTH_MAX:
        raise ApiError(412, f"Producer name longer than {_NAME_LENGTH_MAX} characters")
    return name or "", [_parse_message(item, index) for index, item in enumerate(items)]


def _parse_message(item: Any, index: int) -> OutgoingMessage:
    if not isinstance(item, dict):
        raise ApiError(400, f"messages[{index}] must be an object")
    payload = item.get("payload")
    if not isinstance(payload, str):
        raise ApiError(400, f"messages[{index}].payload must be a string")
    try:
        message = OutgoingMessage(payload.encode(), -1)
        if len(item) == 1:
            return message
        if (key := item.get("key")) is not None:
            message.key = _expect(key, str, index, "key")
        if (properties := item.get("properties")) is not None:
            message.properties = _text_map(properties, index)
    except UnicodeEncodeError as error:
        raise ApiError(400, f"messages[{index}] holds a lone surrogate") from error
    if not item.keys() <= {"payload", "key", "properties"}:
        _parse_rest(item, index, message)
    return message


def _parse_rest(item: dict[str, Any], index: int, message: OutgoingMessage) -> None:
    if (event_time := item.get("eventTime")) is not None:
        message.event_time_ms = _millis(event_time, index, "eventTime")
    if (sequence_id := item.get("sequenceId")) is not None:
        message.sequence_id = _millis(sequence_id, index, "sequenceId")
    if (deliver_at := item.get("deliverAt")) is not None:
        message.deliver_at_ms = _millis(deliver_at, index, "deliverAt")
    if (after := item.get("deliverAfterMs")) is not None and (
        delay := _millis(after, index, "deliverAfterMs")
    ):
        message.deliver_after_ms = delay
    _parse_encodings(item, index, message)
    if item.get("disableReplication") is True:
        message.replicate_to = ("__local__",)
    elif (clusters := item.get("replicationClusters")) is not None:
        clusters = _expect(clusters, list, index, "replicationClusters")
        message.replicate_to = [_expect(c, str, index, "replicationClusters") for c in clusters]


def _parse_encodings(item: dict[str, Any], index: int, message: OutgoingMessage) -> None:
    """As messages have them that REST consume shows."""
    if (encoding := item.get("encoding", "text")) == "base64":
        message.payload = _bytes_of(item["payload"], index, "payload")
        message.is_value = True
    elif encoding != "text":
        raise ApiError(400, f"messages[{index}].encoding must be text or base64")
    if (encoding := item.get("keyEncoding", "text")) == "base64":
        _bytes_of(message.key or "", index, "key")
        message.key_is_base64 = message.key is not None
    elif encoding != "text":
        raise ApiError(400, f"messages[{index}].keyEncoding must be text or base64")


def _bytes_of(text: str, index: int, field: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:  # binascii.Error, or letters beyond ASCII
        raise ApiError(400, f"messages[{index}].{field} is not base64: {error}") from error


def _expect(value: Any, kind: type, index: int, field: str) -> Any:
    if not isinstance(value, kind):
        raise ApiError(400, f"messages[{index}].{field} must be a {kind.__name__}")
    if isinstance(value, str):
        value.encode()  # a lone surrogate can't be stored: UnicodeEncodeError
    return value


def _text_map(value: Any, index: int) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ApiError(400, f"messages[{index}].properties must be an object")
    for text in value.values():
        _expect(text, str, index, "properties")
    return value


def _millis(value: Any, index: int, field: str) -> int:
    """A non-negative 64-bit number, also as text: Pulsar takes both."""
    try:
        number = int(value) if not isinstance(value, bool | float) else -1
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= _INT64_MAX:
        raise ApiError(400, f"messages[{index}].{field} must be a number, not {value!r:.50}")
    return number
