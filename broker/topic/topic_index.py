"""Loaded topics in the order of their hashes: those of a bundle are neighbours. Pure.

A broker that stops, or that hands over what a dead one had, unloads many bundles of many topics;
with every topic looked at for every bundle that would be their product.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from magnetar.bundles.hash_ranges import FULL_UPPER, HashRange, namespace_of, topic_hash


class TopicIndex:
    """Eight bytes a topic, beside its name."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}  # by namespace, ascending by hash

    def add(self, full: str) -> None:
        """REQUIRES: it isn't in."""
        insort(self._names.setdefault(namespace_of(full), []), full, key=topic_hash)

    def remove(self, full: str) -> None:
        """REQUIRES: it is in."""
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
