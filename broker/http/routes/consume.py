"""REST consume: messages by long poll, ack and nack by token (docs/rest-consume.md)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from broker.http.dependencies import Service, SubscriptionName, Topic, body_doc, read_json
from broker.http.errors import ApiError
from broker.http.responses import JsonResponse, no_content
from broker.http.rest_consume import (
    MESSAGES_MAX,
    WAIT_MS_MAX,
    RestSession,
    RestSessions,
    SessionOptions,
    message_of,
)
from broker.service.consumer import EXCLUSIVE, FAILOVER, SHARED

__all__ = ["router"]

router = APIRouter(tags=["messages"])

_SUBSCRIPTION = "/topics/{domain}/{tenant}/{namespace}/{topic}/subscription/{subscription}"
_TYPES = {"Exclusive": EXCLUSIVE, "Shared": SHARED, "Failover": FAILOVER}
_LEASE_MS_MIN, _LEASE_MS_MAX = 1_000, 12 * 3_600_000
_TOKENS_DOC = body_doc(
    {
        "type": "object",
        "required": ["tokens"],
        "properties": {"tokens": {"type": "array", "items": {"type": "string"}}},
    },
    {"tokens": ["CAwQBBj///////////8B"]},
    required=True,
)
_MESSAGES = {
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
        }
    ],
}
Consumer = Annotated[
    str, Query(description="Name of the consumer: calls with the same name share one session")
]


def _sessions(request: Request) -> RestSessions:
    sessions: RestSessions = request.app.state.rest_sessions
    return sessions


async def _options(
    type: Annotated[
        str, Query(description="Shared, Exclusive or Failover", examples=["Shared"])
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
    if type not in _TYPES:
        raise ApiError(400, f"type must be one of {', '.join(_TYPES)}")
    if position not in ("latest", "earliest"):
        raise ApiError(400, "position must be latest or earliest")
    return SessionOptions(_TYPES[type], position == "earliest", leaseMs)


Options = Annotated[SessionOptions, Depends(_options)]


async def _session(
    request: Request,
    topic: Topic,
    subscription: SubscriptionName,
    options: Options,
    consumer: Consumer = "",
) -> RestSession:
    client = request.client
    remote = f"{client.host}:{client.port}" if client else "unknown:0"
    return await _sessions(request).get_or_open(topic, subscription, consumer, options, remote)


Session = Annotated[RestSession, Depends(_session)]


@router.put(
    _SUBSCRIPTION + "/session",
    summary="Open a session, or find the one of this consumer name",
    responses={200: {"content": {"application/json": {"example": {"session": "3q2-7wQk"}}}}},
)
async def open_session(session: Session) -> Response:
    return JsonResponse({"session": session.session_id})


@router.get(
    _SUBSCRIPTION + "/messages",
    summary="Take messages; waits for the first one",
    responses={
        200: {
            "description": "Possibly no message, when the wait was over first",
            "content": {"application/json": {"example": _MESSAGES}},
        },
        409: {"description": "Another consumer holds the subscription exclusively"},
        410: {"description": "The topic was closed or moved: ask again"},
        429: {"description": "Too many sessions, or too much is unacknowledged"},
    },
)
async def take_messages(
    request: Request,
    session: Session,
    max: Annotated[int, Query(ge=1, le=MESSAGES_MAX)] = 100,
    waitMs: Annotated[int, Query(ge=0, le=WAIT_MS_MAX)] = 5_000,
    payload: Annotated[str, Query(description="`base64`: every payload as base64")] = "text",
) -> Response:
    deliveries = await session.poll(max, waitMs)
    if deliveries and await request.is_disconnected():
        # Nobody will read this answer: others get the messages now, not after the lease.
        session.give_back(deliveries)
        return no_content()
    as_base64 = payload == "base64"
    return JsonResponse(
        {
            "session": session.session_id,
            "messages": [message_of(delivery, as_base64=as_base64) for delivery in deliveries],
        }
    )


async def _tokens(request: Request) -> list[Any]:
    body = await read_json(request)
    tokens = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(tokens, list) or not tokens:
        raise ApiError(400, "The body must be an object with a non-empty array tokens")
    return tokens


Tokens = Annotated[list[Any], Depends(_tokens)]


@router.post(
    _SUBSCRIPTION + "/ack",
    summary="Acknowledge messages by token",
    openapi_extra=_TOKENS_DOC,
    responses={200: {"content": {"application/json": {"example": {"acknowledged": 1}}}}},
)
async def acknowledge(session: Session, tokens: Tokens) -> Response:
    return JsonResponse({"acknowledged": session.acknowledge(tokens, negative=False)})


@router.post(
    _SUBSCRIPTION + "/nack",
    summary="Give messages back: they are delivered again at once",
    openapi_extra=_TOKENS_DOC,
    responses={200: {"content": {"application/json": {"example": {"returned": 1}}}}},
)
async def negative_acknowledge(session: Session, tokens: Tokens) -> Response:
    return JsonResponse({"returned": session.acknowledge(tokens, negative=True)})


@router.delete(
    _SUBSCRIPTION + "/session",
    status_code=204,
    summary="Close the session; what isn't acknowledged goes to others at once",
)
async def close_session(
    request: Request,
    service: Service,
    topic: Topic,
    subscription: SubscriptionName,
    consumer: Consumer = "",
) -> Response:
    session = _sessions(request).find(topic, subscription, consumer)
    if session is None:
        raise ApiError(404, "There is no such session")
    session.close()
    return no_content()
