"""``magnetar standalone`` and ``magnetar broker``: their settings, then the process."""

import argparse
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.node_options import common_words, given_settings
from magnetar.broker.config import BrokerConfig, ConfigError

# As Pulsar's broker.conf: its standalone.conf, whose values are our own defaults, has one copy.
CLUSTER_DEFAULTS: Final = MappingProxyType(
    {
        "managedLedgerDefaultEnsembleSize": "2",
        "managedLedgerDefaultWriteQuorum": "2",
        "managedLedgerDefaultAckQuorum": "2",
    }
)


def run_standalone(options: argparse.Namespace) -> int:
    config = load_config(options)
    if options.process:
        return _run_process_of_several(config, options.process)
    if options.processes == "1" or (count := _process_count(options.processes)) == 1:
        from magnetar.broker.server import standalone

        return standalone.run(config)
    from magnetar.broker.local_cluster.errors import LocalClusterError
    from magnetar.broker.processes import run

    try:
        return run.run(config, count, common_words(options))
    except LocalClusterError as error:
        raise CliError(str(error)) from error


def _process_count(text: str) -> int:
    """Raises CliError."""
    from magnetar.broker.local_cluster.errors import LocalClusterError
    from magnetar.broker.processes.plan import process_count

    try:
        return process_count(text, len(os.sched_getaffinity(0)))
    except LocalClusterError as error:
        raise CliError(str(error)) from error


def _run_process_of_several(config: BrokerConfig, name: str) -> int:
    from magnetar.broker.logs import name_process
    from magnetar.broker.processes.plan import STORAGE

    name_process(name)
    if name == STORAGE:  # each loads its own part only
        from magnetar.broker.processes import storage_process

        return storage_process.run(config)
    from magnetar.broker.processes import local_broker

    return local_broker.run(config, name)


def run_broker(options: argparse.Namespace) -> int:
    config = load_config(options, CLUSTER_DEFAULTS)
    from magnetar.broker.logs import set_up_logging
    from magnetar.broker.server import cluster_broker

    if config.node_name and not config.zone:
        from magnetar.bookkeeper.node_zone import ZoneUnknownError, zone_of

        set_up_logging(config)
        try:
            zone = zone_of(config.zone, config.node_name, config.zone_label, os.environ)
        except ZoneUnknownError as error:
            raise CliError(str(error)) from error
        config = dataclasses.replace(config, zone=zone)
    return cluster_broker.run(config)


def load_config(
    options: argparse.Namespace, defaults: Mapping[str, str] = MappingProxyType({})
) -> BrokerConfig:
    """Raises CliError when a setting can't be used."""
    overrides = given_settings(
        options,
        data="dataDir",
        metadata="metadataStoreUrl",
        port="brokerServicePort",
        web_port="webServicePort",
        bind="bindAddress",
        log_format="logFormat",
    )
    try:
        file = Path(options.config) if options.config else None
        return BrokerConfig.load(file, None, overrides, defaults)
    except ConfigError as error:
        raise CliError(str(error)) from error
