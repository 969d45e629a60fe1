"""What pages show of bookies. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.console.views import row_id

ONLY_A_RACK: Final = "never joined, or taken out: only a rack is set for it"
"""State of what is no bookie of the cluster."""


@dataclass(frozen=True, slots=True)
class BookieRow:
    id: str
    name: str
    kind: str
    """Of its mark: `o` well, `w` reads only or is avoided, `e` silent, `n` not told."""
    state: str
    rack: str
    used: float | None
    """Percent of its disk."""
    free: int | None
    """Bytes."""
    latency: str
    version: str
    error: str


@dataclass(frozen=True, slots=True)
class RepairRow:
    """What auto-recovery does."""

    switch: str
    below: str
    """Why it is off."""
    is_off: bool
    auditor: str
    ledgers: int
    """That miss replicas."""
    delay: str


@dataclass(frozen=True, slots=True)
class BookiePage:
    rows: list[BookieRow]
    repair: RepairRow | None


def bookie_rows(found: Mapping[str, Any]) -> list[BookieRow]:
    return [_row(each) for each in found["bookies"]]


def bookie_page(found: Mapping[str, Any]) -> BookiePage:
    repair = found.get("repair")
    return BookiePage(bookie_rows(found), None if repair is None else _repair(repair))


def _repair(found: Mapping[str, Any]) -> RepairRow:
    is_off, delay = not found["enabled"], found.get("lostBookieRecoveryDelay")
    return RepairRow(
        switch="off" if is_off else "on",
        below=(found["offReason"] or "no reason given") if is_off else "",
        is_off=is_off,
        auditor=found["auditor"] or "none",
        ledgers=found["ledgers"],
        delay="as configured" if delay is None else f"{delay:g} s",
    )


def _row(bookie: Mapping[str, Any]) -> BookieRow:
    total, free = bookie.get("totalBytes"), bookie.get("freeBytes")
    latency = bookie.get("addLatencyMs")
    return BookieRow(
        id=row_id(bookie["bookieId"]),
        name=bookie["bookieId"],
        kind=_kind(bookie),
        state="quarantined" if bookie.get("quarantined") else bookie.get("state") or "not told",
        rack=bookie.get("location") or "",
        used=100 * (1 - free / total) if total and free is not None else None,
        free=free,
        latency="–" if latency is None else f"{latency['p99']:.1f} ms",
        version=bookie.get("version") or "",
        error=bookie.get("error") or "",
    )


def _kind(bookie: Mapping[str, Any]) -> str:
    state = bookie.get("state")
    if state in (None, ONLY_A_RACK):
        return "n"
    if state == "absent" or bookie.get("error"):
        return "e"
    return "o" if state == "writable" and not bookie.get("quarantined") else "w"
