"""Handlers of the commands that consumers send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.compaction.keyed_messages import last_kept_index
from magnetar.broker.connection.assigned_broker import send_close
from magnetar.broker.connection.consumer_sink import BinaryConsumerSink
from magnetar.broker.connection.lookup_commands import parse_topic
from magnetar.broker.dispatch.interfaces import ReadableLog
from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    BrokerMetadataError,
    NamingError,
    NotAllowedError,
    PersistenceError,
    ServiceNotReadyError,
    as_broker_error,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import FLAG_BATCH, FLAG_MARKER, parse_header
from magnetar.broker.protocol.framing import (
    COMMAND_HEADS,
    MalformedFrameError,
    short_frame,
    varint,
)
from magnetar.broker.protocol.text import has_broken_text
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.rate_limits.rate_sampler import iso_time
from magnetar.broker.schema.definition import definition_of
from magnetar.broker.subscription.consumer import (
    KEY_SHARED,
    SHARED,
    SUB_TYPE_NAMES,
    Consumer,
    SubscribeRequest,
)
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import AckDone, after
from magnetar.broker.topic.persistent_topic import NO_TRANSACTIONS
from magnetar.broker.transaction.pending_acks import PendingAck
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.cursor.ack_state import BATCH_WORDS_MAX, words_to_mask
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.errors import InvalidPositionError, ManagedLedgerError
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

_METADATA_BYTES_MAX = 1024
_PROPERTIES_CHARACTERS_MAX = 64 * 1024  # one document of the metadata store holds them all
_NAME_LENGTH_MAX = 4096
_U64 = 2**64
_TOP_BIT = 2**63
_LAST_ENTRY_BYTES_MAX = 1 << 20
IDS_AT_ONCE = 2_000
"""Ids of an ACK that are taken in one go, some milliseconds."""
_IDS_PER_TURN = 32
"""Ids of a larger one, or of one with long ack sets; the longest set takes half a millisecond."""
_WORDS_AT_ONCE = 16_384
_IDS_IN_TRANSACTION = 200
"""Ids of an ACK in a transaction that are taken in one go: they are checked and recorded."""
_BYTES_IN_TRANSACTION = 16_384
"""Bytes of such an ACK, or of ack sets, that are taken in one go."""
_ACK_RESPONSE: Final = COMMAND_HEADS[pb.CommandAckResponse]


def _signed(number: int) -> int:
    """-1 and 2**63 - 1 mean earliest and latest in unsigned fields."""
    return number - _U64 if number >= _TOP_BIT else number


def position_of(message_id: pb.MessageIdData) -> Position:
    """The entry a message id names; EARLIEST and LATEST come out as such."""
    return (_signed(message_id.ledgerId), _signed(message_id.entryId))


# --- SUBSCRIBE


def subscribe_request(command: pb.CommandSubscribe) -> SubscribeRequest:
    """What the command asks for, apart from the topic."""
    start = position_of(command.start_message_id) if command.HasField("start_message_id") else None
    earliest = command.initialPosition == pb.CommandSubscribe.Earliest
    return SubscribeRequest(
        subscription=command.subscription,
        sub_type=int(command.subType),
        consumer_id=command.consumer_id,
        consumer_name=command.consumer_name,
        priority_level=command.priority_level,
        durable=command.durable,
        initial_position=EARLIEST if earliest else LATEST,
        start_position=start,
        rollback_seconds=command.start_message_rollback_duration_sec,
        read_compacted=command.read_compacted,
        replicate_state=command.replicate_subscription_state,
        properties={pair.key: pair.value for pair in command.subscription_properties},
        epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
        metadata={pair.key: pair.value for pair in command.metadata},
        key_shared_meta=command.keySharedMeta if command.HasField("keySharedMeta") else None,
        schema=definition_of(command.schema) if command.HasField("schema") else None,
    )


def on_subscribe(connection: Connection, command: pb.CommandSubscribe) -> None:
    request_id, consumer_id = command.request_id, command.consumer_id
    try:
        topic = parse_topic(command.topic)
        request = _checked_request(topic, command)
    except BrokerError as error:
        connection.reply_error(request_id, error)
        return
    known = connection.consumers.get(consumer_id)
    if isinstance(known, SubscribeRequest):
        connection.reply_error(
            request_id, ServiceNotReadyError("Consumer is already present on the connection")
        )
        return
    if known is not None:
        connection.reply_success(request_id)
        return
    request.role = connection.role or ""
    connection.consumers[consumer_id] = request  # until the consumer is created
    create = command.force_topic_creation
    connection.run(_subscribe(connection, topic, request, request_id, create=create))


def _checked_request(topic: TopicName, command: pb.CommandSubscribe) -> SubscribeRequest:
    """The checks that need no topic: docs/spec/wire-protocol.md, "SUBSCRIBE"."""
    if not command.subscription.strip():
        raise NamingError("Empty subscription name")
    for text in (command.subscription, command.consumer_name):
        if len(text) > _NAME_LENGTH_MAX:
            raise NamingError(f"Subscription or consumer name over {_NAME_LENGTH_MAX} characters")
    if sum(len(pair.key) + len(pair.value) for pair in command.metadata) > _METADATA_BYTES_MAX:
        raise BrokerMetadataError(f"Consumer metadata is larger than {_METADATA_BYTES_MAX} bytes")
    properties = command.subscription_properties
    if sum(len(pair.key) + len(pair.value) for pair in properties) > _PROPERTIES_CHARACTERS_MAX:
        raise BrokerMetadataError(
            f"Subscription properties are longer than {_PROPERTIES_CHARACTERS_MAX} characters"
        )
    request = subscribe_request(command)
    if request.read_compacted and (
        request.sub_type in (SHARED, KEY_SHARED) or not topic.is_persistent
    ):
        raise NotAllowedError(
            "readCompacted needs a persistent topic and an exclusive or failover subscription"
        )
    return request


async def _subscribe(
    connection: Connection,
    name: TopicName,
    request: SubscribeRequest,
    request_id: int,
    *,
    create: bool,
) -> None:
    consumer_id, consumers = request.consumer_id, connection.consumers
    sink = connection.sink_type(connection, consumer_id, name.partition_index)
    consumer: Consumer | None = None
    try:
        topic = await connection.service.loader.load(name, create=create, acquire=False)
        consumer = await topic.subscribe(request, sink)
    except (BrokerError, ManagedLedgerError) as error:
        if not request.cancelled:
            wire = error if isinstance(error, BrokerError) else PersistenceError(str(error))
            connection.reply_error(request_id, wire)
            is_temporary = isinstance(wire, ServiceNotReadyError | PersistenceError)
            if is_temporary and connection.client_version.startswith("Pulsar-CPP"):
                # The C++ client and those on top of it (Python, Node.js) plan to try again, but
                # do so only for a consumer that was closed: else its request times out.
                send_close(connection, pb.CommandCloseConsumer(consumer_id=consumer_id), None)
        return
    finally:
        if consumer is None and consumers.get(consumer_id) is request:
            del consumers[consumer_id]
    # No await since the consumer was registered: a close that came meanwhile is seen here.
    if request.cancelled or connection.closed or consumers.get(consumer_id) is not request:
        consumer.subscription.remove_consumer(consumer)
        return
    consumers[consumer_id] = consumer
    sink.attach(consumer)
    connection.reply_success(request_id)
    if (access := connection.service.access) is not None:
        access.created(connection, consumer)


# --- FLOW, ACK, REDELIVER


def _consumer(connection: Connection, consumer_id: int) -> Consumer | None:
    known = connection.consumers.get(consumer_id)
    return known if isinstance(known, Consumer) else None


def _consumer_or_error(
    connection: Connection,
    command: pb.CommandUnsubscribe | pb.CommandSeek | pb.CommandGetLastMessageId,
) -> Consumer | None:
    """None: the client is told that there is no such consumer."""
    if (consumer := _consumer(connection, command.consumer_id)) is None:
        connection.reply_error(command.request_id, BrokerMetadataError("Consumer not found"))
    return consumer


def on_flow(connection: Connection, command: pb.CommandFlow) -> None:
    permits = command.messagePermits
    if permits <= 0:
        raise MalformedFrameError("FLOW without permits")
    if (consumer := _consumer(connection, command.consumer_id)) is not None:
        consumer.subscription.flow(consumer, permits)


def on_ack(connection: Connection, command: pb.CommandAck) -> None:
    consumer = _consumer(connection, command.consumer_id)
    if consumer is None:
        return  # an unknown consumer gets no answer
    if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
        _ack_in_transaction(connection, consumer, command)
        return
    request_id = command.request_id if command.HasField("request_id") else None
    done = _ack_done(connection, consumer, request_id)
    if command.HasField("validation_error"):
        logger.warning(
            "%s: consumer %s discarded messages: %s",
            consumer.subscription.topic.name,
            consumer.name,
            pb.CommandAck.ValidationError.Name(command.validation_error),
        )
    if command.ack_type == pb.CommandAck.Individual:
        _ack_individual(connection, consumer, command.message_id, done)
    elif has_broken_text(command):  # the properties' keys
        raise MalformedFrameError("ACK holds text that isn't UTF-8")
    elif sum(len(pair.key) + 8 for pair in command.properties) > _PROPERTIES_CHARACTERS_MAX:
        too_long = BrokerMetadataError(
            f"Properties of an acknowledgement are longer than {_PROPERTIES_CHARACTERS_MAX} "
            "characters, at 8 for each value"
        )
        logger.warning("%s: cumulative ack refused: %s", connection.remote, too_long)
        if done is not None:
            done(too_long)
    elif len(command.message_id) == 1:
        message_id = command.message_id[0]
        properties = {pair.key: pair.value for pair in command.properties}
        consumer.subscription.acknowledge_cumulative(
            consumer, position_of(message_id), properties, done, ack_set=list(message_id.ack_set)
        )
    else:
        logger.warning(
            "%s: cumulative ack with %d ids ignored", connection.remote, len(command.message_id)
        )
        if done is not None:
            done(None)


def on_entries_acked(
    connection: Connection, consumer_id: int, request_id: int | None, positions: list[Position]
) -> None:
    """An individual ACK of whole entries, of at most ``IDS_AT_ONCE``."""
    if (consumer := _consumer(connection, consumer_id)) is not None:
        done = _ack_done(connection, consumer, request_id)
        consumer.subscription.acknowledge(consumer, positions, done)


def _ack_done(connection: Connection, consumer: Consumer, request_id: int | None) -> AckDone | None:
    """None: the client asks for no answer."""
    if request_id is None:
        return None
    return partial(_ack_response, connection, consumer.consumer_id, request_id)


def on_acks(
    connection: Connection,
    consumer_id: int,
    transaction: TransactionId,
    request_ids: list[int],
    found: Iterable[tuple[Position, int, int]],
) -> None:
    """ACKs of one consumer and transaction, one behind the other, each of what a `PendingAck` is
    made of. All are taken together; if one is refused, each is for itself."""
    consumer = _consumer(connection, consumer_id)
    if consumer is None:
        return
    acks = [PendingAck(*each) for each in found]
    done = _AckAnswers(connection, consumer_id, transaction, request_ids)
    if (subscription := _transactional(connection, consumer, done)) is None:
        return

    def one_by_one() -> None:
        for request_id, ack in zip(request_ids, acks, strict=True):
            answer = _AckAnswers(connection, consumer_id, transaction, [request_id])
            subscription.acknowledge_in_transaction(consumer, transaction, (ack,), answer)

    subscription.acknowledge_in_transaction(
        consumer, transaction, acks, done, refused=one_by_one if len(acks) > 1 else None
    )


class _AckAnswers:
    """Answers ACKs in a transaction; see `AckDone`."""

    __slots__ = ("_connection", "_consumer_id", "_request_ids", "_transaction")

    def __init__(
        self,
        connection: Connection,
        consumer_id: int,
        transaction: TransactionId,
        request_ids: Sequence[int],
    ) -> None:
        self._connection, self._consumer_id = connection, consumer_id
        self._transaction, self._request_ids = transaction, request_ids

    def __call__(self, error: BaseException | None) -> None:
        connection, consumer_id, transaction = (
            self._connection,
            self._consumer_id,
            self._transaction,
        )
        if error is not None:
            for request_id in self._request_ids:
                _ack_response(connection, consumer_id, request_id, error, transaction)
        elif self._request_ids and not connection.closed:
            connection.write([encode_ack_answers(consumer_id, transaction, self._request_ids)])


def _transactional(
    connection: Connection, consumer: Consumer, done: AckDone
) -> PersistentSubscription | None:
    """None: there are no transactions, and the client is told so."""
    if not connection.service.config.transaction_coordinator_enabled:
        done(NotAllowedError(NO_TRANSACTIONS))
    elif not isinstance(consumer.subscription, PersistentSubscription):
        done(NotAllowedError("Transactions need a persistent topic"))
    else:
        return consumer.subscription
    return None


def _ack_in_transaction(connection: Connection, consumer: Consumer, command: pb.CommandAck) -> None:
    connection.expect_acks_in_transactions()
    transaction = TransactionId(command.txnid_most_bits, command.txnid_least_bits)
    request_ids = [command.request_id] if command.HasField("request_id") else []
    done = _AckAnswers(connection, consumer.consumer_id, transaction, request_ids)
    if (subscription := _transactional(connection, consumer, done)) is None:
        return
    message_ids = command.message_id
    cumulative = command.ack_type == pb.CommandAck.Cumulative
    if not message_ids or (cumulative and len(message_ids) > 1):
        done(NotAllowedError("An acknowledgement names no message, or too many"))
    elif len(message_ids) > _IDS_IN_TRANSACTION or command.ByteSize() > _BYTES_IN_TRANSACTION:
        parts = _in_parts(message_ids)
        work = subscription.acknowledge_many_in_transaction(consumer, transaction, parts, done)
        connection.run(_until_done(connection.service.run(work)))  # as of `_ack_in_slices`
    else:
        try:
            acks = list(_pending_acks(message_ids))
        except InvalidPositionError as error:
            done(error)
            return
        subscription.acknowledge_in_transaction(
            consumer, transaction, acks, done, cumulative=cumulative
        )


def _in_parts(message_ids: Iterable[pb.MessageIdData]) -> Iterator[list[PendingAck]]:
    """Of a turn of the loop each. Raises InvalidPositionError."""
    some, words = list[PendingAck](), 0
    for ack in _pending_acks(message_ids):
        some.append(ack)
        words += ack.weight - 1
        if len(some) == _IDS_IN_TRANSACTION or words * 8 > _BYTES_IN_TRANSACTION:
            yield some
            some, words = [], 0
    if some:
        yield some


def _pending_acks(message_ids: Iterable[pb.MessageIdData]) -> Iterator[PendingAck]:
    """One for what is named twice, since a client may have received it twice.

    Raises InvalidPositionError.
    """
    named = set[tuple[Position, int]]()
    for message_id in message_ids:
        ack = _pending_ack(message_id)
        if (name := (ack.position, ack.left)) not in named:
            named.add(name)
            yield ack


def _pending_ack(message_id: pb.MessageIdData) -> PendingAck:
    """Raises InvalidPositionError: its ack set or its batch is too long."""
    size, words = message_id.batch_size, message_id.ack_set
    if size > 64 * BATCH_WORDS_MAX:
        raise InvalidPositionError(f"a batch of {size} messages")
    return PendingAck(position_of(message_id), words_to_mask(words) if words else 0, max(size, 0))


def _ack_individual(
    connection: Connection,
    consumer: Consumer,
    message_ids: Sequence[pb.MessageIdData],
    done: AckDone | None,
) -> None:
    if len(message_ids) <= IDS_AT_ONCE:
        whole, parts = _split(message_ids)
        few = len(parts) <= _IDS_PER_TURN
        if few or sum(len(ack_set) for _, ack_set in parts) <= _WORDS_AT_ONCE:
            _ack_split(consumer, whole, parts, done)
            return
    # The end of the connection or of the consumer takes nothing back of what they had sent, so the
    # task is the broker's; the connection only waits for it, and reads no further if it has many.
    work = connection.service.run(_ack_in_slices(consumer, message_ids, done))
    connection.run(_until_done(work))


async def _until_done(work: asyncio.Task[Any]) -> None:
    await asyncio.shield(work)


async def _ack_in_slices(
    consumer: Consumer, message_ids: Sequence[pb.MessageIdData], done: AckDone | None
) -> None:
    """A command has room for 90,000 ids, or a million words: others get their turn in between.

    What the connection sends behind it may come first, which acknowledgements of single messages
    don't mind.
    """
    starts = range(0, len(message_ids), _IDS_PER_TURN)
    if done is not None:
        done = after(done, len(starts))
    for start in starts:
        _ack_split(consumer, *_split(message_ids[start : start + _IDS_PER_TURN]), done)
        await asyncio.sleep(0)


_Parts = list[tuple["Position", list[int]]]


def _split(message_ids: Sequence[pb.MessageIdData]) -> tuple[list[Position], _Parts]:
    """Whole entries, and batches of which some messages are acknowledged."""
    whole: list[Position] = []
    parts: _Parts = []
    for message_id in message_ids:
        if message_id.ack_set:
            parts.append((position_of(message_id), list(message_id.ack_set)))
        else:
            whole.append((message_id.ledgerId, message_id.entryId))
    return whole, parts


def _ack_split(
    consumer: Consumer, whole: list[Position], parts: _Parts, done: AckDone | None
) -> None:
    subscription = consumer.subscription
    if not parts:
        if whole or done is not None:
            subscription.acknowledge(consumer, whole, done)
        return
    if done is not None:
        done = after(done, len(parts) + (1 if whole else 0))
    if whole:
        subscription.acknowledge(consumer, whole, done)
    for position, ack_set in parts:
        subscription.acknowledge_batch(consumer, position, ack_set, done)


def _ack_response(
    connection: Connection,
    consumer_id: int,
    request_id: int,
    error: BaseException | None,
    transaction: TransactionId | None = None,
) -> None:
    if connection.closed:
        return
    reply = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
    if transaction is not None:
        reply.txnid_most_bits, reply.txnid_least_bits = transaction
    if error is not None:  # both fields: Go looks at the message, C++ at the error
        reply.error = error.wire_code if isinstance(error, BrokerError) else pb.PersistenceError
        reply.message = str(error) or type(error).__name__
    connection.send(reply)


def encode_ack_answers(
    consumer_id: int, transaction: TransactionId, request_ids: Iterable[int]
) -> bytes:
    """The frames of ACK_RESPONSEs without an error, as `encode` makes them; cheaper."""
    most, least = transaction
    data = b"\x08%b\x10%b\x18%b\x30" % (varint(consumer_id), varint(least), varint(most))
    starts, parts = dict[int, bytes](), list[bytes]()  # in front of a number of so many bytes
    for request_id in request_ids:
        number = varint(request_id)
        size = len(number)
        if (start := starts.get(size)) is None:
            start = starts[size] = short_frame(_ACK_RESPONSE, data + number)[:-size]
        parts += (start, number)
    return b"".join(parts)


def on_redeliver(
    connection: Connection, command: pb.CommandRedeliverUnacknowledgedMessages
) -> None:
    consumer = _consumer(connection, command.consumer_id)
    if consumer is None:
        return
    epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
    if len(command.message_ids) > IDS_AT_ONCE:
        connection.run(_redeliver_in_slices(consumer, command.message_ids, epoch))
        return
    positions = [(each.ledgerId, each.entryId) for each in command.message_ids]
    consumer.subscription.redeliver(consumer, positions or None, epoch)


async def _redeliver_in_slices(
    consumer: Consumer, message_ids: Sequence[pb.MessageIdData], epoch: int | None
) -> None:
    """As `_ack_in_slices`: an id that is acknowledged meanwhile isn't pending any more."""
    for start in range(0, len(message_ids), IDS_AT_ONCE):
        ids = message_ids[start : start + IDS_AT_ONCE]
        positions = [(each.ledgerId, each.entryId) for each in ids]
        consumer.subscription.redeliver(consumer, positions, epoch)
        await asyncio.sleep(0)


# --- UNSUBSCRIBE, CLOSE_CONSUMER, SEEK


def _forget(connection: Connection, consumer: Consumer) -> None:
    connection.consumers.pop(consumer.consumer_id, None)
    if isinstance(consumer.sink, BinaryConsumerSink):
        consumer.sink.detach()


def on_unsubscribe(connection: Connection, command: pb.CommandUnsubscribe) -> None:
    if (consumer := _consumer_or_error(connection, command)) is None:
        return
    connection.run(_unsubscribe(connection, consumer, command.request_id, force=command.force))


async def _unsubscribe(
    connection: Connection, consumer: Consumer, request_id: int, *, force: bool
) -> None:
    try:
        await consumer.subscription.unsubscribe(consumer, force=force)
    except (BrokerError, ManagedLedgerError) as error:
        connection.reply_error(request_id, as_broker_error(error))
        return
    finally:
        if consumer.closed and connection.consumers.get(consumer.consumer_id) is consumer:
            _forget(connection, consumer)
    connection.reply_success(request_id)


def on_close_consumer(connection: Connection, command: pb.CommandCloseConsumer) -> None:
    known = connection.consumers.pop(command.consumer_id, None)
    if isinstance(known, SubscribeRequest):
        known.cancelled = True  # its creation, when it ends, is undone
    elif isinstance(known, Consumer):
        _forget(connection, known)
        known.subscription.remove_consumer(known)
    connection.reply_success(command.request_id)


def on_seek(connection: Connection, command: pb.CommandSeek) -> None:
    if (consumer := _consumer_or_error(connection, command)) is None:
        return
    if not command.HasField("message_id") and not command.HasField("message_publish_time"):
        connection.reply_error(
            command.request_id, BrokerMetadataError("Neither a message id nor a time to seek to")
        )
        return
    # Owned by the subscription, not the connection: it ends the consumers of this connection
    # first, and must not stop half-way when the client leaves.
    consumer.subscription.run(_seek(connection, consumer, command))


async def _seek(connection: Connection, consumer: Consumer, command: pb.CommandSeek) -> None:
    subscription = consumer.subscription
    try:
        if command.HasField("message_id"):
            message_id = command.message_id
            await subscription.reset(position_of(message_id), list(message_id.ack_set))
        else:
            await subscription.reset_to_time(command.message_publish_time)
    except BrokerError as error:
        connection.reply_error(command.request_id, error)
    except ManagedLedgerError as error:  # no such position, or the subscription ends meanwhile
        connection.reply_error(command.request_id, PersistenceError(str(error)))
    except Exception as error:
        logger.exception("%s %s: seek failed", subscription.topic.name, subscription.name)
        connection.reply_error(
            command.request_id, pb.UnknownError, str(error) or type(error).__name__
        )
    else:
        connection.reply_success(command.request_id)


# --- GET_LAST_MESSAGE_ID, CONSUMER_STATS


def on_get_last_message_id(connection: Connection, command: pb.CommandGetLastMessageId) -> None:
    if (consumer := _consumer_or_error(connection, command)) is None:
        return
    connection.run(_last_message_id(connection, consumer, command.request_id))


async def _last_message_id(connection: Connection, consumer: Consumer, request_id: int) -> None:
    subscription = consumer.subscription
    reply = pb.CommandGetLastMessageIdResponse(request_id=request_id)
    last = reply.last_message_id
    last.ledgerId = last.entryId = _U64 - 1
    last.partition = subscription.topic.name.partition_index
    last.batch_index = -1
    if isinstance(subscription, PersistentSubscription):
        try:
            await _fill_last(subscription, last, is_compacted=consumer.request.read_compacted)
        except STORAGE_ERRORS as error:
            connection.reply_error(request_id, BrokerMetadataError(str(error)))
            return
        ledger_id, entry_id = subscription.cursor.mark_delete
        reply.consumer_mark_delete_position.ledgerId = ledger_id % _U64
        reply.consumer_mark_delete_position.entryId = entry_id % _U64
    connection.send(reply)


async def _fill_last(
    subscription: PersistentSubscription, last: pb.MessageIdData, *, is_compacted: bool
) -> None:
    """The last entry a consumer will ever see."""
    while True:
        compacted = subscription.topic.compacted if is_compacted else None
        above = EARLIEST if compacted is None else compacted.horizon
        if (batch := await _last_in_log(subscription.log, above)) is not None:
            head = parse_header(batch.heads[0])
            last.ledgerId, last.entryId = batch.ledger_id, batch.first
            last.batch_index = head.message_count - 1 if head.flags & FLAG_BATCH else -1
            return
        if compacted is None:
            return
        try:
            found = await compacted.last()
        except STORAGE_ERRORS:
            if subscription.topic.compacted is compacted:
                raise
            continue  # another compaction has ended meanwhile, and has deleted this ledger
        if found is not None:
            last.ledgerId, last.entryId = found.ledger_id, found.first
            last.batch_index = last_kept_index(found.bodies[0])
        return


async def _last_in_log(log: ReadableLog, above: Position) -> EntryBatch | None:
    """The last entry above a position that is no marker; None: there is none, or it is trimmed."""
    position = log.last_confirmed
    while position > above and position[1] >= 0:
        batch = log.read_nowait(position, 1, _LAST_ENTRY_BYTES_MAX)
        if batch is None:
            batch = await log.read(position, 1, _LAST_ENTRY_BYTES_MAX)
        if batch is None or not parse_header(batch.heads[0]).flags & FLAG_MARKER:
            return batch
        position = log.offsets.previous_position(position)
    return None


def on_consumer_stats(connection: Connection, command: pb.CommandConsumerStats) -> None:
    reply = pb.CommandConsumerStatsResponse(request_id=command.request_id)
    if (consumer := _consumer(connection, command.consumer_id)) is None:
        reply.error_code, reply.error_message = pb.ConsumerNotFound, "Consumer not found"
        connection.send(reply)
        return
    subscription = consumer.subscription
    rate_out, throughput, rate_redeliver, rate_ack = consumer.rates.rates
    reply.msgRateOut, reply.msgThroughputOut = rate_out, throughput
    reply.msgRateRedeliver, reply.messageAckRate = rate_redeliver, rate_ack
    reply.consumerName = consumer.name
    reply.availablePermits = consumer.permits % _U64
    reply.unackedMessages = consumer.unacked
    reply.blockedConsumerOnUnackedMsgs = consumer.blocked
    reply.address = f"/{consumer.sink.remote}"
    reply.connectedSince = iso_time(consumer.connected_ms)
    reply.type = SUB_TYPE_NAMES[subscription.sub_type or 0]
    reply.msgRateExpired = 0.0
    if isinstance(subscription, PersistentSubscription):
        reply.msgBacklog = subscription.cursor.state.backlog
    connection.send(reply)


HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.SUBSCRIBE: on_subscribe,
    pb.BaseCommand.FLOW: on_flow,
    pb.BaseCommand.ACK: on_ack,
    pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: on_redeliver,
    pb.BaseCommand.UNSUBSCRIBE: on_unsubscribe,
    pb.BaseCommand.CLOSE_CONSUMER: on_close_consumer,
    pb.BaseCommand.SEEK: on_seek,
    pb.BaseCommand.GET_LAST_MESSAGE_ID: on_get_last_message_id,
    pb.BaseCommand.CONSUMER_STATS: on_consumer_stats,
}
