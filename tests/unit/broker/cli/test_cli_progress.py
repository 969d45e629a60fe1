"""Progress bars: on a terminal, for long work, and nowhere else."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.broker.cli.progress import progress

ROOT = Path(__file__).resolve().parents[4]


def test_nothing_is_drawn_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    error = io.StringIO()
    monkeypatch.setattr(sys, "stderr", error)
    with progress("work", 100) as advance:
        advance(100)
    assert error.getvalue() == ""


@pytest.mark.parametrize(("total", "drawn"), [(100, True), (2, False)])
def test_a_terminal_shows_long_work(total: int, drawn: bool) -> None:
    code = (
        "from magnetar.broker.cli.progress import progress\n"
        f"with progress('so much work', {total}) as advance:\n"
        f"    advance({total})\n"
        "print('done')\n"
    )
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
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
    assert done.stdout == b"done\n"
    assert (b"so much work" in shown) is drawn
