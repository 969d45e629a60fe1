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
_COLLECT_YOUNG_OBJECTS = 50_000
"""Allocations between collections of the youngest generation: entries are ``bytes`` and lists,
which die by reference counting; the default of 700 only walks long lists again and again."""
_COLLECT_OLDER = 5, 200
"""Each such many of the younger ones. What survived is walked once more by the middle one: twenty
times as much, a million objects of as many new producers, was a turn of 70 ms."""


def run_process(config: BrokerConfig, serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``serve`` in a process that is set up for a server; its exit code."""
    set_up_logging(config)
    faulthandler.enable()  # says where, should a damaged index make LMDB leave its map (SIGBUS)
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return run_server(serve)


def freeze_objects() -> None:
    """What is alive when a process is ready stays alive: no collection needs to walk it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_YOUNG_OBJECTS, *_COLLECT_OLDER)
