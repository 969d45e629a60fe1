"""Ports for servers that are started later."""

import contextlib
import itertools
import os
import socket

_PORTS_PER_WORKER = 1_600
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
_PORTS = [10_000 + _WORKER * _PORTS_PER_WORKER + number for number in range(_PORTS_PER_WORKER)]
_ports = itertools.chain(_PORTS[os.getpid() % _PORTS_PER_WORKER :], itertools.cycle(_PORTS))


def free_port() -> int:
    """One that nobody takes until a process listens at it, seconds later.

    Not of those that the system or a local cluster gives to whoever wants any, and each worker
    has its own.
    """
    while True:
        port = next(_ports)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
