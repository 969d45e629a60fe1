"""A complete ZooKeeper server out of PySpark's jars, jars of BookKeeper, and the Java for them."""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from magnetar.broker.local_cluster.errors import LocalClusterError

JAVA_MIN: Final = 17
_ANOTHER: Final = "or name a ZooKeeper that is there already: --metadata zk:HOST:PORT/CHROOT"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_S_MAX: Final = 30.0
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # purges old snapshots, too
_IMAGE_JARS: Final = Path(sys.prefix) / "share" / "zookeeper"  # deploy/install.sh puts them there
_JARS_VARIABLE: Final = "MAGNETAR_BOOKKEEPER_JARS"
_JARS_CACHE: Final = ".cache/magnetar-tests"  # `make bookkeeper-jars` puts them there
_BOOKIE_JAR: Final = "*bookkeeper-server-[0-9]*.jar"
_SERVER_JVM: Final = (
    *("-XX:+UseSerialGC", "-Xshare:auto", "-XX:+ExitOnOutOfMemoryError"),
    # A follower tries five times to reach a leader that was just elected. At 100 ms apart a leader
    # short of CPU isn't ready for it in time, and then waits for followers for all of initLimit.
    "-Dzookeeper.leaderConnectDelayDuringRetryMs=500",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=4096",
)

# Java keeps the address of a name for 30 s, and that there is none for 10: a server would look for
# one that has a new address, as pods have, where it was, and a quorum that is there isn't found.
SECURITY_PROPERTIES: Final = "networkaddress.cache.ttl=1\nnetworkaddress.cache.negative.ttl=0\n"


def java_major(text: str) -> int | None:
    """Out of what ``java -version`` prints: 17 of "17.0.15", 8 of "1.8.0_362"."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def find_java(
    environment: Mapping[str, str],
    needed_by: str = "the cluster's own ZooKeeper",
    instead: str = f", {_ANOTHER}",
) -> str:
    """JAVA_HOME's, else the PATH's.

    Args:
        instead: what else helps than to install one.
    Raises:
        LocalClusterError: there is none, or it is too old.
    """
    home = environment.get("JAVA_HOME", "")
    in_home = str(Path(home) / "bin" / "java") if home else ""
    java = shutil.which(in_home) if in_home else None
    java = java or shutil.which("java", path=environment.get("PATH", ""))
    need = f"{needed_by} needs Java {JAVA_MIN} or newer"
    if java is None:
        raise LocalClusterError(
            f"{need}, and there is no java in JAVA_HOME or PATH: install one{instead}"
        )
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalClusterError(f"{need}, and {java} can't be run: {error}") from error
    major = java_major(said.stderr + said.stdout)
    if major is None or major < JAVA_MIN:
        version = "of an unknown version" if major is None else f"Java {major}"
        raise LocalClusterError(f"{need}, and {java} is {version}: install one{instead}")
    return java


def find_jars() -> Path:
    """A folder of jars with ZooKeeper among them: PySpark's, or the one of an image without it.

    Raises:
        LocalClusterError: PySpark isn't installed, or has no ZooKeeper in it.
    """
    # Found, not imported: importing pyspark takes longer than starting the server.
    spec = importlib.util.find_spec("pyspark")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for jars in (*(Path(folder) / "jars" for folder in folders), _IMAGE_JARS):
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return jars
    raise LocalClusterError(
        "the cluster's own ZooKeeper is part of PySpark, which isn't installed:"
        f" pip install '.[cluster]' in a checkout of Magnetar, {_ANOTHER}"
    )


def find_bookkeeper_jars(environment: Mapping[str, str], home: Path) -> Path:
    """A folder with the jars of a bookie: the variable's, else the newest in the cache.

    Raises:
        LocalClusterError: there is none; how to get them.
    """
    named = environment.get(_JARS_VARIABLE, "")
    folders = (
        [Path(named)] if named else sorted((home / _JARS_CACHE).glob("bookkeeper-*"), reverse=True)
    )
    for folder in folders:
        if any(folder.glob(_BOOKIE_JAR)):
            return folder.absolute()
    raise LocalClusterError(
        f"there are no jars of Apache BookKeeper{f' in {named}' if named else ''}: `make"
        f" bookkeeper-jars` in a checkout of Magnetar, or {_JARS_VARIABLE}=the `lib` folder of"
        " BookKeeper's or Pulsar's package"
    )


def server_command(
    java: str, jars: Path, config: Path, flags: Sequence[str], log_config: Path, security: Path
) -> list[str]:
    """It logs at INFO, as ``log_config`` says. ``security``: a file of ``SECURITY_PROPERTIES``."""
    files = (f"-Dlog4j2.configurationFile={log_config}", f"-Djava.security.properties={security}")
    return [java, *_SERVER_JVM, *flags, *files, "-cp", f"{jars}/*", _MAIN, str(config)]


def log4j_properties(*, as_json: bool) -> str:
    """Log4j's settings: lines on standard error, for people or (one object a line) machines."""
    layout = (
        ("layout.type = JsonTemplateLayout", "layout.eventTemplateUri = classpath:EcsLayout.json")
        if as_json
        else ("layout.type = PatternLayout", "layout.pattern = %d{ISO8601} %p %c{1} %m%n")
    )
    return "".join(
        f"{line}\n"
        for line in (
            *("status = error", "appender.err.type = Console", "appender.err.name = err"),
            "appender.err.target = SYSTEM_ERR",
            *(f"appender.err.{each}" for each in layout),
            *("rootLogger.level = info", "rootLogger.appenderRef.err.ref = err"),
        )
    )
