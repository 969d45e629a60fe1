"""``magnetar standalone`` and ``magnetar broker``: their settings, then the process."""

import argparse
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.node_options import given_settings
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
    from magnetar.broker.server import standalone

    return standalone.run(config)


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
