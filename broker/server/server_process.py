"""A process that is set up for a server: log, files, threads, collections of garbage."""

import faulthandler
import gc
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.bookkeeper.process_shutdown import run_server
from magnetar.broker.config import BrokerConfig
from magnetar.broker.listener.file_limit import raise_file_limit
from magnetar.broker.logs import set_up_logging

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread back from a sync waits for a busy loop."""
_COLLECT_YOUNG_OBJECTS = 10_000
"""Allocations between collections of the youngest generation: entries are ``bytes`` and lists,
which die by reference counting; the default of 700 only walks long lists again and again."""
_COLLECT_OLDER = 1_000, 1_000
"""So many of the younger ones, for the rest: ``CollectionPlan`` says when it is worth it."""


def run_process(config: BrokerConfig, serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``serve`` in a process that is set up for a server; its exit code."""
    set_up_logging(config)
    faulthandler.enable()  # says where, should a damaged index make LMDB leave its map (SIGBUS)
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return run_server(serve)


def freeze_objects(is_growth: Callable[[], bool] | None = None) -> None:
    """What is alive when a process is ready stays alive: no collection needs to walk it again.

    Args:
        is_growth: whether what was allocated lately stays, too; asked before it would be walked.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_YOUNG_OBJECTS, *_COLLECT_OLDER)
    if is_growth is None:
        return

    def on_collection(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 0 and is_growth():
            gc.freeze()  # nothing is left for this collection

    gc.callbacks.append(on_collection)
