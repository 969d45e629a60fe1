"""Threads that work for strangers don't compete with the broker's own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Final

__all__ = ["yield_to_others"]

_NICE: Final = 10


def yield_to_others() -> None:
    """Lower the priority of the calling thread, where the system has one for each thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
