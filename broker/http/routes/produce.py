"""REST produce: POST /topics/... (http-api 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from fastapi import APIRouter, Request, Response

from broker.http.dependencies import Authoritative, Topic, body_doc, read_json
from broker.http.errors import ApiError
from broker.http.responses import JsonResponse
from broker.http.rest_produce import RestPublishers, parse_messages
from broker.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from broker.service.broker_service import BrokerService

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
    await _check_schema(request.app.state.service, topic, body)
    publishers: RestPublishers = request.app.state.rest_publishers
    now_ms = request.app.state.service.clock()
    results = await publishers.produce(topic, producer_name, messages, now_ms)
    return JsonResponse({"messagePublishResults": results, "schemaVersion": 0})


async def _check_schema(service: BrokerService, topic: TopicName, body: dict[str, Any]) -> None:
    """Text values travel as they are; values of other schemas can't be encoded here yet.

    Raises:
        ApiError: 400 not a schema, 404 no such version, 501 a schema that needs encoding.
    """
    if body.get("keySchema"):
        raise ApiError(501, "REST produce can't encode keys by a keySchema yet")
    version = body.get("schemaVersion", -1)
    if version is not None and version != -1:
        stored = await service.schemas.get(topic, version)
        if stored is None and version != 0:  # 0: also what answers without a schema say
            raise ApiError(404, f"Schema version {version!r:.40} not found")
        kind = "" if stored is None else stored.definition.type
    elif (text := body.get("valueSchema")) is not None:
        kind = _schema_type(text)
    else:
        return
    if kind not in _TEXT_SCHEMAS:
        raise ApiError(501, f"REST produce can't encode values of schema type {kind} yet")


def _schema_type(text: Any) -> str:

    try:
        schema = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        schema = None
    if not isinstance(schema, dict):
        raise ApiError(400, "valueSchema must be the JSON text of a SchemaInfo")
    return str(schema.get("type", "")).upper()
