"""Why the first append to a ledger waits until all of the one before is confirmed.

The schedule: a ledger is full, its last entries are on their way, the next ledger is listed, one
more entry comes. If that one were sent at once, the network could drop the entries of the old
ledger and deliver the one of the new. Nobody has been told anything, because reports are in order;
but when the owner crashes now, the log keeps a later message of its producer and lacks the earlier
ones: the producer sends those again, and its order is gone.
"""

import asyncio
from dataclasses import replace

import pytest

from magnetar.bookkeeper.transport import AddRequest
from magnetar.managed_ledger import append_path
from magnetar.managed_ledger.append_core import AppendCore
from tests.simulation.managed_ledger_bugs import HastyCore
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Cluster,
    appended,
    eventually,
    read_all,
)


@pytest.mark.parametrize(
    ("core", "kept"),
    [
        pytest.param(AppendCore, [b"first"], id="ours"),
        pytest.param(HastyCore, [b"first", b"fourth"], id="the naive order"),
    ],
)
async def test_a_crash_between_two_ledgers_keeps_no_later_entry(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, core: type[AppendCore], kept: list[bytes]
) -> None:
    monkeypatch.setattr(append_path, "AppendCore", core)
    config = replace(CONFIG, ledger_entries_max=3)
    log = await cluster.factory().open(NAME, config)
    appends = await appended(log, b"first")
    connection = cluster.connections[0]
    old = log.last_confirmed[0]
    deliver = connection.add_entries
    held: list[AddRequest] = []

    def lossy(request: AddRequest) -> None:
        if request.ledger_id != old:
            deliver(request)
        else:
            held.append(request)

    connection.add_entries = lossy  # type: ignore[method-assign]
    appends.send(b"second", b"third")  # the ledger is full, the next one is made
    await eventually(lambda: len(log.lists.info.ledgers) == 2)
    appends.send(b"fourth")
    for _ in range(20):  # ticks, in which whatever is sent arrives
        await asyncio.sleep(0)

    assert appends.open == 3  # nobody was told anything
    successor = await cluster.factory().open(NAME, config)  # which is how a crash looks

    assert [payload for _, payload in await read_all(successor)] == kept
    for request in held:  # refused now: else the old owner would wait for them
        deliver(request)
