"""REST produce: POST /topics/... (http-api 5)."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from broker.http.dependencies import Authoritative, Topic, body_doc, read_json
from broker.http.errors import ApiError
from broker.http.responses import JsonResponse
from broker.http.rest_produce import RestPublishers, parse_messages
from broker.protocol.topic_name import TopicName

__all__ = ["router"]

router = APIRouter(tags=["messages"])

_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["payload"],
    "properties": {
        "payload": {"type": "string", "description": "Text of the value, not base64"},
        "key": {"type": "string"},
        "properties": {"type": "object", "additionalProperties": {"type": "string"}},
        "eventTime": {"type": "string", "description": "Milliseconds since 1970, as text"},
        "sequenceId": {"type": "integer", "format": "int64"},
        "deliverAt": {"type": "integer", "description": "Milliseconds since 1970"},
        "deliverAfterMs": {"type": "integer", "description": "After eventTime, or after now"},
        "replicationClusters": {"type": "array", "items": {"type": "string"}},
        "disableReplication": {"type": "boolean"},
    },
}
_BODY: dict[str, Any] = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "producerName": {"type": "string"},
        "schemaVersion": {"type": "integer"},
        "keySchema": {"type": "string"},
        "valueSchema": {"type": "string", "description": "JSON text of a SchemaInfo"},
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
    },
}
_EXAMPLE = {
    "producerName": "till-7",
    "messages": [
        {"payload": "hello", "key": "k1", "properties": {"shop": "4"}},
        {"payload": "again", "eventTime": "1700000000000"},
    ],
}
_ANSWER = {
    "messagePublishResults": [
        {"messageId": "12:0:-1", "errorCode": 0, "schemaVersion": 0},
        {"messageId": "12:1:-1", "errorCode": 0, "schemaVersion": 0},
    ],
    "schemaVersion": 0,
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One result per message; look into each `errorCode`"
        " (0 stored, 1 worth a retry, 2 failed)",
        "content": {"application/json": {"example": _ANSWER}},
    },
    404: {"description": "No such topic, and it may not be created"},
    412: {"description": "Bad topic name"},
}
_TEXT_SCHEMAS = {"STRING", "JSON", "BYTES", "NONE", ""}


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}",
    summary="Publish messages",
    openapi_extra=body_doc(_BODY, _EXAMPLE, required=True),
    responses=_RESPONSES,
)
async def produce(request: Request, topic: Topic, authoritative: Authoritative = None) -> Response:
    return await _produce(request, topic)


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition}",
    summary="Publish messages to one partition",
    openapi_extra=body_doc(_BODY, _EXAMPLE, required=True),
    responses=_RESPONSES,
)
async def produce_to_partition(
    request: Request, topic: Topic, partition: int, authoritative: Authoritative = None
) -> Response:
    if topic.is_partition:
        raise ApiError(400, "The topic name must be without a partition here")
    count = await request.app.state.service.partitions(topic)
    if count is None or not 0 <= partition < count:
        raise ApiError(404, f"Topic {topic} has no partition {partition}")
    return await _produce(request, topic.partition(partition))


async def _produce(request: Request, topic: TopicName) -> Response:
    body = await read_json(request)
    producer_name, messages = parse_messages(body)
    _check_schema(body)
    publishers: RestPublishers = request.app.state.rest_publishers
    now_ms = request.app.state.service.clock()
    results = await publishers.produce(topic, producer_name, messages, now_ms)
    return JsonResponse({"messagePublishResults": results, "schemaVersion": 0})


def _check_schema(body: dict[str, Any]) -> None:
    """Text values travel as they are; other schemas need the registry, which isn't there yet."""
    version = body.get("schemaVersion", -1)
    if version not in (-1, 0, None):
        raise ApiError(501, "schemaVersion needs the schema registry, which isn't available yet")
    if body.get("keySchema"):
        raise ApiError(501, "keySchema needs the schema registry, which isn't available yet")
    if (text := body.get("valueSchema")) is None:
        return
    kind = _schema_type(text)
    if kind not in _TEXT_SCHEMAS:
        raise ApiError(501, f"valueSchema of type {kind} needs the schema registry")


def _schema_type(text: Any) -> str:

    try:
        schema = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        schema = None
    if not isinstance(schema, dict):
        raise ApiError(400, "valueSchema must be the JSON text of a SchemaInfo")
    return str(schema.get("type", "")).upper()
