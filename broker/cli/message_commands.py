"""``magnetar produce`` and ``magnetar consume``, with pulsar-client's words (http-api 8)."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from broker.cli.binary_client import BinaryClient
from broker.cli.errors import CliError
from broker.cli.profiles import resolve
from broker.http.messages import (
    Message,
    OutgoingMessage,
    UndecodableEntryError,
    decode_entry,
    encode_batch,
)
from broker.protocol import pulsar_api_pb2 as pb
from broker.protocol.framing import encode_command, encode_payload_command
from broker.protocol.topic_name import InvalidTopicNameError, TopicName

__all__ = ["run_consume", "run_produce"]

BATCH_MESSAGES_MAX = 100
BATCH_BYTES_MAX = 128 * 1024
IN_FLIGHT_MAX = 64  # batches
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024


def _topic(text: str) -> TopicName:
    try:
        return TopicName.parse(text)
    except InvalidTopicNameError as error:
        raise CliError(str(error)) from error


# --- produce


def run_produce(options: argparse.Namespace) -> int:
    """Send; prints how many arrived. Raises CliError when one didn't."""
    contents = _contents(options)
    if not contents:
        raise CliError("nothing to send: give -m TEXT or -f FILE")
    properties = dict(_pair(text) for text in options.properties)
    topic = _topic(options.topic)
    url = resolve(options.profile, options.url, None).service_url
    with BinaryClient(url) as first:
        count = first.partitions(str(topic))
        names = [topic.partition(index) for index in range(count)] if count else [topic]
        clients: dict[str, BinaryClient] = {}
        windows: dict[BinaryClient, _Window] = {}
        producers: list[_Producer] = []
        for name in names:
            client = _client_for(first, clients, str(name))
            window = windows.setdefault(client, _Window())
            producers.append(_Producer(client, str(name), window))
        sent = 0
        start = time.monotonic()
        for turn, group in enumerate(_groups(contents * options.num_produce, options.rate)):
            messages = [OutgoingMessage(data, 0, options.key, properties) for data in group]
            producers[turn % len(producers)].send(messages)
            sent += len(group)
            if options.rate > 0:
                time.sleep(max(0.0, start + sent / options.rate - time.monotonic()))
        for producer in producers:
            producer.finish()
    print(f"{sent} messages successfully produced")
    return 0


def _contents(options: argparse.Namespace) -> list[bytes]:
    texts = [
        part
        for text in options.messages
        for part in (text.split(options.separator) if options.separator else [text])
    ]
    contents = [text.encode(errors="surrogateescape") for text in texts]
    for name in options.file:
        try:
            with open(name, "rb") as file:
                contents.append(file.read())
        except OSError as error:
            raise CliError(str(error)) from error
    return contents


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise CliError(f"-p {text}: KEY=VALUE is expected")
    return key, value


def _groups(contents: list[bytes], rate: float) -> Iterator[list[bytes]]:
    """Batches; with a rate every message goes alone."""
    group: list[bytes] = []
    size = 0
    for data in contents:
        if group and (
            rate > 0 or len(group) == BATCH_MESSAGES_MAX or size + len(data) > BATCH_BYTES_MAX
        ):
            yield group
            group, size = [], 0
        group.append(data)
        size += len(data)
    if group:
        yield group


def _client_for(first: BinaryClient, clients: dict[str, BinaryClient], topic: str) -> BinaryClient:
    """A connection to the topic's owner; the first one when that is it."""
    url = first.owner(topic)
    if url == first.service_url:
        return first
    if url not in clients:
        clients[url] = BinaryClient(url)
    return clients[url]


@dataclass(slots=True)
class _Window:
    """Batches in flight on one connection, of all its producers."""

    in_flight: int = 0


class _Producer:
    """One producer; the batches in flight on its connection are bounded."""

    def __init__(self, client: BinaryClient, topic: str, window: _Window) -> None:
        self._client = client
        self._window = window
        self._id = client.next_id()
        self._next_sequence_id = 0
        command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
        request = command.producer
        request.topic, request.producer_id, request.request_id = topic, self._id, client.next_id()
        request.user_provided_producer_name = False
        answer = client.call(command, request.request_id)
        self._name = answer.producer_success.producer_name

    def send(self, messages: list[OutgoingMessage]) -> None:
        for message in messages:
            message.sequence_id = self._next_sequence_id
            self._next_sequence_id += 1
        metadata, body = encode_batch(self._name, messages, int(time.time() * 1000))
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        command.send.producer_id = self._id
        command.send.sequence_id = metadata.sequence_id
        command.send.highest_sequence_id = metadata.highest_sequence_id
        command.send.num_messages = len(messages)
        self._client.send(encode_payload_command(command, body))
        self._window.in_flight += 1
        while self._window.in_flight >= IN_FLIGHT_MAX:
            self._take_receipt()

    def finish(self) -> None:
        while self._window.in_flight:
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
        self._window.in_flight -= 1


# --- consume


@dataclass(slots=True)
class _Seen:
    wanted: int  # 0: forever
    count: int = 0

    @property
    def enough(self) -> bool:
        return 0 < self.wanted <= self.count


def run_consume(options: argparse.Namespace) -> int:
    """Receive, print and acknowledge. Exit code 1 when the silence was too long."""
    topic = _topic(options.topic)
    seen = _Seen(options.num_messages)
    url = resolve(options.profile, options.url, None).service_url
    with BinaryClient(url) as first:
        count = first.partitions(str(topic))
        if count:
            # One blocking socket holds all partitions of one broker, not those of several.
            owners = {first.owner(str(topic.partition(index))) for index in range(count)}
            if len(owners) > 1:
                raise CliError("the partitions live on several brokers: consume one partition")
        names = [topic.partition(index) for index in range(count)] if count else [topic]
        client = _client_for(first, {}, str(names[0]))
        queue = max(1, min(options.queue_size, options.num_messages or options.queue_size))
        for name in names:
            _subscribe(client, str(name), options, queue)
        timeout_s = options.timeout if options.timeout > 0 else None
        consumer_id = 0
        while not seen.enough:
            frame = client.wait_for(client.messages, timeout_s)
            if frame is None:
                print(f"{seen.count} messages received, then silence", file=sys.stderr)
                return 1
            _show(client, frame, options, seen)
            consumer_id = frame[0].message.consumer_id
        if consumer_id:
            client.call(*_close(client, consumer_id))  # the answer comes after our acknowledgements
    print(f"{seen.count} messages successfully consumed")
    return 0


def _subscribe(client: BinaryClient, topic: str, options: argparse.Namespace, queue: int) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription = topic, options.subscription_name
    request.subType = pb.CommandSubscribe.SubType.Value(options.subscription_type)
    request.consumer_id, request.request_id = client.next_id(), client.next_id()
    request.initialPosition = pb.CommandSubscribe.InitialPosition.Value(
        options.subscription_position
    )
    client.call(command, request.request_id)
    _flow(client, request.consumer_id, queue)


def _flow(client: BinaryClient, consumer_id: int, permits: int) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
    client.send(encode_command(command))


def _close(client: BinaryClient, consumer_id: int) -> tuple[pb.BaseCommand, int]:
    command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    command.close_consumer.request_id = client.next_id()
    return command, command.close_consumer.request_id


def _show(
    client: BinaryClient,
    frame: tuple[pb.BaseCommand, bytes],
    options: argparse.Namespace,
    seen: _Seen,
) -> None:
    command, body = frame
    delivered = command.message
    try:
        messages = decode_entry(body, PAYLOAD_BYTES_MAX)
    except UndecodableEntryError as error:
        print(f"skipped {delivered.message_id.ledgerId}:{delivered.message_id.entryId}: {error}")
        messages = []
    shown: list[int] = []
    for message in messages:
        if seen.enough:
            break
        if not options.hide_content:
            print("----- got message -----")
            print(_describe(message, options.hex))
        seen.count += 1
        shown.append(message.batch_index)
    # Of a batch shown in part the rest comes again, where the broker keeps batch index acks.
    left = messages[len(shown) :]
    _acknowledge(client, delivered, [message.batch_index for message in left])
    _flow(client, delivered.consumer_id, max(1, len(messages)))


def _acknowledge(client: BinaryClient, delivered: pb.CommandMessage, left: list[int]) -> None:
    """Acknowledge an entry, or all of it but the batch indexes that are left."""
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id = delivered.consumer_id
    command.ack.ack_type = pb.CommandAck.Individual
    message_id = command.ack.message_id.add()
    message_id.CopyFrom(delivered.message_id)
    del message_id.ack_set[:]
    if left:
        words = [0] * ((max(left) >> 6) + 1)
        for index in left:
            words[index >> 6] |= 1 << (index & 63)
        message_id.ack_set.extend(word - 2**64 if word >= 2**63 else word for word in words)
    client.send(encode_command(command))


def _describe(message: Message, as_hex: bool) -> str:
    content = message.payload.hex(" ") if as_hex else message.payload.decode(errors="replace")
    properties = ", ".join(f"{key}={value}" for key, value in message.properties.items())
    return (
        f"publishTime:[{message.publish_time_ms}], eventTime:[{message.event_time_ms}], "
        f"key:[{message.key if message.key is not None else 'null'}], "
        f"properties:[{properties}], content:{content}"
    )
