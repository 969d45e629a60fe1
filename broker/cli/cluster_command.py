"""``magnetar cluster``: its options, then the processes."""

import argparse
from pathlib import Path

from magnetar.broker.cli.errors import CliError


def run_cluster(options: argparse.Namespace) -> int:
    from magnetar.broker.local_cluster.cluster_folder import ClusterFolder
    from magnetar.broker.local_cluster.errors import LocalClusterError
    from magnetar.broker.local_cluster.member_process import RestartPolicy
    from magnetar.broker.local_cluster.plan import (
        BookKeeperKind,
        ClusterOptions,
        bookie_count,
        bookkeeper_kind,
        check_cluster_options,
        port_bases,
    )
    from magnetar.broker.local_cluster.run import find_apache, run

    given = {
        "broker": options.port,
        "web": options.web_port,
        "bookie": options.bookie_port,
        "zookeeper": options.zookeeper_port,
    }
    asked = {name: port for name, port in given.items() if port is not None}
    try:
        folder = ClusterFolder(Path(options.data or "data/cluster"))
        try:
            saved, host = folder.saved_ports(), options.bind or "127.0.0.1"
            kind = bookkeeper_kind(options.bookkeeper, saved.bookkeeper)
            cluster_options = ClusterOptions(
                options.brokers,
                bookie_count(options.bookies, saved.bookies),
                host,
                options.metadata or "",
                options.broker_set,
                options.bookie_set,
                find_apache(host) if kind is BookKeeperKind.APACHE else None,
            )
            bases = port_bases(asked, saved.ports)
            check_cluster_options(cluster_options, bases)
            return run(
                cluster_options, bases, folder, RestartPolicy(enabled=not options.no_restart)
            )
        finally:
            folder.close()
    except LocalClusterError as error:
        raise CliError(str(error)) from error
