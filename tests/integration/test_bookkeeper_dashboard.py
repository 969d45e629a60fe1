"""The dashboard of bookies and auto-recovery, beside a bookie that repairs, too."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bookie_process import BookieProcess
from tests.metrics_page import DASHBOARDS, check_dashboard, samples_of
from tests.waiting import wait_until
from tests.zookeeper_process import ZooKeeperProcess

SETTINGS = (
    *("--set", "httpServerEnabled=true", "--set", "httpServerPort=0", "--set", "clusterName=c"),
    *("--set", "autoRecoveryDaemonEnabled=true"),
)


def test_the_dashboard_of_bookies_asks_for_what_there_is(tmp_path: Path) -> None:
    (path,) = (each for each in DASHBOARDS if each.stem == "magnetar-bookies")
    with (
        ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper,
        BookieProcess(tmp_path / "bookie", zookeeper.url("/c"), *SETTINGS) as bookie,
    ):
        (url,) = re.findall(r"^magnetar bookie: (http://\S+) ", bookie.log, re.MULTILINE)
        zones = "auditor_zone_down"  # told by the elected one, once it has looked
        wait_until(
            lambda: zones in {name for name, _ in samples_of(url)}, "it is the auditor", 60.0
        )
        check_dashboard(path, samples_of(url))
