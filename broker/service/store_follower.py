"""Follows documents of the metadata store: reads again what its events have made old.

Events may be lost with a connection, and a read may fail: after the one everything is read again,
after the other the same keys a second later.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent

logger = logging.getLogger(__name__)

EVERYTHING: Final = ""
"""The key of all documents."""
_RETRY_S: Final = 1.0


class StoreFollower:
    """Runs one round of reading at a time; what changes meanwhile belongs to the next round."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Sequence[str],
        key_of: Callable[[str], str | None],
        renew: Callable[[set[str]], Awaitable[Iterable[str]]],
    ) -> None:
        """
        Args:
            paths: where documents are watched, and all below.
            key_of: the key of what a changed path concerns; None: nothing.
            renew: reads what the keys stand for; answers the keys that it could not read.
        """
        self._key_of, self._renew = key_of, renew
        self._loop = asyncio.get_running_loop()
        self.changes = 0
        """Grows with every change: what was read before it may be old."""
        self._stale: set[str] = set()
        self._unread: set[str] = set()  # until _retry
        self._renewed: asyncio.Future[None] | None = None  # done when what is stale now was read
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._watches = (
            *(store.watch(path, self._on_event) for path in paths),
            store.on_session_event(self._on_session_event),
        )

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._unread.clear()
        if self._renewed is not None:
            self._renewed.set_result(None)  # no waiter is left to a round that never begins
            self._renewed = None
        if self._task is not None:
            self._task.cancel()
        if self._retry is not None:
            self._retry.cancel()

    def invalidate(self, key: str) -> asyncio.Future[None]:
        """Read again what a key stands for; the result is done when that was tried."""
        self.changes += 1
        self._stale.add(key)
        if self._renewed is None:
            self._renewed = self._loop.create_future()
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return self._renewed

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type is EventType.CHILDREN_CHANGED:
            return
        if (key := self._key_of(event.path)) is not None:
            self.invalidate(key)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self.invalidate(EVERYTHING)  # events were lost meanwhile

    async def _run(self) -> None:
        try:
            while self._stale:
                stale, self._stale = self._stale, set()
                renewed, self._renewed = self._renewed, None
                try:
                    self._unread.update(await self._renew(stale))
                except Exception:  # the next change is followed all the same
                    logger.exception("documents are not renewed: %s", sorted(stale))
                finally:
                    if renewed is not None:
                        renewed.set_result(None)
        finally:
            self._task = None
            if self._unread and self._retry is None:
                self._retry = self._loop.call_later(_RETRY_S, self._read_again)

    def _read_again(self) -> None:
        self._retry = None
        unread, self._unread = self._unread, set()
        for key in unread:
            self.invalidate(key)
