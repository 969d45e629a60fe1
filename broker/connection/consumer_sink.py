"""A binary connection as the sink of one consumer, and its MESSAGE frames.

A batch becomes one small header buffer per entry, then the body as stored.

    [total u32][command size u32][BaseCommand: type MESSAGE, consumer id, message id ...] body

Within one consumer, ledger and block of entry ids only the total size and two bytes of the entry id
change from entry to entry, so a header is one ``Struct.pack`` of prepared pieces: 0.09 µs per
entry, where a re-used upb BaseCommand took 0.35 (`benchmarks/micro/dispatch.py` has all of it).
Entries with a redelivery count or an ack set are rare and go through upb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from magnetar.broker.connection.assigned_broker import send_close
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import HEAD_BYTES
from magnetar.broker.protocol.framing import varint
from magnetar.broker.subscription.consumer import Consumer
from magnetar.managed_ledger.entry_batch import EntryBatch

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

_ACTIVE_CHANGE_VERSION = 12
_END_OF_TOPIC_VERSION = 9

_SIZES = Struct(">II")

# Varints of entry ids in three shapes, so that a run of ids shares everything but two bytes:
_BYTES = [bytes((n,)) for n in range(256)]
_ONE_BYTE, _MORE_FOLLOW = _BYTES[:128], _BYTES[128:]
_TWO_BYTES = [low + high for high in _ONE_BYTE for low in _MORE_FOLLOW]
_LOW_BYTES = [low + high for high in _MORE_FOLLOW for low in _MORE_FOLLOW]  # more follow
_LOW_MASK = (1 << 14) - 1


class BinaryConsumerSink:
    """Writes MESSAGE frames, and the few other commands a broker sends to a consumer."""

    def __init__(self, connection: Connection, consumer_id: int, partition_index: int) -> None:
        self.connection = connection
        self.consumer_id = consumer_id
        self.remote = connection.remote
        self.client_version = connection.client_version
        self._frames = MessageFrames(consumer_id, partition_index)
        self._shows_metadata = (
            connection.service.config.exposing_broker_entry_metadata_to_client_enabled
            and connection.features.supports_broker_entry_metadata
        )

    @property
    def writable(self) -> bool:
        return self.connection.writable

    @property
    def unheard(self) -> str:
        return self.connection.unheard

    def attach(self, consumer: Consumer) -> None:
        """Follow the connection: wake the consumer with it, end it with it."""
        connection = self.connection
        connection.on_writable[self] = consumer.subscription.wake
        connection.on_closed[self] = lambda: consumer.subscription.remove_consumer(consumer)

    def detach(self) -> None:
        """The consumer is gone; the connection lives on."""
        self.connection.on_writable.pop(self, None)
        self.connection.on_closed.pop(self, None)

    def deliver(
        self,
        consumer: Consumer,
        batch: EntryBatch,
        picks: Sequence[int] | None,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        if self._shows_metadata:
            batch = with_broker_metadata(batch)
        self.connection.write_bulk(
            self._frames.build(batch, picks, redelivery_counts, ack_sets, consumer.epoch)
        )

    def notify_active(self, consumer: Consumer, is_active: bool) -> None:
        if self.connection.protocol_version >= _ACTIVE_CHANGE_VERSION:
            self.connection.send(
                pb.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=is_active)
            )

    def notify_end_of_topic(self, consumer: Consumer) -> None:
        # C++ and Go close the connection on this command.
        is_java = self.client_version.startswith("Pulsar-Java")
        if is_java and self.connection.protocol_version >= _END_OF_TOPIC_VERSION:
            self.connection.send(pb.CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    def close_consumer(self, consumer: Consumer) -> None:
        self.detach()
        connection = self.connection
        # First forget the id: the client subscribes again with the same one.
        if connection.consumers.get(self.consumer_id) is consumer:
            del connection.consumers[self.consumer_id]
        if connection.closed:
            return
        closing = pb.CommandCloseConsumer(consumer_id=self.consumer_id)
        send_close(connection, closing, consumer.subscription.topic.new_owner)

    async def check_liveness(self) -> bool:
        return await self.connection.check_liveness()


def with_broker_metadata(batch: EntryBatch) -> EntryBatch:
    """Entries as they are stored: broker entry metadata are in front of the bodies."""
    bodies = [
        head[HEAD_BYTES:] + body if len(head) > HEAD_BYTES else body
        for head, body in zip(batch.heads, batch.bodies, strict=True)
    ]
    return EntryBatch(batch.ledger_id, batch.first, batch.heads, bodies)


@dataclass(slots=True, eq=False, repr=False)
class MessageFrames:
    """Builds the frames of one consumer; keeps the prepared pieces of the last block of ids."""

    _consumer_id: int
    _partition: int
    """-1 when the topic is no partition (protobuf's default: not sent)."""
    # Ledger, first entry id, epoch.
    _block: tuple[int, int, int] | None = field(default=None, init=False)
    _pack: Callable[..., bytes] = field(default=_SIZES.pack, init=False)
    _head: bytes = field(default=b"", init=False)
    _tail: bytes = field(default=b"", init=False)
    _table: list[bytes] = field(default_factory=lambda: _ONE_BYTE, init=False)
    _base: int = field(default=0, init=False)

    def build(
        self,
        batch: EntryBatch,
        picks: Sequence[int] | None = None,
        redelivery_counts: Sequence[int] | None = None,
        ack_sets: Mapping[int, Sequence[int]] | None = None,
        epoch: int | None = None,
    ) -> list[bytes | memoryview]:
        """Header, body, header, body ... of the picked entries.

        Args:
            picks: ascending indexes into the batch; None: all.
            redelivery_counts: parallel to the picks; None: none was redelivered.
            ack_sets: by index: signed words of what is left of a partly acknowledged batch.
            epoch: the consumer's, None when it never gave one.
        """
        bodies: Sequence[bytes | memoryview] = batch.bodies
        ids: Sequence[int]
        if picks is None:
            ids = range(batch.first, batch.first + len(bodies))
        elif type(picks) is range:
            ids = range(batch.first + picks.start, batch.first + picks.stop)
            bodies = bodies[picks.start : picks.stop]
        else:
            first = batch.first
            ids = [first + index for index in picks]
            bodies = [bodies[index] for index in picks]
        out: list[bytes | memoryview] = [b""] * (2 * len(ids))
        out[1::2] = bodies
        if redelivery_counts is not None or ack_sets:
            indexes = range(len(batch.bodies)) if picks is None else picks
            counts = redelivery_counts or (0,) * len(ids)
            sets = ack_sets or {}
            out[0::2] = [
                self._rare(batch.ledger_id, entry_id, len(body), count, sets.get(index), epoch)
                for entry_id, body, count, index in zip(ids, bodies, counts, indexes, strict=True)
            ]
            return out
        headers: list[bytes | memoryview] = []
        done = 0
        while done < len(ids):
            end = self._prepare(batch.ledger_id, ids[done], -1 if epoch is None else epoch)
            stop = len(ids)
            if ids[-1] >= end:
                stop = next(at for at in range(done, stop) if ids[at] >= end)
            run, texts = ids, bodies
            if stop - done < len(ids):
                run, texts = ids[done:stop], bodies[done:stop]
            pack, base, head = self._pack, self._base, self._head
            table, tail = self._table, self._tail
            headers += [
                pack(base + len(body), head, table[entry_id & _LOW_MASK], tail)
                for entry_id, body in zip(run, texts, strict=True)
            ]
            done = stop
        out[0::2] = headers
        return out

    def _prepare(self, ledger_id: int, entry_id: int, epoch: int) -> int:
        """Make the pieces for the block of ids around ``entry_id``; answers the block's end."""
        if entry_id < 128:
            first, end, table, width, high = 0, 128, _ONE_BYTE, 1, b""
        elif entry_id <= _LOW_MASK:
            first, end, table, width, high = 128, 1 << 14, _TWO_BYTES, 2, b""
        else:
            block = entry_id >> 14
            first, end = block << 14, block + 1 << 14
            table, width, high = _LOW_BYTES, 2, varint(block)
        if self._block == (ledger_id, first, epoch):
            return end
        partition = b"" if self._partition < 0 else b"\x18" + varint(self._partition)
        id_head = b"\x08" + varint(ledger_id) + b"\x10"
        id_bytes = len(id_head) + width + len(high) + len(partition)
        epoch_field = b"" if epoch < 0 else b"\x28" + varint(epoch)
        message_head = b"\x08" + varint(self._consumer_id) + b"\x12" + varint(id_bytes)
        message_bytes = len(message_head) + id_bytes + len(epoch_field)
        # BaseCommand: type = 1 (MESSAGE), message = field 9
        command_head = b"\x08\x09\x4a" + varint(message_bytes)
        command_bytes = len(command_head) + message_bytes
        self._head = command_bytes.to_bytes(4) + command_head + message_head + id_head
        self._tail = high + partition + epoch_field
        self._table = table
        self._base = 4 + command_bytes
        self._pack = Struct(f">I{len(self._head)}s{width}s{len(self._tail)}s").pack
        self._block = (ledger_id, first, epoch)
        return end

    def _rare(
        self,
        ledger_id: int,
        entry_id: int,
        body_bytes: int,
        redelivery_count: int,
        ack_set: Sequence[int] | None,
        epoch: int | None,
    ) -> bytes:
        # Made anew: a cleared message keeps what it ever held in its arena.
        base = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        message = base.message
        message.consumer_id = self._consumer_id
        message.message_id.ledgerId = ledger_id
        message.message_id.entryId = entry_id
        if self._partition >= 0:
            message.message_id.partition = self._partition
        if redelivery_count:
            message.redelivery_count = redelivery_count
        if ack_set:
            message.ack_set.extend(ack_set)
        if epoch is not None:
            message.consumer_epoch = epoch
        command = base.SerializeToString()
        return _SIZES.pack(4 + len(command) + body_bytes, len(command)) + command
