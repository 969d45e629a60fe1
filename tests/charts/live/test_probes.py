"""The kubelet's probes against real sockets: what they say, and when they are asked."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from tests.charts.live.probes import Health
from tests.charts.live.sandbox import Process
from tests.charts.renderings import Object

_ADDRESS = "127.0.0.1"
_SOON: Object = {"periodSeconds": 0.02, "timeoutSeconds": 5, "failureThreshold": 2}
_DEADLINE_S = 60.0


class _Seen:
    """Health of a container, and waits for its changes."""

    def __init__(self, ports: dict[str, int], **probes: Object) -> None:
        self._news = threading.Condition()
        spec: Object = {
            "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
            **{f"{kind}Probe": {**_SOON, **probe} for kind, probe in probes.items()},
        }
        # No probe here runs a command, so nothing is asked of the process.
        process = cast(Process, None)
        self.health = Health(spec, process, "", _ADDRESS, self._on_change)

    def _on_change(self) -> None:
        with self._news:
            self._news.notify_all()

    def until(self, what: str, is_true: Callable[[Health], bool]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: is_true(self.health), _DEADLINE_S), what


@contextmanager
def _seen(ports: dict[str, int], **probes: Object) -> Iterator[_Seen]:
    seen = _Seen(ports, **probes)
    try:
        yield seen
    finally:
        seen.health.close()


class _Pages(http.server.ThreadingHTTPServer):
    """Answers each path with the status in ``statuses``, and notes who asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.statuses = {"/startz": 503, "/livez": 200, "/readyz": 200}
        self.asked: list[str] = []
        self.news = threading.Condition()
        super().__init__((_ADDRESS, 0), _Page)

    def until_asked(self, path: str, times: int) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.asked.count(path) >= times, _DEADLINE_S), path


class _Page(http.server.BaseHTTPRequestHandler):
    server: _Pages

    def do_GET(self) -> None:
        self.send_response(self.server.statuses[self.path])
        self.send_header("Content-Length", "0")
        self.end_headers()
        with self.server.news:
            self.server.asked.append(self.path)
            self.server.news.notify_all()

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@contextmanager
def _pages() -> Iterator[_Pages]:
    pages = _Pages()
    thread = threading.Thread(target=pages.serve_forever, daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        pages.shutdown()
        pages.server_close()
        thread.join()


def _get(path: str) -> Object:
    return {"httpGet": {"path": path, "port": "http"}}


def test_nothing_else_is_asked_until_it_is_started() -> None:
    """And a startup probe that fails less often than its threshold does no harm."""
    with _pages() as pages:
        startup = {**_get("/startz"), "failureThreshold": 100_000}
        probes = {"readiness": _get("/readyz"), "liveness": _get("/livez")}
        with _seen({"http": pages.server_address[1]}, startup=startup, **probes) as seen:
            pages.until_asked("/startz", 5)
            assert set(pages.asked) == {"/startz"}
            assert not seen.health.is_started
            assert not seen.health.is_ready
            pages.statuses["/startz"] = 200
            seen.until("started and ready", lambda health: health.is_started and health.is_ready)
            pages.until_asked("/livez", 1)
            assert not seen.health.has_failed
            asked = pages.asked.count("/startz")
            pages.until_asked("/readyz", pages.asked.count("/readyz") + 5)
            assert pages.asked.count("/startz") == asked


def test_a_tcp_port_that_opens_makes_it_started_and_without_other_probes_ready() -> None:
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        port = listener.getsockname()[1]
        startup = {"tcpSocket": {"port": port}, "failureThreshold": 100_000}
        with _seen({}, startup=startup) as seen:
            assert not seen.health.is_ready
            listener.listen()
            seen.until("ready", lambda health: health.is_started and health.is_ready)
    with _seen({}) as seen:
        assert seen.health.is_started
        assert seen.health.is_ready


def test_a_start_that_takes_too_long_is_to_be_ended() -> None:
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        with _seen({}, startup={"tcpSocket": {"port": listener.getsockname()[1]}}) as seen:
            seen.until("dead", lambda health: health.has_failed)
            assert not seen.health.is_started


def test_readiness_comes_and_goes_and_liveness_alone_ends_it() -> None:
    with _pages() as pages:
        probes = {"readiness": _get("/readyz"), "liveness": _get("/livez")}
        with _seen({"http": pages.server_address[1]}, **probes) as seen:
            seen.until("ready", lambda health: health.is_ready)
            pages.statuses["/readyz"] = 503
            seen.until("not ready", lambda health: not health.is_ready)
            pages.statuses["/readyz"] = 200
            seen.until("ready again", lambda health: health.is_ready)
            assert not seen.health.has_failed
            pages.statuses["/livez"] = 500
            seen.until("dead", lambda health: health.has_failed)
            assert seen.health.is_ready
