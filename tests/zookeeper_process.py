"""A real ZooKeeper server for tests: start, kill, restart, pause, stop. It is part of pyspark."""

import importlib.util
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.child_process import READY_S_MAX, ChildProcess
from tests.free_port import free_port

_PORT_ATTEMPTS = 5
_JVM = (
    # Starts in half the time, and leaves the cores to the tests.
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    # What a killed process wrote survives in the page cache; no test cuts the power.
    "-Dzookeeper.forceSync=no",
    "-Dlog4j2.level=WARN",
)


class ZooKeeperProcess(ChildProcess):
    """Owns one server on a port of its own; data survive ``kill`` and ``start``."""

    def __init__(
        self,
        folder: Path,
        *,
        tick_ms: int = 100,
        properties: Mapping[str, str] | None = None,
        secure: bool = False,
        heap: str = "256m",
        flags: Sequence[str] = (),
    ) -> None:
        """
        Args:
            tick_ms: sessions end with a granularity of it, and live at least two.
            properties: further lines of zoo.cfg.
            secure: only over TLS; ``properties`` say with which files.
            heap: of its JVM at most; 100,000 nodes need the usual one.
            flags: further ones of its JVM.
        """
        super().__init__(folder / "zookeeper.log")
        self.folder, self._secure = folder, secure
        self._tick_ms, self._properties = tick_ms, dict(properties or {})
        self._heap, self._flags = heap, flags
        self.port = 0

    def stop(self, seconds_max: float = 60.0) -> int:
        """At once: it takes a second to say goodbye, and nothing is lost without."""
        process = self.take()
        process.kill()
        return process.wait(seconds_max)

    def url(self, chroot: str = "", host: str = "127.0.0.1") -> str:
        return f"zk:{host}:{self.port}{chroot}"

    def start(self) -> None:
        """Start and wait until it answers; on the same port as before, if there was one."""
        assert self._process is None
        for _ in range(1 if self.port else _PORT_ATTEMPTS):
            port = self.port or free_port()
            self._process = self._launch(port)
            if self._wait_until_ready(port):
                self.port = port
                return
            self.kill()
        raise AssertionError(f"ZooKeeper did not start:\n{self.log[-4000:]}")

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": str(self.folder / "data"),
            "tickTime": str(self._tick_ms),
            "minSessionTimeout": str(2 * self._tick_ms),
            "maxSessionTimeout": "60000",
            "secureClientPort" if self._secure else "clientPort": str(port),
            "secureClientPortAddress" if self._secure else "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": "0",
            **self._properties,
        }
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        flags = (*_JVM, f"-Xmx{self._heap}", *self._flags)
        command = ["java", *flags, "-cp", f"{_jars()}/*", main, str(config)]
        return self.popen(command, folder=self.folder)

    def _wait_until_ready(self, port: int) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + READY_S_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
                    if self._secure:
                        return True
                    connection.sendall(b"srvr")
                    if connection.recv(64).startswith(b"Zookeeper version"):
                        return True
            except OSError:
                pass
            time.sleep(0.02)
        return False


def _jars() -> str:
    # Found, not imported: importing pyspark takes longer than starting the server.
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None, "pyspark is missing: pip install -e '.[test]'"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars")
