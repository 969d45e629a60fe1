"""Apache Pulsar's broker for tests, over Apache's bookies: a process to be stopped and killed.

Its jars, as Maven copies them, are in the folder that ``MAGNETAR_PULSAR_JARS`` names; without it
these tests are skipped.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.child_process import READY_S_MAX, ROOT, ChildProcess
from tests.free_port import free_port
from tests.waiting import wait_until

JARS = Path(os.environ.get("MAGNETAR_PULSAR_JARS") or "no jars")
needs_pulsar = pytest.mark.skipif(
    not any(JARS.glob("*pulsar-broker-4.*")),
    reason="no jars of Apache Pulsar's broker: MAGNETAR_PULSAR_JARS",
)
_OPENS = (
    *("java.base/java.lang", "java.base/java.util.concurrent", "java.base/java.nio"),
    *("java.base/jdk.internal.misc", "java.base/java.util.zip", "java.base/java.io"),
    *("java.base/jdk.internal.platform", "java.base/sun.net"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
JAVA = (
    *("java", "-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=512m"),
    *(word for each in _OPENS for word in ("--add-opens", f"{each}=ALL-UNNAMED")),
    *("-Dio.netty.tryReflectionSetAccessible=true", "-Dlog4j2.level=WARN", "-cp", f"{JARS}/*"),
)


class PulsarBroker(ChildProcess):
    """One broker of the cluster ``standalone``, whose metadata are at ZooKeeper's root."""

    def __init__(
        self, folder: Path, zookeeper_port: int, settings: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder / "pulsar.log")
        self._port, self._web_port = free_port(), free_port()
        self.service_url = f"pulsar://127.0.0.1:{self._port}"
        self.admin_url = f"http://127.0.0.1:{self._web_port}"
        self._store = f"zk:127.0.0.1:{zookeeper_port}"
        found = {
            "clusterName": "standalone",
            "metadataStoreUrl": self._store,
            "configurationMetadataStoreUrl": self._store,
            "brokerServicePort": str(self._port),
            "webServicePort": str(self._web_port),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "bookkeeperUseV2WireProtocol": "true",
            "loadBalancerEnabled": "false",
            **{f"managedLedgerDefault{x}": "3" for x in ("EnsembleSize", "WriteQuorum")},
            "managedLedgerDefaultAckQuorum": "2",
            **(settings or {}),
        }
        self._file = folder / "broker.conf"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in found.items()))

    def set_up(self) -> None:
        """Of a cluster that has had no broker yet."""
        words = {
            "--cluster": "standalone",
            "--metadata-store": self._store,
            "--configuration-metadata-store": self._store,
            "--web-service-url": self.admin_url,
            "--broker-service-url": self.service_url,
        }
        options = [word for pair in words.items() for word in pair]
        subprocess.run(
            [*JAVA, "org.apache.pulsar.PulsarClusterMetadataSetup", *options],
            cwd=ROOT,
            capture_output=True,
            timeout=READY_S_MAX,
            check=True,
        )

    def start(self) -> None:
        """Returns once it is healthy."""
        # A killed JVM leaves the native libraries that it unpacked.
        java = (JAVA[0], f"-Djava.io.tmpdir={self._file.parent}", *JAVA[1:])
        self._process = self.popen(
            [*java, "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(self._file)]
        )
        try:
            wait_until(self._is_healthy, seconds_max=READY_S_MAX)
        except AssertionError:
            self.kill()
            raise

    def _is_healthy(self) -> bool:
        assert self.is_running, self.log[-4000:]
        try:
            answer = httpx.get(f"{self.admin_url}/admin/v2/brokers/health", timeout=10)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    def stop(self, seconds_max: float = 60.0) -> int:
        """In good order: topics are closed."""
        process = self.take()
        process.terminate()
        return process.wait(seconds_max)
