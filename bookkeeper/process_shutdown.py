"""How a server's process ends: in time, whatever hangs.

No event loop can keep a deadline alone: it may be busy, and a thread may be in a call to a disk
that doesn't come back, which the end of the loop, and of the interpreter, would wait for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

_log = logging.getLogger(__name__)

PLAIN: Final = {"plain": True}
"""``extra`` of a line that says why a process ends: in a log for people it is all that is shown."""

_TEARDOWN_S_MAX: Final = 5.0
"""Of the loop and its threads, when all is closed."""
_SAY_S_MAX: Final = 1.0


def run_server(serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``serve`` on a loop; what it returns is the exit code of the process, which ends soon."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(serve())
        end_after(_TEARDOWN_S_MAX, code)
    return code


def end_after(seconds: float, code: int) -> None:
    """The process ends with ``code`` when ``seconds`` are over, unless it has ended before."""
    threading.Thread(target=_wait_and_end, args=(seconds, code), name="end", daemon=True).start()


def _wait_and_end(seconds: float, code: int) -> None:
    time.sleep(seconds)
    # In a thread of its own: what hangs may be the log.
    text = "something hangs: ended with exit code %d, without a complete end"
    say = threading.Thread(target=_log.warning, args=(text, code), daemon=True)
    say.start()
    say.join(_SAY_S_MAX)
    os._exit(code)
