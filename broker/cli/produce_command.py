"""``magnetar produce``: batches, pieces of large messages, schemas, a rate."""

from __future__ import annotations

import argparse
import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from magnetar.broker.cli.binary_client import BinaryClient
from magnetar.broker.cli.cluster_connections import ClusterConnections, is_websocket, topic_name
from magnetar.broker.cli.encryption import Encryptor, encryptor_of
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.payloads import (
    check_options,
    contents_of,
    paced,
    pair_key_of,
    properties_of,
)
from magnetar.broker.cli.profiles import target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.typed_values import Encoder
from magnetar.broker.http.messaging.messages import OutgoingMessage, encode_batch, encode_single
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body, encode_payload_command, parse_entry_body
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import fill_wire

BATCH_MESSAGES_MAX = 100
BATCH_BYTES_MAX = 128 * 1024
IN_FLIGHT_MAX = 64  # entries
METADATA_BYTES = 16 * 1024
"""Room that a piece leaves for its metadata."""

Group: TypeAlias = list[OutgoingMessage]


def run_produce(options: argparse.Namespace) -> int:
    """Send; prints how many arrived. Raises CliError when one didn't."""
    target = target_of(options)
    if is_websocket(target.service_url):
        from magnetar.broker.cli.websocket_commands import produce_by_websocket

        return produce_by_websocket(target, options)
    check_options(options)
    encryptor = encryptor_of(options)
    encoder = Encoder(options.value_schema, options.key_schema, options.key_value_encoding_type)
    messages = [_outgoing(content, encoder, options) for content in contents_of(options)]
    topic = topic_name(options.topic)
    with ClusterConnections(target) as cluster:
        producers = _producers(cluster, topic, encoder, encryptor, options)
        total = len(messages) * options.num_produce
        with progress("messages", total) as advance:
            for turn, group in enumerate(paced(_groups(messages, options), options.rate)):
                producers[turn % len(producers)].send(group)
                advance(len(group))
            for producer in producers:
                producer.finish()
    print(f"{total} messages successfully produced")
    return 0


# --- what to send


def _outgoing(content: bytes, encoder: Encoder, options: argparse.Namespace) -> OutgoingMessage:
    payload, key, key_is_base64 = encoder.encode(content, pair_key_of(options))
    message = OutgoingMessage(payload, 0, key, properties_of(options))
    message.key_is_base64 = key_is_base64
    if options.disable_replication:
        message.replicate_to = ["__local__"]
    return message


def _groups(messages: list[OutgoingMessage], options: argparse.Namespace) -> Iterator[Group]:
    """Batches; with a rate, or what can't share an entry, every message goes alone."""
    alone = options.disable_batching or options.chunking or options.rate > 0
    alone = alone or options.disable_replication or messages[0].key_is_base64
    group: Group = []
    size = 0
    rounds = itertools.repeat(messages, options.num_produce)
    for message in itertools.chain.from_iterable(rounds):
        length = len(message.payload)
        full = len(group) == BATCH_MESSAGES_MAX or size + length > BATCH_BYTES_MAX
        if group and (alone or full):
            yield group
            group, size = [], 0
        group.append(replace(message))  # each has its own sequence id
        size += length
    if group:
        yield group


# --- producers


def _producers(
    cluster: ClusterConnections,
    topic: TopicName,
    encoder: Encoder,
    encryptor: Encryptor | None,
    options: argparse.Namespace,
) -> list[_Producer]:
    """Of all partitions in turn; of one where a key must stay in order."""
    parts = cluster.parts(topic)
    if options.key is not None:
        parts = [parts[(_java_hash(options.key) & 0x7FFFFFFF) % len(parts)]]
    memory = _Memory(options.memory_limit or 0)
    windows: dict[BinaryClient, _Window] = {}
    producers: list[_Producer] = []
    for part in parts:
        client = cluster.client_for(part)
        window = windows.setdefault(client, _Window(memory))
        producers.append(_Producer(client, str(part), window, encoder, encryptor, options.chunking))
    return producers


def _java_hash(text: str) -> int:
    """``String.hashCode``, by which the Java tool routes keys; 32 bits, unsigned."""
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


@dataclass(slots=True)
class _Memory:
    """Bytes in flight of the whole command."""

    limit: int  # 0: none
    used: int = 0


@dataclass(slots=True)
class _Window:
    """Entries in flight on one connection, of all its producers, by their sizes."""

    memory: _Memory
    sizes: deque[int] = field(default_factory=deque)

    def add(self, size: int) -> None:
        self.sizes.append(size)
        self.memory.used += size

    def remove(self) -> None:
        self.memory.used -= self.sizes.popleft()

    def has_room(self, size: int) -> bool:
        """Whether one more may go; one always may."""
        memory = self.memory
        if len(self.sizes) >= IN_FLIGHT_MAX:
            return False
        return not self.sizes or not memory.limit or memory.used + size <= memory.limit


class _Producer:
    """One producer; the entries in flight on its connection are bounded."""

    def __init__(
        self,
        client: BinaryClient,
        topic: str,
        window: _Window,
        encoder: Encoder,
        encryptor: Encryptor | None,
        chunking: bool,
    ) -> None:
        """Raises CliError: the broker doesn't want it, or not with this schema."""
        self._client = client
        self._window = window
        self._encryptor = encryptor
        self._chunking = chunking
        self._id = client.next_id()
        self._next_sequence_id = 0
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        request = command.producer
        request.topic, request.producer_id, request.request_id = topic, self._id, client.next_id()
        request.user_provided_producer_name = False
        request.encrypted = encryptor is not None
        if encoder.definition is not None:
            fill_wire(request.schema, "", encoder.definition)
        answer = client.call(command, request.request_id).producer_success
        self._name = answer.producer_name
        self._schema_version = b"" if encoder.definition is None else answer.schema_version

    def send(self, messages: Group) -> None:
        for message in messages:
            message.sequence_id = self._next_sequence_id
            message.schema_version = self._schema_version
            self._next_sequence_id += 1
        now_ms = int(time.time() * 1000)
        if len(messages) > 1:
            metadata, body = encode_batch(self._name, messages, now_ms)
        else:
            metadata, body = encode_single(self._name, messages[0], now_ms)
        limit = self._client.message_bytes_max
        if len(body) <= limit and self._encryptor is not None:
            body = self._sealed(metadata, parse_entry_body(body)[1])
        if len(body) <= limit:
            self._send(metadata, body, len(messages))
        elif self._chunking:
            self._send_in_pieces(metadata, messages[0].payload, limit - METADATA_BYTES)
        else:
            raise CliError(f"{len(body)} bytes, the broker takes {limit}: cut it with -c")

    def _send_in_pieces(self, metadata: pb.MessageMetadata, payload: bytes, size: int) -> None:
        count = -(-len(payload) // size)
        metadata.uuid = f"{self._name}-{metadata.sequence_id}"
        metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = count, len(payload)
        for index in range(count):
            metadata.chunk_id = index
            body = self._sealed(metadata, payload[index * size : (index + 1) * size])
            self._send(metadata, body, 1, is_chunk=True)

    def _sealed(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """The entry's body; encrypted where that is asked for."""
        if self._encryptor is None:
            return encode_body(metadata, bytes(payload))
        return encode_body(metadata, self._encryptor.seal(metadata, payload))

    def _send(
        self, metadata: pb.MessageMetadata, body: bytes, count: int, *, is_chunk: bool = False
    ) -> None:
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id = self._id
        command.send.sequence_id = metadata.sequence_id
        if metadata.HasField("highest_sequence_id"):
            command.send.highest_sequence_id = metadata.highest_sequence_id
        command.send.num_messages = count
        if is_chunk:
            command.send.is_chunk = True
        while not self._window.has_room(len(body)):
            self._take_receipt()
        self._client.send(encode_payload_command(command, body))
        self._window.add(len(body))

    def finish(self) -> None:
        while self._window.sizes:
            self._take_receipt()

    def _take_receipt(self) -> None:
        client = self._client
        frame = client.wait_for(client.receipts, client.timeout_s)
        if frame is None:
            raise CliError(f"no receipt within {client.timeout_s:.0f} s")
        command = frame[0]
        if command.type == pb.BaseCommand.SEND_ERROR:
            name = pb.ServerError.Name(command.send_error.error)
            raise CliError(f"{name}: {command.send_error.message}")
        self._window.remove()
