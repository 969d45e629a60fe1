"""Every server's process begins with this, before its settings are read: the log.

Also the lines that come before the settings are known, or say what is wrong with them, have the
form that is asked for.
"""

import argparse
import gc
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from magnetar.bookkeeper.environment import normalize_key, settings_among
from magnetar.bookkeeper.process_shutdown import PLAIN
from magnetar.broker.config import ConfigError, read_properties
from magnetar.broker.logs import log_what_nobody_catches, set_up_log

_log = logging.getLogger(__name__)

_PREFIXES: Final = ("PULSAR_PREFIX_", "MAGNETAR_")
_OF_ROLES: Final = {
    "bookie": ("BOOKIE_", "MAGNETAR_BOOKIE_"),
    "autorecovery": ("BOOKIE_", "MAGNETAR_BOOKIE_", "AUTORECOVERY_", "MAGNETAR_AUTORECOVERY_"),
}
_KEY: Final = "logformat"


def begin(options: argparse.Namespace) -> None:
    """Called once in a process, by the command that becomes a server."""
    gc.disable()  # a tenth of the start: modules stay; ``run_server`` enables it
    # Before gRPC is loaded: its core has a line for each bad header of any unauthenticated client,
    # not in the form of our log. What fails for other reasons is raised, too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    set_up_log("INFO", log_format(options, os.environ))
    log_what_nobody_catches()


def report(error: Exception) -> None:
    """Why there is no server."""
    _log.error("magnetar: %s%s", error, variables_behind(str(error), os.environ), extra=PLAIN)


def log_format(options: argparse.Namespace, variables: Mapping[str, str]) -> str:
    """``text`` or ``json``; what can't be read, or is none of them, is told by the settings."""
    if options.log_format is not None:
        return str(options.log_format)
    try:
        pairs = read_properties(Path(options.config)) if options.config else {}
    except ConfigError:
        pairs = {}
    prefixes = (*_PREFIXES, *_OF_ROLES.get(options.command, ()))
    if options.command != "zookeeper":
        pairs |= settings_among(variables, prefixes, lambda key: normalize_key(key) == _KEY)
    pairs |= dict(text.split("=", 1) for text in options.set if "=" in text)
    found = [text for key, text in pairs.items() if normalize_key(key) == _KEY]
    return "json" if found[-1:] == ["json"] else "text"


def variables_behind(said: str, variables: Mapping[str, str]) -> str:
    """Names of variables that set the keys that a message names; "" if there are none."""
    words = {normalize_key(word) for word in re.findall(r"\w+", said)}
    prefixes = {*_PREFIXES, *(each for of_role in _OF_ROLES.values() for each in of_role)}
    names = [
        name
        for name in sorted(variables)
        for prefix in prefixes
        if name.startswith(prefix) and name not in said
        if normalize_key(name.removeprefix(prefix)) in words
    ]
    return f" (set: {', '.join(dict.fromkeys(names))})" if names else ""
