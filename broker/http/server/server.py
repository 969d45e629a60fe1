"""uvicorn inside the broker's own loop: one listening socket, no signal handlers, no polling."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import uvicorn

from magnetar.broker.http.server.direct_produce import DirectProduce
from magnetar.broker.http.server.fast_rejector import fast_rejector
from magnetar.broker.http.server.http_pre_auth import HttpPreAuth
from magnetar.broker.http.server.request_protocol import ConnectionLimits, protocol_with
from magnetar.broker.http.websocket.protocol import CorkedWebSocketProtocol
from magnetar.broker.listener.file_limit import AddressQuota, SocketQuota, http_sockets_max
from magnetar.broker.listener.tls import TlsListener, listening_socket

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette

    from magnetar.broker.config import BrokerConfig

SHUTDOWN_S = 2


class HttpServer:
    """Serves an app until ``close``; ``start`` returns the port."""

    def __init__(self, app: Starlette, config: BrokerConfig) -> None:
        self._app = app
        self._config = config
        self._server: uvicorn.Server | None = None
        self._socket: socket.socket | None = None
        self._tls: TlsListener | None = None
        self._pre_auth: HttpPreAuth | None = None
        self.port = 0

    async def start(self, host: str, port: int, listener: socket.socket | None = None) -> int:
        """Listen; 0 picks a free port, -1: none, ``start_tls`` follows.

        Args:
            listener: bound to that port already; it is owned from now on.
        Raises:
            OSError: the port is taken, or the address isn't ours.
        """
        settings = self._config
        if listener is None and port >= 0:
            listener = listening_socket(host, port, "HTTP")
        if listener is not None and not settings.authentication_enabled:
            self._socket = listener  # else everybody is an unauthenticated client first
        ping_s = settings.web_socket_ping_duration_seconds
        config = uvicorn.Config(
            self._app,
            loop="none",
            http=protocol_with(
                SocketQuota("HTTP", http_sockets_max(settings.max_http_server_connections)),
                AddressQuota(settings.max_http_server_connections_per_ip),
                _limits(settings),
                DirectProduce(self._app, settings),
            ),
            ws=CorkedWebSocketProtocol,
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            date_header=False,
            # uvicorn's would believe every client of this machine; see ForwardedSchemeMiddleware.
            proxy_headers=False,
            backlog=settings.http_server_accept_queue_size,
            timeout_keep_alive=settings.http_server_idle_timeout / 1000,  # type: ignore[arg-type] # call_later takes fractions
            timeout_graceful_shutdown=SHUTDOWN_S,
            ws_max_size=settings.web_socket_max_text_frame_size,
            ws_ping_interval=ping_s if ping_s > 0 else None,
            ws_ping_timeout=ping_s if ping_s > 0 else None,
            # Base64 of what is often compressed already: a few bytes fewer for much more CPU.
            ws_per_message_deflate=False,
        )
        config.load()
        self._server = server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        # Not serve(): its main loop wakes up ten times a second for a Date header, and its signal
        # handlers are the standalone process's business.
        await server.startup(sockets=[] if self._socket is None else [self._socket])
        self.port = -1 if listener is None else listener.getsockname()[1]
        if listener is not None and self._socket is None:
            refusals = fast_rejector(self._app, settings)
            self._pre_auth = HttpPreAuth(self._protocol, settings, refusals)
            self._pre_auth.listen(listener, settings.http_server_accept_queue_size)
            self._app.state.service.limiters["http"] = self._pre_auth.limiter
        return self.port

    async def start_tls(self, host: str, port: int) -> int:
        """Serve the same over TLS; 0 picks a free port. REQUIRES: started.

        Raises:
            OSError: the port. ConfigError: the certificate, its key or another setting of TLS.
        """
        self._tls = TlsListener(
            self._config, self._protocol, backlog=self._config.http_server_accept_queue_size
        )
        self._app.state.service.limiters["https"] = self._tls.limiter
        return await self._tls.start(host, port, "HTTPS")

    def _protocol(self) -> asyncio.Protocol:
        """As uvicorn makes them for its own sockets (Server.startup)."""
        server = self._server
        assert server is not None
        config = server.config
        return config.http_protocol_class(  # type: ignore[call-arg] # typed as any protocol
            config=config, server_state=server.server_state, app_state=server.lifespan.state
        )

    async def close(self) -> None:
        """Stop listening, let running requests end for two seconds, then cut them."""
        if self._server is None:
            return
        server, self._server = self._server, None
        for each in (self._tls, self._pre_auth):
            if each is not None:
                each.close()
        self._app.state.rest_sessions.close_all()
        self._app.state.followers.close_all()
        await server.shutdown(sockets=[self._socket] if self._socket is not None else None)
        await asyncio.sleep(0)


def _limits(settings: BrokerConfig) -> ConnectionLimits:
    return ConnectionLimits(
        head_bytes=settings.http_max_request_header_size,
        headers=settings.http_max_request_headers,
        head_s=settings.http_request_header_timeout_millis / 1000,
        body_bytes_per_s=settings.http_request_body_min_bytes_per_second,
        stall_s=settings.http_response_stall_timeout_millis / 1000,
    )
