"""What tests of processes rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.child_process import ChildProcess
from tests.cluster_process import ClusterProcess

LINE = "2026-01-01 WARNING loop stall: 70 ms, computed for {} ms, cause: {}, at: x.py:1 f\n"


def test_a_turn_that_computed_for_long_fails_the_test_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    process = ChildProcess(log)
    log.write_text(LINE.format(70, "running"))
    process.skip_stalls()
    with log.open("a") as file:
        file.write(LINE.format(3, "blocked") + LINE.format(50, "running"))
    process.check_stalls()
    with log.open("a") as file:
        file.write(LINE.format(66, "gc"))
    with pytest.raises(AssertionError, match="server: loop stall: 70 ms, computed for 66 ms"):
        process.check_stalls()
    process.check_stalls()


def test_a_cluster_s_processes_are_looked_at(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "cluster")
    (tmp_path / "cluster.log").write_text("")
    logs = tmp_path / "cluster" / "logs"
    logs.mkdir(parents=True)
    (logs / "bookie-2.log").write_text(LINE.format(60, "running"))
    with pytest.raises(AssertionError, match="bookie-2: loop stall"):
        cluster.check_stalls()
