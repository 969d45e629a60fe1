"""Each request is answered once, with a code of its own entries, however replies come."""

import random
from collections import Counter

import pytest

from magnetar.bookkeeper.bookie_protocol.adds_in_flight import AddsInFlight
from magnetar.bookkeeper.bookie_protocol.frames_v2 import AddReplies
from magnetar.bookkeeper.errors import FrameError
from magnetar.bookkeeper.transport import AddRequest
from tests.simulation.simulator import seeds

EFENCED = 104


def request(ledger_id: int, ids: range | list[int]) -> AddRequest:
    return AddRequest(
        ledger_id, bytes(20), ids, [b""] * len(ids), [b""] * len(ids), 0, False, lambda _r, _c: None
    )


class Bookie:
    """What has arrived and has no reply; each entry is here at most once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.adds = rng, AddsInFlight()
        self.entries: dict[tuple[int, int], int] = {}
        self.waiting: list[AddRequest] = []
        self.expected: dict[int, int] = {}
        self.requests: list[AddRequest] = []  # kept, as they are known by identity
        self.answered: Counter[int] = Counter()

    def send(self) -> None:
        rng = self.rng
        first, count = rng.randrange(30), rng.randrange(1, 6)
        ids: range | list[int] = range(first, first + count)
        if rng.random() < 0.4:
            ids = sorted(rng.sample(range(first, first + 3 * count), count))
        one = request(rng.randrange(3), ids)
        self.requests.append(one)
        self.expected[id(one)] = 0
        if self.adds.begin(one, 0):
            self.arrive(one)
        else:
            self.waiting.append(one)

    def arrive(self, one: AddRequest) -> None:
        for entry_id in one.entry_ids:
            assert (one.ledger_id, entry_id) not in self.entries
            self.entries[one.ledger_id, entry_id] = id(one)

    def answer(self) -> None:
        ledger_id, first = self.rng.choice(list(self.entries))
        end = first + 1
        while self.rng.random() < 0.7 and (ledger_id, end) in self.entries:
            end += 1
        code = EFENCED if self.rng.random() < 0.1 else 0
        for entry_id in range(first, end):
            owner = self.entries.pop((ledger_id, entry_id))
            self.expected[owner] = self.expected[owner] or code
        done, ready = self.adds.answered(AddReplies(ledger_id, first, end - first, code), 0)
        for one, told in done:
            self.answered[id(one)] += 1
            assert told == self.expected[id(one)]
        for one in ready:
            self.waiting.remove(one)
            self.arrive(one)


@pytest.mark.parametrize("seed", seeds(60))
def test_random_orders(seed: int) -> None:
    bookie = Bookie(random.Random(seed))
    for _ in range(200):
        if not bookie.entries or bookie.rng.random() < 0.4:
            bookie.send()
        else:
            bookie.answer()
        assert bookie.adds.entries == len(bookie.entries)
    while bookie.entries:
        bookie.answer()
    assert not bookie.waiting
    assert bookie.answered == Counter(bookie.expected.keys())
    assert not list(bookie.adds.take_all())


@pytest.mark.parametrize(
    "replies",
    [AddReplies(2, 0, 1, 0), AddReplies(1, 3, 1, 0), AddReplies(1, 0, 4, 0)],
    ids=["another ledger", "an entry behind", "one too many"],
)
def test_replies_to_what_was_not_asked(replies: AddReplies) -> None:
    adds = AddsInFlight()
    adds.begin(request(1, range(3)), 0)
    with pytest.raises(FrameError, match="aren't under way"):
        adds.answered(replies, 0)


def test_all_that_is_left_comes_back_once() -> None:
    adds = AddsInFlight()
    first, second, third = request(1, range(3)), request(1, range(2, 5)), request(2, range(1))
    assert [adds.begin(each, 0) for each in (first, second, third)] == [True, False, True]
    assert list(adds.take_all()) == [first, second, third]
    assert adds.entries == 0
    assert adds.begin(second, 0)


def test_the_oldest_counts_whatever_is_answered_behind_it() -> None:
    adds = AddsInFlight()
    assert adds.waits_s(5) == 0
    for ledger_id, now_s in ((1, 10), (2, 12)):
        adds.begin(request(ledger_id, range(1)), now_s)
    adds.begin(request(1, range(1, 2)), 13)
    assert adds.waits_s(20) == 10
    adds.answered(AddReplies(1, 1, 1, 0), 20)  # out of turn
    assert adds.waits_s(20) == 10
    adds.answered(AddReplies(1, 0, 1, 0), 20)
    assert adds.waits_s(20) == 8
