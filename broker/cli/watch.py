"""``--watch``: what a command shows, every so many seconds until it is interrupted."""

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.progress import no_progress

_CLEAR: Final = "\x1b[2J"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"


class _Frame(io.StringIO):
    """Holds what is shown next; for the command it is the terminal."""

    def isatty(self) -> bool:
        return True


def watch(
    interval_s: float,
    run: Callable[[], int],
    *,
    wait: Callable[[float], None] = time.sleep,
) -> NoReturn:
    """Runs a command again and again.

    On a terminal each answer takes the place of the one before; elsewhere it follows it. A failure
    is shown like an answer, unless it is the first one: a broker that restarts comes back.

    Raises:
        CliError: the first run failed.
    """
    show = _show_frame if sys.stdout.isatty() else _show_next
    is_first = True
    while True:
        show(run, interval_s, is_first)
        is_first = False
        wait(interval_s)


def _show_next(run: Callable[[], int], interval_s: float, is_first: bool) -> None:
    _attempt(run, is_first)
    sys.stdout.flush()


def _show_frame(run: Callable[[], int], interval_s: float, is_first: bool) -> None:
    frame = _Frame()
    with no_progress(), contextlib.redirect_stdout(frame):
        _attempt(run, is_first)
    width, height = shutil.get_terminal_size()
    title = f"every {interval_s:g} s, at {time.strftime('%H:%M:%S')}; Ctrl-C ends it"
    lines = [title[:width], *frame.getvalue().splitlines()]
    if len(lines) >= height:
        left_out = len(lines) - height + 2
        lines[height - 2 :] = [f"... {left_out} more lines"]
    # Written over, and not cleared first: that would flicker.
    text = "".join(f"{line}{_REST_OF_LINE}\n" for line in lines)
    sys.stdout.write(f"{_CLEAR if is_first else ''}{_HOME}{text}{_REST_OF_SCREEN}")
    sys.stdout.flush()


def _attempt(run: Callable[[], int], is_first: bool) -> None:
    try:
        run()
    except CliError as error:
        if is_first:
            raise
        print(f"magnetar: {error}")
