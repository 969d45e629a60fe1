"""REST consume: messages by long poll, ack and nack by token (docs/guides/rest-consume.md)."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from magnetar.broker.errors import SubscriptionNotFoundError
from magnetar.broker.http.dependencies import (
    Service,
    SubscriptionName,
    Topic,
    body_doc,
    off_loop,
    parse_json,
    read_body,
)
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.consumed_message import ConsumedMessage, MessageKey
from magnetar.broker.http.messaging.rest_consume import (
    MESSAGES_MAX,
    UNACKED_MAX,
    WAIT_MS_MAX,
    AckResults,
    RestSession,
    RestSessions,
    SessionOptions,
    message_of,
    parse_message_id_text,
    parse_token,
)
from magnetar.broker.http.messaging.value_schemas import DecodedValue, ValueSchemas
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.http.responses import JsonResponse, no_content
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.http.routing.route_permissions import right_of
from magnetar.broker.http.streamed_answers import StreamedAnswer
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.consumer import SUB_TYPES

routes = Routes(tag="messages", access=Access.CONSUME_401, mode=RoutingMode.HASHED)

_SUBSCRIPTION = "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}"
_LEASE_MS_MIN, _LEASE_MS_MAX = 1_000, 12 * 3_600_000
_TOKENS_DOC = body_doc(
    {
        "type": "object",
        "properties": {
            "tokens": {"type": "array", "items": {"type": "string"}},
            "messageIds": {
                "type": "array",
                "items": {"type": "string"},
                "description": "As shown in `messageId`; those of batches only while the session"
                " has them",
            },
        },
    },
    {"tokens": ["CAwQBBj///////////8B"]},
    required=True,
)
_MESSAGES: dict[str, Any] = {
    "session": "3q2-7wQkRkqXo0aV",
    "messages": [
        {
            "token": "CAwQBBj///////////8B",
            "messageId": "12:4:-1",
            "publishTime": 1700000000000,
            "redeliveryCount": 0,
            "properties": {"shop": "4"},
            "key": "k1",
            "payload": "hello",
            "encoding": "text",
            "schemaVersion": 0,
        }
    ],
}
_TOKEN = _MESSAGES["messages"][0]["token"]
_LINE = orjson.dumps(_MESSAGES["messages"][0]).decode()
_ALIVE_S = 15.0
Payload = Annotated[
    Literal["text", "base64"], Query(description="`base64`: every payload as base64")
]
Decode = Annotated[
    bool, Query(description="Values by their schemas, as JSON in `payload` (`encoding` is `json`)")
]
Consumer = Annotated[
    str, Query(description="Name of the consumer: calls with the same name share one session")
]


def _sessions(request: Request) -> RestSessions:
    sessions: RestSessions = request.app.state.rest_sessions
    return sessions


async def _options(
    type: Annotated[
        str, Query(description="Shared, Exclusive, Failover or Key_Shared", examples=["Shared"])
    ] = "Shared",
    position: Annotated[
        str, Query(description="Where a new subscription starts: latest or earliest")
    ] = "latest",
    leaseMs: Annotated[
        int,
        Query(
            description="An unacknowledged message is delivered again after it",
            ge=_LEASE_MS_MIN,
            le=_LEASE_MS_MAX,
        ),
    ] = 60_000,
) -> SessionOptions:
    if type not in SUB_TYPES:
        raise ApiError(400, f"type must be one of {', '.join(SUB_TYPES)}")
    if position not in ("latest", "earliest"):
        raise ApiError(400, "position must be latest or earliest")
    return SessionOptions(SUB_TYPES[type], position == "earliest", leaseMs)


Options = Annotated[SessionOptions, Depends(_options)]


class _SessionRequest:
    """The session a call is about; opened by the route, once all of the request is known good.

    A dependency that opened it would do so before we look at the route's own parameters.
    """

    def __init__(
        self,
        request: Request,
        topic: TopicName,
        subscription: str,
        options: SessionOptions,
        consumer: str,
    ) -> None:
        client = request.client
        remote = f"{client.host}:{client.port}" if client else "unknown:0"
        self._sessions = _sessions(request)
        self._right = right_of(request)
        self._service: BrokerService = request.app.state.service
        who = str(self._right[0]) if self._right is not None else remote.rpartition(":")[0]
        self._arguments = (topic, subscription, consumer, options, remote, who)

    async def open(self) -> RestSession:
        return self._used(await self._sessions.get_or_open(*self._arguments))

    def _used(self, session: RestSession) -> RestSession:
        if self._right is not None:
            session.used_with(self._right)
        return session

    async def open_for(self, keys: list[MessageKey]) -> RestSession:
        """The session, opened only if the subscription can have delivered these messages.

        Raises:
            ApiError: 400 the topic has no such partition.
            TopicNotFoundError, SubscriptionNotFoundError
        """
        topic, subscription, consumer, *_ = self._arguments
        if (session := self._sessions.find(topic, subscription, consumer)) is not None:
            return self._used(session)
        count = await self._service.directory.partitions(topic)
        if count and (unknown := [key[0] for key in keys if not 0 <= key[0] < count]):
            raise ApiError(400, f"The topic has no partition {unknown[0]}")
        name = topic.partition(keys[0][0]) if count else topic
        known = await self._service.loader.load(name, create=False)
        if subscription not in known.subscriptions:
            raise SubscriptionNotFoundError(f"Subscription {subscription} not found")
        return await self.open()


async def _wanted(
    request: Request,
    topic: Topic,
    subscription: SubscriptionName,
    options: Options,
    consumer: Consumer = "",
) -> _SessionRequest:
    return _SessionRequest(request, topic, subscription, options, consumer)


Wanted = Annotated[_SessionRequest, Depends(_wanted)]


@routes.put(
    _SUBSCRIPTION + "/session",
    "Open a session, or find the one of this consumer name",
    example={"session": "3q2-7wQk"},
)
async def open_session(wanted: Wanted) -> Response:
    session = await wanted.open()
    return JsonResponse({"session": session.session_id})


@routes.get(
    _SUBSCRIPTION + "/messages",
    "Take messages; waits for the first one",
    statuses={
        200: {
            "description": "Possibly no message, when the wait was over first",
            "content": {"application/json": {"example": _MESSAGES}},
        },
        409: "Another consumer holds the subscription exclusively",
        410: "The topic was closed or moved: ask again",
        429: "Too many sessions, or too much is unacknowledged",
    },
)
async def take_messages(
    request: Request,
    topic: Topic,
    wanted: Wanted,
    max: Annotated[int, Query(description="Messages at most", ge=1, le=MESSAGES_MAX)] = 100,
    waitMs: Annotated[
        int, Query(description="How long to wait for the first one", ge=0, le=WAIT_MS_MAX)
    ] = 5_000,
    payload: Payload = "text",
    decode: Decode = False,
) -> Response:
    session = await wanted.open()
    deliveries = await session.poll(max, waitMs)
    if deliveries and await request.is_disconnected():
        # The client won't read this answer: others get the messages now, not after the lease.
        session.give_back(deliveries)
        return no_content()
    shown = _MessageView(request, topic, payload == "base64", decode)
    lines = [line for _, line in await shown.lines(deliveries)]
    content = b'{"session":"%b","messages":[%b]}' % (
        session.session_id.encode(),  # of a base64 alphabet
        b",".join(lines),
    )
    return Response(content, media_type="application/json")


@routes.get(
    _SUBSCRIPTION + "/stream",
    "Take messages as they come, until the client leaves",
    statuses={
        200: {
            "description": "One JSON object a line, or server-sent events where `Accept` names"
            " `text/event-stream`. An empty line or a comment every 15 s is a sign of life",
            "content": {
                "application/x-ndjson": {"example": _LINE + "\n"},
                "text/event-stream": {"example": f"id: {_TOKEN}\ndata: {_LINE}\n\n"},
            },
        },
        409: "Another consumer holds the subscription exclusively",
        429: "Too many sessions",
    },
    response_class=StreamingResponse,
)
async def stream_messages(
    request: Request,
    topic: Topic,
    wanted: Wanted,
    window: Annotated[
        int, Query(description="Messages unacknowledged at most", ge=1, le=UNACKED_MAX)
    ] = 1_000,
    autoAck: Annotated[
        bool, Query(description="Messages are acknowledged once they are written to the client")
    ] = False,
    payload: Payload = "text",
    decode: Decode = False,
) -> Response:
    session = await wanted.open()
    events = "text/event-stream" in request.headers.get("accept", "")
    shown = _MessageView(request, topic, payload == "base64", decode)
    # Nothing between here and the client may collect what is to arrive at once.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamedAnswer(
        _lines(session, shown, window, auto_ack=autoAck, events=events),
        media_type="text/event-stream" if events else "application/x-ndjson",
        headers=headers,
    )


async def _lines(
    session: RestSession, shown: "_MessageView", window: int, *, auto_ack: bool, events: bool
) -> AsyncIterator[bytes]:
    batches = session.stream(window, alive_s=_ALIVE_S, auto_ack=auto_ack)
    async with aclosing(batches):
        if events:
            yield b":\n\n"  # browsers call a stream open when something has come
        async for deliveries in batches:
            if not deliveries:
                yield b":\n\n" if events else b"\n"
                continue
            parts: list[bytes] = []
            for token, line in await shown.lines(deliveries):
                if events:
                    parts += (b"id: ", token.encode(), b"\ndata: ", line, b"\n\n")
                else:
                    parts += (line, b"\n")
            yield b"".join(parts)


class _MessageView:
    """How one call wants its messages."""

    def __init__(self, request: Request, topic: TopicName, as_base64: bool, decode: bool) -> None:
        self._request = request
        self._schemas: ValueSchemas = request.app.state.rest_publishers.schemas
        self._topic, self._as_base64, self._decode = topic, as_base64, decode

    async def lines(self, deliveries: list[ConsumedMessage]) -> list[tuple[str, bytes]]:
        """Token and JSON of each."""
        values: list[DecodedValue | None] = [None] * len(deliveries)
        if self._decode:
            values = await self._schemas.decode(
                self._topic, [delivery.message for delivery in deliveries]
            )

        def write() -> list[tuple[str, bytes]]:
            items = (
                message_of(delivery, as_base64=self._as_base64, decoded=value)
                for delivery, value in zip(deliveries, values, strict=True)
            )
            return [(item["token"], orjson.dumps(item)) for item in items]

        size_bytes = sum(delivery.message.held_bytes for delivery in deliveries)
        return await off_loop(self._request, size_bytes, write)


@dataclass(frozen=True, slots=True)
class _MessageIds:
    """The messages that a body names, as it does and as they are meant."""

    texts: list[str]
    keys: list[MessageKey]

    def picked(self, places: list[int]) -> list[str]:
        return [self.texts[place] for place in places]


async def _named(request: Request) -> _MessageIds:
    data = await read_body(request)
    return await off_loop(request, len(data), lambda: _names_of(parse_json(request, data)))


def _names_of(body: Any) -> _MessageIds:
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be an object with tokens or messageIds")
    tokens, ids = body.get("tokens") or [], body.get("messageIds") or []
    if not isinstance(tokens, list) or not isinstance(ids, list) or not (tokens or ids):
        raise ApiError(400, "The body must have a non-empty array tokens or messageIds")
    if len(tokens) + len(ids) > UNACKED_MAX:
        raise ApiError(413, f"At most {UNACKED_MAX} messages in one call")
    keys = [parse_token(each) for each in tokens] + [parse_message_id_text(each) for each in ids]
    return _MessageIds([*tokens, *ids], keys)


Named = Annotated[_MessageIds, Depends(_named)]


def _settled(word: str, settled: AckResults, named: _MessageIds) -> Response:
    return JsonResponse(
        {
            word: len(settled.done),
            "alreadyAcknowledged": named.picked(settled.already),
            "unknown": named.picked(settled.unknown),
        }
    )


def _settled_doc(word: str) -> Statuses:
    example = {word: 1, "alreadyAcknowledged": [], "unknown": ["9:9:-1"]}
    return {
        200: {
            "description": "How many there were to settle, and which ones there were not: as named",
            "content": {"application/json": {"example": example}},
        },
        404: "There is no such topic or subscription",
        413: f"More than {UNACKED_MAX} messages",
        503: "Not stored: the messages may come again",
    }


@routes.post(
    _SUBSCRIPTION + "/ack",
    "Acknowledge messages by token or message id",
    status=200,
    statuses=_settled_doc("acknowledged"),
    body=_TOKENS_DOC,
)
async def acknowledge(wanted: Wanted, named: Named) -> Response:
    session = await wanted.open_for(named.keys)
    settled = session.acknowledge(named.keys, negative=False)
    await session.stored()
    return _settled("acknowledged", settled, named)


@routes.post(
    _SUBSCRIPTION + "/nack",
    "Give messages back: they are delivered again at once",
    status=200,
    statuses=_settled_doc("returned"),
    body=_TOKENS_DOC,
)
async def negative_acknowledge(wanted: Wanted, named: Named) -> Response:
    session = await wanted.open_for(named.keys)
    settled = session.acknowledge(named.keys, negative=True)
    return _settled("returned", settled, named)


@routes.delete(
    _SUBSCRIPTION + "/session", "Close the session; what isn't acknowledged goes to others at once"
)
async def close_session(
    request: Request,
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    consumer: Consumer = "",
) -> None:
    session = _sessions(request).find(topic, subscription, consumer)
    if session is None:
        raise ApiError(404, "There is no such session")
    session.close()
