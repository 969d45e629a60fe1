"""A real ZooKeeper server for tests: start, kill, restart, pause, stop. It is part of pyspark."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

_READY_S_MAX = 60.0
_PORT_ATTEMPTS = 5
_JVM = (
    # Starts in half the time, and leaves the cores to the tests.
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m"),
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    # What a killed process wrote survives in the page cache; no test cuts the power.
    "-Dzookeeper.forceSync=no",
    "-Dlog4j2.level=WARN",
)


class ZooKeeperProcess:
    """Owns one server on a port of its own; data survive ``kill`` and ``start``."""

    def __init__(
        self,
        folder: Path,
        *,
        tick_ms: int = 100,
        properties: Mapping[str, str] | None = None,
        secure: bool = False,
    ) -> None:
        """
        Args:
            tick_ms: sessions end with a granularity of it, and live at least two.
            properties: further lines of zoo.cfg.
            secure: only over TLS; ``properties`` say with which files.
        """
        self.folder, self._secure = folder, secure
        self._tick_ms, self._properties = tick_ms, dict(properties or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> ZooKeeperProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    def url(self, chroot: str = "", host: str = "127.0.0.1") -> str:
        return f"zk:{host}:{self.port}{chroot}"

    @property
    def log(self) -> str:
        path = self.folder / "zookeeper.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start and wait until it answers; on the same port as before, if there was one."""
        assert self._process is None
        for _ in range(1 if self.port else _PORT_ATTEMPTS):
            port = self.port or _free_port()
            self._process = self._launch(port)
            if self._wait_until_ready(port):
                self.port = port
                return
            process, self._process = self._process, None
            process.kill()
            process.wait()
        raise AssertionError(f"ZooKeeper did not start:\n{self.log[-4000:]}")

    def kill(self) -> None:
        """``kill -9``."""
        assert self._process is not None
        process, self._process = self._process, None
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

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
        with (self.folder / "zookeeper.log").open("ab") as log:
            return subprocess.Popen(
                ["java", *_JVM, "-cp", f"{_jars()}/*", main, str(config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )

    def _wait_until_ready(self, port: int) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + _READY_S_MAX
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


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _jars() -> str:
    # Found, not imported: importing pyspark takes longer than starting the server.
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None, "pyspark is missing: pip install -e '.[test]'"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "jars")
