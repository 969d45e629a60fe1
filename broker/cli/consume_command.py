"""``magnetar consume`` and ``magnetar read``: one topic, its partitions, or all that match."""

import argparse
import asyncio
import math
import re
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from magnetar.broker.cli.binary_client import CommandClient, is_websocket, run_command, topic_name
from magnetar.broker.cli.encryption import UndecryptableError, decryptor_of
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.message_output import MessageOutput, describe, facts_of
from magnetar.broker.cli.profiles import ClusterTarget, target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.typed_values import Decoder
from magnetar.broker.client.client_consumer import ClientConsumer
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.chunks import ChunkAssembler
from magnetar.broker.protocol.framing import NO_ID
from magnetar.broker.protocol.messages import (
    Message,
    UndecodableEntryError,
    is_set,
    messages_of,
    open_entry,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.managed_ledger.cursor.ack_state import mask_to_words
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position

PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
LOOK_FOR_TOPICS_S = 10.0
"""How often a pattern is compared with the topics that there are."""
_LATEST = 2**63 - 1
_PARTITION = re.compile(r"-partition-\d+$")


@dataclass(slots=True)
class _Arrived:
    """One entry, as it came."""

    source: "_Source"
    position: Position
    body: bytes | memoryview
    redelivery_count: int
    ack_set: Sequence[int]
    metadata: pb.MessageMetadata = field(default_factory=pb.MessageMetadata)


class _Source:
    """Takes the entries of one topic or partition; the sink of its `ClientConsumer`."""

    def __init__(self, receiver: "_Receiver", topic: TopicName, incomplete_max: int) -> None:
        """``incomplete_max``: chunked messages that may be incomplete; 0: any number."""
        self.receiver, self.topic = receiver, topic
        self.consumer: Any = None
        self.chunks = ChunkAssembler(sys.maxsize, pending_max=incomplete_max or sys.maxsize)

    def deliver(
        self,
        consumer: Any,
        batch: EntryBatch,
        picks: object,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        """One entry."""
        counts, words = redelivery_counts or (0,), (ack_sets or {}).get(0, ())
        position = batch.ledger_id, batch.first
        self.receiver.on_arrived(_Arrived(self, position, batch.bodies[0], counts[0], words))

    def notify_end_of_topic(self, consumer: object) -> None:
        """Ignored: the command ends by number or silence."""

    def close_consumer(self, consumer: object) -> None:
        self.receiver.on_lost()

    def flow(self, permits: int) -> None:
        self.consumer.flow(self.consumer, permits)

    def acknowledge(self, positions: Iterable[Position], left: Sequence[int] = ()) -> None:
        """Entries, or all of each but the batch indexes that are left."""
        if not left:
            self.consumer.acknowledge(self.consumer, positions)
            return
        words = mask_to_words(sum(1 << index for index in left))
        for position in positions:
            self.consumer.acknowledge_batch(self.consumer, position, words)


def run_consume(options: argparse.Namespace) -> int:
    """Receive, show and acknowledge. Exit code 1 when the silence was too long."""
    target = target_of(options)
    if is_websocket(target.service_url):
        from magnetar.broker.cli.websocket_commands import consume_by_websocket

        return run_command(consume_by_websocket(target, options))

    def fill(request: pb.CommandSubscribe) -> None:
        subscribe = pb.CommandSubscribe
        request.subscription = options.subscription_name
        request.subType = subscribe.SubType.Value(options.subscription_type)
        request.durable = options.subscription_mode == "Durable"
        request.initialPosition = subscribe.InitialPosition.Value(options.subscription_position)
        if options.replicated:
            request.replicate_subscription_state = True

    return run_command(_run(target, options, fill, regex=options.regex, done="consumed"))


def run_read(options: argparse.Namespace) -> int:
    """Receive and show from a message on, without a subscription that stays."""
    target = target_of(options)
    if is_websocket(target.service_url):
        from magnetar.broker.cli.websocket_commands import read_by_websocket

        return run_command(read_by_websocket(target, options))
    start = start_of(options)

    def fill(request: pb.CommandSubscribe) -> None:
        request.subscription = f"reader-{uuid.uuid4().hex[:10]}"
        request.subType = pb.CommandSubscribe.Exclusive
        request.durable = False
        request.read_compacted = options.readCompacted
        request.start_message_id.CopyFrom(start)

    one_part = start.entryId < _LATEST
    after = None
    if one_part and not options.start_message_id_inclusive:
        after = (start.ledgerId, start.entryId)
    return run_command(
        _run(target, options, fill, regex=False, done="read", one_part=one_part, after=after)
    )


def start_of(options: argparse.Namespace) -> pb.MessageIdData:
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


async def _run(
    target: ClusterTarget,
    options: argparse.Namespace,
    fill: Callable[[pb.CommandSubscribe], None],
    *,
    regex: bool,
    done: str,
    one_part: bool = False,
    after: tuple[int, int] | None = None,
) -> int:
    pattern = _Pattern(options.topic) if regex else None
    with progress("messages", options.num_messages or None) as advance:
        async with CommandClient(target) as cluster:
            output = MessageOutput(options, advance)
            receiver = _Receiver(cluster, options, fill, output, after)
            if pattern is None:
                parts = await cluster.parts(topic_name(options.topic))
                if len(parts) > 1 and one_part:
                    raise CliError("a message id belongs to one partition: read that one")
                await receiver.subscribe(parts)
            silent = await receiver.receive(pattern)
            await receiver.close()
    return output.end(done, silent=silent)


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

    async def topics(self, cluster: CommandClient) -> list[TopicName]:
        """The topics that match now; partitions match by the name of their topic."""
        found = await cluster.topics(self.namespace, persistent=self.persistent)
        names = map(TopicName.parse, found)
        return [
            name for name in names if self._expression.fullmatch(_PARTITION.sub("", name.local))
        ]


class _Receiver:
    """All consumers of one command: shows what comes until it is enough."""

    def __init__(
        self,
        cluster: CommandClient,
        options: argparse.Namespace,
        fill: Callable[[pb.CommandSubscribe], None],
        output: MessageOutput,
        after: tuple[int, int] | None,
    ) -> None:
        """``after``: entries up to this one aren't wanted; a broker starts with the named one."""
        self._output = output
        self._after = after
        self._cluster = cluster
        self._options = options
        self._fill = fill
        self._queue = max(1, min(options.queue_size, options.num_messages or options.queue_size))
        self._sources: dict[str, _Source] = {}
        self._arrived: deque[_Arrived] = deque()
        self._something = asyncio.Event()  # has arrived, or was lost
        self._is_lost = False
        self._decryptor = decryptor_of(options)
        self._end_ms: int = getattr(options, "end_timestamp", 0)
        self._start_ms: int = getattr(options, "start_timestamp", 0)
        self._ended = False  # a message came that was published after _end_ms
        self._decoder: Decoder | None = None
        if options.schema_type == "auto_consume":
            self._decoder = Decoder(cluster.schema)

    @property
    def _enough(self) -> bool:
        return self._ended or self._output.is_enough

    def on_arrived(self, arrived: _Arrived) -> None:
        self._arrived.append(arrived)
        self._something.set()

    def on_lost(self) -> None:
        """A consumer's topic was closed, or its connection ended."""
        self._is_lost = True
        self._something.set()

    async def subscribe(self, topics: list[TopicName]) -> None:
        """Those that aren't consumed yet. Raises CliError, BrokerError: refused."""
        for topic in topics:
            if str(topic) in self._sources:
                continue
            source = _Source(self, topic, self._options.max_chunked_msg)
            await self._open(source)
            if self._start_ms:
                await source.consumer.seek(self._start_ms)
                await self._open(source)
            self._sources[str(topic)] = source
            source.flow(self._queue)

    async def _open(self, source: _Source) -> None:
        """A consumer without permits."""
        connection = await self._cluster.owner(source.topic)
        source.consumer = ClientConsumer(connection, source.topic, source)
        request = pb.CommandSubscribe()
        self._fill(request)
        await source.consumer.subscribe(request)

    async def receive(self, pattern: _Pattern | None) -> bool:
        """Until it is enough; True: the silence was too long.

        Args:
            pattern: topics to look for again and again.
        """
        timeout_s = self._options.timeout if self._options.timeout > 0 else math.inf
        heard, look_at = time.monotonic(), 0.0 if pattern is not None else math.inf
        while not self._enough:
            if pattern is not None and time.monotonic() >= look_at:
                await self.subscribe(await pattern.topics(self._cluster))
                look_at = time.monotonic() + LOOK_FOR_TOPICS_S
            arrived = await self._next(min(heard + timeout_s, look_at))
            if arrived is not None:
                await self._take(arrived)
                heard = time.monotonic()
            elif time.monotonic() >= heard + timeout_s:
                return True
        return False

    async def _next(self, until_s: float) -> _Arrived | None:
        """The next entry; None: nothing until then."""
        if not self._arrived and not self._is_lost:
            self._something.clear()
            left_s = until_s - time.monotonic()
            try:
                async with asyncio.timeout(None if left_s == math.inf else max(left_s, 0.0)):
                    await self._something.wait()
            except TimeoutError:
                return None
        if self._arrived:
            return self._arrived.popleft()
        raise CliError("the broker closed the topic or the connection: run the command again")

    async def close(self) -> None:
        """Returns when the brokers have all acknowledgements."""
        for source in self._sources.values():
            await source.consumer.close()

    # --- one entry

    async def _take(self, arrived: _Arrived) -> None:
        source, position = arrived.source, arrived.position
        if self._after and position <= self._after:
            source.flow(1)
            return
        taken, left = 1, list[int]()
        try:
            arrived.metadata, payload = open_entry(arrived.body)
            if self._end_ms and arrived.metadata.publish_time > self._end_ms:
                self._ended = True  # and it stays unacknowledged
                return
            opened = self._opened(arrived, payload)
            if opened is not None and arrived.metadata.num_chunks_from_msg > 1:
                await self._take_chunk(arrived, *opened)
                return
            if opened is not None:
                taken, left = await self._show(arrived, *opened)
        except (UndecodableEntryError, ValueError) as error:
            print(f"skipped {position[0]}:{position[1]}: {error}", file=sys.stderr)
        source.acknowledge((position,), left)
        source.flow(max(1, taken))

    async def _take_chunk(
        self, arrived: _Arrived, metadata: pb.MessageMetadata, payload: bytes | memoryview
    ) -> None:
        source, chunks = arrived.source, arrived.source.chunks
        source.flow(1)
        joined = chunks.add(metadata, memoryview(payload), arrived.position, 0)
        if chunks.put_back and self._options.auto_ack_chunk_q_full:
            source.acknowledge(chunks.put_back)
        chunks.put_back.clear()
        if joined is not None:
            await self._show(arrived, metadata, joined.payload)
            source.acknowledge(joined.positions)

    def _opened(
        self, arrived: _Arrived, payload: memoryview
    ) -> tuple[pb.MessageMetadata, bytes | memoryview] | None:
        """Metadata and payload of an entry, decrypted; None: it is to be skipped.

        Raises:
            CliError: it can't be decrypted, and such a message ends the command.
        """
        sealed = arrived.metadata
        if not sealed.encryption_keys:
            return sealed, payload
        reason = "an encrypted message, and no key (-ekv)"
        if self._decryptor is not None:
            plain = pb.MessageMetadata()
            plain.CopyFrom(sealed)
            try:
                return plain, self._decryptor.open(plain, payload)
            except UndecryptableError as error:
                reason = f"an encrypted message: {error}"
        match self._options.crypto_failure_action:
            case "CONSUME":
                return sealed, payload
            case "DISCARD":
                return None
        raise CliError(f"{arrived.source.topic}: {reason} (-ca CONSUME shows it as it is)")

    async def _show(
        self, arrived: _Arrived, metadata: pb.MessageMetadata, payload: bytes | memoryview
    ) -> tuple[int, list[int]]:
        """Show an entry's messages; their number, and the batch indexes that weren't wanted.

        Args:
            metadata, payload: decrypted, and in one piece.
        Raises:
            UndecodableEntryError: it can't be taken apart.
        """
        messages = messages_of(metadata, payload, PAYLOAD_BYTES_MAX)
        if arrived.ack_set:  # bit set: not acknowledged
            messages = [each for each in messages if is_set(arrived.ack_set, each.batch_index)]
        for number, message in enumerate(messages):
            if self._enough:
                # The rest comes again, where the broker keeps batch index acks.
                return len(messages), [left.batch_index for left in messages[number:]]
            content = await self._content(arrived, message)
            await self._output.show(partial(self._describe, arrived, message, content))
        return len(messages), []

    async def _content(self, arrived: _Arrived, message: Message) -> str:
        if self._options.hex or self._decoder is None:
            return self._output.content(message.payload)
        return await self._decoder.decode(_PARTITION.sub("", str(arrived.source.topic)), message)

    def _describe(self, arrived: _Arrived, message: Message, content: str) -> str:
        line = describe(
            message.publish_time_ms, message.event_time_ms, message.key, message.properties, content
        )
        if self._options.print_metadata:
            place = (*arrived.position, arrived.source.topic.partition_index)
            line += facts_of(arrived.metadata, place, message, arrived.redelivery_count)
        return line
