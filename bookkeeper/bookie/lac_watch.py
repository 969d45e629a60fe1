"""Who waits for a ledger's last confirmed entry to grow (long polls of tailing readers)."""

import asyncio
from collections.abc import Iterable

from magnetar.bookkeeper.packet import decode_header
from magnetar.bookkeeper.transport import AddRequest, LacReply


class LacWatch:
    """Wakes waiters when entries or an explicit LAC of their ledger became durable. Loop only.

    Costs one test of a dict per journal group while no client waits.
    """

    def __init__(self) -> None:
        # Woken in the order of their coming: a set's would differ from run to run.
        self._waiting: dict[int, dict[asyncio.Future[bool], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, ledger_id: int) -> asyncio.Future[bool]:
        """A future that the next change completes; give it to ``end`` whatever happens.

        Its result is True if the ledger was fenced or dropped: nothing more may come.
        """
        changed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(ledger_id, {})[changed] = None
        return changed

    def end(self, ledger_id: int, changed: asyncio.Future[bool]) -> None:
        waiting = self._waiting.get(ledger_id)
        if waiting is not None:
            waiting.pop(changed, None)
            if not waiting:
                del self._waiting[ledger_id]

    def on_durable(self, answered: Iterable[object]) -> None:
        """A journal group with these requests is durable."""
        for request in answered:
            if isinstance(request, AddRequest) and request.ledger_id in self._waiting:
                self.on_change(request.ledger_id)

    def on_change(self, ledger_id: int) -> None:
        self._wake(ledger_id, False)

    def on_end(self, ledger_id: int) -> None:
        """The ledger was fenced or dropped."""
        self._wake(ledger_id, True)

    def _wake(self, ledger_id: int, is_end: bool) -> None:
        for changed in self._waiting.get(ledger_id, ()):
            if not changed.done():
                changed.set_result(is_end)

    def wake_all(self) -> None:
        for ledger_id in self._waiting:
            self.on_change(ledger_id)


def told_lac(reply: LacReply) -> int:
    """The highest confirmed entry that an answer proves."""
    packet = reply.last_packet
    return max(reply.explicit_lac, -1 if packet is None else decode_header(packet).lac)
