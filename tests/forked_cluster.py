"""``magnetar cluster`` for tests: it and its brokers and bookies are forks, which start in a tenth.

``test_cluster_local.py`` starts the real one.
"""

import asyncio
import multiprocessing
import sys
from collections.abc import Mapping
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from typing import IO, Any

from magnetar.broker.cli.main import main
from tests.fork_server import Fork

_OURS = (sys.executable, "-m", "magnetar.broker.cli.main")
_start_program = asyncio.create_subprocess_exec


class _ForkedProcess:
    """What the supervisor uses of ``asyncio.subprocess.Process``."""

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self.pid = fork.pid

    @property
    def returncode(self) -> int | None:
        return self._fork.returncode

    def send_signal(self, number: int) -> None:
        self._fork.send_signal(number)

    async def wait(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fork.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._fork.sentinel)
        return self._fork.wait()


async def _start(
    *words: str, stdout: IO[bytes], env: Mapping[str, str], **options: Any
) -> _ForkedProcess | asyncio.subprocess.Process:
    """In place of ``asyncio.create_subprocess_exec``: Java is started as it is."""
    at = next((at for at in range(len(words)) if words[at : at + len(_OURS)] == _OURS), None)
    if at is None:
        return await _start_program(*words, stdout=stdout, env=env, **options)
    command = words[at + len(_OURS) - 1 :]
    return _ForkedProcess(Fork(command, env, Path.cwd(), Path(stdout.name)))


if __name__ == "__main__":
    # The server that made this process makes its children, too. Left to itself, Python would start
    # another server, and wouldn't let a daemon have children.
    _forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
    del multiprocessing.current_process()._config["daemon"]  # type: ignore[attr-defined]
    asyncio.create_subprocess_exec = _start  # type: ignore[assignment] # it is the supervisor's
    sys.exit(main())
