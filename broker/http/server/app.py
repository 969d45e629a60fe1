"""The HTTP face of a broker: one application, one list of routes per resource."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from magnetar.broker.http.messaging.message_follow import Followers
from magnetar.broker.http.messaging.rest_consume import RestSessions
from magnetar.broker.http.messaging.rest_produce import RestPublishers
from magnetar.broker.http.metrics.broker_metrics import CacheRates
from magnetar.broker.http.middleware.audit import AuditLog
from magnetar.broker.http.middleware.compression import GzipMiddleware
from magnetar.broker.http.middleware.console_sessions import ConsoleSessions
from magnetar.broker.http.middleware.forwarded_scheme import ForwardedSchemeMiddleware
from magnetar.broker.http.middleware.origin_middleware import OriginMiddleware
from magnetar.broker.http.middleware.origin_settings import site_check
from magnetar.broker.http.middleware.rate_limit import AddressLimiter
from magnetar.broker.http.middleware.request_context import HttpMetrics, RequestContextMiddleware
from magnetar.broker.http.openapi import OpenApi
from magnetar.broker.http.routes import (
    anti_affinity,
    audit,
    bookie_affinity,
    bookies,
    broker_stats,
    brokers,
    bundles,
    clusters,
    console,
    consume,
    doctor,
    documentation,
    explanations,
    figure_index,
    health,
    history,
    lookup,
    metrics,
    namespace_backlogs,
    namespace_content,
    namespaces,
    produce,
    resource_quotas,
    roles,
    schema_index,
    schemas,
    stored_messages,
    subscription_backlogs,
    subscriptions,
    tenants,
    topic_operations,
    topic_partitions,
    topic_permissions,
    topic_policies,
    topic_properties,
    topic_segments,
    topic_statistics,
    topics,
    transaction_participants,
    transactions,
    unsupported_services,
    whoami,
)
from magnetar.broker.http.routing.route import declared_routes
from magnetar.broker.http.server.application import Application
from magnetar.broker.http.websocket.middleware import WebSocketMiddleware
from magnetar.broker.http.websocket.pattern import TopicChanges
from magnetar.broker.http.websocket.routes import unknown_route, websocket_routes

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from magnetar.broker.service.broker_service import BrokerService

_WEBSOCKETS = (*websocket_routes(), unknown_route())


def product_version() -> str:
    try:
        return version("magnetar")
    except PackageNotFoundError:  # run from a checkout that isn't installed
        return "0.1.0"


def create_app(service: BrokerService) -> Starlette:
    """The application that serves ``service``; nothing runs before the first request."""
    app = Application()
    app.state.version = product_version()
    app.state.openapi = OpenApi(app.state.version, lambda: declared_routes(app))
    app.state.audit_log = AuditLog()
    attach(app, service)
    app.state.http_figures = HttpMetrics()
    app.state.request_limiter = app.state.authentication = None
    if service.config.http_requests_limit_enabled:
        rate = service.config.http_requests_max_per_second
        app.state.request_limiter = AddressLimiter(rate)
    app.state.cache_rates = CacheRates()
    app.state.console_lock = asyncio.Lock()  # while the console is made
    app.state.console_sessions = ConsoleSessions(lambda: service.store, time.time, time.monotonic)
    _add_layers(app, service)
    for module in (
        produce,
        consume,
        # Early: routes are tried in turn, and these are asked for most, or by pages of the console.
        topic_statistics,
        console,
        figure_index,
        history,
        explanations,
        tenants,
        clusters,
        namespaces,
        namespace_content,
        namespace_backlogs,
        topics,
        topic_partitions,
        topic_operations,
        topic_properties,
        topic_permissions,
        stored_messages,
        topic_segments,
        subscriptions,
        subscription_backlogs,
        schema_index,
        schemas,
        topic_policies,
        anti_affinity,
        bookie_affinity,
        bundles,  # behind all others of namespaces
        brokers,
        broker_stats,
        bookies,
        doctor,
        resource_quotas,
        transactions,
        transaction_participants,
        unsupported_services,
        whoami,
        audit,
        roles,
        lookup,
        health,
        metrics,
        documentation,
    ):
        app.router.routes.extend(module.routes.all)
    app.router.routes.extend(_WEBSOCKETS)  # of those that WebSocketMiddleware serves, to be seen
    app.sort_routes()
    return app


def attach(app: Starlette, service: BrokerService) -> None:
    """From now on routes serve this one, with nothing of what they knew of another."""
    app.state.service = service
    app.state.rest_publishers = RestPublishers(service)
    app.state.rest_sessions = RestSessions(service)
    app.state.followers = Followers(service)
    app.state.topic_changes = TopicChanges(service)
    app.state.access = service.access
    app.state.audit_log.clear()


def _add_layers(app: Starlette, service: BrokerService) -> None:
    """The layers that every request passes, innermost first."""
    config = service.config
    app.add_middleware(
        GzipMiddleware, excluded_paths=_words(config.http_server_gzip_compression_excluded_paths)
    )
    app.add_middleware(WebSocketMiddleware, routes=_WEBSOCKETS)
    if config.authentication_enabled:
        # Imported here: only with authentication.
        from magnetar.broker.http.middleware.authentication import (
            AuthenticationMiddleware,
            RequestAuthentication,
        )

        assert service.authenticator is not None
        authentication = app.state.authentication = RequestAuthentication(
            service.authenticator,
            config.authenticate_metrics_endpoint,
            app.state.console_sessions if config.web_console_enabled else None,
        )
        # Inside CORS: browsers ask first, without a role.
        app.add_middleware(
            AuthenticationMiddleware,
            authentication=authentication,
            grace_s=config.authentication_refresh_check_seconds,
        )
    if origins := _words(config.cors_allowed_origins):
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=_words(config.cors_allowed_methods),
            allow_headers=_words(config.cors_allowed_headers),
            expose_headers=["X-Request-ID", "Retry-After"],
            max_age=config.cors_max_age_seconds,
        )
    app.add_middleware(OriginMiddleware, sites=site_check(config))
    app.add_middleware(
        RequestContextMiddleware,
        config=config,
        metrics=app.state.http_figures,
        audit_log=app.state.audit_log,
        limiter=app.state.request_limiter,
    )
    if config.web_service_trust_x_forwarded_for:
        app.add_middleware(ForwardedSchemeMiddleware)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
