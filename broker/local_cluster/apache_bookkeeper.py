"""Apache BookKeeper's bookies as processes of the cluster: commands and settings. Pure.

Auto-recovery runs inside of the bookies, as Pulsar's packages have it: one JVM less.
"""

from dataclasses import dataclass
from typing import Final

INSTANCE_ID_PATH: Final = "/ledgers/INSTANCEID"
"""Exists once the cluster was made."""
BROKERS_CHROOT: Final = "/magnetar"
"""Brokers keep their metadata there, beside ``/ledgers`` of BookKeeper."""
TEMPORARY: Final = "tmp"
"""Folder below the cluster's, emptied by each start: for what a killed JVM leaves."""

_OPENS: Final = (
    *("java.base/java.lang", "java.base/java.io", "java.base/java.util.zip"),
    *("java.base/sun.net", "java.base/jdk.internal.misc", "java.base/java.nio"),
)
JVM: Final = (
    *("-Xms64m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m"),
    *("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"),
    *(word for each in _OPENS for word in ("--add-opens", f"{each}=ALL-UNNAMED")),
    "-Dio.netty.tryReflectionSetAccessible=true",
)
_SHELL: Final = "org.apache.bookkeeper.bookie.BookieShell"
_SERVER: Final = "org.apache.bookkeeper.server.Main"


@dataclass(frozen=True, slots=True)
class ApacheBookKeeper:
    """How to run it here.

    Attributes:
        interface: bookies listen on it; "": on all.
    """

    java: str
    jars: str
    interface: str = ""

    def server(self, config: str, log_config: str, temporary: str) -> tuple[str, ...]:
        """The command of a bookie.

        Args:
            temporary: a folder for the native libraries that it unpacks.
        """
        return self._java(log_config, temporary, _SERVER, "--conf", config)

    def new_cluster(self, config: str, log_config: str, temporary: str) -> tuple[str, ...]:
        """The command that makes the nodes of a new cluster."""
        return self._java(log_config, temporary, _SHELL, "-conf", config, "initnewcluster")

    def _java(self, log_config: str, temporary: str, *words: str) -> tuple[str, ...]:
        ours = (f"-Dlog4j2.configurationFile={log_config}", f"-Djava.io.tmpdir={temporary}")
        return (self.java, *JVM, *ours, "-cp", f"{self.jars}/*", *words)

    def settings(
        self, name: str, host: str, port: int, ledgers_uri: str, data: str, session_ms: int
    ) -> dict[str, str]:
        """Of ``bookkeeper.conf``; the id is a name, as ports may change."""
        listens = {"listeningInterface": self.interface} if self.interface else {}
        return {
            "bookieId": name,
            "bookiePort": str(port),
            "advertisedAddress": host,
            **listens,
            "allowLoopback": "true",
            "metadataServiceUri": ledgers_uri,
            "zkTimeout": str(session_ms),
            "journalDirectories": f"{data}/journal",
            "ledgerDirectories": f"{data}/ledgers",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": "32",
            "dbStorage_readAheadCacheMaxSizeMb": "32",
            "dbStorage_rocksDB_blockCacheSize": "16777216",
            # What Pulsar's largest message needs.
            "nettyMaxFrameSizeBytes": "5253120",
            "httpServerEnabled": "false",
            "autoRecoveryDaemonEnabled": "true",
        }
