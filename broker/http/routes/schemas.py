"""The schema registry over HTTP."""

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from magnetar.broker.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.broker.http.dependencies import Body, Service, flag, make_topic_name
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends, Path, Query
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode, Statuses
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import (
    DEFINITION_BYTES_MAX,
    SCHEMA_TYPES,
    SchemaDefinition,
    StoredSchema,
)
from magnetar.broker.schema.key_value import join_texts, texts_of
from magnetar.broker.schema.registry import SchemaRules
from magnetar.broker.schema.schema_checks import rules_of
from magnetar.broker.service.broker_service import BrokerService

routes = Routes(
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}",
    tag="schemas",
    access=Access.LOOKUP_401,
    mode=RoutingMode.LOCAL,
    authoritative=True,
)


class PostSchemaPayload(BaseModel):
    """A schema as a client gives it."""

    type: str = Field(description="AVRO, JSON, PROTOBUF_NATIVE, KEY_VALUE, STRING, INT32, ...")
    definition: str = Field(
        default="",
        alias="schema",
        description="Its definition; for KEY_VALUE the JSON text of `{key, value}`",
    )
    properties: dict[str, str] | None = None


_PAYLOAD = {
    "type": "AVRO",
    "schema": '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}',
    "properties": {},
}
_STORED = {
    "version": 0,
    "type": "AVRO",
    "timestamp": 1_795_269_004_889,
    "data": _PAYLOAD["schema"],
    "properties": {},
}
_REFUSED: Statuses = {
    409: "Not compatible with the namespace's strategy",
    422: "Not a definition of its type",
}


async def _topic(
    tenant: Annotated[str, Path(description="Tenant name", examples=["public"])],
    namespace: Annotated[str, Path(description="Namespace without tenant", examples=["default"])],
    topic: Annotated[str, Path(description="Topic; `-partition-N` is cut off")],
) -> TopicName:
    return make_topic_name("persistent", tenant, namespace, topic)


async def _definition(
    payload: Annotated[
        PostSchemaPayload, Body(PostSchemaPayload, _PAYLOAD, missing="Request body is missing")
    ],
) -> SchemaDefinition:
    """The body's schema.

    Raises:
        ApiError: 400 no body; InvalidSchemaError: of no type that can be stored, or too large.
    """
    if payload.type not in SCHEMA_TYPES:
        raise InvalidSchemaError(f"Schemas of type {payload.type!r} can't be stored")
    try:
        data = payload.definition.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchemaError("The schema holds text that isn't Unicode") from error
    if payload.type == "KEY_VALUE":
        data = join_texts(payload.definition)
    definition = SchemaDefinition(payload.type, data, payload.properties or {})
    if definition.size_bytes > DEFINITION_BYTES_MAX:
        raise InvalidSchemaError(
            f"Schema of {definition.size_bytes} bytes; at most {DEFINITION_BYTES_MAX} are stored"
        )
    return definition


SchemaTopic = Annotated[TopicName, Depends(_topic)]
Definition = Annotated[SchemaDefinition, Depends(_definition)]


async def _rules(service: BrokerService, name: TopicName) -> SchemaRules:
    if await service.resources.policies(name.namespace) is None:
        raise ApiError(404, "Namespace does not exist")
    return rules_of(await service.policies.of(name))


def _document(stored: StoredSchema) -> dict[str, Any]:
    definition = stored.definition
    if definition.type == "KEY_VALUE":
        data = orjson.dumps(texts_of(definition)).decode()
    else:
        data = definition.data.decode(errors="replace")
    return {
        "version": stored.version,
        "type": definition.type,
        "timestamp": stored.timestamp_ms,
        "data": data,
        "properties": dict(definition.properties),
    }


def _found(stored: StoredSchema | None) -> Response:
    if stored is None:
        raise ApiError(404, "Schema not found")
    return JsonResponse(_document(stored))


_ABSENT: Statuses = {404: "No such version, or the schema is deleted"}


@routes.get("/schema", "The newest version", example=_STORED, statuses=_ABSENT)
async def get_schema(service: Service, topic: SchemaTopic) -> Response:
    return _found(await service.schemas.latest(topic))


@routes.get("/schema/{version}", "One version", example=_STORED, statuses=_ABSENT)
async def get_version(
    service: Service,
    topic: SchemaTopic,
    version: Annotated[int, Path(description="From 0", examples=[0])],
) -> Response:
    return _found(await service.schemas.get(topic, version))


@routes.get("/schemas", example={"getSchemaResponses": [_STORED]}, statuses=_ABSENT)
async def get_all(service: Service, topic: SchemaTopic) -> Response:
    """All versions, oldest first."""
    live = (await service.schemas.history(topic)).live
    if not live:
        raise ApiError(404, "Schema not found")
    return JsonResponse({"getSchemaResponses": [_document(each) for each in live]})


_METADATA = {
    "info": {"ledgerId": -1, "entryId": -1, "version": 1},
    "index": [
        {"ledgerId": -1, "entryId": -1, "version": 0},
        {"ledgerId": -1, "entryId": -1, "version": 1},
    ],
}


@routes.get("/metadata", example=_METADATA, statuses=_ABSENT)
async def get_metadata(service: Service, topic: SchemaTopic) -> Response:
    """Where the versions are stored: ids of -1, they are not in ledgers."""
    live = (await service.schemas.history(topic)).live
    if not live:
        raise ApiError(404, "Schema not found")
    index = [{"ledgerId": -1, "entryId": -1, "version": each.version} for each in live]
    return JsonResponse({"info": index[-1], "index": index})


@routes.post(
    "/schema", status=202, access=Access.PRODUCE_401, example={"version": 1}, statuses=_REFUSED
)
async def post_schema(service: Service, topic: SchemaTopic, definition: Definition) -> Response:
    """Add a version, if it is compatible."""
    rules = await _rules(service, topic)
    # An administrator may add versions where clients may not (isAllowAutoUpdateSchema).
    rules = type(rules)(rules.strategy)
    version = await service.schemas.register(topic, definition, rules)
    return JsonResponse({"version": version}, 202)


@routes.delete("/schema", access=Access.ADMIN_401, example={"version": 2})
async def delete_schema(
    service: Service,
    topic: SchemaTopic,
    force: Annotated[
        str | None, Query(description="`true`: forget the history, versions begin at 0 again")
    ] = None,
) -> Response:
    """Delete the schema; versions count on."""
    await _rules(service, topic)
    if flag(force):
        await service.schemas.drop(topic)
        return JsonResponse({"version": -1})
    return JsonResponse({"version": await service.schemas.delete(topic)})


@routes.post(
    "/compatibility",
    status=202,
    access=Access.ADMIN_401,
    example={"compatibility": True, "schemaCompatibilityStrategy": "FULL"},
    statuses={422: _REFUSED[422]},
)
async def check_compatibility(
    service: Service, topic: SchemaTopic, definition: Definition
) -> Response:
    """Whether a schema might become the next version."""
    strategy = (await _rules(service, topic)).strategy
    compatible = True
    try:
        await service.schemas.check(topic, definition, strategy)
    except InvalidSchemaError:
        raise
    except IncompatibleSchemaError:
        compatible = False
    return JsonResponse(
        {"compatibility": compatible, "schemaCompatibilityStrategy": strategy.value}, 202
    )


@routes.post("/version", status=202, example={"version": 0}, statuses={422: _REFUSED[422]})
async def find_version(service: Service, topic: SchemaTopic, definition: Definition) -> Response:
    """The version of a schema, -1 when it has none."""
    version = await service.schemas.find(topic, definition)
    return JsonResponse({"version": -1 if version is None else version}, 202)
