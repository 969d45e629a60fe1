"""Entries that take long to be taken apart: decompressed and unpacked in a thread, in slices.

The entry's bytes don't tell what it holds: some hundred may be 20 MiB of a million messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import (
    INFLATE_BYTES_MAX,
    MESSAGES_AT_ONCE,
    Message,
    UndecodableEntryError,
    inflated,
    messages_in,
)
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.http.messaging.internal_consumer import InternalConsumer


@dataclass(slots=True)
class QueuedEntry:
    """One entry that a feed got."""

    source: Any
    """The feed's; ``gone`` once its topic left."""
    position: Position
    redelivery_count: int
    words: Sequence[int] | None
    """Of a batch: indexes that are left to deliver; None: all."""
    first_chunk: Position | None = None


class Unpacker:
    """The entries of one feed that wait, in order; ends itself when there are none.

    Invariant: beside what the feed has buffered there are at most one slice of messages and one
    decompressed payload.
    """

    def __init__(
        self, consumer_feed: InternalConsumer, payload_bytes_max: int, registry: SchemaRegistry
    ) -> None:
        self._feed = consumer_feed
        self._payload_bytes_max = payload_bytes_max
        self._registry = registry
        self._waiting: deque[tuple[QueuedEntry, pb.MessageMetadata, memoryview]] = deque()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, entry: QueuedEntry, metadata: pb.MessageMetadata, payload: memoryview) -> None:
        # A copy: the payload may be a view of a buffer that is used again.
        self._waiting.append((entry, metadata, memoryview(bytes(payload))))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def on_room(self) -> None:
        """The feed's buffer takes messages again."""
        self._room.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting and not self._feed.closed:
                entry, metadata, payload = self._waiting.popleft()
                try:
                    await self._unpack(entry, metadata, payload)
                finally:
                    self._feed.unpacked(len(payload))
        finally:
            self._feed.unpacker_ended()

    async def _unpack(
        self, entry: QueuedEntry, metadata: pb.MessageMetadata, payload: memoryview
    ) -> None:
        consumer_feed, source, at = self._feed, entry.source, 0
        try:
            data = await self._registry.in_value_thread(
                lambda: inflated(metadata, payload, self._payload_bytes_max)
            )
            messages, found = messages_in(metadata, data), 0
            while not consumer_feed.closed and not source.gone:
                run, error = await self._registry.in_value_thread(lambda: _next_of(messages))
                if consumer_feed.closed or source.gone:
                    return
                at += len(run)
                found += consumer_feed.add_messages(
                    entry, [each for each in run if each is not None]
                )
                if error is not None:
                    raise error
                if not run:
                    break
                consumer_feed.announce()
                await self._wait_for_room()
            if not found and not source.gone:
                consumer_feed.skip(entry)
        except UndecodableEntryError as error:
            consumer_feed.skip_broken(entry, error, at, metadata.num_messages_in_batch)

    async def _wait_for_room(self) -> None:
        while self._feed.buffered_bytes >= self._feed.buffer_bytes_max and self._feed.ready:
            self._room.clear()
            await self._room.wait()


def _next_of(
    messages: Iterator[Message | None],
) -> tuple[list[Message | None], UndecodableEntryError | None]:
    """A slice, and what is wrong with the message behind it."""
    run: list[Message | None] = []
    size = 0
    try:
        for message in messages:
            run.append(message)
            size += 0 if message is None else message.held_bytes
            if len(run) == MESSAGES_AT_ONCE or size > INFLATE_BYTES_MAX:
                break
    except UndecodableEntryError as error:
        return run, error
    return run, None
