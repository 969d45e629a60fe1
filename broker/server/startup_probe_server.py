"""The web port while its broker isn't there yet: probes are answered, all else is 503.

A start may take long: the metadata store isn't there yet, a journal is replayed. The listening
socket outlives this server, so that nobody who connects meanwhile is refused.
"""

import socket
from http import HTTPStatus

from magnetar.bookkeeper.bookie.http.admin_server import AdminServer, HttpResponse, json_page
from magnetar.bookkeeper.origin_check import OriginCheck
from magnetar.bookkeeper.probes import probe_pages
from magnetar.broker.listener.tls import listening_socket


class StartupProbeServer:
    """Life: ``open``, then ``hand_over`` or ``close``.

    Attributes:
        stage: what the start is at.
    """

    def __init__(self, host: str, port: int, sites: OriginCheck) -> None:
        """Binds ``port``; 0: a free one. ``sites``: which web pages may ask.

        Raises:
            OSError: the port is taken, or the address isn't ours.
        """
        self.stage = "starting"
        self._listener: socket.socket | None = listening_socket(host, port, "HTTP")
        self._server = AdminServer(probe_pages(self._reasons), otherwise=self._not_yet, sites=sites)

    async def open(self) -> None:
        assert self._listener is not None
        await self._server.listen_on(self._listener.dup())

    async def hand_over(self) -> socket.socket:
        """The listening socket, for whoever serves it from now on and closes it."""
        await self._server.close()
        listener, self._listener = self._listener, None
        assert listener is not None
        return listener

    async def close(self) -> None:
        await self._server.close()
        if self._listener is not None:
            self._listener.close()

    def _reasons(self) -> list[str]:
        return [self.stage]

    async def _not_yet(self) -> HttpResponse:
        body = {"reason": f"Not ready: the broker is {self.stage}"}
        return json_page(body, HTTPStatus.SERVICE_UNAVAILABLE)
