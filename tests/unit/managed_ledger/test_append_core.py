"""The append path's decisions, effect by effect."""

import pytest

from magnetar.managed_ledger.append_core import (
    CREATE_RETRY_MS,
    EMPTY_LEDGERS_MAX,
    PAUSE_MS_MAX,
    AppendCore,
    AppendsDone,
    AppendState,
    CloseLedger,
    CreateLedger,
    Effect,
    EndLedger,
    GoOn,
    PendingBatch,
    RotationLimits,
    WriteBatch,
)
from magnetar.managed_ledger.errors import AppendFailedError, ManagedLedgerFencedError

LIMITS = RotationLimits(entries_max=8, bytes_max=1000, age_min_ms=0, age_max_ms=1000)
BOOM = ValueError("boom")


class Harness:
    """A core, and what it reported: (ledger, first, count) or the error, by batch name."""

    def __init__(self, limits: RotationLimits = LIMITS) -> None:
        self.core = AppendCore(limits)
        self.now_ms = 10
        self.reports: list[tuple[str, int, int, int]] = []
        self.errors: list[tuple[str, int, BaseException]] = []
        self.written: list[tuple[int, int, list[bytes]]] = []

    def state(self) -> AppendState:
        """The core's; a call, because the type checker believes that attributes don't change."""
        return self.core.state

    def append(self, name: str, count: int, size: int = 1) -> None:
        def done(ledger_id: int, first: int, entries: int, error: BaseException | None) -> None:
            if error is None:
                self.reports.append((name, ledger_id, first, entries))
            else:
                assert (ledger_id, first) == (-1, -1)
                self.errors.append((name, entries, error))

        bodies = [b"%s%d" % (name.encode(), i) + b"." * (size - 1) for i in range(count)]
        batch = self.core.append([b"h"] * count, list(bodies), done, self.now_ms)
        if batch is not None:
            self._write(self.core.current, batch)

    def _write(self, ledger_id: int, batch: PendingBatch) -> None:
        self.written.append((ledger_id, batch.first, [bytes(x[:2]) for x in batch.bodies]))

    def effects(self) -> list[Effect]:
        """Takes all effects, performs the writes, reports; answers the other effects."""
        others: list[Effect] = []
        for effect in self.core.take_effects():
            if isinstance(effect, WriteBatch):
                self._write(effect.ledger_id, effect.batch)
            else:
                others.append(effect)
        for done in self.core.take_done():
            assert isinstance(done, AppendsDone)
            if done.error is None:
                assert len(done.heads) == len(done.bodies) == done.count
                assert done.entry_bytes == sum(map(len, done.heads)) + sum(map(len, done.bodies))
            done.on_done(done.ledger_id, done.first, done.count, done.error)
        assert not self.core.has_effects
        return others

    def open(self, ledger_id: int = 1) -> None:
        """Gets the core to its first ledger by a batch ``a`` of two entries, confirmed."""
        self.append("a", 2)
        assert self.effects() == [CreateLedger()]
        self.core.on_ledger_ready(ledger_id, self.now_ms)
        assert self.effects() == []
        self.core.on_confirmed(ledger_id, 1)
        assert self.effects() == []
        assert self.reports == [("a", ledger_id, 0, 2)]
        self.reports.clear()
        self.written.clear()


def opened() -> Harness:
    h = Harness()
    h.open()
    return h


def test_first_append_asks_for_a_ledger_and_waits_for_it() -> None:
    h = Harness()
    h.append("a", 2)
    assert h.effects() == [CreateLedger()]
    assert h.state() is AppendState.CREATING
    h.append("b", 1)
    assert h.effects() == []
    assert h.core.pending_entries == 3
    assert h.core.pending_bytes == 9
    h.core.on_ledger_ready(5, 11)
    assert h.effects() == []
    assert h.written == [(5, 0, [b"a0", b"a1"]), (5, 2, [b"b0"])]
    assert h.reports == []
    h.core.on_confirmed(5, 2)
    assert h.effects() == []
    assert h.reports == [("a", 5, 0, 2), ("b", 5, 2, 1)]
    assert h.core.pending_entries == h.core.pending_bytes == 0
    assert h.core.is_idle


def test_what_was_queued_is_written_in_turns() -> None:
    h = Harness(RotationLimits(entries_max=100, bytes_max=10**6, age_min_ms=0, age_max_ms=10**6))
    h.core.turn_entries = 4
    for name in "abcdef":
        h.append(name, 2)
    assert h.effects() == [CreateLedger()]
    h.core.on_ledger_ready(5, 11)
    assert h.effects() == [GoOn()]
    assert [first for _, first, _ in h.written] == [0, 2]
    h.append("g", 1)  # doesn't overtake
    h.core.on_confirmed(5, 3)
    assert h.effects() == []
    assert h.core.pending_entries == 9
    for more in ([GoOn()], [GoOn()], []):
        h.core.go_on(11)
        assert h.effects() == more
    h.append("h", 1)
    assert [bodies[0][:1] for _, _, bodies in h.written] == [b"%c" % name for name in b"abcdefgh"]
    h.core.on_confirmed(5, 13)
    h.effects()
    assert [report[0] for report in h.reports] == list("abcdefgh")
    assert h.core.is_idle


def test_a_ledger_that_fails_or_is_full_between_two_turns() -> None:
    h = Harness()
    h.core.turn_entries = 4
    for name in "abcd":
        h.append(name, 3)
    h.effects()
    h.core.on_ledger_ready(1, 11)
    assert h.effects() == [GoOn()]
    h.core.on_ledger_failed(1)
    h.effects()
    h.core.go_on(11)
    assert h.effects() == []
    assert [first for _, first, _ in h.written] == [0, 3]
    h.core.on_ledger_ended(1, 2, 11)
    h.effects()
    h.core.on_ledger_ready(2, 12)
    assert h.effects()[-1] == GoOn()
    h.core.go_on(12)
    h.effects()
    assert [each[:2] for each in h.written[2:]] == [(2, 0), (2, 3), (2, 6)]
    assert h.state() is AppendState.SWITCHING
    h.core.go_on(12)
    assert h.effects() == []
    h.core.on_confirmed(2, 7)
    assert h.effects() == [CloseLedger(2)]
    h.core.on_ledger_ready(3, 13)
    h.effects()
    h.core.on_confirmed(3, 0)
    h.effects()
    assert [report[:3] for report in h.reports] == [
        *[("a", 1, 0), ("b", 2, 0), ("c", 2, 3), ("d", 2, 6), ("d", 3, 0)]
    ]


def test_a_stop_between_two_turns_fails_what_is_queued() -> None:
    h = Harness()
    h.core.turn_entries = 1
    for name in "abc":
        h.append(name, 1)
    h.effects()
    h.core.on_ledger_ready(1, 11)
    h.effects()
    h.core.stop(BOOM)
    h.core.go_on(11)
    assert h.effects() == []
    assert [name for name, _, _ in h.errors] == list("abc")


def test_an_empty_append_is_nothing() -> None:
    h = Harness()
    h.append("a", 0)
    assert h.effects() == []
    assert h.state() is AppendState.NO_LEDGER


def test_a_watermark_inside_a_batch_reports_its_part() -> None:
    h = opened()
    h.append("b", 4)
    h.core.on_confirmed(1, 3)
    h.effects()
    h.core.on_confirmed(1, 3)
    h.effects()
    assert h.reports == [("b", 1, 2, 2)]
    assert h.core.pending_entries == 2
    assert h.core.pending_bytes == 12  # a batch is given back whole
    h.core.on_confirmed(1, 5)
    h.effects()
    assert h.reports == [("b", 1, 2, 2), ("b", 1, 4, 2)]
    assert h.core.pending_bytes == 0


def test_next_ledger_is_made_ahead_and_used_after_the_last_confirmation() -> None:
    h = opened()
    h.append("b", 5)  # 7 of 8: nearly full
    assert h.effects() == [CreateLedger()]
    h.append("c", 3)  # one more fits
    assert h.state() is AppendState.SWITCHING
    h.core.on_ledger_ready(2, 10)
    h.append("d", 1)
    assert h.effects() == []
    assert h.written == [(1, 2, [b"b0", b"b1", b"b2", b"b3", b"b4"]), (1, 7, [b"c0"])]
    h.core.on_confirmed(1, 6)
    assert h.effects() == []
    h.core.on_confirmed(1, 7)
    assert h.effects() == [CloseLedger(1)]
    assert h.written[2:] == [(2, 0, [b"c1", b"c2"]), (2, 2, [b"d0"])]
    h.core.on_confirmed(2, 2)
    h.effects()
    assert h.reports == [("b", 1, 2, 5), ("c", 1, 7, 1), ("c", 2, 0, 2), ("d", 2, 2, 1)]


def test_full_by_bytes_goes_on_until_the_next_ledger_is_there() -> None:
    h = opened()
    h.append("b", 1, size=1000)
    assert h.effects() == [CreateLedger()]
    h.append("c", 1)
    assert h.effects() == []
    assert h.state() is AppendState.OPEN
    h.core.on_ledger_ready(2, 10)
    assert h.state() is AppendState.SWITCHING
    h.append("d", 1)
    h.core.on_confirmed(1, 3)
    assert h.effects() == [CloseLedger(1)]
    assert [x[:2] for x in h.written] == [(1, 2), (1, 3), (2, 0)]


def test_full_by_age() -> None:
    h = opened()
    h.now_ms = 1010
    h.append("b", 1)
    assert h.effects() == [CreateLedger()]
    h.core.on_ledger_ready(2, 1010)
    h.core.on_confirmed(1, 2)
    assert h.effects() == [CloseLedger(1)]
    assert h.core.current == 2
    assert h.state() is AppendState.OPEN


def test_a_young_ledger_is_not_rotated_for_its_size() -> None:
    h = Harness(RotationLimits(entries_max=4, bytes_max=1000, age_min_ms=100, age_max_ms=1000))
    h.append("a", 9)
    h.effects()
    h.core.on_ledger_ready(1, 10)
    h.core.on_confirmed(1, 8)
    assert h.effects() == []
    h.append("b", 2)
    assert h.state() is AppendState.OPEN
    h.now_ms = 110
    h.append("c", 3)
    assert h.effects() == [CreateLedger()]
    assert h.state() is AppendState.SWITCHING
    assert h.written[-1] == (1, 11, [b"c0"])


def test_idle_old_ledger_is_closed_without_a_successor() -> None:
    h = Harness()
    h.core.close_if_idle(10_000)
    h.open()
    h.core.close_if_idle(1009)
    h.append("b", 1)
    h.core.close_if_idle(1010)  # not idle
    assert h.effects() == []
    h.core.on_confirmed(1, 2)
    h.core.close_if_idle(1010)
    assert h.effects() == [CloseLedger(1)]
    assert h.state() is AppendState.NO_LEDGER
    h.append("c", 1)
    assert h.effects() == [CreateLedger()]


def test_failed_ledger_confirms_up_to_its_end_and_sends_only_the_rest_again() -> None:
    h = opened()
    h.append("b", 2)
    h.append("c", 2)
    h.core.on_confirmed(1, 2)
    h.core.on_ledger_failed(1)
    h.core.on_ledger_failed(1)
    assert h.effects() == [EndLedger(1)]
    h.append("d", 1)
    assert h.effects() == []
    h.core.on_ledger_ended(1, 4, 20)  # one more of b, one of c was durable
    assert h.effects() == [CreateLedger()]
    assert h.reports == [("b", 1, 2, 1), ("b", 1, 3, 1), ("c", 1, 4, 1)]
    assert h.core.pending_entries == 2
    assert h.core.pending_bytes == 6
    h.core.on_ledger_ready(2, 20)
    h.effects()
    assert h.written[2:] == [(2, 0, [b"c1"]), (2, 1, [b"d0"])]
    h.core.on_confirmed(1, 4)  # late news of the old ledger
    h.core.on_confirmed(2, 1)
    h.effects()
    assert h.reports[3:] == [("c", 2, 0, 1), ("d", 2, 1, 1)]
    assert h.core.pending_bytes == 0


def test_failed_ledger_with_the_next_one_ready() -> None:
    h = opened()
    h.append("b", 5)
    assert h.effects() == [CreateLedger()]
    h.core.on_ledger_failed(1)
    assert h.effects() == [EndLedger(1)]
    h.core.on_ledger_ready(2, 10)
    h.core.on_ledger_ended(9, 4, 10)  # of another ledger
    h.core.on_ledger_ended(1, 6, 10)
    assert h.effects() == []
    assert h.reports == [("b", 1, 2, 5)]
    assert h.core.current == 2


def test_an_end_below_acknowledged_entries_stops_everything() -> None:
    h = opened()
    h.append("b", 1)
    h.core.on_ledger_failed(1)
    h.core.on_ledger_ended(1, 0, 10)
    assert h.effects() == []
    assert h.state() is AppendState.STOPPED
    assert isinstance(h.core.refusal, ManagedLedgerFencedError)
    assert [x[:2] for x in h.errors] == [("b", 1)]


def test_end_that_cannot_be_found_fails_what_is_pending() -> None:
    h = opened()
    h.append("b", 3)
    h.core.on_confirmed(1, 2)
    h.core.on_ledger_failed(1)
    h.append("c", 1)
    h.core.on_end_failed(BOOM)
    assert h.effects() == [EndLedger(1)]
    assert h.errors == [("b", 2, BOOM), ("c", 1, BOOM)]
    assert h.state() is AppendState.UNDECIDED
    assert h.core.pending_bytes == h.core.pending_entries == 0
    h.core.rotate(10)
    h.core.on_end_failed(BOOM)
    assert h.effects() == []
    h.append("d", 1)
    assert h.effects() == [EndLedger(1)]
    h.core.on_ledger_ended(1, 4, 10)
    assert h.effects() == [CreateLedger()]
    h.core.on_ledger_ready(2, 10)
    h.core.on_confirmed(2, 0)
    h.effects()
    assert h.reports == [("b", 1, 2, 1), ("d", 2, 0, 1)]


def test_ledgers_that_take_nothing_fail_the_appends() -> None:
    h = Harness()
    h.append("a", 1)
    for ledger, pause_ms in zip(range(EMPTY_LEDGERS_MAX), (0, 0, 200), strict=True):
        assert h.effects() == [CreateLedger(pause_ms)]
        assert h.errors == []
        h.core.on_ledger_ready(ledger, 10)
        h.core.on_ledger_failed(ledger)
        assert h.effects() == [EndLedger(ledger)]
        h.core.on_ledger_ended(ledger, -1, 10)
    assert h.effects() == []
    assert isinstance(h.errors[0][2], AppendFailedError)
    h.append("b", 1)
    assert h.effects() == [CreateLedger(400)]
    h.core.on_ledger_ready(9, 10)
    h.core.on_confirmed(9, 0)
    h.core.on_ledger_failed(9)
    h.core.on_ledger_ended(9, 0, 10)
    assert h.core.empty_ledger_count == 0


@pytest.mark.parametrize("is_created", [False, True])
def test_pauses_while_no_bookie_answers(is_created: bool) -> None:
    """Clients that come back after 100 ms for an hour; then a ledger is made at once again."""
    h = Harness()
    attempts, ledger = 0, 0
    while h.now_ms < 3_600_000:
        h.append("a", 1)
        while effects := h.effects():
            for effect in effects:
                match effect:
                    case CreateLedger(after_ms):
                        attempts += 1
                        assert after_ms <= PAUSE_MS_MAX
                        h.now_ms += after_ms
                        if is_created:
                            ledger += 1
                            h.core.on_ledger_ready(ledger, h.now_ms)
                            h.core.on_ledger_failed(ledger)
                        else:
                            h.core.on_create_failed(BOOM, h.now_ms)
                    case EndLedger(failed):
                        h.core.on_ledger_ended(failed, -1, h.now_ms)
        h.now_ms += 100
    assert len(h.errors) > 300, "nobody waits for longer than a pause"
    assert attempts < 375
    h.append("a", 1)
    h.effects()
    h.core.on_ledger_ready(ledger + 1, h.now_ms)
    h.core.on_confirmed(ledger + 1, 0)
    h.core.on_ledger_failed(ledger + 1)
    h.core.on_ledger_ended(ledger + 1, 0, h.now_ms)
    h.append("b", 1)
    assert h.effects()[-1] == CreateLedger()


def test_creation_fails_with_appends_waiting() -> None:
    h = Harness()
    h.append("a", 2)
    h.effects()
    h.core.on_create_failed(BOOM, 10)
    assert h.effects() == []
    assert isinstance(h.errors[0][2], AppendFailedError)
    assert h.errors[0][2].__cause__ is BOOM
    assert h.state() is AppendState.NO_LEDGER
    h.append("b", 1)
    assert h.effects() == [CreateLedger()]


def test_creation_ahead_fails_and_is_tried_again_later() -> None:
    h = opened()
    h.append("b", 5)
    assert h.effects() == [CreateLedger()]
    h.core.on_create_failed(BOOM, 10)
    h.core.on_confirmed(1, 6)
    assert h.effects() == []
    assert h.state() is AppendState.OPEN
    h.append("c", 1)
    assert h.effects() == []
    assert h.state() is AppendState.SWITCHING
    h.core.on_confirmed(1, 7)
    assert h.effects() == [CloseLedger(1)]
    assert h.state() is AppendState.NO_LEDGER
    h.append("d", 1)
    assert h.effects() == [CreateLedger()]
    assert h.errors == []


def test_creation_ahead_is_left_alone_for_a_while() -> None:
    h = Harness(RotationLimits(entries_max=100, bytes_max=1000, age_min_ms=0, age_max_ms=10**6))
    h.open()
    h.append("b", 1, size=900)
    assert h.effects() == [CreateLedger()]
    h.core.on_create_failed(BOOM, 10)
    h.append("c", 1)
    assert h.effects() == []
    h.now_ms = 10 + CREATE_RETRY_MS
    h.append("d", 1)
    assert h.effects() == [CreateLedger()]


def test_creation_fails_while_switching_in_order() -> None:
    h = opened()
    h.append("b", 8)
    assert h.effects() == [CreateLedger()]
    h.core.on_create_failed(BOOM, 10)
    assert h.effects() == []
    assert h.errors == []  # six of b may still be confirmed, and that comes first
    h.core.on_confirmed(1, 7)
    assert h.effects() == [CloseLedger(1)]
    assert h.reports == [("b", 1, 2, 6)]
    assert [x[:2] for x in h.errors] == [("b", 2)]


def test_creation_fails_while_the_ledger_ends() -> None:
    h = opened()
    h.append("b", 5)
    h.effects()
    h.core.on_ledger_failed(1)
    h.core.on_create_failed(BOOM, 10)
    assert h.effects() == [EndLedger(1)]
    h.core.on_ledger_ended(1, 1, 10)
    assert h.effects() == [CreateLedger()]
    assert h.errors == []


def test_next_ledger_fails_before_it_is_used() -> None:
    h = opened()
    h.append("b", 5)
    h.effects()
    h.core.on_ledger_ready(2, 10)
    h.core.on_ledger_failed(2)
    h.core.on_ledger_failed(7)  # none of ours
    assert h.effects() == [CloseLedger(2)]
    h.append("c", 1)
    assert h.effects() == [CreateLedger()]


def test_rotate_on_demand() -> None:
    h = Harness()
    h.core.rotate(10)
    assert h.effects() == [CreateLedger()]
    h.core.on_ledger_ready(1, 10)
    h.core.rotate(10)  # empty: nothing to leave
    assert h.effects() == []
    h.append("a", 2)
    h.core.rotate(10)
    assert h.effects() == [CreateLedger()]
    h.core.on_create_failed(BOOM, 10)
    h.core.rotate(10)
    h.core.on_confirmed(1, 1)
    assert h.effects() == [CloseLedger(1)]
    assert h.state() is AppendState.NO_LEDGER
    h.core.rotate(10)
    assert h.effects() == [CreateLedger()]
    h.core.on_ledger_ready(2, 10)
    assert h.state() is AppendState.OPEN
    h.core.refuse(BOOM)
    h.append("x", 1)
    h.core.rotate(10)
    h.effects()
    assert h.errors == [("x", 1, BOOM)]


def test_full_ledger_without_more_to_come_waits_for_its_successor() -> None:
    h = opened()
    h.append("b", 6)
    assert h.effects() == [CreateLedger()]
    h.core.on_confirmed(1, 7)
    assert h.effects() == [CloseLedger(1)]
    assert h.state() is AppendState.CREATING
    h.core.on_ledger_ready(2, 10)
    assert h.effects() == []
    assert h.core.current == 2


def test_refused_while_pending_goes_on() -> None:
    h = opened()
    h.append("b", 1)
    h.core.refuse(BOOM)
    h.core.refuse(KeyError())
    h.append("c", 2)
    h.core.on_confirmed(1, 2)
    h.effects()
    assert h.reports == [("b", 1, 2, 1)]
    assert h.errors == [("c", 2, BOOM)]


def test_stop_fails_everything_and_ignores_all_news() -> None:
    h = opened()
    h.append("b", 3)
    h.append("c", 5)
    h.core.on_confirmed(1, 2)
    h.core.stop(BOOM)
    h.core.stop(KeyError())
    assert h.effects() == []  # the creation under way was never taken
    assert h.reports == [("b", 1, 2, 1)]
    assert h.errors == [("b", 2, BOOM), ("c", 3, BOOM), ("c", 2, BOOM)]
    h.core.on_confirmed(1, 9)
    h.core.on_ledger_ready(2, 10)
    h.core.on_ledger_failed(1)
    h.core.on_ledger_ended(1, 9, 10)
    h.core.on_create_failed(BOOM, 10)
    h.core.on_end_failed(BOOM)
    h.core.close_if_idle(10_000)
    assert h.effects() == []
    h.append("d", 1)
    h.effects()
    assert h.errors[-1] == ("d", 1, BOOM)
    assert h.core.pending_bytes == 0
