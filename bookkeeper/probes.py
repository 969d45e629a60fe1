"""Answers to ``/livez`` and ``/readyz``, the same in every process of ours.

A process is alive if it answers: one that can't go on ends by itself, and a restart doesn't help
while ZooKeeper is away. It is ready if nothing speaks against it; the body says what does.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from magnetar.bookkeeper.bookie.http.admin_access import LIVE_PATH, READY_PATH
from magnetar.bookkeeper.bookie.http.admin_server import HttpResponse, Page, json_page
from magnetar.metadata.store import MetadataStore, SessionEvent

_LOST: Final = "the session with the metadata store is lost"


def probe_pages(reasons: Callable[[], Sequence[str]]) -> dict[str, Page]:
    """Both pages of a process; ``reasons`` says why it isn't ready now."""

    async def live() -> HttpResponse:
        return json_page({"status": "alive"})

    async def ready() -> HttpResponse:
        found = reasons()
        status = HTTPStatus.SERVICE_UNAVAILABLE if found else HTTPStatus.OK
        return json_page(readiness_document(found), status)

    return {LIVE_PATH: live, READY_PATH: ready}


def readiness_document(reasons: Sequence[str]) -> dict[str, object]:
    """What such a page says: 503 with ``reasons``, 200 without."""
    return {"reason": "; ".join(reasons)} if reasons else {"status": "ready"}


class SessionState:
    """Follows the session of a store.

    Attributes:
        trouble: "" while there is one and a server answers, as far as is known.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.trouble = ""
        self._watch = store.on_session_event(self._on_event)

    def close(self) -> None:
        self._watch.close()

    def _on_event(self, event: SessionEvent) -> None:
        is_lost = self.trouble == _LOST
        match event:
            case SessionEvent.CONNECTION_LOST if not is_lost:
                self.trouble = "no connection to the metadata store"
            case SessionEvent.SESSION_LOST:
                self.trouble = _LOST
            case SessionEvent.RECONNECTED if not is_lost:
                self.trouble = ""
            case SessionEvent.SESSION_REESTABLISHED:
                self.trouble = ""
