"""What pages show of brokers: load, bundles, connections. Pure, but for what it remembers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.broker.console.formats import moment, number
from magnetar.broker.console.views import row_id

Json = Mapping[str, Any]

_MIB: Final = 1024 * 1024
_RESOURCES: Final = (
    ("CPU", "cpu"),
    ("Memory", "memory"),
    ("Direct memory", "directMemory"),
    ("Network in", "bandwidthIn"),
    ("Network out", "bandwidthOut"),
)


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """The last load report of a broker, and since when there is no newer one."""

    name: str
    report: Json | None = None
    """LocalBrokerData; None: it has never given one."""
    silent_ms: int | None = None
    """Since 1970, when it first gave no answer; None: it answers."""
    why: str = ""
    is_leader: bool = False


class LoadReports:
    """Remembers what each broker last told, for those that don't answer now."""

    def __init__(self) -> None:
        self._looks: dict[str, BrokerLook] = {}

    def told(self, name: str, report: Json) -> None:
        self._looks[name] = BrokerLook(name, report)

    def silent(self, name: str, why: str, now_ms: int) -> None:
        known = self.of(name)
        since_ms = now_ms if known.silent_ms is None else known.silent_ms
        self._looks[name] = replace(known, silent_ms=since_ms, why=why)

    def of(self, name: str) -> BrokerLook:
        return self._looks.get(name) or BrokerLook(name)

    def keep(self, names: Collection[str]) -> None:
        """Forget those that are no brokers any more."""
        for name in self._looks.keys() - set(names):
            del self._looks[name]


@dataclass(frozen=True, slots=True)
class ResourceUse:
    title: str
    percent: float | None
    """Of what there is; None: the machine doesn't tell."""
    text: str


@dataclass(frozen=True, slots=True)
class BundleRow:
    id: str
    name: str
    is_active: bool
    topics: int | None
    """None: the load report doesn't tell of it."""
    rate_in: float | None
    rate_out: float | None
    bytes_in: float | None
    bytes_out: float | None
    producers: int | None
    consumers: int | None


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """Figures are None where the broker never gave a report."""

    id: str
    name: str
    is_leader: bool
    silent_ms: int | None
    why: str
    version: str
    resources: Sequence[ResourceUse]
    rate_in: float | None
    rate_out: float | None
    bytes_in: float | None
    bytes_out: float | None
    topics: int | None
    bundles: int | None
    producers: int | None
    consumers: int | None
    started_ms: int | None
    reported_ms: int | None

    @property
    def kind(self) -> str:
        """Of its mark."""
        return "o" if self.silent_ms is None else "e"

    @property
    def cpu(self) -> float | None:
        """In percent of what there is; None: unknown."""
        return next((each.percent for each in self.resources if each.title == "CPU"), None)


def broker_row(look: BrokerLook) -> BrokerRow:
    report = look.report or {}
    return BrokerRow(
        id=row_id(look.name),
        name=look.name,
        is_leader=look.is_leader,
        silent_ms=look.silent_ms,
        why=look.why,
        version=report.get("brokerVersionString") or "",
        resources=[
            _resource(title, name, report[name]) for title, name in _RESOURCES if name in report
        ],
        rate_in=report.get("msgRateIn"),
        rate_out=report.get("msgRateOut"),
        bytes_in=report.get("msgThroughputIn"),
        bytes_out=report.get("msgThroughputOut"),
        topics=report.get("numTopics"),
        bundles=report.get("numBundles"),
        producers=report.get("numProducers"),
        consumers=report.get("numConsumers"),
        started_ms=report.get("startTimestamp"),
        reported_ms=report.get("lastUpdate"),
    )


def _resource(title: str, name: str, use: Json) -> ResourceUse:
    """Of LocalBrokerData: CPU in percent of one core, memory in MiB, network in kbit/s."""
    usage, limit = use.get("usage", -1.0), use.get("limit", -1.0)
    if usage < 0:
        return ResourceUse(title, None, "–")
    if name == "cpu":
        text = f"{number(usage)} % of one core"
    elif name.startswith("bandwidth"):
        text = f"{number(usage)} kbit/s"
    else:
        text = f"{number(usage)} MiB" + (f" of {number(limit)}" if limit > 0 else "")
    return ResourceUse(title, 100 * usage / limit if limit > 0 else None, text)


def bundle_rows(owned: Mapping[str, Json], report: Json | None) -> list[BundleRow]:
    """
    Args:
        owned: of ``ownedNamespaces``.
        report: the broker's load report.
    """
    load: Mapping[str, Json] = (report or {}).get("lastStats") or {}
    return [_bundle(name, each, load.get(name, {})) for name, each in sorted(owned.items())]


def _bundle(name: str, owned: Json, load: Json) -> BundleRow:
    return BundleRow(
        id=row_id(name),
        name=name,
        is_active=bool(owned.get("is_active")),
        topics=load.get("topics"),
        rate_in=load.get("msgRateIn"),
        rate_out=load.get("msgRateOut"),
        bytes_in=load.get("msgThroughputIn"),
        bytes_out=load.get("msgThroughputOut"),
        producers=load.get("producerCount"),
        consumers=load.get("consumerCount"),
    )


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    id: str
    address: str
    role: str
    client: str
    since: str
    """ISO 8601."""
    producers: int
    consumers: int
    bytes_in: int | None
    bytes_out: int | None


def connection_rows(found: Iterable[Json]) -> list[ConnectionRow]:
    return [
        ConnectionRow(
            id=row_id(each["address"]),
            address=each["address"],
            role=each.get("originalRole") or each.get("role") or "",
            client=each.get("clientVersion") or "",
            since=each.get("connectedSince") or moment(each.get("since")),
            producers=each.get("producers", 0),
            consumers=each.get("consumers", 0),
            bytes_in=each.get("bytesIn"),
            bytes_out=each.get("bytesOut"),
        )
        for each in found
    ]
