"""Which availability zones are down: watermarks with hysteresis, and what follows from it. Pure.

A zone whose bookies vanish together has most likely an outage that ends by itself. Copying all it
holds into the other zones would move terabytes over paid links, at the worst moment (the seed calls
it a thundering herd). So that decision is an operator's.

    UP -- ratio < low watermark, for the settle time --> DOWN      alert rises, switch off
    DOWN -- the switch is off ------------------------> HELD
    HELD -- an operator switches on again ------------> RELEASED   its copies may be made
    DOWN, HELD, RELEASED -- ratio >= high watermark, for the settle time --> UP   alert falls

With ``holds_all`` off a zone is HELD at once and the switch stays on: other zones' losses are
repaired meanwhile. Unless all zones are down: then nothing here is to be trusted.

ratio = available / registered bookies of the zone. Between the watermarks a zone stays what it is.
While a zone that is UP is below the low watermark, nothing of it is marked either: what is about to
be an outage must not be half repaired.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class ZonePhase(Enum):
    """Where a zone is; the values are part of the stored form."""

    UP = "up"
    DOWN = "down"  # automatic repair is to be switched off, and isn't proven to be
    HELD = "held"
    RELEASED = "released"  # still down, but an operator lets it be copied


ZONE_REASON: Final = "zone down: "
"""How the reasons begin for which an auditor switches automatic repair off."""
_UP, _DOWN, _HELD, _RELEASED = ZonePhase.UP, ZonePhase.DOWN, ZonePhase.HELD, ZonePhase.RELEASED


@dataclass(frozen=True, slots=True)
class ZoneConfig:
    """When a zone counts as down.

    Attributes:
        low_watermark, high_watermark: shares of a zone's registered bookies, low < high.
        settle_ms: how long a ratio must hold.
        losses_min: so many bookies must be missing: one lost bookie of a small zone is repaired,
            it is no outage.
        auto_return: switch automatic repair on again when the zones are back, if it was switched
            off for them.
        holds_all: a zone that is down switches all automatic repair off; False: only its own.
    """

    low_watermark: float = 0.5
    high_watermark: float = 0.65
    settle_ms: int = 15_000
    losses_min: int = 2
    auto_return: bool = True
    holds_all: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.low_watermark < self.high_watermark <= 1:
            raise ValueError(
                f"watermarks {self.low_watermark} and {self.high_watermark}: "
                "0 < low < high <= 1 is needed"
            )
        if self.settle_ms < 0 or self.losses_min < 1:
            raise ValueError(f"settle time {self.settle_ms} ms, losses {self.losses_min}")


@dataclass(slots=True)
class Zone:
    """One zone as its auditor sees it; only ``Zones`` changes it."""

    name: str
    available: int = 0
    total: int = 0
    phase: ZonePhase = _UP
    since_ms: int | None = None  # since when the ratio asks for another phase

    @property
    def is_down(self) -> bool:
        """The alert."""
        return self.phase is not _UP

    @property
    def is_suspect(self) -> bool:
        """Below the low watermark, and not yet for the settle time."""
        return self.phase is _UP and self.since_ms is not None

    @property
    def is_blocked(self) -> bool:
        """Nothing of it may be repaired."""
        return self.phase in (_DOWN, _HELD) or self.is_suspect


@dataclass(slots=True)
class ZoneChange:
    """A zone went down, came back or was released."""

    zone: str
    phase: ZonePhase
    available: int
    total: int


class Zones:
    """All zones with registered bookies. Times are milliseconds of any clock that never goes back.

    Args:
        stored: phases that an earlier auditor left; zones that were down stay so until they are
            seen above the high watermark.
    """

    def __init__(self, config: ZoneConfig, stored: Mapping[str, ZonePhase]) -> None:
        self._config = config
        self.zones = {
            name: Zone(name, phase=phase) for name, phase in stored.items() if phase is not _UP
        }

    def on_counts(self, now_ms: int, counts: Mapping[str, tuple[int, int]]) -> list[ZoneChange]:
        """Bookies by zone: (available, registered). A zone without registered ones is forgotten."""
        changes = []
        for name in [name for name in self.zones if not counts.get(name, (0, 0))[1]]:
            zone = self.zones.pop(name)
            if zone.is_down:
                changes.append(ZoneChange(name, _UP, 0, 0))
        for name, (available, total) in counts.items():
            if total:
                zone = self.zones.setdefault(name, Zone(name))
                zone.available, zone.total = available, total
                if not self._wants_change(zone):
                    zone.since_ms = None
                elif zone.since_ms is None:
                    zone.since_ms = now_ms
        return changes + self.advance(now_ms)

    def advance(self, now_ms: int) -> list[ZoneChange]:
        """Apply what has held for the settle time."""
        settled = [
            zone
            for zone in self.zones.values()
            if zone.since_ms is not None and now_ms >= zone.since_ms + self._config.settle_ms
        ]
        for zone in settled:
            zone.phase, zone.since_ms = _UP if zone.is_down else _DOWN, None
        if not (self._config.holds_all or self.all_blocked):
            self._move(_DOWN, _HELD)
        return [ZoneChange(zone.name, zone.phase, zone.available, zone.total) for zone in settled]

    def next_deadline_ms(self) -> int | None:
        """When ``advance`` has something to do; None: not before the counts change."""
        pending = [zone.since_ms for zone in self.zones.values() if zone.since_ms is not None]
        return min(pending) + self._config.settle_ms if pending else None

    def on_disabled(self) -> bool:
        """Automatic repair is off; True when a phase changed by that."""
        return bool(self._move(_DOWN, _HELD))

    def on_enabled(self) -> list[ZoneChange]:
        """Automatic repair is on, and this auditor didn't do that: an operator lets it run.

        A zone that is DOWN stays so: its switch-off is still under way, and not stored yet.
        """
        return self._move(_HELD, _RELEASED)

    def on_released(self, names: Collection[str]) -> list[ZoneChange]:
        """An operator lets these zones be copied, whatever the switch is."""
        return self._move(_HELD, _RELEASED, names)

    def is_blocked(self, zone: str | None) -> bool:
        """Nothing of this zone (None: not known) may be repaired."""
        found = None if zone is None else self.zones.get(zone)
        return found.is_blocked if found is not None else self.all_blocked

    @property
    def all_blocked(self) -> bool:
        """There are zones and all are down: rather it is this auditor that is cut off."""
        return bool(self.zones) and all(zone.is_blocked for zone in self.zones.values())

    @property
    def may_return(self) -> bool:
        """Nothing here asks for the switch to be off, or is about to."""
        if any(zone.is_suspect for zone in self.zones.values()):
            return False
        held = [zone.phase in (_DOWN, _HELD) for zone in self.zones.values()]
        return not (any(held) if self._config.holds_all else held and all(held))

    @property
    def any_switch_pending(self) -> bool:
        """A zone is down for which the switch isn't known to be off."""
        return any(zone.phase is _DOWN for zone in self.zones.values())

    def phases(self) -> dict[str, ZonePhase]:
        """What the next auditor must know: zones that aren't UP."""
        return {name: zone.phase for name, zone in sorted(self.zones.items()) if zone.is_down}

    def _move(
        self, old: ZonePhase, new: ZonePhase, names: Collection[str] | None = None
    ) -> list[ZoneChange]:
        moved = [
            zone
            for zone in self.zones.values()
            if zone.phase is old and (names is None or zone.name in names)
        ]
        for zone in moved:
            zone.phase = new
        return [ZoneChange(zone.name, new, zone.available, zone.total) for zone in moved]

    def _wants_change(self, zone: Zone) -> bool:
        ratio = zone.available / zone.total
        if zone.is_down:
            return ratio >= self._config.high_watermark
        missing = zone.total - zone.available
        return ratio < self._config.low_watermark and missing >= self._config.losses_min


def zone_of(network_location: str) -> str:
    """The zone of ``/zone/upgrade-domain``."""
    return network_location.strip("/").partition("/")[0]
