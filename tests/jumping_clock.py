"""``magnetar standalone`` whose wall clock jumps by as many seconds as a file says.

python -m tests.jumping_clock FILE standalone --data ...
"""

import sys
import time
from pathlib import Path

_real_time, _real_time_ns = time.time, time.time_ns


def install(jump: Path) -> None:
    """Before any other module takes its own reference to the clock."""

    def offset() -> int:
        return int(jump.read_text() or 0) if jump.exists() else 0

    time.time = lambda: _real_time() + offset()
    time.time_ns = lambda: _real_time_ns() + offset() * 10**9


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    from magnetar.broker.cli.main import main

    sys.exit(main(sys.argv[2:]))
