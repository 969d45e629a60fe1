"""``magnetar autorecovery``: settings from file, environment and options, then the process.

With --status, --enable or --disable it only looks at the cluster's switch, or turns it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.node_options import given_settings

if TYPE_CHECKING:
    from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery
    from magnetar.bookkeeper.replication.settings import AutoRecoverySettings

_PERIOD_S: Final = 60.0  # that quantiles are of


def run_autorecovery(options: argparse.Namespace) -> int:
    from magnetar.bookkeeper.bookie.settings import BookieSettingsError, normal_metadata_url
    from magnetar.bookkeeper.node_zone import ZoneUnknownError, zone_of
    from magnetar.bookkeeper.replication.settings import (
        ENVIRONMENT_PREFIXES,
        KEYS,
        AutoRecoverySettings,
        AutoRecoverySettingsError,
    )
    from magnetar.broker.config import ConfigError, read_properties
    from magnetar.broker.logs import set_up_log

    overrides = given_settings(
        options, metadata="metadataServiceUri", id="autoRecoveryId", log_format="logFormat"
    )
    try:
        file = read_properties(Path(options.config)) if options.config else {}
        environment = KEYS.environment(os.environ, ENVIRONMENT_PREFIXES)
        settings = AutoRecoverySettings.load(file, environment, overrides)
        url = normal_metadata_url(settings.metadata_service_uri)
    except (ConfigError, AutoRecoverySettingsError, BookieSettingsError) as error:
        raise CliError(str(error)) from error
    set_up_log(settings.log_level, settings.log_format)
    if options.status or options.enable or options.disable is not None:
        return asyncio.run(_turn_switch(settings, url, options))
    try:
        zone = zone_of(settings.zone, settings.node_name, settings.zone_label, os.environ)
    except ZoneUnknownError as error:
        raise CliError(str(error)) from error
    return _run(dataclasses.replace(settings, zone=zone), url)


def _run(settings: AutoRecoverySettings, url: str) -> int:
    from magnetar.bookkeeper.replication import process
    from magnetar.broker.http.metrics.prometheus_page import PrometheusPage
    from magnetar.broker.http.metrics.replication_metrics import add_replication_metrics
    from magnetar.broker.listener.file_limit import raise_file_limit

    async def metrics(recovery: AutoRecovery) -> bytes:
        page = PrometheusPage(settings.cluster_name)
        add_replication_metrics(page, recovery, _PERIOD_S)
        return b"".join(page.pieces())

    raise_file_limit()
    return process.run(settings, url, metrics)


async def _turn_switch(
    settings: AutoRecoverySettings, url: str, options: argparse.Namespace
) -> int:
    from magnetar.bookkeeper.replication.process import wall_clock_ms
    from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
    from magnetar.broker.cli.shell.cluster import ShellOutput
    from magnetar.broker.cli.shell.repair import turn_switch
    from magnetar.metadata.errors import MetadataError
    from magnetar.metadata.factory import connect_store

    path = settings.metadata_store_config_path
    try:
        store = await connect_store(
            url, Path(path) if path else None, session_timeout_s=settings.zk_timeout / 1000
        )
        try:
            marks = UnderReplicationStore(store, wall_clock_ms)
            return await turn_switch(marks, options, ShellOutput(as_json=False))
        finally:
            await store.close()
    except (MetadataError, OSError, ValueError) as error:
        raise CliError(str(error)) from error
