"""When the auditor looks for ledgers that lost replicas, and of which bookies. Pure.

Calls in, effects out; time is an argument, in milliseconds of a clock that never goes back.

A bookie that is registered and gone is *waiting*: alone for the lost-bookie delay, together with
others only for the settle time ("at once": the zones need that moment to show what it is). Then it
is *due*: the next audit marks its ledgers. One that returns before that was never lost. Zones are
always looked at first (``zones.py``): what belongs to a zone that is down, or about to be, keeps
waiting, whatever its delay says, and it doesn't count as a loss among others. When a zone is back,
those of its bookies that aren't are given the whole delay from then on, each for itself: they come
one after the other. Rules: docs/spec/storage.md, "Repair" and "Lost zones".
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from magnetar.bookkeeper.replication.zones import (
    ZONE_REASON,
    ZoneChange,
    ZoneConfig,
    ZonePhase,
    Zones,
)


@dataclass(slots=True)
class AuditLedgers:
    """Go over the metadata of all ledgers, mark those with a bookie that ``may_mark`` holds for.

    Answer: on_audit_done. There is one at a time.
    """

    reason: str


@dataclass(slots=True)
class DelayStarted:
    """For the log: these bookies are gone and will be due at ``due_ms``, unless they return."""

    bookies: tuple[str, ...]
    due_ms: int


@dataclass(slots=True)
class DelayCancelled:
    """For the log and a counter: no audit is due any more, all bookies returned in time."""

    bookies: tuple[str, ...]


@dataclass(slots=True)
class AlertZone:
    """Tell people: a zone went down, came back or was released."""

    change: ZoneChange
    all_down: bool


@dataclass(slots=True)
class SaveZones:
    """Store the phases for the next auditor. Before Disable and Enable of the same batch."""

    phases: dict[str, ZonePhase]


@dataclass(slots=True)
class DisableReplication:
    """Switch automatic repair off in the cluster. Answer: on_switch, with what is stored then."""

    reason: str


@dataclass(slots=True)
class EnableReplication:
    """Switch repair on again: all zones are back. Answer: on_switch."""


Effect = (
    AuditLedgers
    | DelayStarted
    | DelayCancelled
    | AlertZone
    | SaveZones
    | DisableReplication
    | EnableReplication
)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Maps bookie ids to zones: of all bookies with a cookie, and of all registered now."""

    cookies: Mapping[str, str]
    available: Mapping[str, str]  # writable or read-only


@dataclass(frozen=True, slots=True)
class AuditorConfig:
    """Settings of the auditor.

    Attributes:
        lost_bookie_delay_ms: from a single bookie's loss to its audit; at least the settle time.
    """

    lost_bookie_delay_ms: int = 0
    zones: ZoneConfig = field(default_factory=ZoneConfig)


class AuditorCore:
    """Decides for one auditor, from its election to its end.

    Args:
        stored: phases of zones that the previous auditor stored.

    Attributes:
        disabled_reason: why automatic repair is off; None: it is on.
    """

    def __init__(
        self, config: AuditorConfig, stored: Mapping[str, ZonePhase], disabled_reason: str | None
    ) -> None:
        self.disabled_reason = disabled_reason
        self.zones = Zones(config.zones, stored)
        self._auto_return = config.zones.auto_return
        self._settle_ms = config.zones.settle_ms
        self._delay_ms = config.lost_bookie_delay_ms
        self._zone_by_bookie: dict[str, str] = {}  # all that are known
        self._with_cookie: frozenset[str] = frozenset()
        self._available: frozenset[str] = frozenset()
        self._waiting: dict[str, int] = {}  # gone and not due -> since when
        self._stragglers: set[str] = set()  # those waiting whose zone came back without them
        self._due: dict[str, int] = {}  # gone long enough, the same; until they return
        self._announced: tuple[tuple[str, ...], int] | None = None  # last DelayStarted
        self._start_audit_ms: int | None = None
        self._wanted: list[str] = []  # reasons for an audit that may not start yet
        self._running = self._repeat = False  # an audit; it met something that stopped it
        self._started = self._enabling = False
        self._effects: list[Effect] = []
        if disabled_reason is not None:
            self.zones.on_disabled()
        elif config.zones.holds_all:
            # The auditor before proved that it was off (HELD), so an operator has switched it on.
            self.zones.on_enabled()

    # Inputs

    def on_bookies(self, now_ms: int, view: ClusterView) -> None:
        """Who there is now. The first call starts the auditor."""
        is_first, self._started = not self._started, True
        self._learn(view)
        returned = {b for b in (*self._waiting, *self._due) if b in self._available}
        returned |= {b for b in (*self._waiting, *self._due) if b not in self._zone_by_bookie}
        waited = tuple(sorted(returned & self._waiting.keys()))
        for bookie in returned:
            self._waiting.pop(bookie, None)
            self._stragglers.discard(bookie)
            self._due.pop(bookie, None)
        for bookie in sorted(self._zone_by_bookie.keys() - self._available):
            if bookie not in self._due:
                self._waiting.setdefault(bookie, now_ms)
        if waited and not self._waiting:
            self._effects.append(DelayCancelled(waited))
        self._on_zone_changes(now_ms, self.zones.on_counts(now_ms, self._counts()))
        if is_first:
            # An auditor before may have died in the middle of marking, or of switching off.
            self._start_audit_ms = now_ms + self._settle_ms
            if self.zones.any_switch_pending and self.disabled_reason is None:
                self._disable()
        self.on_tick(now_ms)

    def on_switch(self, now_ms: int, disabled_reason: str | None) -> None:
        """Why automatic repair is off, None: it is on; as read from the store after an event."""
        was_off, by_us = self.disabled_reason is not None, self._enabling
        self.disabled_reason, self._enabling = disabled_reason, False
        if disabled_reason is not None:
            self._repeat = self._running
            if self.zones.on_disabled():
                self._effects.append(SaveZones(self.zones.phases()))
        else:
            if was_off and not by_us:
                self._release(now_ms, self.zones.on_enabled())
            if self.zones.any_switch_pending:
                # It was switched on between our decision and its answer: decide again.
                self._disable()
        self.on_tick(now_ms)

    def on_released(self, now_ms: int, zones: Collection[str]) -> None:
        """An operator lets these zones be copied; those that aren't held are left alone."""
        self._release(now_ms, self.zones.on_released(zones))
        self.on_tick(now_ms)

    def on_delay(self, now_ms: int, delay_ms: int, *, written: bool) -> None:
        """The lost-bookie delay, as it is stored.

        Args:
            written: an operator has just written it. The same value again means: audit now, also
                what waits.
        """
        if written and delay_ms == self._delay_ms:
            self._make_due(self._unblocked(), "operator's request")
            self._wanted.append("operator's request")
        self._delay_ms = delay_ms
        self.on_tick(now_ms)

    def on_audit_wanted(self, now_ms: int, reason: str) -> None:
        """An unconditional audit, as the daily one; bookies that wait are left out of it."""
        self._wanted.append(reason)
        self.on_tick(now_ms)

    def on_audit_done(self, now_ms: int, *, complete: bool) -> None:
        """The audit that was asked for has ended; one that couldn't see all is repeated."""
        if self._repeat or not complete:
            self._wanted.append("repeated")
        self._running = self._repeat = False
        self.on_tick(now_ms)

    def on_tick(self, now_ms: int) -> None:
        """Do what is due. Harmless at any time."""
        if not self._started:
            return
        self._on_zone_changes(now_ms, self.zones.advance(now_ms))
        self._hold_blocked()
        if self._start_audit_ms is not None and now_ms >= self._start_audit_ms:
            self._start_audit_ms = None
            self._wanted.append("start")
        self._return()
        delays = self._delays()
        self._make_due([bookie for bookie, due_ms in delays.items() if due_ms <= now_ms], "lost")
        self._announce({bookie: due_ms for bookie, due_ms in delays.items() if due_ms > now_ms})
        is_on = self.disabled_reason is None and not self.zones.any_switch_pending
        if self._wanted and is_on and not self._running and not self.zones.all_blocked:
            self._effects.append(AuditLedgers(", ".join(dict.fromkeys(self._wanted))))
            self._wanted, self._running = [], True

    # Answers

    def next_deadline_ms(self) -> int | None:
        """When ``on_tick`` has something to do; None: not before the next input."""
        candidates = (
            self._start_audit_ms,
            min(self._delays().values(), default=None),
            self.zones.next_deadline_ms(),
        )
        return min((each for each in candidates if each is not None), default=None)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def is_known(self, bookie: str) -> bool:
        """Return whether a cookie or a registration of the bookie has been read."""
        return bookie in self._zone_by_bookie

    @property
    def delay_s(self) -> float:
        """Return the seconds from the loss of a single bookie to its audit."""
        return max(self._delay_ms, self._settle_ms) / 1000

    @property
    def available(self) -> frozenset[str]:
        """Return the bookies that are registered, writable or read-only."""
        return self._available

    def may_mark(self, bookie: str) -> bool:
        """Return whether the auditor may mark the bookie's ledgers for repair now.

        It may if the bookie is away for longer than the delay, or unknown (decommissioned).
        """
        if self.disabled_reason is not None or bookie in self._available or not self._started:
            return False
        if bookie in self._zone_by_bookie and bookie not in self._due:
            return False
        return not self.zones.is_blocked(self._zone_by_bookie.get(bookie))

    @property
    def lost(self) -> list[str]:
        """Return the known bookies that aren't registered, before and after their delay."""
        return sorted({*self._waiting, *self._due})

    # Helpers

    def _learn(self, view: ClusterView) -> None:
        """Known: bookies with a cookie, those registered, and those seen that never had a cookie.

        One whose cookie was deleted is decommissioned: it isn't missed any more.
        """
        gone = self._with_cookie - view.cookies.keys()
        kept = {
            bookie: zone
            for bookie, zone in self._zone_by_bookie.items()
            if bookie not in gone and bookie not in view.cookies
        }
        # A registration is fresher: a cookie's place is that of the bookie's last start.
        self._zone_by_bookie = {**kept, **view.cookies, **view.available}
        self._with_cookie = frozenset(view.cookies)
        self._available = frozenset(view.available)

    def _counts(self) -> dict[str, tuple[int, int]]:
        counts: dict[str, tuple[int, int]] = {}
        for bookie, zone in self._zone_by_bookie.items():
            available, total = counts.get(zone, (0, 0))
            counts[zone] = (available + (bookie in self._available), total + 1)
        return counts

    def _unblocked(self) -> list[str]:
        """Bookies that wait, and not for their zone."""
        blocked, zones = self.zones.is_blocked, self._zone_by_bookie
        if self.zones.all_blocked:
            return []
        return [bookie for bookie in self._waiting if not blocked(zones[bookie])]

    def _delays(self) -> dict[str, int]:
        """When each of those will be due that wait, and not for their zone."""
        waiting, delay_ms = self._unblocked(), max(self._delay_ms, self._settle_ms)
        together = [bookie for bookie in waiting if bookie not in self._stragglers]
        delays = {b: self._waiting[b] + delay_ms for b in waiting if b in self._stragglers}
        if together:
            latest = max(self._waiting[bookie] for bookie in together)
            due_ms = latest + (self._settle_ms if len(together) > 1 else delay_ms)
            delays |= dict.fromkeys(together, due_ms)
        return delays

    def _announce(self, delays: dict[str, int]) -> None:
        """Tell of the next ones, once."""
        if not delays:
            return
        due_ms = min(delays.values())
        bookies = tuple(sorted(bookie for bookie, each in delays.items() if each == due_ms))
        if self._announced != (bookies, due_ms):
            self._announced = (bookies, due_ms)
            self._effects.append(DelayStarted(bookies, due_ms))

    def _make_due(self, bookies: list[str], why: str) -> None:
        for bookie in bookies:
            self._due[bookie] = self._waiting.pop(bookie)
            self._stragglers.discard(bookie)
        if bookies:
            self._wanted.append(f"{why}: {' '.join(sorted(bookies))}")

    def _release(self, now_ms: int, changes: list[ZoneChange]) -> None:
        if changes:
            self._on_zone_changes(now_ms, changes)
            # A whole zone's copies are wanted now: no second wait.
            self._make_due(self._unblocked(), "operator's release")

    def _on_zone_changes(self, now_ms: int, changes: list[ZoneChange]) -> None:
        if not changes:
            return
        for change in changes:
            self._effects.append(AlertZone(change, self.zones.all_blocked))
            if change.phase is ZonePhase.UP:
                missing = {b for b in self._waiting if self._zone_by_bookie[b] == change.zone}
                self._stragglers |= missing
                self._waiting |= dict.fromkeys(missing, now_ms)
        self._effects.append(SaveZones(self.zones.phases()))
        if self.zones.any_switch_pending:
            self._disable()

    def _return(self) -> None:
        """Switch on again what was switched off for zones that are back."""
        is_ours = (self.disabled_reason or "").startswith(ZONE_REASON)
        # At its start an auditor hasn't seen yet what lasts.
        is_settled = self._start_audit_ms is None and self.zones.may_return
        if is_ours and is_settled and self._auto_return and not self._enabling:
            self._enabling = True
            self._effects.append(EnableReplication())

    def _hold_blocked(self) -> None:
        """What was due and belongs to an outage now waits on, for the outage's end or release."""
        blocked, zones = self.zones.is_blocked, self._zone_by_bookie
        for bookie in [b for b in self._due if blocked(zones[b])]:
            self._waiting[bookie] = self._due.pop(bookie)

    def _disable(self) -> None:
        down = [zone for zone in self.zones.zones.values() if zone.phase is ZonePhase.DOWN]
        text = ", ".join(f"{zone.name} {zone.available}/{zone.total}" for zone in down)
        if self.zones.all_blocked and len(self.zones.zones) > 1:
            text += " (all zones: is the auditor cut off from them?)"
        self._effects.append(DisableReplication(f"{ZONE_REASON}{text}"))
