"""REST produce: POST /topics/... ."""

from typing import Annotated, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import Topic, body_doc, off_loop, parse_json, read_body
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.rest_produce import (
    MESSAGES_MAX,
    SCHEMA_FIELDS,
    RestPublishers,
    parse_messages,
)
from magnetar.broker.http.messaging.value_schemas import STRING
from magnetar.broker.http.parameters import Path
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.protocol.messages import OutgoingMessage
from magnetar.broker.protocol.topic_name import TopicName

routes = Routes(tag="messages", access=Access.PRODUCE_401, mode=RoutingMode.OWNER_IF_LOADED)

_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["payload"],
    "properties": {
        "payload": {
            "type": "string",
            "description": "Text of the value by its schema: `42`, `2026-01-02`,"
            " JSON for AVRO, JSON and PROTOBUF_NATIVE",
        },
        "encoding": {
            "type": "string",
            "enum": ["text", "base64"],
            "description": "`base64`: the payload is that of the bytes to store",
        },
        "keyEncoding": {
            "type": "string",
            "enum": ["text", "base64"],
            "description": "`base64`: the key is bytes",
        },
        "key": {"type": "string", "description": "By the key's schema for KEY_VALUE"},
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
        "schemaVersion": {
            "type": "integer",
            "format": "int64",
            "description": "A stored version to encode by; -1: see valueSchema",
        },
        "keySchema": {
            "type": "string",
            "description": "JSON text of a SchemaInfo: messages are KEY_VALUE, keys separated",
        },
        "valueSchema": {
            "type": "string",
            "description": "JSON text of a SchemaInfo (`schema` in base64); added to the topic's"
            " versions if it is compatible. Without one values are STRING",
        },
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
_RESPONSES: Statuses = {
    200: {
        "description": "One result per message; look into each `errorCode`"
        " (0 stored, 1 worth a retry, 2 failed)",
        "content": {"application/json": {"example": _ANSWER}},
    },
    404: "No such topic, and it may not be created; or no such schema version",
    409: "The schema isn't compatible with the topic's",
    412: "Bad topic name, or a producer name that is too long",
    413: f"More than {MESSAGES_MAX} messages, or far more values than those have",
    422: "Not a definition of its schema type",
    501: "Values of this schema type have no text form",
}
# Accepted and of no effect, so it is described by hand.
_AUTHORITATIVE = {
    "name": "authoritative",
    "in": "query",
    "description": "Accepted for Pulsar's clients; this broker answers either way",
    "schema": {"type": "boolean"},
}


@routes.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}",
    "Publish messages",
    status=200,
    statuses=_RESPONSES,
    body=body_doc(_BODY, _EXAMPLE, required=True),
    parameters=[_AUTHORITATIVE],
)
async def produce(request: Request, topic: Topic) -> Response:
    return await _produce(request, topic)


@routes.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition}",
    "Publish messages to one partition",
    status=200,
    authoritative=True,
    statuses=_RESPONSES,
    body=body_doc(_BODY, _EXAMPLE, required=True),
)
async def produce_to_partition(
    request: Request,
    topic: Topic,
    partition: Annotated[int, Path(description="Number of the partition, from 0", examples=[0])],
) -> Response:
    if topic.is_partition:
        raise ApiError(400, "The topic name must be without a partition here")
    count = await request.app.state.service.directory.partitions(topic)
    if count is None or not 0 <= partition < count:
        raise ApiError(404, f"Topic {topic} has no partition {partition}")
    return await _produce(request, topic.partition(partition))


async def _produce(request: Request, topic: TopicName) -> Response:
    state = request.app.state
    data = await read_body(request)

    def read() -> tuple[Any, str, list[OutgoingMessage]]:
        body = parse_json(request, data)
        return body, *parse_messages(body)

    body, producer_name, messages = await off_loop(request, len(data), read)
    schema = STRING
    if body.keys() & SCHEMA_FIELDS:
        schema = await state.rest_publishers.schemas.of_body(topic, body)
    publishers: RestPublishers = state.rest_publishers
    answer = await publishers.produce(
        topic, producer_name, messages, schema, state.service.wall_clock(), len(data)
    )
    return JsonResponse(orjson.Fragment(answer))
