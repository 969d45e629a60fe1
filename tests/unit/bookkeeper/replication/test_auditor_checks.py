"""The periodic checks: what they count and mark, and when they run."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper import packet
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.placement.policy import Adherence
from magnetar.bookkeeper.client.pool import BookiePool, UnreachableBookie
from magnetar.bookkeeper.codes import NO_ENTRY, OK, UNAVAILABLE
from magnetar.bookkeeper.replication.auditor import Auditor
from magnetar.bookkeeper.replication.auditor_checks import ChecksConfig, PeriodicChecks
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.ledger_checker import LedgerChecker
from magnetar.bookkeeper.replication.under_replication import CHECK_ALL_LEDGERS, REPLICAS_CHECK
from magnetar.bookkeeper.transport import ReadReply, ReadRequest
from tests.unit.bookkeeper.replication.audited_cluster import Cluster, eventually


class Holder(UnreachableBookie):
    """A bookie that has some entries of every ledger; None: it is silent."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id)
        self.entries: frozenset[int] | None = frozenset(range(100))
        self.asked = 0

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        self.asked += 1
        first = request.first
        if self.entries is None:
            return ReadReply(UNAVAILABLE, first, [])
        if first not in self.entries:
            return ReadReply(NO_ENTRY, first, [])
        head = packet.encode_head(request.ledger_id, first, first - 1, 0, b"", b"body")
        return ReadReply(OK, first, [head + b"body"])

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        if self.entries is None:
            return await super().list_entries(ledger_id)
        return [(entry, entry + 1) for entry in sorted(self.entries)]


class Places(RandomPlacement):
    """Adherence by the first bookie of an ensemble."""

    def adherence(self, ensemble: object, write_quorum: int, ack_quorum: int) -> Adherence:
        assert isinstance(ensemble, tuple)
        return {"a0": Adherence.FAIL, "a1": Adherence.SOFT}.get(ensemble[0], Adherence.STRICT)


class Checked(Cluster):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BookiePool()
        self.bookies = {f"{zone}{n}": Holder(f"{zone}{n}") for zone in "ab" for n in range(3)}
        for bookie in self.bookies.values():
            self.pool.add(bookie)
        self.config = ChecksConfig(silent_grace_s=0.01)

    def checks(self, auditor: Auditor) -> PeriodicChecks:
        rng = random.Random(1)
        checker = LedgerChecker(self.pool, rng, ReplicationConfig(request_timeout_s=5))
        return PeriodicChecks(auditor, self.config, self.pool, Places(rng), checker)


@pytest.fixture
async def cluster() -> AsyncIterator[Checked]:
    made = Checked()
    await made.come(*made.bookies)
    yield made
    await made.store.close()


@pytest.fixture
async def auditor(cluster: Checked) -> AsyncIterator[Auditor]:
    made = cluster.auditor(delay_ms=20)
    await made.refresh()
    yield made
    await made.close()


async def test_missing_ends_are_marked(cluster: Checked, auditor: Auditor) -> None:
    await cluster.ledger(("a0", "b0"))
    torn = await cluster.ledger(("a1", "b0"))
    cluster.bookies["a1"].entries = frozenset(range(9))  # the last one is gone
    assert await cluster.checks(auditor).check_all_ledgers()
    assert await cluster.marked() == {torn: {"a1"}}
    marker = await cluster.marks.read(torn)
    assert marker is not None
    assert marker.suspects == {"a1"}
    assert cluster.metrics.checked_ledgers == 2


async def test_a_silent_bookie_gets_the_delay_of_a_lost_one(
    cluster: Checked, auditor: Auditor
) -> None:
    ledger = await cluster.ledger(("a0", "b0"))
    holder = cluster.bookies["a0"]
    held, holder.entries = holder.entries, None
    cluster.config = ChecksConfig(silent_grace_s=0.2)
    check = asyncio.ensure_future(cluster.checks(auditor).check_all_ledgers())

    async def was_silent() -> bool:
        return holder.asked > 0

    await eventually(was_silent)
    holder.entries = held  # a restart
    assert await check
    assert holder.asked == 3  # given up after the first entry, then both ends
    assert await cluster.marked() == {}
    holder.entries, cluster.config = None, ChecksConfig(silent_grace_s=0.01)
    assert await cluster.checks(auditor).check_all_ledgers()
    assert await cluster.marked() == {ledger: {"a0"}}


async def test_who_is_gone_is_a_matter_of_its_delay(cluster: Checked) -> None:
    ledger = await cluster.ledger(("a0", "b0"))
    auditor = cluster.auditor(delay_ms=3_600_000)
    await cluster.go("a0")
    await auditor.refresh()
    assert await cluster.checks(auditor).check_all_ledgers()
    assert await cluster.marked() == {}
    await auditor.close()
    auditor = cluster.auditor(settle_ms=0)
    await auditor.refresh()
    assert await cluster.checks(auditor).check_all_ledgers()
    assert await cluster.marked() == {ledger: {"a0"}}
    await auditor.close()


async def test_a_check_is_given_up_when_repair_is_switched_off(
    cluster: Checked, auditor: Auditor
) -> None:
    await cluster.ledger(("a0", "b0"))
    cluster.bookies["a0"].entries = frozenset()
    await cluster.marks.disable("maintenance")
    await auditor.refresh()
    assert not await cluster.checks(auditor).check_all_ledgers()
    assert await cluster.marked() == {}


async def test_copies_are_counted(cluster: Checked, auditor: Auditor) -> None:
    await cluster.ledger(("a0", "b0", "b1"))
    await cluster.ledger(("a1", "b0", "b1"))
    await cluster.ledger(("a2", "b2", "b1"))
    cluster.bookies["a0"].entries = frozenset({0, 9})
    for bookie in ("b0", "b1"):
        cluster.bookies[bookie].entries = frozenset(range(9))
    cluster.bookies["b2"].entries = None
    checks = cluster.checks(auditor)
    assert await checks.check_replicas()
    metrics = cluster.metrics
    counts = (metrics.under_write_quorum, metrics.under_ack_quorum, metrics.no_replica)
    assert counts == (2, 0, 0)  # Qa is 1 here
    assert metrics.replicas_unknown == 1
    cluster.bookies["a1"].entries = frozenset()
    assert await checks.check_replicas()
    counts = (metrics.under_write_quorum, metrics.under_ack_quorum, metrics.no_replica)
    assert counts == (2, 1, 1)


async def test_places_are_held_against_the_policy(cluster: Checked, auditor: Auditor) -> None:
    await cluster.ledger(("a0", "b0"))
    await cluster.ledger(("a1", "b0"), ("a2", "b0"))
    await cluster.ledger(("a1", "b0"), ("a0", "b0"))
    await cluster.ledger(("a2", "b0"))
    assert await cluster.checks(auditor).check_placement()
    assert (cluster.metrics.not_adhering, cluster.metrics.softly_adhering) == (2, 1)


async def test_markers_are_counted(cluster: Checked, auditor: Auditor) -> None:
    cluster.config = ChecksConfig(grace_s=10)
    checks = cluster.checks(auditor)
    for ledger in range(3):
        await cluster.marks.mark(ledger, ["a0"])
    cluster.now_ms += 10_001
    await cluster.marks.mark(7, ["a0"])
    await checks.count_markers()
    assert (cluster.metrics.marked_now, cluster.metrics.marked_over_grace) == (4, 3)


async def test_a_check_runs_when_its_time_has_come(cluster: Checked) -> None:
    """The time of the last run is kept in a node: also for the next auditor."""
    cluster.config = ChecksConfig(
        bookie_check_s=0, all_ledgers_s=1000, replicas_s=0.02, census_s=0, silent_grace_s=0.01
    )
    await cluster.marks.set_check_time_ms(CHECK_ALL_LEDGERS, cluster.now_ms - 1000)
    auditor = cluster.auditor()
    auditor.start(*cluster.checks(auditor).coroutines())

    async def has_counted() -> bool:
        cluster.now_ms += 10
        return cluster.metrics.replicas_check.count >= 3

    await eventually(has_counted)
    assert cluster.metrics.check_all_ledgers.count == 0
    assert await cluster.marks.check_time_ms(REPLICAS_CHECK) is not None
    await auditor.close()
    cluster.now_ms += 1_000_000
    auditor = cluster.auditor()
    auditor.start(*cluster.checks(auditor).coroutines())

    async def has_checked() -> bool:
        last_ms = await cluster.marks.check_time_ms(CHECK_ALL_LEDGERS)
        return last_ms == cluster.now_ms

    await eventually(has_checked)
    await auditor.close()


async def test_checks_wait_while_repair_is_off(cluster: Checked) -> None:
    cluster.config = ChecksConfig(bookie_check_s=0, all_ledgers_s=1000, census_s=0)
    await cluster.marks.disable("maintenance")
    auditor = cluster.auditor()
    auditor.start(*cluster.checks(auditor).coroutines())

    async def is_skipped() -> bool:
        return cluster.metrics.skipped_checks == 1

    await eventually(is_skipped)
    assert cluster.metrics.check_all_ledgers.count == 0
    await cluster.marks.enable()

    async def has_checked() -> bool:
        return cluster.metrics.check_all_ledgers.count == 1

    await eventually(has_checked)
    await auditor.close()


async def test_the_daily_look_for_lost_bookies(cluster: Checked) -> None:
    cluster.config = ChecksConfig(bookie_check_s=0.02, all_ledgers_s=0, census_s=0)
    auditor = cluster.auditor()
    auditor.start(*cluster.checks(auditor).coroutines())

    async def are_repeated() -> bool:
        return cluster.metrics.audits.count >= 4

    await eventually(are_repeated)
    await auditor.close()
