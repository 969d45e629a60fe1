"""Judges what a topic stores: is it what its producers were promised?"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.broker.verify.history import (
    MessageName,
    Position,
    Rule,
    TopicHistory,
    Violation,
)


@dataclass(slots=True)
class NumbersVerdict:
    """``repeated``: how many of the numbers had come before, and may have."""

    repeated: int = 0
    violations: list[Violation] = field(default_factory=list)


def check_numbers(
    numbers: Sequence[int], acknowledged: Collection[int], window: int | None, producer: str = ""
) -> NumbersVerdict:
    """What somebody got of a producer's numbers 0, 1, 2, ...: all acknowledged ones, in order.

    Args:
        acknowledged: those whose receipts came.
        window: of the producer, for a reader of the log: only what was unacknowledged can be there
            twice; 0: nothing can. None: a consumer, who may also get again what it hadn't
            acknowledged.
    """
    verdict = NumbersVerdict()

    def say(rule: Rule, number: int, what: str) -> None:
        text = f"{producer} {number} {what}".lstrip()
        verdict.violations.append(Violation(rule, text, message=(producer, number)))

    seen: set[int] = set()
    ahead = 0
    for number in numbers:
        if number >= ahead:
            ahead = number + 1
        elif number not in seen:
            say(Rule.REORDERED, number, f"comes after {ahead - 1}")
        elif window is not None and number < ahead - window:
            say(Rule.DUPLICATED, number, f"is there again after {ahead - 1}")
        else:
            verdict.repeated += 1
        seen.add(number)
    for number in sorted(set(acknowledged) - seen):
        say(Rule.LOST, number, "is acknowledged and missing")
    return verdict


def check_stored(history: TopicHistory) -> NumbersVerdict:
    """Every acknowledged message is where its receipt said, in the order of sending; once, or as
    often as it may be.
    """
    found = NumbersVerdict()
    found.violations += _positions(history.stored)
    found.violations += _origins(history)
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, message in history.stored:
        if message is not None:
            numbers[message[0]].append(message[1])
    acknowledged: dict[str, set[int]] = defaultdict(set)
    for (producer, number), _ in history.receipts:
        acknowledged[producer].add(number)
    for producer in sorted({*numbers, *acknowledged}):
        verdict = check_numbers(numbers[producer], acknowledged[producer], history.window, producer)
        found.repeated += verdict.repeated
        found.violations += verdict.violations
    found.violations += _moved(history)
    for violation in found.violations:
        violation.topic = history.topic
    return found


def _positions(stored: Sequence[tuple[Position, MessageName | None]]) -> Iterator[Violation]:
    last: Position | None = None
    for position, message in stored:
        if last is not None and position <= last:
            text = f"a reader got position {position} after {last}"
            yield Violation(Rule.REORDERED, text, position, message)
        last = position


def _origins(history: TopicHistory) -> Iterator[Violation]:
    for position, message in history.stored:
        if message is None:
            yield Violation(Rule.DAMAGED, "what is stored here was never sent so", position)
        elif message not in history.sent:
            text = f"{message[0]} {message[1]} was never sent"
            yield Violation(Rule.INVENTED, text, position, message)


def _moved(history: TopicHistory) -> Iterator[Violation]:
    at: Mapping[Position, MessageName | None] = dict(history.stored)
    somewhere = set(at.values())
    for message, position in history.receipts:
        if position is not None and message in somewhere and at.get(position) != message:
            text = f"{message[0]} {message[1]} isn't at {position}, where its receipt says"
            yield Violation(Rule.MOVED, text, position, message)
