"""Dependencies of routes: the service, decoded path segments, JSON bodies, Pulsar's booleans."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast
from urllib.parse import unquote_plus

import orjson
from pydantic import AfterValidator, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends, Query
from magnetar.broker.protocol.messages import HEAVY_BYTES
from magnetar.broker.protocol.topic_name import (
    InvalidTopicNameError,
    TopicName,
    valid_namespace_part,
)
from magnetar.broker.service.broker_service import BrokerService

if TYPE_CHECKING:
    from magnetar.broker.http.middleware.request_context import HttpMetrics

T = TypeVar("T")

_LARGE_BODY = 64 * 1024
"""Bytes; smaller bodies are bounded by the number of connections."""
_CONTAINERS_MAX, _COMMAS_MAX = 1_000_000, 4_000_000
"""Of a JSON body: three bytes of ``[],`` become 64 in memory, so a body within its limit could fill
it, and nobody is served while that is read. Brackets and commas of texts count as well."""
_COUNTED_BYTES = 1 << 20
_DOCUMENT_BYTES_MAX = 4 << 20
"""More than any document that can be stored, however it is written as JSON. To read 20 MiB of small
values takes the loop seconds, in which no probe is answered either."""
_DOMAINS = ("persistent", "non-persistent")


async def _service(request: Request) -> BrokerService:
    return cast("BrokerService", request.app.state.service)


# Names out of the path are read from it, not declared as parameters: each took 6 µs
# (of the 100 of a REST produce call without its message). openapi.py documents them.


def form_decode(segment: str) -> str:
    """One path segment's text. Bytes that aren't UTF-8 become U+FFFD, as in Java."""
    return unquote_plus(segment, errors="replace")


async def _tenant(request: Request) -> str:
    return form_decode(request.path_params["tenant"])


async def _namespace(request: Request) -> str:
    names = request.path_params
    return make_namespace(names["tenant"], names["namespace"])


def make_namespace(tenant: str, namespace: str) -> str:
    """``tenant/ns`` of raw path segments. Raises ApiError: 412 bad name."""
    tenant, namespace = form_decode(tenant), form_decode(namespace)
    if not (valid_namespace_part(tenant) and valid_namespace_part(namespace)):
        raise ApiError(412, "Namespace name is not valid")
    return f"{tenant}/{namespace}"


def make_topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """The topic of raw path segments.

    Raises:
        ApiError: 404 unknown domain, 412 bad name.
    """
    if domain not in _DOMAINS:
        raise ApiError(404, "Not Found")
    tenant, namespace = form_decode(tenant), form_decode(namespace)
    try:
        return TopicName.parse(f"{domain}://{tenant}/{namespace}/{form_decode(topic)}")
    except InvalidTopicNameError as error:
        raise ApiError(412, "Topic name is not valid") from error


async def _topic(request: Request) -> TopicName:
    names = request.path_params
    domain = names.get("domain", "persistent")
    return make_topic_name(domain, names["tenant"], names["namespace"], names["topic"])


async def _bundle(request: Request) -> str:
    return form_decode(request.path_params["bundle"])


async def _subscription(request: Request) -> str:
    name = form_decode(request.path_params["subscription"])
    # Pulsar decodes twice below topics, where the Go client encodes twice, and once below
    # namespaces: tried with `a%252Fb` in each place.
    return form_decode(name) if "topic" in request.path_params else name


def flag(text: str | None, default: bool = False) -> bool:
    """A boolean of a query string: ``true`` in any case, everything else is false."""
    return default if text is None else text.lower() == "true"


def names_of(text: str | None, parameter: str) -> list[str] | None:
    """A JSON array of names in a query string, each once; None: there is no such parameter.

    Raises:
        ApiError: 400.
    """
    if text is None:
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"{parameter}: {error}") from error
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ApiError(400, f"{parameter}: a JSON array of names is expected")
    return list(dict.fromkeys(found))


def Flag(default: bool = False, description: str = "") -> Any:
    """Query parameter that any text is accepted for; pass the value through ``flag``."""
    return Query(
        description=description or "`true` or `false`; any other text is false",
        json_schema_extra={"type": "boolean", "default": default},
    )


Service = Annotated[BrokerService, Depends(_service)]
Tenant = Annotated[str, Depends(_tenant)]
Namespace = Annotated[str, Depends(_namespace)]
Topic = Annotated[TopicName, Depends(_topic)]
Bundle = Annotated[str, Depends(_bundle)]
SubscriptionName = Annotated[str, Depends(_subscription)]
Authoritative = Annotated[
    str | None,
    Query(description="`true`: the asked broker takes what none owns, as one that was chosen"),
]
DECODED = AfterValidator(form_decode)
"""Of a name in the path that is declared as a parameter."""


async def read_json(request: Request) -> Any:
    """The body's JSON; None for an empty body and for ``null``.

    Raises:
        ApiError: as ``parse_json``; 400 larger than ``httpMaxRequestSize``; 503 see ``_charge``.
    """
    body = await read_body(request)
    return await off_loop(request, len(body), lambda: parse_json(request, body))


async def off_loop(request: Request, size_bytes: int, work: Callable[[], T]) -> T:
    """``work`` on so many bytes of a client's, in a thread if it could be felt on the loop."""
    if size_bytes <= HEAVY_BYTES:
        return work()
    service: BrokerService = request.app.state.service
    return await service.schemas.in_value_thread(work)


def parse_json(request: Request, body: bytes, *, scalars_as_text: bool = True) -> Any:
    """The JSON of a body; None for an empty one and for ``null``.

    What other sites' forms can send (text, form data, no type at all) is refused; Pulsar takes a
    lone number or word as text all the same.

    Args:
        scalars_as_text: so does this resource.
    Raises:
        ApiError: 400 not JSON, 413 too many values, 415 declared as something else.
    """
    if not body or body.isspace():
        return None
    if len(body) > _COUNTED_BYTES:
        _check_values(body)
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = declared == "application/json" or declared.endswith("+json")
    if not is_json and not (scalars_as_text and declared == "text/plain"):
        raise ApiError(415, "Content-Type must be application/json")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"Request body is not JSON: {error}") from error
    if not is_json and isinstance(value, dict | list):
        raise ApiError(415, "Content-Type must be application/json")
    return value


def _check_values(body: bytes) -> None:
    """Raises ApiError: 413."""
    containers = commas = 0
    for start in range(0, len(body), _COUNTED_BYTES):  # ends with the first part that is too much
        part = body[start : start + _COUNTED_BYTES]
        containers += part.count(b"{") + part.count(b"[")
        commas += part.count(b",")
        if containers > _CONTAINERS_MAX or commas > _COMMAS_MAX:
            raise ApiError(413, "A JSON body of too many values")


async def read_body(request: Request) -> bytes:
    """The whole body, refused as soon as it is known to be too large."""
    limit: int = request.app.state.service.config.http_max_request_size
    length = request.headers.get("content-length", "")
    if length.isdigit():
        if 0 <= limit < int(length):
            raise ApiError(
                400, f"Request of {length} bytes is larger than httpMaxRequestSize {limit}"
            )
        if int(length) < _LARGE_BODY:
            return await _small_body(request)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if 0 <= limit < size:
            raise ApiError(400, f"Request is larger than httpMaxRequestSize {limit}")
        _charge(request, len(part))
        parts.append(part)
    return b"".join(parts)


async def _small_body(request: Request) -> bytes:
    """Not ``Request.body``: that is a generator and two lists for the one piece that comes."""
    body, has_more = b"", True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body


def _charge(request: Request, size: int) -> None:
    """Count bytes of a body, as they come, until its request is answered (request_context.py).

    Raises:
        ApiError: 503, all bodies together are more than publishes may take in memory.
    """
    state = request.app.state
    metrics: HttpMetrics = state.http_figures
    if metrics.body_bytes + size > state.service.ledgers.append_budget.bytes_max:
        raise ApiError(503, "Too many large requests at once, maxMessagePublishBufferSizeInMB")
    metrics.body_bytes += size
    charged = request.scope["state"]
    charged["body_bytes"] = charged.get("body_bytes", 0) + size


class BodyReader:
    """Dependency: the body as ``kind``, None when there is none. Unknown fields are ignored.

    Of what is stored as one document; messages come by ``read_json``.
    """

    def __init__(self, kind: Any, document: dict[str, Any], missing: str) -> None:
        """
        Args:
            document: the route's ``openapi_extra``.
            missing: why no body is refused; empty: it isn't.
        """
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self.document, self._missing = document, missing

    async def __call__(self, request: Request) -> Any:
        """Raises ApiError: as ``read_json``; 400 not of that kind, or missing; 413."""
        body = await read_body(request)
        if len(body) > _DOCUMENT_BYTES_MAX:
            raise ApiError(413, f"A body of {len(body)} bytes, {_DOCUMENT_BYTES_MAX} at most")

        def read() -> Any:
            value = parse_json(request, body)
            return None if value is None else self._adapter.validate_python(value)

        try:
            value = await off_loop(request, len(body), read)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ApiError(400, f"{where}: {first['msg']}" if where else first["msg"]) from error
        if value is None and self._missing:
            raise ApiError(400, self._missing)
        return value


def Body(
    kind: Any,
    example: Any,
    *,
    required: bool = False,
    missing: str = "",
    schema: dict[str, Any] | None = None,
) -> Any:
    """Parameter of a route: its body, documented as well; see ``BodyReader``.

    Args:
        required: as the document says; so it does with ``missing``.
        schema: of the document, where that isn't the kind's own.
    """
    shown = TypeAdapter(kind).json_schema() if schema is None else schema
    return Depends(BodyReader(kind, body_doc(shown, example, required or bool(missing)), missing))


def body_doc(schema: dict[str, Any], example: Any, required: bool = False) -> dict[str, Any]:
    """``openapi_extra`` of a route with such a body."""
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": required, "content": content}}
