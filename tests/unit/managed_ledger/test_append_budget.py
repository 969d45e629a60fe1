"""Bytes appended and unconfirmed, of all logs of a process."""

import random
from dataclasses import replace

import pytest

from magnetar.bookkeeper import codes
from magnetar.managed_ledger.append_core import ENTRY_OVERHEAD_BYTES, AppendBudget
from tests.unit.managed_ledger.cluster import CONFIG, HEAD, NAME, Appends, Cluster, eventually

ENTRY = len(HEAD) + 100 + ENTRY_OVERHEAD_BYTES


@pytest.mark.parametrize("seed", range(20))
def test_whoever_pauses_is_told_to_go_on(seed: int) -> None:
    rng, budget = random.Random(seed), AppendBudget(100)
    under_way: list[int] = []
    paused = False

    def relieve() -> None:
        nonlocal paused
        assert paused
        assert budget.in_flight <= budget.bytes_max // 2
        paused = False

    budget.on_relief = relieve
    for _ in range(500):
        if rng.random() < 0.05:
            budget.bytes_max = rng.choice([10, 100, 400])
        if not paused and rng.random() < 0.6:
            under_way.append(rng.randint(1, 60))
            budget.change(under_way[-1])
            paused = budget.must_pause()
            assert paused == (sum(under_way) > budget.bytes_max)
        elif under_way:
            budget.change(-under_way.pop(rng.randrange(len(under_way))))
        assert budget.in_flight == sum(under_way)
    while under_way:
        budget.change(-under_way.pop())
    assert not paused


async def test_logs_share_it_and_give_back_what_is_confirmed(cluster: Cluster) -> None:
    factory = cluster.factory()
    config = replace(CONFIG, ledger_entries_max=2)  # parts of a batch wait for the next ledger
    one = Appends(await factory.open(NAME, config))
    other = Appends(await factory.open(NAME + "2", config))
    one.send(b"")
    other.send(b"")
    await one.settle()
    await other.settle()
    budget = factory.append_budget
    assert budget.in_flight == 0
    cluster.connections[-1].hold_adds = True
    one.send(*[b"x" * 100] * 5)
    other.send(*[b"x" * 100] * 3)
    assert budget.in_flight == 8 * ENTRY
    cluster.connections[-1].release()
    await one.settle()
    await other.settle()
    assert budget.in_flight == 0
    assert len(one.acked) == 6


async def test_what_fails_is_given_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.append_path.END_RETRY_S", 0.001)
    factory = cluster.factory()
    appends = Appends(await factory.open(NAME, CONFIG))
    cluster.bookie.refuse_adds = codes.IO_ERROR
    appends.send(*[b"x" * 100] * 5)
    assert factory.append_budget.in_flight == 5 * ENTRY
    await appends.settle()
    assert appends.failed == 5
    assert factory.append_budget.in_flight == 0


async def test_a_log_that_is_fenced_or_closed_gives_it_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.closing.DRAIN_TIMEOUT_S", 0.01)
    factory = cluster.factory()
    fenced = Appends(await factory.open(NAME, CONFIG))
    closed = Appends(await factory.open(NAME + "2", CONFIG))
    for appends in (fenced, closed):
        await appends.stored(b"")
    await cluster.factory().open(NAME, CONFIG)
    cluster.connections[0].hold_adds = True
    fenced.send(b"x" * 100)
    closed.send(b"x" * 100)
    assert factory.append_budget.in_flight == 2 * ENTRY
    await closed.log.close()
    assert factory.append_budget.in_flight == ENTRY
    cluster.connections[0].release()
    await eventually(lambda: fenced.failed == 1)
    assert factory.append_budget.in_flight == 0
    fenced.send(b"x" * 100)  # refused at once: it never was under way
    assert factory.append_budget.in_flight == 0
    await fenced.settle()
