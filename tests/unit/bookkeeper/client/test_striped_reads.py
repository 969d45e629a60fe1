"""Ledgers with E > Qw: every legal pair, every segment boundary, bounded by bytes."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.striped_runs import plan_runs
from magnetar.bookkeeper.errors import NoSuchEntryError
from magnetar.bookkeeper.transport import ReadReply, ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import created, entries, write, written

PAIRS = [(e, qw) for e in range(1, 8) for qw in range(1, e + 1)]


@given(
    st.sampled_from(PAIRS),
    st.integers(0, 50),
    st.integers(1, 60),
    st.integers(1, 20),
    st.integers(0, 9),
    st.randoms(use_true_random=False),
)
def test_runs_cover_what_they_should(
    pair: tuple[int, int], first: int, count: int, runs_max: int, shift: int, rng: Random
) -> None:
    size, write_quorum = pair

    def order(slots: Sequence[int]) -> list[int]:
        return rng.sample(slots, len(slots))

    end = first + count
    runs = plan_runs(first, end, pair, order, runs_max=runs_max, shift=shift)
    assert runs[0].first == first
    assert all(a.end == b.first for a, b in pairwise(runs))
    assert len(runs) <= runs_max
    assert runs[-1].end <= end
    assert runs[-1].end == end or len(runs) == runs_max
    for run in runs:
        assert run.first < run.end
        assert run.end - run.first <= write_quorum or size == write_quorum
        for entry_id in range(run.first, run.end):
            assert quorum.has_entry(entry_id, run.slot, size, write_quorum)


@pytest.mark.parametrize("pair", [p for p in PAIRS if p[0] > p[1]])
def test_without_an_order_runs_are_as_long_as_they_can_be(pair: tuple[int, int]) -> None:
    runs = plan_runs(0, 20 * pair[1], pair, lambda slots: slots, runs_max=20)
    assert [run.end - run.first for run in runs] == [pair[1]] * 20


def test_ledgers_share_an_ensemble_that_is_a_multiple_of_the_write_quorum() -> None:
    asked = {
        run.slot
        for shift in range(4)
        for run in plan_runs(0, 40, (4, 2), lambda slots: slots, runs_max=9, shift=shift)
    }
    assert asked == {0, 1, 2, 3}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    pair=st.sampled_from(PAIRS),
    cuts=st.lists(st.integers(1, 9), max_size=3),
    reads=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), min_size=1, max_size=6),
    bytes_max=st.sampled_from([1, 300, 2000, 1 << 20]),
    down=st.integers(0, 12),
)
async def test_any_read_of_any_ledger(
    pair: tuple[int, int],
    cuts: list[int],
    reads: list[tuple[int, int]],
    bytes_max: int,
    down: int,
) -> None:
    """Random ranges over random segments; one bookie is down if others have all it holds."""
    size, write_quorum = pair
    store = EmbeddedMetadataStore.open(None)
    cluster = Cluster(store)
    cluster.client = BookKeeperClient(
        *(store, cluster.pool, cluster.client._placement),
        clock=lambda: 0,
        rng=cluster.client._rng,
    )
    cluster.add_bookies(size + len(cuts))
    writer = await cluster.client.create_ledger(LedgerConfig(size, write_quorum, write_quorum))
    written = 0
    for cut in cuts:
        written += cut
        await write(writer, written, per_append=3)
        cluster.bookies[writer.metadata.last_segment.bookies[cut % size]].up = False
        # The next write goes to another ensemble.
    await write(writer, 40, per_append=3)
    for bookie in cluster.bookies.values():
        bookie.up = True
    if write_quorum > 1:
        names = sorted(cluster.bookies)
        cluster.bookies[names[down % len(names)]].up = False
    reader = writer.reader()
    for first, count in reads:
        last = min(39, first + count - 1)
        run = await reader.read(first, last, bytes_max)
        assert run.first == first
        assert 1 <= len(run.bodies) <= last - first + 1
        assert run.bodies == entries(first, len(run.bodies))
        size_of_rest = sum(36 + len(body) for body in run.bodies)
        assert len(run.bodies) == 1 or size_of_rest <= bytes_max
    await store.close()


async def test_bookies_are_asked_at_the_same_time(cluster: Cluster) -> None:
    """One call brings all they hold, a request each, without waiting between."""
    writer = await written(cluster, LedgerConfig(5, 3, 2), 60)
    for client in cluster.clients.values():
        client.reads.clear()
    run = await writer.reader().read(0, 59, 1 << 20)
    assert run.bodies == entries(0, 60)
    assert sum(len(client.reads) for client in cluster.clients.values()) == 2  # 3 and 2 of each 5


async def test_who_is_away_costs_a_request_now_and_then(cluster: Cluster) -> None:
    """The others hold everything: reads don't end at each of its rows for as long as it is away."""
    writer = await written(cluster, LedgerConfig(3, 2, 2), 300)
    for away in cluster.bookies.values():
        away.up = False
        for client in cluster.clients.values():
            client.reads.clear()
        reader, first = writer.reader(), 0
        while first < 300:
            run = await reader.read(first, 299, 1 << 20)
            assert run.bodies == entries(first, len(run.bodies))
            first += len(run.bodies)
        assert sum(len(client.reads) for client in cluster.clients.values()) <= 6
        away.up = True


async def test_reads_become_fewer_when_entries_are_large(cluster: Cluster) -> None:
    writer = await created(cluster, LedgerConfig(3, 2, 2))
    writer.append([b"head"] * 30, [bytes(1000)] * 30)
    await eventually(lambda: writer.last_confirmed == 29)
    reader = writer.reader()
    await reader.read(0, 29, 4500)
    for client in cluster.clients.values():
        client.reads.clear()
    run = await reader.read(10, 29, 4500)
    assert len(run.bodies) == 4
    asked = [count for client in cluster.clients.values() for _, count in client.reads]
    assert sum(asked) == 4  # 1,040 bytes each


async def test_a_hole_in_a_later_run_only_shortens_the_read(cluster: Cluster) -> None:
    writer = await written(cluster, LedgerConfig(4, 2, 2), 20)
    ledger_id = writer.ledger_id
    holders = [b for b in cluster.bookies.values() if 9 in b.ledgers[ledger_id].entries]
    del holders[0].ledgers[ledger_id].entries[9]
    reader, found = writer.reader(), 0
    while found < 20:
        run = await reader.read(found, 19, 1 << 20)
        assert run.bodies == entries(found, len(run.bodies))
        found += len(run.bodies)
    del holders[1].ledgers[ledger_id].entries[9]
    with pytest.raises(NoSuchEntryError):
        await reader.read(9, 19, 1 << 20)


async def test_a_corrupt_entry_of_a_later_run_is_reported_and_read_elsewhere(
    cluster: Cluster,
) -> None:
    writer = await written(cluster, LedgerConfig(3, 2, 2), 12)
    reader = writer.reader()
    corrupt: list[tuple[int, int, str]] = []
    reader.on_corrupt = lambda *found: corrupt.append(found)
    victim = next(b for b in cluster.bookies.values() if 7 in b.ledgers[writer.ledger_id].entries)
    victim.corrupt(writer.ledger_id, 7)
    for first in range(12):
        run = await reader.read(first, 11, 1 << 20)
        assert run.bodies == entries(first, len(run.bodies))
    assert set(corrupt) == {(writer.ledger_id, 7, victim.bookie_id)}


async def test_a_bookie_that_gives_more_than_its_share_is_cut(cluster: Cluster) -> None:
    """An answer longer than what was asked for must not shift what follows it."""
    writer = await written(cluster, LedgerConfig(3, 2, 2), 12)
    for bookie in cluster.bookies.values():
        everything = dict(bookie.ledgers[writer.ledger_id].entries)
        for other in cluster.bookies.values():
            everything |= other.ledgers[writer.ledger_id].entries
        bookie.ledgers[writer.ledger_id].entries = everything
    for client in cluster.clients.values():

        async def all_of_it(
            request: ReadRequest, entries: dict[int, bytes] = everything
        ) -> ReadReply:
            ids = filter(request.stripe.has, range(request.first, 12))
            given: list[bytes | memoryview] = [entries[e] for e in ids]
            return ReadReply(codes.OK, request.first, given)

        client.read_entries = all_of_it  # type: ignore[method-assign]
    run = await writer.reader().read(0, 8, 1 << 20)
    assert run.bodies == entries(0, 9)
