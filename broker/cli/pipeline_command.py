"""``magnetar pipeline``: hands over to the package ``pipeline``.

It is above the broker, which so knows it by name only, and loads it when somebody asks for it.
"""

import argparse
import importlib
from typing import Any

from magnetar.broker.cli.profiles import target_of
from magnetar.broker.cli.progress import progress


def add_jobs(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Its words; returns the parsers of the jobs. Needs nothing of the extra."""
    words: list[argparse.ArgumentParser] = _load("magnetar.pipeline.command_options").add_words(
        parser
    )
    return words


def run_pipeline(options: argparse.Namespace) -> int:
    """Run one job; the exit code.

    Raises:
        CliError: it failed, or a package of the extra is missing.
    """
    target = target_of(options)
    command = _load("magnetar.pipeline.command")
    address = command.ClusterAddress(target.service_url, target.admin_url, target.access)
    if options.action != "backlog":  # the others tell what Spark does
        return int(command.run(options, address))
    with progress("asking brokers", None):
        return int(command.run(options, address))


def _load(name: str) -> Any:
    return importlib.import_module(name)
