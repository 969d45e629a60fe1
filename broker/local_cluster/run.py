"""``magnetar cluster``: from the options to the end of the last process."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from magnetar.broker.local_cluster.apache_bookkeeper import ApacheBookKeeper
from magnetar.broker.local_cluster.cluster_folder import (
    ClusterFolder,
    candidate_ports,
    interface_of,
    port_is_free,
)
from magnetar.broker.local_cluster.java import find_bookkeeper_jars, find_jars, find_java
from magnetar.broker.local_cluster.member_process import RestartPolicy
from magnetar.broker.local_cluster.plan import (
    BookKeeperKind,
    ClusterOptions,
    ClusterPlan,
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
    if not cluster_options.metadata_url:  # else nobody needs them
        find_java(os.environ)
        find_jars()
    ports = assign_ports(
        *(cluster_options, bases, folder.saved_ports().ports),
        lambda port: port_is_free(cluster_options.host, port),
        candidate_ports(),
    )
    plan = plan_cluster(cluster_options, ports, str(folder.path))
    kind = BookKeeperKind.MAGNETAR if cluster_options.apache is None else BookKeeperKind.APACHE
    folder.remember(cluster_options.bookies, ports, kind)
    _log_to(folder.log_path("cluster"))
    return asyncio.run(_serve(plan, folder, policy))


def find_apache(host: str) -> ApacheBookKeeper:
    """What runs Apache's bookies on this machine.

    Args:
        host: address that they listen on.
    Raises:
        LocalClusterError: there is no Java for them, or there are no jars.
    """
    java = find_java(os.environ, "Apache BookKeeper", "")
    jars = find_bookkeeper_jars(os.environ, Path.home())
    return ApacheBookKeeper(java, str(jars), interface_of(host))


async def _serve(plan: ClusterPlan, folder: ClusterFolder, policy: RestartPolicy) -> int:
    screen = open_screen()
    supervisor = Supervisor(plan, folder, screen.say, policy)
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
    addresses = [
        f"metadata: {plan.metadata_url}",
        *([f"bookkeeper: {plan.ledgers_uri}"] if plan.ledgers_uri else ()),
        f"magnetar cluster: {plan.service_url} {','.join(plan.web_urls)} ready",
    ]
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
