"""Becomes another program that dies with its parent: ``python -S parent_guard.py PARENT_PID
COMMAND...``.

A program of its own instead of a preexec_fn: that runs between fork and exec, where a process
with threads may run next to nothing. What is set here survives exec, so it holds for java, too.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    # Elsewhere than on Linux nothing does this: what kills the parent has to kill the children.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
