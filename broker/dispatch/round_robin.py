"""Whose turn it is among the consumers of a Shared subscription: priority levels, then rounds."""

from magnetar.broker.dispatch.interfaces import ConsumerState


class RoundRobin:
    """Consumers by priority level; lower levels only when all higher ones are exhausted."""

    __slots__ = ("_levels", "_order", "consumers")

    def __init__(self) -> None:
        self.consumers: list[ConsumerState] = []  # in the order of joining
        self._levels: dict[int, list[ConsumerState]] = {}  # rotated: the head is next
        self._order: list[int] = []  # levels, best first

    def add(self, consumer: ConsumerState) -> None:
        self.consumers.append(consumer)
        self._levels.setdefault(consumer.priority, []).append(consumer)
        self._order = sorted(self._levels)

    def remove(self, consumer: ConsumerState) -> bool:
        """Whether it was there."""
        if consumer not in self.consumers:
            return False
        self.consumers.remove(consumer)
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
            self._order = sorted(self._levels)
        return True

    def next(self) -> ConsumerState | None:
        """The next consumer that can take an entry, of the best level that has one."""
        for priority in self._order:
            level = self._levels[priority]
            for offset, consumer in enumerate(level):
                if consumer.available:
                    if len(level) > 1:  # it and the ones passed over go behind the others
                        level[:] = level[offset + 1 :] + level[: offset + 1]
                    return consumer
        return None

    def available_permits(self) -> int:
        """Sum of the permits of the consumers that can take an entry."""
        return sum([each.permits for each in self.consumers if each.available])
