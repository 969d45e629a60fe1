"""Planted bugs of transactions as a whole; the world is ``test_transfers.py``.

``rotation.py`` plants them.
"""

from typing import Any, Final

from magnetar.broker.errors import TransactionNotFoundError
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.coordinator import Coordinator, EndParticipants
from magnetar.broker.transaction.pending_acks import AcknowledgeCommitted, PendingAcks
from tests.simulation import test_transfers
from tests.simulation.plant import Bugs, Plant
from tests.simulation.transfer_world import SimulatedClient

BUGS: Final = Bugs(lambda _, seed: test_transfers.run_transfers(seed))
_bug: Final = BUGS.of("transfers")


@_bug
def open_transactions_are_read(plant: Plant) -> None:
    plant.set(TopicTransactionBuffer, "readable", property(lambda self: self.noted))


@_bug
def aborted_messages_are_read(plant: Plant) -> None:
    plant.set(TopicTransactionBuffer, "aborted_in", lambda self, batch: [])


@_bug
def a_snapshot_brings_no_open_ones(plant: Plant) -> None:
    def restore(self: Any, snapshot: Any) -> None:
        old(self, snapshot)
        self.open.clear()

    old = plant.set(TopicTransactionBuffer, "restore", restore)


@_bug
def sealed_markers_are_not_read_again(plant: Plant) -> None:
    plant.set(TopicTransactionBuffer, "restore_sealed", lambda self, position, marker: None)


@_bug
def a_commit_becomes_an_abort_after_a_replay(plant: Plant) -> None:
    def start(self: Any) -> None:
        for transaction in self._live.values():
            if transaction.status == pb.TransactionRecord.COMMITTING:
                transaction.status = pb.TransactionRecord.ABORTING
        old(self)

    old = plant.set(Coordinator, "start", start)


@_bug
def subscriptions_are_not_told_of_an_end(plant: Plant) -> None:
    def end(self: Any, transaction: Any) -> None:
        old(self, transaction)
        for effect in self._effects:
            if isinstance(effect, EndParticipants) and effect.partitions:
                effect.subscriptions = ()

    old = plant.set(Coordinator, "_end_participants", end)


@_bug
def an_abort_acknowledges(plant: Plant) -> None:
    def begin(self: Any, end: Any) -> None:
        end.commit = True
        old(self, end)

    old = plant.set(PendingAcks, "_begin_applying", begin)


@_bug
def a_replay_acknowledges_nothing(plant: Plant) -> None:
    def replay(self: Any, record: Any, position: Any) -> None:
        old(self, record, position)
        self._effects = [x for x in self._effects if not isinstance(x, AcknowledgeCommitted)]

    old = plant.set(PendingAcks, "replay", replay)


@_bug
def acknowledgements_are_not_held_back_after_a_replay(plant: Plant) -> None:
    def replayed(self: Any) -> None:
        old(self)
        self._pending.clear()
        self._open.clear()

    old = plant.set(PendingAcks, "on_replayed", replayed)


@_bug
def a_client_sends_again_what_is_not_answered(plant: Plant) -> None:
    """In the same transaction, and the broker isn't told that it may be the same message."""

    def send(self: Any, target: str, number: Any, transfer: Any) -> None:
        before = self.world.post
        calls = list[Any]()
        self.world.post = calls.append
        old(self, target, number, transfer)
        self.world.post = before
        [call] = calls
        topic = self.world.topics[target]

        def twice() -> None:
            call()
            if topic.appends and not self.world.is_calm and self.world.rng.random() < 0.1:
                topic.appends.append((*topic.appends[-1][:2], lambda: None))

        self.world.post(twice)

    old = plant.set(SimulatedClient, "_send", send)


@_bug
def a_client_believes_that_what_is_not_found_was_committed(plant: Plant) -> None:
    def ask(self: Any, call: Any, answered: Any) -> None:
        def as_answer(result: object) -> None:
            is_end = self._again is not None
            gone = isinstance(result, TransactionNotFoundError)
            answered(self._name if is_end and gone else result)

        old(self, call, as_answer)

    old = plant.set(SimulatedClient, "_ask", ask)
