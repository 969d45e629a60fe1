"""Expiry by Pulsar's rule, analysis of a backlog, properties: what admins do to a subscription."""

import pytest

from magnetar.broker.protocol.entry_header import FLAG_MARKER
from magnetar.broker.subscription import subscription_admin as admin
from magnetar.broker.subscription.consumer import SHARED
from magnetar.managed_ledger.position import Position
from magnetar.metadata.loop_turns import run_at_once
from tests.unit.broker.dispatch.builders import Bench
from tests.unit.broker.dispatch.doubles import head

NO_LIMIT = 10**9


async def analyze(
    bench: Bench,
    start: Position | None = None,
    *,
    entries_max: int = NO_LIMIT,
    time_max_ms: int = NO_LIMIT,
) -> admin.BacklogAnalysis:
    return await admin.analyze_backlog(
        bench.subscription, start, entries_max=entries_max, time_max_ms=time_max_ms
    )


async def test_an_empty_backlog() -> None:
    metrics = await analyze(Bench())
    assert metrics == admin.BacklogAnalysis()


async def test_only_what_is_left_counts() -> None:
    bench = Bench([3, 2])
    bench.ledger.append(head(messages=10), ledger_id=11)
    bench.cursor.ack([(10, 0), (10, 2)])
    bench.cursor.ack_batch((11, 2), [0b11])  # two of ten are left
    metrics = await analyze(bench)
    assert (metrics.entries, metrics.messages, metrics.markers) == (4, 5, 0)
    assert (metrics.first, metrics.last) == ((10, 1), (11, 2))
    later = await analyze(bench, (11, 1))
    assert (later.entries, later.messages, later.first) == (2, 3, (11, 1))
    before = await analyze(bench, (-1, -1))
    assert before == metrics, "nothing before the first unacknowledged entry counts"
    assert (await analyze(bench, (17, 0))).entries == 0


async def test_markers_are_no_messages() -> None:
    bench = Bench([1])
    bench.ledger.append(head(flags=FLAG_MARKER), ledger_id=10)
    metrics = await analyze(bench)
    assert (metrics.entries, metrics.messages, metrics.markers) == (2, 1, 1)


@pytest.mark.parametrize(("entries_max", "aborted"), [(4, True), (5, False), (6, False)])
async def test_a_scan_ends_at_its_limit(entries_max: int, aborted: bool) -> None:
    metrics = await analyze(Bench([3, 2]), entries_max=entries_max)
    assert (metrics.entries, metrics.aborted) == (min(entries_max, 5), aborted)


async def test_a_scan_ends_after_its_time() -> None:
    bench = Bench([3, 2])
    metrics = await analyze(bench, time_max_ms=0)
    assert (metrics.entries, metrics.aborted) == (3, True), "one read"


async def test_expiry_by_age() -> None:
    bench = Bench()
    now_ms = bench.service.now_ms
    assert not await admin.expire_older(bench.subscription, 0), "nothing there"
    for age_s in (50, 40, 3):
        bench.ledger.append(head(publish_ms=now_ms - age_s * 1000), ledger_id=10)
    assert await admin.expire_older(bench.subscription, 60), "begun: nobody is connected"
    assert bench.cursor.state.backlog == 3
    assert await admin.expire_older(bench.subscription, 10)
    assert bench.cursor.mark_delete == (10, 1)
    await bench.consumer(SHARED)
    assert not await admin.expire_older(bench.subscription, 10), "its consumer will see to it"
    assert await admin.expire_older(bench.subscription, 2)
    assert bench.cursor.state.backlog == 0


async def test_a_long_backlog_is_expired_beside_a_consumer() -> None:
    bench = Bench()
    for _ in range(1000):
        bench.ledger.append(head(publish_ms=bench.service.now_ms), ledger_id=10)
    await bench.consumer(SHARED)
    assert await admin.expire_older(bench.subscription, 10)
    assert bench.cursor.state.backlog == 1000


async def test_expiry_up_to_a_position() -> None:
    bench = Bench([3, 2])
    run_at_once(bench.subscription.sample_steps(1_000))
    assert await admin.expire_upto(bench.subscription, (10, 1))
    run_at_once(bench.subscription.sample_steps(5_000))
    assert bench.subscription.stats(5_000)["msgRateExpired"] == 0.5
    assert bench.cursor.mark_delete == (10, 1)
    assert await admin.expire_upto(bench.subscription, (10, 0)), "done before"
    assert not await admin.expire_upto(bench.subscription, (11, 2)), "beyond the end"
    assert bench.cursor.mark_delete == (10, 1)
    assert bench.subscription.expired_entries == 2


@pytest.mark.parametrize("acked", [[], [(10, 1)], [(10, 1), (11, 0), (12, 3)], [(12, 2), (12, 3)]])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 10, 1000])
async def test_skipping_takes_so_many_or_all_there_are(
    acked: list[tuple[int, int]], count: int
) -> None:
    bench = Bench([3, 2, 4])
    bench.cursor.ack(acked)
    before = bench.cursor.state.backlog
    await admin.skip_messages(bench.subscription, count)
    assert bench.cursor.state.backlog == max(before - count, 0)
    bench.ledger.append(head(), ledger_id=12)
    assert bench.cursor.state.backlog == max(before - count, 0) + 1, "nothing that came later"


async def test_skipping_clearing_and_properties() -> None:
    bench = Bench([3, 2])
    bench.cursor.ack([(10, 1)])
    await admin.skip_messages(bench.subscription, 2)
    assert bench.cursor.mark_delete == (10, 2)
    await admin.clear_backlog(bench.subscription)
    assert bench.cursor.state.backlog == 0
    await admin.set_properties(bench.subscription, {"a": "b"})
    assert bench.subscription.properties == bench.cursor.cursor_properties == {"a": "b"}
