"""``magnetar standalone``: settings from file, environment and options, then the process."""

from __future__ import annotations

import argparse
from pathlib import Path

from broker.cli.errors import CliError
from broker.config import BrokerConfig, ConfigError

__all__ = ["run_standalone"]


def run_standalone(options: argparse.Namespace) -> int:
    config = load_config(options)
    from broker import standalone

    return standalone.run(config)


def load_config(options: argparse.Namespace) -> BrokerConfig:
    """Raises CliError when a setting can't be used."""
    overrides: dict[str, str] = {}
    for text in options.set:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise CliError(f"--set {text}: KEY=VALUE is expected")
        overrides[key] = value
    for key, value in (
        ("dataDir", options.data),
        ("brokerServicePort", options.port),
        ("webServicePort", options.web_port),
        ("bindAddress", options.bind),
        ("logFormat", options.log_format),
    ):
        if value is not None:
            overrides[key] = str(value)
    try:
        return BrokerConfig.load(Path(options.config) if options.config else None, None, overrides)
    except ConfigError as error:
        raise CliError(str(error)) from error
