"""Where a consumer of the compacted view begins, after acknowledgments and after trims."""

from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.broker.compaction.compacted_view import CompactedView
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
