"""Whether anything has happened in a topic, told by its counters: nothing is noted when it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.broker.topic.topic import Topic

ActivityMark = tuple[int, ...]
"""Bytes that are stored and entries in all backlogs, then whatever changes with other figures.

Numbers alone: collections of garbage don't walk through it.
"""
_CLIENTS_MAX: Final = 32
"""Subscriptions, and producers; the same of a subscription's consumers."""


def activity_mark(topic: Topic) -> ActivityMark | None:
    """Another one when figures of the topic or its clients have changed, but for the policies.

    None: there are too many clients to ask each of them in one turn.
    """
    subscriptions, producers = topic.subscriptions, topic.producers
    if len(subscriptions) > _CLIENTS_MAX or len(producers) > _CLIENTS_MAX:
        return None
    mark = [topic.stored_bytes, 0, topic.entries_in, topic.last_publish_ms, len(producers)]
    mark += [each.connected_ms for each in producers.values()]
    for name, each in subscriptions.items():
        backlog, consumers = each.backlog, each.consumers
        mark[1] += backlog
        mark += (hash(name), each.active_ms, backlog)  # that is when a consumer came or went
        if consumers:
            if len(consumers) > _CLIENTS_MAX:
                return None
            mark.append(each.unacked)
            for one in consumers:
                mark += (one.messages_out, one.acks, one.redelivered)
    return tuple(mark)
