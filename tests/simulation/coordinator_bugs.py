"""Planted bugs of transactions' coordinators: ``test_transaction_coordinator.py`` notices them."""

from collections.abc import Iterable
from typing import Any, Final

from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.coordinator import Answer, Coordinator, Trim
from magnetar.broker.transaction.coordinator_records import encode_group, entry_records
from tests.simulation import test_transaction_coordinator
from tests.simulation.plant import Bugs, Plant

BUGS: Final = Bugs(lambda world, seed: test_transaction_coordinator.run_world(seed))
bug: Final = BUGS.of
_WORLD: Final = "coordinator"


@bug(_WORLD)
def answers_do_not_wait_for_the_log(plant: Plant) -> None:
    def append(self: Any, transaction: Any, record: Any, *answers: Answer, **more: bool) -> None:
        self._effects += answers
        old(self, transaction, record, **more)

    old = plant.set(Coordinator, "_append", append)


@bug(_WORLD)
def refusals_do_not_wait_for_their_reason(plant: Plant) -> None:
    plant.set(Coordinator, "_answer", lambda self, answer: self._effects.append(answer))


@bug(_WORLD)
def refusals_wait_for_whatever_is_appended(plant: Plant) -> None:
    """Also for what may wait."""

    def answer(self: Any, answer: Answer) -> None:
        (self._in_flight[-1].answers if self._in_flight else self._effects).append(answer)

    plant.set(Coordinator, "_answer", answer)


@bug(_WORLD)
def additions_may_wait(plant: Plant) -> None:
    def append(self: Any, transaction: Any, entry: bytes, *arguments: Any, **more: bool) -> None:
        old(self, transaction, entry, *arguments, **more)
        if not more.get("begins_end"):
            self._effects[-1].may_wait = True

    old = plant.set(Coordinator, "_append_entry", append)


@bug(_WORLD)
def participants_are_ended_before_that_is_stored(plant: Plant) -> None:
    def begin_end(self: Any, transaction: Any, *, commits: bool) -> None:
        old(self, transaction, commits=commits)
        for append in self._in_flight:
            append.begins_end = False
        self._end_participants(transaction)

    old = plant.set(Coordinator, "_begin_end", begin_end)


@bug(_WORLD)
def an_end_may_be_changed(plant: Plant) -> None:
    def end(
        self: Any, request: object, sequence: int, *, commits: bool, caller: str | None = None
    ) -> None:
        found = self._live.get(sequence)
        if found is not None and found.status != pb.TransactionRecord.OPEN:
            self._begin_end(found, commits=commits)
        old(self, request, sequence, commits=commits, caller=caller)

    old = plant.set(Coordinator, "end", end)


@bug(_WORLD)
def the_same_end_again_is_answered_at_once(plant: Plant) -> None:
    def end(
        self: Any, request: object, sequence: int, *, commits: bool, caller: str | None = None
    ) -> None:
        found = self._live.get(sequence)
        wanted = pb.TransactionRecord.COMMITTING if commits else pb.TransactionRecord.ABORTING
        if found is not None and found.status == wanted:
            self._answer(Answer(request, self._id_of(found)))
        else:
            old(self, request, sequence, commits=commits, caller=caller)

    old = plant.set(Coordinator, "end", end)


@bug(_WORLD)
def participants_are_added_to_what_ends(plant: Plant) -> None:
    plant.set(Coordinator, "_open_one", Coordinator._find)


@bug(_WORLD)
def an_end_is_not_taken_up_after_a_replay(plant: Plant) -> None:
    def start(self: Any) -> None:
        old(self)
        self._resumed.clear()

    old = plant.set(Coordinator, "start", start)


@bug(_WORLD)
def participants_that_fail_are_not_asked_again(plant: Plant) -> None:
    plant.set(Coordinator, "on_participants_failed", lambda self, sequence, now_ms: 1)


@bug(_WORLD)
def sequences_go_on_from_those_that_have_not_ended(plant: Plant) -> None:
    def start(self: Any) -> None:
        self._next = max(self._live, default=-1) + 1
        old(self)

    old = plant.set(Coordinator, "start", start)


@bug(_WORLD)
def sequences_ahead_are_not_stored(plant: Plant) -> None:
    """A record says only which were given out, as long as each answer waited for one."""

    def append(self: Any, transaction: Any, entry: bytes, *arguments: Any, **more: bool) -> None:
        records = entry_records(entry)
        for record in records:
            record.maxLocalTxnId = self._next - 1
        changed = encode_group([record.SerializeToString() for record in records])
        old(self, transaction, changed, *arguments, **more)

    old = plant.set(Coordinator, "_append_entry", append)


@bug(_WORLD)
def sequences_ahead_count_before_they_are_stored(plant: Plant) -> None:
    def new(self: Any, *arguments: Any) -> None:
        self._stored_taken = self._taken
        old(self, *arguments)

    old = plant.set(Coordinator, "new", new)


@bug(_WORLD)
def additions_do_not_wait_for_the_log(plant: Plant) -> None:
    """As new transactions don't: but a message may follow, and its topic be forgotten."""

    def append(self: Any, transaction: Any, record: Any, *answers: Answer, **more: bool) -> None:
        if entry_records(record)[0].operation != pb.TransactionRecord.NEW:
            self._effects += answers
            answers = ()
        old(self, transaction, record, *answers, **more)

    old = plant.set(Coordinator, "_append", append)


@bug(_WORLD)
def an_end_is_answered_before_participants_have_it(plant: Plant) -> None:
    def end_participants(self: Any, transaction: Any) -> None:
        name = self._id_of(transaction)
        waiting = self._waiting.pop(transaction.sequence, ())
        self._effects += [Answer(request, name) for request in waiting]
        old(self, transaction)

    old = plant.set(Coordinator, "_end_participants", end_participants)


@bug(_WORLD)
def the_low_watermark_passes_open_ones(plant: Plant) -> None:
    plant.set(Coordinator, "low_watermark", lambda self: self._next - 1)


@bug(_WORLD)
def the_last_entry_is_not_kept(plant: Plant) -> None:
    def trim(self: Any) -> None:
        old(self)
        for effect in self._effects:
            if isinstance(effect, Trim):
                effect.before = (effect.before[0], effect.before[1] + 1)

    old = plant.set(Coordinator, "_trim", trim)


@bug(_WORLD)
def the_log_is_never_written_anew(plant: Plant) -> None:
    plant.set(Coordinator, "_copy", lambda self, transaction: None)


@bug(_WORLD)
def what_was_copied_goes_before_the_copy_is_stored(plant: Plant) -> None:
    def trim(self: Any) -> None:
        copies = list(self._copies)
        self._copies.clear()
        old(self)
        self._copies.extend(copies)

    old = plant.set(Coordinator, "_trim", trim)


@bug(_WORLD)
def a_copy_has_no_subscriptions(plant: Plant) -> None:
    def copy(self: Any, transaction: Any) -> None:
        kept, transaction.subscriptions = transaction.subscriptions, ()
        old(self, transaction)
        transaction.subscriptions = kept

    old = plant.set(Coordinator, "_copy", copy)


@bug(_WORLD)
def a_copy_is_open_again(plant: Plant) -> None:
    def copy(self: Any, transaction: Any) -> None:
        kept, transaction.status = transaction.status, pb.TransactionRecord.OPEN
        old(self, transaction)
        transaction.status = kept

    old = plant.set(Coordinator, "_copy", copy)


@bug(_WORLD)
def an_ended_one_is_copied(plant: Plant) -> None:
    """It is taken from the list only once its end is stored."""

    def done(self: Any, sequence: int) -> None:
        transaction = self._live[sequence]
        old(self, sequence)
        self._live[sequence] = transaction
        self._live.move_to_end(sequence, last=False)
        self._copy(transaction)
        del self._live[sequence]

    old = plant.set(Coordinator, "on_participants_done", done)


@bug(_WORLD)
def one_partition_is_kept_of_several(plant: Plant) -> None:
    def add(self: Any, request: object, sequence: int, names: Iterable[str], *more: Any) -> None:
        found = self._live.get(sequence)
        if found is not None and found.status == pb.TransactionRecord.OPEN:
            found.partitions = ()
        old(self, request, sequence, names, *more)

    old = plant.set(Coordinator, "add_partitions", add)
