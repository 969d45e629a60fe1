"""Judges what a reader read: the log, from its start message id on."""

from collections.abc import Iterator

from magnetar.broker.verify.history import (
    MessageName,
    Position,
    ReaderHistory,
    Rule,
    TopicHistory,
    Violation,
)


def check_reader(topic: TopicHistory, reader: ReaderHistory) -> Iterator[Violation]:
    """A reader is left alone at any time: what it hasn't read says nothing."""
    log = [position for position, _ in topic.stored]
    nth_of = {position: nth for nth, position in enumerate(log)}
    stored = dict(topic.stored)
    first = next((nth for nth, at in enumerate(log) if at >= reader.start), len(log))

    def broken(rule: Rule, text: str, position: Position, message: MessageName | None) -> Violation:
        return Violation(rule, text, position, message, topic.topic, reader.name)

    wanted = first
    for position, message in reader.read:
        nth = nth_of.get(position)
        if nth is None:
            yield broken(Rule.INVENTED, f"{position} was read and isn't stored", position, message)
            continue
        if message != stored[position]:
            text = f"{message} was read, {stored[position]} is stored"
            yield broken(Rule.DAMAGED, text, position, stored[position])
        if nth < first:
            text = f"{position} came to a reader that begins at {reader.start}"
            yield broken(Rule.WRONG_PLACE, text, position, stored[position])
        elif nth < wanted:
            text = f"{position} came after {log[wanted - 1]}"
            yield broken(Rule.REORDERED, text, position, stored[position])
        else:
            if nth > wanted:
                text = f"{nth - wanted} messages before {position} were left out"
                yield broken(Rule.SKIPPED, text, log[wanted], stored[log[wanted]])
            wanted = nth + 1
