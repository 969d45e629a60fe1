"""A network of pods on one machine: each has a namespace of its own, joined by a bridge.

All of it is made in the network namespace that this process lives in, and dies with that.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Final

__all__ = ["API_ADDRESS", "BRIDGE_ADDRESS", "PodNetwork", "run"]

BRIDGE: Final = "pods"
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


class PodNetwork:
    """Addresses 10.244.1.1 and up; none is used twice, so that nobody meets a successor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        # Names of namespaces are files: these are to end with this process's mounts.
        names = Path("/run/netns")
        names.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "tmpfs", str(names))
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{BRIDGE_ADDRESS}/16", "dev", BRIDGE)
        run("ip", "address", "add", f"{API_ADDRESS}/32", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")

    def add(self) -> tuple[str, str]:
        """Make a pod's namespace: its name and the pod's address."""
        with self._lock:
            self._number += 1
            number = self._number
        name, outside = f"pod{number}", f"veth{number}"
        address = f"10.244.{1 + number // 250}.{1 + number % 250}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        run("ip", "-n", name, "route", "add", "default", "via", BRIDGE_ADDRESS)
        return name, address

    def remove(self, name: str) -> None:
        """Its end of the pair goes at once, so the address answers nobody from now on."""
        run("ip", "link", "delete", f"veth{name.removeprefix('pod')}")
        run("ip", "netns", "delete", name)
