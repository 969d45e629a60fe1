"""What our broker says of Apache BookKeeper's auto-recovery, which is another program's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apache_bookies import ApacheBookie, needs_bookkeeper, start_bookies
from tests.broker_process import BrokerProcess
from tests.official_client import client_of
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = needs_bookkeeper


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

        wait_until(lambda: repair()["auditor"], "Apache's auditor", 60)
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
        wait_until(lambda: "repair-off" in findings(), "the next look of the doctor", 60)
