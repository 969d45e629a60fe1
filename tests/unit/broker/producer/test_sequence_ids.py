"""Which messages are duplicates: the rules one by one, and against a log that loses things."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.producer.sequence_ids import NEW, STORED, UNDECIDED, DuplicateRun, SequenceIds


def sift(ids: SequenceIds, *lowest: int, name: str = "p") -> list[tuple[int, int, int]]:
    runs = ids.sift(name, lowest, [0] * len(lowest))
    return [(verdict, start, end) for verdict, start, end in runs]


def test_ids_above_all_others_are_new() -> None:
    ids = SequenceIds()
    assert sift(ids, 0, 1, 5) == [(NEW, 0, 3)]
    assert sift(ids, 6) == [(NEW, 0, 1)]
    assert sift(ids, 0, name="q") == [(NEW, 0, 1)], "each name has its own"
    assert ids.last("p") == -1


def test_what_is_stored_is_told_from_what_is_on_its_way() -> None:
    ids = SequenceIds()
    sift(ids, 0, 1, 2, 3)
    ids.stored("p", 1)
    assert ids.last("p") == 1
    assert sift(ids, 0, 1, 2, 3, 4) == [(STORED, 0, 2), (UNDECIDED, 2, 4), (NEW, 4, 5)]


def test_a_batch_counts_up_to_its_last_message_and_is_checked_by_its_first() -> None:
    ids = SequenceIds()
    assert ids.sift("p", [0, 10], [9, 19]) == [DuplicateRun(NEW, 0, 2)]
    ids.stored("p", 9)
    assert ids.sift("p", [0, 9, 10, 15, 20], [9, 12, 19, 30, 29]) == [
        DuplicateRun(STORED, 0, 2),
        DuplicateRun(UNDECIDED, 2, 4),
        DuplicateRun(NEW, 4, 5),
    ]


def test_only_the_last_chunk_of_a_message_counts() -> None:
    ids = SequenceIds()
    assert ids.sift("p", [4, 4, 4], [0, 0, 0], {0, 1}) == [DuplicateRun(NEW, 0, 3)]
    assert ids.sift("p", [5, 5], [0, 0], {0, 1}) == [DuplicateRun(NEW, 0, 2)]
    assert ids.sift("p", [5, 5, 5], [0, 0, 0], {0, 1}) == [DuplicateRun(NEW, 0, 3)], (
        "it was never finished"
    )
    ids.stored("p", 5)
    assert ids.sift("p", [5, 5, 6], [0, 0, 0], {0, 2}) == [
        DuplicateRun(STORED, 0, 2),
        DuplicateRun(NEW, 2, 3),
    ]


def test_what_the_log_lost_may_come_again() -> None:
    ids = SequenceIds()
    sift(ids, 0, 1, 2)
    ids.stored("p", 0)
    ids.forget_given()
    assert sift(ids, 0, 1, 2) == [(STORED, 0, 1), (NEW, 1, 3)]


def test_who_stays_away_is_forgotten() -> None:
    ids = SequenceIds()
    for name in ("a", "b", "c"):
        ids.stored(name, 7)
    ids.note_users({"b"}, 1_000)
    ids.note_users({"c"}, 2_000)
    assert ids.evict(1_000) == 0
    assert ids.evict(1_001) == 1
    assert [ids.last(name) for name in "abc"] == [-1, 7, 7]
    ids.note_users({"b"}, 3_000)  # it came back; c left
    assert ids.evict(3_001) == 1
    assert [ids.last(name) for name in "abc"] == [-1, 7, -1]


@pytest.mark.parametrize(("most", "kept"), [(9, "abcd"), (3, "bcd"), (2, "cd"), (1, "c"), (0, "")])
def test_a_snapshot_keeps_the_names_in_use_and_those_used_last(most: int, kept: str) -> None:
    ids = SequenceIds()
    for name in "abcd":
        ids.stored(name, ord(name))
    ids.note_users("bcd", 1_000)
    ids.note_users("cd", 2_000)
    assert ids.snapshot(most) == {name: ord(name) for name in kept}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_message_is_in_the_log_once_and_in_order(data: st.DataObject) -> None:
    """A client that resends from its first unanswered message on; a log that answers in order.

    The invariants of de-duplication: no id is stored twice, ids are stored in order, and what is
    answered as stored is stored.
    """
    ids = SequenceIds()
    log: list[int] = []
    on_its_way: deque[int] = deque()
    unanswered: deque[int] = deque()  # at the client, sent or to be sent again
    next_id = 0
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(("send", "store", "reconnect", "lose")))
        if step == "send":
            fresh = range(next_id, next_id + data.draw(st.integers(1, 4)))
            next_id = fresh.stop
            unanswered.extend(fresh)
            runs = ids.sift("p", fresh, [0] * len(fresh))
            assert runs == [DuplicateRun(NEW, 0, len(fresh))]
            on_its_way.extend(fresh)
        elif step == "store" and on_its_way:
            count = data.draw(st.integers(1, len(on_its_way)))
            log.extend(on_its_way.popleft() for _ in range(count))
            ids.stored("p", log[-1])
        elif step == "lose":
            on_its_way.clear()  # the topic is fenced until nothing is on its way
            ids.forget_given()
        if step in ("reconnect", "lose") and unanswered:
            # Receipts may have been lost: it begins anywhere at or before the first lost entry.
            first = data.draw(st.integers(max(0, unanswered[0] - 3), unanswered[0]))
            again = range(first, next_id)
            for verdict, start, end in ids.sift("p", again, [0] * len(again)):
                if verdict == NEW:
                    on_its_way.extend(again[start:end])
                elif verdict == STORED:
                    assert set(again[start:end]) <= set(log)
        while unanswered and log and unanswered[0] <= log[-1]:
            unanswered.popleft()
    assert log == sorted(set(log))
    assert log == list(range(len(log))), "none was left out"
