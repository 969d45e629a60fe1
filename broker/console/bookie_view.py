"""What pages show of bookies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.broker.console.views import row_id


@dataclass(frozen=True, slots=True)
class BookieRow:
    id: str
    name: str
    kind: str
    """Of its mark: `o` well, `w` reads only or is avoided, `e` silent, `n` unknown."""
    state: str
    rack: str
    used: float | None
    """Percent of its disk."""
    free: int | None
    """Bytes."""
    latency: str
    version: str
    error: str


def bookie_rows(found: Iterable[Mapping[str, Any]]) -> list[BookieRow]:
    return [_row(each) for each in found]


def _row(bookie: Mapping[str, Any]) -> BookieRow:
    total, free = bookie.get("totalBytes"), bookie.get("freeBytes")
    latency = bookie.get("addLatencyMs")
    return BookieRow(
        id=row_id(bookie["bookieId"]),
        name=bookie["bookieId"],
        kind=_kind(bookie),
        state="quarantined" if bookie.get("quarantined") else bookie.get("state") or "unknown",
        rack=bookie.get("location") or "",
        used=100 * (1 - free / total) if total and free is not None else None,
        free=free,
        latency="–" if latency is None else f"{latency['p99']:.1f} ms",
        version=bookie.get("version") or "",
        error=bookie.get("error") or "",
    )


def _kind(bookie: Mapping[str, Any]) -> str:
    state = bookie.get("state")
    if state is None:
        return "n"
    if state == "absent" or bookie.get("error"):
        return "e"
    return "o" if state == "writable" and not bookie.get("quarantined") else "w"
