"""The shell of a coordinator, on a log of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from magnetar.broker.errors import BrokerError, CoordinatorNotFoundError, ServiceNotReadyError
from magnetar.broker.transaction import async_coordinator
from magnetar.broker.transaction import coordinator as coordinator_core
from magnetar.broker.transaction.async_coordinator import AsyncCoordinator
from magnetar.broker.transaction.coordinator import (
    SEQUENCES_AHEAD,
    Coordinator,
    TransactionDescription,
)
from magnetar.broker.transaction.coordinator_metrics import CoordinatorsMetrics
from magnetar.broker.transaction.coordinator_records import entry_records
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.append_core import AppendDone
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from tests.unit.managed_ledger.cluster import CONFIG, Cluster

Result = TransactionId | BrokerError


class Topics:
    """Participants that refuse the first request."""

    def __init__(self) -> None:
        self.ended: list[tuple[object, ...]] = []
        self.refusals = 1

    def end_nowait(self, *_: object, **__: object) -> bool:
        return False

    async def end_partition(
        self, topic: str, transaction: TransactionId, *, commit: bool, low_watermark: int
    ) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ServiceNotReadyError("the topic is being loaded")
        self.ended.append((topic, transaction, commit, low_watermark))

    async def end_subscription(
        self,
        topic: str,
        subscription: str,
        transaction: TransactionId,
        *,
        commit: bool,
        low_watermark: int,
    ) -> None:
        self.ended.append((topic, subscription, transaction, commit, low_watermark))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    yield made
    await made.close()


async def _open(cluster: Cluster, topics: Topics) -> AsyncCoordinator:
    loop = asyncio.get_running_loop()
    core, metrics = Coordinator(0), CoordinatorsMetrics()
    coordinator = AsyncCoordinator(core, topics, lambda: cluster.now_ms, loop.create_task, metrics)
    await coordinator.open(cluster.factory(), CONFIG, 0)
    return coordinator


async def _new(coordinator: AsyncCoordinator, ttl_ms: int = 60_000) -> Result:
    answer = asyncio.get_running_loop().create_future()
    coordinator.core.new(answer.set_result, coordinator._now_ms(), ttl_ms)
    coordinator.run()
    return await answer  # type: ignore[no-any-return]


async def _add(coordinator: AsyncCoordinator, sequence: int) -> Result:
    answer = asyncio.get_running_loop().create_future()
    coordinator.core.add_partitions(answer.set_result, sequence, ["t"])
    coordinator.run()
    return await answer  # type: ignore[no-any-return]


async def _end(coordinator: AsyncCoordinator, sequence: int, *, commits: bool = True) -> Result:
    answer = asyncio.get_running_loop().create_future()
    coordinator.core.end(answer.set_result, sequence, commits=commits)
    coordinator.run()
    return await answer  # type: ignore[no-any-return]


async def test_few_participants_of_a_transaction_are_asked_at_once(cluster: Cluster) -> None:
    class Slow(Topics):
        under_way = most = 0

        async def end_partition(
            self, topic: str, transaction: TransactionId, *, commit: bool, low_watermark: int
        ) -> None:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0)
            self.under_way -= 1
            self.ended.append((topic,))

    topics = Slow()
    coordinator = await _open(cluster, topics)
    await _new(coordinator)
    names = [f"t-{number}" for number in range(120)]
    coordinator.core.add_partitions(lambda _: None, 0, names)
    assert await _end(coordinator, 0) == (0, 0)
    assert [name for (name,) in topics.ended] == names
    assert topics.most == async_coordinator.ENDS_AT_ONCE < 120


async def test_a_participant_is_asked_until_it_has_the_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_core, "RETRY_MS", 0)
    topics = Topics()
    coordinator = await _open(cluster, topics)
    await _new(coordinator)
    coordinator.core.add_partitions(lambda _: None, 0, ["t"])
    coordinator.core.add_subscriptions(lambda _: None, 0, [("t", "s")])
    ending = asyncio.ensure_future(_end(coordinator, 0))
    while not ending.done():
        cluster.now_ms += 64
        await asyncio.sleep(0.001)
    assert ending.result() == (0, 0)
    of_subscription = ("t", "s", (0, 0), True, -1)
    assert topics.ended == [of_subscription, ("t", (0, 0), True, -1), of_subscription]


async def test_the_next_owner_goes_on_and_the_old_one_refuses(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_coordinator, "_HELD_S", 60)  # else the old one hears of it any time
    topics = Topics()
    topics.refusals = 0
    old = await _open(cluster, topics)
    await _new(old)
    await _new(old)
    assert await _end(old, 0, commits=False) == (0, 0)
    owner = await _open(cluster, topics)
    assert await _new(old) == (0, 2)  # it doesn't know yet; nobody gets this one again
    assert isinstance(await _add(old, 2), CoordinatorNotFoundError)
    assert old.is_closed
    assert await _new(owner) == (0, SEQUENCES_AHEAD)
    assert await _end(owner, 1) == (0, 1)


async def test_records_that_nothing_waits_for_are_appended_with_the_next_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics()
    topics.refusals = 0
    coordinator = await _open(cluster, topics)
    await _new(coordinator)
    appends: list[int] = []
    append = ManagedLedger.append

    def counted(
        log: ManagedLedger, heads: list[bytes], bodies: list[Buffer], done: AppendDone
    ) -> None:
        assert len(bodies) == 1  # entries
        appends.append(len(entry_records(bytes(bodies[0]))))
        append(log, heads, bodies, done)

    monkeypatch.setattr(ManagedLedger, "append", counted)
    monkeypatch.setattr(async_coordinator, "_HELD_S", 60)
    await _new(coordinator)
    await _add(coordinator, 1)
    await _end(coordinator, 1)
    await _new(coordinator)
    await _add(coordinator, 2)
    assert appends == [
        2,
        1,
        3,
    ]  # records: NEW and ADD_PARTITION; COMMITTING; COMMITTED and the next two


async def test_what_was_held_back_is_stored_when_the_coordinator_moves(cluster: Cluster) -> None:
    topics = Topics()
    old = await _open(cluster, topics)
    await _new(old)
    await _new(old)
    old.close()
    await old.close_log()
    assert len((await _open(cluster, topics)).core) == 2


async def test_what_is_held_back_is_appended_when_nothing_comes(cluster: Cluster) -> None:
    coordinator = await _open(cluster, Topics())
    await _new(coordinator)
    await _new(coordinator)
    log = coordinator.log
    assert log is not None
    stored = asyncio.Event()
    log.on_appended = stored.set
    await stored.wait()


async def test_an_old_one_is_found_in_front_of_many_that_have_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics()
    topics.refusals = 0
    coordinator = await _open(cluster, topics)
    kept = {0, 41, 42}
    for sequence in range(43):
        await _new(coordinator)
        if sequence not in kept:
            await _end(coordinator, sequence)
    looked_at = list[int]()
    look = coordinator.core.begun_before

    def counted(time_ms: int, sequences: Sequence[int]) -> list[TransactionDescription]:
        looked_at.extend(sequences)
        return look(time_ms, sequences)

    monkeypatch.setattr(coordinator.core, "begun_before", counted)
    later_ms = cluster.now_ms + 1
    for after, expected in ((-1, [0, 41]), (0, [41, 42]), (41, [42]), (42, [])):
        found = await coordinator.begun_before(later_ms, 2, after)
        assert [each.transaction.least for each in found] == expected
    assert set(looked_at) == kept


async def test_what_nobody_ends_is_aborted_in_time(cluster: Cluster) -> None:
    topics = Topics()
    topics.refusals = 0
    coordinator = await _open(cluster, topics)
    await _new(coordinator, 0)
    while len(coordinator.core):
        cluster.now_ms += 64
        await asyncio.sleep(0.001)


async def test_the_oldest_are_found_also_where_the_log_was_written_anew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their copies are behind the records of younger ones."""
    monkeypatch.setattr(coordinator_core, "REPLAY_MIN", 10)
    coordinator = await _open(cluster, Topics())
    await _new(coordinator)
    cluster.now_ms += 1000

    async def begin_and_end() -> None:
        ended = await _new(coordinator)
        assert isinstance(ended, TransactionId)
        await _end(coordinator, ended.least)

    await begin_and_end()
    await _new(coordinator)
    for _ in range(20):
        await begin_and_end()
        if next(iter(coordinator.core._live)) != 0:
            break
    assert list(coordinator.core._live) == [2, 0]
    found = await coordinator.begun_before(cluster.now_ms, 10)
    assert [each.transaction.least for each in found] == [0]
    all_ = await coordinator.begun_before(cluster.now_ms + 1, 10)
    assert [each.transaction.least for each in all_] == [0, 2]
    assert await coordinator.begun_before(cluster.now_ms + 1, 1) == found
