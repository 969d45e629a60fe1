"""``magnetar bookie``: settings from file, environment and options, then the process."""

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
    from magnetar.bookkeeper.bookie.bookie import Bookie

_PERIOD_S: Final = 60.0  # that quantiles are of


def run_bookie(options: argparse.Namespace) -> int:
    # Before gRPC is loaded: its core has a line for each bad header of any unauthenticated client.
    # Failures for other reasons are raised, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from magnetar.bookkeeper.bookie import process
    from magnetar.bookkeeper.bookie.settings import BookieSettings, BookieSettingsError
    from magnetar.bookkeeper.node_zone import ZoneUnknownError, zone_of
    from magnetar.bookkeeper.replication.process import AutoRecoveryPart
    from magnetar.bookkeeper.replication.settings import (
        ENVIRONMENT_PREFIXES,
        KEYS,
        AutoRecoverySettings,
        AutoRecoverySettingsError,
    )
    from magnetar.broker.config import ConfigError, read_properties
    from magnetar.broker.http.metrics.bookie_metrics import add_bookie_metrics, bookie_disk
    from magnetar.broker.http.metrics.prometheus_page import PrometheusPage
    from magnetar.broker.http.metrics.replication_metrics import add_replication_metrics
    from magnetar.broker.listener.file_limit import raise_file_limit
    from magnetar.broker.logs import set_up_log

    overrides = given_settings(
        options,
        port="bookiePort",
        bind="bindAddress",
        data="ledgerDirectories",
        metadata="metadataServiceUri",
        id="bookieId",
        log_format="logFormat",
    )
    try:
        file = read_properties(Path(options.config)) if options.config else {}
        environment = BookieSettings.environment(os.environ)
        settings = BookieSettings.load(file, environment, overrides, others=KEYS.knows)
        set_up_log(settings.log_level, settings.log_format)
        zone = zone_of(settings.zone, settings.node_name, settings.zone_label, os.environ)
        settings = dataclasses.replace(settings, zone=zone)
        environment = KEYS.environment(os.environ, ENVIRONMENT_PREFIXES)
        place = {"networkLocation": settings.location(), "zone": zone}
        repair = AutoRecoverySettings.load(file, environment, overrides, place, is_part=True)
        part = AutoRecoveryPart(repair) if settings.auto_recovery_daemon_enabled else None
    except (ConfigError, BookieSettingsError, AutoRecoverySettingsError, ZoneUnknownError) as error:
        raise CliError(str(error)) from error
    raise_file_limit()

    async def metrics(bookie: Bookie) -> bytes:
        disk = await asyncio.to_thread(bookie_disk, bookie)
        page = PrometheusPage(settings.cluster_name)
        add_bookie_metrics(page, bookie, disk, _PERIOD_S)
        if part is not None and part.recovery is not None:
            add_replication_metrics(page, part.recovery, _PERIOD_S)
        return b"".join(page.pieces())

    return process.run(settings, metrics, part, repair.placement())
