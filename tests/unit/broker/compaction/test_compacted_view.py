"""Where a consumer of the compacted view begins, and what it reads while the view changes."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.broker.compaction.compacted_ledger import CompactedRun
from magnetar.broker.compaction.compacted_view import CompactedLog, CompactedView
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Cluster, appended, eventually


class Reader:
    """A cursor that holds nothing back, as subscriptions of readers have; and its view."""

    def __init__(self, log: ManagedLedger, name: str, start: Position, horizon: Position) -> None:
        self.cursor = log.new_non_durable_cursor(start, name)
        self.marked = self.cursor.mark_delete
        compacted: Any = SimpleNamespace(horizon=horizon)
        self.view = CompactedView(
            *(log, lambda: compacted, self.cursor),
            *((start, self.marked), lambda: self.marked),
        )

    def ack(self, position: Position) -> None:
        self.cursor.ack_cumulative(position)
        self.marked = self.cursor.mark_delete


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.close()


async def test_a_trim_is_no_acknowledgment(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, replace(CONFIG, ledger_entries_max=2))
    durable = await log.open_cursor("keeps all", EARLIEST)
    appends = await appended(log, *(b"%d" % number for number in range(7)))
    at = [position for position, _ in appends.acked]
    starts = {"earliest": EARLIEST, "from an id": at[1]}
    starts |= dict.fromkeys(("acknowledged", "behind the horizon"), EARLIEST)
    readers = {name: Reader(log, name, start, at[4]) for name, start in starts.items()}
    readers["acknowledged"].ack(at[0])
    readers["behind the horizon"].ack(at[5])
    expected = [EARLIEST, at[1], at[1], at[6]]
    assert [each.view.first_unacked() for each in readers.values()] == expected
    durable.ack_cumulative(at[3])
    await eventually(lambda: log.offsets.first_position() == at[4])
    assert readers["acknowledged"].cursor.mark_delete > at[1], "the trim moved it"
    assert [each.view.first_unacked() for each in readers.values()] == expected
    readers["acknowledged"].ack(at[4])
    assert readers["acknowledged"].view.first_unacked() == at[5]


class Replaced:
    """A compacted ledger that another compaction deletes while it is read.

    Attributes:
        by: what comes in its place, told to ``on_read``; None: it can't be read, and stays.
    """

    def __init__(self, horizon: Position, by: object, on_read: Callable[[object], None]) -> None:
        self.horizon, self.reads = horizon, 0
        self._by, self._on_read = by, on_read

    async def find(self, position: Position) -> int:
        return 0

    async def read(self, entry: int, bytes_max: int) -> CompactedRun:
        self.reads += 1
        self._on_read(self._by or self)
        raise NoSuchLedgerError("deleted")


async def test_a_view_that_is_replaced_while_it_is_read(cluster: Cluster) -> None:
    log = await cluster.factory().open(NAME, CONFIG)
    found = EntryBatch(5, 3, [b"head"], [b"body"])

    class New:
        horizon = (5, 9)
        find = Replaced.find

        async def read(self, entry: int, bytes_max: int) -> CompactedRun:
            return CompactedRun([found], 1)

    current = list[Any]()
    old = Replaced((5, 7), New(), lambda new: current.append(new))
    current.append(old)
    view = CompactedLog(log, lambda: current[-1])
    assert await view.read(EARLIEST, 10, 1000) == found, "the next one is read at once"
    assert old.reads == 1
    lost = Replaced((5, 7), None, lambda _: None)
    current.append(lost)
    with pytest.raises(NoSuchLedgerError):
        await view.read(EARLIEST, 10, 1000)
    assert lost.reads == 1, "whoever asked waits before it asks again"
