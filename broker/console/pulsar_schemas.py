"""Schemas of topics of Apache Pulsar, which lists none: asked topic by topic, and kept a while."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.console.source import schema_path
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.protocol.topic_name import PARTITION_MARK

_AT_ONCE: Final = 8
_KEEP_S: Final = 60.0
_KEPT_MAX: Final = 1_000
_WAIT_S: Final = 1.0
"""A page waits so long; what comes later is there when it fetches itself again."""


class PulsarSchemas:
    def __init__(self, api: AdminApi, clock_s: Callable[[], float]) -> None:
        self._api, self._clock_s = api, clock_s
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._kept: dict[str, tuple[Any, float]] = {}  # and until when, by path
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def of(self, topics: Sequence[str]) -> list[dict[str, Any] | None]:
        """Of each topic the newest version, as the route ``schema`` has it. None: it has none, it
        is not for this visitor, or isn't known yet.
        """
        bases = [TopicPath.parse(each.partition(PARTITION_MARK)[0]) for each in topics]
        return await self._answers([f"{schema_path(each)}/schema" for each in bases])

    async def compatibility(self, topics: Sequence[str]) -> list[str]:
        """By which strategy each topic takes new versions; "": not known."""
        paths = [f"{TopicPath.parse(each).rest}/schemaCompatibilityStrategy" for each in topics]
        return [each or "" for each in await self._answers(paths)]

    async def _answers(self, paths: Sequence[str]) -> list[Any]:
        now_s = self._clock_s()
        tasks = {self._task(path) for path in paths if self._kept.get(path, (None, 0))[1] <= now_s}
        if tasks:
            await asyncio.wait(tasks, timeout=_WAIT_S)
        return [self._kept.get(path, (None, 0))[0] for path in paths]

    def _task(self, path: str) -> asyncio.Task[None]:
        if (task := self._reading.get(path)) is None:
            task = self._reading[path] = asyncio.create_task(self._read(path))
        return task

    async def _read(self, path: str) -> None:
        try:
            async with self._limit:
                found = await get(self._api, path, applied=True)
        except AdminError:
            found = None
        finally:
            del self._reading[path]
        self._kept.pop(path, None)
        self._kept[path] = found, self._clock_s() + _KEEP_S
        while len(self._kept) > _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
