"""Rounds of auto-recovery whose store fails at one call, or for one page, ledger or bookie."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.bookkeeper.replication import auditor as auditor_module
from magnetar.bookkeeper.replication.audit_pass import AuditPass
from magnetar.bookkeeper.replication.auditor import Auditor
from magnetar.bookkeeper.replication.auditor_checks import ChecksConfig
from magnetar.bookkeeper.replication.cluster_watch import ClusterWatch, read_zones
from magnetar.bookkeeper.replication.replication_worker import read_suspended_bookies
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZonePhase
from magnetar.bookkeeper.service_info import RACKS_PATH
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.item_errors import ItemPass
from magnetar.metadata.store import MetadataStore
from tests.unit.bookkeeper.replication.audited_cluster import eventually
from tests.unit.bookkeeper.replication.cluster import Cluster as RepairedCluster
from tests.unit.bookkeeper.replication.cluster import until, virtual
from tests.unit.bookkeeper.replication.test_auditor_checks import Checked

PAGE = 10_000


class Faults:
    """Calls of one session by number; ``fails`` says which of them, or of which path, fail."""

    def __init__(self, store: MetadataStore) -> None:
        self.calls = 0
        self.fails: Callable[[int, str], bool] = lambda number, path: False
        for name in ("get", "put", "children", "exists", "delete"):
            setattr(store, name, self._call(getattr(store, name)))

    def _call(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(path: str, *more: Any, **named: Any) -> Any:
            self.calls += 1
            if self.fails(self.calls, path):
                raise MetadataError(f"{path}: connection loss")
            return await real(path, *more, **named)

        return call


@pytest.fixture
async def cluster() -> AsyncIterator[Checked]:
    made = Checked()
    await made.come(*made.bookies)
    yield made
    await made.store.close()


@pytest.fixture
async def auditor(cluster: Checked) -> AsyncIterator[Auditor]:
    made = cluster.auditor()
    await made.refresh()
    yield made
    await made.close()


async def three_pages(cluster: Checked, *bookies: str) -> list[list[int]]:
    """Two ledgers in each of three directories."""
    return [
        [await cluster.ledger(bookies, above=page * PAGE + index) for index in range(2)]
        for page in range(3)
    ]


async def test_an_audit_misses_one_page_or_ledger_of_a_failing_call_and_no_other(
    cluster: Checked, auditor: Auditor
) -> None:
    """Each call of a walk fails once: what it was for is left out, and found by the next walk."""
    pages = await three_pages(cluster, "gone", "b0")
    groups = [set(page) for page in pages] + [{each} for page in pages for each in page] + [set()]
    ledgers = {each for page in pages for each in page}
    faults = Faults(auditor.ports.store)
    count, at = 1, 0
    while at < count:
        at += 1
        for ledger_id in await cluster.marked():
            await cluster.store.delete_recursive(cluster.marks.marker_path(ledger_id))
        faults.calls, faults.fails = 0, lambda number, path, at=at: number == at  # type: ignore[misc]
        is_whole = await AuditPass(auditor.ports.ledgers, auditor, ItemPass()).run()
        missed = ledgers - set(await cluster.marked())
        assert missed in groups or at <= 3, (at, missed)  # the first three list the directories
        assert not (missed and is_whole), at
        faults.calls, faults.fails = 0, lambda number, path: False
        assert await AuditPass(auditor.ports.ledgers, auditor, ItemPass()).run()
        assert set(await cluster.marked()) == ledgers
        count = max(count, faults.calls)
    assert count > 20


async def test_what_keeps_failing_in_audits_is_told_once(
    cluster: Checked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    first, second, third = await three_pages(cluster, "gone", "b0")
    auditor = cluster.auditor()
    Faults(auditor.ports.store).fails = lambda number, path: path == "/ledgers/00/0001"
    for _ in range(3):
        assert not await auditor._run_audit("test")
    assert set(await cluster.marked()) == {*first, *third}
    assert not set(second) & set(await cluster.marked())
    assert [each for each in caplog.messages if each.startswith("audit")] == [
        "audit: failed for 1, from now on tried in silence; "
        "/ledgers/00/0001: /ledgers/00/0001: connection loss"
    ]
    await auditor.close()


async def test_a_node_of_a_bookie_that_cannot_be_read_hides_no_bookie(cluster: Checked) -> None:
    """Each read of a node fails once: its bookie is where its other node says."""
    whole = await ClusterWatch(cluster.store, lambda: None).read()
    store = cluster.store.new_session()
    faults, failed, at = Faults(store), list[str](), 0

    def fails(number: int, path: str) -> bool:
        if number == at and path.endswith(tuple(cluster.bookies)):
            failed.append(path)
            return True
        return False

    faults.fails = fails
    while at == 0 or at <= faults.calls:
        at += 1
        faults.calls, already = 0, len(failed)
        each = ItemPass()
        assert await ClusterWatch(store, lambda: None).read(each) == whole
        assert list(each.failed) == failed[already:]
    assert len(failed) == 2 * len(cluster.bookies)


async def test_a_bookie_of_which_nothing_can_be_read_is_where_it_was(cluster: Checked) -> None:
    whole = await ClusterWatch(cluster.store, lambda: None).read()
    store = cluster.store.new_session()
    faults, news = Faults(store), asyncio.Event()
    watch = ClusterWatch(store, news.set)
    faults.fails = lambda number, path: path == RACKS_PATH
    with pytest.raises(MetadataError):
        await watch.read()  # what operators say of places must be known once
    watch.close()
    watch = ClusterWatch(store, news.set)
    faults.fails = lambda number, path: path.endswith("/a1")
    guessed = await watch.read()
    assert guessed.available == {**whole.available, "a1": "default-zone"}
    assert watch.unplaced == {"a1"}
    assert (await read_zones(store))["a1"] == "", "it may be in any zone"
    await ZoneStore(cluster.store).write({"b": ZonePhase.HELD})
    assert await read_suspended_bookies(store) == {"b0", "b1", "b2", "a1"}
    faults.fails = lambda number, path: False
    assert await watch.read() == whole
    assert not watch.unplaced
    news.clear()
    await cluster.go("a1")
    await cluster.come("a1")  # its nodes are written anew
    await news.wait()
    faults.fails = lambda number, path: path.endswith("/a1") or path == RACKS_PATH
    assert await watch.read() == whole
    # Most of them: that is the store.
    faults.fails = lambda number, path: path.endswith(tuple(cluster.bookies))
    with pytest.raises(MetadataError):
        await ClusterWatch(store, lambda: None).read()
    watch.close()


async def test_a_place_that_keeps_failing_is_told_once_and_read_again(
    cluster: Checked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(auditor_module, "_UNREAD_S", 0.001)
    made = cluster.auditor()
    path, reads = "/ledgers/available/a1", 0

    def fails(number: int, each: str) -> bool:
        nonlocal reads
        reads += each == path
        return each == path and reads < 4

    Faults(made.ports.store).fails = fails
    made.start()

    async def is_over() -> bool:
        return f"places of bookies: fails no longer for 1; {path}" in caplog.messages

    await eventually(is_over)
    assert made.available == set(cluster.bookies)
    assert [each for each in caplog.messages if "places of bookies: failed" in each] == [
        f"places of bookies: failed for 1, from now on tried in silence; {path}: "
        f"{path}: connection loss"
    ]
    await made.close()


async def test_a_store_that_is_away_ends_the_walk(cluster: Checked, auditor: Auditor) -> None:
    for _ in range(300):
        await cluster.ledger(("gone", "b0"))
    faults = Faults(auditor.ports.store)
    faults.fails = lambda number, path: "/L" in path
    with pytest.raises(MetadataError):
        await AuditPass(auditor.ports.ledgers, auditor, ItemPass()).run()
    assert faults.calls < 200


async def test_a_check_that_fails_for_one_ledger_goes_over_the_others(
    cluster: Checked, auditor: Auditor, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a failure of ours, which ended the auditor each time."""
    caplog.set_level(logging.WARNING)
    cluster.config = ChecksConfig(silent_grace_s=0.01)
    (_, bad), (torn, _), _ = await three_pages(cluster, "a1", "b0")
    cluster.bookies["a1"].entries = frozenset(range(9))
    checks = cluster.checks(auditor)
    real = checks._checker.check

    async def check(metadata: Any, *more: Any, **named: Any) -> Any:
        if metadata.ledger_id == bad:
            raise KeyError("a failure of ours")
        return await real(metadata, *more, **named)

    checks._checker.check = check  # type: ignore[method-assign]  # the fault
    for _ in range(2):
        assert await checks.check_all_ledgers()
    marked = set(await cluster.marked())
    assert torn in marked
    assert len(marked) == 5
    assert bad not in marked
    assert len([each for each in caplog.messages if "check of all ledgers" in each]) == 1


async def test_a_page_that_fails_leaves_the_other_checks_incomplete(
    cluster: Checked, auditor: Auditor
) -> None:
    await three_pages(cluster, "a0", "b0")
    faults = Faults(auditor.ports.store)
    faults.fails = lambda number, path: path == "/ledgers/00/0001"
    checks = cluster.checks(auditor)
    for check in (checks.check_all_ledgers, checks.check_placement, checks.check_replicas):
        assert not await check()
    assert cluster.metrics.not_adhering == 4
    faults.fails = lambda number, path: False
    for check in (checks.check_all_ledgers, checks.check_placement, checks.check_replicas):
        assert await check()
    assert cluster.metrics.not_adhering == 6


async def test_markers_are_counted_all_or_not(cluster: Checked, auditor: Auditor) -> None:
    for ledger_id in (1, 70_000):
        await cluster.marks.mark(ledger_id, ["a0"])
    faults, checks = Faults(auditor.ports.store), cluster.checks(auditor)
    await checks.count_markers()
    assert cluster.metrics.marked_now == 2
    faults.fails = lambda number, path: path.endswith("/0001")
    await cluster.marks.mark(2, ["a0"])
    await checks.count_markers()
    assert cluster.metrics.marked_now == 2
    faults.fails = lambda number, path: False
    await checks.count_markers()
    assert cluster.metrics.marked_now == 3


def test_a_page_of_markers_that_fails_keeps_no_other_ledger_from_its_repair() -> None:
    async def scenario() -> None:
        async with RepairedCluster(5) as cluster:
            await cluster.write(3)
            cluster.client.ledgers._ids.skip(70_000)  # into another directory of markers
            writers = [await cluster.write(3) for _ in range(2)]
            assert writers[-1].ledger_id >> 16
            for bookie in writers[-1].metadata.segments[0].bookies[:1]:
                await cluster.lose(bookie)
            marked = await cluster.marked()
            worker = await cluster.add_worker(start=False)
            faults = Faults(cluster.session_of(worker))
            failing = "/ledgers/underreplication/ledgers/0000/0000/0000/0000"
            faults.fails = lambda number, path: path == failing
            worker.start()
            late = {each for each in marked if each >> 16}

            def is_done() -> bool:
                return worker.metrics.repair.count >= len(late)

            await until(is_done)
            assert set(await cluster.marked()) == set(marked) - late
            faults.fails = lambda number, path: False
            await cluster.until_repaired()

    virtual(scenario)
