"""Auditor and workers together, in virtual time: zones that are lost, held, released, back."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from magnetar.bookkeeper.bookie.cookie import Cookie
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.replication.auditor_checks import ChecksConfig
from magnetar.bookkeeper.replication.auditor_core import AuditorConfig
from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery, AutoRecoveryConfig
from magnetar.bookkeeper.replication.replication_worker import read_suspended_bookies
from magnetar.bookkeeper.replication.zone_store import ZoneStore
from magnetar.bookkeeper.replication.zones import ZoneConfig, ZonePhase
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, COOKIES_PATH, ServiceInfo
from tests.unit.bookkeeper.replication.cluster import Cluster, until_async, virtual

ZONE = {f"b{n}": "a" if n < 3 else "b" for n in range(7)}  # b0 b1 b2; b3 b4 b5 b6
ENSEMBLES = [("b0", "b3", "b4"), ("b1", "b4", "b5"), ("b3", "b4", "b5"), ("b2", "b3", "b5")]


class Given(RandomPlacement):
    """New ledgers get the ensembles of above, in turn."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self._next = 0

    def new_ensemble(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, writable: Collection[str]
    ) -> tuple[str, ...]:
        self._next += 1
        return ENSEMBLES[(self._next - 1) % len(ENSEMBLES)]


class Zoned:
    """Seven bookies in two zones, one ledger for each ensemble, one unit of auto-recovery."""

    def __init__(self, cluster: Cluster, recovery: AutoRecovery) -> None:
        self.cluster, self.recovery = cluster, recovery
        self.ids: list[int] = []

    async def kill(self, *bookies: str) -> None:
        for bookie in bookies:
            await self.cluster.kill(bookie)

    async def revive(self, *bookies: str) -> None:
        for bookie in bookies:
            self.cluster.bookies[bookie].up = True
            await register(self.cluster, bookie)

    async def naming(self, *bookies: str) -> set[int]:
        """Ledgers that name one of them."""
        return {
            ledger_id
            for ledger_id in self.ids
            for segment in (await self.cluster.metadata(ledger_id)).segments
            if set(bookies) & set(segment.bookies)
        }

    async def marked(self) -> set[int]:
        return {each async for ids in self.cluster.markers.ledger_ids() for each in ids}

    async def phases(self) -> dict[str, ZonePhase]:
        return await ZoneStore(self.cluster.store).read()


async def register(cluster: Cluster, bookie: str) -> None:
    location = f"/{ZONE[bookie]}/ud"
    cookie = Cookie(bookie, "cluster", "directory").encode(location)
    await cluster.store.put(f"{COOKIES_PATH}/{bookie}", cookie)
    info = ServiceInfo(bookie, location).encode()
    await cluster.store.put(f"{AVAILABLE_PATH}/{bookie}", info)


@asynccontextmanager
async def zoned(*, holds_all: bool, delay_ms: int = 0) -> AsyncIterator[Zoned]:
    async with Cluster(len(ZONE)) as cluster:
        for bookie in ZONE:
            await register(cluster, bookie)
        cluster.client._placement = Given()
        store = cluster.server.new_store()
        zones = ZoneConfig(settle_ms=1000, holds_all=holds_all)
        recovery = AutoRecovery(
            store,
            await cluster.new_pool(store),
            RandomPlacement(random.Random(2)),
            "one",
            clock=cluster.clock,
            rng=random.Random(3),
            config=AutoRecoveryConfig(
                AuditorConfig(delay_ms, zones), ChecksConfig(all_ledgers_s=0, census_s=0)
            ),
        )
        made = Zoned(cluster, recovery)
        for _ in ENSEMBLES:
            made.ids.append((await cluster.write(5)).ledger_id)
        await recovery.start()
        await asyncio.sleep(5)
        yield made
        await recovery.close()


async def _until_whole(cluster: Zoned, *lost: str) -> None:
    async def is_whole() -> bool:
        return not await cluster.naming(*lost) and not await cluster.marked()

    await until_async(is_whole)
    for ledger_id in cluster.ids:
        cluster.cluster.assert_whole(await cluster.cluster.metadata(ledger_id))


@pytest.mark.parametrize("holds_all", [True, False])
def test_nothing_of_a_lost_zone_is_copied_without_an_operator(holds_all: bool) -> None:
    async def scenario() -> None:
        async with zoned(holds_all=holds_all) as cluster:
            affected = await cluster.naming("b0", "b1", "b2")
            await cluster.kill("b0", "b1", "b2")
            await asyncio.sleep(3600)
            assert await cluster.naming("b0", "b1", "b2") == affected
            assert await cluster.marked() == set()
            assert await cluster.phases() == {"a": ZonePhase.HELD}
            assert await cluster.cluster.markers.is_enabled() == (not holds_all)
            await cluster.cluster.markers.enable()
            await _until_whole(cluster, "b0", "b1", "b2")
            assert await cluster.phases() == {"a": ZonePhase.RELEASED}
            assert await read_suspended_bookies(cluster.cluster.store) == frozenset()

    virtual(scenario)


@pytest.mark.parametrize("holds_all", [True, False])
def test_a_zone_that_is_back_was_never_copied(holds_all: bool) -> None:
    async def scenario() -> None:
        async with zoned(holds_all=holds_all) as cluster:
            affected = await cluster.naming("b0", "b1", "b2")
            await cluster.kill("b0", "b1", "b2")
            await asyncio.sleep(60)
            await cluster.revive("b0", "b1", "b2")
            await asyncio.sleep(3600)
            assert await cluster.naming("b0", "b1", "b2") == affected
            assert await cluster.marked() == set()
            assert await cluster.phases() == {}
            assert await cluster.cluster.markers.is_enabled()

    virtual(scenario)


def test_a_zone_that_holds_itself_lets_others_be_repaired() -> None:
    """Also in ledgers that it has copies of: those members wait, and the markers say why."""

    async def scenario() -> None:
        async with zoned(holds_all=False) as cluster:
            of_zone = await cluster.naming("b0", "b1", "b2")
            await cluster.kill("b0", "b1", "b2")
            await asyncio.sleep(60)
            assert await read_suspended_bookies(cluster.cluster.store) == {"b0", "b1", "b2"}
            both = of_zone & await cluster.naming("b3")
            await cluster.kill("b3")

            async def is_replaced() -> bool:
                return await cluster.naming("b3") == set()

            await until_async(is_replaced)
            await asyncio.sleep(3600)
            assert await cluster.naming("b0", "b1", "b2") == of_zone
            # Half repaired they stay marked, which is no reason to copy what is held.
            assert await cluster.marked() == both
            for ledger_id in both:
                marker = await cluster.cluster.markers.read(ledger_id)
                assert marker is not None
                assert "gone with its zone" in marker.reason
            began_s = asyncio.get_running_loop().time()
            await cluster.cluster.markers.enable()
            await _until_whole(cluster, "b0", "b1", "b2", "b3")
            assert asyncio.get_running_loop().time() - began_s < 30  # nobody waits out a pause

    virtual(scenario)


def test_a_zone_that_holds_itself_and_returns() -> None:
    async def scenario() -> None:
        async with zoned(holds_all=False) as cluster:
            of_zone = await cluster.naming("b0", "b1", "b2")
            await cluster.kill("b0", "b1", "b2", "b3")
            await asyncio.sleep(3600)
            assert await cluster.naming("b3") == set()
            await cluster.revive("b0", "b1", "b2")
            await _until_whole(cluster, "b3")
            assert await cluster.naming("b0", "b1", "b2") == of_zone

    virtual(scenario)


def test_all_zones_lost_is_the_auditors_own_trouble() -> None:
    async def scenario() -> None:
        async with zoned(holds_all=False) as cluster:
            before = [await cluster.cluster.metadata(ledger_id) for ledger_id in cluster.ids]
            await cluster.kill("b0", "b1", "b2", "b3", "b4", "b5")
            await asyncio.sleep(3600)
            off = await cluster.cluster.markers.disabled()
            assert off is not None
            assert "all zones" in off.reason
            assert await cluster.marked() == set()
            await cluster.revive("b0", "b1", "b2", "b3", "b4", "b5")
            await asyncio.sleep(60)
            assert await cluster.cluster.markers.is_enabled()
            assert [await cluster.cluster.metadata(i) for i in cluster.ids] == before

    virtual(scenario)


def test_within_the_delay_nothing_and_after_it_all() -> None:
    async def scenario() -> None:
        async with zoned(holds_all=True, delay_ms=600_000) as cluster:
            before = await cluster.naming("b3")
            await cluster.kill("b3")
            await asyncio.sleep(599)
            assert await cluster.marked() == set()
            assert await cluster.naming("b3") == before
            await _until_whole(cluster, "b3")

    virtual(scenario)
