"""Stored messages by id, by place in a backlog, by place in the log."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from magnetar.broker.compaction.compacted_view import CompactedLog
from magnetar.broker.http.dependencies import Service, SubscriptionName, Topic
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.http.messaging.message_filter import FilterError, parse_filter
from magnetar.broker.http.messaging.message_follow import (
    ALIVE_S,
    MESSAGES_PER_S,
    Follower,
    FollowStep,
    follow_steps,
    lines_of,
)
from magnetar.broker.http.messaging.message_mask import names_of
from magnetar.broker.http.messaging.message_search import (
    BEGINNING,
    PAYLOADS,
    MessageSearch,
    Place,
    Search,
    place_of,
)
from magnetar.broker.http.middleware.audit import note_read
from magnetar.broker.http.parameters import Path, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.routing.route_permissions import right_of
from magnetar.broker.http.streamed_answers import StreamedAnswer, while_connected
from magnetar.broker.http.topics.topic_access import TOPIC, message_id, persistent
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import parse_header
from magnetar.broker.protocol.messages import UndecodableEntryError, decode_whole_entry
from magnetar.broker.protocol.stored_entries import decode_broker_metadata
from magnetar.broker.protocol.text import readable
from magnetar.broker.rate_limits.rate_sampler import iso_time
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.coordinator import as_signed
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position

routes = Routes(TOPIC, tag="persistent topics", access=Access.CONSUME_401, mode=RoutingMode.TOPIC)

_Id = Annotated[int, Path(ge=0, lt=2**63)]
_Filter = Annotated[
    str, Query(description='As `key = "c-1" and value.status ~ "^dec" and size > 1kB`')
]
_Masked = Annotated[
    str, Query(description="Fields and properties whose values are shown as `•••`, with commas")
]
_Payload = Annotated[
    Literal["cut", "long", "whole", "none"],
    Query(description="Values: of more than 64 KiB, or 512, the beginning; the whole, or none"),
]
_Raw = Annotated[
    bool, Query(description="Values as the bytes that were sent, in base64, not by their schema")
]
_FOLLOWED = (
    '{"messageId":"12:4","publishTime":1800000000000,"payload":"hello","encoding":"text"}\n'
    '{"next":"12:5","found":1,"shown":1,"skippedEntries":0}\n'
)
_EXPANSION_MAX = 4
"""Uncompressed bytes of a shown message, in multiples of the largest message."""
_STEPS_AT_ONCE = 500
_MESSAGE: Statuses = {
    200: {
        "description": "Payload after decompression; a batch stays framed, see "
        "`X-Pulsar-num-batch-message`. Metadata is in `X-Pulsar-*` headers.",
        "content": {"application/octet-stream": {"example": "the payload's bytes"}},
    },
    404: "No such topic or message",
}
_ID_EXAMPLE = {"ledgerId": 12, "entryId": 4, "partitionIndex": -1}
_TEXT_FIELDS = (
    *("producer_name", "sequence_id", "highest_sequence_id", "replicated_from", "partition_key"),
    *("partition_key_b64_encoded", "null_value", "null_partition_key", "uncompressed_size"),
    *("encryption_algo", "marker_type", "txnid_least_bits", "txnid_most_bits", "uuid"),
    *("num_chunks_from_msg", "total_chunk_msg_size", "chunk_id"),
)
_SIGNED_FIELDS = ("sequence_id", "highest_sequence_id", "txnid_least_bits", "txnid_most_bits")
"""Numbers of 64 bits in Java: a marker's sequence id is -1, and its clients read no larger one."""
_TIME_FIELDS = ("publish_time", "event_time", "deliver_at_time")
_BASE64_FIELDS = ("encryption_param", "schema_version", "ordering_key")


def _headers(metadata: pb.MessageMetadata, batch_bytes: int) -> dict[str, str]:
    """Metadata as header lines; printable ASCII only, as names and keys may be anything."""
    properties = {readable(pair.key): readable(pair.value) for pair in metadata.properties}
    headers = {
        "X-Pulsar-PROPERTY": json.dumps(properties),
        "X-Pulsar-Is-Encrypted": "true" if metadata.encryption_keys else "false",
    }
    for field in (*_TEXT_FIELDS, *_TIME_FIELDS, *_BASE64_FIELDS):
        if not metadata.HasField(field):  # type: ignore[arg-type] # names of the descriptor
            continue
        value, name = getattr(metadata, field), field.replace("_", "-")
        if field in _TIME_FIELDS:
            headers[f"X-Pulsar-{name}"] = iso_time(value)
        elif field in _BASE64_FIELDS:
            headers[f"X-Pulsar-Base64-{name}"] = base64.b64encode(value).decode()
        else:
            if field in _SIGNED_FIELDS:
                value = as_signed(value)
            text = str(value).lower() if isinstance(value, bool) else str(readable(value))
            headers[f"X-Pulsar-{name}"] = text.encode("unicode_escape").decode()
    if metadata.HasField("compression"):
        headers["X-Pulsar-compression"] = pb.CompressionType.Name(metadata.compression)
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
        headers["X-Pulsar-batch-size"] = str(batch_bytes)
    return headers


def _transaction_headers(
    topic: PersistentTopic, position: Position, metadata: pb.MessageMetadata
) -> dict[str, str]:
    """Whether consumers get it, in two parts: what is behind an open transaction waits, too."""
    known = None if topic.transactions is None else topic.transactions.buffer
    is_open = known is not None and position > known.readable
    headers = {"X-Pulsar-txn-uncommitted": str(is_open).lower()}
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        transaction = TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)
        is_aborted = known is not None and known.is_aborted(transaction)
        headers["X-Pulsar-txn-aborted"] = str(is_aborted).lower()
    return headers


async def _answer(topic: PersistentTopic, batch: EntryBatch) -> Response:
    """The first entry of ``batch``."""
    service = topic.service
    body, bytes_max = batch.bodies[0], _EXPANSION_MAX * service.config.max_message_size
    with answer_for(UndecodableEntryError, 500):
        metadata, payload = await service.schemas.in_value_thread(
            lambda: decode_whole_entry(body, bytes_max)
        )
    position = (batch.ledger_id, batch.first)
    headers = _headers(metadata, len(body)) | _transaction_headers(topic, position, metadata)
    headers["X-Pulsar-Message-ID"] = f"{batch.ledger_id}:{batch.first}"
    if (added := decode_broker_metadata(batch.heads[0])) is not None:
        if added.HasField("broker_timestamp"):
            time = iso_time(added.broker_timestamp)
            headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] = time
        if added.HasField("index"):
            headers["X-Pulsar-Broker-Entry-METADATA-index"] = str(added.index)
    return Response(payload, headers=headers, media_type="application/octet-stream")


async def _entry(ledger: ManagedLedger, position: Position, missing: str) -> EntryBatch:
    batch = await ledger.read(position, 1, 1)
    if batch is None or (batch.ledger_id, batch.first) != position:
        raise ApiError(404, missing)
    return batch


@routes.get("/ledger/{ledger_id}/entry/{entry_id}", statuses=_MESSAGE)
async def message_by_id(service: Service, topic: Topic, ledger_id: _Id, entry_id: _Id) -> Response:
    """The message, or batch, with that id."""
    found = await persistent(
        service, topic, "GetMessageById", "GetMessageById is not allowed on partitioned-topic"
    )
    return await _answer(
        found, await _entry(found.ledger, (ledger_id, entry_id), "Message id not found")
    )


@routes.get("/subscription/{subscription}/position/{nth}", statuses=_MESSAGE)
async def peek(
    service: Service, topic: Topic, subscription: SubscriptionName, nth: int
) -> Response:
    """The nth unacknowledged message of a subscription, from 1.

    A subscription that doesn't exist is not created, as Pulsar would: the answer is what it would
    get if it began at the first message.
    """
    found = await persistent(service, topic, "Peek messages")
    if nth < 1:
        raise ApiError(412, "Positions begin at 1")
    ledger, policy_scope = found.ledger, found.subscriptions.get(subscription)
    if policy_scope is not None and policy_scope.cursor is not None:
        position = await _nth_unacked(ledger, policy_scope.cursor, nth)
    else:
        before = ledger.offsets.previous_position(ledger.offsets.first_position())
        position = ledger.offsets.position_after(before, nth)
    return await _answer(found, await _entry(ledger, position, "Message not found"))


async def _nth_unacked(ledger: ManagedLedger, cursor: Cursor, nth: int) -> Position:
    """Its position, or one past the end."""
    position, steps = cursor.state.first_unacked(), 0
    while position <= ledger.last_confirmed:
        if not cursor.state.is_acked(position):
            nth -= 1
            if nth == 0:
                break
        position = ledger.offsets.next_position(position)
        steps += 1
        if steps % _STEPS_AT_ONCE == 0:
            await asyncio.sleep(0)  # others' turn: a backlog may be long
    return position


@routes.get(
    "/messages",
    example={
        "messages": [
            {
                "messageId": "12:4",
                "publishTime": 1_800_000_000_000,
                "properties": {"region": "eu"},
                "key": "c-1",
                "payload": {"status": "declined"},
                "encoding": "json",
                "schemaType": "JSON",
                "schemaVersion": 3,
                "size": 21,
                "producerName": "shop-1",
                "sequenceId": 17,
                "compression": "NONE",
                "entrySize": 96,
            }
        ],
        "next": "12:5",
        "previous": "12:4",
        "entriesRead": 5,
        "bytesRead": 612,
    },
    statuses={400: "Not a filter, or not a position", 404: "No such topic or subscription"},
)
async def search(
    request: Request,
    service: Service,
    topic: Topic,
    position: Annotated[
        str,
        Query(
            description="`earliest`, `latest`: among the last `limit` messages, or `ledger:entry`, "
            "in a batch `ledger:entry:index`"
        ),
    ] = "earliest",
    timestamp: Annotated[int, Query(description="From this publish time on, ms", ge=0)] = 0,
    subscription: Annotated[str, Query(description="From its first unacknowledged one on")] = "",
    limit: Annotated[int, Query(ge=1, le=500, description="Messages of the answer")] = 50,
    filter: _Filter = "",
    payload: _Payload = "cut",
    raw: _Raw = False,
    masked: _Masked = "",
    readCompacted: Annotated[
        bool, Query(description="Of what was compacted, only the newest message of each key")
    ] = False,
    before: Annotated[
        str,
        Query(description="Instead of a position: among the last `limit` in front of this message"),
    ] = "",
) -> Response:
    """Stored messages from a position on, those that a filter finds. No cursor moves.

    A call reads at most 12,000 entries, 64 MiB after decompression, or five seconds; `next` is
    where to go on, null at the end of the log. `previous` is a value for `before`, null at the
    beginning of the log. Values with a schema are shown as JSON by the
    version that each message has. An entry that can't be decoded is in the list with its `error`.

    A message that was sent in a transaction has it in `transaction`, and in `transactionState`
    whether it is `OPEN`, `COMMITTED` or `ABORTED`: consumers get it only if it is committed.
    """
    found = await persistent(
        service, topic, "Search", "Search is not allowed on partitioned-topic: ask a partition"
    )
    with answer_for(FilterError, 400):
        matches = parse_filter(filter)
    if subscription:
        start = Place(_first_unacked(found, subscription))
    elif timestamp:
        start = Place(await _first_since(service, found.ledger, timestamp))
    elif readCompacted and position == "earliest":
        start = BEGINNING
    else:
        with answer_for(ValueError, 400):
            start = place_of(position, found.ledger)
    with answer_for(ValueError, 400):
        end = place_of(before, found.ledger) if before else None
    wanted = Search(
        start, limit, matches, payload != "none", PAYLOADS[payload], raw, names_of(masked), end
    )
    searching = _search_in(request, found)
    is_last = before or (position == "latest" and not (subscription or timestamp))
    log = CompactedLog(found.ledger, lambda: found.compacted) if readCompacted else found.ledger
    work = (searching.last if is_last else searching.run)(log, wanted)
    result = await while_connected(request.receive, work)
    if payload != "none":
        note_read(request.scope, result.messages)
    return JsonResponse(result.as_json())


def _search_in(request: Request, topic: PersistentTopic) -> MessageSearch:
    def state_of(transaction: TransactionId) -> str | None:
        found = topic.transactions
        return None if found is None else found.buffer.state_of(transaction)

    schemas = request.app.state.rest_publishers.schemas
    return MessageSearch(schemas, topic.name, topic.service.config.max_message_size, state_of)


class _Followed(StreamedAnswer):
    """Ends the follower however it ends: a client may leave before the first piece."""

    def __init__(self, follower: Follower, lines: AsyncIterator[bytes], media_type: str) -> None:
        # Nothing between here and the client may collect what is to arrive at once.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, headers=headers, media_type=media_type)
        self._follower = follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._follower.close()


@routes.get(
    "/messages/follow",
    statuses={
        200: {
            "description": "One JSON object a line, or server-sent events where `Accept` names "
            "`text/event-stream`: messages as in `messages`, and after some of them where to go on",
            "content": {
                "application/x-ndjson": {"example": _FOLLOWED},
                "text/event-stream": {
                    "example": 'data: {"messageId":"12:4",...}\n\nid: 12:5\nevent: next\n'
                    'data: {"next":"12:5","found":1,"shown":1,"skippedEntries":0}\n\n'
                },
            },
        },
        400: "Not a filter, or not a position",
        404: "No such topic",
        429: "Too many follow topics of this broker",
    },
    response_class=StreamingResponse,
)
async def follow(
    request: Request,
    service: Service,
    topic: Topic,
    position: Annotated[
        str,
        Query(
            description="`latest`: from now on; else from where a call before it has ended. "
            "`Last-Event-ID`, which browsers send by themselves, comes first"
        ),
    ] = "latest",
    filter: _Filter = "",
    payload: _Payload = "cut",
    masked: _Masked = "",
) -> Response:
    """New messages of a topic as they are stored, those that a filter finds. No cursor moves.

    Shows at most 200 messages and 1 MiB of values a second: of more the last ones, with their
    number as `found`. A client that reads too slowly, or a filter that takes too long, skips
    entries. The answer ends after five minutes, when the topic moves and when the right to consume
    is taken away: ask again with the last `next` as `position`. An empty line, or a comment,
    every 15 s is a sign of life.
    """
    found = await persistent(
        service, topic, "Follow", "Follow is not allowed on partitioned-topic: ask a partition"
    )
    with answer_for(FilterError, 400):
        matches = parse_filter(filter)
    position = request.headers.get("last-event-id") or position
    if position == "latest":
        start = Place(found.ledger.offsets.next_position(found.ledger.last_confirmed))
    else:
        with answer_for(ValueError, 400):
            start = place_of(position, found.ledger)
    wanted = Search(
        start,
        MESSAGES_PER_S,
        matches,
        payload != "none",
        PAYLOADS[payload],
        masked=names_of(masked),
    )
    searching = _search_in(request, found)
    right, client = right_of(request), request.client
    who = str(right[0]) if right is not None else client.host if client else ""
    events = "text/event-stream" in request.headers.get("accept", "")
    follower = request.app.state.followers.open(found, who, right)
    steps = follow_steps(follower, searching, wanted, ALIVE_S)
    if payload != "none":
        steps = _noted(request.scope, steps)
    lines = lines_of(steps, events=events)
    return _Followed(follower, lines, "text/event-stream" if events else "application/x-ndjson")


async def _noted(
    scope: Scope, steps: AsyncGenerator[FollowStep | None, None]
) -> AsyncGenerator[FollowStep | None, None]:
    async with aclosing(steps):
        async for step in steps:
            if step is not None:
                note_read(scope, step.messages)
            yield step


def _first_unacked(topic: PersistentTopic, name: str) -> Position:
    subscription = topic.subscriptions.get(name)
    if subscription is None or subscription.cursor is None:
        raise ApiError(404, f"Subscription {name} not found")
    return subscription.cursor.state.first_unacked()


@routes.get("/messageid/{timestamp}", example=_ID_EXAMPLE, statuses={404: "No such topic"})
async def id_by_time(service: Service, topic: Topic, timestamp: int) -> Response:
    """Id of the first message published at that time (ms) or later, or else of the next one."""
    found = await persistent(
        service,
        topic,
        "Get message ID by timestamp",
        "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on "
        "specific topic partition",
    )
    first = await _first_since(service, found.ledger, timestamp)
    if not found.ledger.offsets.entry_count:
        return JsonResponse(message_id(EARLIEST, topic))
    return JsonResponse(message_id(first, topic))


async def _first_since(service: BrokerService, ledger: ManagedLedger, timestamp: int) -> Position:
    """Of the first message published at that time (ms) or later, or else of the next one."""
    stamped_ms = service.stamped_ms(timestamp)
    before = await ledger.find_newest(
        lambda head, _: parse_header(head).publish_time_ms < stamped_ms
    )
    return ledger.offsets.next_position(before or EARLIEST)


@routes.get("/examinemessage", statuses={**_MESSAGE, 412: "Nothing is stored, or not a position"})
async def examine(
    service: Service, topic: Topic, initialPosition: str = "latest", messagePosition: int = 1
) -> Response:
    """The nth message from either end of the log."""
    found = await persistent(
        service,
        topic,
        "Examine messages",
        "Examine messages on a partitioned topic is not allowed, please try examine message on "
        "specific topic partition",
    )
    if messagePosition < 1:
        raise ApiError(412, "Positions begin at 1")
    if initialPosition not in ("latest", "earliest"):
        raise ApiError(412, "initialPosition is latest or earliest")
    ledger, missing = found.ledger, "Message not found"
    if not ledger.offsets.entry_count:
        raise ApiError(412, "Could not examine messages due to the total message is zero")
    if messagePosition > ledger.offsets.entry_count:
        raise ApiError(404, missing)
    before = ledger.offsets.previous_position(ledger.offsets.first_position())
    skip = messagePosition
    if initialPosition == "latest":
        skip = ledger.offsets.entry_count - messagePosition + 1
    return await _answer(
        found, await _entry(ledger, ledger.offsets.position_after(before, skip), missing)
    )
