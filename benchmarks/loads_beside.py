"""Loads that a client's p99 is measured beside; each is a process of its own until it is ended.

``python -m benchmarks.loads_beside NAME ADMIN_URL TOPIC``

``busy``, the control, asks nothing of the server: a loop that takes one processor whenever it is
given one. What the p99 loses beside it is what two full processors cost on this machine.
"""

import base64
import http.client
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from websockets.sync.client import connect

_POLL_S: Final = 0.05
_WINDOW: Final = 100
_PATHS: Final = ("/metrics", "/admin/v2/persistent/public/default", "/admin/v2/brokers/health")


def busy(_admin_url: str, _topic: str) -> None:
    while True:
        pass


def admin(admin_url: str, _topic: str) -> None:
    """Statistics of everything, the list of topics and a health check, one after the other."""
    place = urlsplit(admin_url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    while True:
        for path in _PATHS:
            connection.request("GET", path)
            connection.getresponse().read()


def websocket(admin_url: str, _topic: str) -> None:
    """Messages of 1 KiB, as many as the broker takes."""
    place = urlsplit(admin_url)
    name = "persistent/public/default/beside-websocket"
    frame = json.dumps({"payload": base64.b64encode(bytes(1024)).decode()})
    with connect(f"ws://{place.netloc}/ws/v2/producer/{name}") as socket:
        for _ in range(_WINDOW):
            socket.send(frame)
        while True:
            socket.recv()
            socket.send(frame)


def compaction(admin_url: str, topic: str) -> None:
    """Runs over all of a topic's log, one after the other."""
    base = f"{admin_url}/admin/v2/{topic.replace('://', '/')}"

    def call(method: str, path: str) -> bytes:
        request = urllib.request.Request(f"{base}/{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    while True:
        call("PUT", "compaction")
        while json.loads(call("GET", "compaction"))["status"] == "RUNNING":
            time.sleep(_POLL_S)
        call("DELETE", "subscription/__compaction")


LOADS: Final[Mapping[str, Callable[[str, str], None]]] = {
    "busy": busy,
    "admin": admin,
    "websocket": websocket,
    "compaction": compaction,
}


@contextmanager
def beside(name: str, admin_url: str, topic: str) -> Iterator[None]:
    """The load runs.

    Args:
        topic: what ``compaction`` compacts; the server at ``admin_url`` serves it.
    """
    command = (sys.executable, "-m", "benchmarks.loads_beside", name, admin_url, topic)
    process = subprocess.Popen(command)
    try:
        time.sleep(1)  # it has imported what it needs, and the first of its calls are over
        yield
        assert process.poll() is None, f"the load {name} has ended by itself"
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    LOADS[sys.argv[1]](*sys.argv[2:])
