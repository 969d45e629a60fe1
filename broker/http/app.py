"""The HTTP face of a broker: one FastAPI application, one router per resource."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fastapi import FastAPI

from broker.http.errors import install_error_handlers
from broker.http.raw_path import RawPathMiddleware
from broker.http.responses import JsonResponse
from broker.http.rest_consume import RestSessions
from broker.http.rest_produce import RestPublishers
from broker.http.routes import (
    brokers,
    clusters,
    consume,
    health,
    lookup,
    metrics,
    namespaces,
    produce,
    schema_policies,
    schemas,
    stored_messages,
    subscriptions,
    tenants,
    topics,
)
from broker.http.websocket.routes import websocket_routes

if TYPE_CHECKING:
    from broker.service.broker_service import BrokerService

__all__ = ["create_app", "product_version"]

_DESCRIPTION = """\
The HTTP interface of Magnetar, compatible with Apache Pulsar's admin API v2, lookup, REST produce
and WebSocket API; REST consume is Magnetar's own.

Errors are JSON objects with the single field `reason`. Writes without a result answer 204."""


def product_version() -> str:
    try:
        return version("magnetar")
    except PackageNotFoundError:  # run from a checkout that isn't installed
        return "0.1.0"


def create_app(service: BrokerService) -> FastAPI:
    """The application that serves ``service``; nothing runs before the first request."""
    app = FastAPI(
        title="Magnetar",
        version=product_version(),
        description=_DESCRIPTION,
        default_response_class=JsonResponse,
        redirect_slashes=False,
        responses={500: {"description": "Internal error, `reason` names the request in the log"}},
    )
    app.state.service = service
    app.state.rest_publishers = RestPublishers(service)
    app.state.rest_sessions = RestSessions(service)
    app.add_middleware(RawPathMiddleware)
    install_error_handlers(app)
    for module in (
        produce,
        consume,
        tenants,
        clusters,
        namespaces,
        topics,
        stored_messages,
        subscriptions,
        schemas,
        schema_policies,
        brokers,
        lookup,
        health,
        metrics,
    ):
        app.include_router(module.router)
    app.router.routes.extend(websocket_routes())
    return app
