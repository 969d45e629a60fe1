"""How a server's process starts, and how it ends: in time, whatever hangs.

No event loop can keep a deadline alone: it may be busy, and a thread may be in a call to a disk
that doesn't come back, which the end of the loop, and of the interpreter, would wait for.
"""

import asyncio
import gc
import logging
import os
import signal
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


class ProcessEndError(Exception):
    """The process ends now, with ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run_server(serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``serve`` on a loop; what it returns is the exit code of the process, which ends soon."""
    gc.freeze()  # modules: no collection needs to walk them
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            code = runner.run(serve())
        except ProcessEndError as end:
            code = end.code
        end_after(_TEARDOWN_S_MAX, code)
    return code


async def start_process(
    start: Coroutine[Any, Any, None], cannot: tuple[type[Exception], ...], end_s: float
) -> asyncio.Event:
    """Run ``start``; what SIGTERM and SIGINT set.

    Args:
        cannot: errors that say why the process can't start; the log tells them, the code is 1.
        end_s: time to end in, when a signal came before the start was done; the code is 0.

    Raises:
        ProcessEndError: the process doesn't go on.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    starting, stopping = loop.create_task(start), loop.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        end_after(end_s, 4)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise ProcessEndError(0)
    try:
        await starting
    except cannot as error:
        _log.error("magnetar: can't start: %s", error, extra=PLAIN)
        _log.debug("start failed", exc_info=error)
        raise ProcessEndError(1) from error
    return stop


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
