"""The judge of histories: is what was stored and delivered what clients were promised?

Pure: tests bring what producers, consumers and a fresh reader saw. Every bound is exact, so that a
message that is missing, comes again, moves or is skipped is an error in each of these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Position: TypeAlias = tuple[int, int]
NOTHING: Position = (-1, -1)


@dataclass
class Session:
    """What one consumer of a durable subscription saw, and what it asked, over one connection.

    Attributes:
        seen: positions and their numbers, in order of arrival; each at most once.
        asked: the highest position it asked to acknowledge cumulatively.
        confirmed: the highest of these that was answered as durable.
    """

    seen: list[tuple[Position, int]] = field(default_factory=list)
    asked: Position = NOTHING
    confirmed: Position = NOTHING


def check_stored(
    history: Mapping[Position, int], receipts: Mapping[int, Position], sent: int | None = None
) -> None:
    """Every acknowledged message is where its receipt said, in the order of sending, once.

    Args:
        history: what a fresh reader got, in its order.
        receipts: number -> position.
        sent: numbers below it were sent; None: not known.
    """
    positions, numbers = list(history), list(history.values())
    assert positions == sorted(set(positions)), "positions go backwards"
    assert numbers == sorted(set(numbers)), "messages out of order or doubled"
    assert sent is None or not numbers or numbers[-1] < sent, f"{numbers[-1]} was never sent"
    missing = {n: at for n, at in receipts.items() if history.get(at) != n}
    assert missing == {}, f"{len(missing)} acknowledged messages are lost or moved: {missing}"


def check_sessions(history: Mapping[Position, int], sessions: Sequence[Session]) -> None:
    """Consumers of one subscription, one after the other, from the first message on.

    Each gets a part of the log without gaps. It begins behind what was confirmed to those before
    it, and not behind what anybody had asked to acknowledge: an acknowledgement whose answer is
    lost may have been stored or not, one that nobody sent may not.

    Args:
        history: everything that was stored, in order, at least as far as anybody saw.
    """
    log = list(history)
    place = {position: nth for nth, position in enumerate(log)}
    place[NOTHING] = -1
    confirmed = asked = -1
    for number, session in enumerate(sessions, 1):
        what = f"session {number} of {len(sessions)}"
        for position, content in session.seen:
            assert position in place, f"{what}: {position} was never stored"
            assert history[position] == content, f"{what}: other content at {position}"
        places = [place[position] for position, _ in session.seen]
        if places:
            first = places[0]
            assert first > confirmed, f"{what}: {log[first]} was confirmed up to {log[confirmed]}"
            skipped = log[asked + 1 : first]
            assert not skipped, f"{what}: {skipped} skipped, which nobody acknowledged"
            wanted = list(range(first, first + len(places)))
            assert places == wanted, f"{what}: {_first_difference(log, places, wanted)}"
        # Of the tests themselves: who asks for what it hasn't got makes the bounds meaningless.
        assert place[session.confirmed] <= place[session.asked] <= max(places, default=-1)
        asked = max(asked, place[session.asked])
        confirmed = max(confirmed, place[session.confirmed])


def _first_difference(log: list[Position], places: list[int], wanted: list[int]) -> str:
    nth = next(
        n for n, (found, want) in enumerate(zip(places, wanted, strict=True)) if found != want
    )
    return f"{log[places[nth]]} comes after {log[places[nth - 1]]}"


def check_numbers(numbers: Sequence[int], acknowledged: int, window: int | None) -> int:
    """What somebody got of a producer's numbers 0, 1, 2, ...: all acknowledged ones, in order.

    Args:
        window: of the producer, for a reader of the log: only what was unacknowledged can be there
            twice; 0: nothing can. None: a consumer, who may also get again what it hadn't
            acknowledged.
    Returns:
        How many were repetitions: at least once may repeat, never skip.
    """
    ahead = 0
    for number in numbers:
        assert number <= ahead, f"{number} comes before {ahead}"
        assert window is None or number > ahead - 1 - window, f"{number} again after {ahead - 1}"
        ahead = max(ahead, number + 1)
    assert ahead >= acknowledged, f"the end is missing: {ahead} of {acknowledged}"
    return len(numbers) - ahead
