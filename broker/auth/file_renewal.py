"""Key, certificate and password files: other users' access to them, and what they change to.

A new state of the files is taken whole or not at all: what can't be used, or is still being
written, changes nothing.
"""

import asyncio
import logging
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from magnetar.bookkeeper.auth.file_state import FileState, file_state
from magnetar.broker.config import ConfigError

logger = logging.getLogger(__name__)

_SETTLE_S: Final = 1.0
_SETTLE_LOOKS: Final = 5

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One file and the setting that names it."""

    setting: str
    path: Path
    is_secret: bool
    """A reader of it can take another role."""


def _warn_of_permissions(files: Sequence[KeyFile]) -> None:
    """Log a warning for each file that isn't safe."""
    for each in files:
        if (text := complaint(each)) is not None:
            logger.warning("%s", text)


def complaint(file: KeyFile) -> str | None:
    """Why a file isn't safe where it is; None: it is, as far as its permissions go.

    Groups are left out: orchestrators mount secrets readable by a group.
    """
    try:
        found = file.path.stat()
    except OSError:
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"{file.setting}: everybody on this machine may change {file.path}: chmod o-rwx it"
    if file.is_secret and found.st_mode & stat.S_IROTH:
        return f"{file.setting}: everybody on this machine may read {file.path}: chmod 600 it"
    return None


class FileRenewal(Generic[Content]):
    """Looks at some files every so often."""

    def __init__(
        self,
        what: str,
        files: Sequence[KeyFile],
        interval_s: float,
        *,
        read: Callable[[], Content],
        use: Callable[[Content], None],
    ) -> None:
        """To be made before the files are read for the first time.

        Args:
            what: the files are, for the log.
            interval_s: 0: they are never looked at.
            read: what they contain, for ``use``; called in a thread. Raises ConfigError.
        """
        self.files = files
        self.settle_s = _SETTLE_S
        """A file that has changed must stay as it is for so long to be read."""
        self._what = what
        self._interval_s = interval_s
        self._read, self._use = read, use
        self._seen = self._look()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tell of files that others may read; look at them from now on. REQUIRES: a loop."""
        _warn_of_permissions(self.files)
        if self.files and self._interval_s > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def check(self) -> bool:
        """Use the files as they are now, if they have changed and are good; whether they are."""
        if self._look() == self._seen or (found := await self._settled()) is None:
            return False
        try:
            content = await asyncio.to_thread(self._read)  # slow disks, long password files
        except ConfigError as error:
            # Read again at the next look: until then nothing changes.
            text = "%s have changed and can't be used, the old ones stay: %s"
            logger.error(text, self._what, error)
            return False
        if self._look() != found:
            return False  # written meanwhile: what was read may be half of it
        self._seen = found
        self._use(content)
        names = ", ".join(f"{each.setting} ({each.path})" for each in self.files)
        logger.info("changed %s are in use now: %s", self._what, names)
        _warn_of_permissions(self.files)
        return True

    def _look(self) -> list[FileState | None]:
        return [file_state(each.path) for each in self.files]

    async def _settled(self) -> list[FileState | None] | None:
        """The state of the files once they stay as they are; None: they change all the time."""
        found = self._look()
        for _ in range(_SETTLE_LOOKS):
            await asyncio.sleep(self.settle_s)
            before, found = found, self._look()
            if found == before:
                return found
        return None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.check()
            except Exception:  # the next look may succeed
                logger.exception("looking for changed %s failed", self._what)
