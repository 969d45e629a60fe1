"""Limits of a container, and a load report that goes by them."""

import os
from pathlib import Path

import pytest

from magnetar.broker.auth import password_checks
from magnetar.broker.cgroup import cores_max, memory_bytes_max
from magnetar.broker.cluster import load_report as load_report
from magnetar.broker.cluster.load_report import HostUsage

GIB = 1 << 30


class Groups:
    """/proc/self/cgroup and /sys/fs/cgroup as files."""

    def __init__(self, folder: Path, membership: str) -> None:
        self.membership, self.mount = folder / "cgroup", folder / "mount"
        self.membership.write_text(membership)
        self.mount.mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.mount / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def limits(self) -> tuple[float | None, int | None]:
        return (
            cores_max(self.membership, self.mount),
            memory_bytes_max(self.membership, self.mount),
        )


def test_a_container_of_its_own_namespace(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/\n")
    assert groups.limits() == (None, None)
    groups.write("cpu.max", "150000 100000")
    groups.write("memory.max", str(GIB))
    assert groups.limits() == (1.5, GIB)
    groups.write("cpu.max", "max 100000")
    groups.write("memory.max", "max")
    assert groups.limits() == (None, None)


def test_the_smallest_of_the_folders_above_holds(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/pods/burstable/one\n")
    groups.write("pods/burstable/one/cpu.max", "max 100000")
    groups.write("pods/burstable/cpu.max", "200000 100000")
    groups.write("pods/cpu.max", "400000 100000")
    groups.write("pods/burstable/one/memory.max", str(2 * GIB))
    groups.write("pods/memory.max", str(GIB))
    groups.write("other/memory.max", "1")
    assert groups.limits() == (2.0, GIB)


def test_version_1(tmp_path: Path) -> None:
    """Its path is the node's, of which a container sees the end only."""
    groups = Groups(tmp_path, "12:memory:/pods/one\n5:cpu,cpuacct:/pods/one\n1:name=systemd:/\n")
    groups.write("cpu,cpuacct/cpu.cfs_quota_us", "50000")
    groups.write("cpu,cpuacct/cpu.cfs_period_us", "100000")
    groups.write("memory/memory.limit_in_bytes", str(GIB))
    assert groups.limits() == (0.5, GIB)
    groups.write("cpu,cpuacct/cpu.cfs_quota_us", "-1")
    groups.write("memory/memory.limit_in_bytes", "9223372036854771712")
    assert groups.limits() == (None, None)


def test_no_groups_at_all(tmp_path: Path) -> None:
    assert cores_max(tmp_path / "nothing", tmp_path) is None
    assert memory_bytes_max(tmp_path / "nothing", tmp_path) is None


def test_a_broker_in_a_container_compares_its_use_with_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else one that is out of processors looks idle on a large node, and gets more bundles."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr(load_report, "cores_max", lambda: 0.5)
    monkeypatch.setattr(load_report, "memory_bytes_max", lambda: GIB)
    monkeypatch.setattr(load_report, "_SAMPLE_S_MIN", 0.0)
    usage = HostUsage()
    monkeypatch.setattr(usage._process, "cpu_percent", lambda _: 49.0)
    found = usage.sample()
    assert found["cpu"] == {"usage": 49.0, "limit": 50.0}
    assert found["memory"]["limit"] == 1024.0
    monkeypatch.setattr(load_report, "cores_max", lambda: None)
    monkeypatch.setattr(load_report, "_LIMITS_S", 0.0)
    assert usage.sample()["cpu"]["limit"] == 6400.0


def test_limits_are_read_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are ten files, and a report a second would hold the loop for half a millisecond."""
    now_s, cores, reads_s = 100.0, 0.5, list[float]()

    def cores_now() -> float:
        reads_s.append(now_s)
        return cores

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr(load_report, "cores_max", cores_now)
    usage, limits = HostUsage(), set[float]()
    for _ in range(130):
        now_s += 1.0
        cores = 0.25 if now_s > 200.0 else 0.5
        limits.add(usage.sample()["cpu"]["limit"])
    assert reads_s == [100.0, 160.0, 220.0]
    assert limits == {50.0, 25.0}, "a limit that was changed counts, a minute later at the latest"


def test_who_asks_again_at_once_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few milliseconds all processors are idle, or none is."""
    now_s, percents = 100.0, [50.0, 0.0, 100.0, 60.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    usage = HostUsage()
    monkeypatch.setattr(load_report, "cores_max", lambda: None)
    monkeypatch.setattr("psutil.cpu_percent", lambda _: percents.pop(0))
    cores = os.cpu_count() or 1
    asked = ((0.01, 0.0), (3.0, 50.0), (0.01, 50.0), (0.9, 50.0), (0.2, 0.0), (1.5, 100.0))
    for passed_s, wanted in asked:
        now_s += passed_s
        assert usage.sample()["cpu"]["usage"] == wanted * cores


def test_passwords_are_hashed_by_no_more_processes_than_may_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    for limit, processes in ((None, 2), (0.25, 1), (1.0, 1), (1.5, 1), (2.0, 2), (8.0, 2)):
        monkeypatch.setattr(password_checks, "cores_max", lambda limit=limit: limit)
        assert password_checks._processes_max() == processes
