"""``magnetar standalone --processes N``: from the options to the end of the last process."""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.process_shutdown import PLAIN
from magnetar.broker.config import BrokerConfig
from magnetar.broker.local_cluster.children import Child, Children, PassedOn
from magnetar.broker.local_cluster.cluster_folder import candidate_ports, port_is_free
from magnetar.broker.local_cluster.errors import LocalClusterError
from magnetar.broker.local_cluster.member_process import RestartPolicy
from magnetar.broker.local_cluster.plan import PlannedProcess, ProcessKind
from magnetar.broker.logs import set_up_logging
from magnetar.broker.processes.places import folder_of
from magnetar.broker.processes.plan import assign_ports, check_settings, plan_processes
from magnetar.broker.processes.states import ProcessStates, forget_states, write_states

_log = logging.getLogger(__name__)

_POLICY: Final = RestartPolicy(first_s=0.05, longest_s=10.0)
_STORAGE_STOP_S: Final = 20.0
"""Beside ``brokerShutdownTimeoutMs``."""


def run(config: BrokerConfig, count: int, words: Sequence[str]) -> int:
    """Run until SIGINT or SIGTERM; the exit code: 0, 1 if it can't start, or 4 when some had to be
    killed.

    Args:
        count: of brokers.
        words: options of the command that all processes have.
    Raises:
        LocalClusterError: settings or ports that can't be used.
    """
    check_settings(config)
    bind = config.bind_address
    ports = assign_ports(config, count, lambda port: port_is_free(bind, port), candidate_ports())
    set_up_logging(config)
    plan = plan_processes(config.advertised_host, ports, words)
    stop_s = config.broker_shutdown_timeout_ms / 1000 + _STORAGE_STOP_S
    return asyncio.run(_serve(plan, folder_of(config), stop_s))


class _Report:
    """Each change of a process goes into the log, and into a file for the brokers."""

    def __init__(self, folder: Path, members: Sequence[Child]) -> None:
        self._folder = folder
        self._states = ProcessStates(
            (each.plan.name, each.plan.web_url.removeprefix("http://"), each.member)
            for each in members
        )
        self._storage = members[0]
        self.owns_folder = False

    def say(self, text: str) -> None:
        _log.info(text)
        facts = self._states.note(time.time_ns() // 1_000_000)
        # Before that another command may have the data directory.
        self.owns_folder |= self._storage.settled.is_set()
        if self.owns_folder:
            write_states(self._folder, facts)


async def _serve(plan: Sequence[PlannedProcess], folder: Path, stop_s: float) -> int:
    members = [Child(each, _POLICY, PassedOn()) for each in plan]
    report = _Report(folder, members)
    children = Children(members, report.say)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():  # the second one: at once
            children.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.create_task(_start(children, members))
    stopping = asyncio.create_task(stop.wait())
    code = 0
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await stopping
    except LocalClusterError as error:
        _log.error("magnetar: can't start: %s", error, extra=PLAIN)
        code = 1
    finally:
        stop.set()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        killed = await children.stop(stop_s)
        if report.owns_folder:
            forget_states(folder)
    if killed:
        _log.warning("not stopped in time and killed: %s", ", ".join(killed))
        code = code or 4
    return code


async def _start(children: Children, members: Sequence[Child]) -> None:
    """Raises LocalClusterError."""
    for kind in (ProcessKind.STORAGE, ProcessKind.BROKER):
        await children.start([each for each in members if each.plan.kind is kind])
    brokers = [each.plan for each in members if each.plan.kind is ProcessKind.BROKER]
    for plan in brokers[1:]:
        print(f"magnetar {plan.name}: pulsar://{plan.address} {plan.web_url}")
    first = brokers[0]
    print(f"magnetar standalone: pulsar://{first.address} {first.web_url} ready", flush=True)
