"""``magnetar cluster``: from the options to the end of the last process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar.broker.local_cluster.folder import ClusterFolder, candidate_ports, port_is_free
from magnetar.broker.local_cluster.java import find_jars, find_java, zoo_cfg, zookeeper_command
from magnetar.broker.local_cluster.member import RestartPolicy
from magnetar.broker.local_cluster.plan import (
    ClusterOptions,
    ClusterPlan,
    PlannedProcess,
    PortBases,
    assign_ports,
    plan_cluster,
)
from magnetar.broker.local_cluster.screen import Screen, open_screen
from magnetar.broker.local_cluster.supervisor import Supervisor

_STOP_S_MAX: Final = 45.0
_REDRAW_S: Final = 1.0


def run(
    cluster_options: ClusterOptions, bases: PortBases, folder: ClusterFolder, policy: RestartPolicy
) -> int:
    """Run until SIGINT or SIGTERM; the exit code: 0, or 4 when some had to be killed.

    Raises:
        LocalClusterError: it can't start; nothing runs then.
    """
    command = _Commands(folder, find_zookeeper=not cluster_options.metadata_url)
    ports = assign_ports(
        *(cluster_options, bases, folder.saved_ports().ports),
        lambda port: port_is_free(cluster_options.host, port),
        candidate_ports(),
    )
    plan = plan_cluster(cluster_options, ports, str(folder.path))
    folder.remember(cluster_options.bookies, ports)
    _log_to(folder.log_path("cluster"))
    return asyncio.run(_serve(plan, folder, command, policy))


class _Commands:
    """What runs a planned process."""

    def __init__(self, folder: ClusterFolder, *, find_zookeeper: bool) -> None:
        """Raises LocalClusterError: Java or ZooKeeper is missing."""
        self._folder = folder
        self._java, self._jars = "", Path()
        if find_zookeeper:
            self._java, self._jars = find_java(os.environ), find_jars()

    def __call__(self, process: PlannedProcess) -> list[str]:
        if process.arguments:
            return [sys.executable, "-m", "magnetar.broker.cli.main", *process.arguments]
        data = self._folder.path / process.name
        data.mkdir(exist_ok=True)
        config = data / "zoo.cfg"
        config.write_text(zoo_cfg(data, process.host, process.port))
        return zookeeper_command(self._java, self._jars, config)


async def _serve(
    plan: ClusterPlan,
    folder: ClusterFolder,
    command: Callable[[PlannedProcess], list[str]],
    policy: RestartPolicy,
) -> int:
    screen = open_screen()
    supervisor = Supervisor(plan, folder, command, screen.say, policy)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():  # the second one: at once
            screen.say("killing what still runs")
            supervisor.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    drawing = asyncio.create_task(_draw_for_ever(screen, supervisor))
    starting = asyncio.create_task(_start(plan, supervisor, screen))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            await stopping
        starting.cancel()
        screen.say("stopping: brokers first, ZooKeeper last; once more kills them")
    finally:
        stop.set()
        await asyncio.gather(starting, return_exceptions=True)
        killed = await supervisor.stop(_STOP_S_MAX)
        drawing.cancel()
        stopping.cancel()
        await asyncio.gather(drawing, stopping, return_exceptions=True)
        screen.show(supervisor.rows())
        screen.close()
    if killed:
        text = f"magnetar: not stopped within {_STOP_S_MAX:.0f} s and killed: {', '.join(killed)}"
        print(text, file=sys.stderr)
        return 4
    return 0


async def _start(plan: ClusterPlan, supervisor: Supervisor, screen: Screen) -> None:
    await supervisor.start()
    addresses = (
        f"metadata: {plan.metadata_url}",
        f"magnetar cluster: {plan.service_url} {','.join(plan.web_urls)} ready",
    )
    screen.started(supervisor.rows(), addresses)


async def _draw_for_ever(screen: Screen, supervisor: Supervisor) -> None:
    while True:
        screen.show(supervisor.rows())
        await asyncio.sleep(_REDRAW_S)


def _log_to(path: Path) -> None:
    """This process's own log: what its screen has no place for."""
    logging.basicConfig(
        filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
