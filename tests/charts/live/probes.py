"""Probes, asked at their times: a thread each, for as long as a process runs."""

import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final

from tests.charts.live.network import enter
from tests.charts.live.sandbox import Process
from tests.charts.renderings import Object

_KINDS: Final = ("startup", "liveness", "readiness")


def ask(probe: Object, container: Object, process: Process, address: str) -> bool:
    """One attempt."""
    timeout_s = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return process.execute(probe["exec"]["command"], timeout_s) is not None
    action = probe.get("httpGet") or probe["tcpSocket"]
    port = _port(action["port"], container)
    try:
        if "tcpSocket" in probe:
            socket.create_connection((address, port), timeout_s).close()
            return True
        return _is_answered(action, address, port, timeout_s)
    except (OSError, http.client.HTTPException):
        return False


def _is_answered(action: Object, address: str, port: int, timeout_s: float) -> bool:
    connection: http.client.HTTPConnection
    if action.get("scheme") == "HTTPS":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as a kubelet does
        connection = http.client.HTTPSConnection(address, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        headers = {each["name"]: each["value"] for each in action.get("httpHeaders") or ()}
        connection.request("GET", action.get("path", "/"), headers=headers)
        return 200 <= connection.getresponse().status < 400
    finally:
        connection.close()


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    return next(
        int(each["containerPort"]) for each in container["ports"] if each.get("name") == port
    )


class Health:
    """What the probes of a process say; ``is_started``, ``is_ready`` and ``is_dead`` are it.

    They are asked in the pod's own network: a node that nobody reaches still reaches its pods.
    ``network`` is its name; "": that of this process.
    """

    def __init__(
        self,
        container: Object,
        process: Process,
        network: str,
        address: str,
        on_change: Callable[[], None],
    ) -> None:
        probes = {kind: container.get(f"{kind}Probe") for kind in _KINDS}
        self.is_started = probes["startup"] is None
        self.is_ready = self.is_started and probes["readiness"] is None
        self.has_failed = False
        self._has_readiness = probes["readiness"] is not None
        self._container, self._process = container, process
        self._network, self._address = network, address
        self._on_change = on_change
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(kind, probe), daemon=True)
            for kind, probe in probes.items()
            if probe is not None
        ]
        for each in self._threads:
            each.start()

    def close(self) -> None:
        self._end.set()
        for each in self._threads:
            each.join()

    def _repeat(self, kind: str, probe: Object) -> None:
        if self._network:
            enter(self._network)
        period_s = probe.get("periodSeconds", 10)
        good, bad = 0, 0
        wait_s = probe.get("initialDelaySeconds", 0)
        while not self._end.wait(wait_s):
            wait_s = period_s
            if kind != "startup" and not self.is_started:
                continue
            is_well = ask(probe, self._container, self._process, self._address)
            good, bad = (good + 1, 0) if is_well else (0, bad + 1)
            if good >= probe.get("successThreshold", 1):
                self._set(kind, True)
                if kind == "startup":
                    return
            elif bad >= probe.get("failureThreshold", 3):
                self._set(kind, False)

    def _set(self, kind: str, is_well: bool) -> None:
        before = (self.is_started, self.is_ready, self.has_failed)
        if kind == "readiness":
            self.is_ready = is_well
        elif not is_well:
            self.has_failed = True
        elif kind == "startup":
            self.is_started = True
            self.is_ready = self.is_ready or not self._has_readiness
        if before != (self.is_started, self.is_ready, self.has_failed):
            self._on_change()
