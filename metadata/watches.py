"""Callbacks by path prefix, and of sessions: registered, found, called one by one."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from magnetar.metadata.paths import ROOT, parent_of
from magnetar.metadata.store import MetadataEvent, SessionEvent, Watch

E = TypeVar("E")
ReportError = Callable[[str, BaseException], None]


class CallbackWatch(Watch, Generic[E]):
    def __init__(
        self, on_event: Callable[[E], None], on_close: Callable[["CallbackWatch[E]"], None]
    ) -> None:
        self._on_event, self._on_close, self._closed = on_event, on_close, False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close(self)

    def call(self, event: E, report_error: ReportError) -> None:
        if self._closed:  # by a callback of the same event
            return
        try:
            self._on_event(event)
        except Exception as error:
            report_error(f"a metadata callback failed on {event}", error)


def report_to_loop(message: str, error: BaseException) -> None:
    """To the running loop's exception handler."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class SessionWatches:
    """Watches of a store's session."""

    def __init__(self) -> None:
        self._watches: list[CallbackWatch[SessionEvent]] = []

    def add(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        watch = CallbackWatch(on_event, self._watches.remove)
        self._watches.append(watch)
        return watch

    def tell(self, event: SessionEvent) -> None:
        for watch in list(self._watches):
            watch.call(event, report_to_loop)

    def close_all(self) -> None:
        for watch in list(self._watches):
            watch.close()


class PathWatches:
    """Watches by prefix. Finding those of an event costs its depth, not their number."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, list[CallbackWatch[MetadataEvent]]] = {}

    def add(
        self, prefix: str, on_event: Callable[[MetadataEvent], None]
    ) -> CallbackWatch[MetadataEvent]:
        watch = CallbackWatch(on_event, lambda closed: self._remove(prefix, closed))
        self._by_prefix.setdefault(prefix, []).append(watch)
        return watch

    def __bool__(self) -> bool:
        return bool(self._by_prefix)

    def close_all(self) -> None:
        for watches in list(self._by_prefix.values()):
            for watch in list(watches):
                watch.close()

    def deliver(self, events: Iterable[MetadataEvent], report_error: ReportError) -> None:
        if not self._by_prefix:
            return
        for event in events:
            prefix = event.path
            while True:
                if (watches := self._by_prefix.get(prefix)) is not None:
                    for watch in list(watches):
                        watch.call(event, report_error)
                if prefix == ROOT:
                    break
                prefix = parent_of(prefix)

    def _remove(self, prefix: str, watch: CallbackWatch[MetadataEvent]) -> None:
        watches = self._by_prefix[prefix]
        watches.remove(watch)
        if not watches:
            del self._by_prefix[prefix]
