"""A network of pods on one machine: each has a namespace of its own, joined by a bridge.

All of it is made in the network namespace that this process lives in, and dies with that.
"""

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

BRIDGE: Final = "pods"
_CUT_BRIDGE: Final = "cut"
# Else a bridge has the lowest of its ports' addresses, which changes as pods come and go.
_HARDWARE_ADDRESS: Final = "02:00:00:00:00:01"
_NAMES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x4000_0000
BRIDGE_ADDRESS: Final = "10.244.0.1"
API_ADDRESS: Final = "10.96.0.1"  # first of --service-cluster-ip-range; in the server's certificate


def run(*words: str) -> str:
    """A command's output.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def enter(name: str) -> None:
    """From now on this thread is in a pod's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (_NAMES / name).open("rb") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), name)


class PodNetwork:
    """Addresses 10.244.1.1 and up; none is used twice, so that nobody meets a successor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        # Names of namespaces are files: these are to end with this process's mounts.
        _NAMES.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", str(_NAMES))
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", BRIDGE, "address", _HARDWARE_ADDRESS, "type", "bridge")
        run("ip", "address", "add", f"{BRIDGE_ADDRESS}/16", "dev", BRIDGE)
        run("ip", "address", "add", f"{API_ADDRESS}/32", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        run("ip", "link", "add", _CUT_BRIDGE, "type", "bridge")
        run("ip", "link", "set", _CUT_BRIDGE, "up")

    def add(self) -> tuple[str, str]:
        """Make a pod's namespace: its name and the pod's address."""
        with self._lock:
            self._number += 1
            number = self._number
        name = f"pod{number}"
        outside = _outside(name)
        address = f"10.244.{1 + number // 250}.{1 + number % 250}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        run("ip", "-n", name, "route", "add", "default", "via", BRIDGE_ADDRESS)
        return name, address

    def close(self) -> None:
        """So that another one can be made here. REQUIRES: all pods are removed."""
        for bridge in (BRIDGE, _CUT_BRIDGE):
            run("ip", "link", "delete", bridge)
        run("umount", "--lazy", str(_NAMES))

    def cut(self, names: Iterable[str]) -> None:
        """These pods reach each other alone: what is sent to anybody else is lost without a word,
        and so is what others send to them."""
        for name in names:
            run("ip", "link", "set", _outside(name), "master", _CUT_BRIDGE)

    def join(self, names: Iterable[str]) -> None:
        """They are back, with the addresses that they had."""
        for name in names:
            run("ip", "link", "set", _outside(name), "master", BRIDGE)

    def remove(self, name: str) -> None:
        """Its end of the pair goes at once, so the address answers nobody from now on."""
        run("ip", "link", "delete", _outside(name))
        run("ip", "netns", "delete", name)


def _outside(name: str) -> str:
    """The end of a pod's pair that is on a bridge."""
    return f"veth{name.removeprefix('pod')}"
