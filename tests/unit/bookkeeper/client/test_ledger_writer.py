"""The writer core: effects compared as a whole, race rules of ensemble changes one by one."""

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_writer import (
    AddsConfirmed,
    ChangeEnsemble,
    LedgerWriter,
    WriterEffect,
    WriterFailed,
)
from magnetar.bookkeeper.client.pending_adds import SendAdds
from magnetar.bookkeeper.errors import (
    BadRequestError,
    LedgerClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
)
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata
from magnetar.bookkeeper.packet import decode_header
from magnetar.bookkeeper.transport import AddRequest


def never(request: AddRequest, code: int) -> None:
    raise AssertionError("the core only hands this on")


class Writer:
    """A core with its sends by bookie: (bookie, place of the append) -> request."""

    def __init__(self, e: int, qw: int, qa: int) -> None:
        bookies = tuple("ABCDEFG"[:e])
        self.core = LedgerWriter(
            LedgerMetadata(1, e, qw, qa, (EnsembleSegment(0, bookies),)), never
        )
        self.sent: list[SendAdds] = []

    def append(self, count: int = 1) -> int:
        first = self.core.append([b""] * count, [b"x" * 10] * count)
        self.sent += self.core.take_sends()
        return first

    def request(self, bookie: str, first: int, generation: int = 0) -> SendAdds:
        found = [
            send
            for send in self.sent
            if (send.bookie, send.batch.first, send.generation) == (bookie, first, generation)
        ]
        assert len(found) == 1, f"{len(found)} sends of {first} to {bookie}"
        return found[0]

    def answer(
        self, bookie: str, first: int, code: int = codes.OK, generation: int = 0
    ) -> list[WriterEffect]:
        self.core.on_add_done(self.request(bookie, first, generation), code)
        self.sent += self.core.take_sends()
        return self.core.take_effects()

    def changed(self, *bookies: str) -> list[WriterEffect]:
        self.core.on_ensemble_changed(bookies)
        self.sent += self.core.take_sends()
        return self.core.take_effects()

    def sent_to(self, bookie: str) -> list[int]:
        return [send.batch.first for send in self.sent if send.bookie == bookie]


def test_confirms_in_order_at_the_quorum() -> None:
    w = Writer(3, 3, 2)
    assert [w.append(2), w.append(1)] == [0, 2]
    assert w.answer("A", 2) == []
    assert w.answer("B", 2) == []  # entry 2 has its quorum, entry 0 has not
    assert w.answer("A", 0) == []
    assert w.answer("C", 0) == [AddsConfirmed(2)]
    assert w.answer("B", 0) == []
    assert (w.core.last_confirmed, w.core.confirmed_length, w.core.pending_bytes) == (2, 30, 0)


def test_a_repeated_ok_counts_once() -> None:
    w = Writer(3, 3, 2)
    w.append()
    assert w.answer("A", 0) + w.answer("A", 0) == []
    assert w.answer("B", 0) == [AddsConfirmed(0)]


def test_packets_carry_the_lac_of_their_sending() -> None:
    w = Writer(1, 1, 1)
    w.append(2)
    w.answer("A", 0)
    w.append(1)
    headers = [decode_header(head) for send in w.sent for head in send.heads]
    assert [(h.entry_id, h.lac, h.length) for h in headers] == [
        (0, -1, 10),
        (1, -1, 20),
        (2, 1, 30),
    ]


def test_striped_batch_goes_to_its_write_sets() -> None:
    w = Writer(3, 2, 2)
    w.append(4)
    assert {send.bookie: list(send.entry_ids) for send in w.sent} == {
        "A": [0, 2, 3],
        "B": [0, 1, 3],
        "C": [1, 2],
    }
    assert all(len(send.heads) == len(send.bodies) == len(send.entry_ids) for send in w.sent)
    assert all(send.body_bytes == 46 * len(send.entry_ids) for send in w.sent)
    assert w.answer("A", 0) + w.answer("B", 0) == []
    assert w.answer("C", 0) == [AddsConfirmed(3)]


def test_striped_single_entry_needs_only_its_write_set() -> None:
    w = Writer(3, 2, 2)
    w.append()
    assert [send.bookie for send in w.sent] == ["A", "B"]
    assert w.answer("A", 0) == []
    assert w.answer("B", 0) == [AddsConfirmed(0)]


def test_failure_before_the_quorum_changes_the_ensemble_at_once() -> None:
    w = Writer(3, 3, 2)
    w.append()
    w.append()
    assert w.answer("A", 0) == []
    assert w.answer("B", 0, codes.UNAVAILABLE) == [ChangeEnsemble(0, {1: "B"})]
    # Frozen: the key of the new segment must stay last confirmed + 1.
    assert w.answer("C", 0) == []
    assert w.core.last_confirmed == -1
    w.append()
    assert w.sent_to("B") == [0, 1]  # nothing more to a dead bookie
    assert w.changed("A", "D", "C") == [AddsConfirmed(0)]  # A and C hold it; D only gets it
    assert w.sent_to("D") == [0, 1, 2]


def test_a_replaced_bookies_acks_are_cleared_even_at_the_quorum() -> None:
    """Readers of the new segment look only at the new bookies (2.7)."""
    w = Writer(3, 3, 2)
    w.append()
    w.append()
    w.answer("B", 1)
    w.answer("C", 1)
    assert w.answer("B", 0, codes.UNAVAILABLE) == [ChangeEnsemble(0, {1: "B"})]
    w.answer("A", 0)
    w.answer("C", 0)
    assert w.changed("A", "D", "C") == [AddsConfirmed(0)]  # entry 1 has only C now
    assert w.answer("D", 1, generation=1) == [AddsConfirmed(1)]


def test_late_answers_of_a_removed_bookie_are_ignored() -> None:
    w = Writer(2, 2, 2)
    w.append()
    w.append()
    w.answer("A", 0)
    w.answer("A", 1)
    assert w.answer("B", 0, codes.UNAVAILABLE) == [ChangeEnsemble(0, {1: "B"})]
    assert w.changed("A", "C") == []
    assert w.answer("B", 1) == []  # a late success: C has nothing yet
    assert w.answer("B", 0, codes.UNAVAILABLE) == []  # a late failure isn't C's
    assert w.answer("C", 0, generation=1) == [AddsConfirmed(0)]
    assert w.answer("C", 1, generation=1) == [AddsConfirmed(1)]


def test_same_bookie_reported_twice_is_one_change() -> None:
    w = Writer(2, 2, 2)
    w.append()
    w.append()
    assert w.answer("B", 0, codes.UNAVAILABLE) == [ChangeEnsemble(0, {1: "B"})]
    assert w.answer("B", 1, codes.READ_ONLY) == []
    assert w.changed("A", "C") == []
    assert not w.core.frozen


def test_failures_during_a_change_make_a_second_change_with_the_same_key() -> None:
    w = Writer(3, 3, 3)
    w.append()
    assert w.answer("A", 0, codes.IO_ERROR) == [ChangeEnsemble(0, {0: "A"})]
    assert w.answer("B", 0, codes.IO_ERROR) == []
    assert w.changed("D", "B", "C") == [ChangeEnsemble(0, {1: "B"})]
    assert w.core.frozen
    assert w.answer("C", 0) + w.answer("D", 0, generation=1) == []
    assert w.changed("D", "E", "C") == []
    assert w.answer("E", 0, generation=1) == [AddsConfirmed(0)]


def test_failure_of_the_replacement() -> None:
    w = Writer(2, 2, 2)
    w.append()
    w.answer("A", 0)
    w.answer("B", 0, codes.IO_ERROR)
    assert w.changed("A", "C") == []
    assert w.answer("C", 0, codes.IO_ERROR, generation=1) == [ChangeEnsemble(0, {1: "C"})]
    assert w.changed("A", "D") == []
    assert w.answer("D", 0, generation=2) == [AddsConfirmed(0)]


def test_partial_replacement_tries_the_rest_again() -> None:
    """#4261: a batch that needs the bookie which stays must not wait for ever."""
    w = Writer(3, 3, 3)
    w.append()
    w.answer("C", 0)
    assert w.answer("A", 0, codes.IO_ERROR) == [ChangeEnsemble(0, {0: "A"})]
    w.answer("B", 0, codes.IO_ERROR)
    assert w.changed("D", "B", "C") == [ChangeEnsemble(0, {1: "B"})]
    assert w.changed("D", "B", "C") == []  # nobody to replace B with
    assert w.answer("D", 0, generation=1) == []
    assert w.answer("B", 0, generation=1) == [AddsConfirmed(0)]


def test_failure_after_the_quorum_waits_for_the_next_append() -> None:
    """#1390, #1395, #1591: a delayed failure is not lost, and acts before the next send."""
    w = Writer(3, 3, 2)
    w.append()
    w.answer("A", 0)
    assert w.answer("B", 0) == [AddsConfirmed(0)]
    assert w.answer("C", 0, codes.UNAVAILABLE) == []
    w.append()
    assert w.core.take_effects() == [ChangeEnsemble(1, {2: "C"})]
    assert w.sent_to("C") == [0]
    assert w.changed("A", "B", "D") == []
    assert w.sent_to("D") == [1]


def test_append_at_the_end_of_a_change_reaches_the_newcomer() -> None:
    """Fault 11: an append queued while the change runs is repaired when it ends."""
    w = Writer(2, 2, 2)
    w.append()
    w.answer("B", 0, codes.UNAVAILABLE)
    w.append()
    w.answer("A", 0)
    w.answer("A", 1)
    assert w.changed("A", "C") == []
    w.append()
    assert w.sent_to("C") == [0, 1, 2]
    for first, generation in [(0, 1), (1, 1)]:
        assert w.answer("C", first, generation=generation) == [AddsConfirmed(first)]


@pytest.mark.parametrize("removed", [False, True])
def test_fenced_fails_everything_pending(removed: bool) -> None:
    """BOOKKEEPER-795; a fenced answer is true whoever gives it, also during a change."""
    w = Writer(3, 3, 2)
    w.append()
    w.append()
    w.answer("A", 0, codes.UNAVAILABLE)
    if removed:
        w.changed("D", "B", "C")
        effects = w.answer("A", 1, codes.FENCED)
    else:
        effects = w.answer("B", 0, codes.FENCED)
    (effect,) = effects
    assert isinstance(effect, WriterFailed)
    assert isinstance(effect.error, LedgerFencedError)
    assert w.changed("E", "B", "C") == []
    assert w.answer("B", 1) + w.answer("C", 1) == []
    with pytest.raises(LedgerFencedError):
        w.append()
    with pytest.raises(LedgerFencedError):
        w.core.close()


def test_a_request_every_bookie_would_refuse_is_fatal() -> None:
    w = Writer(3, 3, 2)
    w.append()
    (effect,) = w.answer("A", 0, codes.BAD_REQUEST)
    assert isinstance(effect, WriterFailed)
    assert isinstance(effect.error, BadRequestError)


def test_close_ends_at_the_last_confirmed_entry() -> None:
    w = Writer(1, 1, 1)
    w.append(2)
    w.append(3)
    assert w.answer("A", 0) == [AddsConfirmed(1)]
    assert w.core.close() == (1, 20)
    (effect,) = w.core.take_effects()
    assert isinstance(effect, WriterFailed)
    assert isinstance(effect.error, LedgerClosedError)
    assert w.answer("A", 2) == []  # late: dead for ever
    assert w.core.close() == (1, 20)
    with pytest.raises(LedgerClosedError):
        w.append()


def test_no_replacement_is_fatal_once() -> None:
    w = Writer(1, 1, 1)
    w.append()
    w.answer("A", 0, codes.UNAVAILABLE)
    w.core.on_fatal(NotEnoughBookiesError("none"))
    w.core.on_fatal(NotEnoughBookiesError("again"))
    (effect,) = w.core.take_effects()
    assert isinstance(effect, WriterFailed)
    assert w.core.close() == (-1, 0)
