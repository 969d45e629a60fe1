"""A process of Python's that works for the broker and shares nothing with it but a socket.

It begins within milliseconds, knows no secrets of the broker's environment, and ends with it.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

BOOT: Final = (
    "import json, sys; source = open(0, 'rb'); sys.path[:] = json.loads(source.readline());"
)
"""A child's program begins so; then it can import what the broker can, and reads ``source``. What
it writes to standard output goes to the broker."""
# No secrets; what the loader, the C library and temporary files may need
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")


class ChildProcess:
    """A running child.

    Attributes:
        link: this side's end of the socket; it doesn't block.
    """

    def __init__(self, program: str, *arguments: str) -> None:
        """Raises OSError: it can't be started."""
        here, there = socket.socketpair()
        with there:
            try:
                self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", program, *arguments],
                    stdin=there.fileno(),
                    stdout=there.fileno(),
                    cwd="/",
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    process_group=0,  # Ctrl-C is the broker's: it ends its processes itself
                )
            except OSError:
                here.close()
                raise
        here.setblocking(False)
        here.send(json.dumps(_path()).encode() + b"\n")  # a new socket has room for it
        self.link = here

    def kill(self) -> None:
        self.link.close()
        self.popen.kill()
        # It ends soon, but a waiter would wait for its turn on the processor, too.
        threading.Thread(target=self.popen.wait, name="magnetar-reaper", daemon=True).start()


def _path() -> list[str]:
    """Where a process finds what it imports: as this one does, wherever it was started."""
    entries = [os.path.abspath(entry) for entry in sys.path]
    # If an import hook has found us. Not resolved: the link's path is the one that is imported.
    here = str(Path(__file__).absolute().parents[2])
    return entries if here in entries else [*entries, here]
