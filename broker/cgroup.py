"""What this process may use of its machine where a control group bounds it, as a container's does.

A container sees the processors and the memory of its node, whatever its limits are. Both versions
of control groups, and every folder from the process's own up to the root: the smallest limit holds.
In a container only the last of them may be there, which then is its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_MOUNT: Final = Path("/sys/fs/cgroup")
_NO_LIMIT: Final = 1 << 60  # version 1 says the largest number that it has


def cores_max(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> float | None:
    """Processors' time that may be used, in processors; None: no limit is known."""
    found = []
    for folder in _folders("cpu", membership, mount):
        quota, period = _numbers(folder / "cpu.max", 2) or (
            *(_numbers(folder / "cpu.cfs_quota_us", 1) or (0,)),
            *(_numbers(folder / "cpu.cfs_period_us", 1) or (0,)),
        )
        if quota > 0 and period > 0:
            found.append(quota / period)
    return min(found, default=None)


def memory_bytes_max(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> int | None:
    """None: no limit is known."""
    found = []
    for folder in _folders("memory", membership, mount):
        for name in ("memory.max", "memory.limit_in_bytes"):
            (limit,) = _numbers(folder / name, 1) or (0,)
            if 0 < limit < _NO_LIMIT:
                found.append(limit)
    return min(found, default=None)


def _folders(controller: str, membership: Path, mount: Path) -> Iterator[Path]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = mount / controllers if controllers else mount
        own = root / path.strip("/")
        yield from (each for each in (own, *own.parents) if each.is_relative_to(root))


def _numbers(file: Path, count: int) -> tuple[int, ...] | None:
    """So many of them; None: no such file, or there is a word that means no limit."""
    try:
        return tuple(map(int, file.read_text().split()))[:count] or None
    except (OSError, ValueError):
        return None
