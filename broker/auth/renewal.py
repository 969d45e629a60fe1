"""Keys and password files that change on disk are put to use while the broker runs.

Looked at as often as TLS files (``tlsCertRefreshCheckDurationSec``). A new file is taken whole or
not at all: what can't be used, or is still being written, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from magnetar.broker.auth.provider_factory import build
from magnetar.broker.config import ConfigError

if TYPE_CHECKING:
    from magnetar.broker.auth.authenticator import Authenticator
    from magnetar.broker.auth.key_files import KeyFiles, Look
    from magnetar.broker.config import BrokerConfig

logger = logging.getLogger(__name__)

_SETTLE_S: Final = 1.0
_SETTLE_LOOKS: Final = 5


class KeyRenewal:
    """Watches the files of one authenticator."""

    def __init__(
        self,
        config: BrokerConfig,
        authenticator: Authenticator,
        files: KeyFiles,
        seen: Look,
        *,
        settle_s: float = _SETTLE_S,
    ) -> None:
        """
        Args:
            seen: from before the files were read.
            settle_s: a file that has changed must stay as it is for so long to be read.
        """
        self._config = config
        self._authenticator = authenticator
        self._files = files
        self._seen = seen
        self._settle_s = settle_s
        self._interval_s = config.tls_cert_refresh_check_duration_sec
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tell of files that others may read; look at them from now on. REQUIRES: a loop."""
        for complaint in self._files.complaints():
            logger.warning("%s", complaint)
        if self._files.files:
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def check(self) -> bool:
        """Use the files as they are now, if they have changed and are good; whether they are."""
        if self._files.look() == self._seen:
            return False
        found = await self._settled()
        if found is None:
            return False
        authenticator = self._authenticator
        try:
            # In a thread: slow disks, long password files
            parts = await asyncio.to_thread(build, self._config, authenticator.issuers)
        except ConfigError as error:
            # Read again at the next look: until then, and for all who are in, nothing changes.
            logger.error("keys have changed and can't be used, the old ones stay: %s", error)
            return False
        if self._files.look() != found:
            return False  # written meanwhile: what was read may be half of it
        self._seen = found
        assert parts is not None
        authenticator.use(parts.chain)
        names = ", ".join(f"{each.setting} ({each.path})" for each in self._files.files)
        logger.info("changed keys are in use now: %s", names)
        for complaint in self._files.complaints():
            logger.warning("%s", complaint)
        return True

    async def _settled(self) -> Look | None:
        """What the files look like once nobody writes them; None: somebody does all the time."""
        found = self._files.look()
        for _ in range(_SETTLE_LOOKS):
            await asyncio.sleep(self._settle_s)
            before, found = found, self._files.look()
            if found == before:
                return found
        return None

    def _arm(self) -> None:
        if self._interval_s > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_s, self._on_timer)

    def _on_timer(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.check()
        except Exception:
            logger.exception("looking for changed keys failed")
        self._task = None
        self._arm()
