"""``magnetar standalone`` on a disk that fails at a chosen moment.

    python -m tests.faulty_standalone SYNC_POINT PATH standalone --data ...

While the file PATH exists, every durable write of SYNC_POINT (``journal.group``, say) fails with
EIO, after its bytes were handed over: what a failing disk looks like. If it says "hang", they never
return; if it says "close", closing any file fails as well.
"""

import errno
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from magnetar.bookkeeper.storage.direct_buffers import DirectBuffers
from magnetar.bookkeeper.storage.file_system import Buffer, File
from magnetar.bookkeeper.storage.os_file_system import OsFile, OsFileSystem
from magnetar.broker.cli.main import build_parser
from magnetar.broker.cli.standalone_command import load_config
from magnetar.broker.server import standalone


class FaultyFile(OsFile):
    """A file whose durable writes of one sync point fail while ``trigger`` exists."""

    def __init__(self, path: Path, flags: int, sync_point: str, trigger: Path) -> None:
        super().__init__(path, flags, DirectBuffers())
        self._sync_point, self._trigger = sync_point, trigger

    @property
    def durable_descriptor(self) -> int:
        return -1  # each write comes by here

    def pwritev(
        self, buffers: Sequence[Buffer], offset: int, *, sync_point: str | None = None
    ) -> None:
        if sync_point == self._sync_point and self._trigger.exists():
            super().pwritev(buffers, offset)
            self._fail()
        super().pwritev(buffers, offset, sync_point=sync_point)

    def sync(self, sync_point: str) -> None:
        if sync_point == self._sync_point and self._trigger.exists():
            self._fail()
        super().sync(sync_point)

    def close(self) -> None:
        super().close()
        if self._trigger.exists() and self._trigger.read_text() == "close":
            self._fail()

    def _fail(self) -> None:
        if self._trigger.read_text() == "hang":
            print("hangs now", flush=True)
            threading.Event().wait()
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))


class FaultyFileSystem(OsFileSystem):
    """Makes ``FaultyFile`` out of every file."""

    def __init__(self, root: Path, sync_point: str, trigger: Path) -> None:
        super().__init__(root)
        self._sync_point, self._trigger = sync_point, trigger

    def create(self, path: str) -> File:
        return self._file(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> File:
        return self._file(path, 0)

    def _file(self, path: str, flags: int) -> File:
        return FaultyFile(self.root / path, flags, self._sync_point, self._trigger)


def run(sync_point: str, trigger: Path, arguments: list[str]) -> int:
    """The CLI, with another file system below the bookie."""
    config = load_config(build_parser().parse_args(arguments))
    return standalone.run(config, lambda root: FaultyFileSystem(root, sync_point, trigger))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
