"""The child of `ProcessHost`: a standalone broker that ends together with its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.broker.config import BrokerConfig

_CHUNK_BYTES = 4096


def main(config: BrokerConfig) -> int:
    """Serve until SIGTERM, or until standard input ends: then the parent is gone."""
    from magnetar.broker.server import standalone

    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    return standalone.run(config)


def _end_with_parent() -> None:
    # Not sys.stdin: its lock would be held at exit.
    while os.read(sys.stdin.fileno(), _CHUNK_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
