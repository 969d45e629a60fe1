"""Who waits for a ledger's last confirmed entry to grow (long polls of tailing readers)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bookkeeper.transport import AddRequest


class LacWatch:
    """Wakes waiters when entries or an explicit LAC of their ledger became durable. Loop only.

    Costs one test of a dict per journal group while nobody waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, ledger_id: int) -> asyncio.Future[None]:
        """A future that the next change completes; give it to ``end`` whatever happens."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ledger_id, set()).add(changed)
        return changed

    def end(self, ledger_id: int, changed: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(ledger_id)
        if waiting is not None:
            waiting.discard(changed)
            if not waiting:
                del self._waiting[ledger_id]

    def on_durable(self, answered: Iterable[object]) -> None:
        """A journal group with these requests is durable."""
        for request in answered:
            if isinstance(request, AddRequest) and request.ledger_id in self._waiting:
                self.on_change(request.ledger_id)

    def on_change(self, ledger_id: int) -> None:
        for changed in self._waiting.get(ledger_id, ()):
            if not changed.done():
                changed.set_result(None)

    def wake_all(self) -> None:
        for ledger_id in self._waiting:
            self.on_change(ledger_id)
