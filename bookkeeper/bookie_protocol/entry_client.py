"""What clients of bookies of both kinds have in common: a channel for adds, and one for reads."""

from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.add_channel import AddChannel
from magnetar.bookkeeper.bookie_protocol.read_channel import ReadChannel
from magnetar.bookkeeper.transport import AddRequest


class EntryClient(BookieClient):
    """One bookie; connects when it is first needed and again after failures."""

    def __init__(self, bookie_id: str, adds: AddChannel, reads: ReadChannel) -> None:
        self._bookie_id, self._adds, self._reads = bookie_id, adds, reads

    @property
    def bookie_id(self) -> str:
        return self._bookie_id

    @property
    def is_backlogged(self) -> bool:
        return self._adds.is_slow

    @property
    def pending_bytes(self) -> int:
        """Adds queued or unanswered."""
        return self._adds.pending_bytes

    @property
    def pending_requests(self) -> int:
        return self._adds.pending_requests + self._reads.pending_requests

    def add_entries(self, request: AddRequest) -> None:
        self._adds.add(request)

    async def close(self) -> None:
        """Answer everything that waits with UNAVAILABLE and disconnect."""
        await self._adds.close()
        await self._reads.close()
