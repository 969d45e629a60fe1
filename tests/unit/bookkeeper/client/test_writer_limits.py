"""What ends a writer or makes it wait, by setting; deferred adds and force in the core."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import MARKS, AddDeadline
from magnetar.bookkeeper.client.config import WriteConfig
from magnetar.bookkeeper.client.force_rounds import ForceLedger
from magnetar.bookkeeper.client.ledger_writer import (
    AddsConfirmed,
    ChangeEnsemble,
    DeferredAddsWritten,
    LedgerWriter,
    WriterFailed,
)
from magnetar.bookkeeper.errors import LedgerFencedError, WriteFailedError
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata
from magnetar.bookkeeper.packet import decode_header
from tests.unit.bookkeeper.client.test_ledger_writer import Writer, never

DELAY = WriteConfig(delay_ensemble_change=True)


def make(e: int, qw: int, qa: int, config: WriteConfig, *, deferred: bool = False) -> Writer:
    writer = Writer(e, qw, qa)
    metadata = LedgerMetadata(1, e, qw, qa, (EnsembleSegment(0, tuple("ABCDEFG"[:e])),))
    writer.core = LedgerWriter(metadata, never, config=config, deferred_sync=deferred)
    return writer


# ---- delayed ensemble change (2.6)


def test_delay_goes_on_while_the_quorum_can_be_reached() -> None:
    w = make(3, 3, 2, DELAY)
    for first in range(3):
        w.append()
        assert w.answer("A", first, codes.UNAVAILABLE) == []
        w.answer("B", first)
        assert w.answer("C", first) == [AddsConfirmed(first)]
    assert w.sent_to("A") == [0, 1, 2]  # it is still asked


def test_delay_holds_for_failures_after_the_quorum_too() -> None:
    w = make(3, 3, 2, DELAY)
    w.append()
    w.answer("A", 0)
    assert w.answer("B", 0) == [AddsConfirmed(0)]
    assert w.answer("C", 0, codes.UNAVAILABLE) == []
    w.append()
    assert w.answer("A", 1) == []
    assert w.answer("B", 1) == [AddsConfirmed(1)]
    assert w.answer("C", 1, codes.READ_ONLY) == []
    assert w.sent_to("C") == [0, 1]
    w.append()
    assert w.core.take_effects() == [ChangeEnsemble(2, {2: "C"})]


def test_delay_replaces_all_that_failed_once_the_quorum_needs_it() -> None:
    w = make(3, 3, 2, DELAY)
    w.append()
    assert w.answer("A", 0, codes.UNAVAILABLE) == []
    assert w.answer("B", 0, codes.IO_ERROR) == [ChangeEnsemble(0, {0: "A", 1: "B"})]
    w.answer("C", 0)
    assert w.changed("D", "E", "C") == []
    assert w.answer("D", 0, generation=1) == [AddsConfirmed(0)]


def test_failures_of_different_entries_do_not_add_up() -> None:
    w = make(3, 3, 2, DELAY)
    w.append()
    w.append()
    assert w.answer("A", 0, codes.UNAVAILABLE) == []
    assert w.answer("B", 1, codes.UNAVAILABLE) == []
    w.answer("B", 0)
    assert w.answer("C", 0) == [AddsConfirmed(0)]
    w.answer("A", 1)
    assert w.answer("C", 1) == [AddsConfirmed(1)]


def test_delay_counts_per_write_set_when_striped() -> None:
    """Entry 0 is on A and B: with Qa = 2 it can't do without either."""
    w = make(3, 2, 2, DELAY)
    w.append()
    assert w.answer("A", 0, codes.UNAVAILABLE) == [ChangeEnsemble(0, {0: "A"})]


def test_a_read_only_bookie_is_replaced_at_once() -> None:
    w = make(3, 3, 2, DELAY)
    w.append()
    assert w.answer("A", 0, codes.READ_ONLY) == [ChangeEnsemble(0, {0: "A"})]


def test_fencing_is_not_delayed() -> None:
    w = make(3, 3, 2, DELAY)
    w.append()
    (effect,) = w.answer("A", 0, codes.FENCED)
    assert isinstance(effect, WriterFailed)


# ---- number of changes


def test_so_many_changes_and_no_more() -> None:
    w = make(1, 1, 1, WriteConfig(ensemble_changes_max=2))
    w.append()
    for generation, (old, new) in enumerate([("A", "B"), ("B", "C")]):
        assert w.answer(old, 0, codes.UNAVAILABLE, generation) == [ChangeEnsemble(0, {0: old})]
        w.changed(new)
    (effect,) = w.answer("C", 0, codes.UNAVAILABLE, 2)
    assert isinstance(effect, WriterFailed)
    assert isinstance(effect.error, WriteFailedError)


def test_a_change_that_an_append_would_need_fails_the_append() -> None:
    w = make(3, 3, 2, WriteConfig(ensemble_changes_max=0))
    w.append()
    w.answer("A", 0)
    assert w.answer("B", 0) == [AddsConfirmed(0)]
    assert w.answer("C", 0, codes.UNAVAILABLE) == []
    with pytest.raises(WriteFailedError, match="no more are allowed"):
        w.append()
    assert w.core.next_entry == 1
    assert w.core.close() == (0, 10)


# ---- quorum timeout


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_an_old_add_is_noticed_and_a_young_one_is_not(steps: list[tuple[int, int]]) -> None:
    """Against the exact age of each entry."""
    deadline = AddDeadline(8.0)
    appended: list[float] = []
    confirmed = -1
    for number, (adds, confirms) in enumerate(steps):
        now = number * deadline.interval_s
        appended += [now - 0.5] * adds
        confirmed = min(len(appended) - 1, confirmed + confirms)
        is_late = deadline.check(now, len(appended), confirmed)
        age = now - appended[confirmed + 1] if confirmed + 1 < len(appended) else 0.0
        if is_late:
            assert age > 8.0
        else:
            assert age < 8.0 * (1 + 1 / MARKS) + 0.5


def test_progress_alone_does_not_save_the_oldest() -> None:
    deadline = AddDeadline(4.0)
    assert [deadline.check(now, 10 + now, -1) for now in range(5)] == [False] * 4 + [True]


# ---- deferred adds


def forced(w: Writer) -> list[ForceLedger]:
    w.core.begin_force()
    return [effect for effect in w.core.take_effects() if isinstance(effect, ForceLedger)]


def test_only_force_confirms() -> None:
    w = make(3, 3, 2, WriteConfig(), deferred=True)
    w.append(2)
    assert all(send.deferred_sync for send in w.sent)
    w.answer("A", 0)
    assert w.answer("B", 0) == [DeferredAddsWritten(1)]
    assert (w.core.last_written, w.core.last_confirmed) == (1, -1)
    w.append()
    assert decode_header(w.request("A", 2).heads[0]).lac == -1  # nobody may read 0 and 1
    to_a, to_b = forced(w)
    assert [to_a, to_b] == [ForceLedger(0, "A", 0, 1), ForceLedger(1, "B", 0, 1)]
    w.core.on_forced(to_a, codes.OK)
    assert w.core.take_effects() == []
    w.core.on_forced(to_b, codes.OK)
    assert w.core.take_effects() == [AddsConfirmed(1)]
    w.append()
    assert decode_header(w.request("A", 3).heads[0]).lac == 1
    assert w.core.close() == (1, 20)  # 2 and 3 are dead


def test_a_force_counts_only_bookies_that_had_acknowledged_before_it() -> None:
    """A and B have the entry; C's answer says nothing about it, whatever C stored since."""
    w = make(3, 3, 2, WriteConfig(), deferred=True)
    w.append()
    w.answer("A", 0)
    w.answer("B", 0)
    to_a, to_b = forced(w)
    assert (to_a.bookie, to_b.bookie) == ("A", "B")
    w.answer("C", 0)  # too late for this force
    w.core.on_forced(to_a, codes.OK)
    w.core.on_forced(replace(to_a, slot=2, bookie="C"), codes.OK)  # an answer to nothing
    assert w.core.take_effects() == []
    w.core.on_forced(to_b, codes.UNAVAILABLE)
    (effect,) = w.core.take_effects()
    assert isinstance(effect, WriterFailed)
    assert w.core.last_confirmed == -1


def test_a_force_can_do_without_one_that_is_not_needed() -> None:
    w = make(3, 3, 2, WriteConfig(), deferred=True)
    w.append()
    for bookie in "ABC":
        w.answer(bookie, 0)
    to_a, to_b, to_c = forced(w)
    w.core.on_forced(to_a, codes.UNKNOWN_LEDGER_STATE)  # it was started again, and has lost it
    w.core.on_forced(to_b, codes.OK)
    w.core.on_forced(to_c, codes.OK)
    assert w.core.take_effects() == [AddsConfirmed(0)]


@pytest.mark.parametrize("late", [codes.OK, codes.UNKNOWN_LEDGER_STATE])
def test_a_late_answer_to_the_force_before_counts_for_nothing(late: int) -> None:
    """C knows nothing of the second force: with A it would confirm what only A has on disk."""
    w = make(3, 3, 2, WriteConfig(), deferred=True)
    w.append()
    for bookie in "ABC":
        w.answer(bookie, 0)
    to_a, to_b, to_c = forced(w)
    w.core.on_forced(to_a, codes.OK)
    w.core.on_forced(to_b, codes.OK)
    assert w.core.take_effects() == [AddsConfirmed(0)]
    w.append()
    for bookie in "ABC":
        w.answer(bookie, 1)
    again = forced(w)
    w.core.on_forced(again[0], codes.OK)
    w.core.on_forced(to_c, late)  # of the first one
    assert w.core.take_effects() == []
    w.core.on_forced(again[1], codes.UNAVAILABLE)
    assert w.core.take_effects() == []  # nor does it stand in C's way
    w.core.on_forced(again[2], codes.OK)
    assert w.core.take_effects() == [AddsConfirmed(1)]


def test_force_asks_each_bookie_from_its_first_unforced_entry_on() -> None:
    w = make(3, 2, 2, WriteConfig(), deferred=True)  # 0: AB, 1: BC, 2: CA, 3: AB
    w.append(4)
    for bookie in "ABC":
        w.answer(bookie, 0)
    sends = forced(w)
    assert [(s.bookie, s.first) for s in sends] == [("A", 0), ("B", 0), ("C", 1)]
    for send in sends:
        w.core.on_forced(send, codes.OK)
    w.append(1)  # 4: BC
    w.answer("B", 4)
    w.answer("C", 4)
    assert [(s.bookie, s.first) for s in forced(w)] == [("B", 4), ("C", 4)]
    assert w.core.is_forcing


def test_nothing_to_force() -> None:
    w = make(1, 1, 1, WriteConfig(), deferred=True)
    assert not w.core.begin_force()
    w.append()
    assert not w.core.begin_force()  # not written yet
    w.answer("A", 0)
    assert w.core.begin_force()


def test_a_failed_bookie_ends_a_deferred_writer() -> None:
    """What it had in memory can't be sent to another one: it isn't kept."""
    w = make(3, 3, 2, WriteConfig(), deferred=True)
    w.append()
    (effect,) = w.answer("A", 0, codes.UNAVAILABLE)
    assert isinstance(effect, WriterFailed)
    assert isinstance(effect.error, WriteFailedError)
    assert not w.core.begin_force()
    w.core.on_forced(ForceLedger(0, "A", 0, 1), codes.OK)
    assert w.core.take_effects() == []


def test_fencing_ends_a_deferred_writer_as_any_other() -> None:
    w = make(3, 3, 2, WriteConfig(), deferred=True)
    w.append()
    (effect,) = w.answer("A", 0, codes.FENCED)
    assert isinstance(effect, WriterFailed)
    assert isinstance(effect.error, LedgerFencedError)
    with pytest.raises(LedgerFencedError):
        w.core.close()


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="negative"):
        WriteConfig(add_quorum_timeout_ms=-1)
