"""The dashboard of bookies and auto-recovery, beside a bookie that repairs, too."""

import re
from pathlib import Path

from tests.bookie_process import BookieProcess
from tests.metrics_page import DASHBOARDS, check_dashboard, samples_of
from tests.waiting import wait_until

SETTINGS = (
    *("--set", "httpServerEnabled=true", "--set", "httpServerPort=0", "--set", "clusterName=c"),
    *("--set", "autoRecoveryDaemonEnabled=true"),
)


def test_the_dashboard_of_bookies_asks_for_what_there_is(tmp_path: Path, url: str) -> None:
    (path,) = (each for each in DASHBOARDS if each.stem == "magnetar-bookies")
    with BookieProcess(tmp_path / "bookie", url, *SETTINGS) as bookie:
        (web,) = re.findall(r"^magnetar bookie: (http://\S+) ", bookie.log, re.MULTILINE)
        zones = "auditor_zone_down"  # told by the elected one, once it has looked
        wait_until(
            lambda: zones in {name for name, _ in samples_of(web)}, "it is the auditor", 60.0
        )
        check_dashboard(path, samples_of(web))
