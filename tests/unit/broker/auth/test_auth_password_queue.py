"""Whose password is checked next, and who gets no place."""

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.auth.password_queue import PasswordQueue, QueuedCheck


def waiting(address: str, name: str = "joe", *, is_trusted: bool = False) -> QueuedCheck:
    return QueuedCheck(address, name, is_trusted)


def filled(queue: PasswordQueue[QueuedCheck], *many: tuple[str, str, int]) -> None:
    for address, name, count in many:
        for _ in range(count):
            assert queue.add(waiting(address, name)) is None


def turns(queue: PasswordQueue[QueuedCheck], count: int) -> list[str]:
    found = []
    for _ in range(count):
        each = queue.take()
        assert each is not None
        found.append(f"{each.address}/{each.name}")
    return found


def test_addresses_take_turns_and_in_each_the_names() -> None:
    queue: PasswordQueue[QueuedCheck] = PasswordQueue()
    filled(queue, ("a", "joe", 3), ("a", "eve", 2), ("b", "joe", 2))
    assert turns(queue, 7) == ["a/joe", "b/joe", "a/eve", "b/joe", "a/joe", "a/eve", "a/joe"]
    assert queue.take() is None
    assert len(queue) == 0


def test_one_address_gets_half_of_the_places_and_others_the_rest() -> None:
    queue: PasswordQueue[QueuedCheck] = PasswordQueue(8, 4)
    filled(queue, ("a", "joe", 4))
    late = waiting("a")
    assert not queue.has_room(late)
    assert queue.add(late) is late
    filled(queue, ("b", "joe", 4))
    assert len(queue) == 8


def test_a_newcomer_takes_the_last_place_of_who_has_most() -> None:
    queue: PasswordQueue[QueuedCheck] = PasswordQueue(8, 4)
    filled(queue, ("a", "joe", 4), ("b", "joe", 4))
    newcomer = waiting("c")
    assert queue.has_room(newcomer)
    lost = queue.add(newcomer)
    assert lost is not None
    assert lost.address == "a"
    assert turns(queue, 3) == ["a/joe", "b/joe", "c/joe"]


def test_guesses_for_one_name_leave_room_for_others_of_the_address() -> None:
    queue: PasswordQueue[QueuedCheck] = PasswordQueue(8, 4)
    filled(queue, ("a", "joe", 4))
    lost = queue.add(waiting("a", "eve"))
    assert lost is not None
    assert lost.name == "joe"
    assert turns(queue, 2) == ["a/joe", "a/eve"]


def test_who_is_trusted_waits_for_nobody_and_has_a_place_always() -> None:
    queue: PasswordQueue[QueuedCheck] = PasswordQueue(4, 2)
    filled(queue, ("a", "joe", 2), ("b", "joe", 2))
    first, second = (waiting("a", is_trusted=True) for _ in range(2))
    assert queue.has_room(first)
    assert queue.add(first) is queue.add(second) is None
    assert [queue.take(), queue.take()] == [first, second]
    assert len(queue) == 4


def test_what_could_not_be_done_is_the_next_one_again() -> None:
    queue: PasswordQueue[QueuedCheck] = PasswordQueue()
    filled(queue, ("a", "joe", 1), ("b", "joe", 1))
    each = queue.take()
    assert each is not None
    queue.put_back(each)
    assert queue.take() is each
    assert len(queue.clear()) == 1
    assert queue.take() is None


ADDRESSES = st.sampled_from(["", "a", "b", "c"])
NAMES = st.sampled_from(["joe", "eve", "ann"])


@given(st.lists(st.tuples(ADDRESSES, NAMES, st.booleans(), st.integers(0, 3)), max_size=80))
@settings(max_examples=300, deadline=None)
def test_everybody_is_let_in_pushed_out_or_served_once(
    steps: list[tuple[str, str, bool, int]],
) -> None:
    queue, inside = PasswordQueue[QueuedCheck](8, 4), set[int]()
    kept = []  # so that no id is used again
    for address, name, is_trusted, takes in steps:
        each = waiting(address, name, is_trusted=is_trusted)
        kept.append(each)
        room = queue.has_room(each)
        lost = queue.add(each)
        assert room == (lost is not each)
        if lost is not each:
            inside.add(id(each))
            if lost is not None:
                inside.remove(id(lost))
        for _ in range(takes):
            if (taken := queue.take()) is not None:
                inside.remove(id(taken))
        assert len(queue) == len(inside)
        plain = [w for w in kept if id(w) in inside and not w.is_trusted]
        assert len(plain) <= 8
        for place in "abc":
            assert sum(w.address == place for w in plain) <= 4
    assert {id(each) for each in queue.clear()} == inside
    assert not queue._counts  # addresses that have nothing here are forgotten
