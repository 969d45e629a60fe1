"""Histories that keep every promise pass, and of each fault in one the right anomaly is found."""

import copy
import random
from collections.abc import Callable, Iterator

import pytest

from magnetar.broker.verify.transfers import (
    Anomaly,
    Seen,
    Sending,
    Transfer,
    TransferHistory,
    TransferMessage,
    check_transfers,
)

TOPICS = ("a", "b", "c")
ALL = (*TOPICS, "all")
_PLAIN = 60
Fault = Callable[[TransferHistory, random.Random], None]


def honest(seed: int, count: int = 60) -> TransferHistory:
    """Transfers one after the other, or two at a time, in a log that shows what is committed.

    Of those that nobody was told of, some took place.
    """
    rng = random.Random(seed)
    history = TransferHistory(
        final={topic: [] for topic in ALL}, left={topic: set() for topic in TOPICS}
    )
    ticks = iter(range(10**9))
    for number in range(_PLAIN):
        message = TransferMessage("a", number)
        history.sendings[message] = Sending(next(ticks), next(ticks))
        _store(history, message)
    for number in range(count):
        some = [x for topic in TOPICS for x in sorted(history.left[topic])]
        taken = rng.sample(some, rng.randint(1, 2))
        _transfer(history, number, taken, ticks, rng)
    for topic in ALL:
        end = next(ticks)
        messages = history.final[topic]
        assert messages is not None
        history.readers[topic] = [Seen(message, end) for message in messages]
    return history


def _store(history: TransferHistory, message: TransferMessage) -> None:
    messages = history.final[message.topic]
    assert messages is not None
    messages.append(message)
    if message.topic in history.left:
        history.left[message.topic].add(message)


def _transfer(
    history: TransferHistory,
    number: int,
    taken: list[TransferMessage],
    ticks: Iterator[int],
    rng: random.Random,
) -> None:
    since = next(ticks)
    history.consumed += [Seen(message, next(ticks), since) for message in taken]
    sent = [TransferMessage(rng.choice(TOPICS), 100 + number), TransferMessage("all", number)]
    for message in sent:
        history.sendings[message] = Sending(next(ticks), next(ticks), number)
    transfer = history.transfers[number] = Transfer(taken, sent)
    fate = rng.choice(("committed", "committed", "committed", "aborted", "unknown"))
    takes_place = fate == "committed" or (fate == "unknown" and rng.random() < 0.5)
    if fate != "aborted":
        transfer.commit_asked = next(ticks)
    if takes_place:
        for message in taken:
            history.left[message.topic].discard(message)
        for message in sent:
            _store(history, message)
    if fate == "committed":
        transfer.committed = next(ticks)


@pytest.mark.parametrize("seed", range(50))
def test_an_honest_history_passes(seed: int) -> None:
    assert check_transfers(honest(seed)) == []


def test_one_transfer_may_take_a_message_twice() -> None:
    """As a consumer got it twice; the acknowledgements of one transaction count once."""
    history = honest(1)
    for each in history.transfers.values():
        each.taken = each.taken * 2
    assert check_transfers(history) == []


def _of_fate(history: TransferHistory, rng: random.Random, fate: str) -> Transfer:
    def matches(each: Transfer) -> bool:
        if fate == "unknown, took place":
            messages = history.final["all"]
            assert messages is not None
            told = each.commit_asked is not None and each.committed is None
            return told and each.sent[1] in messages
        if fate == "aborted":
            return each.commit_asked is None
        return each.committed is not None

    return rng.choice([each for each in history.transfers.values() if matches(each)])


def _take_away(history: TransferHistory, message: TransferMessage) -> None:
    messages = history.final[message.topic]
    assert messages is not None
    messages[:] = [x for x in messages if x != message]
    for seen in (history.readers[message.topic], history.consumed):
        seen[:] = [each for each in seen if each.message != message]
    if message.topic in history.left:
        history.left[message.topic].discard(message)
    for transfer in history.transfers.values():
        if message in transfer.taken:
            transfer.taken.remove(message)


def store_aborted(history: TransferHistory, rng: random.Random) -> None:
    _store(history, _of_fate(history, rng, "aborted").sent[1])


def show_aborted(history: TransferHistory, rng: random.Random) -> None:
    message = _of_fate(history, rng, "aborted").sent[0]
    history.consumed.append(Seen(message, 10**9))


def show_early(history: TransferHistory, rng: random.Random) -> None:
    transfer = _of_fate(history, rng, "committed")
    assert transfer.commit_asked is not None
    history.consumed.append(Seen(transfer.sent[0], transfer.commit_asked - 1))


def lose(history: TransferHistory, rng: random.Random) -> None:
    _take_away(history, rng.choice(_of_fate(history, rng, "committed").sent))


def lose_plain(history: TransferHistory, rng: random.Random) -> None:
    _take_away(history, TransferMessage("a", rng.randrange(_PLAIN)))


def store_twice(history: TransferHistory, rng: random.Random) -> None:
    message = _of_fate(history, rng, "committed").sent[1]
    messages = history.final["all"]
    assert messages is not None
    messages.append(message)


def split_sent(history: TransferHistory, rng: random.Random) -> None:
    _take_away(history, rng.choice(_of_fate(history, rng, "unknown, took place").sent))


def split_taken(history: TransferHistory, rng: random.Random) -> None:
    message = rng.choice(_of_fate(history, rng, "unknown, took place").taken)
    history.left[message.topic].add(message)


def reorder(history: TransferHistory, rng: random.Random) -> None:
    messages = history.final["all"]
    assert messages is not None
    place = rng.randrange(len(messages) - 1)
    messages[place], messages[place + 1] = messages[place + 1], messages[place]
    history.readers["all"] = []


def read_backwards(history: TransferHistory, rng: random.Random) -> None:
    seen = history.readers["all"]
    seen.append(rng.choice(seen))


def skip(history: TransferHistory, rng: random.Random) -> None:
    seen = history.readers["all"]
    del seen[rng.randrange(len(seen) - 1)]


def take_twice(history: TransferHistory, rng: random.Random) -> None:
    first, second = rng.sample([x for x in history.transfers.values() if x.committed], 2)
    first.taken.append(second.taken[0])


def come_again(history: TransferHistory, rng: random.Random) -> None:
    message = rng.choice(_of_fate(history, rng, "committed").taken)
    history.consumed.append(Seen(message, 10**9 + 1, since=10**9))


def be_left(history: TransferHistory, rng: random.Random) -> None:
    message = rng.choice(_of_fate(history, rng, "committed").taken)
    history.left[message.topic].add(message)


def never_come_again(history: TransferHistory, rng: random.Random) -> None:
    left = [x for some in history.left.values() for x in sorted(some)]
    takers = [x.taken for x in history.transfers.values() if x.commit_asked and not x.committed]
    message = rng.choice([x for x in left if not any(x in taken for taken in takers)])
    history.left[message.topic].discard(message)


def circle(history: TransferHistory, rng: random.Random) -> None:
    """The writer of what a transfer took has taken what that one sent."""
    for number, reader in rng.sample(sorted(history.transfers.items()), len(history.transfers)):
        for message in reader.taken:
            writer = history.sendings[message].transfer
            if reader.committed and writer is not None:
                history.transfers[writer].taken.append(reader.sent[1])
                assert history.sendings[reader.sent[1]].transfer == number
                return


def get_stuck(history: TransferHistory, rng: random.Random) -> None:
    history.final[rng.choice(ALL)] = None


@pytest.mark.parametrize(
    ("fault", "anomaly"),
    [
        (store_aborted, Anomaly.DIRTY),
        (show_aborted, Anomaly.DIRTY),
        (show_early, Anomaly.EARLY),
        (lose, Anomaly.LOST),
        (lose_plain, Anomaly.LOST),
        (store_twice, Anomaly.STORED_TWICE),
        (split_sent, Anomaly.SPLIT),
        (split_taken, Anomaly.SPLIT),
        (reorder, Anomaly.REORDERED),
        (read_backwards, Anomaly.REORDERED),
        (skip, Anomaly.SKIPPED),
        (take_twice, Anomaly.TAKEN_TWICE),
        (come_again, Anomaly.RETURNED),
        (be_left, Anomaly.RETURNED),
        (never_come_again, Anomaly.NOT_RETURNED),
        (circle, Anomaly.CYCLE),
        (get_stuck, Anomaly.STUCK),
    ],
)
def test_each_fault_is_found(fault: Fault, anomaly: Anomaly) -> None:
    for seed in range(20):
        history = copy.deepcopy(honest(seed))
        fault(history, random.Random(seed))
        found = check_transfers(history)
        assert anomaly in [each.anomaly for each in found], (seed, found)
