"""The Service ``kubernetes``: pods reach the API server at the first address of the Services."""

import contextlib
import socket
import socketserver
import threading
from typing import Final

from tests.charts.live.network import API_ADDRESS

_CHUNK_BYTES: Final = 65_536
_CONNECT_S: Final = 10.0


class _Handler(socketserver.BaseRequestHandler):
    server: "_Server"

    def handle(self) -> None:
        """Until one side ends: who asks for something here does so once."""
        client: socket.socket = self.request
        with socket.create_connection(self.server.target, _CONNECT_S) as api:
            api.settimeout(None)
            back = threading.Thread(target=_copy, args=(api, client), daemon=True)
            back.start()
            _copy(client, api)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other direction has ended
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    target: tuple[str, int]


class ApiForwarder:
    """Passes bytes on until ``close``; TLS is between the pod and the API server."""

    def __init__(self, host: str, port: int) -> None:
        self._server = _Server((API_ADDRESS, 443), _Handler)
        self._server.target = (host, port)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
