"""Planted bugs of acknowledgements in transactions; the world is ``test_pending_acks.py``.

``rotation.py`` plants them.
"""

from collections.abc import Callable
from typing import Any, Final

from magnetar.broker.transaction.pending_acks import (
    AcknowledgeCommitted,
    EndApplied,
    PendingAcks,
)
from magnetar.managed_ledger.position import EARLIEST
from tests.simulation import test_pending_acks
from tests.simulation.plant import Bugs, Plant

BUGS: Final = Bugs(lambda _, seed: test_pending_acks.run(seed))
_bug: Final = BUGS.of("pending acks")


@_bug
def only_the_cumulative_one_is_committed(plant: Plant) -> None:
    """As Pulsar's brokers do while another transaction has acknowledged cumulatively."""

    def apply(self: Any, end: Any) -> None:
        others = self._cumulative not in (None, end.transaction)
        original(self, end)
        if end.commit and others:
            self._effects = [x for x in self._effects if not isinstance(x, AcknowledgeCommitted)]

    original: Callable[..., None] = plant.set(PendingAcks, "_apply", apply)


@_bug
def recorded_before_it_is_checked(plant: Plant) -> None:
    def acknowledge(self: Any, transaction: Any, acks: Any) -> int:
        self._hold(transaction, acks)
        number: int = original(self, transaction, acks)
        return number

    original: Callable[..., int] = plant.set(PendingAcks, "acknowledge", acknowledge)


@_bug
def only_ends_of_acknowledgements_are_remembered(plant: Plant) -> None:
    def end(self: Any, transaction: Any, **how: Any) -> int:
        known = transaction in self._open
        number: int = original(self, transaction, **how)
        if not known:
            self._told.pop(transaction, None)
        return number

    original: Callable[..., int] = plant.set(PendingAcks, "end", end)


@_bug
def the_cursor_moves_before_the_record(plant: Plant) -> None:
    def end(self: Any, transaction: Any, *, commit: bool) -> int:
        acks = self._open.get(transaction)
        number: int = original(self, transaction, commit=commit)
        if acks is not None and not commit:
            individual = list(acks.individual.values())
            self._effects.insert(0, AcknowledgeCommitted(individual, acks.cumulative))
        return number

    original: Callable[..., int] = plant.set(PendingAcks, "_end", end)


@_bug
def an_abort_sends_again_what_is_acknowledged(plant: Plant) -> None:
    def apply(self: Any, end: Any) -> None:
        cursor = self._cursor
        self._cursor = _NothingAcked()
        original(self, end)
        self._cursor = cursor

    original: Callable[..., None] = plant.set(PendingAcks, "_apply", apply)


class _NothingAcked:
    def is_acked(self, _position: Any) -> bool:
        return False


@_bug
def a_cut_does_not_wait_for_the_cursor(plant: Plant) -> None:
    def store(self: Any, cut: Any) -> None:
        if self._recorded >= cut.copied:
            self.on_cursor_stored(stored=True)

    plant.set(PendingAcks, "_store_if_copied", store)


@_bug
def a_cut_does_not_wait_for_the_last_slice(plant: Plant) -> None:
    def store(self: Any, cut: Any) -> None:
        applying, self._applying = self._applying, {}
        original(self, cut)
        self._applying = applying

    original: Callable[..., None] = plant.set(PendingAcks, "_store_if_copied", store)


@_bug
def the_first_slice_answers(plant: Plant) -> None:
    def apply(self: Any, end: Any) -> None:
        original(self, end)
        if end.left and end.number:
            self._effects.append(EndApplied(end.number))

    original: Callable[..., None] = plant.set(PendingAcks, "_apply", apply)


@_bug
def what_is_being_applied_is_not_known_any_more(plant: Plant) -> None:
    """Whoever asks for the end again is answered before it is done."""

    def end(self: Any, transaction: Any, *, commit: bool) -> int:
        number: int = original(self, transaction, commit=commit)
        return 0 if transaction in self._applying else number

    original: Callable[..., int] = plant.set(PendingAcks, "_end", end)


@_bug
def the_first_slice_releases_all(plant: Plant) -> None:
    def apply(self: Any, end: Any) -> None:
        original(self, end)
        self._release([x for x in end.acks.individual.values() if x.position in end.left])
        end.left.clear()
        self._applying.pop(end.transaction, None)

    original: Callable[..., None] = plant.set(PendingAcks, "_apply", apply)


@_bug
def the_next_record_is_replayed_before_the_last_slice(plant: Plant) -> None:
    def replay(self: Any, record: Any, position: Any) -> None:
        applying, self._applying = self._applying, {}
        original(self, record, position)
        self._applying = {**applying, **self._applying}

    original: Callable[..., None] = plant.set(PendingAcks, "replay", replay)


@_bug
def a_cut_does_not_wait_for_its_copies(plant: Plant) -> None:
    def store(self: Any, cut: Any) -> None:
        if cut.copies is None:
            cut.copied = cut.after
        original(self, cut)

    original: Callable[..., None] = plant.set(PendingAcks, "_store_if_copied", store)


@_bug
def a_cut_is_done_with_its_first_slice(plant: Plant) -> None:
    def begin(self: Any) -> None:
        original(self)
        if self._cut is not None and self._cut.copies is not None:
            self._cut.copies, self._cut.copied = None, self._appended
            self._store_if_copied(self._cut)

    original: Callable[..., None] = plant.set(PendingAcks, "_begin_cut", begin)


@_bug
def a_cut_goes_as_far_as_its_copies(plant: Plant) -> None:
    def go_on(self: Any) -> None:
        if self._cut is not None:
            self._cut.position = self._last
        original(self)

    original: Callable[..., None] = plant.set(PendingAcks, "_go_on_cutting", go_on)


@_bug
def what_is_ending_is_copied(plant: Plant) -> None:
    def begin(self: Any) -> None:
        known = self._open
        self._open = {**known, **{end.transaction: end.acks for end in self._ends.values()}}
        original(self)
        self._open = known

    original: Callable[..., None] = plant.set(PendingAcks, "_begin_cut", begin)


@_bug
def a_cut_forgets_the_cumulative_one(plant: Plant) -> None:
    def begin(self: Any) -> None:
        known = [(acks, acks.cumulative) for acks in self._open.values()]
        for acks, _ in known:
            acks.cumulative = None
        original(self)
        for acks, cumulative in known:
            acks.cumulative = cumulative

    original: Callable[..., None] = plant.set(PendingAcks, "_begin_cut", begin)


@_bug
def the_log_is_never_cut(plant: Plant) -> None:
    plant.set(PendingAcks, "_cut_if_long", lambda _self: None)


@_bug
def a_replay_does_not_acknowledge(plant: Plant) -> None:
    def replay(self: Any, record: Any, position: Any) -> None:
        original(self, record, position)
        self._effects = [x for x in self._effects if not isinstance(x, AcknowledgeCommitted)]

    original: Callable[..., None] = plant.set(PendingAcks, "replay", replay)


@_bug
def what_is_pending_is_delivered(plant: Plant) -> None:
    plant.set(PendingAcks, "withheld_in", lambda *_: [])


@_bug
def what_the_cursor_passed_holds_others_up(plant: Plant) -> None:
    def init(self: Any, cursor: Any, _passed: Any = EARLIEST) -> None:
        original(self, cursor, EARLIEST)

    original: Callable[..., None] = plant.set(PendingAcks, "__init__", init)


@_bug
def what_the_cursor_passed_is_forgotten_before_that_is_durable(plant: Plant) -> None:
    def init(self: Any, cursor: Any, _passed: Any = EARLIEST) -> None:
        original(self, cursor, cursor.mark_delete)

    original: Callable[..., None] = plant.set(PendingAcks, "__init__", init)
