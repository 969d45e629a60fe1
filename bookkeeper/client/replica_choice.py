"""What the readers of one client know about bookies: the order to ask in, failures, corruption.

Shared by all ledgers of a ``BookKeeperClient``. Decides nothing about the order itself: that is
``read_order.py``.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import ReadConfig
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.read_order import ReplicaState, order_replicas
from magnetar.bookkeeper.client.speculative_read import SpeculativeRead
from magnetar.bookkeeper.errors import BookkeeperError

_log = logging.getLogger(__name__)

_REPORTS_MAX: Final = 16  # under way at a time; what is too much will be found by the scrub
_REPORTED_MAX: Final = 4096  # remembered, so that a hot entry isn't reported with every read


@dataclass(slots=True)
class ReadMetrics:
    """Counters since the client was made.

    Attributes:
        speculative: requests sent because an earlier one was slow.
        speculative_won: answered before the slow one.
        fell_over: reads served by another replica because one failed.
        corrupt: copies that didn't fit their digest.
        reported: of these, told to their bookie.
    """

    speculative: int = 0
    speculative_won: int = 0
    fell_over: int = 0
    corrupt: int = 0
    reported: int = 0


class Replicas:
    """The bookies as readers see them."""

    def __init__(
        self,
        bookies: BookiePool,
        config: ReadConfig,
    ) -> None:
        self.config = config
        self.metrics = ReadMetrics()
        self._bookies = bookies
        self._zone = zone_of(config.network_location)
        self._slow_until: dict[str, float] = {}  # loop time
        self._reports: set[asyncio.Task[None]] = set()
        self._reported: OrderedDict[tuple[str, int, int], None] = OrderedDict()

    def order(self, bookies: Sequence[str], slots: Sequence[int]) -> Sequence[int]:
        """``slots`` in the order in which to ask them, if the order is on."""
        config = self.config
        if not config.reorder or len(slots) == 1:
            return slots
        return order_replicas(
            slots,
            lambda slot: self._state(bookies[slot]),
            pending_max=config.pending_max,
            classes=config.classes,
        )

    def count(self, race: SpeculativeRead, asked: Sequence[str]) -> None:
        """A race between ``asked`` is over."""
        metrics = self.metrics
        if race.speculative:
            metrics.speculative += race.speculative
            if race.winner > 0:
                metrics.speculative_won += 1
                for bookie in asked[: race.winner]:
                    self.note_slow(bookie)
        elif race.winner > 0:
            metrics.fell_over += 1

    def note_code(self, bookie_id: str, code: int) -> None:
        """A read was answered with something else than entries."""
        self._bookies.health.note_code(bookie_id, code)

    def note_slow(self, bookie_id: str) -> None:
        """Another replica had to be asked because this one took its time."""
        now_s = asyncio.get_running_loop().time()
        self._slow_until[bookie_id] = now_s + self.config.slow_memory_ms / 1000

    def note_corrupt(self, ledger_id: int, entry_id: int, bookie_id: str) -> None:
        """The copy of this bookie is corrupt: count it, and tell the bookie once."""
        self.metrics.corrupt += 1
        key = (bookie_id, ledger_id, entry_id)
        if key in self._reported or len(self._reports) >= _REPORTS_MAX:
            return
        _log.warning("ledger %d: entry %d is corrupt on %s", ledger_id, entry_id, bookie_id)
        self._reported[key] = None
        if len(self._reported) > _REPORTED_MAX:
            self._reported.popitem(last=False)
        task = asyncio.get_running_loop().create_task(self._report(*key))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, bookie_id: str, ledger_id: int, entry_id: int) -> None:
        code = codes.UNAVAILABLE
        try:
            code = await self._bookies.client(bookie_id).report_corrupt(ledger_id, entry_id)
        except BookkeeperError as error:
            _log.warning("bookie %s can't be told of a corrupt entry: %s", bookie_id, error)
        if code == codes.OK:
            self.metrics.reported += 1
        else:
            self._reported.pop((bookie_id, ledger_id, entry_id), None)  # the next reader tries

    def _state(self, bookie_id: str) -> ReplicaState:
        bookies = self._bookies
        failures = bookies.health.recent_failures(bookie_id)
        if self._slow_until and self._is_slow(bookie_id):
            failures += 1
        return ReplicaState(
            is_local=not self._zone or zone_of(bookies.location(bookie_id) or "") == self._zone,
            is_registered=bookies.is_registered(bookie_id),
            is_quarantined=bookies.health.is_quarantined(bookie_id),
            failures=failures,
            pending=bookies.client(bookie_id).pending_requests,
        )

    def _is_slow(self, bookie_id: str) -> bool:
        until = self._slow_until.get(bookie_id)
        if until is None:
            return False
        if asyncio.get_running_loop().time() < until:
            return True
        del self._slow_until[bookie_id]
        return False


class FailedReplicas:
    """Who of one ledger gave nothing lately, and so is asked last.

    For striped ledgers: each time it would end the run of all others, too.
    """

    __slots__ = ("_replicas", "_until")

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._until: dict[str, float] = {}  # bookie -> loop time

    def note(self, bookie_id: str) -> None:
        """It gave nothing."""
        memory_s = self._replicas.config.slow_memory_ms / 1000
        self._until[bookie_id] = asyncio.get_running_loop().time() + memory_s

    def order(self, bookies: Sequence[str], slots: Sequence[int]) -> Sequence[int]:
        """As ``Replicas.order``, but for those."""
        slots = self._replicas.order(bookies, slots)
        if not self._until:
            return slots
        now_s = asyncio.get_running_loop().time()
        self._until = {name: until for name, until in self._until.items() if until > now_s}
        return sorted(slots, key=lambda slot: bookies[slot] in self._until)


def zone_of(location: str) -> str:
    """The first level of a path like ``/zone/upgrade-domain`` or ``/rack``; "": none."""
    return location.lstrip("/").partition("/")[0]
