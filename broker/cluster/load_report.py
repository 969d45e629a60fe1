"""What this broker says of its load: Pulsar's LocalBrokerData.

CPU and network are differences between two looks, so they are those since the last report.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import psutil

from magnetar.broker.advertised_listeners import parse_listeners
from magnetar.broker.cgroup import cores_max, memory_bytes_max
from magnetar.metadata.loop_turns import in_turns, next_turn
from magnetar.metadata.sorted_names import sort_in_turns

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

_MIB: Final = 1024 * 1024
_UNKNOWN: Final = -1.0
_SAMPLE_S_MIN: Final = 1.0
_LIMITS_S: Final = 60.0
"""Limits are read so rarely: they hardly change, and are ten small files of a container."""
_FIGURES: Final = ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
_TOTALS: Final = (*_FIGURES, "consumerCount", "producerCount")
"""Of all bundles."""
_VIRTUAL: Final = ("lo", "docker", "veth", "br-", "virbr", "tun", "tap")


@dataclass(frozen=True, slots=True)
class _Limits:
    """Of this machine, or of the control group that bounds this process."""

    cores: float
    is_shared: bool
    """Whether all of the machine's cores may be used, so others' use counts."""
    memory_mib: float
    net_kbits: float

    @classmethod
    def read(cls) -> Self:
        cores, cores_own = os.cpu_count() or 1, cores_max()
        is_shared = cores_own is None or cores_own >= cores
        memory_bytes = min(psutil.virtual_memory().total, memory_bytes_max() or sys.maxsize)
        return cls(
            cores if is_shared or cores_own is None else cores_own,
            is_shared,
            memory_bytes / _MIB,
            _net_kbits_max(),
        )


class HostUsage:
    """Use of this machine's CPU, memory and network by everything that runs on it.

    Where a control group bounds this process, as in a container, use and limit are its own. Use is
    that of a second at least, none in the first one, and who asks again within a second is told
    the same: the use of a few milliseconds is all or nothing, and a leader would take a broker
    that says so for overloaded.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.started_ms = int(self._process.create_time() * 1000)
        self._sampled_s = self._limits_s = time.monotonic()
        self._limits = _Limits.read()
        self._net = _net_bytes()
        psutil.cpu_percent(None), self._process.cpu_percent(None)  # starts the measurements
        self._latest = self._metrics(0.0, (0.0, 0.0))  # until there is something to tell

    def sample(self) -> dict[str, dict[str, float]]:
        """``{usage, limit}`` by resource: CPU in percent of one core, memory in MiB, network in
        kbit/s; -1 where this machine doesn't tell.
        """
        now_s = time.monotonic()
        elapsed_s = now_s - self._sampled_s
        if elapsed_s < _SAMPLE_S_MIN:
            return self._latest
        if now_s - self._limits_s >= _LIMITS_S:
            self._limits, self._limits_s = _Limits.read(), now_s
        net = _net_bytes()
        received, sent = (
            (new - old) * 8 / 1000 / elapsed_s for new, old in zip(net, self._net, strict=True)
        )
        self._sampled_s, self._net = now_s, net
        of_all, own = psutil.cpu_percent(None), self._process.cpu_percent(None)
        # In a container the rest of the machine is none of our business.
        cpu = of_all * self._limits.cores if self._limits.is_shared else own
        self._latest = self._metrics(cpu, (received, sent))
        return self._latest

    def _metrics(self, cpu: float, kbits: tuple[float, float]) -> dict[str, dict[str, float]]:
        limits = self._limits
        return {
            "cpu": _usage(cpu, 100.0 * limits.cores),
            "memory": _usage(self._process.memory_info().rss / _MIB, limits.memory_mib),
            "bandwidthIn": _usage(kbits[0], limits.net_kbits),
            "bandwidthOut": _usage(kbits[1], limits.net_kbits),
        }


def _usage(usage: float, limit: float) -> dict[str, float]:
    return {"usage": usage, "limit": limit}


def _is_real(name: str) -> bool:
    return not name.startswith(_VIRTUAL)


def _net_bytes() -> tuple[int, int]:
    """Bytes received and sent by the machine's own interfaces so far."""
    counters = [
        each for name, each in psutil.net_io_counters(pernic=True).items() if _is_real(name)
    ]
    return sum(each.bytes_recv for each in counters), sum(each.bytes_sent for each in counters)


def _net_kbits_max() -> float:
    """Speed of all interfaces that are up; -1 when one doesn't tell (virtual machines)."""
    speeds = [
        each.speed for name, each in psutil.net_if_stats().items() if each.isup and _is_real(name)
    ]
    return sum(speeds) * 1000.0 if speeds and all(speeds) else _UNKNOWN


async def load_report(service: BrokerService, usage: HostUsage, version: str) -> dict[str, Any]:
    """LocalBrokerData of now; traffic of very many topics is up to a minute old."""
    bundles = await service.loads.get()
    await next_turn()  # all who share that walk are told in the same turn
    host = usage.sample()
    cache = service.ledgers.cache
    totals = dict[str, Any].fromkeys(_TOTALS, 0)
    async for metrics in in_turns(bundles.values()):
        for name in _TOTALS:
            totals[name] += metrics[name]
    resources = {
        "cpu": host["cpu"],
        "memory": host["memory"],
        # What Pulsar keeps outside of its heap: messages on their way to consumers.
        "directMemory": _usage(
            cache.size / _MIB, float(service.config.managed_ledger_cache_size_mb)
        ),
        "bandwidthIn": host["bandwidthIn"],
        "bandwidthOut": host["bandwidthOut"],
    }
    return {
        **_urls(service),
        "persistentTopicsEnabled": service.config.enable_persistent_topics,
        "nonPersistentTopicsEnabled": service.config.enable_non_persistent_topics,
        **resources,
        **{name: float(totals[name]) for name in _FIGURES},
        "lastUpdate": service.wall_clock(),
        "lastStats": bundles,
        "numTopics": len(service.topics),
        "numBundles": len(service.bundles.owned_bundles),
        "numConsumers": totals["consumerCount"],
        "numProducers": totals["producerCount"],
        "bundles": await sort_in_turns([*service.bundles.owned_bundles]),
        "lastBundleGains": [],
        "lastBundleLosses": [],
        "brokerVersionString": version,
        "protocols": {},
        "advertisedListeners": parse_listeners(service.config.advertised_listeners),
        "startTimestamp": usage.started_ms,
        "maxResourceUsage": max(
            (each["usage"] / each["limit"] for each in resources.values() if each["limit"] > 0),
            default=0.0,
        ),
        "loadReportType": "LocalBrokerData",
    }


def _urls(service: BrokerService) -> dict[str, str]:
    urls = {
        "webServiceUrl": service.web_url,
        "webServiceUrlTls": service.web_url_tls,
        "pulsarServiceUrl": service.service_url,
        "pulsarServiceUrlTls": service.service_url_tls,
    }
    return {name: url for name, url in urls.items() if url}
