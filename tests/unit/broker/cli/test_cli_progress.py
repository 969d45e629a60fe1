"""Progress bars: on a terminal, for long work, and nowhere else."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.broker.cli.progress import no_progress, progress

ROOT = Path(__file__).resolve().parents[4]


def test_nothing_is_drawn_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    error = io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    with progress("work", 100) as advance:
        advance(100)
    assert error.getvalue() == ""


WORK = """
import threading
from magnetar.broker.cli import progress as module
from magnetar.broker.cli.progress import progress
module._SHOWN_AFTER_S = {after_s}
drawn = threading.Event()
make = module._drawn

def draw(total):
    bar = make(total)
    start = bar.start
    bar.start = lambda: (start(), drawn.set())
    return bar

module._drawn = draw
with progress("so much work", {total}) as advance:
    advance(7)
    if {after_s} < 1:
        assert drawn.wait(30)
    with progress("a part of it", 9) as part:
        part(9)
    advance(1)
    print("data")
"""


@pytest.mark.parametrize(
    ("total", "after_s", "drawn"), [(100, 0.0, True), (None, 0.0, True), (100, 1000.0, False)]
)
def test_a_terminal_shows_long_work(total: int | None, after_s: float, drawn: bool) -> None:
    """What is printed meanwhile goes where it belongs, into a file here."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", WORK.format(total=total, after_s=after_s)],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=True,
            timeout=30,
        )
        os.write(theirs, b"|")  # so that the read below has something in any case
        shown = os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.stdout == b"data\n"
    assert (b"so much work" in shown) is drawn
    assert b"a part of it" not in shown
    assert (b"8/100" in shown) is (drawn and total == 100)


def test_no_bar_where_something_else_fills_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("magnetar.broker.cli.progress._SHOWN_AFTER_S", 0.0)
    error = Terminal()
    monkeypatch.setattr(sys, "stderr", error)
    with no_progress(), progress("work", 100) as advance:
        advance(100)
    assert error.getvalue() == ""
