"""Apache BookKeeper's own bookies for tests, each a process to be killed, paused and wiped.

Their jars come from Maven by `make bookkeeper-jars`; without them these tests are skipped.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from magnetar.broker.local_cluster.apache_bookkeeper import JVM
from tests.child_process import READY_S_MAX, ROOT, ChildProcess
from tests.free_port import free_port

JARS = Path(
    os.environ.get("MAGNETAR_BOOKKEEPER_JARS")
    or Path.home() / ".cache/magnetar-tests/bookkeeper-4.17.3"
)
PROGRAMS = Path(__file__).parent / "apache"
needs_bookkeeper = pytest.mark.skipif(
    not (JARS / ".complete").exists(), reason="no jars of Apache BookKeeper: make bookkeeper-jars"
)
# Starts in half the time, and leaves the cores to the tests.
_JAVA = ("java", *JVM, "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN", "-cp", f"{JARS}/*")


_STARTED = re.compile(r"Started component bookie-server")


class ApacheBookie(ChildProcess):
    """One bookie; its data survive ``kill`` and ``start``."""

    def __init__(
        self,
        folder: Path,
        metadata_uri: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        flags: Sequence[str] = (),
    ) -> None:
        """``flags``: further ones of its JVM."""
        super().__init__(folder / "bookie.log")
        self.folder = folder
        self.port = free_port()
        self.metadata_uri = metadata_uri
        # A killed JVM leaves the native libraries that it unpacked.
        self.java = (_JAVA[0], f"-Djava.io.tmpdir={folder}", *flags, *_JAVA[1:])
        self.settings = {
            "bookiePort": str(self.port),
            "advertisedAddress": "127.0.0.1",
            "allowLoopback": "true",
            "metadataServiceUri": metadata_uri,
            "journalDirectories": str(folder / "journal"),
            "ledgerDirectories": str(folder / "ledgers"),
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": "32",
            "dbStorage_readAheadCacheMaxSizeMb": "32",
            "dbStorage_rocksDB_blockCacheSize": "16777216",
            "nettyMaxFrameSizeBytes": "5253120",
            "httpServerEnabled": "false",
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.98",
            # What a killed process wrote survives in the page cache; no test cuts the power.
            "journalSyncData": "false",
            **settings,
        }
        self._file = folder / "bookie.conf"
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text("".join(f"{k}={v}\n" for k, v in self.settings.items()))

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once it has registered: its port may be open before, and the session of one that
        was killed has left a node."""
        begin = len(self.log)
        self._process = self.popen(
            [*self.java, "org.apache.bookkeeper.server.Main", "--conf", str(self._file)]
        )
        self.wait_for_line(_STARTED, "Apache bookie", begin)

    def refuse_to_start(self) -> str:
        """It must end by itself; what it has logged then."""
        begin = len(self.log)
        process = self.popen(
            [*_JAVA, "org.apache.bookkeeper.server.Main", "--conf", str(self._file)]
        )
        try:
            assert process.wait(READY_S_MAX) != 0
        finally:
            process.kill()
            process.wait()
        return self.log[begin:]

    def stop(self, seconds_max: float = 60.0) -> int:
        """At once: what it has acknowledged is in its journal."""
        process = self.take()
        process.kill()
        return process.wait(seconds_max)

    def shell(self, *words: str) -> str:
        """Output of a command of BookKeeper's shell."""
        done = subprocess.run(
            [
                *self.java,
                "org.apache.bookkeeper.bookie.BookieShell",
                "-conf",
                str(self._file),
                *words,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=READY_S_MAX,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
        return output

    def ledgers(self, *words: str, v2: bool = False) -> list[str]:
        """Lines that Apache's own client says, see ``tests/apache/Ledgers.java``."""
        done = subprocess.run(
            self._ledgers(*words, v2=v2),
            capture_output=True,
            text=True,
            timeout=READY_S_MAX,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        says = ("ledger ", "last ", "read ", "code ")
        return [line for line in done.stdout.splitlines() if line.startswith(says)]

    def api(self) -> list[str]:
        """What Apache's client says of this cluster, see ``tests/apache/Api.java``."""
        command = [*_JAVA, str(PROGRAMS / "Api.java"), self.metadata_uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        said = [line for line in done.stdout.splitlines() if line.startswith("says ")]
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return said

    def ledgers_error(self, *words: str, v2: bool = False) -> str:
        """Name of the exception that ends ``ledgers``."""
        command = self._ledgers(*words, v2=v2)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=READY_S_MAX, check=False
        )
        found = re.search(r"^Exception in thread \S+ \S+\$(\w+)", done.stderr, re.MULTILINE)
        assert found is not None, (done.stdout + done.stderr)[-4000:]
        return found[1]

    def autorecovery(self, name: str) -> "ApacheAutoRecovery":
        """An auditor candidate and a worker of this cluster, as a process of its own."""
        return ApacheAutoRecovery(self, name)

    def start_ledgers(self, *words: str, v2: bool = False) -> subprocess.Popen[str]:
        """The same while it runs."""
        command = self._ledgers(*words, v2=v2)
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def _ledgers(self, *words: str, v2: bool) -> list[str]:
        program = str(PROGRAMS / "Ledgers.java")
        option = f"-Dv2={str(v2).lower()}"
        return [*_JAVA[:1], option, *_JAVA[1:], program, self.metadata_uri, *words]

    def wipe(self) -> None:
        """Its disk is lost. REQUIRES: it doesn't run."""
        for name in ("journal", "ledgers"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


class ApacheAutoRecovery(ChildProcess):
    """BookKeeper's ``autorecovery``; ``name`` is its bookie id, by which it is elected."""

    def __init__(
        self,
        bookie: ApacheBookie,
        name: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        java: Sequence[str] = (),
    ) -> None:
        """``java``: the command with its jars, if they aren't the bookie's."""
        super().__init__(bookie.folder / f"{name}.log")
        self._java = java or bookie.java
        self._file = bookie.folder / f"{name}.conf"
        own = {"bookieId": name, "auditorPeriodicBookieCheckInterval": "1"}
        settings = {**bookie.settings, **own, **settings}
        self._file.write_text("".join(f"{k}={v}\n" for k, v in settings.items()))

    def start(self) -> None:
        """Returns at once: what it does shows in the metadata."""
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        self._process = self.popen([*self._java, main, "--conf", str(self._file)])

    def stop(self, seconds_max: float = 60.0) -> int:
        process = self.take()
        process.kill()
        return process.wait(seconds_max)


def start_bookies(
    folder: Path, zookeeper_port: int, count: int = 3, settings: Sequence[tuple[str, str]] = ()
) -> list[ApacheBookie]:
    """A new cluster with its ledgers at ``/ledgers``."""
    uri = f"zk+hierarchical://127.0.0.1:{zookeeper_port}/ledgers"
    bookies = [ApacheBookie(folder / f"b{n}", uri, dict(settings)) for n in range(count)]
    bookies[0].shell("initnewcluster")
    for bookie in bookies:
        bookie.start()
    return bookies
