"""``magnetar consume`` and ``magnetar read``: one topic, its partitions, or all that match."""

from __future__ import annotations

import argparse
import re
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.broker.cli.binary_client import BinaryClient, Frame
from magnetar.broker.cli.chunks import ClientChunkAssembler, Origin
from magnetar.broker.cli.cluster_connections import ClusterConnections, is_websocket, topic_name
from magnetar.broker.cli.encryption import UndecryptableError, decryptor_of
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.message_details import facts_of
from magnetar.broker.cli.output import describe
from magnetar.broker.cli.profiles import ClusterTarget, target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.typed_values import Decoder
from magnetar.broker.http.messaging.messages import Message, UndecodableEntryError, decode_entry
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import NO_ID, encode_body, encode_command, parse_entry_body
from magnetar.broker.protocol.topic_name import TopicName

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
LOOK_FOR_TOPICS_S = 10.0
"""How often a pattern is compared with the topics that there are."""
_LATEST = 2**63 - 1
_PARTITION = re.compile(r"-partition-\d+$")


@dataclass(slots=True)
class _Consumer:
    topic: TopicName
    client: BinaryClient


@dataclass(slots=True)
class _Arrived:
    """One entry, as it came."""

    consumer: _Consumer
    command: pb.CommandMessage
    metadata: pb.MessageMetadata


def run_consume(options: argparse.Namespace) -> int:
    """Receive, show and acknowledge. Exit code 1 when the silence was too long."""
    target = target_of(options)
    if is_websocket(target.service_url):
        from magnetar.broker.cli.websocket_commands import consume_by_websocket

        return consume_by_websocket(target, options)

    def fill(request: pb.CommandSubscribe) -> None:
        subscribe = pb.CommandSubscribe
        request.subscription = options.subscription_name
        request.subType = subscribe.SubType.Value(options.subscription_type)
        request.durable = options.subscription_mode == "Durable"
        request.initialPosition = subscribe.InitialPosition.Value(options.subscription_position)
        if options.replicated:
            request.replicate_subscription_state = True

    return _run(target, options, fill, regex=options.regex, done="consumed")


def run_read(options: argparse.Namespace) -> int:
    """Receive and show from a message on, without a subscription that stays."""
    target = target_of(options)
    if is_websocket(target.service_url):
        from magnetar.broker.cli.websocket_commands import read_by_websocket

        return read_by_websocket(target, options)
    start = _start_of(options)

    def fill(request: pb.CommandSubscribe) -> None:
        request.subscription = f"reader-{uuid.uuid4().hex[:10]}"
        request.subType = pb.CommandSubscribe.Exclusive
        request.durable = False
        request.read_compacted = options.readCompacted
        request.start_message_id.CopyFrom(start)

    if start.entryId >= _LATEST:
        return _run(target, options, fill, regex=False, done="read")
    after = None if options.start_message_id_inclusive else (start.ledgerId, start.entryId)
    return _run(target, options, fill, regex=False, done="read", one_part=True, after=after)


def _start_of(options: argparse.Namespace) -> pb.MessageIdData:
    text = options.start_message_id.lower()
    if text == "latest":
        return pb.MessageIdData(ledgerId=_LATEST, entryId=_LATEST)
    if text == "earliest":
        return pb.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)
    try:
        ledger, entry = map(int, text.split(":"))
        start = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    except ValueError:
        raise CliError(f"-m {text}: not a message id (latest, earliest or ledger:entry)") from None
    if options.start_message_id_inclusive:
        start.batch_index = 0  # a broker then starts with the entry itself
    return start


def _run(
    target: ClusterTarget,
    options: argparse.Namespace,
    fill: Callable[[pb.CommandSubscribe], None],
    *,
    regex: bool,
    done: str,
    one_part: bool = False,
    after: tuple[int, int] | None = None,
) -> int:
    with ClusterConnections(target) as cluster:
        receiver = _Receiver(cluster, options, fill, after)
        pattern = _Pattern(options.topic) if regex else None
        if pattern is None:
            parts = cluster.parts(topic_name(options.topic))
            if len(parts) > 1 and one_part:
                raise CliError("a message id belongs to one partition: read that one")
            receiver.subscribe(parts)
        with progress("messages", options.num_messages or None) as advance:
            silent = receiver.receive(pattern, advance if options.hide_content else None)
        receiver.close()
    if silent:
        print(f"{receiver.count} messages received, then silence", file=sys.stderr)
        return 1
    print(f"{receiver.count} messages successfully {done}")
    return 0


class _Pattern:
    """A regular expression of topic names in one namespace."""

    def __init__(self, text: str) -> None:
        """Raises CliError: not domain://tenant/namespace/expression."""
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
        parts = rest.split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) != 3 or domain not in ("persistent", "non-persistent"):
            raise CliError(f"{text}: not a pattern (tenant/namespace/expression)")
        self.namespace = f"{parts[0]}/{parts[1]}"
        self.persistent = domain == "persistent"
        try:
            self._expression = re.compile(parts[2])
        except re.error as error:
            raise CliError(f"{parts[2]}: not an expression: {error}") from error

    def topics(self, client: BinaryClient) -> list[TopicName]:
        """What matches now; partitions match by the name of their topic."""
        names = map(TopicName.parse, client.topics(self.namespace, persistent=self.persistent))
        return [
            name for name in names if self._expression.fullmatch(_PARTITION.sub("", name.local))
        ]


class _Receiver:
    """All consumers of one command: shows what comes until it is enough."""

    def __init__(
        self,
        cluster: ClusterConnections,
        options: argparse.Namespace,
        fill: Callable[[pb.CommandSubscribe], None],
        after: tuple[int, int] | None,
    ) -> None:
        """``after``: entries up to this one aren't wanted; a broker starts with the named one."""
        self.count = 0
        self._after = after
        self._wanted: int = options.num_messages
        self._cluster = cluster
        self._options = options
        self._fill = fill
        self._queue = max(1, min(options.queue_size, options.num_messages or options.queue_size))
        self._consumers: dict[tuple[BinaryClient, int], _Consumer] = {}
        self._topics: set[str] = set()
        self._chunks = ClientChunkAssembler(options.max_chunked_msg)
        self._decryptor = decryptor_of(options)
        self._end_ms: int = getattr(options, "end_timestamp", 0)
        self._start_ms: int = getattr(options, "start_timestamp", 0)
        self._ended = False  # a message came that was published after _end_ms
        self._decoder: Decoder | None = None
        if options.schema_type == "auto_consume":
            self._decoder = Decoder(cluster.first.schema)
        self._started = time.monotonic()

    @property
    def _enough(self) -> bool:
        return self._ended or 0 < self._wanted <= self.count

    def subscribe(self, topics: list[TopicName]) -> None:
        """Those that aren't consumed yet. Raises CliError: refused."""
        for topic in topics:
            if str(topic) in self._topics:
                continue
            client = self._cluster.client_for(topic)
            consumer_id = self._open(client, topic)
            if self._start_ms:
                client.seek(consumer_id, self._start_ms)
                consumer_id = self._open(client, topic)
            self._topics.add(str(topic))
            self._consumers[client, consumer_id] = _Consumer(topic, client)
            _flow(client, consumer_id, self._queue)

    def _open(self, client: BinaryClient, topic: TopicName) -> int:
        """A consumer without permits; its id."""
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic = str(topic)
        request.consumer_id, request.request_id = client.next_id(), client.next_id()
        self._fill(request)
        client.call(command, request.request_id)
        return request.consumer_id

    def receive(self, pattern: _Pattern | None, advance: Callable[[int], None] | None) -> bool:
        """Until it is enough; True: the silence was too long.

        Args:
            pattern: topics to look for again and again.
            advance: told how many messages came, where they aren't shown.
        """
        timeout_s = self._options.timeout if self._options.timeout > 0 else None
        heard = time.monotonic()
        look_at = 0.0
        while not self._enough:
            if pattern is not None and time.monotonic() >= look_at:
                self.subscribe(pattern.topics(self._cluster.first))
                look_at = time.monotonic() + LOOK_FOR_TOPICS_S
            limits = [heard + timeout_s] if timeout_s is not None else []
            limits += [look_at] if pattern is not None else []
            wait_s = max(0.0, min(limits) - time.monotonic()) if limits else None
            arrived = self._cluster.next_message(wait_s)
            if arrived is not None:
                before = self.count
                self._take(*arrived)
                heard = time.monotonic()
                if advance is not None:
                    advance(self.count - before)
            elif timeout_s is not None and time.monotonic() >= heard + timeout_s:
                return True
        return False

    def close(self) -> None:
        """Returns when the brokers have all acknowledgements."""
        for client, consumer_id in self._consumers:
            command = pb.BaseCommand(type=pb.BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = consumer_id
            command.close_consumer.request_id = client.next_id()
            client.call(command, command.close_consumer.request_id)

    # --- one entry

    def _take(self, client: BinaryClient, frame: Frame) -> None:
        command, body = frame
        delivered = command.message
        consumer = self._consumers[client, delivered.consumer_id]
        message_id = delivered.message_id
        origin: Origin = (delivered.consumer_id, message_id)
        if self._after and (message_id.ledgerId, message_id.entryId) <= self._after:
            _flow(client, delivered.consumer_id, 1)
            return
        try:
            metadata, payload = parse_entry_body(body)
            if self._end_ms and metadata.publish_time > self._end_ms:
                self._ended = True  # and it stays unacknowledged
                return
            arrived = _Arrived(consumer, delivered, metadata)
            if metadata.encryption_keys:
                opened = self._opened(arrived, payload)
                if opened is None:
                    _acknowledge(client, *origin)
                    _flow(client, delivered.consumer_id, 1)
                    return
                plain, body = opened
            else:
                plain = metadata
            if metadata.num_chunks_from_msg > 1:
                _flow(client, delivered.consumer_id, 1)
                whole = self._chunks.add(plain, bytes(parse_entry_body(body)[1]), origin)
                self._drop(client)
                if whole is not None:
                    self._show(arrived, whole.body)
                    for piece in whole.origins:
                        _acknowledge(client, *piece)
                return
            size, left = self._show(arrived, body, list(delivered.ack_set))
        except (UndecodableEntryError, ValueError) as error:
            print(f"skipped {message_id.ledgerId}:{message_id.entryId}: {error}", file=sys.stderr)
            size, left = 1, []
        _acknowledge(client, *origin, left)
        _flow(client, delivered.consumer_id, max(1, size))

    def _opened(
        self, arrived: _Arrived, payload: memoryview
    ) -> tuple[pb.MessageMetadata, bytes] | None:
        """Metadata and body of an encrypted entry without its seal; None: it is to be skipped.

        Raises:
            CliError: it can't be opened, and such a message ends the command.
        """
        sealed = arrived.metadata
        reason = "an encrypted message, and no key (-ekv)"
        if self._decryptor is not None:
            plain = pb.MessageMetadata()
            plain.CopyFrom(sealed)
            try:
                return plain, encode_body(plain, self._decryptor.open(plain, payload))
            except UndecryptableError as error:
                reason = f"an encrypted message: {error}"
        match self._options.crypto_failure_action:
            case "CONSUME":
                return sealed, encode_body(sealed, bytes(payload))
            case "DISCARD":
                return None
        raise CliError(f"{arrived.consumer.topic}: {reason} (-ca CONSUME shows it as it is)")

    def _drop(self, client: BinaryClient) -> None:
        dropped, self._chunks.dropped = self._chunks.dropped, []
        if self._options.auto_ack_chunk_q_full:
            for consumer_id, message_id in dropped:
                _acknowledge(client, consumer_id, message_id)

    def _show(
        self, arrived: _Arrived, body: bytes, ack_set: Sequence[int] = ()
    ) -> tuple[int, list[int]]:
        """Show an entry's messages; their number, and the batch indexes that weren't wanted.

        Args:
            body: decrypted, and in one piece.
            ack_set: words whose bits are the messages that aren't acknowledged; (): all of them.
        Raises:
            UndecodableEntryError: it can't be taken apart.
        """
        messages = decode_entry(body, PAYLOAD_BYTES_MAX)
        if ack_set:
            messages = [message for message in messages if _has_bit(ack_set, message.batch_index)]
        for position, message in enumerate(messages):
            if self._enough:
                # The rest comes again, where the broker keeps batch index acks.
                return len(messages), [left.batch_index for left in messages[position:]]
            self._pace()
            self.count += 1
            if not self._options.hide_content:
                print("----- got message -----")
                print(self._describe(arrived, message), flush=True)
        return len(messages), []

    def _pace(self) -> None:
        rate = self._options.rate
        if rate > 0:
            time.sleep(max(0.0, self._started + self.count / rate - time.monotonic()))

    def _describe(self, arrived: _Arrived, message: Message) -> str:
        if self._options.hex:
            content = message.payload.hex(" ")
        elif self._decoder is not None:
            topic = _PARTITION.sub("", str(arrived.consumer.topic))
            version = arrived.metadata.schema_version
            content = self._decoder.decode(topic, version, message.key, message.payload)
        else:
            content = message.payload.decode(errors="replace")
        line = describe(
            message.publish_time_ms, message.event_time_ms, message.key, message.properties, content
        )
        if self._options.print_metadata:
            delivered = arrived.command
            line += facts_of(
                arrived.metadata,
                delivered.message_id,
                message.batch_index,
                delivered.redelivery_count,
                message.sequence_id,
            )
        return line


def _has_bit(words: Sequence[int], index: int) -> bool:
    return index >> 6 < len(words) and bool(words[index >> 6] >> (index & 63) & 1)


def _flow(client: BinaryClient, consumer_id: int, permits: int) -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = consumer_id, permits
    client.send(encode_command(command))


def _acknowledge(
    client: BinaryClient,
    consumer_id: int,
    message_id: pb.MessageIdData,
    left: list[int] | None = None,
) -> None:
    """Acknowledge an entry, or all of it but the batch indexes that are left."""
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = pb.CommandAck.Individual
    acked = command.ack.message_id.add()
    acked.CopyFrom(message_id)
    del acked.ack_set[:]
    if left:
        words = [0] * ((max(left) >> 6) + 1)
        for index in left:
            words[index >> 6] |= 1 << (index & 63)
        acked.ack_set.extend(word - 2**64 if word >= 2**63 else word for word in words)
    client.send(encode_command(command))
