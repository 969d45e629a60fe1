"""When audits happen, and that nothing of a zone that is down is ever marked."""

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.replication.auditor_core import (
    AlertZone,
    AuditLedgers,
    AuditorConfig,
    AuditorCore,
    ClusterView,
    DelayCancelled,
    DelayStarted,
    DisableReplication,
    Effect,
    EnableReplication,
    SaveZones,
)
from magnetar.bookkeeper.replication.zones import ZONE_REASON, ZoneConfig, ZonePhase

SETTLE, DELAY = 1_000, 60_000
ZONES = ZoneConfig(settle_ms=SETTLE)
CONFIG = AuditorConfig(lost_bookie_delay_ms=DELAY, zones=ZONES)
# Two zones of three: a0 a1 a2, b0 b1 b2
ALL = {f"{zone}{number}": zone for zone in "ab" for number in range(3)}


def view(*gone: str, everybody: dict[str, str] = ALL) -> ClusterView:
    there = {bookie: zone for bookie, zone in everybody.items() if bookie not in gone}
    return ClusterView(everybody, there)


class Auditor:
    """A core, its effects by kind, and a switch that follows its effects when it is told to."""

    def __init__(self, config: AuditorConfig = CONFIG, **stored: ZonePhase) -> None:
        self.core = AuditorCore(config, stored, None)
        self.now_ms = 0
        self.saved: dict[str, ZonePhase] = dict(stored)

    def see(self, *gone: str, after_ms: int = 0, everybody: dict[str, str] = ALL) -> list[Effect]:
        self.now_ms += after_ms
        self.core.on_bookies(self.now_ms, view(*gone, everybody=everybody))
        return self.take()

    def tick(self, after_ms: int) -> list[Effect]:
        self.now_ms += after_ms
        self.core.on_tick(self.now_ms)
        return self.take()

    def switch(self, reason: str | None) -> list[Effect]:
        self.core.on_switch(self.now_ms, reason)
        return self.take()

    def take(self) -> list[Effect]:
        effects = self.core.take_effects()
        for effect in effects:
            if isinstance(effect, SaveZones):
                self.saved = effect.phases
        return effects

    def audit(self, effects: Iterable[Effect]) -> list[str]:
        """Ends the audit among the effects; whose ledgers it would have marked."""
        assert any(isinstance(effect, AuditLedgers) for effect in effects), effects
        marked = [bookie for bookie in [*ALL, "stranger"] if self.core.may_mark(bookie)]
        self.core.on_audit_done(self.now_ms, complete=True)
        assert not has(self.take(), AuditLedgers)
        return marked


def has(effects: Iterable[Effect], kind: type) -> bool:
    return any(isinstance(effect, kind) for effect in effects)


def started(config: AuditorConfig = CONFIG) -> Auditor:
    """An auditor whose audit of the start is behind it."""
    auditor = Auditor(config)
    auditor.see()
    assert auditor.audit(auditor.tick(SETTLE)) == ["stranger"]
    assert auditor.core.next_deadline_ms() is None
    return auditor


def missing(*gone: str) -> Auditor:
    """One that was started, and sees these go."""
    auditor = started()
    auditor.see(*gone)
    return auditor


# One bookie, several bookies


def test_a_single_loss_waits_for_the_delay() -> None:
    auditor = started()
    (effect,) = auditor.see("a0")
    assert effect == DelayStarted(("a0",), auditor.now_ms + DELAY)
    assert auditor.core.next_deadline_ms() == auditor.now_ms + DELAY
    assert auditor.tick(DELAY - 1) == []
    assert not auditor.core.may_mark("a0")
    assert auditor.audit(auditor.tick(1)) == ["a0", "stranger"]
    assert auditor.core.next_deadline_ms() is None


def test_a_bookie_that_returns_in_time_was_never_lost() -> None:
    auditor = missing("a0")
    assert auditor.see(after_ms=DELAY - 1) == [DelayCancelled(("a0",))]
    assert auditor.core.next_deadline_ms() is None
    assert auditor.tick(10 * DELAY) == []


def test_several_losses_are_audited_at_once() -> None:
    auditor = missing("a0")
    auditor.see("a0", "b0", after_ms=DELAY // 2)
    assert auditor.audit(auditor.tick(SETTLE)) == ["a0", "b0", "stranger"]


def test_when_one_of_two_returns_the_other_has_its_delay() -> None:
    auditor = missing("a0", "b0")
    assert auditor.see("a0", after_ms=SETTLE // 2) == [DelayStarted(("a0",), SETTLE + DELAY)]
    assert auditor.tick(DELAY - SETTLE) == []
    assert auditor.audit(auditor.tick(SETTLE // 2)) == ["a0", "stranger"]


def test_what_was_audited_doesnt_count_among_later_losses() -> None:
    auditor = missing("a0")
    auditor.audit(auditor.tick(DELAY))
    auditor.see("a0", "b0", after_ms=DELAY)
    assert auditor.tick(SETTLE) == []
    assert auditor.audit(auditor.tick(DELAY)) == ["a0", "b0", "stranger"]


def test_without_delay_and_settle_time_a_loss_is_audited_in_the_same_call() -> None:
    auditor = Auditor(AuditorConfig(0, ZoneConfig(settle_ms=0)))
    auditor.audit(auditor.see())
    assert "a0" in auditor.audit(auditor.see("a0"))


def test_the_delay_can_be_changed_while_it_runs() -> None:
    auditor = missing("a0")
    auditor.core.on_delay(auditor.now_ms, DELAY, written=False)  # read again after a reconnect
    assert auditor.take() == []
    auditor.core.on_delay(auditor.now_ms, 5_000, written=True)
    assert auditor.take() == [DelayStarted(("a0",), auditor.now_ms + 5_000)]
    assert auditor.audit(auditor.tick(5_000)) == ["a0", "stranger"]


def test_writing_the_same_delay_again_asks_for_an_audit() -> None:
    auditor = missing("a0")
    auditor.core.on_delay(auditor.now_ms, DELAY, written=True)
    assert auditor.audit(auditor.take()) == ["a0", "stranger"]


def test_an_unconditional_audit_leaves_out_who_still_waits() -> None:
    auditor = missing("a0")
    auditor.core.on_audit_wanted(auditor.now_ms, "daily")
    assert auditor.audit(auditor.take()) == ["stranger"]


def test_a_decommissioned_bookie_isnt_missed() -> None:
    auditor = missing("a0")
    rest = {bookie: zone for bookie, zone in ALL.items() if bookie != "a0"}
    assert has(auditor.see(everybody=rest), DelayCancelled)
    assert auditor.tick(DELAY) == []
    assert auditor.core.may_mark("a0")  # what still names it has lost it for good


def test_a_bookie_without_a_cookie_is_missed_all_the_same() -> None:
    auditor = started()
    auditor.core.on_bookies(auditor.now_ms, ClusterView(ALL, {**ALL, "x": "c"}))
    auditor.core.on_bookies(auditor.now_ms, view())
    assert auditor.core.lost == ["x"]


def test_an_audit_that_failed_is_repeated() -> None:
    auditor = missing("a0")
    assert has(auditor.tick(DELAY), AuditLedgers)
    auditor.core.on_audit_done(auditor.now_ms, complete=False)
    assert auditor.audit(auditor.take()) == ["a0", "stranger"]


def test_news_during_an_audit_make_another_one() -> None:
    auditor = missing("a0")
    assert has(auditor.tick(DELAY), AuditLedgers)
    auditor.see("a0", "b0")
    assert auditor.tick(DELAY) == []  # one at a time
    auditor.core.on_audit_done(auditor.now_ms, complete=True)
    assert auditor.audit(auditor.take()) == ["a0", "b0", "stranger"]


# The switch


def test_nothing_is_marked_while_repair_is_off() -> None:
    auditor = started()
    auditor.switch("maintenance")
    auditor.see("a0")
    assert not has(auditor.tick(10 * DELAY), AuditLedgers)
    assert not auditor.core.may_mark("a0")
    assert not auditor.core.may_mark("stranger")
    assert auditor.audit(auditor.switch(None)) == ["a0", "stranger"]


def test_an_audit_that_was_switched_off_in_its_middle_is_repeated() -> None:
    auditor = missing("a0")
    assert has(auditor.tick(DELAY), AuditLedgers)
    auditor.switch("maintenance")
    auditor.core.on_audit_done(auditor.now_ms, complete=True)
    assert auditor.take() == []
    assert auditor.audit(auditor.switch(None)) == ["a0", "stranger"]


# Zones


def test_a_zone_that_goes_down_switches_repair_off_before_anything_is_marked() -> None:
    auditor = started(AuditorConfig(0, ZONES))
    assert has(auditor.see("a0"), DelayStarted)
    auditor.see("a0", "a1", after_ms=100)
    auditor.see("a0", "a1", "a2", after_ms=100)
    # The first one's time is over, but by now it is one of an outage.
    assert auditor.tick(SETTLE - 200) == []
    effects = auditor.tick(200)
    assert [type(effect) for effect in effects] == [AlertZone, SaveZones, DisableReplication]
    assert effects[2] == DisableReplication("zone down: a 0/3")
    assert auditor.saved == {"a": ZonePhase.DOWN}
    auditor.switch("zone down: a 0/3")
    assert auditor.saved == {"a": ZonePhase.HELD}
    assert auditor.tick(100 * DELAY) == []
    assert not any(map(auditor.core.may_mark, ALL))


def down() -> Auditor:
    """Zone a is down and repair is off."""
    auditor = missing("a0", "a1", "a2")
    (disable,) = [each for each in auditor.tick(SETTLE) if isinstance(each, DisableReplication)]
    auditor.switch(disable.reason)
    return auditor


def test_an_operator_lets_the_zone_be_copied() -> None:
    auditor = down()
    effects = auditor.switch(None)
    assert auditor.saved == {"a": ZonePhase.RELEASED}
    assert not has(effects, DisableReplication)
    assert auditor.audit(effects) == ["a0", "a1", "a2", "stranger"]
    assert not has(auditor.tick(100 * DELAY), DisableReplication)


def test_a_zone_that_returns_switches_repair_on_again() -> None:
    auditor = down()
    assert auditor.see("a2") == []  # two of three are above the high watermark
    effects = auditor.tick(SETTLE)
    assert [type(effect) for effect in effects[:3]] == [AlertZone, SaveZones, EnableReplication]
    assert auditor.saved == {}
    # The one that is missing is an ordinary loss, from now on.
    assert effects[3:] == [DelayStarted(("a2",), auditor.now_ms + DELAY)]
    assert auditor.switch(None) == []
    assert auditor.audit(auditor.tick(DELAY)) == ["a2", "stranger"]


def test_bookies_that_are_late_when_their_zone_is_back_have_the_whole_delay() -> None:
    """Each for itself: that there are two of them is no other loss."""
    everybody = {f"{zone}{number}": zone for zone in "ab" for number in range(10)}
    auditor = Auditor()
    auditor.see(everybody=everybody)
    auditor.audit(auditor.tick(SETTLE))
    auditor.see(*(f"a{n}" for n in range(10)), everybody=everybody)
    auditor.tick(SETTLE)
    auditor.switch("zone down: a 0/10")
    auditor.see("a0", "a1", everybody=everybody, after_ms=10 * DELAY)
    assert has(auditor.tick(SETTLE), EnableReplication)
    back_ms = auditor.now_ms
    auditor.switch(None)
    assert auditor.tick(DELAY // 2) == []
    auditor.see("a0", everybody=everybody)
    assert auditor.audit(auditor.see("a0", "b0", everybody=everybody, after_ms=DELAY // 2)) == [
        "a0",
        "stranger",
    ]
    assert auditor.now_ms == back_ms + DELAY
    assert auditor.audit(auditor.tick(DELAY)) == ["a0", "b0", "stranger"]


def test_without_auto_return_only_an_operator_switches_on() -> None:
    zones = ZoneConfig(settle_ms=SETTLE, auto_return=False)
    auditor = started(AuditorConfig(DELAY, zones))
    auditor.see("a0", "a1", "a2")
    auditor.tick(SETTLE)
    auditor.switch("zone down: a 0/3")
    auditor.see()
    effects = auditor.tick(SETTLE)
    assert [type(effect) for effect in effects] == [AlertZone, SaveZones]
    assert auditor.tick(100 * DELAY) == []
    auditor.switch(None)
    auditor.see("a0")
    assert auditor.audit(auditor.tick(DELAY)) == ["a0", "stranger"]


def test_what_an_operator_switched_off_no_zone_switches_on() -> None:
    auditor = started()
    auditor.switch("maintenance")
    auditor.see("a0", "a1", "a2")
    auditor.tick(SETTLE)
    auditor.switch("maintenance")  # as it was: the first reason stays
    assert auditor.saved == {"a": ZonePhase.HELD}
    auditor.see()
    assert not has(auditor.tick(SETTLE), EnableReplication)


def test_a_second_zone_holds_back_the_return() -> None:
    auditor = down()
    auditor.see("b0", "b1", "b2")
    auditor.tick(SETTLE)
    assert not has(auditor.tick(DELAY), EnableReplication)
    auditor.switch("zone down: a 0/3")
    auditor.see()
    assert has(auditor.tick(SETTLE), EnableReplication)


def test_a_loss_in_a_healthy_zone_is_an_ordinary_one_beside_an_outage() -> None:
    auditor = missing("a0", "a1")
    auditor.see("a0", "a1", "b0", after_ms=SETTLE // 2)
    effects = auditor.tick(SETTLE // 2)
    assert has(effects, DisableReplication)
    auditor.switch("zone down: a 1/3")
    auditor.see("a0", "b0")
    assert has(auditor.tick(SETTLE), EnableReplication)
    assert not has(auditor.switch(None), AuditLedgers)
    marked = auditor.audit(auditor.tick(DELAY))
    assert "b0" in marked
    assert "a1" not in marked


def test_an_audit_that_an_outage_interrupted_is_done_again_when_it_was_none() -> None:
    """What was due waits while its zone is suspect: its ledgers may be marked only in part."""
    auditor = missing("a0")
    assert has(auditor.tick(DELAY), AuditLedgers)
    auditor.see("a0", "a1", "a2")
    assert not auditor.core.may_mark("a0")
    auditor.core.on_audit_done(auditor.now_ms, complete=True)
    assert auditor.take() == []
    assert auditor.audit(auditor.see("a0", after_ms=SETTLE // 2)) == ["a0", "stranger"]


def test_a_released_zone_has_no_delay_any_more() -> None:
    lonely = {**ALL, "c0": "c"}
    zones = ZoneConfig(settle_ms=SETTLE, losses_min=1)
    auditor = Auditor(AuditorConfig(DELAY, zones))
    auditor.see(everybody=lonely)
    auditor.audit(auditor.tick(SETTLE))
    auditor.see("c0", everybody=lonely)
    assert has(auditor.tick(SETTLE), DisableReplication)
    auditor.switch("zone down: c 0/1")
    assert has(auditor.switch(None), AuditLedgers)
    assert auditor.core.may_mark("c0")


OWN = ZoneConfig(settle_ms=SETTLE, holds_all=False)


def test_a_zone_may_hold_only_itself() -> None:
    auditor = started(AuditorConfig(DELAY, OWN))
    auditor.see("a0", "a1", "a2")
    effects = auditor.tick(SETTLE)
    assert [type(effect) for effect in effects] == [AlertZone, SaveZones]
    assert auditor.saved == {"a": ZonePhase.HELD}
    auditor.see("a0", "a1", "a2", "b0")
    assert auditor.audit(auditor.tick(DELAY)) == ["b0", "stranger"]
    assert auditor.switch(None) == []  # as read again after a reconnect: nobody's release
    assert not auditor.core.may_mark("a0")
    auditor.core.on_released(auditor.now_ms, ["a", "b"])
    assert auditor.audit(auditor.take()) == ["a0", "a1", "a2", "b0", "stranger"]
    assert auditor.saved == {"a": ZonePhase.RELEASED}


def test_switching_on_by_hand_releases_a_zone_that_holds_itself() -> None:
    auditor = started(AuditorConfig(DELAY, OWN))
    auditor.see("a0", "a1", "a2")
    auditor.tick(SETTLE)
    auditor.switch("maintenance")
    assert auditor.audit(auditor.switch(None)) == ["a0", "a1", "a2", "stranger"]


def test_all_zones_down_switch_all_off_whatever_their_scope() -> None:
    auditor = started(AuditorConfig(DELAY, OWN))
    auditor.see("a0", "a1", "a2")
    auditor.tick(SETTLE)
    auditor.see(*ALL)
    (disable,) = [each for each in auditor.tick(SETTLE) if isinstance(each, DisableReplication)]
    auditor.switch(disable.reason)
    assert auditor.saved == {"a": ZonePhase.HELD, "b": ZonePhase.HELD}
    auditor.see("a0", "a1", "a2")
    assert has(auditor.tick(SETTLE), EnableReplication)  # b is back
    auditor.switch(None)
    assert auditor.saved == {"a": ZonePhase.HELD}  # which releases nobody
    assert not auditor.core.may_mark("a0")


def test_the_next_auditor_holds_what_held_itself() -> None:
    successor = Auditor(AuditorConfig(DELAY, OWN), a=ZonePhase.HELD)
    successor.see("a0", "a1", "a2")
    assert successor.audit(successor.tick(SETTLE)) == ["stranger"]
    assert successor.core.zones.phases() == {"a": ZonePhase.HELD}


def test_when_all_zones_are_down_the_auditor_marks_nothing() -> None:
    auditor = missing(*ALL)
    assert not auditor.core.may_mark("stranger")
    effects = auditor.tick(SETTLE)
    (disable,) = [each for each in effects if isinstance(each, DisableReplication)]
    assert "all zones" in disable.reason
    assert all(each.all_down for each in effects if isinstance(each, AlertZone))


def test_the_next_auditor_knows_what_was_released() -> None:
    auditor = down()
    auditor.switch(None)
    successor = Auditor(CONFIG, **auditor.saved)
    successor.see("a0", "a1", "a2")
    marked = successor.audit(successor.tick(SETTLE))
    assert marked == ["a0", "a1", "a2", "stranger"]


@pytest.mark.parametrize("phase", [ZonePhase.DOWN, ZonePhase.HELD])
def test_the_next_auditor_finishes_what_was_begun(phase: ZonePhase) -> None:
    successor = Auditor(CONFIG, a=phase)
    effects = successor.see("a0", "a1", "a2")
    # HELD and yet on: an operator did that while there was no auditor.
    assert has(effects, DisableReplication) == (phase is ZonePhase.DOWN)
    assert successor.core.zones.is_blocked("a") == (phase is ZonePhase.DOWN)


def test_a_new_auditor_of_a_zone_that_is_back_switches_on() -> None:
    successor = Auditor(CONFIG)
    successor.core = AuditorCore(CONFIG, {"a": ZonePhase.HELD}, f"{ZONE_REASON}a 0/3")
    successor.see()
    assert has(successor.tick(SETTLE), EnableReplication)
    alone = Auditor(CONFIG)
    alone.core = AuditorCore(CONFIG, {}, f"{ZONE_REASON}a 0/3")  # the phases were lost
    assert not has(alone.see(), EnableReplication)
    assert has(alone.tick(SETTLE), EnableReplication)


# Whatever happens


class Model:
    """Who may be marked, worked out anew from the whole history at each step."""

    def __init__(self, config: ZoneConfig) -> None:
        self.config = config
        self.down: dict[str, str] = {}  # zone -> "held" or "released"
        self.pending: dict[str, int] = {}

    def see(self, now_ms: int, gone: frozenset[str]) -> None:
        self.advance(now_ms)
        for zone in "ab":
            share = sum(b not in gone for b in ALL if ALL[b] == zone) / 3
            wants = share >= 0.65 if zone in self.down else share < 0.5
            if wants:
                self.pending.setdefault(zone, now_ms)
            else:
                self.pending.pop(zone, None)
        self.advance(now_ms)

    def advance(self, now_ms: int) -> None:
        for zone in [z for z, since in self.pending.items() if now_ms >= since + SETTLE]:
            del self.pending[zone]
            if zone in self.down:
                del self.down[zone]
            else:
                self.down[zone] = "held"


STEPS = st.lists(
    st.one_of(
        st.frozensets(st.sampled_from(sorted(ALL))),  # who is gone
        st.integers(1, 3 * SETTLE),  # time that passes
        st.sampled_from(["on", "off", "audit ends"]),
    ),
    max_size=40,
)


class Play:
    """A core, the model beside it, and a switch that answers at once."""

    def __init__(self, delay_ms: int, auto_return: bool, holds_all: bool) -> None:
        zones = ZoneConfig(settle_ms=SETTLE, auto_return=auto_return, holds_all=holds_all)
        self.holds_all = holds_all
        self.core = AuditorCore(AuditorConfig(delay_ms, zones), {}, None)
        self.model = Model(zones)
        self.now_ms, self.auto_return = 0, auto_return
        self.switch: str | None = None
        self.gone: frozenset[str] = frozenset()
        self.see(self.gone)

    def see(self, gone: frozenset[str]) -> None:
        self.gone = gone
        self.core.on_bookies(self.now_ms, view(*gone))
        self.model.see(self.now_ms, gone)

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.core.on_tick(self.now_ms)
        self.model.advance(self.now_ms)

    def operate(self, what: str) -> None:
        if what == "audit ends":
            self.core.on_audit_done(self.now_ms, complete=True)
        elif what == "off":
            self.switch = self.switch or "maintenance"
            self.core.on_switch(self.now_ms, self.switch)
        else:
            if self.switch is not None:
                self.model.down = dict.fromkeys(self.model.down, "released")
            self.switch = None
            self.core.on_switch(self.now_ms, None)

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, DisableReplication):
            self.switch = self.switch or effect.reason
            self.core.on_switch(self.now_ms, self.switch)
        elif isinstance(effect, EnableReplication):
            assert self.auto_return
            assert self.switch is not None
            assert self.switch.startswith(ZONE_REASON)
            held = list(self.model.down.values()).count("held")
            assert held == 0 or (held == 1 and not self.holds_all)
            self.switch = None
            self.core.on_switch(self.now_ms, None)
        elif isinstance(effect, AuditLedgers):
            assert self.switch is None

    def check(self) -> None:
        while effects := self.core.take_effects():
            for effect in effects:
                self.perform(effect)
        model = self.model
        for bookie, zone in ALL.items():
            suspect = zone in model.pending and zone not in model.down
            blocked = self.switch is not None or model.down.get(zone) == "held" or suspect
            if blocked or bookie not in self.gone:
                assert not self.core.may_mark(bookie), (bookie, model.down, model.pending)
        zones = self.core.zones.zones.values()
        assert {zone.name for zone in zones if zone.is_down} == set(model.down)
        held = list(model.down.values()).count("held")
        if held == 2 or (held == 1 and self.holds_all):
            assert self.switch is not None
        deadline = self.core.next_deadline_ms()
        assert deadline is None or deadline > self.now_ms  # the shell would spin otherwise


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    delay_ms=st.sampled_from([0, 500, 5_000]),
    auto_return=st.booleans(),
    holds_all=st.booleans(),
)
def test_nothing_of_a_zone_that_is_down_is_ever_marked(
    steps: list[frozenset[str] | int | str], delay_ms: int, auto_return: bool, holds_all: bool
) -> None:
    """Any history: an independent model of 7.7 agrees."""
    play = Play(delay_ms, auto_return, holds_all)
    play.check()
    for step in steps:
        if isinstance(step, frozenset):
            play.see(step)
        elif isinstance(step, int):
            play.tick(step)
        else:
            play.operate(step)
        play.check()


@settings(max_examples=200, deadline=None)
@given(
    losses=st.lists(st.sampled_from(sorted(ALL)), min_size=1, max_size=6, unique=True),
    release=st.booleans(),
)
def test_in_the_end_all_that_is_lost_is_marked(losses: list[str], release: bool) -> None:
    """Time passes, and an operator releases what is down: nobody waits for ever."""
    auditor = started()
    for bookie_count in range(1, len(losses) + 1):
        auditor.see(*losses[:bookie_count], after_ms=300)
    pending = auditor.tick(2 * DELAY)
    disabled = [each.reason for each in pending if isinstance(each, DisableReplication)]
    if disabled:
        auditor.switch(disabled[0])
        assert not any(map(auditor.core.may_mark, ALL))
        if not release:
            return
        auditor.switch(None)
    auditor.core.on_audit_done(auditor.now_ms, complete=True)
    auditor.tick(2 * DELAY)
    assert [bookie for bookie in ALL if auditor.core.may_mark(bookie)] == sorted(losses)
