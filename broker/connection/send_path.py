"""The hot path of one connection: SEND in, receipts out. Few calls: it runs per message.

The SENDs of one read, or of several in a turn that fill their room, are collected per producer and
handed to its topic as one batch. Receipts and errors of a producer leave in the order of its SENDs,
since clients match them with the front of a queue: an error waits for the receipts of the
messages in front of it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from crc32c import crc32c

from magnetar.broker.connection.assigned_broker import send_close
from magnetar.broker.connection.receive_buffer import PauseReason
from magnetar.broker.errors import BrokerError, TopicFencedError
from magnetar.broker.producer.producer import TOO_LARGE, Producer, PublishBatch
from magnetar.broker.protocol import entry_header
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_ENCRYPTED,
    FLAG_LAST_CHUNK,
    FLAG_TRANSACTION,
)
from magnetar.broker.protocol.framing import (
    METADATA_BYTES_MAX,
    METADATA_TOO_LARGE,
    NO_ID,
    MalformedFrameError,
    encode_body,
    stored_bytes_max,
)
from magnetar.broker.protocol.plain_sends import encode_receipts, scan_sends
from magnetar.broker.rate_limits.rate_limiter import PublishRateLimiter
from magnetar.broker.transaction.markers import transaction_of
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.append_core import ENTRY_OVERHEAD_BYTES

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection
    from magnetar.broker.topic.topic import Topic

logger = logging.getLogger(__name__)

RECENTLY_CLOSED_MS: Final = 30_000
"""SENDs that crossed our CLOSE_PRODUCER are ignored this long."""

_CHECKED: Final = 0x0E01
_checked_head = Struct(">HII").unpack_from  # magic, checksum, size of the metadata
_CHECKSUM_HEAD = Struct(">HI")
_FRAME_SIZES = Struct(">II").unpack_from  # of the frame and of its command
_SLOW_FLAGS: Final = FLAG_ENCRYPTED | FLAG_TRANSACTION | FLAG_CHUNK

_RENEW_BYTES: Final = 1 << 20
# upb takes any buffer; its stubs say bytes.
_Parse: TypeAlias = "Callable[[bytes | memoryview], object]"


class SendMessages:
    """The command and the metadata of the SEND just parsed.

    One for each broker. Invariant: between a parse and the last use of what it read, nothing else
    parses into the same objects. Code of one event loop that does not await in between keeps to
    that; two loops in two threads do not.

    A parse fills the same object again and leaves what it held in the object's arena, which never
    shrinks, so the objects are replaced after every megabyte parsed.

    Attributes:
        parsed_bytes: since they were replaced.
    """

    def __init__(self, make_header: Callable[[pb.MessageMetadata, int], bytes]) -> None:
        self.make_header = make_header
        self.scan = scan_sends if make_header is entry_header.make_header else None
        if scan_sends is None:
            logger.info("SENDs are read by Python: no compiled code was installed")
        self._renew()

    def _renew(self) -> None:
        """Let go of the arenas that the parsed messages have filled."""
        send, metadata = self.send, self.metadata = pb.CommandSend(), pb.MessageMetadata()
        # One lookup for all of them: they are used for every message.
        self.parts = (
            *(send, cast("_Parse", send.ParseFromString), send.IsInitialized),
            *(metadata, cast("_Parse", metadata.ParseFromString), metadata.IsInitialized),
            self.make_header,
        )
        self.parsed_bytes = 0

    def read_done(self) -> None:
        """A read is over: what was parsed is not used any more."""
        if self.parsed_bytes > _RENEW_BYTES:
            self._renew()


class SendPath:
    """SEND and SEND_RECEIPT of one connection: the sink of all its producers (`ProducerSink`)."""

    __slots__ = (
        "_batches",
        "_bytes_max",
        "_connection",
        "_faults",
        "_messages",
        "_over_rate",
        "_recently_closed",
        "scan",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages = connection.service.send_messages
        self._batches: dict[int, PublishBatch] = {}  # of the read under way, by producer id
        # by producer id: (SENDs accepted before it, sequence id, code, message), in order
        self._faults: dict[int, deque[tuple[int, int, int, str]]] = {}
        self._recently_closed: dict[int, int] = {}  # producer id -> forget at ms
        self._over_rate: set[PublishRateLimiter] = set()  # the publish limits it waits for
        self._bytes_max = stored_bytes_max(connection.service.config.max_message_size)
        self.scan = self._messages.scan

    @property
    def remote(self) -> str:
        return self._connection.remote

    @property
    def client_version(self) -> str:
        return self._connection.client_version

    async def check_liveness(self) -> bool:
        return await self._connection.check_liveness()

    def take_plain(self, view: memoryview, start: int, end: int) -> int:
        """The plain SENDs that ``view[start:end]`` begins with, by compiled code.

        REQUIRES: `scan` is there.

        Returns:
            Where the next frame begins; ``start``: there are none, so `on_send` is to be asked.

        Raises:
            MalformedFrameError: the connection is to be closed.
        """
        assert self.scan is not None
        if (run := self.scan(view, start, end, self._bytes_max, METADATA_BYTES_MAX)) is None:
            return start
        next_start, producer_id, heads, bodies, sequence_ids, highest_ids, messages, size, of = run
        if (batch := self._batches.get(producer_id)) is None:
            if (found := self._open_batch(producer_id)) is None:
                return next_start
            batch = found
        if batch.producer.checked or (of is not None and not _may_add(batch, of)):
            while start < next_start:
                total, command_bytes = _FRAME_SIZES(view, start)
                frame_end = start + 4 + total
                self.on_send(view, start + 12, start + 8 + command_bytes, frame_end)
                start = frame_end
            return next_start
        batch.heads += heads
        batch.bodies += bodies
        batch.sequence_ids += sequence_ids
        batch.highest_ids += highest_ids
        batch.message_count += messages
        batch.entry_bytes += size
        return next_start

    def on_send(
        self, view: memoryview, command_from: int, body_from: int, end: int, raw: bytes = b""
    ) -> None:
        """One SEND: its command's bytes (or ``raw``), and its body ``view[body_from:end]``.

        Raises:
            MalformedFrameError, DecodeError: the connection is to be closed.
        """
        self._messages.parsed_bytes += end - command_from
        parts = self._messages.parts
        send, parse_send, send_complete, metadata, parse_metadata, complete, make_header = parts
        parse_send(raw or view[command_from:body_from])
        if not send_complete():
            raise MalformedFrameError("SEND lacks a required field")
        producer_id = send.producer_id
        if (batch := self._batches.get(producer_id)) is None:
            if (found := self._open_batch(producer_id)) is None:
                return
            batch = found
        sequence_id, highest_id = send.sequence_id, send.highest_sequence_id
        if highest_id and highest_id < sequence_id:
            self._fault(batch, pb.MetadataError, "Invalid lowest or highest sequence id")
            return
        # Body: see framing.parse_entry_body, which is this with all the checks in one place.
        if end - body_from >= 10 and (head := _checked_head(view, body_from))[0] == _CHECKED:
            _, checksum, metadata_size = head
            metadata_from = body_from + 10
            if crc32c(view[body_from + 6 : end]) != checksum:
                self._fault(batch, pb.ChecksumError, "Checksum failed on the broker")
                return
            body = bytes(view[body_from:end])
        else:
            body, metadata_size = _with_checksum(view[body_from:end])
            metadata_from = body_from + 4
        payload_from = metadata_from + metadata_size
        if payload_from > end:
            raise MalformedFrameError(f"metadata size {metadata_size} exceeds the frame")
        if metadata_size > METADATA_BYTES_MAX:
            self._fault(batch, pb.NotAllowedError, METADATA_TOO_LARGE)
            return
        if len(body) > self._bytes_max:
            self._fault(batch, pb.NotAllowedError, TOO_LARGE)
            return
        parse_metadata(view[metadata_from:payload_from])
        if not complete():
            raise MalformedFrameError("message metadata lacks a required field")
        entry_head = make_header(metadata, end - payload_from)
        if entry_head[3] & _SLOW_FLAGS or batch.producer.checked:
            if send.HasField("txnid_most_bits") and not entry_head[3] & FLAG_TRANSACTION:
                entry_head, body = self._named_in_metadata(bytes(view[payload_from:end]))
            if not self._allowed(batch, entry_head, len(body)):
                return
            self._note_kind(batch, entry_head[3])
        batch.heads.append(entry_head)
        batch.bodies.append(body)
        batch.sequence_ids.append(sequence_id)
        batch.highest_ids.append(highest_id)
        # Statistics only
        batch.message_count += send.num_messages if 0 < send.num_messages <= len(body) else 1
        batch.entry_bytes += len(body)

    def _named_in_metadata(self, payload: bytes) -> tuple[bytes, bytes]:
        """Head and body with the transaction that the command names: readers look there."""
        send, metadata = self._messages.send, self._messages.metadata
        metadata.txnid_most_bits = send.txnid_most_bits
        metadata.txnid_least_bits = send.txnid_least_bits
        return self._messages.make_header(metadata, len(payload)), encode_body(metadata, payload)

    def _note_kind(self, batch: PublishBatch, flags: int) -> None:
        """The entry that is appended next may be a part of something."""
        if flags & FLAG_TRANSACTION:
            batch.add_to(transaction_of(self._messages.metadata))
        if flags & FLAG_CHUNK:
            batch.add_chunk(is_last=bool(flags & FLAG_LAST_CHUNK))

    def _allowed(self, batch: PublishBatch, head: bytes, size: int) -> bool:
        """Checks that only some entries or some producers need."""
        producer = batch.producer
        if head[3] & FLAG_TRANSACTION:
            try:
                producer.topic.check_transaction(transaction_of(self._messages.metadata))
            except BrokerError as error:
                self._fault(batch, error.wire_code, str(error))
                return False
        if producer.encryption_required and not head[3] & FLAG_ENCRYPTED:
            self._fault(batch, pb.MetadataError, "Messages must be encrypted")
            return False
        if 0 < producer.message_bytes_max < size and not head[3] & FLAG_CHUNK:
            self._fault(batch, pb.NotAllowedError, TOO_LARGE)
            return False
        delay_max_ms = producer.delay_max_ms
        if delay_max_ms and (
            self._messages.metadata.deliver_at_time - self._connection.service.wall_clock()
            > delay_max_ms
        ):
            self._fault(
                batch,
                pb.NotAllowedError,
                f"Exceeds max allowed delivery delay of {delay_max_ms} milliseconds",
            )
            return False
        return True

    def _open_batch(self, producer_id: int) -> PublishBatch | None:
        """The read's batch of a producer; None when its SENDs are to be ignored.

        Raises:
            MalformedFrameError: no such producer.
        """
        connection = self._connection
        producer = connection.producers.get(producer_id)
        if not isinstance(producer, Producer):
            until_ms = self._recently_closed.get(producer_id)
            if (
                producer is None
                and until_ms is not None
                and connection.service.wall_clock() < until_ms
            ):
                return None
            raise MalformedFrameError(f"SEND to unknown producer {producer_id}")
        if producer.topic.fenced or producer.waiting or producer.leaving:
            # The client is about to be told to reconnect, and resends.
            return None
        batch = self._batches[producer_id] = PublishBatch(producer, [], [], [], [])
        return batch

    @property
    def collected(self) -> int:
        """SENDs that wait to be published."""
        return sum(len(batch.sequence_ids) for batch in self._batches.values())

    def publish(self) -> None:
        """The read is over: every producer's batch goes to its topic."""
        self._messages.read_done()
        if not self._batches:
            return
        batches, self._batches = self._batches, {}
        connection = self._connection
        charge = 0
        for batch in batches.values():
            count = len(batch.sequence_ids)
            if not count:
                continue
            charge += batch.entry_bytes + ENTRY_OVERHEAD_BYTES * count
            batch.producer.sent += count
        connection.in_flight_bytes += charge
        service = connection.service
        if connection.in_flight_bytes > service.connection_in_flight_max:
            connection.pause_reading(PauseReason.IN_FLIGHT)
        if len(batches) == 1:
            if charge:
                batch.producer.topic.publish((batch,))
        else:
            self._publish_to_topics(batches.values())
        if service.ledgers.append_budget.must_pause():
            service.pause_publisher(connection)

    def _publish_to_topics(self, batches: Iterable[PublishBatch]) -> None:
        """Producers of the same topic share an append."""
        of_topics: dict[Topic, list[PublishBatch]] = {}
        for batch in batches:
            if batch.sequence_ids:
                of_topics.setdefault(batch.producer.topic, []).append(batch)
        for topic, some in of_topics.items():
            topic.publish(some)

    # --- answers

    def publish_done(
        self, batch: PublishBatch, offset: int, count: int, ledger_id: int, first_entry_id: int
    ) -> None:
        producer = batch.producer
        producer.answered += count
        connection = self._connection
        if not connection.closed:
            if producer.producer_id in self._faults:
                self._receipts_and_faults(batch, offset, count, ledger_id, first_entry_id)
            else:
                end = offset + count
                connection.write([_receipts(batch, offset, end, ledger_id, first_entry_id)])
        self._settle(batch)

    def publish_failed(
        self, batch: PublishBatch, offset: int, count: int, error: Exception
    ) -> None:
        producer = batch.producer
        producer.answered += count
        # A fenced topic says CLOSE_PRODUCER instead: the client resends after it reconnected.
        if not self._connection.closed and not isinstance(error, TopicFencedError):
            code = error.wire_code if isinstance(error, BrokerError) else pb.PersistenceError
            before = producer.answered - count
            queue = self._faults.setdefault(producer.producer_id, deque())
            late = [
                (before + n, max(batch.sequence_ids[i], batch.highest_ids[i]), code, str(error))
                for n, i in enumerate(range(offset, offset + count))
            ]
            self._faults[producer.producer_id] = deque(
                sorted([*queue, *late], key=lambda fault: fault[0])
            )
            self._tell_faults(producer)
        self._settle(batch)

    def _settle(self, batch: PublishBatch) -> None:
        entries = len(batch.sequence_ids)
        producer = batch.producer
        if batch.answered == entries:
            connection = self._connection
            charge = batch.entry_bytes + ENTRY_OVERHEAD_BYTES * entries
            connection.in_flight_bytes -= charge
            service = connection.service
            if connection.in_flight_bytes <= service.connection_in_flight_max // 2:
                connection.resume_reading(PauseReason.IN_FLIGHT)
        if producer.on_settled is not None and producer.sent == producer.answered:
            settled, producer.on_settled = producer.on_settled, None
            settled()

    def _receipts_and_faults(
        self, batch: PublishBatch, offset: int, count: int, ledger_id: int, first_entry_id: int
    ) -> None:
        """Receipts with the errors of SENDs between them."""
        producer = batch.producer
        faults = self._faults[producer.producer_id]
        index = producer.answered - count  # SENDs answered before this run
        end = offset + count
        step = 1 if ledger_id >= 0 and producer.topic.persistent else 0
        while offset < end:
            part = min(end - offset, faults[0][0] - index) if faults else end - offset
            if part > 0:
                frames = _receipts(batch, offset, offset + part, ledger_id, first_entry_id)
                self._connection.write([frames])
                offset, index, first_entry_id = (
                    offset + part,
                    index + part,
                    first_entry_id + step * part,
                )
            while faults and faults[0][0] <= index:
                self._tell_fault(producer, faults.popleft())
        if not faults:
            del self._faults[producer.producer_id]

    def _fault(self, batch: PublishBatch, code: int, message: str) -> None:
        """The SEND just parsed is refused, in its turn."""
        producer = batch.producer
        send = self._messages.send
        sequence_id = max(send.sequence_id, send.highest_sequence_id)
        before = producer.sent + len(batch.sequence_ids)
        queue = self._faults.setdefault(producer.producer_id, deque())
        queue.append((before, sequence_id, code, message))
        logger.info(
            "connection %s: SEND %d of producer %d refused: %s",
            self._connection.remote,
            sequence_id,
            producer.producer_id,
            message,
        )
        producer.topic.note_refused(
            f"A message of producer {producer.name} of {self._connection.remote}", message
        )
        self._tell_faults(producer)

    def _tell_faults(self, producer: Producer) -> None:
        """Send the errors whose turn has come."""
        if (queue := self._faults.get(producer.producer_id)) is None:
            return
        while queue and queue[0][0] <= producer.answered:
            self._tell_fault(producer, queue.popleft())
        if not queue:
            del self._faults[producer.producer_id]

    def _tell_fault(self, producer: Producer, fault: tuple[int, int, int, str]) -> None:
        _, sequence_id, code, message = fault
        self._connection.send(
            pb.CommandSendError(
                producer_id=producer.producer_id,
                sequence_id=sequence_id,
                error=pb.ServerError.ValueType(code),
                message=message,
            )
        )

    # --- publish limits

    def pause_publishing(self, limit: PublishRateLimiter) -> None:
        self._over_rate.add(limit)
        self.read_less(limit)
        self._connection.pause_reading(PauseReason.RATE)

    def resume_publishing(self, limit: PublishRateLimiter) -> None:
        self._over_rate.discard(limit)
        if not self._over_rate:
            self._connection.resume_reading(PauseReason.RATE)

    def read_less(self, limit: PublishRateLimiter) -> None:
        """Fit the size of reads to a publish limit: what one read brings is accepted whole, and a
        client that sends far ahead of a low limit would have to wait for all of it afterwards.
        """
        connection = self._connection
        connection.read_max = min(limit.read_bytes, connection.read_max or limit.read_bytes)

    def fit_reads(self) -> None:
        """Limits may have changed, and producers gone, since reads were made smaller."""
        connection = self._connection
        limits = {connection.service.publish_throttle, *self._over_rate}
        for producer in connection.producers.values():
            if isinstance(producer, Producer):
                limits.add(producer.topic.rate_limits.publish)
        sizes = (limit.read_bytes for limit in limits if limit is not None)
        connection.read_max = min(sizes, default=0)

    # --- producers that end

    def close_producer(self, producer: Producer) -> None:
        """The broker ends a producer: the id is free again before the client is told."""
        connection = self._connection
        if connection.producers.get(producer.producer_id) is not producer or connection.closed:
            return
        self.forget(producer)
        now_ms = connection.service.wall_clock()
        self._recently_closed = {
            producer_id: until
            for producer_id, until in self._recently_closed.items()
            if until > now_ms
        }
        self._recently_closed[producer.producer_id] = now_ms + RECENTLY_CLOSED_MS
        closing = pb.CommandCloseProducer(producer_id=producer.producer_id)
        send_close(connection, closing, producer.topic.new_owner)

    def forget(self, producer: Producer) -> None:
        """The producer is gone: so are its unsent errors."""
        self._connection.producers.pop(producer.producer_id, None)
        self._faults.pop(producer.producer_id, None)
        self._batches.pop(producer.producer_id, None)

    def created(self, producer_id: int) -> None:
        """A producer of this id was created: late SENDs of an older one are no matter now."""
        self._recently_closed.pop(producer_id, None)


def _receipts(batch: PublishBatch, start: int, end: int, ledger_id: int, entry_id: int) -> bytes:
    """SEND_RECEIPT frames of ``batch[start:end]``, joined.

    A negative ledger: nothing was stored (duplicates, drops).
    """
    producer = batch.producer
    step = 1
    if ledger_id < 0 or not producer.topic.persistent:
        step = 0  # these ids name no entry, so they don't count up
        ledger_id, entry_id = ledger_id & NO_ID, entry_id & NO_ID
    ids = producer.producer_id, ledger_id, entry_id, step
    return encode_receipts(*ids, batch.sequence_ids, batch.highest_ids, start, end)


def _may_add(batch: PublishBatch, named: dict[int, tuple[int, int]]) -> bool:
    """Note the transactions of the entries that are appended next, by index; None may have ended.

    Returns:
        False: one may not be sent to, and nothing was noted. `SendPath.on_send` tells the client.
    """
    check, first = batch.producer.topic.check_transaction, len(batch.heads)
    transactions = {first + index: TransactionId(*each) for index, each in named.items()}
    try:
        for transaction in set(transactions.values()):
            check(transaction)
    except BrokerError:
        return False
    if batch.transactions is None:
        batch.transactions = transactions
    else:
        batch.transactions.update(transactions)
    return True


def _with_checksum(body: memoryview) -> tuple[bytes, int]:
    """A body that came without a checksum, with one; and the size of its metadata.

    Consumers of some clients refuse entries without one.
    Raises:
        MalformedFrameError: too short for what it begins with.
    """
    if len(body) < 4:
        raise MalformedFrameError("SEND without metadata")
    if body[0] == _CHECKED >> 8 and body[1] == _CHECKED & 0xFF:
        raise MalformedFrameError("SEND ends inside its checksum header")
    return _CHECKSUM_HEAD.pack(_CHECKED, crc32c(body)) + bytes(body), int.from_bytes(body[:4])
