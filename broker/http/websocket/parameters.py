"""Query parameters of the WebSocket endpoints: a wrong one refuses the upgrade."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import mmh3
import orjson

from magnetar.broker.http.errors import ApiError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.broker.protocol.messages import MessageIdError, parse_message_id
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.broker.subscription.consumer import EXCLUSIVE, SUB_TYPES

T = TypeVar("T")
QUEUE_SIZE_MAX = 1000
_INT32_MAX = 2**31 - 1
_CRYPTO = {action: action for action in ("FAIL", "DISCARD", "CONSUME")}


def _murmur_hash(key: str) -> int:
    """Murmur3_32 of the key's UTF-8, without its sign."""
    return mmh3.hash(key.encode("utf-8", "surrogatepass"), signed=False) & 0x7FFFFFFF


def _number(
    query: Mapping[str, str], name: str, default: int, low: int = 0, high: int = _INT32_MAX
) -> int:
    text = query.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ApiError(400, f"Invalid query parameter {name}={text!r}: not a number") from None
    if not low <= value <= high:
        raise ApiError(400, f"Invalid query parameter {name}={value}: not in {low} to {high}")
    return value


def _choice(query: Mapping[str, str], name: str, default: T, choices: Mapping[str, T]) -> T:
    text = query.get(name)
    if text is None:
        return default
    if text not in choices:
        raise ApiError(
            400, f"Invalid query parameter {name}={text!r}: not one of {', '.join(choices)}"
        )
    return choices[text]


def _queue_size(query: Mapping[str, str]) -> int:
    """The push window; 0 means one at a time, as in Pulsar."""
    return min(max(_number(query, "receiverQueueSize", QUEUE_SIZE_MAX), 1), QUEUE_SIZE_MAX)


def _refuse_empty(query: Mapping[str, str], name: str) -> None:
    if query.get(name) == "":
        raise ApiError(400, f"Invalid query parameter {name}: empty")


def _true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() == "true"


@dataclass(frozen=True, slots=True)
class ProducerParameters:
    producer_name: str
    batching: bool
    batch_messages_max: int  # 0 asks for none: batches are bounded by their bytes
    pending_max: int
    send_timeout_ms: int  # 0: none
    first_sequence_id: int
    round_robin: bool
    hash_key: Callable[[str], int]
    compression: pb.CompressionType.ValueType
    encryption_keys: pb.MessageMetadata | None = None
    """Set: its client encrypts, and these are the keys of every message."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "ProducerParameters":
        """Raises ApiError 400 for the first wrong one."""
        batching = _true(query, "batchingEnabled")
        # As Pulsar: these two are looked at with batching only.
        messages_max = (
            (_number(query, "batchingMaxMessages", 1000) or _INT32_MAX) if batching else 1
        )
        if batching:
            _number(query, "batchingMaxPublishDelay", 10, 1)  # checked, not used: see producer.py
        _refuse_empty(query, "producerName")
        keys = _encryption_keys(query["encryptionKeys"]) if "encryptionKeys" in query else None
        if keys is not None:  # as Pulsar: what is encrypted is neither batched nor compressed here
            batching, messages_max = False, 1
        return cls(
            query.get("producerName", ""),
            batching,
            messages_max,
            _number(query, "maxPendingMessages", 1000, 1, 1_000_000),
            _number(query, "sendTimeoutMillis", 30_000),
            _number(query, "initialSequenceId", -1, -1, 2**62),
            _choice(
                query,
                "messageRoutingMode",
                False,
                {"SinglePartition": False, "RoundRobinPartition": True, "CustomPartition": False},
            ),
            _choice(
                query,
                "hashingScheme",
                java_string_hash,
                {"JavaStringHash": java_string_hash, "Murmur3_32Hash": _murmur_hash},
            ),
            pb.NONE if keys else _choice(query, "compressionType", pb.NONE, COMPRESSIONS),
            keys,
        )


def _encryption_keys(text: str) -> pb.MessageMetadata:
    """Of ``encryptionKeys``: base64 of a JSON object, ``{name: {keyValue: base64, metadata: {}}}``.

    Raises:
        ApiError: 400; names alone would need a key reader.
    """
    keys = pb.MessageMetadata()
    try:
        given = orjson.loads(b64decode(text.strip(), validate=True))
        for name, key in given.items():
            add_encryption_key(keys, name, key)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ApiError(
            400,
            "encryptionKeys must be the keys that messages are encrypted with, as base64 of "
            '{"name":{"keyValue":base64,"metadata":{}}}: this broker has none of its own',
        ) from error
    if not keys.encryption_keys:
        raise ApiError(400, "encryptionKeys names no key")
    return keys


def add_encryption_key(metadata: pb.MessageMetadata, name: str, key: Mapping[str, Any]) -> None:
    """One key as clients tell it. Raises KeyError, TypeError, ValueError, AttributeError."""
    value = b64decode(key["keyValue"], validate=True)
    wrapped = metadata.encryption_keys.add(key=name, value=value)
    for field, text in (key.get("metadata") or {}).items():
        wrapped.metadata.add(key=field, value=text)


@dataclass(frozen=True, slots=True)
class ConsumerParameters:
    sub_type: int
    durable: bool
    consumer_name: str
    queue_size: int
    priority_level: int
    ack_timeout_ms: int  # 0: off
    nack_delay_ms: int
    pull: bool
    redeliver_max: int  # 0: no dead letter topic
    dead_letter_topic: str
    earliest: bool
    crypto_action: str

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "ConsumerParameters":
        """Raises ApiError 400 for the first wrong one."""
        ack_timeout_ms = _number(query, "ackTimeoutMillis", 0)
        if 0 < ack_timeout_ms < 1000:
            raise ApiError(400, "Invalid query parameter ackTimeoutMillis: at least 1000")
        redeliver_max = _number(query, "maxRedeliverCount", 0, 1)
        for name in ("consumerName", "deadLetterTopic"):
            _refuse_empty(query, name)
        dead_letter_topic = query.get("deadLetterTopic", "")
        if dead_letter_topic:
            if not redeliver_max:
                raise ApiError(400, "deadLetterTopic needs maxRedeliverCount, at least 1")
            try:
                TopicName.parse(dead_letter_topic)
            except InvalidTopicNameError as error:
                raise ApiError(400, f"Invalid query parameter deadLetterTopic: {error}") from error
        return cls(
            _choice(query, "subscriptionType", EXCLUSIVE, SUB_TYPES),
            _choice(query, "subscriptionMode", True, {"Durable": True, "NonDurable": False}),
            query.get("consumerName", ""),
            _queue_size(query),
            _number(query, "priorityLevel", 0),
            ack_timeout_ms,
            _number(query, "negativeAckRedeliveryDelay", 60_000),
            _true(query, "pullMode"),
            redeliver_max,
            dead_letter_topic,
            _choice(
                query, "subscriptionInitialPosition", False, {"Latest": False, "Earliest": True}
            ),
            _choice(query, "cryptoFailureAction", "FAIL", _CRYPTO),
        )


@dataclass(frozen=True, slots=True)
class ReaderParameters:
    reader_name: str
    queue_size: int
    start: pb.MessageIdData | str  # "latest", "earliest" or an id
    crypto_action: str

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "ReaderParameters":
        """Raises ApiError 400 for the first wrong one."""
        # An unencoded + of base64 has become a space on the way.
        text = query.get("messageId", "").replace(" ", "+") or "latest"
        start: pb.MessageIdData | str = text
        if text not in ("latest", "earliest"):
            try:
                start = parse_message_id(text)
            except MessageIdError as error:
                raise ApiError(400, f"Invalid query parameter messageId: {error}") from error
        return cls(
            query.get("readerName", ""),
            _queue_size(query),
            start,
            _choice(query, "cryptoFailureAction", "FAIL", _CRYPTO),
        )
