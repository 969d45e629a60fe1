"""Makes the OpenAPI document complete: what all routes have in common is said once, here.

Routes describe themselves; this adds the tags' descriptions, the one shape of errors with examples,
the answers that any request may get, and the request id. FastAPI's own 422 goes: bad parameters are
400 here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from magnetar.broker.http.routing.route import Route

_DESCRIPTION: Final = """\
The HTTP interface of Magnetar, compatible with Apache Pulsar's admin API v2, lookup, REST produce
and WebSocket API; REST consume is Magnetar's own.

Errors are JSON objects with the single field `reason`. Writes without a result answer 204.

In a cluster a call about a topic or a bundle may be answered 307, with the same address at the
broker that serves it; calls over many of them are answered 503 while one of those is silent."""

TAGS: Final = {
    "messages": "REST produce (Pulsar's) and REST consume (our own): messages without a client"
    " library. Send many per call: one call is one durable write.",
    "tenants": "The top level of names: who administers it, and on which clusters it may be.",
    "clusters": "Clusters that this one knows by name and address.",
    "namespaces": "Groups of topics, and the policies that hold for all topics of a group.",
    "topics": "Topics with and without partitions: creation, statistics, end.",
    "topic policies": "Policies of one topic; each wins over its namespace's.",
    "persistent topics": "Stored messages: by id, by time, by position.",
    "subscriptions": "Subscriptions of a topic: creation, position, backlog.",
    "schemas": "The schema registry: versions of a topic's schema.",
    "transactions": "Coordinators, what transactions have done, and how they end.",
    "index": "All topics, subscriptions and namespaces with their figures, by page (our own).",
    "brokers": "The broker processes: who they are, their settings, their health.",
    "bookies": "The storage nodes.",
    "resource quotas": "Expected load of bundles.",
    "access": "Roles: who asks, what a role may do, who has changed something.",
    "lookup": "Which broker serves a topic.",
    "health": "Liveness for load balancers.",
    "metrics": "Figures for Prometheus.",
}
_METHODS: Final = ("get", "put", "post", "delete", "patch")
_REASONS: Final = {
    "400": "messages: a non-empty list is required",
    "401": "Unauthorized: joe lacks superuser on the cluster",
    "403": "Unauthorized: joe lacks tenant admin on public/default",
    "404": "Topic persistent://public/default/orders not found",
    "405": "Termination of a non-persistent topic is not allowed",
    "406": "Number of partitions should be greater than 0",
    "409": "This topic already exists",
    "412": "Topic name is not valid",
    "413": "Request is larger than httpMaxRequestSize 67108864",
    "415": "Unsupported Media Type",
    "422": "Number of partitions may only grow",
    "429": "Too many requests, httpRequestsMaxPerSecond",
    "500": "Internal server error, see the broker's log for 5d1f0c2a-1b",
    "501": "This broker doesn't have that feature yet",
    "503": "Not ready: the broker is starting or stopping",
    "504": "The broker did not answer in time",
}
_PATH_NAMES: Final = {
    "domain": ("`persistent` or `non-persistent`", "persistent"),
    "tenant": ("Tenant name", "public"),
    "namespace": ("Namespace name without its tenant", "default"),
    "topic": ("Topic name, percent-encoded once", "orders"),
    "subscription": ("Subscription name, percent-encoded once or twice", "billing"),
    "bundle": ("Hash range of the bundle", "0x00000000_0x40000000"),
}
"""Parameters that dependencies take out of paths."""
_PARAMETERS: Final = {
    "bundle": "Hash range of a bundle, `0x00000000_0x08000000`",
    "checkAllowAutoCreation": "Answer 404 where the topic may not be created either",
    "count": "Number of messages",
    "createLocalTopicOnly": "Accepted for Pulsar's clients; there is one cluster here",
    "updateLocalTopicOnly": "Accepted for Pulsar's clients; there is one cluster here",
    "coordinatorId": "Number of the coordinator, from 0",
    "entryId": "Entry within the ledger",
    "entry_id": "Entry within the ledger",
    "includeSystemTopic": "Also topics of the broker's own",
    "index": "Index of a message in the topic",
    "initialPosition": "Count from `earliest` or from `latest`",
    "leastSigBits": "The transaction's number at its coordinator",
    "ledgerId": "Ledger of the message",
    "ledger_id": "Ledger of the message",
    "max": "Messages at most",
    "messagePosition": "From 1",
    "mostSigBits": "Number of the transaction's coordinator",
    "nth": "From 1",
    "partition": "From 0",
    "timeoutMs": "Milliseconds since it began",
    "timestamp": "Milliseconds since 1970",
    "waitMs": "How long to wait for the first message, in milliseconds",
}
"""Meanings of query and path parameters wherever they occur, unless the route says it better."""
_ERROR: Final = {
    "title": "Error",
    "type": "object",
    "required": ["reason"],
    "properties": {"reason": {"type": "string", "description": "What is wrong, for people"}},
}
_REQUEST_ID: Final = {
    "description": "The client's own id of the request, or the one it was given; in the log too",
    "schema": {"type": "string"},
    "example": "5d1f0c2a-1b",
}
_COMMON: Final = {
    "400": "A parameter or the body can't be used",
    "429": "This address sends too many requests (only with `httpRequestsLimitEnabled`)",
    "500": "Internal error, `reason` names the request in the log",
}


class OpenApi:
    """The document, made when it is asked for first, in half a second. Any thread may call it."""

    def __init__(self, version: str, routes: Callable[[], Iterable[Route]]) -> None:
        self._version, self._routes = version, routes
        self._making = threading.Lock()
        self._document: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        with self._making:
            if not self._document:
                # Imported here: FastAPI is a quarter of a start, and few ask for the document.
                from fastapi.openapi.utils import get_openapi

                from magnetar.broker.http.routing.documented_route import documented_route

                self._document = get_openapi(
                    title="Magnetar",
                    version=self._version,
                    description=_DESCRIPTION,
                    routes=[documented_route(route) for route in self._routes()],
                    license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
                )
                _complete(self._document)
            return self._document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of a document."""
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield method, path, item[method]


def _complete(document: dict[str, Any]) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    components.setdefault("headers", {})["X-Request-ID"] = _REQUEST_ID
    used = set()
    for _, path, operation in operations(document):
        _complete_parameters(path, operation)
        used.update(operation.get("tags", ()))
        responses = operation["responses"]
        if "HTTPValidationError" in str(responses.get("422")):
            del responses["422"]
        if operation.get("summary", "").startswith("Refused: "):
            for status in [each for each in responses if each < "300"]:
                del responses[status]  # FastAPI's: there is no success
        for status, description in _COMMON.items():
            responses.setdefault(status, {"description": description})
        for status, response in responses.items():
            _complete_response(status, response)
        operation["responses"] = dict(sorted(responses.items()))
    document["tags"] = [
        {"name": tag, "description": text} for tag, text in TAGS.items() if tag in used
    ]


def _complete_parameters(path: str, operation: dict[str, Any]) -> None:
    """Describe the names in the path that the route leaves to a dependency."""
    given = operation.setdefault("parameters", [])
    for each in given:
        description = _PATH_NAMES.get(each["name"], ("",))[0] or _PARAMETERS.get(each["name"])
        if description and not each.get("description"):
            each["description"] = description
    documented = {each["name"] for each in given if each["in"] == "path"}
    made = []
    for name in re.findall(r"\{([a-z_A-Z]+)\}", path):
        if name in documented or name not in _PATH_NAMES:
            continue
        description, example = _PATH_NAMES[name]
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name == "domain":
            schema = {"type": "string", "enum": ["persistent", "non-persistent"]}
        made.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": description,
                "schema": schema,
                "example": example,
            }
        )
    operation["parameters"] = made + given
    if not operation["parameters"]:
        del operation["parameters"]


def _complete_response(status: str, response: dict[str, Any]) -> None:
    response.setdefault("headers", {})["X-Request-ID"] = {
        "$ref": "#/components/headers/X-Request-ID"
    }
    if status == "429":
        response["headers"]["Retry-After"] = {
            "description": "Seconds",
            "schema": {"type": "integer"},
        }
    if status < "400":
        content = response.get("content", {})
        # FastAPI's default beside what the route says that it answers.
        json_kind = content.get("application/json", {})
        if len(content) > 1 and not {"example", "examples"} & json_kind.keys():
            content.pop("application/json", None)
        if status == "204":
            response.pop("content", None)
        return
    content = response.setdefault("content", {}).setdefault("application/json", {})
    content["schema"] = {"$ref": "#/components/schemas/Error"}
    if "example" not in content and "examples" not in content:
        reason = _REASONS.get(status, HTTPStatus(int(status)).phrase)
        content["example"] = {"reason": reason}
