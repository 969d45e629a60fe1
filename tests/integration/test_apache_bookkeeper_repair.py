"""What our broker says of Apache BookKeeper's auto-recovery, which is another program's."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.placement.isolation import IsolationPlacement, metadata_of_groups
from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.bookkeeper.service_info import RACKS_PATH
from magnetar.metadata.factory import connect_store
from tests.apache_bookies import (
    ApacheAutoRecovery,
    ApacheBookie,
    needs_bookkeeper,
    start_bookies,
)
from tests.autorecovery_process import AutoRecoveryProcess
from tests.broker_process import BrokerProcess
from tests.integration.test_apache_bookkeeper import append_all, read_all
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.pulsar_broker import JAVA, needs_pulsar
from tests.waiting import eventually, wait_until
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = needs_bookkeeper


# The drivers of Pulsar's distribution, with which its auto-recovery runs.
_DRIVERS = [
    f"-Dbookkeeper.metadata.{kind}.drivers=org.apache.pulsar.metadata.bookkeeper.{name}"
    for kind, name in (
        ("bookie", "PulsarMetadataBookieDriver"),
        ("client", "PulsarMetadataClientDriver"),
    )
]
_RACKS = "org.apache.pulsar.bookie.rackawareness"


class PulsarsAutoRecovery(ApacheAutoRecovery):
    """As Pulsar's distribution runs it, keeping to groups of bookies."""

    def __init__(self, bookie: ApacheBookie, zookeeper: ZooKeeperProcess) -> None:
        super().__init__(
            bookie,
            "pulsars",
            {
                "metadataServiceUri": f"metadata-store:{zookeeper.url()}",
                "ensemblePlacementPolicy": f"{_RACKS}.IsolatedBookieEnsemblePlacementPolicy",
                "reppDnsResolverClass": f"{_RACKS}.BookieRackAffinityMapping",
                # Without this key it doesn't look at groups, whatever a ledger names.
                "isolationBookieGroups": "*",
                "zkTimeout": "2000",
            },
            [JAVA[0], *_DRIVERS, *JAVA[1:]],
        )


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[tuple[ZooKeeperProcess, list[ApacheBookie]]]:
    with ZooKeeperProcess(tmp_path / "zk") as zookeeper:
        repairs = [("autoRecoveryDaemonEnabled", "true"), ("zkTimeout", "2000")]
        found = start_bookies(tmp_path, zookeeper.port, 3, repairs)
        try:
            yield zookeeper, found
        finally:
            for bookie in found:
                if bookie.is_running:
                    bookie.stop()


def test_its_auditor_its_switch_its_delay_and_what_it_has_to_repair(
    bookies: tuple[ZooKeeperProcess, list[ApacheBookie]], tmp_path: Path
) -> None:
    zookeeper, nodes = bookies
    settings = [f"bookkeeperMetadataServiceUri={nodes[0].metadata_uri}"]
    settings += [f"managedLedgerDefault{n}=3" for n in ("EnsembleSize", "WriteQuorum")]
    settings += ["managedLedgerDefaultAckQuorum=2", "bookkeeper_delayEnsembleChange=true"]
    options = [word for each in settings for word in ("--set", each)]
    with BrokerProcess(tmp_path / "broker", zookeeper.url("/magnetar"), *options) as broker:
        admin = broker.admin_url

        def repair() -> dict[str, Any]:
            answer = httpx.get(f"{admin}/admin/v2/bookies/state", timeout=30.0)
            return dict(answer.raise_for_status().json()["repair"])

        def findings() -> str:
            return httpx.get(f"{admin}/admin/v2/doctor", timeout=60.0).text

        wait_until(lambda: repair()["auditor"], "Apache's auditor")
        assert repair()["auditor"] in {each.bookie_id for each in nodes}
        assert (repair()["enabled"], repair()["ledgers"]) == (True, 0)
        with client_of(broker.service_url) as client:
            client.create_producer("persistent://public/default/kept").send(b"x")
        nodes[0].shell("lostbookierecoverydelay", "-s", "5")
        assert repair()["lostBookieRecoveryDelay"] == 5
        victim = next(each for each in nodes if each.bookie_id != repair()["auditor"])
        victim.kill()
        wait_until(lambda: repair()["ledgers"], "a ledger misses a replica", 90)
        page = httpx.get(f"{admin}/console/bookies", timeout=30.0).text
        assert "Ledgers that miss replicas" in page
        assert "ledgers-under-replicated" in findings()
        other = next(each for each in nodes if each is not victim)
        other.shell("autorecovery", "-d")
        assert repair()["enabled"] is False
        wait_until(lambda: "repair-off" in findings(), "the next look of the doctor")


GROUPS = {"ssd": ["b0", "b1", "b2"], "hdd": ["b3", "b4"]}
ENTRIES = [b"%d" % number for number in range(200)]


class GroupedBookies:
    """Five of Apache's bookies in two groups, as ``racks-info`` says."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperProcess) -> None:
        self.nodes = start_bookies(folder, zookeeper.port, 5, [("zkTimeout", "2000")])
        ids = {each.folder.name: each.bookie_id for each in self.nodes}
        self.groups = {group: {ids[name] for name in names} for group, names in GROUPS.items()}
        self.uri = self.nodes[0].metadata_uri

    def placement(self) -> IsolationPlacement:
        members = {name: {group} for group, names in self.groups.items() for name in names}
        policy = RandomPlacement(random.Random(1))
        return IsolationPlacement(policy, None, members.__getitem__)

    def racks(self) -> bytes:
        info = {"rack": "/r", "hostname": "h"}
        return json.dumps(
            {g: dict.fromkeys(each, info) for g, each in self.groups.items()}
        ).encode()

    def kill_one_of_each(self) -> set[str]:
        victims = self.nodes[0], self.nodes[3]
        for each in victims:
            each.kill()
        return {each.bookie_id for each in victims}

    def stop(self) -> None:
        for node in self.nodes:
            if node.is_running:
                node.stop()


async def bookies_of(ledgers: Ledgers, ledger_id: int) -> set[str]:
    found = await ledgers.metadata(ledger_id)
    assert found is not None
    return {name for each in found.segments for name in each.bookies}


async def write_grouped(ledgers: Ledgers) -> dict[int, tuple[str, str]]:
    """Three ledgers on each of these groups, as a broker makes them for a namespace."""
    written = {}
    for first, second in 3 * (("ssd", ""), ("hdd", ""), ("hdd", "ssd")):
        custom = metadata_of_groups(first, second)
        ledger = await ledgers.create(2, 2, 2, custom_metadata=custom)
        await append_all(ledger, ENTRIES)
        await ledger.close()
        written[ledger.ledger_id] = first, second
    return written


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[tuple[ZooKeeperProcess, GroupedBookies]]:
    with ZooKeeperProcess(tmp_path / "zk") as zookeeper:
        found = GroupedBookies(tmp_path, zookeeper)
        try:
            yield zookeeper, found
        finally:
            found.stop()


@pytest.mark.parametrize("kind", [pytest.param("pulsars", marks=needs_pulsar), "ours"])
@pytest.mark.skipif(not NIGHTLY, reason="a minute of Java")
async def test_copies_stay_in_the_groups_that_a_ledger_names(
    grouped: tuple[ZooKeeperProcess, GroupedBookies], tmp_path: Path, kind: str
) -> None:
    """One bookie of each group is killed. Where no other one is allowed, the copy is not made."""
    zookeeper, cluster = grouped
    store = await connect_store(zookeeper.url())
    await store.put(RACKS_PATH, cluster.racks())
    await store.close()
    recovery = (
        PulsarsAutoRecovery(cluster.nodes[1], zookeeper)
        if kind == "pulsars"
        else AutoRecoveryProcess(tmp_path, "ours", zookeeper.url())
    )
    async with connect_ledgers(cluster.uri, placement=cluster.placement()) as ledgers:
        await eventually(lambda: len(ledgers.client.bookies.writable) == 5)
        with recovery:
            written = await write_grouped(ledgers)
            killed = cluster.kill_one_of_each()

            async def are_repaired() -> bool:
                repairable = [each for each, named in written.items() if named != ("hdd", "")]
                found = [await bookies_of(ledgers, each) for each in repairable]
                return not any(killed & each for each in found)

            await eventually(are_repaired, "the copies", 90)
            for ledger_id, names in written.items():
                allowed = set().union(*(cluster.groups.get(each, set()) for each in names))
                assert await bookies_of(ledgers, ledger_id) <= allowed, names
                assert await read_all(ledgers, ledger_id) == ENTRIES
    shown = cluster.nodes[1].shell("readledger", "-ledgerid", str(max(written)), "-msg")
    assert all(each.decode() in shown for each in ENTRIES)
