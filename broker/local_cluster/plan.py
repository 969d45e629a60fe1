"""Which processes a cluster on one machine has, with which ports and settings. Pure.

A bookie's id is its name here, not its address: ledgers name bookies for ever, ports may change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from magnetar.broker.local_cluster.apache_bookkeeper import (
    BROKERS_CHROOT,
    TEMPORARY,
    ApacheBookKeeper,
)
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.java import log4j_properties

FREE: Final = 0
"""As a port: any free one."""
SESSION_MS: Final = 6_000
"""Short, so that what a killed process held is free soon; a lost session harms nobody."""
PORT_MAX: Final = 65_535
NODES_MAX: Final = 64
"""Of one kind: more is a mistake on one machine."""


class ProcessKind(StrEnum):
    """In the order of the start; the stop goes the other way round."""

    ZOOKEEPER = "zookeeper"
    STORAGE = "storage"  # of `magnetar standalone --processes`
    BOOKIE = "bookie"
    AUTORECOVERY = "autorecovery"
    BROKER = "broker"


class BookKeeperKind(StrEnum):
    """Whose bookies a cluster has."""

    MAGNETAR = "magnetar"
    APACHE = "apache"


# A short tick lets sessions be short, too.
_ZOOKEEPER: Final = {"tickTime": "500", "minSessionTimeout": "1000"}
STAGES: Final = tuple(ProcessKind)


@dataclass(frozen=True, slots=True)
class PortBases:
    """Where consecutive ports begin; FREE: any free ones.

    Attributes:
        kept: ports of the last start by role, where no option asks for others.
    """

    broker: int = 6650
    web: int = 8080
    bookie: int = 3181
    zookeeper: int = 2181
    kept: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of ``magnetar cluster``.

    Attributes:
        host: address that all of them listen on, and tell each other and clients.
        metadata_url: of a ZooKeeper that is there already; "": start one.
        broker_settings, bookie_settings: ``KEY=VALUE``, which win over ours.
        apache: Apache's bookies instead of ours.
    """

    brokers: int
    bookies: int
    host: str = "127.0.0.1"
    metadata_url: str = ""
    broker_settings: Sequence[str] = ()
    bookie_settings: Sequence[str] = ()
    apache: ApacheBookKeeper | None = None

    @property
    def reachable_host(self) -> str:
        """Where one finds on this machine what listens on ``host``."""
        return "127.0.0.1" if self.host == "0.0.0.0" else self.host


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """
    Attributes:
        web_port: HTTP; 0: it has none.
        arguments: of ``magnetar``, or of ``program``.
        program: what runs instead of ``magnetar``.
        files: text by path; written before each start.
    """

    name: str
    kind: ProcessKind
    host: str
    port: int
    web_port: int
    arguments: tuple[str, ...]
    program: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port or self.web_port}"

    @property
    def web_url(self) -> str:
        return f"http://{self.host}:{self.web_port}" if self.web_port else ""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """
    Attributes:
        processes: in the order of their start.
        metadata_url: of brokers.
        ledgers_url: below it are ``/ledgers`` and what brokers have.
        ledgers_uri: of Apache's bookies, as their tools want it; "": they are ours.
        new_cluster: what makes ``/ledgers`` once, before the first bookie; (): bookies do.
    """

    processes: tuple[PlannedProcess, ...]
    metadata_url: str
    ledgers_url: str
    ledgers_uri: str = ""
    new_cluster: tuple[str, ...] = ()

    def stage(self, kind: ProcessKind) -> tuple[PlannedProcess, ...]:
        return tuple(process for process in self.processes if process.kind is kind)

    @property
    def service_url(self) -> str:
        """All brokers in one URL, as clients take it."""
        return "pulsar://" + ",".join(broker.address for broker in self.stage(ProcessKind.BROKER))

    @property
    def web_urls(self) -> tuple[str, ...]:
        return tuple(broker.web_url for broker in self.stage(ProcessKind.BROKER))


def check_cluster_options(cluster_options: ClusterOptions, bases: PortBases) -> None:
    """Before anything is touched.

    Raises:
        LocalClusterError: what was asked for makes no cluster.
    """
    for what, count in (
        ("--brokers", cluster_options.brokers),
        ("--bookies", cluster_options.bookies),
    ):
        if not 1 <= count <= NODES_MAX:
            raise LocalClusterError(f"{what} {count}: 1 to {NODES_MAX} are expected")
    if ":" in cluster_options.host or not cluster_options.host:
        raise LocalClusterError(
            f"--bind {cluster_options.host}: an IPv4 address or a name is expected"
        )
    for role, port in _roles(cluster_options, bases):
        if not 0 <= port <= PORT_MAX:
            raise LocalClusterError(f"port {port} ({role}): there is no such port")
    if cluster_options.metadata_url and not cluster_options.metadata_url.startswith("zk:"):
        raise LocalClusterError(
            f"--metadata {cluster_options.metadata_url}: zk:HOST:PORT/CHROOT is expected"
        )
    for text in (*cluster_options.broker_settings, *cluster_options.bookie_settings):
        if not text.partition("=")[1]:
            raise LocalClusterError(f"{text}: KEY=VALUE is expected")


def bookie_count(asked: int | None, known: int | None) -> int:
    """How many bookies to start.

    Args:
        known: how many have data here already.
    Raises:
        LocalClusterError: fewer than have data.
    """
    if asked is None:
        return known or 3
    if known is not None and asked < known:
        raise LocalClusterError(
            f"{known} bookies have data here, and their ledgers need them:"
            f" --bookies {known} or more, or another --data"
        )
    return asked


def bookkeeper_kind(asked: str | None, known: str | None) -> BookKeeperKind:
    """Whose bookies to start.

    Args:
        known: whose have data here already.
    Raises:
        LocalClusterError: others have data here.
    """
    kind = BookKeeperKind(asked or known or BookKeeperKind.MAGNETAR)
    if known is not None and kind != known:
        raise LocalClusterError(
            f"--bookkeeper {kind}: bookies of {known} have data here; another --data is needed"
        )
    return kind


def quorum_settings(bookies: int) -> dict[str, str]:
    """Settings of brokers: three copies of which two are waited for; fewer with fewer bookies."""
    copies = min(bookies, 3)
    settings = {
        "managedLedgerDefaultEnsembleSize": str(copies),
        "managedLedgerDefaultWriteQuorum": str(copies),
        "managedLedgerDefaultAckQuorum": str(min(copies, 2)),
    }
    if copies == bookies == 3:
        # Nobody could replace one that fails: go on with two copies until it is back.
        settings["bookkeeper_delayEnsembleChange"] = "true"
    return settings


def port_bases(asked: Mapping[str, int], known: Mapping[str, int]) -> PortBases:
    """Where ports begin: as asked, else as at the last start, else Pulsar's.

    Args:
        asked: by the names of ``PortBases``.
        known: of the last start, by role.
    """
    named: dict[str, Any] = {**asked}
    if asked.get("broker") == FREE:
        # Any will do: one of the last start that is in use now is no reason to refuse.
        return replace(PortBases(FREE, FREE, FREE, FREE), **named)
    kept = {
        role: port
        for role, port in known.items()
        if not _is_probe(role) and _base_name(role) not in asked
    }
    return replace(PortBases(kept=kept), **named)


def _base_name(role: str) -> str:
    return "web" if role.endswith(" web") else role.partition("-")[0]


def _is_probe(role: str) -> bool:
    return role.endswith(" web") and not role.startswith("broker-")


def assign_ports(
    cluster_options: ClusterOptions,
    bases: PortBases,
    known: Mapping[str, int],
    is_free: Callable[[int], bool],
    candidates: Iterator[int],
) -> dict[str, int]:
    """A port by role: "broker-1", "broker-1 web", ...

    Args:
        known: of the last start: taken again where any port will do.
        candidates: ports to try, without end.
    Raises:
        LocalClusterError: a port that was asked for is in use.
    """
    ports: dict[str, int] = {}
    taken: set[int] = set()
    # Those that can't move first, so that no free choice takes one of theirs.
    for role, port in sorted(_roles(cluster_options, bases), key=lambda pair: pair[1] == FREE):
        if port != FREE:
            if port in taken or not is_free(port):
                raise LocalClusterError(
                    f"port {port} ({role}) is in use: choose other ports"
                    " (--port, --web-port, --bookie-port, --zookeeper-port), or --port 0 for any"
                )
        else:
            port = known.get(role, FREE)
            while port == FREE or port in taken or not is_free(port):
                port = next(candidates)
        taken.add(port)
        ports[role] = port
    return ports


def _roles(cluster_options: ClusterOptions, bases: PortBases) -> Iterator[tuple[str, int]]:
    def behind(base: int, index: int) -> int:
        return base + index if base != FREE else FREE

    def kept_or(role: str, port: int) -> tuple[str, int]:
        return role, bases.kept.get(role, port)

    if not cluster_options.metadata_url:
        yield kept_or("zookeeper", bases.zookeeper)
    for index in range(cluster_options.brokers):
        yield kept_or(f"broker-{index + 1}", behind(bases.broker, index))
        yield kept_or(f"broker-{index + 1} web", behind(bases.web, index))
    for index in range(cluster_options.bookies):
        yield kept_or(f"bookie-{index + 1}", behind(bases.bookie, index))
    if cluster_options.apache is None:  # its jars of an HTTP server aren't among a bookie's
        for name in _names("bookie", cluster_options.bookies):
            yield f"{name} web", FREE
        yield "autorecovery web", FREE


def plan_cluster(
    cluster_options: ClusterOptions, ports: Mapping[str, int], data: str
) -> ClusterPlan:
    """
    Args:
        ports: as ``assign_ports`` made them.
        data: folder below which each process has its own.
    """
    apache = cluster_options.apache
    planner = (
        _Planner(cluster_options, ports, data)
        if apache is None
        else _ApachePlanner(cluster_options, ports, data, apache)
    )
    processes = [] if cluster_options.metadata_url else [planner.zookeeper()]
    processes += map(planner.bookie, _names("bookie", cluster_options.bookies))
    processes += planner.autorecovery()
    processes += map(planner.broker, _names("broker", cluster_options.brokers))
    return ClusterPlan(
        *(tuple(processes), planner.metadata_url, planner.ledgers_url),
        *(planner.ledgers_uri, planner.new_cluster),
    )


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(1, count + 1)]


class _Planner:
    """Makes one process after the other."""

    ledgers_uri: str = ""
    new_cluster: tuple[str, ...] = ()

    def __init__(
        self, cluster_options: ClusterOptions, ports: Mapping[str, int], data: str
    ) -> None:
        self._options, self._ports, self._data = cluster_options, ports, data
        self._host = cluster_options.reachable_host
        self.ledgers_url = cluster_options.metadata_url or f"zk:{self._host}:{ports['zookeeper']}"
        self.metadata_url = self.ledgers_url

    def zookeeper(self) -> PlannedProcess:
        name = "zookeeper"
        # Nobody else has to reach it.
        addresses = ("--bind", self._host, "--client-port", str(self._ports[name]))
        words = ("--data", f"{self._data}/{name}", *addresses)
        return self._process(ProcessKind.ZOOKEEPER, name, words, _ZOOKEEPER)

    def bookie(self, name: str) -> PlannedProcess:
        settings = {"advertisedAddress": self._host, **self._settings_of_bookkeeper(name)}
        words = ("--id", name, "--metadata", self.metadata_url, "--data", f"{self._data}/{name}")
        addresses = ("--bind", self._options.host, "--port", str(self._ports[name]))
        theirs = self._options.bookie_settings
        return self._process(ProcessKind.BOOKIE, name, (*words, *addresses), settings, theirs)

    def autorecovery(self) -> list[PlannedProcess]:
        name = "autorecovery"
        words = ("--id", name, "--metadata", self.metadata_url)
        settings = self._settings_of_bookkeeper(name)
        return [self._process(ProcessKind.AUTORECOVERY, name, words, settings)]

    def broker(self, name: str) -> PlannedProcess:
        settings = {
            "advertisedAddress": self._host,
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            **quorum_settings(self._options.bookies),
            **self._settings_of_ledgers(),
        }
        words = ("--metadata", self.metadata_url, "--bind", self._options.host)
        ports = ("--port", str(self._ports[name]), "--web-port", str(self._ports[f"{name} web"]))
        theirs = self._options.broker_settings
        return self._process(ProcessKind.BROKER, name, (*words, *ports), settings, theirs)

    def _settings_of_ledgers(self) -> dict[str, str]:
        """Of brokers: where ledgers are."""
        return {}

    def _settings_of_bookkeeper(self, name: str) -> dict[str, str]:
        return {
            "zkTimeout": str(SESSION_MS),
            "httpServerEnabled": "true",
            "httpServerPort": str(self._ports[f"{name} web"]),
            "httpServerHost": self._options.host,
        }

    def _process(
        self,
        kind: ProcessKind,
        name: str,
        words: Sequence[str],
        ours: Mapping[str, str],
        theirs: Sequence[str] = (),
    ) -> PlannedProcess:
        settings = [*(f"{key}={value}" for key, value in ours.items()), *theirs]
        sets = (word for text in settings for word in ("--set", text))
        ports = (self._ports.get(name, 0), self._ports.get(f"{name} web", 0))
        return PlannedProcess(name, kind, self._host, *ports, (kind.value, *words, *sets))


class _ApachePlanner(_Planner):
    """The same with Apache's bookies."""

    def __init__(
        self,
        cluster_options: ClusterOptions,
        ports: Mapping[str, int],
        data: str,
        apache: ApacheBookKeeper,
    ) -> None:
        super().__init__(cluster_options, ports, data)
        self.metadata_url = f"{self.ledgers_url}{BROKERS_CHROOT}"
        servers = self.ledgers_url.removeprefix("zk:").replace(",", ";")
        self.ledgers_uri = f"zk+hierarchical://{servers}/ledgers"
        self._apache = apache
        self._log_config = f"{data}/bookkeeper-log4j2.properties"
        self._temporary = f"{data}/{TEMPORARY}"
        self.new_cluster = apache.new_cluster(
            self._config_of("bookie-1"), self._log_config, self._temporary
        )

    def bookie(self, name: str) -> PlannedProcess:
        settings = self._apache.settings(
            *(name, self._host, self._ports[name], self.ledgers_uri),
            *(f"{self._data}/{name}", SESSION_MS),
        )
        settings |= dict(text.split("=", 1) for text in self._options.bookie_settings)
        config = self._config_of(name)
        java, *arguments = self._apache.server(config, self._log_config, self._temporary)
        files = {
            config: "".join(f"{key}={value}\n" for key, value in settings.items()),
            self._log_config: log4j_properties(as_json=False),
        }
        return PlannedProcess(
            *(name, ProcessKind.BOOKIE, self._host, self._ports[name], 0, tuple(arguments)),
            *((java,), files),
        )

    def autorecovery(self) -> list[PlannedProcess]:
        return []  # bookies do it

    def _settings_of_ledgers(self) -> dict[str, str]:
        return {"bookkeeperMetadataServiceUri": self.ledgers_uri}

    def _config_of(self, name: str) -> str:
        return f"{self._data}/{name}.conf"
