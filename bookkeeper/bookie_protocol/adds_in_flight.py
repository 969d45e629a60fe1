"""Which adds a bookie hasn't answered: replies name a ledger and an entry, nothing else.

Invariant: of a ledger no entry is under way twice, so that each reply is of one request. Requests
with an entry that is under way wait behind it. Pure.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie_protocol.frames_v2 import AddReplies
from magnetar.bookkeeper.bookie_protocol.result_codes import EOK
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import AddRequest


@dataclass(slots=True, eq=False)
class _Sent:
    request: AddRequest
    first: int
    end: int
    is_row: bool
    """It has all entries from ``first`` to ``end``."""
    left: int
    """Entries without a reply."""
    sent_s: float
    code: int = EOK.v2
    """Of the first reply that isn't EOK."""


@dataclass(slots=True)
class _Ledger:
    sent: deque[_Sent] = field(default_factory=deque)
    end: int = 0
    """Behind the highest entry that is under way."""
    waiting: deque[AddRequest] = field(default_factory=deque)


class AddsInFlight:
    """Requests at one connection, and how many entries they have.

    ``now_s``: of a monotonic clock.
    """

    def __init__(self) -> None:
        self.entries = 0
        """Under way."""
        self._ledgers: dict[int, _Ledger] = {}

    def begin(self, request: AddRequest, now_s: float) -> bool:
        """Count it as sent; False: it has to wait, ``answered`` gives it back to be sent."""
        ledger = self._ledgers.get(request.ledger_id)
        if ledger is None:
            ledger = self._ledgers[request.ledger_id] = _Ledger()
        elif ledger.waiting or _overlaps(ledger, request.entry_ids):
            ledger.waiting.append(request)
            return False
        self._send(ledger, request, now_s)
        return True

    def answered(
        self, replies: AddReplies, now_s: float
    ) -> tuple[list[tuple[AddRequest, int]], list[AddRequest]]:
        """Requests that are answered whole, with their code of version 2; those to be sent now.

        Raises:
            FrameError: a reply to what wasn't asked; nothing that follows can be believed.
        """
        ledger = self._ledgers.get(replies.ledger_id)
        first, end = replies.first, replies.first + replies.count
        done: list[tuple[AddRequest, int]] = []
        found = 0
        for sent in ledger.sent if ledger is not None else ():
            if sent.end <= first:
                continue  # answered later than what was sent later
            if sent.is_row and first <= sent.first and sent.end <= end:
                count = sent.end - sent.first
            else:
                count = _count(sent.request.entry_ids, first, end)
            if not count:
                continue
            sent.left -= count
            if sent.left < 0:
                break
            if replies.code != EOK.v2 and sent.code == EOK.v2:
                sent.code = replies.code
            if not sent.left:
                done.append((sent.request, sent.code))
            found += count
            if found == replies.count:
                break
        if ledger is None or found != replies.count:
            raise FrameError(
                f"replies to adds {first} to {end - 1} of ledger {replies.ledger_id},"
                " which aren't under way"
            )
        self.entries -= found
        return done, self._after(replies.ledger_id, ledger, now_s) if done else []

    def waits_s(self, now_s: float) -> float:
        """How long the oldest is under way; 0: none is."""
        return max((now_s - each.sent[0].sent_s for each in self._ledgers.values()), default=0.0)

    def take_all(self) -> Iterator[AddRequest]:
        """All that are under way or wait, ledger by ledger; none is left."""
        ledgers, self._ledgers, self.entries = self._ledgers, {}, 0
        for ledger in ledgers.values():
            yield from (sent.request for sent in ledger.sent)
            yield from ledger.waiting

    def _send(self, ledger: _Ledger, request: AddRequest, now_s: float) -> None:
        ids = request.entry_ids
        first, end, count = ids[0], ids[-1] + 1, len(ids)
        is_row = count == end - first
        ledger.sent.append(_Sent(request, first, end, is_row, count, now_s))
        if end > ledger.end:
            ledger.end = end
        self.entries += count

    def _after(self, ledger_id: int, ledger: _Ledger, now_s: float) -> list[AddRequest]:
        """Some requests of the ledger were answered: those that may be sent."""
        if ledger.sent[0].left:  # out of turn
            ledger.sent = deque(sent for sent in ledger.sent if sent.left)
        else:
            while ledger.sent and not ledger.sent[0].left:
                ledger.sent.popleft()
        ready: list[AddRequest] = []
        while ledger.waiting and not _overlaps(ledger, ledger.waiting[0].entry_ids):
            ready.append(ledger.waiting.popleft())
            self._send(ledger, ready[-1], now_s)
        if not ledger.sent:
            del self._ledgers[ledger_id]
        return ready


def _overlaps(ledger: _Ledger, ids: Sequence[int]) -> bool:
    """Some of these entries may be under way."""
    if ids[0] >= ledger.end:
        return False
    first, end = ids[0], ids[-1] + 1
    return any(_count(sent.request.entry_ids, first, end) for sent in ledger.sent)


def _count(ids: Sequence[int], first: int, end: int) -> int:
    """How many of the ascending ids are in the range."""
    if type(ids) is range:
        return max(0, min(end, ids[-1] + 1) - max(first, ids[0]))
    return bisect_left(ids, end) - bisect_left(ids, first)
