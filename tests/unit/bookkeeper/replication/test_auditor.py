"""The auditor over a real metadata store: who is marked, when, and who is auditor."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.replication.audit_pass import AuditPass
from magnetar.bookkeeper.replication.auditor import Auditor
from magnetar.bookkeeper.replication.auditor_core import AuditorConfig
from magnetar.bookkeeper.replication.auditor_elector import AuditorElector, read_auditor
from magnetar.bookkeeper.replication.cluster_watch import ClusterWatch
from magnetar.bookkeeper.replication.metrics import AuditorMetrics
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZoneConfig, ZonePhase
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, RACKS_PATH, READ_ONLY_PATH, ServiceInfo
from magnetar.metadata.errors import OutcomeUnknownError
from magnetar.metadata.item_errors import ItemPass
from tests.unit.bookkeeper.replication.audited_cluster import SETTLE_MS, Cluster, eventually


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.come("a0", "a1", "a2", "b0", "b1", "b2")
    yield made
    await made.store.close()


@pytest.fixture
async def auditor(cluster: Cluster) -> AsyncIterator[Auditor]:
    made = cluster.auditor()
    made.start()
    yield made
    await made.close()


async def audited(cluster: Cluster, times: int) -> None:
    async def done() -> bool:
        return cluster.metrics.audits.count >= times

    await eventually(done)


async def test_the_ledgers_of_a_lost_bookie_are_marked(cluster: Cluster, auditor: Auditor) -> None:
    whole = await cluster.ledger(("a1", "b0"))
    lost = await cluster.ledger(("a0", "b0"))
    old_segment = await cluster.ledger(("a0", "b1"), ("a1", "b1"))
    both = await cluster.ledger(("a0", "b2"), ("b1", "b2"))
    await audited(cluster, 1)
    assert await cluster.marked() == {}
    await cluster.go("a0", "b2")

    async def all_marked() -> bool:
        return len(await cluster.marked()) == 3

    await eventually(all_marked)
    assert await cluster.marked() == {lost: {"a0"}, old_segment: {"a0"}, both: {"a0", "b2"}}
    assert whole not in await cluster.marked()
    assert cluster.metrics.lost_bookies == 2


async def test_read_only_bookies_arent_lost(cluster: Cluster, auditor: Auditor) -> None:
    await cluster.ledger(("a0", "b0"))
    await audited(cluster, 1)
    await cluster.come("a0", read_only=True)
    await cluster.store.delete(f"{AVAILABLE_PATH}/a0")
    auditor.want_audit("test")
    await audited(cluster, 2)
    await asyncio.sleep(3 * SETTLE_MS / 1000)  # nothing must happen
    auditor.want_audit("test")
    await audited(cluster, 3)
    assert await cluster.marked() == {}


async def test_bookies_that_nobody_knows_are_lost_at_once(cluster: Cluster) -> None:
    ledger = await cluster.ledger(("gone", "b0"))
    auditor = cluster.auditor(delay_ms=3_600_000)
    auditor.start()
    await audited(cluster, 1)
    assert await cluster.marked() == {ledger: {"gone"}}
    await auditor.close()


async def test_one_that_comes_while_ledgers_are_read_is_known(cluster: Cluster) -> None:
    """Its registration is looked for again before it is called lost."""
    await cluster.ledger(("a9", "b0"))
    auditor = cluster.auditor()
    await auditor.refresh()
    await cluster.come("a9")
    assert not auditor.is_known("a9")
    audit = AuditPass(cluster.ledgers, auditor, ItemPass())
    assert await audit.run()
    assert audit.marked == 0
    await auditor.close()


async def test_the_delay_is_an_operators_to_set(cluster: Cluster) -> None:
    ledger = await cluster.ledger(("a0", "b0"))
    auditor = cluster.auditor(delay_ms=1)
    await cluster.marks.set_lost_bookie_delay_s(3600)
    auditor.start()
    await audited(cluster, 1)
    await cluster.go("a0")

    async def is_delayed() -> bool:
        return cluster.metrics.audits_delayed == 1

    await eventually(is_delayed)
    assert await cluster.marked() == {}
    await cluster.marks.set_lost_bookie_delay_s(3600)  # the same again: now
    await cluster.until_marked({ledger: {"a0"}})
    await auditor.close()


async def test_the_delay_of_the_settings_is_stored_and_is_no_order(cluster: Cluster) -> None:
    """As Apache's Auditor does, whose shell can't trigger an audit without the node."""
    path = "/ledgers/underreplication/lostBookieRecoveryDelay"
    ledger = await cluster.ledger(("a0", "b0"))
    auditor = cluster.auditor(delay_ms=1)
    auditor.start()
    await audited(cluster, 1)
    assert (found := await cluster.store.get(path)) is not None
    assert float(found.value) == 0.001
    await auditor.close()

    later = cluster.auditor(delay_ms=3_600_000)  # with other settings, which hold
    later.start()
    await audited(cluster, 2)
    assert await cluster.marks.lost_bookie_delay_s() == 3600
    await cluster.go("a0")

    async def is_delayed() -> bool:
        return cluster.metrics.audits_delayed == 1

    await eventually(is_delayed)
    await asyncio.sleep(3 * SETTLE_MS / 1000)  # nothing must happen
    assert await cluster.marked() == {}
    assert cluster.metrics.audits.count == 2  # what the auditor itself wrote isn't an order
    # What triggeraudit of BookKeeper's shell does: what it read is written again, as an integer.
    await cluster.store.put(path, b"3600")
    await cluster.until_marked({ledger: {"a0"}})
    await later.close()

    last = cluster.auditor(delay_ms=1)  # an operator's delay holds, whatever the settings say
    last.start()
    await audited(cluster, cluster.metrics.audits.count + 1)
    assert await cluster.marks.lost_bookie_delay_s() == 3600
    assert last.delay_s == 3600
    await last.close()


async def test_a_bookie_that_returns_in_time(cluster: Cluster) -> None:
    await cluster.ledger(("a0", "b0"))
    auditor = cluster.auditor(delay_ms=3_600_000)
    auditor.start()
    await audited(cluster, 1)
    await cluster.go("a0")

    async def is_missed() -> bool:
        return cluster.metrics.lost_bookies == 1

    await eventually(is_missed)
    await cluster.come("a0")

    async def is_cancelled() -> bool:
        return cluster.metrics.audits_cancelled == 1

    await eventually(is_cancelled)
    assert await cluster.marked() == {}
    await auditor.close()


async def test_nothing_is_marked_while_repair_is_off(cluster: Cluster, auditor: Auditor) -> None:
    ledger = await cluster.ledger(("a0", "b0"))
    await audited(cluster, 1)
    await cluster.marks.disable("maintenance")

    async def is_off() -> bool:
        return cluster.metrics.disabled

    await eventually(is_off)
    await cluster.go("a0")
    await asyncio.sleep(3 * SETTLE_MS / 1000)
    assert await cluster.marked() == {}
    await cluster.marks.enable()
    await cluster.until_marked({ledger: {"a0"}})


# Zones


async def _zone_down(cluster: Cluster) -> None:
    await cluster.go("a0", "a1", "a2")

    async def is_held() -> bool:
        stored = await ZoneStore(cluster.store).read()
        return cluster.metrics.disabled and stored == {"a": ZonePhase.HELD}

    await eventually(is_held)
    assert cluster.metrics.zones["a"] == ("held", 0, 3)


async def test_what_an_operator_switched_off_stays_off(cluster: Cluster, auditor: Auditor) -> None:
    await cluster.marks.disable("maintenance")
    await _zone_down(cluster)
    await cluster.come("a0", "a1", "a2")

    async def is_up() -> bool:
        return cluster.metrics.zones["a"] == ("up", 3, 3)

    await eventually(is_up)
    off = await cluster.marks.disabled()
    assert off is not None
    assert off.reason == "maintenance"


async def test_an_operator_takes_over_from_a_zone(cluster: Cluster, auditor: Auditor) -> None:
    await _zone_down(cluster)
    await cluster.marks.disable("looking into it")
    await cluster.marks.disable("zone down: b 0/3")  # a zone never takes over from an operator
    await cluster.come("a0", "a1", "a2")

    async def is_up() -> bool:
        return cluster.metrics.zones["a"] == ("up", 3, 3)

    await eventually(is_up)
    assert not await cluster.marks.enable_after_zones()
    off = await cluster.marks.disabled()
    assert off is not None
    assert off.reason == "looking into it"


async def test_the_next_auditor_goes_on_where_the_last_one_was(cluster: Cluster) -> None:
    ledger = await cluster.ledger(("a0", "b0"))
    first = cluster.auditor()
    first.start()
    await audited(cluster, 1)
    await _zone_down(cluster)
    await first.close()
    await cluster.marks.enable()  # nobody is there to see it
    second = cluster.auditor()
    second.start()
    await cluster.until_marked({ledger: {"a0"}})
    assert await cluster.marks.is_enabled()
    await second.close()


# Faults


class Failing:
    """A store whose next writes end with an unknown outcome, before or after they happened."""

    def __init__(self, cluster: Cluster) -> None:
        self.ports = cluster.ports()
        self.left = 0
        self._put = self.ports.store.put
        self.ports.store.put = self._fail  # type: ignore[method-assign]  # what a test breaks

    async def _fail(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            if self.left % 2:
                await self._put(*args, **kwargs)
            raise OutcomeUnknownError("as the test wants it")
        return await self._put(*args, **kwargs)


@pytest.mark.parametrize("failures", range(1, 6))
async def test_lost_answers_are_repeated(
    cluster: Cluster, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.replication.auditor._RETRY_S", 0.01)
    ledger = await cluster.ledger(("a0", "b0"))
    broken = Failing(cluster)
    config = AuditorConfig(0, ZoneConfig(settle_ms=SETTLE_MS))
    auditor = Auditor(broken.ports, config, cluster.metrics)
    auditor.start()
    await audited(cluster, 1)
    broken.left = failures
    await _zone_down(cluster)
    broken.left = failures
    await cluster.marks.enable()
    await cluster.until_marked({ledger: {"a0"}})
    await auditor.close()


async def test_a_release_is_of_one_outage(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zone was back and is lost again, and the store could be read, but not written to."""
    monkeypatch.setattr("magnetar.bookkeeper.replication.auditor._RETRY_S", 0.01)
    ports, refused = cluster.ports(), False
    put = ports.store.put

    async def maybe_put(*args: Any, **kwargs: Any) -> Any:
        if refused:
            raise OutcomeUnknownError("as the test wants it")
        return await put(*args, **kwargs)

    ports.store.put = maybe_put  # type: ignore[method-assign]  # what a test breaks
    zones = ZoneConfig(settle_ms=0, holds_all=False)
    auditor = Auditor(ports, AuditorConfig(0, zones), cluster.metrics)
    auditor.start()
    await audited(cluster, 1)

    async def shows(phase: str, available: int) -> None:
        async def is_shown() -> bool:
            return cluster.metrics.zones["a"] == (phase, available, 3)

        await eventually(is_shown)

    await cluster.go("a0", "a1", "a2")
    await shows("held", 0)
    stored = ZoneStore(cluster.store)

    async def is_stored() -> bool:
        return await stored.read() == {"a": ZonePhase.HELD}

    await eventually(is_stored)
    await cluster.marks.enable()
    await shows("released", 0)
    await asyncio.sleep(0.05)
    refused = True
    await cluster.come("a0", "a1", "a2")
    await shows("up", 3)
    await cluster.go("a0", "a1", "a2")
    await shows("held", 0)
    # Somebody's event, whatever it says: what is stored is still the release of before.
    await cluster.store.put("/ledgers/underreplication/zones/by-hand", b"")
    await asyncio.sleep(0.05)
    refused = False
    await eventually(is_stored)
    await shows("held", 0)
    await auditor.close()


async def test_unreadable_values_stop_nobody(cluster: Cluster) -> None:
    bad, good = await cluster.ledger(("a0", "b0")), await cluster.ledger(("a0", "b0"))
    unmarkable = await cluster.ledger(("a0", "b0"))
    await cluster.store.put(f"/ledgers/00/0000/L{bad:04d}", b"{")
    await cluster.store.put(cluster.marks.marker_path(unmarkable), b"{")
    await cluster.store.put("/ledgers/underreplication/zones", b"[]")
    await cluster.store.put("/ledgers/underreplication/lostBookieRecoveryDelay", b"soon")
    await cluster.store.put("/ledgers/cookies/a1", b"?")
    auditor = cluster.auditor()
    auditor.start()
    await audited(cluster, 1)
    await cluster.go("a0")
    await audited(cluster, 2)
    marker = await cluster.marks.read(good)
    assert marker is not None
    assert cluster.metrics.unreadable_ledgers == 1
    assert cluster.metrics.audits.count == 2  # and not again and again
    await auditor.close()


async def test_the_place_of_a_bookie_is_that_of_its_registration(cluster: Cluster) -> None:
    changes: list[None] = []
    watch = ClusterWatch(cluster.store, lambda: changes.append(None))
    seen = await watch.read()
    assert seen.available["a0"] == seen.cookies["a0"] == "a"
    await cluster.store.put("/ledgers/cookies/a0", b'{"networkLocation": "/z/ud1"}')

    async def is_told() -> bool:
        return bool(changes)

    await eventually(is_told)
    assert (await watch.read()).cookies["a0"] == "z"
    watch.close()


async def test_operators_say_where_a_bookie_is(cluster: Cluster) -> None:
    """By its id or its address; a rack without an upgrade domain is no zone."""
    changes: list[None] = []
    watch = ClusterWatch(cluster.store, lambda: changes.append(None))
    info = ServiceInfo("c0", "/c/ud", ("host", 1)).encode()
    await cluster.store.put(f"{AVAILABLE_PATH}/c0", info)
    await cluster.store.put("/ledgers/cookies/c0", b'{"networkLocation": "/c/ud"}')
    racks = {"a0": "/x/ud1", "a1": "/rack-7", "host:1": "y/ud0"}
    document = {"group": {bookie: {"rack": rack} for bookie, rack in racks.items()}}
    await cluster.store.put(RACKS_PATH, json.dumps(document).encode())
    seen = await watch.read()
    assert (seen.available["a0"], seen.cookies["a0"]) == ("x", "x")
    assert (seen.available["a1"], seen.available["c0"]) == ("a", "y")
    await cluster.go("c0")
    assert (await watch.read()).cookies["c0"] == "y"  # where it was, it is missed
    changes.clear()
    await cluster.store.put(RACKS_PATH, b"{")

    async def is_told() -> bool:
        return bool(changes)

    await eventually(is_told)
    assert (await watch.read()).available["a0"] == "a"
    watch.close()


async def test_a_bookie_that_turns_writable_between_two_reads_is_there(cluster: Cluster) -> None:
    await cluster.come("c0", read_only=True)
    ports = cluster.ports()
    read = ports.store.children

    async def children(path: str) -> list[str]:
        found = await read(path)
        if path == AVAILABLE_PATH and "c0" not in found:
            await cluster.come("c0")
            await cluster.store.delete(f"{READ_ONLY_PATH}/c0")
        return found

    ports.store.children = children  # type: ignore[method-assign]  # what happens in between
    watch = ClusterWatch(ports.store, lambda: None)
    assert "c0" in (await watch.read()).available
    watch.close()


async def test_what_an_operator_released_isnt_written_over(cluster: Cluster) -> None:
    zones = ZoneStore(cluster.store)
    await zones.release()
    assert await zones.read() == {}
    await zones.write({"a": ZonePhase.HELD, "b": ZonePhase.DOWN})
    await zones.release()
    seen = {"a": ZonePhase.RELEASED, "b": ZonePhase.DOWN}
    assert await zones.read() == seen
    await zones.write({"a": ZonePhase.HELD, "b": ZonePhase.HELD})  # by who hasn't read it yet
    assert await zones.read() == {"a": ZonePhase.RELEASED, "b": ZonePhase.HELD}
    await zones.write({})
    await zones.write({"a": ZonePhase.HELD})  # another outage
    assert await zones.read() == {"a": ZonePhase.HELD}


# Election


def _candidate(cluster: Cluster, name: str) -> tuple[AuditorElector, AuditorMetrics, Any]:
    ports, metrics = cluster.ports(), AuditorMetrics()
    config = AuditorConfig(0, ZoneConfig(settle_ms=SETTLE_MS))

    def make() -> Auditor:
        auditor = Auditor(ports, config, metrics)
        auditor.start()
        return auditor

    return AuditorElector(ports, name, make, metrics), metrics, ports.store


async def test_another_candidate_takes_over(cluster: Cluster) -> None:
    ledger = await cluster.ledger(("a0", "b0"))
    first, metrics, session = _candidate(cluster, "first")
    second, second_metrics, _ = _candidate(cluster, "second")
    await first.start()
    await second.start()
    assert (metrics.is_auditor, second_metrics.is_auditor) == (True, False)
    assert await second.leader() == "first"
    await cluster.go("a0")
    auditing = first.auditor
    assert auditing is not None
    stops = mock.Mock(wraps=auditing.stop)
    auditing.stop = stops  # type: ignore[method-assign]  # a spy
    session.lose_session()  # the process was paused for too long, say
    assert first.auditor is None
    stops.assert_called_once()  # at once, not when the loop gets round to it
    await session.expire_session(session.session_id)

    async def is_elected() -> bool:
        return second_metrics.is_auditor

    await eventually(is_elected)
    await cluster.until_marked({ledger: {"a0"}})
    await first.close()
    await second.close()
    assert await cluster.store.get("/ledgers/underreplication/auditorelection") is None


async def test_an_auditor_that_fails_is_replaced_by_the_same_candidate(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours in one task: whoever has the seat must audit."""
    monkeypatch.setattr("magnetar.bookkeeper.replication.auditor_elector._AGAIN_S", 0.05)
    ledger = await cluster.ledger(("a0", "b0"))
    candidate, metrics, _ = _candidate(cluster, "first")
    await candidate.start()
    broken = candidate.auditor
    assert broken is not None
    monkeypatch.setattr(broken, "_take_news", mock.Mock(side_effect=RuntimeError("a bug")))
    await cluster.go("a0")
    await cluster.until_marked({ledger: {"a0"}})
    assert candidate.auditor is not broken
    assert metrics.is_auditor
    await candidate.close()


@pytest.mark.parametrize("marks", range(5))
async def test_an_auditor_that_dies_while_it_marks(cluster: Cluster, marks: int) -> None:
    """After any number of them; the next one marks the rest, twice is as good as once."""
    ledgers = [await cluster.ledger(("a0", "b0")) for _ in range(5)]
    await cluster.go("a0")
    first = cluster.auditor()
    mark, left = first.ports.marks.mark, marks

    async def mark_some(*args: Any, **kwargs: Any) -> None:
        nonlocal left
        if left == 0:
            first.stop()
            await asyncio.sleep(3600)
        left -= 1
        await mark(*args, **kwargs)

    first.ports.marks.mark = mark_some  # type: ignore[method-assign]  # where it dies
    first.start()

    async def has_ended() -> bool:
        return all(task.done() for task in first._tasks)

    await eventually(has_ended)
    assert len(await cluster.marked()) <= marks  # those under way were cut off
    second = cluster.auditor()
    second.start()

    async def all_marked() -> bool:
        return set(await cluster.marked()) == set(ledgers)

    await eventually(all_marked)
    await second.close()
    await first.close()


async def test_two_auditors_at_once(cluster: Cluster) -> None:
    """For a moment, when one hasn't heard yet that its session is gone."""
    ledgers = [await cluster.ledger(("a0", "b0")) for _ in range(3)]
    both = [cluster.auditor(), cluster.auditor()]
    for auditor in both:
        auditor.start()
    await _zone_down(cluster)
    await cluster.marks.enable()

    async def all_marked() -> bool:
        return set(await cluster.marked()) == set(ledgers)

    await eventually(all_marked)
    await asyncio.sleep(3 * SETTLE_MS / 1000)
    assert await cluster.marks.is_enabled()  # neither takes the release back
    assert await ZoneStore(cluster.store).read() == {"a": ZonePhase.RELEASED}
    for auditor in both:
        await auditor.close()


# Size


async def test_an_audit_of_many_ledgers_leaves_the_loop_free(cluster: Cluster) -> None:
    """The longest turn of the loop, of 3,000 ledgers that all have to be marked."""
    for _ in range(3000):
        await cluster.ledger(("a0", "b0"))
    auditor = cluster.auditor()
    await cluster.go("a0")
    longest = 0.0
    gc.collect()
    gc.disable()  # a full collection walks over all that other tests left behind
    try:
        auditor.start()
        while cluster.metrics.marked_ledgers.sum_ms < 3000:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
    finally:
        gc.enable()
    assert longest < 0.05  # 2 ms on an idle machine
    assert len(await cluster.marked()) == 3000
    await auditor.close()


async def test_the_auditor_of_pulsars_driver_is_told(cluster: Cluster) -> None:
    """It is elected at another path; one that was elected as BookKeeper does it comes first."""
    layout, path = BookKeeperLayout(), "/ledgers/underreplication/"
    assert await read_auditor(cluster.store, layout) is None
    await cluster.store.put(f"{path}leader", b'"recovery-1"')
    assert await read_auditor(cluster.store, layout) == "recovery-1"
    await cluster.store.put(f"{path}auditorelection/V_0000000001", b'bookieId: "b1:3181"\n')
    assert await read_auditor(cluster.store, layout) == "b1:3181"
