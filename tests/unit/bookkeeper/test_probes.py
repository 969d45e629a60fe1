"""What a process's session says to probes."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from magnetar.bookkeeper.probes import SessionState, probe_pages
from magnetar.metadata.store import MetadataStore, SessionEvent

LOST, BACK = SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED
ENDED, NEW = SessionEvent.SESSION_LOST, SessionEvent.SESSION_REESTABLISHED


class _Watch:
    def close(self) -> None:
        pass


class _Store:
    tell: Callable[[SessionEvent], None]

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> _Watch:
        self.tell = on_event
        return _Watch()


@pytest.mark.parametrize(
    ("events", "trouble"),
    [
        ([], ""),
        ([LOST], "no connection to the metadata store"),
        ([LOST, BACK], ""),
        ([LOST, ENDED], "the session with the metadata store is lost"),
        ([LOST, ENDED, BACK], "the session with the metadata store is lost"),
        ([LOST, ENDED, BACK, NEW], ""),
        ([LOST, ENDED, BACK, NEW, LOST], "no connection to the metadata store"),
        ([ENDED, LOST], "the session with the metadata store is lost"),
    ],
)
def test_a_session_in_trouble(events: list[SessionEvent], trouble: str) -> None:
    store = _Store()
    state = SessionState(cast(MetadataStore, store))
    for event in events:
        store.tell(event)
    assert state.trouble == trouble


async def test_pages_say_why() -> None:
    reasons: list[str] = []
    pages = probe_pages(lambda: reasons)

    async def asked(path: str) -> tuple[int, Any]:
        answer = await pages[path]()
        return answer.status, json.loads(answer.body)

    assert await asked("/readyz") == (200, {"status": "ready"})
    reasons += ["one thing", "another"]
    assert await asked("/readyz") == (503, {"reason": "one thing; another"})
    assert await asked("/livez") == (200, {"status": "alive"})
