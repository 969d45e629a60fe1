"""``magnetar doctor`` of a cluster of processes: a broker and a bookie that hang (nightly)."""

import json
from collections.abc import Iterator

import pytest

from magnetar.broker.cli.main import main
from tests.child_process import suspend
from tests.cluster_process import ClusterProcess
from tests.nightly import NIGHTLY
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not NIGHTLY, reason="a cluster of processes: make nightly")


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    process = ClusterProcess(
        tmp_path_factory.mktemp("doctor") / "data",
        *("--brokers", "2", "--bookies", "2"),
        *("--broker-set", "metadataStoreSessionTimeoutMillis=60000"),
        *("--broker-set", "brokerPeerFailureDetectionEnabled=false"),
        *("--broker-set", "managedLedgerDefaultEnsembleSize=1"),
        *("--broker-set", "managedLedgerDefaultWriteQuorum=1"),
        *("--broker-set", "managedLedgerDefaultAckQuorum=1"),
    )
    with process:
        yield process


def test_what_hangs_is_found(cluster: ClusterProcess, capsys: pytest.CaptureFixture[str]) -> None:
    asked, hanging = cluster.web_urls

    def found() -> dict[str, str]:
        main(["doctor", "--admin-url", asked, "--json"])
        report = json.loads(capsys.readouterr().out)
        return {
            each["check"]: each["subject"]
            for each in report["findings"]
            if each["severity"] != "note"
        }

    planted = {"settings-at-odds": "bookies"}
    wait_until(lambda: found() == planted, lambda: str(found()))  # both brokers are registered
    suspend(cluster.children()["broker-2"].pid)
    suspend(cluster.children()["bookie-2"].pid)
    now: dict[str, str] = {}

    def both() -> bool:
        now.update(found())
        return {"broker-silent", "bookie-lost"} <= now.keys()

    wait_until(both, lambda: str(now))
    assert now["broker-silent"] == hanging.removeprefix("http://")
    assert now["bookie-lost"] == "bookie-2"
