"""REST produce (http-api 5): one JSON call, many messages, one publish per partition."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from broker.errors import ProducerFencedError, ServiceNotReadyError
from broker.http.errors import ApiError
from broker.http.messages import OutgoingMessage, encode_single
from broker.http.publisher import Publisher

if TYPE_CHECKING:
    from broker.http.local_producer import Entry
    from broker.protocol.topic_name import TopicName
    from broker.service.broker_service import BrokerService

__all__ = ["RestPublishers", "parse_messages"]

ANSWER_TIMEOUT_S = 30.0
_RETRYABLE, _FAILED = 1, 2
_INT64_MAX = 2**63 - 1


class _Call:
    """Collects the results of one call; one future for all of its messages."""

    __slots__ = ("answered", "left", "results")

    def __init__(self, count: int) -> None:
        self.results: list[dict[str, Any]] = [{}] * count
        self.left = count
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count_down(self, count: int) -> None:
        self.left -= count
        if self.left == 0 and not self.answered.done():
            self.answered.set_result(None)


class _Shared:
    """A publisher of several calls; the last one closes it."""

    __slots__ = ("publisher", "users")

    def __init__(self, publisher: asyncio.Future[Publisher]) -> None:
        self.publisher = publisher
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


class _PartitionTicket:
    """The part of a call that went to one partition; ``slots``: where its results belong."""

    __slots__ = ("_call", "_partition", "_slots")

    def __init__(self, call: _Call, slots: list[int], partition: int) -> None:
        self._call, self._slots, self._partition = call, slots, partition

    def done(self, index: int, count: int, ledger_id: int, first_entry_id: int) -> None:
        results, partition = self._call.results, self._partition
        duplicate = ledger_id < 0
        for offset in range(count):
            entry_id = first_entry_id if duplicate else first_entry_id + offset
            results[self._slots[index + offset]] = {
                "messageId": f"{ledger_id}:{entry_id}:{partition}",
                "errorCode": 0,
                "schemaVersion": 0,
            }
        self._call.count_down(count)

    def failed(self, index: int, count: int, error: Exception) -> None:
        for offset in range(count):
            self._call.results[self._slots[index + offset]] = failure(error)
        self._call.count_down(count)


def failure(error: Exception) -> dict[str, Any]:
    """The result of a message that wasn't stored; code 1: worth a retry."""
    code = _RETRYABLE if isinstance(error, ServiceNotReadyError | ProducerFencedError) else _FAILED
    return {"errorCode": code, "errorMsg": str(error) or type(error).__name__, "schemaVersion": 0}


class RestPublishers:
    """Publishers of the calls under way, shared by calls to the same topic under the same name.

    Nothing is kept between calls: a producer that lingers would keep its topic from being deleted.
    Under load there is always a call under way, so the registration is shared just when it matters.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._open: dict[tuple[str, str], _Shared] = {}
        self._sequence = itertools.count()

    async def produce(
        self, name: TopicName, producer_name: str, messages: list[OutgoingMessage], now_ms: int
    ) -> list[dict[str, Any]]:
        """Publish and wait; results in request order.

        Raises:
            BrokerError: nothing could be published at all (no such topic, name taken ...).
        """
        key = (str(name), producer_name)
        shared = self._open.get(key)
        if shared is None or shared.closed:
            shared = self._open[key] = _Shared(
                asyncio.ensure_future(
                    Publisher.open(
                        self._service,
                        name,
                        producer_name,
                        remote="127.0.0.1:0",
                        client_version="REST",
                    )
                )
            )
        shared.users += 1
        try:
            publisher = await asyncio.shield(shared.publisher)
            return await self._publish(publisher, messages, now_ms)
        finally:
            shared.users -= 1
            if shared.users == 0:
                shared.close()
                if self._open.get(key) is shared:
                    del self._open[key]

    async def _publish(
        self, publisher: Publisher, messages: list[OutgoingMessage], now_ms: int
    ) -> list[dict[str, Any]]:
        call = _Call(len(messages))
        split: dict[int, tuple[list[int], list[Entry]]] = {}
        size_max = self._service.config.max_message_size
        for slot, message in enumerate(messages):
            if len(message.payload) > size_max:
                call.results[slot] = failure(
                    ValueError(f"Payload of {len(message.payload)} bytes, limit {size_max}")
                )
                call.count_down(1)
                continue
            if message.sequence_id < 0:
                message.sequence_id = next(self._sequence)
            slots, entries = split.setdefault(publisher.route(message), ([], []))
            slots.append(slot)
            if message.deliver_after_ms:
                # http-api 5: relative to the event time; without one only now makes sense
                message.deliver_at_ms = message.deliver_after_ms + (message.event_time_ms or now_ms)
            entries.append(encode_single(publisher.producer_name, message, now_ms))
        for index, (slots, entries) in split.items():
            ticket = _PartitionTicket(call, slots, publisher.partition_of(index))
            publisher.producers[index].publish(entries, ticket)
        if call.left:
            done, _ = await asyncio.wait((call.answered,), timeout=ANSWER_TIMEOUT_S)
            if not done:
                timeout = failure(ServiceNotReadyError("The storage did not answer in time"))
                return [result or timeout for result in call.results]
        return call.results


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
    name = body.get("producerName")
    if name is not None and not isinstance(name, str):
        raise ApiError(400, "producerName must be a string")
    return name or "", [_parse_message(item, index) for index, item in enumerate(items)]


def _parse_message(item: Any, index: int) -> OutgoingMessage:
    if not isinstance(item, dict):
        raise ApiError(400, f"messages[{index}] must be an object")
    get = item.get
    payload = get("payload")
    if not isinstance(payload, str):
        raise ApiError(400, f"messages[{index}].payload must be a string")
    try:
        message = OutgoingMessage(payload.encode(), -1)
        if (key := get("key")) is not None:
            message.key = _expect(key, str, index, "key")
        if (properties := get("properties")) is not None:
            message.properties = _text_map(properties, index)
    except UnicodeEncodeError as error:
        raise ApiError(400, f"messages[{index}] holds a lone surrogate") from error
    if len(item) > 1 and not item.keys() <= {"payload", "key", "properties"}:
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
    if item.get("disableReplication") is True:
        message.replicate_to = ("__local__",)
    elif (clusters := item.get("replicationClusters")) is not None:
        clusters = _expect(clusters, list, index, "replicationClusters")
        message.replicate_to = [_expect(c, str, index, "replicationClusters") for c in clusters]


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
