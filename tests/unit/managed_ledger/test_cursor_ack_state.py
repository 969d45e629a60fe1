"""The ack state: each rule by example, then everything against sets of indexes."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyroaring import BitMap

from magnetar.managed_ledger.cursor.ack_state import (
    BATCH_WORDS_MAX,
    WIDE_BYTES_MAX,
    AckState,
    mask_to_words,
    run_end,
    words_to_mask,
)
from magnetar.managed_ledger.cursor.cursor_format import (
    ImageReplay,
    decode_record,
    encode_increment,
    encode_snapshot,
)
from magnetar.managed_ledger.cursor.cursor_image import ENTRY_END, CursorImage
from magnetar.managed_ledger.errors import InvalidPositionError
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from tests.unit.managed_ledger.cursor_doubles import Positions


def state_of(log: Positions, mark_delete: Position = (1, -1)) -> AckState:
    return AckState(log, mark_delete)


def test_words_and_masks() -> None:
    assert words_to_mask([]) == 0
    assert words_to_mask([-1]) == 2**64 - 1
    assert words_to_mask([1, -(2**63)]) == 1 | 1 << 127
    assert mask_to_words(1 | 1 << 127) == [1, -(2**63)]
    assert mask_to_words(0) == []
    assert mask_to_words(1 << 64) == [0, 1]
    assert words_to_mask([0] * BATCH_WORDS_MAX) == 0
    with pytest.raises(InvalidPositionError):
        words_to_mask([0] * (BATCH_WORDS_MAX + 1))


@given(st.lists(st.integers(-(2**63), 2**64 - 1), max_size=20))
def test_masks_are_the_words_one_after_the_other(words: list[int]) -> None:
    mask = sum((word & 2**64 - 1) << 64 * at for at, word in enumerate(words))
    assert words_to_mask(words) == mask
    assert words_to_mask(mask_to_words(mask)) == mask


def test_large_sets_take_bounded_memory() -> None:
    """Nothing holds an ack set against its batch: 4 KB of an ACK were 35 KB, kept."""
    state = state_of(Positions({1: 1_000, 2: 1_000}))
    longest = [1] * BATCH_WORDS_MAX
    for entry in range(WIDE_BYTES_MAX // (8 * BATCH_WORDS_MAX)):
        assert state.ack_batch((1, entry), longest)
    for _ in range(100):
        with pytest.raises(InvalidPositionError, match="acknowledged in part"):
            state.ack_batch((1, 999), longest)
    assert state.ack_batch((1, 999), [1])  # those of ordinary batches go on
    assert state.ack_batch((1, 0), [1])  # and what is known gets smaller
    state.ack([(1, entry) for entry in range(200)])
    for entry in range(100):  # of what left, an eighth may be refused before it is noticed
        with contextlib.suppress(InvalidPositionError):
            state.ack_batch((2, entry), longest)
    assert state.batch_messages_left((2, 99)) == BATCH_WORDS_MAX
    assert state.batch_messages_left((2, 500)) == 0


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 200, 100_000, 1 << 20])
@pytest.mark.parametrize("start", [0, 1, 65_500, ENTRY_END - (1 << 21)])
def test_run_end(start: int, length: int) -> None:
    entries = BitMap(range(start, start + length)) | BitMap([start + length + 1])
    assert run_end(entries, start) == start + length


def test_run_end_at_the_last_id() -> None:
    assert run_end(BitMap(range(ENTRY_END - 100, ENTRY_END)), ENTRY_END - 100) == ENTRY_END


def test_in_order_moves_mark_delete_without_a_bitmap() -> None:
    state = state_of(Positions({1: 100}))
    assert state.ack([(1, entry) for entry in range(50)])
    assert (state.mark_delete, state.acked_above, state.backlog) == ((1, 49), 0, 50)


@given(st.sets(st.integers(1, 300)), st.sets(st.integers(0, 20)), st.integers(0, 400))
def test_ranges_are_the_runs_of_what_is_acknowledged(
    first: set[int], second: set[int], ranges_max: int
) -> None:
    state = state_of(Positions({1: 400, 5: 30}))  # (1, 0) stays: mark-delete doesn't move
    state.ack([(1, x) for x in first] + [(5, x) for x in second])
    expected = []
    for ledger_id, entries in ((1, first), (5, second)):
        starts = sorted(x for x in entries if x - 1 not in entries)
        ends = sorted(x for x in entries if x + 1 not in entries)
        expected += [
            ((ledger_id, start - 1), (ledger_id, end))
            for start, end in zip(starts, ends, strict=True)
        ]
    assert state.ranges(1000) == expected
    assert state.ranges(ranges_max) == expected[:ranges_max]
    assert state.range_count == len(expected)
    assert (state.bitmap_bytes > 0) == bool(expected)


def test_cumulative() -> None:
    log = Positions({1: 5, 2: 5, 6: 5})
    state = state_of(log)
    state.ack([(1, 3), (2, 1), (6, 0)])
    assert state.ack_cumulative((1, 2), {"a": 1})
    assert (state.mark_delete, state.properties) == ((1, 3), {"a": 1})
    assert not state.ack_cumulative((1, 2), {"a": 2})
    assert state.properties == {"a": 1}
    assert state.ack_cumulative((1, 3), {"a": 3})  # the same position again, other properties
    assert not state.ack_cumulative((1, 3), {"a": 3})
    assert state.ack_cumulative((2, 2))
    assert (state.mark_delete, state.properties, state.acked_above) == ((2, 2), {"a": 3}, 1)
    assert state.ack_cumulative((4, 0))  # no such ledger: everything before it
    assert state.mark_delete == (6, 0)  # which was acknowledged already
    for beyond in ((6, 5), (7, 0), LATEST):
        with pytest.raises(InvalidPositionError):
            state.ack_cumulative(beyond)


def test_acked_in() -> None:
    state = state_of(Positions({1: 10, 2: 10, 3: 10}), (2, 3))
    state.ack([(2, 6), (2, 8)])
    assert state.acked_in(1, 2, 2) == [2, 3]
    assert state.acked_in(1, 2, 0) is None
    assert state.acked_in(2, 2, 6) == [2, 3, 6]
    assert state.acked_in(2, 4, 2) is None
    assert state.acked_in(2, 4, 100) == [6, 8]
    assert state.acked_in(2, ENTRY_END + 5, 10) is None
    assert state.acked_in(3, 0, 10) is None


def test_is_acked_bounds() -> None:
    state = state_of(Positions({1: 10}))
    state.ack([(1, 3)])
    assert [state.is_acked((1, n)) for n in (-1, 2, 3, ENTRY_END + 3)] == [True, False, True, False]
    assert state.is_acked((0, 99))
    assert not state.is_acked((2, -5))


def test_advance_to_only_moves_forward() -> None:
    state = state_of(Positions({1: 10, 2: 10}))
    state.ack([(2, 0)])
    assert state.advance_to((1, 9))
    assert state.mark_delete == (2, 0)
    assert not state.advance_to((1, 5))


def test_first_unacked_after_the_log_lost_a_ledger() -> None:
    log = Positions({1: 10, 2: 10, 3: 10})
    state = state_of(log, (1, 9))
    state.ack([(3, 0), (3, 1)])
    del log.ledgers[2]
    assert state.first_unacked() == (3, 2)
    assert state.mark_delete == (3, 1)


def test_entries_beyond_the_bitmap_range() -> None:
    """Such a ledger isn't written by us; nothing breaks, and mark-delete still covers it."""
    state = state_of(Positions({1: ENTRY_END + 100}), (1, ENTRY_END - 3))
    assert state.ack([(1, ENTRY_END - 1)])
    assert not state.ack([(1, ENTRY_END + 5)])
    assert state.ack_cumulative((1, ENTRY_END + 7))
    assert (state.acked_above, state.backlog) == (0, 92)
    assert state.ack([(1, ENTRY_END + 8), (1, ENTRY_END + 9)])  # in order needs no bitmap
    assert not state.ack([(1, 7), (1, ENTRY_END + 50)])
    again = recovered(Positions({1: ENTRY_END + 100}), state.image())
    assert again.mark_delete == (1, ENTRY_END + 9)


def test_increments_hold_what_changed() -> None:
    state = state_of(Positions({1: 100, 2: 100}))
    changed = [state.is_changed]
    state.ack([(1, 5), (2, 7)])
    state.ack([(1, 8)])
    state.ack_batch((1, 30), [0b11])
    state.ack_batch((1, 31), [0b11])
    state.ack([(1, 31)])
    changed.append(state.is_changed)
    increment = state.take_increment()
    changed.append(state.is_changed)
    assert changed == [False, True, False]
    assert increment.mark_delete == (1, -1)
    assert increment.acked == {1: BitMap([5, 8, 31]), 2: BitMap([7])}
    assert increment.batch_sets == {1: {30: 0b11}}
    assert increment.properties is None
    state.ack_batch((2, 50), [0b1])
    state.ack_cumulative((1, 40), {"p": 1})
    state.ack([(2, 50)])
    increment = state.take_increment()
    assert increment.mark_delete == (1, 40)
    assert increment.acked == {2: BitMap([50])}
    assert increment.batch_sets == {}
    assert increment.properties == {"p": 1}
    state.ack([(1, 41)])
    assert state.take_increment() == CursorImage((1, 41), {}, {}, None)


def test_reset_images() -> None:
    log = Positions({2: 5, 4: 5})
    state = state_of(log, (4, 1))
    assert state.image_for_reset(EARLIEST).mark_delete == (2, -1)
    assert state.image_for_reset((4, 0)).mark_delete == (2, 4)
    assert state.image_for_reset((3, 3)).mark_delete == (2, 4)
    assert state.image_for_reset((4, 5)).mark_delete == (4, 4)
    assert state.image_for_reset(LATEST).mark_delete == (4, 4)
    assert state.image_for_reset((2, 3), [0b10]).batch_sets == {2: {3: 0b10}}
    assert state.image_for_reset((9, 3), [0b10]).batch_sets == {}


def recovered(log: Positions, image: CursorImage) -> AckState:
    """As an owner that opens the log does it."""
    state = AckState(log, image.mark_delete)
    for _ in state.adopt_slices(image):
        pass
    return state


def test_an_image_beyond_the_end_is_cut() -> None:
    image = CursorImage(
        (1, 50),
        {0: BitMap([3]), 1: BitMap([51]), 2: BitMap([0, 9]), 7: BitMap([1])},
        {1: {51: 1, 3: 1}, 2: {1: 1, 8: 1}},
        {"a": 1},
    )
    state = recovered(Positions({1: 10, 2: 5}), image)
    # (1, 50) is past the end that ledger 1 has now, so (2, 0) follows it
    assert (state.mark_delete, state.first_unacked()) == ((2, 0), (2, 1))
    assert state.batch_ack_set((2, 1)) == [1]
    assert (state.batch_set_count, state.generation) == (1, 0)
    state = recovered(Positions({1: 10}), CursorImage((3, 3)))
    assert state.mark_delete == (1, 9)


def test_a_large_image_is_taken_in_slices() -> None:
    """And only what the log has, above mark-delete, and isn't acknowledged as a whole."""
    log = Positions({1: 10} | dict.fromkeys(range(2, 2500), 150_000))
    entries = range(0, 200_000, 2)
    image = CursorImage(
        (2, 1000),
        {n: BitMap([7, 1004, 150_000]) for n in range(1, 3000)},
        {n: dict.fromkeys(entries, 5) for n in (1, 2, 3, 2999)},
        {},
    )
    state = AckState(log, image.mark_delete)
    slices = sum(1 for _ in state.adopt_slices(image))
    assert slices >= (len(image.acked) + len(image.batch_sets[2])) // 20_000
    assert state.mark_delete == (2, 1000)
    assert state.acked_above == 1 + 2 * 2497
    for position, is_acked, is_partial in (
        ((1, 8), True, False),
        ((2, 1000), True, False),
        ((2, 1002), False, True),
        ((2, 1004), True, False),
        ((2, 149_998), False, True),
        ((2, 150_000), False, False),
        ((3, 0), False, True),
        ((3, 1004), True, False),
        ((2999, 2), False, False),
    ):
        assert state.is_acked(position) == is_acked
        assert (state.batch_ack_set(position) == [5]) == is_partial
    left = {n: [x for x in entries if x < 150_000 and x != 1004] for n in (2, 3)}
    assert state.batch_set_count == len([x for x in left[2] if x > 1000]) + len(left[3])
    assert not state.is_changed


# -- model ---------------------------------------------------------------------------------------

BATCH = 3
LEDGERS = st.lists(st.integers(0, 12), min_size=1, max_size=5)


class AckMachine(RuleBasedStateMachine):
    """`AckState` beside a set of (ledger, entry, batch index), through stored increments too."""

    @initialize(counts=LEDGERS, data=st.data())
    def start(self, counts: list[int], data: st.DataObject) -> None:
        self.log = Positions({2 * n + 1: count for n, count in enumerate(counts)})
        self.state = AckState(self.log, (1, -1))
        self.acked: set[tuple[int, int, int]] = set()
        self.replay = ImageReplay()
        self.snapshot()

    def indexes(self, position: Position) -> set[tuple[int, int, int]]:
        return {(*position, n) for n in range(BATCH)}

    def positions(self) -> st.SearchStrategy[Position]:
        near = st.tuples(st.integers(0, 10), st.integers(-1, 13))
        known = self.log.all_positions()
        return st.one_of(st.sampled_from(known), near) if known else near

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        positions = data.draw(st.lists(self.positions(), max_size=6))
        self.state.ack(positions)
        for position in positions:
            if self.log.is_valid(position):
                self.acked |= self.indexes(position)

    @rule(count=st.integers(1, 8))
    def ack_in_order(self, count: int) -> None:
        position = self.state.first_unacked()
        run = []
        for _ in range(count):
            run.append(position)
            position = self.log.next_position(position)
        self.state.ack(run)
        for position in run:
            if self.log.is_valid(position):
                self.acked |= self.indexes(position)

    @rule(data=st.data())
    def cumulative(self, data: st.DataObject) -> None:
        position = data.draw(self.positions())
        if position > self.log.last_confirmed:
            with pytest.raises(InvalidPositionError):
                self.state.ack_cumulative(position)
            return
        self.state.ack_cumulative(position)
        for known in self.log.all_positions():
            if known <= position:
                self.acked |= self.indexes(known)

    @rule(data=st.data(), mask=st.integers(0, 2**BATCH - 1), cumulative=st.booleans())
    def batch(self, data: st.DataObject, mask: int, cumulative: bool) -> None:
        position = data.draw(self.positions())
        if cumulative:
            if position > self.log.last_confirmed:
                with pytest.raises(InvalidPositionError):
                    self.state.ack_cumulative_batch(position, [mask])
                return
            self.state.ack_cumulative_batch(position, [mask])
            for known in self.log.all_positions():
                if known < position:
                    self.acked |= self.indexes(known)
        else:
            self.state.ack_batch(position, [mask])
        if self.log.is_valid(position):
            self.acked |= {(*position, n) for n in range(BATCH) if not mask >> n & 1}

    @rule(count=st.integers(1, 5), new_ledger=st.booleans())
    def append(self, count: int, new_ledger: bool) -> None:
        last = max(self.log.ledgers)
        if new_ledger:
            self.log.ledgers[last + 2] = count
        else:
            self.log.ledgers[last] += count

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        position = data.draw(self.positions())
        image = self.state.image_for_reset(position)
        for record in encode_snapshot(image, -1):
            self.replay.on_record(decode_record(record, "model"), "model")
        self.state.adopt(image)
        self.acked = set()
        for known in self.log.all_positions():
            if known < position:
                self.acked |= self.indexes(known)

    @rule()
    def store(self) -> None:
        for record in encode_increment(self.state.take_increment(), 0):
            self.replay.on_record(decode_record(record, "model"), "model")
        self.check_stored()

    @rule()
    def snapshot(self) -> None:
        self.state.mark_stored()
        for record in encode_snapshot(self.state.image(), -1):
            self.replay.on_record(decode_record(record, "model"), "model")
        self.check_stored()

    def check_stored(self) -> None:
        image = self.replay.image("model")
        again = recovered(
            self.log,
            CursorImage(
                image.mark_delete,
                {ledger: entries.copy() for ledger, entries in image.acked.items()},
                {ledger: dict(sets) for ledger, sets in image.batch_sets.items()},
                image.properties,
            ),
        )
        assert self.found(again) == self.acked

    def found(self, state: AckState) -> set[tuple[int, int, int]]:
        found: set[tuple[int, int, int]] = set()
        for position in self.log.all_positions():
            if state.is_acked(position):
                assert state.batch_ack_set(position) is None
                found |= self.indexes(position)
            elif (words := state.batch_ack_set(position)) is not None:
                [word] = words
                found |= {(*position, n) for n in range(BATCH) if not word >> n & 1}
        return found

    @invariant()
    def same_as_the_set(self) -> None:
        assert self.found(self.state) == self.acked
        known = self.log.all_positions()
        unacked = [p for p in known if not self.indexes(p) <= self.acked]
        assert self.state.backlog == len(unacked)
        sets = [p for p in known if self.state.batch_ack_set(p) is not None]
        assert self.state.batch_set_count == len(sets)
        end = self.log.next_position(self.log.last_confirmed)
        assert self.state.first_unacked() == (unacked[0] if unacked else end)
        for position in (EARLIEST, *known, end):
            left = next((p for p in unacked if p >= position), None)
            assert self.state.first_unacked_from(position) == left
        assert all(p > self.state.mark_delete for p in unacked)
        for ledger, count in self.log.ledgers.items():
            acked = [n for n in range(count) if (ledger, n) not in unacked]
            assert (self.state.acked_in(ledger, 0, count) or []) == acked


TestAckMachine = AckMachine.TestCase
TestAckMachine.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
