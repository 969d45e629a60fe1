"""`PendingAcks` alone; what it does at a real subscription is in test_transactional_acks.py."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.errors import TransactionConflictError
from magnetar.broker.transaction import pending_acks
from magnetar.broker.transaction.pending_acks import (
    APPLIED_AT_ONCE,
    COPIED_AT_ONCE,
    AppendRecord,
    PendingAck,
    PendingAckEffect,
    PendingAcks,
    StoreCursor,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import EARLIEST, Position

_STALE_MAX: Final = pending_acks._STALE_MAX
_STEP: Final = st.tuples(st.sampled_from(("acknowledge", "end", "low")), st.integers(0, 1))


class _Cursor:
    """Nothing is acknowledged."""

    mark_delete = EARLIEST

    def is_acked(self, _: Position) -> bool:
        return False

    def batch_ack_set(self, _: Position) -> list[int] | None:
        return None


@given(st.lists(st.tuples(_STEP, st.integers(0, 40)), max_size=100))
def test_a_low_watermark_ends_what_is_open_up_to_it_and_nothing_else(
    steps: list[tuple[tuple[str, int], int]],
) -> None:
    """However they began, and whatever ended meanwhile; of two coordinators."""
    core, low = PendingAcks(_Cursor()), {0: -1, 1: -1}
    open_ones, ended = set[TransactionId](), set[TransactionId]()
    for number, ((kind, most), least) in enumerate(steps):
        one = TransactionId(most, least)
        if kind == "acknowledge" and least > low[most] and one not in ended:
            core.acknowledge(one, [PendingAck((1, number))])
            open_ones.add(one)
        elif kind == "end":
            core.end(one, commit=True)
            ended.add(one)
        elif kind == "low":
            other = TransactionId(most, 1000 + number)
            core.end(other, commit=True, low_watermark=least)
            low[most] = max(low[most], least)
        open_ones = {x for x in open_ones if x not in ended and x.least > low[x.most]}
        assert set(core._open) == open_ones


def test_ended_ones_behind_one_that_stays_open_are_forgotten() -> None:
    core = PendingAcks(_Cursor())
    core.acknowledge(TransactionId(0, 0), [PendingAck((1, 0))])
    for least in range(1, 1000):
        core.acknowledge(TransactionId(0, least), [PendingAck((1, least))])
        core.end(TransactionId(0, least), commit=True, low_watermark=-1)
    assert len(core._sequences[0]) <= _STALE_MAX + 2


def test_a_cut_waits_for_what_ends_before_all_of_it_is_copied() -> None:
    """Its acknowledgements go with the log, so all of the end has to be applied before."""
    core, count = PendingAcks(_Cursor()), 2 * COPIED_AT_ONCE + 1
    core.acknowledge(TransactionId(0, 1), [PendingAck((1, x)) for x in range(count)])
    recorded = 0

    def record() -> list[PendingAckEffect]:
        """All that is appended becomes durable; what else there is to do."""
        nonlocal recorded
        others = list[PendingAckEffect]()
        while effects := core.take_effects():
            for effect in effects:
                if isinstance(effect, AppendRecord):
                    recorded += 1
                    core.on_recorded((9, recorded))
                else:
                    others.append(effect)
        return others

    assert not record()
    core.cut()
    copied = [x for x in core.take_effects() if isinstance(x, AppendRecord)]
    assert sum(len(x.record.positions) for x in copied) == COPIED_AT_ONCE
    for _ in copied:
        recorded += 1
        core.on_recorded((9, recorded))
    core.end(TransactionId(0, 1), commit=True)
    assert not record()
    slices, is_stored = 0, False
    while core.has_more:
        assert not is_stored
        core.apply_more()
        slices += 1
        is_stored = any(isinstance(x, StoreCursor) for x in record())
    assert is_stored
    assert slices == -(-count // APPLIED_AT_ONCE)


def test_a_copy_has_what_was_acknowledged_when_the_cut_began() -> None:
    """What comes later of the same batch is in front of it, and a replay takes both."""
    core, one, batch = PendingAcks(_Cursor()), TransactionId(0, 1), (2, 0)
    core.acknowledge(one, [PendingAck((1, x)) for x in range(COPIED_AT_ONCE)])
    core.acknowledge(one, [PendingAck(batch, 0b1110, 4)])
    core.take_effects()
    core.cut()
    core.acknowledge(one, [PendingAck(batch, 0b1101, 4)])
    while core.has_more:
        core.apply_more()
    records = [x.record for x in core.take_effects() if isinstance(x, AppendRecord)]
    replayed = PendingAcks(_Cursor())
    for number, record in enumerate(records):
        replayed.replay(record, (9, number))
    assert sorted(replayed.positions) == sorted(core.positions)
    assert replayed.batch_ack_set(batch) == core.batch_ack_set(batch) == [0b1100]


def test_a_part_of_a_batch_without_its_size_leaves_the_rest() -> None:
    """Go's client names what it has acknowledged of a batch again with each further message."""
    one, other, batch = TransactionId(0, 1), TransactionId(0, 2), (2, 0)
    core, replayed = PendingAcks(_Cursor()), PendingAcks(_Cursor())
    for left, seen in ((0b11110, [0b11110]), (0b10110, [0b10110]), (0b00110, [0b00110])):
        core.acknowledge(one, [PendingAck(batch, left)])
        assert core.batch_ack_set(batch) == seen
        assert core.withheld_in(2, 0, 1) == []
    with pytest.raises(TransactionConflictError):
        core.acknowledge(other, [PendingAck(batch, 0b11101)])  # the size isn't known
    core.acknowledge(one, [PendingAck(batch)])
    assert core.withheld_in(2, 0, 1) == [0]
    with pytest.raises(TransactionConflictError):
        core.acknowledge(one, [PendingAck(batch)])
    for effect in core.take_effects():
        assert isinstance(effect, AppendRecord)
        replayed.replay(effect.record, (1, 0))
    assert replayed.withheld_in(2, 0, 1) == [0]
    core.end(one, commit=False)
    core.on_recorded((1, 0))
