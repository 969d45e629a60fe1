"""A bookie's ephemeral node: ``available/<id>`` or ``available/readonly/<id>``.

Losing it never makes the bookie unsafe (fencing does not depend on it), only unused by new ledgers.
Two processes with one name do: what one of them acknowledges or fences, the other denies. So one
with another directory waits until the name is free (``wait_until_free``), and one that finds its
node gone or taken looks whether the name is still its own before it takes it back.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.service_info import ServiceInfo
from magnetar.metadata.errors import BadVersionError, MetadataError, NotFoundError
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore, SessionEvent, Watch

_RETRY_S: Final = 1.0
_FREE_S_MAX: Final = 30.0  # for the session of a process that ended to end, too
_LOOK_S: Final = 0.2
_UNREGISTER_S_MAX: Final = 5.0

_log = logging.getLogger(__name__)


class Registration:
    """Keeps the node as it should be; failures are retried until ``close``.

    Attributes:
        is_current: the node is there, as far as is known.

    Args:
        check: raises CookieMismatchError when another process has the bookie's name by now.
        on_refused: called once, on the loop, when that came out after the first registration.
    """

    def __init__(
        self,
        store: MetadataStore,
        info: ServiceInfo,
        check: Callable[[], Awaitable[None]],
        on_refused: Callable[[CookieMismatchError], None],
        layout: Layout | None = None,
    ) -> None:
        self._store = store
        self._check, self._on_refused = check, on_refused
        layout = layout or JsonLayout()
        self._paths = {
            read_only: layout.bookie_path(info.bookie_id, read_only=read_only)
            for read_only in (False, True)
        }
        self._value = layout.encode_bookie(info)
        self._read_only = self.is_current = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watches: list[Watch] = []

    async def register(self, *, read_only: bool) -> None:
        """Register now; from here on the node is restored after a lost session.

        Raises:
            CookieMismatchError: another process has the name.
            MetadataError: the store failed.
        """
        self._read_only = read_only
        await self._write()
        self._watches = [
            self._store.on_session_event(self._on_session_event),
            *(self._store.watch(path, self._on_event) for path in self._paths.values()),
        ]
        self._wanted.set()  # for what happened before the watch
        self._task = asyncio.get_running_loop().create_task(self._run())

    def set_read_only(self, read_only: bool) -> None:
        if read_only != self._read_only:
            self.is_current = False
        self._read_only = read_only
        self._wanted.set()

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        # Its session ends soon anyway, and what was accepted still has to be flushed.
        try:
            async with asyncio.timeout(_UNREGISTER_S_MAX):
                for path in self._paths.values():
                    with contextlib.suppress(NotFoundError):
                        await self._store.delete(path)
        except (MetadataError, TimeoutError) as error:
            _log.warning("could not unregister: %s", str(error) or "the store doesn't answer")

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_LOST:
            self.is_current = False
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            self._wanted.set()

    def _on_event(self, event: MetadataEvent) -> None:
        # ``readonly`` is watched with all that is below it.
        if event.type is EventType.DELETED and event.path in self._paths.values():
            self.is_current = self.is_current and event.path != self._paths[self._read_only]
            self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._write()
            except CookieMismatchError as error:
                self._on_refused(error)
                return
            except MetadataError as error:
                _log.warning("registration of the bookie failed, will retry: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._wanted.set()

    async def _write(self) -> None:
        """New node first, then remove the other: a read-only bookie is never unknown."""
        read_only = self._read_only
        path = self._paths[read_only]
        found = await self._store.get(path)
        if found is not None and not (found.stat.ephemeral and found.stat.created_by_self):
            await self._check()
            # Left by an earlier session of this directory (its lock is ours, so it is gone).
            with contextlib.suppress(NotFoundError, BadVersionError):
                await self._store.delete(path, found.stat.version)
            found = None
        if found is None:
            await self._check()
            await self._store.put(path, self._value, -1, ephemeral=True)
        with contextlib.suppress(NotFoundError):
            await self._store.delete(self._paths[not read_only])
        self.is_current = read_only == self._read_only


async def wait_until_free(
    store: MetadataStore, bookie_id: str, layout: Layout | None = None
) -> None:
    """Wait for the end of the process registered as ``bookie_id``. For those that bring another
    directory than the name had: a process that still serves that one must not live beside them.

    Raises:
        CookieMismatchError: it doesn't end.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _FREE_S_MAX
    layout = layout or JsonLayout()
    paths = [layout.bookie_path(bookie_id, read_only=read_only) for read_only in (False, True)]
    said = False
    while True:
        nodes = [await store.get(path) for path in paths]
        others = [node for node in nodes if node is not None and not node.stat.created_by_self]
        if not others:
            return
        if loop.time() >= deadline:
            where = others[0].value.decode(errors="replace")
            raise CookieMismatchError(
                f"bookie {bookie_id} is running with another data directory: {where}; stop it first"
            )
        if not said:
            _log.warning("bookie %s is registered already; waiting for its end", bookie_id)
            said = True
        await asyncio.sleep(_LOOK_S)
