"""A bookie's ephemeral node: ``available/<id>`` or ``available/readonly/<id>``.

Losing it never makes the bookie unsafe (fencing does not depend on it), only unused by new ledgers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH, ServiceInfo
from metadata.errors import BadVersionError, MetadataError, NotFoundError
from metadata.paths import encode_name
from metadata.store import MetadataStore, SessionEvent, Watch

_RETRY_S: Final = 1.0

_log = logging.getLogger(__name__)


class Registration:
    """Keeps the node as it should be; failures are retried until ``close``."""

    def __init__(self, store: MetadataStore, info: ServiceInfo) -> None:
        self._store = store
        bookie_id = info.bookie_id
        name = encode_name(bookie_id)
        self._paths = {False: f"{AVAILABLE_PATH}/{name}", True: f"{READ_ONLY_PATH}/{name}"}
        self._value = info.encode()
        self._read_only = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watch: Watch | None = None

    async def register(self, *, read_only: bool) -> None:
        """Register now; from here on the node is restored after a lost session."""
        self._read_only = read_only
        await self._write()
        self._watch = self._store.on_session_event(self._on_session_event)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def set_read_only(self, read_only: bool) -> None:
        self._read_only = read_only
        self._wanted.set()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for path in self._paths.values():
            try:
                await self._store.delete(path)
            except NotFoundError:
                continue
            except MetadataError as error:  # its session ends soon anyway
                _log.warning("could not unregister %s: %s", path, error)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._write()
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
            # Left by an earlier session of this bookie (its directory lock is ours, so it is gone).
            with contextlib.suppress(NotFoundError, BadVersionError):
                await self._store.delete(path, found.stat.version)
            found = None
        if found is None:
            await self._store.put(path, self._value, -1, ephemeral=True)
        with contextlib.suppress(NotFoundError):
            await self._store.delete(self._paths[not read_only])
