"""Loaded topics by name, and in the order of their hashes: those of a bundle are neighbours.

A broker that stops, or that hands over what a lost one had, unloads many bundles of many topics;
with every topic looked at for every bundle that would be their product.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from magnetar.broker.topic.topic import Topic
from magnetar.bundles.namespace_bundles import FULL_UPPER, HashRange, namespace_of, topic_hash


class LoadedTopics(dict[str, "Topic"]):
    """By full name. The order takes eight bytes a topic, beside its name."""

    on_loaded: Callable[[str], None] | None = None
    """Told each name that comes; None: nobody wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, list[str]] = {}  # by namespace, ascending by hash

    def __setitem__(self, full: str, topic: Topic) -> None:
        if full not in self:
            insort(self._names.setdefault(namespace_of(full), []), full, key=topic_hash)
            if self.on_loaded is not None:
                self.on_loaded(full)
        super().__setitem__(full, topic)

    def __delitem__(self, full: str) -> None:
        super().__delitem__(full)
        namespace = namespace_of(full)
        names = self._names[namespace]
        at = bisect_left(names, topic_hash(full), key=topic_hash)
        del names[names.index(full, at)]  # the first, or one of few with the same hash
        if not names:
            del self._names[namespace]

    def of_namespace(self, namespace: str) -> list[str]:
        """Full names of those of ``tenant/ns``."""
        return list(self._names.get(namespace, ()))

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
