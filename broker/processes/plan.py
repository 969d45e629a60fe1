"""Which processes ``magnetar standalone --processes N`` has, and their ports. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.plan import PlannedProcess, ProcessKind

PROCESSES_MAX: Final = 256
STORAGE: Final = "storage"
FIRST_BROKER: Final = "broker-1"
_FREE: Final = 0
_STEP: Final = 100
"""Between the ports of one broker and those of the next: TLS has neighbours of the plain ones."""
_PORTS: Final[Mapping[str, Callable[[BrokerConfig], int]]] = {
    "brokerServicePort": lambda config: config.broker_service_port,
    "webServicePort": lambda config: config.web_service_port,
    "brokerServicePortTls": lambda config: config.broker_service_port_tls,
    "webServicePortTls": lambda config: config.web_service_port_tls,
}

Ports = Mapping[str, int]
"""Of one broker, by setting."""


def process_count(text: str, cores: int) -> int:
    """``text``: a number, or "auto" for one broker a core.

    Raises:
        LocalClusterError: neither.
    """
    if text == "auto":
        return cores
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= PROCESSES_MAX:
        raise LocalClusterError(f"--processes {text}: 1 to {PROCESSES_MAX}, or auto, is expected")
    return int(text)


def check_settings(config: BrokerConfig) -> None:
    """
    Raises:
        LocalClusterError: a setting that can't hold for several brokers on one machine.
    """
    for key, is_set, reason in (
        (
            "metadataStoreUrl",
            config.metadata_store_url,
            "they have a store and a bookie of their own",
        ),
        (
            "advertisedListeners",
            config.advertised_listeners,
            "each broker needs an address of its own: advertisedAddress is the host of all",
        ),
    ):
        if is_set:
            raise LocalClusterError(f"{key} doesn't go with several --processes: {reason}")


def assign_ports(
    config: BrokerConfig,
    count: int,
    is_free: Callable[[int], bool],
    candidates: Iterator[int],
) -> list[Ports]:
    """Of each broker: the first has those of the settings, the others stand ``_STEP`` apart.

    Args:
        candidates: ports to try where any will do, without end.
    Raises:
        LocalClusterError: a port is in use.
    """
    taken: set[int] = set()
    return [
        {
            key: _port(
                f"{key} of broker-{index + 1}", of(config), index, taken, is_free, candidates
            )
            for key, of in _PORTS.items()
        }
        for index in range(count)
    ]


def _port(
    role: str,
    base: int,
    index: int,
    taken: set[int],
    is_free: Callable[[int], bool],
    candidates: Iterator[int],
) -> int:
    if base < _FREE:  # not served
        return base
    port = base + index * _STEP if base != _FREE else next(candidates)
    while base == _FREE and (port in taken or not is_free(port)):
        port = next(candidates)
    if port in taken or not is_free(port):
        raise LocalClusterError(f"port {port} ({role}) is in use: choose other ports")
    taken.add(port)
    return port


def plan_processes(
    host: str, ports: Sequence[Ports], words: Sequence[str]
) -> tuple[PlannedProcess, ...]:
    """
    Args:
        host: that clients are told.
        words: options of ``magnetar standalone`` that all of them have.
    """

    def planned(
        kind: ProcessKind, name: str, port: int, web_port: int, more: Sequence[str]
    ) -> PlannedProcess:
        arguments = ("standalone", *words, "--process", name, *more)
        return PlannedProcess(name, kind, host, port, web_port, arguments)

    brokers = [
        planned(
            *(ProcessKind.BROKER, f"broker-{number}"),
            *(max(each["brokerServicePort"], 0), max(each["webServicePort"], 0)),
            [word for key, port in each.items() for word in ("--set", f"{key}={port}")],
        )
        for number, each in enumerate(ports, 1)
    ]
    return (planned(ProcessKind.STORAGE, STORAGE, 0, 0, ()), *brokers)
