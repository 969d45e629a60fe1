"""Loaded topics by name, and in the order of their hashes: those of a bundle are neighbours.

A broker that stops, or that hands over what a lost one had, unloads many bundles of many topics;
with every topic looked at for every bundle that would be their product.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final

from magnetar.broker.topic.topic import Topic
from magnetar.bundles.namespace_bundles import FULL_UPPER, HashRange, namespace_of, topic_hash

_AT_ONCE: Final = 100
"""Names that a walk copies at a time: with 100,000, a copy of all of them takes 10 ms."""


class LoadedTopics(dict[str, "Topic"]):
    """By full name. The order takes eight bytes a topic, beside its name."""

    on_loaded: Callable[[str], None] | None = None
    """Told each name that comes; None: nobody wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self.unloaded_count = 0
        """Topics that were here, since the start."""
        self._names: dict[str, list[str]] = {}  # by namespace, ascending by hash
        # As they were loaded, which is how they lie in memory: a walk in the order of their hashes
        # takes half as long again. None: free, for the next one.
        self._slots: list[Topic | None] = []
        self._free: list[int] = []

    def __setitem__(self, full: str, topic: Topic) -> None:
        if full not in self:
            insort(self._names.setdefault(namespace_of(full), []), full, key=topic_hash)
            if self.on_loaded is not None:
                self.on_loaded(full)
            if not self._free:
                self._free.append(len(self._slots))
                self._slots.append(None)
            topic.slot = self._free.pop()
        else:
            topic.slot = self[full].slot
        self._slots[topic.slot] = topic
        super().__setitem__(full, topic)

    def __delitem__(self, full: str) -> None:
        slot = self[full].slot
        self._slots[slot] = None
        self._free.append(slot)
        super().__delitem__(full)
        self.unloaded_count += 1
        namespace = namespace_of(full)
        names = self._names[namespace]
        at = bisect_left(names, topic_hash(full), key=topic_hash)
        del names[names.index(full, at)]  # the first, or one of few with the same hash
        if not names:
            del self._names[namespace]

    def walk(self) -> Iterator[Topic]:
        """All of them. Between two steps topics may come and go: each is met once at most."""
        return (topic for topic in self._slots if topic is not None)

    def of_namespace(self, namespace: str) -> Iterator[Topic]:
        """Those of ``tenant/ns``, also while topics come and go."""
        behind = -1  # hash of the last that were met
        while names := self._names.get(namespace):
            first = bisect_right(names, behind, key=topic_hash)
            if first == len(names):
                break
            # All of one hash at once: the hash is the place to go on from.
            behind = topic_hash(names[min(first + _AT_ONCE, len(names)) - 1])
            end = bisect_right(names, behind, first, key=topic_hash)
            for full in names[first:end]:
                if (topic := self.get(full)) is not None:
                    yield topic

    def within(self, bundle: str) -> list[str]:
        """Full names of those in ``tenant/ns/0x..._0x...``, a bundle or not.

        Raises:
            InvalidBundleError: not a range.
        """
        namespace, _, text = bundle.rpartition("/")
        found = HashRange.parse(text)
        names = self._names.get(namespace, [])
        first = bisect_left(names, found.lower, key=topic_hash)
        if found.upper == FULL_UPPER:
            return names[first:]
        return names[first : bisect_left(names, found.upper, key=topic_hash)]
