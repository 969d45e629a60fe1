"""``magnetar produce``: batches, pieces of large messages, schemas, a rate."""

import argparse
import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from magnetar.broker.cli.binary_client import CommandClient, is_websocket, run_command, topic_name
from magnetar.broker.cli.encryption import Encryptor, encryptor_of
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.payloads import (
    check_options,
    contents_of,
    pair_key_of,
    properties_of,
    wait_for_turn,
)
from magnetar.broker.cli.profiles import ClusterTarget, target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.typed_values import Encoder
from magnetar.broker.client.async_client_connection import ANSWER_S
from magnetar.broker.client.client_producer import ClientProducer, PublishCallback
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body, parse_entry_body
from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.broker.protocol.messages import OutgoingMessage, encode_batch, encode_single
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import version_bytes

BATCH_MESSAGES_MAX = 100
BATCH_BYTES_MAX = 128 * 1024
IN_FLIGHT_MAX = 64  # entries
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
METADATA_BYTES = 16 * 1024
"""Room that a piece leaves for its metadata."""

Group: TypeAlias = list[OutgoingMessage]


def run_produce(options: argparse.Namespace) -> int:
    """Send; prints how many arrived. Raises CliError when one didn't."""
    target = target_of(options)
    check_options(options)
    if not is_websocket(target.service_url):
        return run_command(_produce(target, options))
    from magnetar.broker.cli.websocket_commands import produce_by_websocket

    return run_command(produce_by_websocket(target, options))


async def _produce(target: ClusterTarget, options: argparse.Namespace) -> int:
    encryptor = encryptor_of(options)
    encoder = Encoder(options.value_schema, options.key_schema, options.key_value_encoding_type)
    messages = [_outgoing(content, encoder, options) for content in contents_of(options)]
    topic = topic_name(options.topic)
    total, sent = len(messages) * options.num_produce, 0
    async with CommandClient(target) as cluster:
        producers = await _producers(cluster, topic, encoder, encryptor, options)
        with progress("messages", total) as advance:
            started_s = time.monotonic()
            for turn, group in enumerate(_groups(messages, options)):
                await wait_for_turn(started_s, sent, options.rate)
                await producers[turn % len(producers)].send(group)
                sent += len(group)
                advance(len(group))
            await producers[0].window.wait_for_all()
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


async def _producers(
    cluster: CommandClient,
    topic: TopicName,
    encoder: Encoder,
    encryptor: Encryptor | None,
    options: argparse.Namespace,
) -> "list[_Producer]":
    """Of all partitions in turn; of one where a key must stay in order."""
    parts = await cluster.parts(topic)
    if options.key is not None:
        parts = [parts[java_string_hash(options.key) % len(parts)]]
    window = _Window(options.memory_limit or IN_FLIGHT_BYTES_MAX)
    producers: list[_Producer] = []
    for part in parts:
        producer = await ClientProducer(await cluster.owner(part), part).open(
            schema=encoder.definition, encrypted=encryptor is not None
        )
        bytes_max = cluster.message_bytes_max
        producers.append(_Producer(producer, window, bytes_max, encryptor, options.chunking))
    return producers


class _Window:
    """Entries in flight of all producers: bounded in number and bytes; one always may be."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._count = self._bytes = 0
        self._error: Exception | None = None
        self._settled = asyncio.Event()

    async def add(self, size: int) -> PublishCallback:
        """Wait for room, and take it.

        Raises:
            CliError: no receipt comes in time; BrokerError: an entry wasn't stored.
        """
        while self._count >= IN_FLIGHT_MAX or (
            self._count and self._bytes + size > self._bytes_max
        ):
            await self._wait()
        self._count += 1
        self._bytes += size
        return partial(self._on_settled, size)

    async def wait_for_all(self) -> None:
        """Raises as ``add``."""
        while self._count:
            await self._wait()
        self._raise()

    async def _wait(self) -> None:
        self._settled.clear()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._settled.wait()
        except TimeoutError as error:
            raise CliError(f"no receipt within {ANSWER_S:.0f} s") from error
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _on_settled(
        self, size: int, index: int, count: int, ledger: int, entry: int, error: Exception | None
    ) -> None:
        self._count -= 1
        self._bytes -= size
        self._error = self._error or error
        self._settled.set()


class _Producer:
    """Entries out of messages, in pieces where they are too large."""

    def __init__(
        self,
        producer: ClientProducer,
        window: _Window,
        bytes_max: int,
        encryptor: Encryptor | None,
        chunking: bool,
    ) -> None:
        self.window = window
        self._producer, self._bytes_max = producer, bytes_max
        self._encryptor, self._chunking = encryptor, chunking
        self._name = producer.producer_name
        self._schema_version = version_bytes(producer.schema_version)
        self._next_sequence_id = 0

    async def send(self, messages: Group) -> None:
        for message in messages:
            message.sequence_id = self._next_sequence_id
            message.schema_version = self._schema_version
            self._next_sequence_id += 1
        now_ms, limit = int(time.time() * 1000), self._bytes_max
        if len(messages) > 1:
            metadata, body, _ = encode_batch(self._name, messages, now_ms)
        else:
            metadata, body, _ = encode_single(self._name, messages[0], now_ms)
        if len(body) <= limit and self._encryptor is not None:
            body = self._sealed(metadata, parse_entry_body(body)[1])
        if len(body) <= limit:
            await self._send(metadata, body)
        elif self._chunking:
            await self._send_in_pieces(metadata, messages[0].payload, limit - METADATA_BYTES)
        else:
            raise CliError(f"{len(body)} bytes, the broker takes {limit}: cut it with -c")

    async def _send_in_pieces(
        self, metadata: pb.MessageMetadata, payload: bytes, size: int
    ) -> None:
        count = -(-len(payload) // size)
        metadata.uuid = f"{self._name}-{metadata.sequence_id}"
        metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = count, len(payload)
        for index in range(count):
            metadata.chunk_id = index
            body = self._sealed(metadata, payload[index * size : (index + 1) * size])
            await self._send(metadata, body)

    def _sealed(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """The entry's body; encrypted where that is asked for."""
        if self._encryptor is None:
            return encode_body(metadata, bytes(payload))
        return encode_body(metadata, self._encryptor.seal(metadata, payload))

    async def _send(self, metadata: pb.MessageMetadata, body: bytes) -> None:
        entry = metadata, body, metadata.sequence_id
        self._producer.publish([entry], await self.window.add(len(body)))
