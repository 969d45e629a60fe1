"""What fails tests by long turns of loops."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stalls
from tests.child_process import ChildProcess
from tests.cluster_process import ClusterProcess

LINE = "loop stall: 70 ms, computed for {} ms, collections: {} ms, cause: {}, at: x.py:1 f"


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    yield
    stalls.skip("made up")


def say(log: Path, *values: object) -> None:
    with log.open("a") as file:
        file.write(f"2026-01-01 WARNING {LINE.format(*values)}\n")


def test_a_turn_that_computed_for_long_fails_the_test_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    process = ChildProcess(log)
    process.popen(["true"]).wait()
    say(log, 70, 0, "running")
    process.skip_stalls("as if it was meant")
    say(log, 3, 0, "blocked")
    say(log, 50, 0, "running")
    stalls.check()
    process.popen(["true"]).wait()  # one that has ended isn't asked again
    say(log, 66, 66, "gc")
    with pytest.raises(AssertionError, match="server: loop stall: 70 ms, computed for 66 ms"):
        stalls.check()
    stalls.check()


def test_a_turn_of_the_loop_alone_may_take_longer(tmp_path: Path) -> None:
    alone = LINE.replace("x.py:1 f", "runners.py:118 run < x.py:1 f")
    said = [alone.format(each, 0, "running") for each in (240, 260)]
    assert stalls.found_in("\n".join(said)) == [said[1]]
    callback = LINE.replace("x.py:1 f", "x.py:1 f < events.py:84 _run < runners.py:118 run")
    assert len(stalls.found_in(callback.format(60, 0, "running"))) == 1


def test_a_line_that_is_being_written_is_read_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    process, line = ChildProcess(log), LINE.format(70, 0, "running") + "\n"
    log.write_text(line[:40])
    assert process.new_stalls() == []
    log.write_text(line)
    assert len(process.new_stalls()) == 1
    assert process.new_stalls() == []


def test_a_cluster_s_processes_are_looked_at(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "cluster")
    (tmp_path / "cluster.log").write_text("")
    logs = tmp_path / "cluster" / "logs"
    logs.mkdir(parents=True)
    say(logs / "bookie-2.log", 60, 0, "running")
    (found,) = cluster.new_stalls()
    assert found.startswith("bookie-2: loop stall")


def test_what_an_embedded_broker_said_in_its_own_process() -> None:
    stalls.note(f"x\n{LINE.format(60, 0, 'running')}\ny")
    with pytest.raises(AssertionError, match="computed for 60 ms"):
        stalls.check()


def test_collections_of_this_process_are_the_tests_own() -> None:
    logger = logging.getLogger("magnetar.bookkeeper.loop_stalls")
    logger.warning(LINE.format(90, 60, "gc"))
    stalls.check()
    logger.warning(LINE.format(90, 20, "running"))
    with pytest.raises(AssertionError, match="computed for 90 ms"):
        stalls.check()


def test_a_busy_machine_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    assert stalls.found_in(LINE.format(75, 0, "running")) == []
    assert len(stalls.found_in(LINE.format(76, 0, "running"))) == 1
